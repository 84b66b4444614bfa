use a2a::{Task, TaskState};
use serde_json::{Value, json};

use super::{code, message, rpc, task, words};
use crate::{
    skills::SkillsFixture,
    support::{client::Client, has::Has, model::text},
};

#[tokio::test]
async fn a_message_for_a_skill_completes_as_one_call() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let parts = json!([{ "data": { "repo": "x" } }, { "text": "rust" }, { "text": "async" }]);
    let done = task(&ann, message("web-search", parts)).await;
    let read: Task = serde_json::from_value(done.clone()).unwrap();
    assert_eq!(read.status.state, TaskState::Completed);
    assert!(read.status.timestamp.is_some());
    let artifact = &read.artifacts.unwrap()[0];
    assert_eq!(artifact.parts[0].as_text(), Some("first hit\nsecond hit"));
    assert_eq!(done["metadata"]["skillId"], "web-search");
    assert_eq!(
        fixture.searched(),
        [json!({ "repo": "x", "input": "rust\nasync" })]
    );
    assert!(fixture.world.model.requests().is_empty());
    let done = task(&ann, message("structured", words("x"))).await;
    let parts = &done["artifacts"][0]["parts"];
    assert_eq!(
        parts,
        &json!([{ "text": r#"{"hits":[1,2]}"# }, { "data": { "hits": [1, 2] } }])
    );
}

#[tokio::test]
async fn a_message_that_is_sent_again_is_the_same_task() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let sent = message("web-search", words("rust"));
    let first = task(&ann, sent.clone()).await;
    for _ in 0..2 {
        assert_eq!(task(&ann, sent.clone()).await["id"], first["id"]);
    }
    assert_eq!(fixture.searched().len(), 1);
    let mut other = sent.clone();
    other["message"]["messageId"] = json!("another");
    assert_ne!(task(&ann, other).await["id"], first["id"]);
    // At the same moment, and by somebody else.
    let bob = fixture.world.user("bob", &["employee"]).await;
    let both = tokio::join!(task(&bob, sent.clone()), task(&bob, sent));
    assert_eq!(both.0["id"], both.1["id"]);
    assert_eq!(fixture.searched().len(), 3);
}

#[tokio::test]
async fn a_skill_may_be_named_in_the_message_itself_and_at_the_house() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let mut named = message("", words("go"));
    named["message"]["metadata"] = json!({ "skillId": "web-search" });
    named.as_object_mut().unwrap().remove("metadata");
    assert_eq!(
        task(&ann, named).await["status"]["state"],
        "TASK_STATE_COMPLETED"
    );
    let answer = rpc(
        &ann,
        "",
        "SendMessage",
        message("bank/web-search", words("go")),
    )
    .await;
    let done = &answer["result"]["task"];
    assert_eq!(done["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(
        rpc(&ann, "", "GetTask", json!({ "id": done["id"] })).await["result"]["id"],
        done["id"]
    );
    for skill in [
        "web-search",
        "bank/nonsense",
        "nonsense/web-search",
        "office/web-search",
    ] {
        assert_eq!(
            code(&ann, "", "SendMessage", message(skill, words("go"))).await,
            -32602,
            "{skill}"
        );
    }
}

#[tokio::test]
async fn a_failure_is_a_failed_task_with_its_words() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    for (skill, words_of_it) in [
        ("broken", "the index is on fire"),
        ("nowhere", "MCP server \"dead\" is not available"),
        ("lost", "outcome unknown"),
    ] {
        let failed = task(&ann, message(skill, words("x"))).await;
        assert_eq!(failed["status"]["state"], "TASK_STATE_FAILED", "{failed}");
        let said = failed["status"]["message"]["parts"][0]["text"]
            .as_str()
            .unwrap();
        assert!(said.starts_with(words_of_it), "{said}");
        assert_eq!(
            failed["metadata"].get("outcome"),
            (skill == "lost").then(|| json!("unknown")).as_ref()
        );
    }
    assert!(
        fixture.world.model.requests().is_empty(),
        "no model takes the place of a server"
    );
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused_in_the_protocols_words() {
    let fixture = SkillsFixture::new().await;
    let (ann, guest) = (
        fixture.world.user("ann", &["employee"]).await,
        fixture.world.guest().await,
    );
    let with = |change: &dyn Fn(&mut Value)| {
        let mut params = message("web-search", words("x"));
        change(&mut params);
        params
    };
    let refused: Vec<(&Client, Value, i64)> = vec![
        (&ann, message("nonsense", words("x")), -32602),
        (&guest, message("pay", words("x")), -32602),
        (&ann, message("rate", words("x")), -32602),
        (
            &ann,
            with(&|params| params["metadata"]["skillId"] = json!(7)),
            -32602,
        ),
        (
            &ann,
            with(&|params| params["message"]["role"] = json!("ROLE_AGENT")),
            -32602,
        ),
        (
            &ann,
            with(&|params| params["message"]["parts"] = json!([])),
            -32602,
        ),
        (
            &ann,
            with(&|params| params["message"]["contextId"] = json!("mine")),
            -32602,
        ),
        (
            &ann,
            with(&|params| params["message"]["taskId"] = json!("mine")),
            -32001,
        ),
        (
            &ann,
            message("web-search", json!([{ "url": "https://example.org/x" }])),
            -32005,
        ),
        (
            &ann,
            with(&|params| {
                params["configuration"] =
                    json!({ "taskPushNotificationConfig": { "url": "https://x" } });
            }),
            -32003,
        ),
        (&ann, json!({}), -32602),
    ];
    for (client, params, expected) in refused {
        assert_eq!(
            code(client, "/bank", "SendMessage", params.clone()).await,
            expected,
            "{params}"
        );
    }
    for (method, expected) in [
        ("SendStreamingMessage", -32004),
        ("ListTasks", -32004),
        ("CreateTaskPushNotificationConfig", -32003),
        ("Nonsense", -32601),
        ("GetTask", -32602),
    ] {
        assert_eq!(
            code(&ann, "/bank", method, json!({})).await,
            expected,
            "{method}"
        );
    }
    assert_eq!(
        ann.get("/v1/conversations?agent=bank").await.expect(200)["items"],
        json!([]),
        "nothing was begun"
    );
    let unfit = rpc(&ann, "/bank", "SendMessage", message("rate", words("x"))).await;
    unfit["error"]["message"].says("\"from\" is a required property");
    assert_eq!(
        unfit["error"]["data"][0]["fieldViolations"][0]["field"],
        "arguments"
    );
}

#[tokio::test]
async fn what_is_no_request_is_told_so() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let send = async |body: &str| {
        let request = ann
            .request(http::Method::POST, "/a2a/bank")
            .header("content-type", "application/json");
        ann.send(request.body(body.to_owned())).await.expect(200)["error"].clone()
    };
    let told = send(r#"[{"jsonrpc":"2.0","id":1,"method":"GetTask"}]"#).await["message"].clone();
    assert_eq!(
        told,
        "send one JSON-RPC request, which is an object; batches are not supported"
    );
    let told =
        send(r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{}}"#).await["message"].clone();
    assert_eq!(told, "params: missing field `id`");
    let send = async |body: &str| send(body).await["code"].clone();
    assert_eq!(send("{").await, -32700);
    assert_eq!(send("[]").await, -32600);
    assert_eq!(
        send(r#"{"jsonrpc":"1.0","id":1,"method":"GetTask"}"#).await,
        -32600
    );
    assert_eq!(
        send(r#"{"jsonrpc":"2.0","method":"GetTask"}"#).await,
        -32600,
        "nothing here goes without an answer"
    );
    for (version, method, expected) in [
        ("2.0", "GetTask", -32009),
        ("0.3", "GetTask", -32601),
        ("1.0", "tasks/get", -32601),
        ("1.0", "GetTask", -32602),
    ] {
        let client = ann.clone().with_header("a2a-version", version);
        assert_eq!(
            code(&client, "/bank", method, json!({})).await,
            expected,
            "{version} {method}"
        );
    }
    ann.post("/a2a/nonsense", json!({})).await.expect(404);
    fixture
        .world
        .nobody()
        .post("/a2a/bank", json!({}))
        .await
        .expect(401);
}

#[tokio::test]
async fn a_message_without_a_skill_is_a_turn_of_the_agent() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    fixture
        .world
        .model
        .reply(text("Hello."))
        .reply(text("Still here."));
    let ask = |text: &str| json!({ "message": { "messageId": "m1", "role": "ROLE_USER", "parts": words(text) } });
    let done = task(&ann, ask("hi")).await;
    assert_eq!(done["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(done["artifacts"][0]["parts"], words("Hello."));
    let mut next = ask("and now?");
    next["message"]["contextId"] = done["contextId"].clone();
    let next = task(&ann, next).await;
    assert_eq!(
        next["contextId"], done["contextId"],
        "a context is a conversation"
    );
    assert_ne!(next["id"], done["id"]);
    assert!(
        fixture
            .world
            .model
            .last_request()
            .to_string()
            .contains("Hello."),
        "which the model remembers"
    );
}

#[tokio::test]
async fn an_agent_without_a_model_answers_for_its_skills_only() {
    let pack = crate::skills::PACK.replace(
        "provider: openai, model: scripted, baseUrl: \"${MODEL_URL}\", apiKey: model-key-0123456789",
        "provider: none",
    );
    let fixture = SkillsFixture::with(&pack).await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let ask =
        json!({ "message": { "messageId": "m1", "role": "ROLE_USER", "parts": words("hi") } });
    assert_eq!(code(&ann, "/bank", "SendMessage", ask).await, -32602);
    assert_eq!(
        task(&ann, message("web-search", words("x"))).await["status"]["state"],
        "TASK_STATE_COMPLETED"
    );
}
