//! Calls: through the one gate, once, with a line in the audit trail. What the server answered arrives as it was.

use serde_json::{Value, json};

use super::{BANK, call, modern_result};
use crate::support::{
    bank::{pair, payment},
    client::{Client, Events},
    has::Has,
    offer::audited,
    wait::eventually,
    world::World,
};

#[tokio::test]
async fn a_call_is_made_once_and_its_result_passes_through() {
    let world = World::shared().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    let answer = call(&ann, "bank__get_exchange_rate", pair()).await;
    let result = &answer["result"];
    assert_eq!(result["isError"], false, "{answer}");
    assert!(result["structuredContent"].is_object(), "{answer}");
    let modern = modern_result(
        &ann,
        "tools/call",
        json!({ "name": "bank__get_exchange_rate", "arguments": pair() }),
    )
    .await;
    assert_eq!(modern["resultType"], "complete");
    assert_eq!(modern["structuredContent"], result["structuredContent"]);
    assert_eq!(world.bank.executions("get_exchange_rate"), 2);
    let line = "bank get_exchange_rate succeeded";
    eventually(async || audited(&world, "tool.call").await == [line, line]).await;
}

#[tokio::test]
async fn what_a_caller_may_not_call_is_unknown_and_in_the_trail() {
    let world = World::shared().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    let refused = call(&ann, "bank__send_money", payment("1")).await;
    let unknown = call(&ann, "bank__no_such_tool", json!({})).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert_eq!(
        refused["error"]["message"],
        unknown["error"]["message"]
            .as_str()
            .unwrap()
            .replace("no_such_tool", "send_money")
    );
    assert_eq!(world.bank.executions("send_money"), 0);
    eventually(async || {
        let lines = audited(&world, "tool.call").await;
        lines.contains(&"bank send_money denied".to_owned()) && lines.len() == 2
    })
    .await;
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_the_tools_error_and_nothing_is_sent() {
    let world = World::shared().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    let answer = call(&ann, "bank__get_exchange_rate", json!({ "from": 1 })).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("do not fit"), "{text}");
    assert_eq!(world.bank.executions("get_exchange_rate"), 0);
}

#[tokio::test]
async fn a_call_that_wants_progress_is_answered_with_a_stream() {
    let world = World::shared().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    let body = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {
        "name": "bank__get_exchange_rate", "arguments": pair(), "_meta": { "progressToken": "p" },
    }});
    let request = ann
        .request(http::Method::POST, BANK)
        .header("accept", "application/json, text/event-stream")
        .json(&body);
    let mut events = Events::of(request.send().await.unwrap());
    let last = loop {
        let event = events.next().await.unwrap();
        if event.data["id"] == 7 {
            break event.data;
        }
        event.data.has(json!({
            "method": "notifications/progress",
            "params": { "progressToken": "p" },
        }));
    };
    assert_eq!(last["result"]["isError"], false, "{last}");
}

#[tokio::test]
async fn any_replica_answers_any_request() {
    let world = World::start().await;
    world.tools_ready().await;
    let second = world.replica().await;
    let ann = world.user("ann", &["employee"]).await;
    let there: Client = ann.at(&second.url);
    eventually(async || super::names(&there).await.len() == 2).await;
    for client in [&ann, &there, &ann, &there] {
        let answer = call(client, "bank__get_exchange_rate", pair()).await;
        assert_eq!(answer["result"]["isError"], false, "{answer}");
    }
    assert_eq!(world.bank.executions("get_exchange_rate"), 4);
    eventually(async || audited(&world, "tool.call").await.len() == 4).await;
}

#[tokio::test]
async fn calls_wait_for_their_line_in_the_trail_where_a_setting_says_so() {
    let world = World::with(|setup| setup.config.audit_wait = true).await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    let answer = call(&ann, "bank__get_exchange_rate", pair()).await;
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    let lines = audited(&world, "tool.call").await;
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[tokio::test]
async fn a_client_cancels_its_own_call_on_another_replica() {
    let slow =
        crate::support::bank::start_slow_bank(None, std::time::Duration::from_secs(60)).await;
    let world = World::with(|setup| {
        setup.env = setup.env.clone().with("BANK_URL", slow.url.clone());
    })
    .await;
    world.tools_ready().await;
    let second = world.replica().await;
    let pat = world.user("pat", &["finance"]).await;
    let there = pat.at(&second.url);
    // With a progress token the answer is a stream, which then ends without one.
    for (made, meta) in [(1, json!({})), (2, json!({ "progressToken": "p" }))] {
        let params =
            json!({ "name": "bank__send_money", "arguments": payment("1"), "_meta": meta });
        let body = json!({ "jsonrpc": "2.0", "id": 42, "method": "tools/call", "params": params });
        let calling = tokio::spawn({
            let request = pat.request(http::Method::POST, BANK).json(&body);
            let accept = "application/json, text/event-stream";
            let (pat, request) = (pat.clone(), request.header("accept", accept));
            async move { pat.send(request).await }
        });
        eventually(async || slow.executions("send_money") == made).await;
        let cancel: Value = json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 42 },
        });
        there.post(BANK, cancel).await.expect(202);
        // Whoever cancelled a request hears no more of it.
        let answer = calling.await.unwrap();
        assert_eq!(
            answer.status,
            if made == 1 { 202 } else { 200 },
            "{}",
            answer.text
        );
        assert!(!answer.text.contains("42"), "{}", answer.text);
        let told = vec!["bank send_money outcome_unknown"; made];
        eventually(async || audited(&world, "tool.call").await == told).await;
    }
}

#[tokio::test]
async fn a_personal_server_is_connected_by_the_link_that_the_error_names() {
    let notes = crate::support::notes::Notes::start().await;
    let world = notes.world().await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let listed = async |client: &Client| {
        let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
        let answer = client.post("/mcp/notes", list).await.expect(200);
        let tools = answer["result"]["tools"].as_array().unwrap().clone();
        let names = tools
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    let call = |name: &str| {
        let params = json!({ "name": name, "arguments": {} });
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params })
    };
    let early = ann
        .post("/mcp/notes", call("notes__list_notes"))
        .await
        .expect(200);
    assert_eq!(
        early["error"]["data"]["notConnected"], "notes",
        "nobody of the tenant has connected it: {early}"
    );
    let connect = |token: &str| json!({ "fields": { "token": token } });
    let path = "/v1/agents/notes/connections/notes";
    let put = bob
        .request(http::Method::PUT, path)
        .json(&connect("reader-token-1"));
    bob.send(put).await.expect(200);
    eventually(async || !listed(&bob).await.is_empty()).await;
    let name = listed(&bob).await[0].clone();
    assert!(listed(&ann).await.is_empty());
    let refused = ann.post("/mcp/notes", call(&name)).await.expect(200);
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    let data = &refused["error"]["data"];
    assert_eq!(data["notConnected"], "notes", "{refused}");
    let link = data["link"].as_str().unwrap();
    refused["error"]["message"].says(link);
    let page = link.strip_prefix(&world.url).unwrap();
    let form = world
        .nobody()
        .request(http::Method::POST, page)
        .header("content-type", "application/x-www-form-urlencoded")
        .body("token=reader-token-2");
    let shown = world.nobody().send(form).await;
    assert_eq!(shown.status, 200, "{}", shown.text);
    let (_, rest) = shown.text.split_once("<output>").unwrap();
    let code = rest.split('<').next().unwrap();
    let conversations = ann.get("/v1/conversations?agent=notes").await.expect(200);
    let kept = &conversations["items"][0];
    assert_eq!(kept["title"], "Connect");
    ann.say_and_wait(kept["id"].as_str().unwrap(), code).await;
    eventually(async || !listed(&ann).await.is_empty()).await;
}
