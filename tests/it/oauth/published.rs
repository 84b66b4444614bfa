//! The authorization servers of others: npm `oidc-provider`, the TypeScript SDK's example, and fastmcp's own.

use serde_json::{Value, json};
use tokio::process::Command;

use super::{call, connect, fetch, say, world};
use crate::support::{
    model::{calls, text},
    servers::{fastmcp, folder, free_port, start},
    world::Setup,
};

#[tokio::test]
async fn npm_oidc_provider_with_rotating_refresh_tokens() {
    assert_eq!(months_of_use(&[]).await["pushed"], 0);
}

#[tokio::test]
async fn npm_oidc_provider_that_wants_requests_to_be_pushed() {
    assert_eq!(months_of_use(&["par"]).await["pushed"], 1);
}

/// Connects at the provider, calls until the token was refreshed twice, and disconnects; what the provider counted.
async fn months_of_use(more: &[&str]) -> Value {
    let mut command = Command::new("node");
    command.arg(folder().join("oidc.mjs")).arg("4").args(more);
    let server = start(command).await;
    let auth = "auth: { type: oauth, scopes: [openid, \"notes:read\", offline_access] }";
    let world = world(&server.url, auth, |_| {}).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let said = connect(&world, &ann, &chat).await;
    assert!(said.starts_with("✅"), "{said}");
    while count(server.port).await["refreshed"] != 2 {
        assert_eq!(call(&world, &ann, &chat, "whoami").await["text"], "ann");
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
    }
    say(&ann, &chat, "/disconnect notes").await;
    while count(server.port).await["revoked"] == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    count(server.port).await
}

async fn count(port: u16) -> Value {
    let url = format!("http://127.0.0.1:{port}/count");
    fetch(&url).await.json().await.unwrap()
}

#[tokio::test]
async fn fastmcp_as_its_own_authorization_server() {
    let server = fastmcp("oauth.py", &[]).await;
    let world = world(&server.url, "auth: oauth", |_| {}).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let said = connect(&world, &ann, &chat).await;
    assert!(said.starts_with("✅"), "{said}");
    assert_eq!(call(&world, &ann, &chat, "hello").await["text"], "hello");
}

#[tokio::test]
async fn the_typescript_sdks_example_of_a_server_with_a_sign_in() {
    let example = "node_modules/@modelcontextprotocol/sdk/dist/esm/examples/server";
    let port = free_port();
    let mut command = Command::new("node");
    command
        .arg(folder().join(example).join("simpleStreamableHttp.js"))
        .args(["--oauth", "--oauth-strict"])
        .env("MCP_PORT", port.to_string())
        .env("MCP_AUTH_PORT", free_port().to_string());
    let mut server = start(command).await;
    // It names itself so.
    server.url.set_host(Some("localhost")).unwrap();
    server.url.set_port(Some(port)).unwrap();
    let local = |setup: &mut Setup| setup.config.egress_allow.push("localhost".to_owned());
    let world = world(&server.url, "auth: oauth", local).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let said = connect(&world, &ann, &chat).await;
    assert!(said.starts_with("✅"), "{said}");
    world
        .model
        .reply(calls([("notes__greet", json!({ "name": "ann" }))]))
        .reply(text("Greeted."));
    ann.say_and_wait(&chat, "go").await;
    let messages = serde_json::to_string(&ann.messages(&chat).await).unwrap();
    assert!(messages.contains("Hello, ann!"), "{messages}");
}
