//! What is shown of servers and tools, to whom, and why something is not.

use serde_json::{Value, json};

use super::enter;
use crate::support::{
    client::Client,
    has::Has,
    notes::Notes,
    scripted::{Scripted, Seen},
    wait::eventually,
    world::World,
};

/// The only server of an agent, as this listing has it.
async fn only(client: &Client, path: &str) -> Value {
    client.get(path).await.expect(200)["items"][0].clone()
}

#[tokio::test]
async fn only_who_runs_an_agent_is_told_of_tools_that_are_not_their_own() {
    let server = Scripted::modern(|seen: Seen| async move {
        let tool = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" } });
        let tools = json!([tool("get_exchange_rate"), tool("send_money"), tool("hidden"), { "name": "broken", "inputSchema": 5 }]);
        (seen.method() == "tools/list").then(|| seen.result(json!({ "tools": tools })))
    })
    .await;
    let url = server.url.to_string();
    let world = World::with(|setup| setup.env = setup.env.clone().with("BANK_URL", url)).await;
    world.tools_ready().await;
    let (guest, finance) = (world.guest().await, world.user("fin", &["finance"]).await);
    let (alice, operator) = (world.user("alice", &[]).await, world.admin().await);
    for (client, tools, dropped) in [
        (&guest, 1, 0),
        (&finance, 2, 0),
        (&alice, 3, 1),
        (&operator, 3, 1),
    ] {
        let listed = only(client, "/v1/agents/bank/connections").await;
        let one = client
            .get("/v1/agents/bank/connections/bank")
            .await
            .expect(200);
        for seen in [listed, one] {
            assert_eq!(seen["tools"], tools, "{seen}");
            assert_eq!(seen["dropped"].as_array().unwrap().len(), dropped, "{seen}");
            assert_eq!(seen.to_string().contains("broken"), dropped == 1);
        }
    }
}

#[tokio::test]
async fn explain_says_of_a_server_that_is_down_why_nothing_of_it_shows() {
    let nowhere = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let url = format!("http://{nowhere}/mcp");
    let world = World::with(|setup| setup.env = setup.env.clone().with("BANK_URL", url)).await;
    let (alice, ann) = (world.user("alice", &[]).await, world.user("ann", &[]).await);
    eventually(async || only(&alice, "/v1/agents/bank/connections").await["state"] == "down").await;
    let explained = only(&alice, "/v1/agents/bank/tools?explain=true").await;
    explained.has(json!({ "state": "down", "unlisted": { "reason": "server_down" } }));
    explained["unlisted"]["remedy"].says("never listed");
    assert_eq!(
        only(&ann, "/v1/agents/bank/tools").await["unlisted"],
        Value::Null,
        "only for who asks why"
    );
    let operator = only(&alice, "/v1/agents/bank/connections").await;
    for path in ["/v1/agents/bank/connections", "/v1/agents/bank/tools"] {
        let user = only(&ann, path).await;
        assert_eq!(user["state"], "down");
        assert!(
            user["reason"] != operator["reason"],
            "what went wrong is for the operator: {user}"
        );
    }
}

#[tokio::test]
async fn explain_names_the_reason_of_each_tool_and_none_for_what_is_listed() {
    let world = World::start().await;
    world.tools_ready().await;
    let operator = world.admin().await;
    let explained = only(&operator, "/v1/agents/bank/tools?explain=true").await;
    assert_eq!(explained["unlisted"], Value::Null);
    let reason = |tool: &str| {
        let denied = explained["denied"].as_array().unwrap().iter();
        denied
            .filter(|denied| denied["tool"] == tool)
            .map(|denied| denied["reason"].clone())
            .next()
    };
    assert_eq!(reason("send_money"), Some(json!("role_lacks_tool")));
    assert_eq!(reason("create_invoice"), Some(json!("no_role_lists_tool")));
}

#[tokio::test]
async fn explain_follows_a_credential_from_none_to_rejected() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let root = world.user("root", &[]).await;
    let explained = async || only(&root, "/v1/agents/private/tools?explain=true").await;
    assert_eq!(explained().await["unlisted"]["reason"], "no_credential");
    enter(&root, "private", "writer-token-1").await.expect(200);
    let good = explained().await;
    assert_eq!(good.get("unlisted"), None);
    assert_eq!(good["denied"], json!([]));
    notes.revoke("writer-token-1");
    root.post("/v1/agents/private/connections/notes/test", json!({}))
        .await
        .expect(200);
    assert_eq!(
        explained().await["unlisted"]["reason"],
        "credential_needs_attention"
    );
}
