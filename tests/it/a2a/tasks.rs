use serde_json::{Value, json};
use uuid::Uuid;

use super::{code, get, message, rpc, task, words};
use crate::{
    skills::SkillsFixture,
    support::{
        bank::payment,
        client::Client,
        has::Has,
        model::{calls, error, said, text},
        wait::eventually,
        world::World,
    },
};

/// A payment that waits for the cfo.
async fn waiting(client: &Client) -> Value {
    task(
        client,
        message("pay", json!([{ "data": payment("12.50") }])),
    )
    .await
}

async fn decide(client: &Client, task: &Value, decision: &str) {
    let id = task["metadata"]["approval"]["id"].as_str().unwrap();
    let seen = client.get(&format!("/v1/approvals/{id}")).await.expect(200);
    let body = json!({ "decision": decision, "args_sha256": seen["args_sha256"] });
    client
        .post(&format!("/v1/approvals/{id}/decision"), body)
        .await
        .expect(200);
}

async fn becomes(client: &Client, task: &Value, state: &str) -> Value {
    let mut seen = Value::Null;
    eventually(async || {
        seen = get(client, task).await;
        seen["status"]["state"] == state
    })
    .await;
    seen
}

#[tokio::test]
async fn a_task_is_its_owners_and_reads_as_absent_to_everybody_else() {
    let fixture = SkillsFixture::new().await;
    let (ann, bob) = (
        fixture.world.user("ann", &["employee"]).await,
        fixture.world.user("bob", &["employee"]).await,
    );
    let done = task(&ann, message("web-search", words("x"))).await;
    assert_eq!(get(&ann, &done).await, done);
    let (own, absent) = (
        json!({ "id": done["id"] }),
        json!({ "id": uuid::Uuid::now_v7() }),
    );
    for method in ["GetTask", "CancelTask"] {
        let foreign = rpc(&bob, "/bank", method, own.clone()).await["error"]["message"].clone();
        let missing = rpc(&bob, "/bank", method, absent.clone()).await["error"]["message"].clone();
        let nameless =
            |text: &Value, id: &Value| text.as_str().unwrap().replace(id.as_str().unwrap(), "ID");
        assert_eq!(
            nameless(&foreign, &own["id"]),
            nameless(&missing, &absent["id"])
        );
        assert_eq!(code(&bob, "/bank", method, own.clone()).await, -32001);
        assert_eq!(
            code(
                &fixture.world.stranger("ann").await,
                "/bank",
                method,
                own.clone()
            )
            .await,
            -32001
        );
        assert_eq!(
            code(&ann, "/office", method, own.clone()).await,
            -32001,
            "nor is it another agent's"
        );
        assert_eq!(
            code(&ann, "/bank", method, json!({ "id": "nonsense" })).await,
            -32001
        );
    }
    let mut continued = message("web-search", words("x"));
    continued["message"]["contextId"] = done["contextId"].clone();
    assert_eq!(
        code(&bob, "/bank", "SendMessage", continued.clone()).await,
        -32602,
        "nor is the context"
    );
    assert_eq!(task(&ann, continued).await["contextId"], done["contextId"]);
}

#[tokio::test]
async fn a_call_that_needs_consent_requires_authorization_until_it_has_it() {
    let fixture = SkillsFixture::new().await;
    let (ann, carl) = (
        fixture.world.user("ann", &["employee"]).await,
        fixture.world.user("carl", &["cfo"]).await,
    );
    let asked = waiting(&ann).await;
    assert_eq!(asked["status"]["state"], "TASK_STATE_AUTH_REQUIRED");
    let said = asked["status"]["message"]["parts"][0]["text"]
        .as_str()
        .unwrap();
    assert!(
        said.contains(asked["metadata"]["approval"]["code"].as_str().unwrap())
            && said.contains("cfo"),
        "{said}"
    );
    decide(&carl, &asked, "approve").await;
    let done = becomes(&ann, &asked, "TASK_STATE_COMPLETED").await;
    done["artifacts"][0]["parts"][0]["text"].says("12.50");
    assert_eq!(fixture.world.bank.executions("send_money"), 1);
}

/// A payment that was asked for in words and waits for the cfo.
async fn waiting_in_words(fixture: &SkillsFixture, client: &Client) -> Value {
    let model = &fixture.world.model;
    model.reply(calls([("bank__send_money", payment("12.50"))]));
    model.reply(text("It waits for the cfo. You will be told the outcome."));
    model.on(|request| said(request, "From the program").then(|| text("So it ended.")));
    let words = json!({ "messageId": uuid::Uuid::new_v4(), "role": "ROLE_USER", "parts": words("please send money") });
    task(client, json!({ "message": words })).await
}

#[tokio::test]
async fn a_call_that_was_asked_for_in_words_requires_authorization_too() {
    let fixture = SkillsFixture::new().await;
    let (ann, carl) = (
        fixture.world.user("ann", &["employee"]).await,
        fixture.world.user("carl", &["cfo"]).await,
    );
    let asked = waiting_in_words(&fixture, &ann).await;
    assert_eq!(
        asked["status"]["state"], "TASK_STATE_AUTH_REQUIRED",
        "{asked}"
    );
    let approval = &asked["metadata"]["approval"];
    let told = asked["status"]["message"]["parts"][0]["text"]
        .as_str()
        .unwrap();
    assert!(
        told.contains(approval["code"].as_str().unwrap()) && told.contains("cfo"),
        "{told}"
    );
    assert!(
        approval["url"].as_str().unwrap().starts_with("http"),
        "{approval}"
    );
    assert_eq!(asked["artifacts"], Value::Null, "nothing came of it yet");
    assert_eq!(get(&ann, &asked).await, asked);
    decide(&carl, &asked, "approve").await;
    let done = becomes(&ann, &asked, "TASK_STATE_COMPLETED").await;
    let result = done["artifacts"][0]["parts"][0]["text"].as_str().unwrap();
    assert!(result.contains("12.50"), "{done}");
    assert_eq!(done["metadata"]["approval"]["state"], "succeeded");
    assert_eq!(fixture.world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn a_call_that_was_asked_for_in_words_is_rejected_or_taken_back() {
    let fixture = SkillsFixture::new().await;
    let (ann, carl) = (
        fixture.world.user("ann", &["employee"]).await,
        fixture.world.user("carl", &["cfo"]).await,
    );
    let asked = waiting_in_words(&fixture, &ann).await;
    decide(&carl, &asked, "reject").await;
    becomes(&ann, &asked, "TASK_STATE_REJECTED").await;
    let asked = waiting_in_words(&fixture, &ann).await;
    let id = json!({ "id": asked["id"] });
    let cancelled = rpc(&ann, "/bank", "CancelTask", id.clone()).await["result"].clone();
    assert_eq!(
        cancelled["status"]["state"], "TASK_STATE_CANCELED",
        "{cancelled}"
    );
    // The turn that tells of the outcome may still be under way, and is stopped then.
    let mut again = Value::Null;
    for _ in 0..100 {
        again = rpc(&ann, "/bank", "CancelTask", id.clone()).await;
        if again["error"]["code"] == -32002 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(again["error"]["code"], -32002, "{again}");
    assert_eq!(fixture.world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn a_turn_that_fails_while_its_call_waits_still_requires_authorization() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let model = &fixture.world.model;
    model.reply(calls([("bank__send_money", payment("12.50"))]));
    model.reply(error(400, "on holiday"));
    let words = json!({ "messageId": uuid::Uuid::new_v4(), "role": "ROLE_USER", "parts": words("please send money") });
    let asked = task(&ann, json!({ "message": words })).await;
    assert_eq!(
        asked["status"]["state"], "TASK_STATE_AUTH_REQUIRED",
        "{asked}"
    );
}

#[tokio::test]
async fn a_call_that_is_refused_is_a_rejected_task() {
    let fixture = SkillsFixture::new().await;
    let (ann, carl) = (
        fixture.world.user("ann", &["employee"]).await,
        fixture.world.user("carl", &["cfo"]).await,
    );
    let asked = waiting(&ann).await;
    decide(&carl, &asked, "reject").await;
    becomes(&ann, &asked, "TASK_STATE_REJECTED").await;
    assert_eq!(
        code(&ann, "/bank", "CancelTask", json!({ "id": asked["id"] })).await,
        -32002
    );
    assert_eq!(fixture.world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn a_task_that_waits_for_consent_can_be_taken_back() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let asked = waiting(&ann).await;
    let cancelled =
        rpc(&ann, "/bank", "CancelTask", json!({ "id": asked["id"] })).await["result"].clone();
    assert_eq!(
        cancelled["status"]["state"], "TASK_STATE_CANCELED",
        "{cancelled}"
    );
    let approval = ann
        .get(&format!(
            "/v1/approvals/{}",
            asked["metadata"]["approval"]["id"].as_str().unwrap()
        ))
        .await;
    assert_eq!(approval.expect(200)["state"], "cancelled");
}

#[tokio::test]
async fn who_does_not_wait_looks_again_or_stops_it() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let mut params = message("slow", words("x"));
    params["configuration"] = json!({ "returnImmediately": true });
    let first = task(&ann, params.clone()).await;
    params["message"]["messageId"] = json!("another");
    let second = task(&ann, params).await;
    assert_eq!(first["status"]["state"], "TASK_STATE_WORKING");
    fixture.search.until("tools/call", 2).await;
    let stopped =
        rpc(&ann, "/bank", "CancelTask", json!({ "id": first["id"] })).await["result"].clone();
    stopped.has(json!({
        "status": { "state": "TASK_STATE_CANCELED" },
        "metadata": { "outcome": "unknown" },
    }));
    fixture.gate.add_permits(2);
    let done = becomes(&ann, &second, "TASK_STATE_COMPLETED").await;
    assert_eq!(done["artifacts"][0]["parts"], words("at last"));
}

#[tokio::test]
async fn a_task_takes_no_second_message() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let done = task(&ann, message("web-search", words("x"))).await;
    let mut more = message("web-search", words("y"));
    more["message"]["taskId"] = done["id"].clone();
    assert_eq!(
        code(&ann, "/bank", "SendMessage", more.clone()).await,
        -32004
    );
    more["message"]["contextId"] = json!(uuid::Uuid::now_v7());
    assert_eq!(
        code(&ann, "/bank", "SendMessage", more).await,
        -32602,
        "the context is not that task's"
    );
    assert_eq!(fixture.searched().len(), 1);
}

#[tokio::test]
async fn a_task_that_asks_its_user_takes_the_answer() {
    let world = World::with(|setup| {
        setup.change_pack(json!({ "skills": [{ "id": "pay", "mcpBinding": { "server": "bank", "tools": ["send_money"] } }] }));
        setup.change_server(json!({ "toolAccess": {
            "roles": { "employee": ["send_money"] },
            "confirm": [{ "tools": ["send_money"] }],
        } }));
    })
    .await;
    world.tools_ready().await;
    let (ann, bob) = (
        world.user("ann", &["employee"]).await,
        world.user("bob", &["employee"]).await,
    );
    let answer = |task: &Value, text: &str| {
        json!({ "message": { "messageId": Uuid::new_v4(), "role": "ROLE_USER", "taskId": task["id"],
                             "contextId": task["contextId"], "parts": words(text) } })
    };
    for (word, state) in [
        ("/confirm", "TASK_STATE_COMPLETED"),
        ("/decline", "TASK_STATE_REJECTED"),
    ] {
        let asked = waiting(&ann).await;
        assert_eq!(
            asked["status"]["state"], "TASK_STATE_INPUT_REQUIRED",
            "{asked}"
        );
        let told = &asked["status"]["message"]["parts"][0]["text"];
        told.says(r#""amount":"12.50""#);
        let line = format!(
            "{word} {}",
            asked["metadata"]["approval"]["code"].as_str().unwrap()
        );
        told.says(&line);
        let mut unclear = vec![
            answer(&asked, "yes, please"),
            answer(&asked, "/confirm ZZZZ"),
            answer(&asked, &format!("{line} no wait")),
            answer(&asked, &format!("please {line}")),
        ];
        for more in [
            json!({ "text": "hello" }),
            json!({ "data": { "approved": false } }),
        ] {
            let mut two = answer(&asked, &line);
            two["message"]["parts"].as_array_mut().unwrap().push(more);
            unclear.push(two);
        }
        for unclear in unclear {
            let again = task(&ann, unclear).await;
            let shown = &again["status"]["message"]["parts"];
            assert_eq!(shown[0]["text"], *told, "{again}");
            shown[1]["text"].says("Nothing is decided");
        }
        assert_ne!(
            code(&bob, "/bank", "SendMessage", answer(&asked, &line)).await,
            0
        );
        assert_eq!(
            get(&ann, &asked).await["status"]["state"],
            "TASK_STATE_INPUT_REQUIRED"
        );
        let ended = task(&ann, answer(&asked, &line)).await;
        assert_eq!(ended["status"]["state"], state, "{ended}");
        // The same answer again is the same task.
        assert_eq!(
            task(&ann, answer(&asked, &line)).await["status"]["state"],
            state
        );
        assert_eq!(world.bank.executions("send_money"), 1);
    }
}
