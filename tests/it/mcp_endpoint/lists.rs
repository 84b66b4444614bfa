//! Who sees which tools, in both lifecycles of the protocol.

use serde_json::json;

use super::{BANK, legacy, modern_result, names};
use crate::support::{has::Has, wait::eventually, world::World};

#[tokio::test]
async fn a_client_sees_what_its_user_sees_in_a_chat_in_both_eras() {
    let world = World::shared().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;

    let listed = legacy(&ann, "tools/list", json!({})).await["result"].clone();
    let chat = ann.get("/v1/agents/bank/tools").await.expect(200);
    let chat = chat["items"][0]["tools"].as_array().unwrap().clone();
    let tools = listed["tools"].as_array().unwrap();
    assert_eq!(tools.len(), chat.len());
    for (tool, same) in tools.iter().zip(&chat) {
        tool.has(json!({
            "name": same["name"],
            "description": same["description"],
            "_meta": { "chatelaine/server": "bank", "chatelaine/name": same["tool"] },
        }));
        assert_eq!(tool["inputSchema"], same["input_schema"]);
    }
    assert_eq!(listed["ttlMs"], json!(null));

    let modern = modern_result(&ann, "tools/list", json!({})).await;
    assert_eq!(modern["tools"], listed["tools"]);
    assert_eq!(modern["cacheScope"], "private");
    assert!(modern["ttlMs"].as_u64().is_some());
    assert_eq!(modern["resultType"], "complete");
}

#[tokio::test]
async fn two_users_on_one_address_see_different_tools() {
    let world = World::shared().await;
    world.tools_ready().await;
    let (ann, guest) = (world.user("ann", &["employee"]).await, world.guest().await);
    assert_eq!(
        names(&ann).await,
        ["bank__get_balances", "bank__get_exchange_rate"]
    );
    assert_eq!(names(&guest).await, ["bank__get_exchange_rate"]);
    // The same person with a new token, which names another role.
    let promoted = world.user("ann", &["finance"]).await;
    assert_eq!(names(&promoted).await.len(), 3);
    let stranger = world.stranger("ann").await;
    assert_eq!(names(&stranger).await, Vec::<String>::new());
    let office = world.stranger("zoe").await;
    let answer = office.post("/mcp/office", json!({})).await;
    assert_eq!(answer.status, 404, "{}", answer.text);
}

#[tokio::test]
async fn a_role_that_loses_a_tool_loses_it_in_the_next_list_and_call() {
    let world = World::start().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    let request = ann
        .request(http::Method::GET, BANK)
        .header("accept", "text/event-stream");
    let mut changes = crate::support::client::Events::of(request.send().await.unwrap());

    let roles = json!({ "employee": ["get_exchange_rate"] });
    world.change_server(json!({ "toolAccess": { "roles": roles } }));

    let told = changes.next().await.unwrap();
    assert_eq!(told.data["method"], "notifications/tools/list_changed");
    eventually(async || names(&ann).await == ["bank__get_exchange_rate"]).await;
    let refused = super::call(&ann, "bank__get_balances", json!({})).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
}

#[tokio::test]
async fn a_setting_shows_the_servers_own_names() {
    let world = World::with(|setup| setup.config.mcp_own_names = vec!["bank".to_owned()]).await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    assert_eq!(names(&ann).await, ["get_balances", "get_exchange_rate"]);
    let rate = super::call(&ann, "get_exchange_rate", crate::support::bank::pair()).await;
    assert_eq!(rate["result"]["isError"], false, "{rate}");
}

#[tokio::test]
async fn a_subscription_says_first_what_it_accepted_and_then_what_changed() {
    let world = World::start().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    let body = json!({ "jsonrpc": "2.0", "id": "s1", "method": "subscriptions/listen", "params": {
        "notifications": { "toolsListChanged": true },
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    }});
    let request = ann
        .request(http::Method::POST, BANK)
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "subscriptions/listen")
        .header("accept", "application/json, text/event-stream")
        .json(&body);
    let mut events = crate::support::client::Events::of(request.send().await.unwrap());
    let first = events.next().await.unwrap();
    assert_eq!(
        first.data["method"],
        "notifications/subscriptions/acknowledged"
    );
    assert_eq!(
        first.data["params"]["notifications"],
        json!({ "toolsListChanged": true })
    );
    let roles = json!({ "employee": ["get_exchange_rate"] });
    world.change_server(json!({ "toolAccess": { "roles": roles } }));
    let second = events.next().await.unwrap();
    second.data.has(json!({
        "method": "notifications/tools/list_changed",
        "params": { "_meta": { "io.modelcontextprotocol/subscriptionId": "s1" } },
    }));
}
