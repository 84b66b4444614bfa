//! The official Python client, unchanged, in both versions of the protocol: only the address and the token are ours.

use std::path::Path;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::skills::SkillsFixture;

/// What `tests/servers/install.sh` installs, as `make test` does.
const PYTHON: &str = "tests/servers/.venv/bin/python";

#[tokio::test]
async fn the_official_a2a_client_finds_calls_waits_and_stops() {
    assert!(
        Path::new(PYTHON).exists(),
        "the Python client is not installed; run tests/servers/install.sh"
    );
    let fixture = SkillsFixture::new().await;
    let ann = fixture.world.user("ann", &["employee"]).await;
    let program = Command::new(PYTHON)
        .args([
            "tests/it/a2a/client.py",
            &format!("{}/a2a/bank", fixture.world.url),
            ann.token(),
        ])
        .output();
    let output = program.await.unwrap();
    let (out, trouble) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{trouble}");
    let seen: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    let mut skills = vec![
        "web-search",
        "structured",
        "broken",
        "slow",
        "lost",
        "nowhere",
        "rate",
    ];
    assert_eq!(seen["public"], json!(skills));
    skills.push("pay");
    let expected = json!({
        "done": "TASK_STATE_COMPLETED",
        "text": "first hit\nsecond hit",
        "the same again": true,
        "structured": { "hits": [1.0, 2.0] },
        "failed": ["TASK_STATE_FAILED", "the index is on fire"],
        "waits": "TASK_STATE_AUTH_REQUIRED",
        "stopped": "TASK_STATE_CANCELED",
        "own skills": skills,
        "unknown skill": "InvalidParamsError",
        "unknown task": "TaskNotFoundError",
    });
    assert_eq!(seen["1.0"], expected);
    assert_eq!(seen["0.3"], expected);
    assert_eq!(fixture.searched().len(), 6, "three calls each");
    assert_eq!(fixture.world.bank.executions("send_money"), 0);
}
