//! The official clients, unchanged: only the address and the token are ours.

use std::path::Path;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::world::World;

/// What `tests/servers/install.sh` installs, as `make test` does.
const PYTHON: &str = "tests/servers/.venv/bin/python";

/// Runs a client against a bank and reads what it saw.
async fn seen_by(program: &str, script: &str) -> Value {
    let world = World::shared().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    assert!(
        program == "node" || Path::new(program).exists(),
        "the clients are not installed; run tests/servers/install.sh"
    );
    let output = Command::new(program)
        .args([script, &format!("{}/mcp/bank", world.url), ann.token()])
        .output()
        .await
        .unwrap();
    let (out, trouble) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{trouble}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

fn expected() -> Value {
    json!({
        "tools": ["bank__get_balances", "bank__get_exchange_rate"],
        "structured": true,
        "unknown": true,
        "misfit": true,
    })
}

#[tokio::test]
async fn the_official_python_client_lists_and_calls() {
    assert_eq!(
        seen_by(PYTHON, "tests/it/mcp_endpoint/client.py").await,
        expected()
    );
}

#[tokio::test]
async fn the_client_of_fastmcp_lists_and_calls() {
    assert_eq!(
        seen_by(PYTHON, "tests/it/mcp_endpoint/fast.py").await,
        expected()
    );
}

#[tokio::test]
async fn the_official_typescript_client_lists_and_calls() {
    assert_eq!(
        seen_by("node", "tests/it/mcp_endpoint/client.mjs").await,
        expected()
    );
}
