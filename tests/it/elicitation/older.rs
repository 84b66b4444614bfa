//! Servers up to 2025-11-25 ask while the call is open and wait. Nothing here waits: nothing was declared, and what is
//! asked all the same is declined at once, with a word to the user.

use futures_util::stream;
use serde_json::{Value, json};

use super::{OPEN, answer, parts, texts};
use crate::{
    mcp_http::scripted::{Scripted, Seen, event, events, text as result},
    support::{offer::world, servers::everything},
};

#[tokio::test]
async fn a_question_in_the_middle_of_a_call_is_declined_and_its_user_told() {
    let server = Scripted::legacy(async |seen: Seen| {
        let ask = json!({"jsonrpc": "2.0", "id": 77, "method": "elicitation/create", "params": {
            "message": "Your name?", "requestedSchema": {"type": "object", "properties": {"n": {"type": "string"}}},
        }});
        let done = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result("without it, then")});
        match seen.method() {
            "tools/call" => Some(events(stream::iter([Ok(event(&ask)), Ok(event(&done))]))),
            // Our answer to the question.
            "POST" => Some(crate::mcp_http::scripted::reply(http::StatusCode::ACCEPTED, &[], "")),
            _ => None,
        }
    })
    .await;
    let world = world(&server.url, OPEN).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let told = texts(&answer(&ann, &chat, "/call desk echo {}").await);
    assert!(told.contains("asked you something in the middle of echo: “Your name?”"), "{told}");
    assert!(told.ends_with("without it, then"), "{told}");
    assert!(parts(&ann, &chat, "prompt").await.is_empty());
    server.until("POST", 1).await;
    let reply = server.requests("POST").remove(0).body;
    assert_eq!((&reply["id"], &reply["result"]["action"]), (&json!(77), &json!("decline")));
}

#[tokio::test]
async fn an_older_server_is_not_told_that_anybody_could_be_asked() {
    let server = Scripted::legacy(async |_: Seen| None).await;
    let world = world(&server.url, OPEN).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    answer(&ann, &chat, "/call desk echo {}").await;
    for seen in server.requests("initialize") {
        assert_eq!(seen.body["params"]["capabilities"], json!({}));
    }
    let call: Value = server.requests("tools/call").remove(0).body;
    assert!(!call.to_string().contains("elicitation"), "{call}");
}

#[tokio::test]
async fn the_reference_server_hides_its_questions_from_us() {
    let server = everything(None).await;
    let world = world(&server.url, OPEN).await;
    let ann = world.user("ann", &[]).await;
    let tools = ann.get("/v1/agents/desk/tools").await.expect(200).to_string();
    assert!(tools.contains("echo") && !tools.contains("trigger-elicitation"), "{tools}");
}
