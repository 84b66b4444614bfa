//! Text files that come along with a message reach the model, by whichever door.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::support::{
    client::{Client, Events},
    model::{Request, call, last_user, results, text, tool_names},
    world::World,
};

const TEXT: &str = "The code word is heliotrope.";

fn data_url() -> String {
    format!("data:text/plain;base64,{}", STANDARD.encode(TEXT))
}

/// A world whose model reads the file that the user's message names, and says what it read.
async fn world() -> World {
    let world = World::shared().await;
    world.model.on(|request| {
        if let Some(read) = results(request).pop() {
            return Some(text(format!("It says {read}")));
        }
        let said = last_user(request);
        let (_, rest) = said.split_once("read it as ")?;
        let uri = rest.split([']', ';']).next()?;
        let tools = tool_names(request);
        let tool = tools.iter().find(|name| name.contains("read"))?;
        Some(text("").and_call(call(tool, json!({ "uri": uri }).to_string())))
    });
    world
}

async fn post(client: &Client, path: &str, body: Value) -> String {
    let request = client.request(http::Method::POST, path).json(&body);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200, "{path}");
    if answer.headers()["content-type"]
        .to_str()
        .unwrap()
        .starts_with("application/json")
    {
        return answer.text().await.unwrap();
    }
    let events = Events::of(answer).rest().await;
    events.iter().map(|event| event.data.to_string()).collect()
}

fn was_read(requests: &[Request]) -> bool {
    requests
        .iter()
        .any(|request| request.body.to_string().contains(TEXT))
}

#[tokio::test]
async fn a_text_file_reaches_the_model_by_every_door() {
    let part = |kind: &str| json!({ "type": kind, "text": "What does it say?" });
    let bare = STANDARD.encode(TEXT);
    let doors = [
        (
            "/v1/chat/completions",
            json!({ "model": "office", "messages": [{ "role": "user", "content": [part("text"),
                { "type": "file", "file": { "filename": "notes.txt", "file_data": data_url() } }] }] }),
        ),
        (
            "/v1/chat/completions",
            json!({ "model": "office", "messages": [{ "role": "user", "content": [part("text"),
                { "type": "file", "file": { "filename": "notes.md", "file_data": bare } }] }] }),
        ),
        (
            "/v1/responses",
            json!({ "model": "office", "input": [{ "role": "user", "content": [part("input_text"),
                { "type": "input_file", "filename": "notes.txt", "file_data": data_url() }] }] }),
        ),
        (
            "/v1/ui/chat",
            json!({ "id": "c1", "agent": "office", "messages": [{ "id": "m", "role": "user", "parts": [part("text"),
                { "type": "file", "mediaType": "text/plain", "filename": "notes.txt", "url": data_url() }] }] }),
        ),
        (
            "/v1/agui/office",
            json!({ "threadId": "t1", "runId": "r1", "messages": [{ "id": "m", "role": "user", "content": [part("text"),
                { "type": "document", "source": { "type": "data", "value": bare, "mimeType": "text/plain" },
                  "metadata": { "filename": "notes.txt" } }] }] }),
        ),
        (
            "/v1/agui/office",
            json!({ "threadId": "t2", "runId": "r2", "messages": [{ "id": "m", "role": "user", "content": [part("text"),
                { "type": "binary", "mimeType": "text/plain", "data": bare, "filename": "notes.txt" }] }] }),
        ),
    ];
    for (path, body) in doors {
        let world = world().await;
        let ann = world.user("ann", &[]).await;
        let answer = post(&ann, path, body).await;
        assert!(was_read(&world.model.requests()), "{path}: {answer}");
        assert!(answer.contains("heliotrope"), "{path}: {answer}");
        assert!(!answer.contains("not shown to you"));
    }
}

#[tokio::test]
async fn a_text_file_of_another_agent_becomes_text_and_others_are_refused() {
    let world = World::shared().await;
    world
        .model
        .on(|request| Some(text(format!("I read: {}", last_user(request)))));
    let ann = world.user("ann", &[]).await;
    let send = async |raw: String| {
        let parts = json!([{ "text": "What does it say?" }, { "raw": raw, "filename": "notes.txt", "mediaType": "text/plain" }]);
        let params =
            json!({ "message": { "messageId": "m1", "role": "ROLE_USER", "parts": parts } });
        let body =
            json!({ "jsonrpc": "2.0", "id": "r1", "method": "SendMessage", "params": params });
        ann.post("/a2a/office", body).await.expect(200)
    };
    let answer = send(STANDARD.encode(TEXT)).await;
    assert!(
        answer
            .to_string()
            .contains("[file: notes.txt]\\nThe code word is heliotrope."),
        "{answer}"
    );
    let refused = send(STANDARD.encode([0u8, 159, 146, 150])).await;
    assert_eq!(refused["error"]["code"], -32005, "{refused}");
}
