//! The tools of a step: who gets which, what is refused, and what the model is told.

use std::time::Duration;

use chatelaine::app::accounts::development::DevelopmentUser;
use serde_json::{Value, json};

use super::{shared_world, world_with};
use crate::support::{
    bank::{approval_by, pair, payment, start_slow_bank},
    client::{plain, roles, tool_results},
    has::Has,
    model::{call, calls, results, text, text_of, tool_names},
    wait::{ended, eventually},
};

/// What the model was told of the calls of its step before.
fn told(request: &Value) -> String {
    results(request).join("\n")
}

#[tokio::test]
async fn each_user_is_offered_their_own_tools_and_told_of_no_other() {
    let world = shared_world().await;
    world.model.on(|_| Some(text("Hm.")));
    let expected: [(&[&str], &[&str]); 3] = [
        (&["nobody"], &[]),
        (
            &["employee"],
            &["bank__get_exchange_rate", "bank__get_balances"],
        ),
        (
            &["finance"],
            &[
                "bank__get_exchange_rate",
                "bank__get_balances",
                "bank__send_money",
            ],
        ),
    ];
    for (roles, tools) in expected {
        let client = world.user(roles[0], roles).await;
        client.ask("bank", "What tools can I use?").await;
        let request = world.model.last_request();
        let mut offered = tool_names(&request);
        offered.sort_by_key(|name| tools.iter().position(|tool| tool == name));
        assert_eq!(offered, tools);
        let prompt = text_of(&request["messages"][0]);
        for tool in ["get_exchange_rate", "get_balances", "send_money"] {
            let mine = tools.iter().any(|name| name.ends_with(tool));
            assert_eq!(prompt.contains(tool), mine, "{roles:?} {tool}: {prompt}");
        }
    }
    world.guest().await.ask("bank", "hi").await;
    let request = world.model.last_request();
    assert_eq!(tool_names(&request), ["bank__get_exchange_rate"]);
    assert!(!request.to_string().contains("send_money"));
}

#[tokio::test]
async fn a_question_is_answered_with_a_tool() {
    let world = shared_world().await;
    world
        .model
        .reply(text("Let me see.").and_call(call("bank__get_exchange_rate", pair().to_string())));
    world.model.reply(text("One euro buys 1.085 dollars."));
    let ann = world.user("ann", &["employee"]).await;
    let id = ann.open("bank").await;
    let run = ann.say_and_wait(&id, "EUR to USD?").await;
    run.has(json!({ "status": "succeeded", "steps": 2 }));
    assert_eq!(
        run["usage"],
        json!({ "input_tokens": 22, "cached_input_tokens": 0, "output_tokens": 14, "estimated": false })
    );
    assert_eq!(
        roles(&ann, &id).await,
        ["system", "user", "assistant", "tool", "assistant"]
    );
    assert!(told(&world.model.last_request()).contains("1.085000"));
    let result = &tool_results(&ann, &id).await[0];
    assert_eq!(result["status"], "succeeded");
    assert_eq!(
        result["raw"]["structuredContent"]["rate"], "1.085000",
        "the server's own result is kept"
    );
    assert_eq!(world.bank.executions("get_exchange_rate"), 1);
}

#[tokio::test]
async fn a_guest_who_asks_for_a_tool_by_name_changes_nothing() {
    let world = shared_world().await;
    world
        .model
        .reply(calls([("bank__send_money", payment("10.00"))]))
        .reply(text("I cannot."));
    let guest = world.guest().await;
    let id = guest.open("bank").await;
    guest.say_and_wait(&id, "Use send_money, I insist").await;
    assert!(!tool_names(&world.model.requests()[0].body).contains(&"bank__send_money".to_owned()));
    assert!(told(&world.model.last_request()).contains("there is no tool \"bank__send_money\""));
    guest
        .say_and_wait(&id, &format!("/call bank send_money {}", payment("10.00")))
        .await;
    guest
        .say_and_wait(
            &id,
            "/call bank get_exchange_rate {\"from\":\"EUR\",\"to\":\"USD\"}",
        )
        .await;
    let statuses: Vec<_> = tool_results(&guest, &id)
        .await
        .iter()
        .map(|result| result["status"].clone())
        .collect();
    assert_eq!(statuses, ["denied", "denied", "succeeded"]);
    let entries = world.bank.books.entries();
    assert_eq!(
        entries
            .iter()
            .map(|entry| entry.tool.as_str())
            .collect::<Vec<_>>(),
        ["get_exchange_rate"]
    );
}

#[tokio::test]
async fn who_loses_a_role_loses_its_tools_in_the_same_conversation() {
    let world = shared_world().await;
    world
        .model
        .reply(calls([("bank__get_balances", json!({}))]))
        .reply(text("Much."));
    let id = world.user("ann", &["finance"]).await.open("bank").await;
    world
        .user("ann", &["finance"])
        .await
        .say_and_wait(&id, "How much?")
        .await;
    let demoted = world.user("ann", &["employee"]).await;
    world
        .model
        .reply(calls([("bank__send_money", payment("1.00"))]))
        .reply(text("No longer."));
    demoted.say_and_wait(&id, "Send it").await;
    let request = world.model.last_request();
    assert!(!tool_names(&request).contains(&"bank__send_money".to_owned()));
    assert!(told(&request).contains("there is no tool"), "{request:#}");
    assert_eq!(
        (
            world.bank.executions("get_balances"),
            world.bank.executions("send_money")
        ),
        (1, 0)
    );
}

#[tokio::test]
async fn arguments_that_are_no_json_or_do_not_fit_go_back_to_the_model() {
    let world = shared_world().await;
    let wrong = [
        "{not json",
        "[1]",
        "\"EUR\"",
        r#"{"from":"EUR"}"#,
        r#"{"from":"EUR","to":7}"#,
    ];
    for arguments in wrong {
        world
            .model
            .reply(text("").and_call(call("bank__get_exchange_rate", arguments)));
    }
    world
        .model
        .reply(calls([("bank__get_exchange_rate", pair())]))
        .reply(text("1.085"));
    let ann = world.user("ann", &["employee"]).await;
    assert_eq!(ann.ask("bank", "rate?").await, "1.085");
    let told = results(&world.model.last_request());
    assert!(told[0].contains("not valid JSON"), "{}", told[0]);
    assert!(told[1].contains("must be one JSON object"), "{}", told[1]);
    assert!(told[2].contains("must be one JSON object"), "{}", told[2]);
    assert!(
        told[3].contains("\"to\" is a required property"),
        "{}",
        told[3]
    );
    assert!(told[4].contains("at /to"), "{}", told[4]);
    assert!(told[5].contains("1.085000"), "{}", told[5]);
    assert_eq!(world.bank.executions("get_exchange_rate"), 1);
}

#[tokio::test]
async fn a_refusal_does_not_repeat_endless_arguments() {
    let world = shared_world().await;
    let long = json!({ "from": "EUR", "to": "x".repeat(100_000) });
    world
        .model
        .reply(calls([("bank__get_exchange_rate", long)]))
        .reply(text("Sorry."));
    world
        .user("ann", &["employee"])
        .await
        .ask("bank", "rate?")
        .await;
    let told = told(&world.model.last_request());
    assert!(
        told.contains("at /to") && told.len() < 1000,
        "{} bytes",
        told.len()
    );
}

#[tokio::test]
async fn a_tool_that_does_not_exist_is_an_answer_and_the_model_may_go_on() {
    let world = shared_world().await;
    let name = "no such.tool with a very strange name, and very long: ".repeat(10);
    world
        .model
        .reply(text("").and_call(call(&name, "{}")))
        .reply(calls([("bank__get_balances", json!({}))]));
    world.model.reply(text("There."));
    let ann = world.user("ann", &["employee"]).await;
    assert_eq!(ann.ask("bank", "?").await, "There.");
    assert!(results(&world.model.last_request())[0].contains("there is no tool"));
    assert_eq!(world.bank.executions("get_balances"), 1);
}

#[tokio::test]
async fn calls_of_one_step_run_side_by_side_and_are_answered_in_their_order() {
    let slow = start_slow_bank(None, Duration::from_millis(700)).await;
    let world =
        world_with(|setup| setup.env = setup.env.clone().with("BANK_URL", slow.url.clone())).await;
    let rate = |to: &str| {
        (
            "bank__get_exchange_rate",
            json!({ "from": "EUR", "to": to }),
        )
    };
    world
        .model
        .reply(calls([rate("USD"), rate("GBP"), rate("JPY"), rate("EUR")]))
        .reply(text("Done."));
    let ann = world.user("ann", &["employee"]).await;
    let id = ann.open("bank").await;
    let run = ann.say(&id, "rates").await;
    eventually(async || slow.executions("get_exchange_rate") == 4).await;
    assert_eq!(
        tool_results(&ann, &id).await,
        Vec::<Value>::new(),
        "all four are under way"
    );
    ended(&ann, &run).await;
    let told = results(&world.model.last_request());
    let currencies = ["USD", "GBP", "JPY", "EUR"];
    assert_eq!(told.len(), 4);
    assert!(
        told.iter()
            .zip(currencies)
            .all(|(told, to)| told.contains(&format!("\"to\":\"{to}\""))),
        "{told:?}"
    );
}

#[tokio::test]
async fn calls_with_one_id_for_two_are_told_apart() {
    let world = shared_world().await;
    let twice = |to: &str| {
        call(
            "bank__get_exchange_rate",
            json!({ "from": "EUR", "to": to }).to_string(),
        )
        .id("same_id_01")
    };
    world
        .model
        .reply(text("").and_call(twice("USD")).and_call(twice("GBP")))
        .reply(text("Done."));
    world
        .user("ann", &["employee"])
        .await
        .ask("bank", "rates")
        .await;
    let told = results(&world.model.last_request());
    assert!(
        told[0].contains("USD") && told[1].contains("GBP"),
        "{told:?}"
    );
}

#[tokio::test]
async fn more_calls_than_fit_in_a_step_are_refused_and_said_so() {
    let world = shared_world().await;
    let mut many = text("");
    for _ in 0..40 {
        many = many.and_call(call("bank__get_exchange_rate", pair().to_string()));
    }
    world.model.reply(many).reply(text("Enough."));
    let ann = world.user("ann", &["employee"]).await;
    assert_eq!(ann.ask("bank", "everything").await, "Enough.");
    let told = results(&world.model.last_request());
    let refused = told
        .iter()
        .filter(|told| told.contains("at most 32 calls"))
        .count();
    assert_eq!(
        (
            told.len(),
            refused,
            world.bank.executions("get_exchange_rate")
        ),
        (40, 8, 32)
    );
}

#[tokio::test]
async fn a_call_that_was_cut_before_its_arguments_is_not_made_without_them() {
    let world = shared_world().await;
    world
        .model
        .reply(
            text("")
                .and_call(call("bank__get_balances", ""))
                .finish("length"),
        )
        .reply(text("Again."));
    let ann = world.user("ann", &["employee"]).await;
    ann.ask("bank", "my travel account?").await;
    assert_eq!(world.bank.executions("get_balances"), 0);
}

#[tokio::test]
async fn a_call_that_needs_approval_is_put_off_in_clear_words() {
    let world = world_with(|setup| setup.change_server(approval_by("cfo"))).await;
    world
        .model
        .reply(calls([("bank__send_money", payment("5.00"))]))
        .reply(text("Ask the CFO."));
    let fin = world.user("fin", &["finance"]).await;
    let id = fin.open("bank").await;
    fin.say_and_wait(&id, "pay").await;
    assert!(
        text_of(&world.model.last_request()["messages"][0]).contains("send_money (needs approval)")
    );
    let told = told(&world.model.last_request());
    assert!(
        told.contains("not executed: waiting for approval"),
        "{told}"
    );
    assert_eq!(
        tool_results(&fin, &id).await[0]["status"],
        "awaiting_approval"
    );
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn an_agent_that_never_stops_calling_is_stopped() {
    let world = world_with(|setup| setup.change_pack(json!({ "llm": { "maxSteps": 3 } }))).await;
    world
        .model
        .on(|_| Some(calls([("bank__get_exchange_rate", pair())])));
    let ann = world.user("ann", &["employee"]).await;
    let id = ann.open("bank").await;
    let run = ann.say_and_wait(&id, "go on").await;
    run.has(json!({ "status": "failed", "steps": 3 }));
    run["error"].says("stopped after 3 steps");
    assert_eq!(
        plain(ann.messages(&id).await.last().unwrap()),
        run["error"].as_str().unwrap()
    );
    assert_eq!(world.bank.executions("get_exchange_rate"), 3);
}

#[tokio::test]
async fn a_command_calls_a_tool_without_the_model() {
    let world = shared_world().await;
    let ann = world.user("ann", &["employee"]).await;
    let id = ann.open("bank").await;
    let run = ann
        .say_and_wait(
            &id,
            &format!("/call  bank   get_exchange_rate   {}", pair()),
        )
        .await;
    assert_eq!(run["status"], "succeeded");
    assert_eq!(
        roles(&ann, &id).await,
        ["system", "user", "assistant", "system"],
        "its result stands once"
    );
    assert!(plain(ann.messages(&id).await.last().unwrap()).contains("1.085000"));
    for (line, said) in [
        ("/call", "Write /call"),
        ("/call bank", "Write /call"),
        ("/call bank get_exchange_rate {", "not valid JSON"),
        ("/call bank get_exchange_rate [1]", "one JSON object"),
        ("/call bank get_exchange_rate {}", "required property"),
        ("/call bank nothing", "there is no tool"),
        ("/nonsense", "There is no command /nonsense"),
        ("/tools", "get_balances"),
        ("/connections", "bank (shared) – ready"),
    ] {
        ann.say_and_wait(&id, line).await;
        let answer = plain(ann.messages(&id).await.last().unwrap());
        assert!(answer.contains(said), "{line}: {answer}");
    }
    assert!(world.model.requests().is_empty());
    assert_eq!(world.bank.executions("get_exchange_rate"), 1);
}

#[tokio::test]
async fn commands_answer_in_the_users_language() {
    let world = shared_world().await;
    let ana = DevelopmentUser {
        user: "ana".to_owned(),
        roles: vec!["employee".to_owned()],
        locale: Some("es-MX".to_owned()),
        ..DevelopmentUser::default()
    };
    let ana = world.someone(&ana).await;
    let id = ana.open("bank").await;
    for (line, said) in [
        ("/help", "/help – esta lista"),
        ("/call", "Escribe /call SERVIDOR"),
        ("/call bank get_exchange_rate {", "no son JSON válido"),
        ("/call bank get_exchange_rate [1]", "un solo objeto JSON"),
        ("/nonsense", "No existe el comando /nonsense"),
        ("/connections", "bank (compartido) – listo"),
        ("/approve ZZZZ", "No hay ninguna solicitud ZZZZ para ti"),
    ] {
        ana.say_and_wait(&id, line).await;
        let answer = plain(ana.messages(&id).await.last().unwrap());
        assert!(answer.contains(said), "{line}: {answer}");
    }
}
