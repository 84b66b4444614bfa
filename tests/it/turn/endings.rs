//! How a run ends when it does not end well: the user reads why, and nothing that was shown is lost.

use std::time::Duration;

use serde_json::{Value, json};

use super::{shared_world, world_with};
use crate::support::{
    bank::{payment, start_slow_bank},
    client::{plain, roles, tool_results},
    has::Has,
    model::{Gate, Reply, calls, error, events, results, text, text_of},
    wait::{ended, eventually},
    world::World,
};

async fn cancel(client: &crate::support::client::Client, run: &str) {
    client
        .post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect(202);
}

#[tokio::test]
async fn what_was_shown_before_a_cancel_is_kept() {
    let world = shared_world().await;
    let gate = Gate::new();
    world
        .model
        .reply(text("This is half of the answer").gate(4, &gate))
        .reply(text("Yes."));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let mut events = ann.listen(&id, None).await;
    let run = ann.say(&id, "tell me").await;
    while events.next().await.unwrap().data["text"] != "half " {}
    cancel(&ann, &run).await;
    assert_eq!(ended(&ann, &run).await["status"], "cancelled");
    world.model.wait_for_hangups(1).await;
    let last = ann.messages(&id).await.pop().unwrap();
    assert_eq!(last["role"], "assistant");
    assert_eq!(plain(&last), "This is half ");
    ann.say_and_wait(&id, "go on").await;
    let shown = world.model.last_request();
    let texts: Vec<_> = shown["messages"].as_array().unwrap()[1..]
        .iter()
        .map(text_of)
        .collect();
    assert_eq!(texts, ["tell me", "This is half ", "go on"]);
}

#[tokio::test]
async fn a_cancel_before_the_first_word_leaves_no_empty_answer() {
    let world = shared_world().await;
    let gate = Gate::new();
    world.model.reply(text("never").gate(0, &gate));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let run = ann.say(&id, "tell me").await;
    gate.reached().await;
    cancel(&ann, &run).await;
    ended(&ann, &run).await;
    assert_eq!(roles(&ann, &id).await, ["system", "user"]);
}

#[tokio::test]
async fn a_cancel_during_a_call_says_that_its_outcome_is_unknown_and_repeats_nothing() {
    let slow = start_slow_bank(None, Duration::from_secs(30)).await;
    let world =
        world_with(|setup| setup.env = setup.env.clone().with("BANK_URL", slow.url.clone())).await;
    world
        .model
        .reply(calls([("bank__send_money", payment("3.00"))]))
        .reply(text("I do not know."));
    let fin = world.user("fin", &["finance"]).await;
    let id = fin.open("bank").await;
    let run = fin.say(&id, "pay").await;
    eventually(async || slow.executions("send_money") == 1).await;
    cancel(&fin, &run).await;
    assert_eq!(ended(&fin, &run).await["status"], "cancelled");
    let result = tool_results(&fin, &id).await.pop().unwrap();
    assert_eq!(result["status"], "outcome_unknown");
    fin.say_and_wait(&id, "did it work?").await;
    let request = world.model.last_request();
    let told: Vec<_> = request["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["role"] == "tool")
        .collect();
    assert!(text_of(told[0]).contains("outcome unknown"), "{told:?}");
    assert_eq!(slow.executions("send_money"), 1);
}

#[tokio::test]
async fn a_server_that_does_not_answer_in_time_leaves_the_outcome_unknown() {
    let slow = start_slow_bank(None, Duration::from_secs(30)).await;
    let world = world_with(|setup| {
        setup.env = setup.env.clone().with("BANK_URL", slow.url.clone());
        setup.change_server(json!({ "timeouts": { "connectSeconds": 5, "requestSeconds": 1 } }));
    })
    .await;
    world
        .model
        .reply(calls([("bank__send_money", payment("3.00"))]))
        .reply(text("Check your account."));
    let fin = world.user("fin", &["finance"]).await;
    assert_eq!(fin.ask("bank", "pay").await, "Check your account.");
    let told = &results(&world.model.last_request())[0];
    assert!(
        told.contains("outcome unknown") && told.contains("Do not repeat it"),
        "{told}"
    );
    assert_eq!(slow.executions("send_money"), 1);
}

#[tokio::test]
async fn a_call_that_waits_for_others_is_not_sent_after_a_cancel_and_says_which_it_was() {
    let slow = start_slow_bank(None, Duration::from_secs(30)).await;
    let world =
        world_with(|setup| setup.env = setup.env.clone().with("BANK_URL", slow.url.clone())).await;
    let rate = || {
        (
            "bank__get_exchange_rate",
            json!({ "from": "EUR", "to": "USD" }),
        )
    };
    world.model.reply(calls([(); 9].map(|()| rate())));
    let fin = world.user("fin", &["finance"]).await;
    let id = fin.open("bank").await;
    let run = fin.say(&id, "rates?").await;
    eventually(async || slow.executions("get_exchange_rate") > 0).await;
    cancel(&fin, &run).await;
    assert_eq!(ended(&fin, &run).await["status"], "cancelled");
    let results = tool_results(&fin, &id).await;
    let held: Vec<_> = results
        .iter()
        .filter(|result| result["status"] == "cancelled")
        .collect();
    assert_eq!(held.len(), 1, "{results:?}");
    assert_eq!(
        held[0]["text"],
        "cancelled before bank.get_exchange_rate was sent"
    );
    assert!(slow.executions("get_exchange_rate") < 9);
}

#[tokio::test]
async fn without_a_model_a_message_is_answered_with_what_works() {
    let none = json!({ "provider": "none", "model": null, "baseUrl": null, "apiKey": null });
    let world = world_with(|setup| setup.change_pack(json!({ "llm": none }))).await;
    let ann = world.user("ann", &["employee"]).await;
    let id = ann.open("bank").await;
    assert_eq!(ann.say_and_wait(&id, "hello?").await["status"], "succeeded");
    assert!(plain(ann.messages(&id).await.last().unwrap()).contains("/help"));
    ann.say_and_wait(&id, "/call bank get_balances").await;
    assert_eq!(world.bank.executions("get_balances"), 1);
}

/// One failing answer: the run, its messages as role and text.
async fn failing(reply: Reply) -> (World, Value, Vec<(String, String)>) {
    let world = shared_world().await;
    world.model.reply(reply);
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let run = ann.say_and_wait(&id, "hi").await;
    let messages = ann.messages(&id).await;
    let said = messages
        .iter()
        .skip(2)
        .map(|message| (message["role"].as_str().unwrap().to_owned(), plain(message)));
    (world, run.clone(), said.collect())
}

#[tokio::test]
async fn a_refused_key_is_told_to_the_user_without_the_key() {
    let (_world, run, said) = failing(error(
        401,
        "Incorrect API key provided: model-key-0123456789",
    ))
    .await;
    assert_eq!(run["status"], "failed");
    let reason = run["error"].as_str().unwrap();
    assert!(
        reason.contains("does not work as it is set up") && !reason.contains("model-key"),
        "{reason}"
    );
    assert_eq!(said, [("system".to_owned(), reason.to_owned())]);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_kept_and_marked() {
    let (_world, run, said) = failing(text("This will not be all of it").cut(4)).await;
    assert_eq!(run["status"], "failed");
    assert_eq!(
        said[0],
        ("assistant".to_owned(), "This will not ".to_owned())
    );
    assert_eq!(
        said[1],
        (
            "system".to_owned(),
            run["error"].as_str().unwrap().to_owned()
        )
    );
}

/// `OpenRouter`'s way of saying it: the chunk that ends the answer holds an error.
#[tokio::test]
async fn an_error_in_the_middle_is_told_and_what_was_said_is_kept_and_marked() {
    let chunk = |text: &str| json!({ "choices": [{ "index": 0, "delta": { "role": "assistant", "content": text }, "finish_reason": null }] });
    let broken = json!({
        "error": { "code": 502, "message": "Provider disconnected unexpectedly" },
        "choices": [{ "index": 0, "delta": { "content": "" }, "finish_reason": "error" }],
    });
    let (_world, run, said) = failing(events([chunk("The balance is 1"), broken])).await;
    assert_eq!(run["status"], "failed");
    let reason = run["error"].as_str().unwrap();
    assert!(reason.contains("does not answer at the moment"), "{reason}");
    assert_eq!(
        said,
        [
            ("assistant".to_owned(), "The balance is 1".to_owned()),
            ("system".to_owned(), reason.to_owned()),
        ]
    );
}

#[tokio::test]
async fn an_answer_that_was_withheld_is_said_to_be() {
    let (_world, run, said) = failing(text("I will").finish("content_filter")).await;
    run["error"].says("withheld");
    assert_eq!(said[0], ("assistant".to_owned(), "I will".to_owned()));
}

#[tokio::test]
async fn an_answer_at_the_length_limit_is_kept_and_said_to_be_cut() {
    let (_world, run, said) = failing(text("Once upon a").finish("length")).await;
    run["error"].says("Ask for less at once");
    assert_eq!(said[0], ("assistant".to_owned(), "Once upon a".to_owned()));
    assert_eq!(run["usage"]["output_tokens"], 7);
}

#[tokio::test]
async fn an_empty_answer_is_an_error_and_no_message() {
    for blank in ["", " \n "] {
        let (_world, run, said) = failing(text(blank)).await;
        run["error"].says("empty answer");
        assert_eq!(
            said,
            [(
                "system".to_owned(),
                run["error"].as_str().unwrap().to_owned()
            )]
        );
        assert_eq!(run["usage"]["input_tokens"], 11);
    }
}

#[tokio::test]
async fn a_failed_run_does_not_keep_the_next_from_working() {
    let (world, run, _) = failing(error(400, "context too long")).await;
    world.model.reply(text("Fine."));
    let ann = world.user("ann", &[]).await;
    let id = run["conversation_id"].as_str().unwrap();
    assert_eq!(ann.say_and_wait(id, "again").await["status"], "succeeded");
}

#[tokio::test]
async fn a_conversation_can_be_deleted_in_the_middle_of_an_answer() {
    let world = world_with(|setup| setup.config.run_lease = Duration::from_secs(1)).await;
    let gate = Gate::new();
    world.model.reply(text("for nobody").gate(2, &gate));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let events = ann.listen(&id, None).await;
    let run = ann.say(&id, "hi").await;
    gate.reached().await;
    assert_eq!(
        ann.delete(&format!("/v1/conversations/{id}")).await.status,
        204
    );
    events.rest().await;
    ann.get(&format!("/v1/runs/{run}")).await.expect(404);
    world.model.wait_for_hangups(1).await;
}

#[tokio::test]
async fn deleting_and_answering_at_once_never_block_each_other() {
    let world = shared_world().await;
    world.model.on(|request| {
        results(request)
            .is_empty()
            .then(|| calls([("bank__get_balances", json!({}))]))
    });
    world.model.on(|_| Some(text("Well.")));
    let ann = world.user("ann", &["employee"]).await;
    let rounds = (0..12).map(|_| async {
        let id = ann.open("bank").await;
        ann.say(&id, "hi").await;
        let path = format!("/v1/conversations/{id}");
        assert_eq!(ann.delete(&path).await.status, 204);
    });
    futures_util::future::join_all(rounds).await;
}
