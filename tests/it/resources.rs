//! Resources that tool results link to: read by the user and the model, and nothing else is.

use serde_json::{Value, json};

use super::support::{
    client::{Client, tool_results},
    has::Has,
    model::{calls, results, text, tool_names},
    offer::{answer, asked, audited, world},
    scripted::{Reply, Scripted, Seen},
    servers::everything,
    wait::eventually,
};

const LINKED: &str = "file:///report one.txt";

/// A server whose `find` links to [`LINKED`] and holds another resource, and whose `open` links to a picture.
async fn library() -> Scripted {
    Scripted::modern(async |seen: Seen| reply(&seen)).await
}

fn reply(seen: &Seen) -> Option<Reply> {
    let params = &seen.body["params"];
    match (seen.method(), params["name"].as_str().or(params["uri"].as_str())) {
        ("tools/list", _) => Some(seen.result(json!({"tools": [
            {"name": "find", "inputSchema": {"type": "object"}}, {"name": "open", "inputSchema": {"type": "object"}},
        ]}))),
        ("tools/call", Some("find")) => Some(seen.result(json!({"content": [
            {"type": "resource_link", "uri": LINKED, "name": "Report", "mimeType": "text/plain"},
            {"type": "resource", "resource": {"uri": "memo://1", "text": "A memo."}},
            {"type": "resource_link", "uri": "bad\nuri", "name": "Bad"},
        ]}))),
        ("tools/call", _) => Some(seen.result(json!({"content": [{"type": "resource_link", "uri": "file:///p.png"}]}))),
        ("resources/read", Some("file:///p.png")) => Some(seen.result(json!({"contents": [
            {"uri": "file:///p.png", "mimeType": "image/png", "blob": "AAAA"},
        ]}))),
        ("resources/read", Some("memo://1")) => Some(seen.error(http::StatusCode::OK, -32002, "Resource not found")),
        ("resources/read", _) => Some(seen.result(json!({"contents": [
            {"uri": LINKED, "mimeType": "text/plain", "text": "y".repeat(70_000)},
        ]}))),
        _ => None,
    }
}

async fn resources(
    client: &Client,
    chat: &str,
    query: &[(&str, &str)],
) -> super::support::client::Answer {
    let query = url::Url::parse_with_params("http://here", query)
        .unwrap()
        .query()
        .unwrap_or_default()
        .to_owned();
    client
        .get(&format!("/v1/conversations/{chat}/resources?{query}"))
        .await
}

fn uris(listed: &Value) -> Vec<&str> {
    listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["uri"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn what_a_result_links_to_can_be_read_over_the_api() {
    let server = library().await;
    let world = world(&server.url, "{ default: public }").await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    answer(&ann, &chat, "/call desk find").await;
    answer(&ann, &chat, "/call desk open").await;
    let mut listed = uris(&resources(&ann, &chat, &[]).await.expect(200)).join(" ");
    assert!(
        listed.starts_with("file:///p.png "),
        "the newest first: {listed}"
    );
    assert!(
        listed.contains("memo://1") && listed.contains(LINKED) && !listed.contains("bad"),
        "{listed}"
    );
    let read = resources(&ann, &chat, &[("uri", LINKED)]).await.expect(200);
    read["items"][0].has(json!({ "name": "Report", "tool": "find" }));
    assert_eq!(
        read["items"][0]["contents"][0]["text"]
            .as_str()
            .unwrap()
            .len(),
        70_000
    );
    let picture = resources(&ann, &chat, &[("uri", "file:///p.png")])
        .await
        .expect(200);
    let blob = json!([{"uri": "file:///p.png", "mime_type": "image/png", "blob": "AAAA"}]);
    assert_eq!(picture["items"][0]["contents"], blob);
    let gone = resources(&ann, &chat, &[("uri", "memo://1")]).await;
    assert_eq!(gone.status, 502, "{}", gone.text);
    listed = audited(&world, "resource.read").await.join(", ");
    eventually(async || {
        listed = audited(&world, "resource.read").await.join(", ");
        listed.matches("desk").count() == 3
    })
    .await;
    assert_eq!(
        listed,
        "desk find failed, desk open succeeded, desk find succeeded"
    );
}

#[tokio::test]
async fn nothing_is_read_that_no_result_of_the_conversation_linked_to() {
    let server = library().await;
    let world = world(&server.url, "{ default: public }").await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let (chat, other) = (ann.open("desk").await, ann.open("desk").await);
    answer(&ann, &chat, "/call desk find").await;
    for (client, chat, query) in [
        (&ann, &chat, vec![("uri", "file:///etc/passwd")]),
        (&ann, &chat, vec![("uri", LINKED), ("server", "elsewhere")]),
        (&ann, &other, vec![("uri", LINKED)]),
        (&bob, &chat, vec![("uri", LINKED)]),
        (&bob, &chat, vec![]),
    ] {
        assert_eq!(
            resources(client, chat, &query).await.status,
            404,
            "{query:?}"
        );
    }
    assert!(server.requests("resources/read").is_empty());
}

#[tokio::test]
async fn a_link_is_closed_with_the_tool_that_made_it() {
    let server = library().await;
    let world = world(
        &server.url,
        "{ default: none, roles: { clerk: [find, open], cook: [open] } }",
    )
    .await;
    let ann = world.user("ann", &["clerk"]).await;
    let chat = ann.open("desk").await;
    answer(&ann, &chat, "/call desk find").await;
    assert_eq!(
        uris(&resources(&ann, &chat, &[]).await.expect(200)).len(),
        2
    );
    let demoted = world.user("ann", &["cook"]).await;
    assert!(uris(&resources(&demoted, &chat, &[]).await.expect(200)).is_empty());
    assert_eq!(
        resources(&demoted, &chat, &[("uri", LINKED)]).await.status,
        404
    );
}

#[tokio::test]
async fn the_model_has_a_tool_for_it_once_something_was_linked() {
    let server = library().await;
    let world = world(&server.url, "{ default: public }").await;
    world
        .model
        .reply(calls([("desk__find", json!({}))]))
        .reply(calls([
            ("read_resource", json!({"uri": LINKED})),
            ("read_resource", json!({"uri": "file:///etc/passwd"})),
            ("read_resource", json!({"url": LINKED})),
        ]))
        .reply(text("Done."));
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    answer(&ann, &chat, "What does the report say?").await;
    let requests = world.model.requests();
    assert!(!tool_names(&requests[0].body).contains(&"read_resource".to_owned()));
    assert!(tool_names(&requests[1].body).contains(&"read_resource".to_owned()));
    let heard = results(&requests[2].body);
    assert!(
        heard[1].starts_with("[resource file:///report one.txt text/plain, 68 KB]\nyyy"),
        "{:.80}",
        heard[1]
    );
    assert!(heard[1].ends_with("more bytes are not shown]") && heard[1].len() < 66_000);
    assert_eq!(
        heard[2],
        "not read: no tool result of this conversation links to \"file:///etc/passwd\""
    );
    assert_eq!(heard[3], "not read: read_resource needs the argument `uri`");
    assert_eq!(asked(&server, "resources/read"), [json!({"uri": LINKED})]);
    let statuses: Vec<_> = tool_results(&ann, &chat)
        .await
        .iter()
        .map(|result| result["status"].clone())
        .collect();
    assert_eq!(
        statuses.iter().filter(|status| *status == "denied").count(),
        2,
        "{statuses:?}"
    );
}

#[tokio::test]
async fn the_model_cannot_read_before_anything_was_linked() {
    let server = library().await;
    let world = world(&server.url, "{ default: public }").await;
    world
        .model
        .reply(calls([("read_resource", json!({"uri": LINKED}))]))
        .reply(text("No."));
    world.user("ann", &[]).await.ask("desk", "Read it.").await;
    assert!(results(&world.model.last_request())[0].starts_with("not read: no tool result"));
    assert!(server.requests("resources/read").is_empty());
}

#[tokio::test]
async fn links_of_the_reference_server_can_be_read() {
    let server = everything(None).await;
    let world = world(&server.url, "{ default: public }").await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    answer(&ann, &chat, r#"/call desk get-resource-links {"count":3}"#).await;
    let listed = resources(&ann, &chat, &[]).await.expect(200);
    let listed = uris(&listed);
    assert_eq!(listed.len(), 3, "{listed:?}");
    for uri in listed {
        let read = resources(&ann, &chat, &[("uri", uri)]).await.expect(200);
        let content = &read["items"][0]["contents"][0];
        assert!(
            content["text"].is_string() || content["blob"].is_string(),
            "{read}"
        );
    }
}
