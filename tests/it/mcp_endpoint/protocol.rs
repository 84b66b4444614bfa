//! What a request must look like, in each revision, and what is answered otherwise.

use http::Method;
use serde_json::{Value, json};

use super::{BANK, legacy, modern, modern_result};
use crate::support::{
    client::Client,
    has::Has,
    many::{connections_of, entry, pack},
    scripted::{Scripted, Seen},
    world::World,
};

/// A request with these headers, as it is.
async fn raw(
    client: &Client,
    headers: &[(&str, &str)],
    body: &str,
) -> crate::support::client::Answer {
    let mut request = client
        .request(Method::POST, BANK)
        .header("content-type", "application/json")
        .body(body.to_owned());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    client.send(request).await
}

fn meta(version: &str) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

fn ping(params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params }).to_string()
}

#[tokio::test]
async fn a_handshake_ends_with_a_version_that_both_speak() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    for (asked, given) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-03-26", "2025-03-26"),
        ("2024-11-05", "2024-11-05"),
        ("2030-01-01", "2025-11-25"),
    ] {
        let params = json!({
            "protocolVersion": asked, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" },
        });
        let answer = legacy(&ann, "initialize", params).await;
        assert_eq!(answer["result"]["protocolVersion"], given, "{answer}");
        answer["result"].has(json!({ "serverInfo": { "name": "bank" }, "instructions": "Money" }));
    }
    assert_eq!(legacy(&ann, "ping", json!({})).await["result"], json!({}));
    let started = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    assert_eq!(ann.post(BANK, started).await.status, 202);
    let found = modern_result(&ann, "server/discover", json!({})).await;
    assert_eq!(found["supportedVersions"][0], "2026-07-28");
    assert!(found["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"].is_object());
}

type Headers<'a> = &'a [(&'a str, &'a str)];

#[tokio::test]
async fn headers_and_body_must_agree_from_2026_07_28_on() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let new = "2026-07-28";
    let list = ping(&json!({ "_meta": meta(new) }));
    let version = ("mcp-protocol-version", new);
    let method = ("mcp-method", "tools/list");
    let cases: [(Headers<'_>, &str, i64); 6] = [
        (&[version], &list, -32020),
        (&[method], &list, -32020),
        (&[version, ("mcp-method", "ping")], &list, -32020),
        (
            &[("mcp-protocol-version", "2025-11-25"), method],
            &list,
            -32020,
        ),
        (&[version, method], &ping(&json!({})), -32602),
        (
            &[version, method],
            &ping(&json!({ "_meta": { "io.modelcontextprotocol/protocolVersion": new } })),
            -32602,
        ),
    ];
    for (headers, body, code) in cases {
        let answer = raw(&ann, headers, body).await.expect(400);
        assert_eq!(answer["error"]["code"], code, "{headers:?} {body} {answer}");
        assert_eq!(answer["id"], 1);
    }
    let later = ping(&json!({ "_meta": meta("2031-01-01") }));
    let headers = [("mcp-protocol-version", "2031-01-01"), method];
    let answer = raw(&ann, &headers, &later).await.expect(400);
    assert_eq!(answer["error"]["code"], -32022, "{answer}");
    assert_eq!(answer["error"]["data"]["requested"], "2031-01-01");
    for removed in ["ping", "initialize", "logging/setLevel", "no/such"] {
        let answer = modern(&ann, removed, json!({})).await.expect(404);
        assert_eq!(answer["error"]["code"], -32601, "{answer}");
    }
}

#[tokio::test]
async fn malformed_messages_are_refused_as_json_rpc_says() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    for (body, status, code) in [
        ("{", 400, -32700),
        ("7", 400, -32600),
        (r#"{"id":1,"method":"ping"}"#, 400, -32600),
        (
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            400,
            -32600,
        ),
        (r#"{"jsonrpc":"2.0","id":1}"#, 400, -32600),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#,
            400,
            -32600,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#,
            200,
            -32601,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}"#,
            200,
            -32602,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"?"}}"#,
            200,
            -32602,
        ),
    ] {
        let answer = raw(&ann, &[], body).await.expect(status);
        assert_eq!(answer["error"]["code"], code, "{body}: {answer}");
    }
    for unknown in ["1999-01-01", "latest", "v3", "2026"] {
        let headers = [("mcp-protocol-version", unknown)];
        let answer = raw(&ann, &headers, &ping(&json!({}))).await.expect(400);
        assert_eq!(answer["error"]["code"], -32022, "{unknown}: {answer}");
        assert_eq!(
            answer["error"]["data"]["supported"][0], "2026-07-28",
            "{answer}"
        );
    }
}

#[tokio::test]
async fn a_batch_is_answered_only_in_the_revision_that_knows_it() {
    let world = World::shared().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    let batch = json!([
        { "jsonrpc": "2.0", "id": 1, "method": "ping" },
        { "jsonrpc": "2.0", "method": "notifications/initialized" },
        { "jsonrpc": "2.0", "id": 2, "method": "tools/list" },
        { "jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {
            "name": "bank__get_exchange_rate", "arguments": crate::support::bank::pair(),
        } },
    ])
    .to_string();
    let answers = raw(&ann, &[], &batch).await.expect(200);
    let ids: Vec<&Value> = answers
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| &answer["id"])
        .collect();
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(answers[2]["result"]["isError"], false, "{answers}");
    let begin = json!({ "protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let begin = json!([{ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin }]);
    let answers = raw(&ann, &[], &begin.to_string()).await.expect(200);
    assert_eq!(answers[0]["error"]["code"], -32600, "{answers}");
    let newer = [("mcp-protocol-version", "2025-06-18")];
    let answer = raw(&ann, &newer, &batch).await.expect(400);
    assert_eq!(answer["error"]["code"], -32600);
    assert_eq!(raw(&ann, &[], "[]").await.status, 400);
}

#[tokio::test]
async fn methods_media_types_and_origins_are_checked() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let list = ping(&json!({}));
    assert_eq!(ann.delete(BANK).await.status, 405);
    let stream = ann
        .request(Method::GET, BANK)
        .header("accept", "text/event-stream")
        .header("mcp-protocol-version", "2026-07-28");
    assert_eq!(ann.send(stream).await.status, 405);
    let html = ann.request(Method::GET, BANK).header("accept", "text/html");
    assert_eq!(ann.send(html).await.status, 406);
    assert_eq!(
        raw(&ann, &[("accept", "text/html")], &list).await.status,
        406
    );
    let text = ann.request(Method::POST, BANK).body(list.clone());
    assert_eq!(ann.send(text).await.status, 415);
    for (origin, status) in [
        ("http://evil.example.com", 403),
        ("null", 403),
        ("http://localhost:6274", 200),
    ] {
        let answer = raw(&ann, &[("origin", origin)], &list).await;
        assert_eq!(answer.status, status, "{origin}: {}", answer.text);
    }
    let long = format!("{list}{}", " ".repeat(world.config.max_body_bytes));
    assert_eq!(raw(&ann, &[], &long).await.status, 413);
}

/// `Mcp-Param-*` repeats what a tool marks (SEP-2243).
#[tokio::test]
async fn headers_that_repeat_arguments_must_agree_with_them() {
    let marked = json!({ "type": "object", "properties": {
        "region": { "type": "string", "x-mcp-header": "Region" },
        "count": { "type": "integer", "x-mcp-header": "Count" },
        "text": { "type": "string" },
    } });
    let server = Scripted::modern(move |seen: Seen| {
        let list = json!({ "tools": [{ "name": "route", "inputSchema": marked }] });
        async move { (seen.method() == "tools/list").then(|| seen.result(list)) }
    })
    .await;
    let entries = entry("desk", &server.url, "");
    let world = World::with(|setup| setup.packs.push(pack(&entries))).await;
    let ann = world.user("ann", &[]).await;
    connections_of(&ann, "many", &[("desk", "ready")]).await;
    let zurich = "=?base64?WsO8cmljaA==?=";
    let cases: [(Headers<'_>, Value, u16); 12] = [
        (&[], json!({ "text": "t" }), 200),
        (
            &[("mcp-param-region", "eu")],
            json!({ "region": "eu" }),
            200,
        ),
        (
            &[("MCP-PARAM-REGION", zurich)],
            json!({ "region": "Zürich" }),
            200,
        ),
        (&[("mcp-param-count", "7")], json!({ "count": 7 }), 200),
        (&[("mcp-param-count", "7.0")], json!({ "count": 7 }), 200),
        (&[], json!({ "region": "eu" }), 400),
        (
            &[("mcp-param-region", "us")],
            json!({ "region": "eu" }),
            400,
        ),
        (&[("mcp-param-region", "eu")], json!({}), 400),
        (
            &[("mcp-param-region", "=?base64?!?=")],
            json!({ "region": "eu" }),
            400,
        ),
        (
            &[("mcp-param-region", "eu"), ("mcp-param-region", "us")],
            json!({ "region": "eu" }),
            400,
        ),
        (&[("mcp-param-count", "8")], json!({ "count": 7 }), 400),
        (&[("mcp-param-count", "7.5")], json!({ "count": 7 }), 400),
    ];
    for (headers, arguments, status) in cases {
        let before = server.requests("tools/call").len();
        let params =
            json!({ "name": "desk__route", "arguments": arguments, "_meta": meta("2026-07-28") });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let mut request = ann
            .request(Method::POST, "/mcp/many")
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", "tools/call")
            .header("mcp-name", "desk__route")
            .json(&body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = ann.send(request).await.expect(status);
        let executed = server.requests("tools/call").len() - before;
        if status == 200 {
            assert_eq!(executed, 1, "{headers:?} {arguments} {answer}");
        } else {
            assert_eq!(answer["error"]["code"], -32020, "{headers:?} {answer}");
            assert_eq!(executed, 0, "{headers:?} {answer}");
        }
    }
}
