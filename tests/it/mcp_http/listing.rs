use std::{sync::Arc, time::Duration};

use domain::{
    ids::ServerId,
    pin::Pin,
    tool::{CacheHints, CacheScope, Catalog},
};
use futures_util::{StreamExt, stream};
use http::StatusCode;
use mcp::{Discovery, McpError, McpErrorKind};
use serde_json::{Value, json};

use crate::support::{
    scripted::{Scripted, Seen, event, events, text},
    servers::{args, key, mcp, options, request, soon, spec},
};

/// A modern server whose list is this, whatever page is asked for.
async fn listing(list: Value) -> Scripted {
    let list = Arc::new(list);
    Scripted::modern(move |seen: Seen| {
        let list = list.clone();
        async move { (seen.method() == "tools/list").then(|| seen.result((*list).clone())) }
    })
    .await
}

async fn discover(server: &Scripted) -> Result<Discovery, McpError> {
    soon(mcp().discover(&key(), &spec(server.endpoint()))).await
}

fn names(found: &Discovery) -> Vec<&str> {
    found.tools.iter().map(|tool| tool.name.as_str()).collect()
}

fn tool(name: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object"}})
}

#[tokio::test]
async fn what_nobody_sees_in_a_description_is_left_out() {
    let hidden = "Adds\u{e0041}\u{200b} \u{202e}numbers 👩\u{200d}💻";
    let tool = json!({"name": "add", "title": hidden, "description": hidden, "inputSchema": {"type": "object"}});
    let found = discover(&listing(json!({"tools": [tool]})).await)
        .await
        .unwrap();
    let tool = &found.tools[0];
    let seen = "Adds numbers 👩\u{200d}💻";
    assert_eq!(
        (tool.description.as_str(), tool.title.as_deref()),
        (seen, Some(seen))
    );
}

#[tokio::test]
async fn a_hint_of_another_type_is_left_out_and_a_title_is_one_short_line() {
    let odd = json!({"name": "pay", "title": {"a": 1}, "inputSchema": {"type": "object"}, "annotations": {
        "title": {"a": 1}, "readOnlyHint": "yes", "destructiveHint": true, "idempotentHint": null, "openWorldHint": [], "more": 1,
    }});
    let title = format!("Get\n\n✅ \u{202e}approved\u{1b}[1m{}", "x".repeat(900));
    let long = json!({"name": "get", "title": title, "inputSchema": {"type": "object"}, "annotations": {"title": title}});
    let found = discover(&listing(json!({"tools": [odd, long]})).await)
        .await
        .unwrap();
    assert_eq!(names(&found), ["pay", "get"], "{:?}", found.dropped);
    let hints = |at: usize| -> Value {
        serde_json::from_str(found.tools[at].annotations.as_ref().unwrap().get()).unwrap()
    };
    assert_eq!(found.tools[0].title, None);
    assert_eq!(hints(0), json!({"destructiveHint": true, "more": 1}));
    let cut = format!("Get ✅ approved{}…", "x".repeat(128 - 15));
    assert_eq!(found.tools[1].title.as_deref(), Some(cut.as_str()));
    assert_eq!(hints(1), json!({"title": cut}));
}

#[tokio::test]
async fn a_broken_tool_keeps_its_siblings() {
    let list = json!({"tools": [
        tool("good"),
        {"name": 7},
        {"title": "nameless"},
        {"name": "odd schema", "inputSchema": "object"},
        {"name": "odd text", "description": {"de": "nein"}, "inputSchema": {}},
        "not even an object",
        ["an array", null, null, {}],
        tool("bell\u{7}"),
        tool(""),
        tool(&"n".repeat(129)),
        tool("good"),
        tool("last"),
    ]});
    let found = discover(&listing(list).await).await.unwrap();
    assert_eq!(names(&found), ["good", "last"]);
    let dropped: Vec<&str> = found
        .dropped
        .iter()
        .map(|why| why.split(':').next().unwrap())
        .collect();
    let long = format!("tool {:?}", "n".repeat(128));
    let expected = [
        "tool #2",
        "tool #3",
        "tool \"odd schema\"",
        "tool \"odd text\"",
        "tool #6",
        "tool #7",
        "tool \"bell\\u{7}\"",
        "tool \"\"",
        &long,
        "tool \"good\"",
    ];
    assert_eq!(dropped, expected, "{:#?}", found.dropped);
}

/// What is pinned would be one of the two, and the model might read the other.
#[tokio::test]
async fn a_tool_whose_members_stand_twice_is_left_out_and_named() {
    let list = r#"{"tools":[
        {"name":"twice","inputSchema":{"type":"object","properties":{"a":{"title":"x","title":"y"}}}},
        {"name":"aside","inputSchema":{"type":"object"},"_meta":{"a":1,"a":2}},
        {"name":"good","inputSchema":{"type":"object"}}
    ]}"#;
    let server = Scripted::modern(move |seen: Seen| async move {
        (seen.method() == "tools/list").then(|| seen.raw_result(list))
    })
    .await;
    let found = discover(&server).await.unwrap();
    assert_eq!(names(&found), ["good"]);
    assert_eq!(
        found.dropped,
        [
            r#"tool "twice": the member "title" appears twice in one object"#,
            r#"tool "aside": the member "a" appears twice in one object"#,
        ]
    );
}

#[tokio::test]
async fn a_tool_without_a_schema_takes_any_arguments() {
    let list = json!({"tools": [{"name": "bare"}, {"name": "null", "inputSchema": null, "outputSchema": 3, "annotations": []}]});
    let found = discover(&listing(list).await).await.unwrap();
    assert_eq!(names(&found), ["bare", "null"]);
    for tool in &found.tools {
        assert_eq!(tool.input_schema.get(), r#"{"type":"object"}"#);
        assert!(tool.output_schema.is_none() && tool.annotations.is_none());
    }
}

#[tokio::test]
async fn the_json_of_a_tool_stays_as_it_came() {
    let schema = r#"{ "type":"object", "properties": {"n": {"maximum": 1.10e2}} }"#;
    let body = format!(
        r#"{{"tools":[{{"name":"n","title":"N","inputSchema":{schema},"annotations":{{"readOnlyHint":true}}}}]}}"#
    );
    let server = Scripted::modern(move |seen: Seen| {
        let body = body.clone();
        async move { (seen.method() == "tools/list").then(|| seen.raw_result(&body)) }
    })
    .await;
    let found = discover(&server).await.unwrap();
    assert_eq!(found.tools[0].input_schema.get(), schema);
    assert_eq!(found.tools[0].title.as_deref(), Some("N"));
    assert_eq!(
        found.tools[0].annotations.as_ref().unwrap().get(),
        r#"{"readOnlyHint":true}"#
    );
}

#[tokio::test]
async fn all_pages_are_read() {
    let server = Scripted::modern(async |seen: Seen| {
        let page = match seen.body["params"]["cursor"].as_str() {
            None => json!({"tools": [tool("a")], "nextCursor": "2", "ttlMs": 9000, "cacheScope": "public"}),
            Some("2") => json!({"tools": [tool("b")], "nextCursor": "3", "ttlMs": 5000, "cacheScope": "public"}),
            Some(_) => json!({"tools": [tool("c")], "nextCursor": "", "cacheScope": "public"}),
        };
        (seen.method() == "tools/list").then(|| seen.result(page))
    })
    .await;
    let found = discover(&server).await.unwrap();
    assert_eq!(names(&found), ["a", "b", "c"]);
    let shortest = CacheHints {
        ttl: Some(Duration::from_secs(5)),
        scope: Some(CacheScope::Public),
    };
    assert_eq!(found.cache, shortest);
}

#[tokio::test]
async fn a_repeated_cursor_ends_the_list() {
    let server = listing(json!({"tools": [tool("a")], "nextCursor": "again"})).await;
    let found = discover(&server).await.unwrap();
    assert_eq!(names(&found), ["a"]);
    assert!(
        found.dropped.last().unwrap().contains("repeats a cursor"),
        "{:?}",
        found.dropped
    );
    assert_eq!(server.requests("tools/list").len(), 2);
}

#[tokio::test]
async fn an_endless_list_is_cut() {
    let server = Scripted::modern(async |seen: Seen| {
        let page = seen.body["params"]["cursor"]
            .as_str()
            .map_or(0, |page| page.parse::<u32>().unwrap());
        let tools: Vec<Value> = (0..150).map(|n| tool(&format!("t{page}_{n}"))).collect();
        (seen.method() == "tools/list")
            .then(|| seen.result(json!({"tools": tools, "nextCursor": (page + 1).to_string()})))
    })
    .await;
    let found = discover(&server).await.unwrap();
    assert_eq!(found.tools.len(), 2000);
    assert!(
        found
            .dropped
            .last()
            .unwrap()
            .contains("more than 2000 tools"),
        "{:?}",
        found.dropped
    );
    assert_eq!(server.requests("tools/list").len(), 14);
}

#[tokio::test]
async fn a_list_that_is_none_is_an_error_that_says_so() {
    let error = discover(&listing(json!({"things": []})).await)
        .await
        .unwrap_err();
    assert_eq!(error.kind, McpErrorKind::Protocol);
    assert!(error.message.contains("tool list"), "{error}");
}

#[tokio::test]
async fn marked_arguments_travel_as_headers_too() {
    let schema = json!({"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "nested": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
        "absent": {"type": "boolean", "x-mcp-header": "Absent"},
    }});
    let bad = json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}}});
    let list = json!({"tools": [{"name": "route", "inputSchema": schema}, {"name": "bad", "inputSchema": bad}]});
    let server = listing(list).await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let found = mcp.discover(&key, &spec).await.unwrap();
    assert_eq!(names(&found), ["route"]);
    assert!(
        found.dropped[0].starts_with("tool \"bad\": x-mcp-header"),
        "{:?}",
        found.dropped
    );
    let arguments = args(&json!({"region": " Zürich", "nested": {"n": 7}}));
    mcp.call(&key, &spec, request("route", &arguments), options())
        .await
        .unwrap();
    let sent = &server.requests("tools/call")[0].headers;
    assert_eq!(sent["mcp-param-region"], "=?base64?IFrDvHJpY2g=?=");
    assert_eq!(sent["mcp-param-n"], "7");
    assert!(!sent.contains_key("mcp-param-absent"));
}

#[tokio::test]
async fn a_server_that_misses_its_headers_is_listed_and_called_again() {
    let server = Scripted::modern(async |seen: Seen| match seen.method() {
        "tools/list" => {
            let schema =
                json!({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}});
            Some(seen.result(json!({"tools": [{"name": "route", "inputSchema": schema}]})))
        }
        "tools/call" if !seen.headers.contains_key("mcp-param-region") => {
            Some(seen.error(StatusCode::BAD_REQUEST, -32020, "missing Mcp-Param-Region"))
        }
        "tools/call" => Some(seen.result(text("routed"))),
        _ => None,
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let arguments = args(&json!({"region": "eu"}));
    let outcome = mcp
        .call(&key, &spec, request("route", &arguments), options())
        .await
        .unwrap();
    assert_eq!(
        (outcome.text.as_str(), server.requests("tools/call").len()),
        ("routed", 2)
    );
}

#[tokio::test]
async fn a_change_of_tools_is_heard_in_the_older_era() {
    let server = Scripted::legacy(async |seen: Seen| {
        let changed =
            event(&json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
        (seen.method() == "GET")
            .then(|| events(stream::iter([Ok(changed)]).chain(stream::pending())))
    })
    .await;
    let (mcp, key) = (mcp(), key());
    let mut changes = mcp.changes();
    mcp.discover(&key, &spec(server.endpoint())).await.unwrap();
    assert_eq!(soon(changes.recv()).await.unwrap(), key);
}

#[tokio::test]
async fn a_change_of_tools_is_heard_in_the_newer_era_also_after_the_stream_ended() {
    let server = Scripted::modern(async |seen: Seen| match seen.method() {
        "server/discover" => Some(seen.result(json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
            "capabilities": {"tools": {"listChanged": true}},
        }))),
        "subscriptions/listen" => {
            let meta = json!({"io.modelcontextprotocol/subscriptionId": seen.body["id"]});
            let note =
                |method: &str, params: Value| event(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
            let accepted = json!({"notifications": {"toolsListChanged": true}, "_meta": meta});
            Some(events(stream::iter([
                Ok(note("notifications/subscriptions/acknowledged", accepted)),
                Ok(note("notifications/tools/list_changed", json!({"_meta": meta}))),
            ])))
        }
        _ => None,
    })
    .await;
    let (mcp, key) = (mcp(), key());
    let mut changes = mcp.changes();
    mcp.discover(&key, &spec(server.endpoint())).await.unwrap();
    assert_eq!(soon(changes.recv()).await.unwrap(), key);
    server.until("subscriptions/listen", 2).await;
    assert_eq!(soon(changes.recv()).await.unwrap(), key);
}

#[tokio::test]
async fn a_list_that_one_page_calls_private_is_private() {
    let server = Scripted::modern(async |seen: Seen| {
        let page = match seen.body["params"]["cursor"].as_str() {
            None => json!({"tools": [tool("a")], "nextCursor": "2", "ttlMs": -5, "cacheScope": "public"}),
            Some(_) => json!({"tools": [tool("b")], "cacheScope": "private"}),
        };
        (seen.method() == "tools/list").then(|| seen.result(page))
    })
    .await;
    let private = CacheHints {
        ttl: Some(Duration::ZERO),
        scope: Some(CacheScope::Private),
    };
    assert_eq!(discover(&server).await.unwrap().cache, private);
}

#[test]
fn what_a_server_says_of_freshness_counts_within_bounds() {
    let fresh_for = |pin: Pin, ttl: Option<u64>| {
        let catalog = Catalog {
            server: ServerId::parse("s").unwrap(),
            tools: Vec::new(),
            prompts: Vec::new(),
            dropped: Vec::new(),
            fetched_at: time::OffsetDateTime::UNIX_EPOCH,
            cache: CacheHints {
                ttl: ttl.map(Duration::from_secs),
                scope: None,
            },
            version: String::new(),
        };
        catalog.fresh_for(pin).as_secs()
    };
    let said = [None, Some(0), Some(5), Some(90), Some(u64::MAX)];
    let tell = said.map(|ttl| fresh_for(Pin::Tell, ttl));
    assert_eq!(tell, [600, 60, 60, 90, 600]);
    // Who changes a tool behind somebody's back announces nothing.
    assert_eq!(said.map(|ttl| fresh_for(Pin::Hold, ttl)), [60; 5]);
}

#[tokio::test]
async fn a_hint_that_is_none_costs_neither_the_list_nor_the_tool() {
    let minute = Some(Duration::from_secs(60));
    for (hint, ttl) in [
        (json!(60_000), minute),
        (json!(60000.0), minute),
        (json!(-5), Some(Duration::ZERO)),
        (json!(1e308), None),
        (json!("60000"), None),
        (json!({}), None),
        (json!(null), None),
    ] {
        let list = json!({"tools": [tool("a")], "ttlMs": hint, "cacheScope": "public"});
        let found = discover(&listing(list).await).await.unwrap();
        assert_eq!((names(&found), found.cache.ttl), (vec!["a"], ttl), "{hint}");
    }
    let odd = json!({"name": "a", "title": {"a": 1}, "description": 7, "inputSchema": {"type": "object"}});
    let list = json!({"tools": [odd], "cacheScope": 7, "nextCursor": 7});
    let found = discover(&listing(list).await).await.unwrap();
    assert_eq!(names(&found), ["a"]);
    assert_eq!(found.cache.scope, Some(CacheScope::Private));
    assert!(
        found.dropped[0].contains("cursor that is no text"),
        "{:?}",
        found.dropped
    );
}

#[tokio::test]
async fn an_empty_cursor_is_one_in_the_newer_revision_and_an_end_in_the_older_ones() {
    let script = async |seen: Seen| {
        let page = |name: &str, next: Value| {
            seen.result(json!({"tools": [tool(name)], "nextCursor": next}))
        };
        match (seen.method(), seen.body["params"]["cursor"].as_str()) {
            ("tools/list", None) => Some(page("a", json!(""))),
            ("tools/list", Some("")) => Some(page("b", json!("last"))),
            ("tools/list", Some(_)) => Some(page("c", Value::Null)),
            _ => None,
        }
    };
    let found = discover(&Scripted::modern(script).await).await.unwrap();
    assert_eq!(names(&found), ["a", "b", "c"]);
    let found = discover(&Scripted::legacy(script).await).await.unwrap();
    assert_eq!(names(&found), ["a"]);
    let server = listing(json!({"tools": [tool("a")], "nextCursor": ""})).await;
    assert_eq!(names(&discover(&server).await.unwrap()), ["a"]);
    assert_eq!(server.requests("tools/list").len(), 2);
}

#[tokio::test]
async fn a_number_travels_in_its_header_with_its_own_digits() {
    let schema =
        json!({"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}});
    let server = listing(json!({"tools": [{"name": "route", "inputSchema": schema}]})).await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    mcp.discover(&key, &spec).await.unwrap();
    let arguments: Box<serde_json::value::RawValue> =
        serde_json::from_str(r#"{"n":123456789012345678901234567890}"#).unwrap();
    mcp.call(&key, &spec, request("route", &arguments), options())
        .await
        .unwrap();
    let sent = &server.requests("tools/call")[0].headers;
    assert_eq!(sent["mcp-param-n"], "123456789012345678901234567890");
}
