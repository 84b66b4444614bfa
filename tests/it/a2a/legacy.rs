use serde_json::json;

use super::{code, rpc};
use crate::{
    skills::SkillsFixture,
    support::{bank::payment, has::Has, model::text},
};

fn message(skill: &str, parts: impl Into<serde_json::Value>) -> serde_json::Value {
    json!({
        "message": { "kind": "message", "messageId": "m1", "role": "user", "parts": parts.into() },
        "metadata": { "skillId": skill },
        "configuration": { "blocking": true },
    })
}

#[tokio::test]
async fn a_client_of_the_version_before_is_answered_in_its_spelling() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let parts =
        json!([{ "kind": "text", "text": "go" }, { "kind": "data", "data": { "repo": "x" } }]);
    let done =
        rpc(&ann, "/bank", "message/send", message("structured", parts)).await["result"].clone();
    done.has(json!({ "kind": "task", "status": { "state": "completed" } }));
    assert_eq!(
        done["artifacts"][0]["parts"],
        json!([{ "text": r#"{"hits":[1,2]}"#, "kind": "text" }, { "data": { "hits": [1, 2] }, "kind": "data" }])
    );
    assert_eq!(fixture.searched(), [json!({ "repo": "x", "input": "go" })]);
    assert_eq!(
        rpc(&ann, "/bank", "tasks/get", json!({ "id": done["id"] })).await["result"],
        done
    );
    let failed = rpc(
        &ann,
        "/bank",
        "message/send",
        message("broken", json!([{ "kind": "text", "text": "x" }])),
    )
    .await;
    let failed = &failed["result"]["status"];
    failed.has(json!({ "state": "failed", "message": { "role": "agent" } }));
    assert_eq!(
        failed["message"]["parts"],
        json!([{ "kind": "text", "text": "the index is on fire" }])
    );
    let file = json!([{ "kind": "file", "file": { "uri": "https://example.org/x", "mimeType": "text/plain" } }]);
    assert_eq!(
        code(&ann, "/bank", "message/send", message("structured", file)).await,
        -32005
    );
    let params = message("structured", json!([]));
    let refused = rpc(&ann, "/bank", "message/stream", params).await["error"].clone();
    assert_eq!(refused["code"], -32004);
    let why = refused["message"].as_str().unwrap();
    assert!(why.contains("message/stream is not supported"), "{why}");
    let card = rpc(
        &ann,
        "/bank",
        "agent/getAuthenticatedExtendedCard",
        json!({}),
    )
    .await;
    assert_eq!(card["result"]["protocolVersion"], "0.3.0");
}

#[tokio::test]
async fn what_waits_and_what_is_stopped_have_their_old_names_too() {
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let parts = json!([{ "kind": "data", "data": payment("12.50") }]);
    let asked = rpc(&ann, "/bank", "message/send", message("pay", parts)).await["result"].clone();
    assert_eq!(asked["status"]["state"], "auth-required", "{asked}");
    let stopped =
        rpc(&ann, "/bank", "tasks/cancel", json!({ "id": asked["id"] })).await["result"].clone();
    assert_eq!(stopped["status"]["state"], "canceled");
    let mut slow = message("slow", json!([{ "kind": "text", "text": "x" }]));
    slow["configuration"] = json!({ "blocking": false });
    let slow = rpc(&ann, "/bank", "message/send", slow).await["result"].clone();
    assert_eq!(slow["status"]["state"], "working");
    fixture.gate.add_permits(1);
    fixture.world.model.reply(text("Hello."));
    let turn = json!({ "message": { "kind": "message", "messageId": "m2", "role": "user",
        "parts": [{ "kind": "text", "text": "hi" }] } });
    let turn = rpc(&ann, "/bank", "message/send", turn).await["result"].clone();
    assert_eq!(
        turn["artifacts"][0]["parts"],
        json!([{ "kind": "text", "text": "Hello." }])
    );
}
