//! The authorization servers of others: npm `oidc-provider`, and fastmcp's own.

use serde_json::Value;
use tokio::process::Command;

use super::{call, connect, say, world};
use crate::support::servers::{folder, start, venv};

#[tokio::test]
async fn npm_oidc_provider_with_rotating_refresh_tokens() {
    let mut command = Command::new("node");
    command.arg(folder().join("oidc.mjs")).arg("4");
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
}

async fn count(port: u16) -> Value {
    let builder = reqwest::Client::builder().no_proxy();
    let asked = builder
        .build()
        .unwrap()
        .get(format!("http://127.0.0.1:{port}/count"));
    let answer = asked.send().await.unwrap();
    answer.json().await.unwrap()
}

#[tokio::test]
async fn fastmcp_as_its_own_authorization_server() {
    let mut command = Command::new(venv("python"));
    command.arg(folder().join("oauth.py"));
    let server = start(command).await;
    let world = world(&server.url, "auth: oauth", |_| {}).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let said = connect(&world, &ann, &chat).await;
    assert!(said.starts_with("✅"), "{said}");
    assert_eq!(call(&world, &ann, &chat, "hello").await["text"], "hello");
}
