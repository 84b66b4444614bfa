//! Waiting until something is so.

use std::time::Duration;

use serde_json::Value;

use super::{client::Client, world::TIME_LIMIT};

/// Waits until it holds; looks again and again.
pub async fn eventually(mut holds: impl AsyncFnMut() -> bool) {
    let until = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIME_LIMIT, until)
        .await
        .expect("it did not happen in time");
}

/// Waits until a run has ended; the run.
pub async fn ended(client: &Client, run: &str) -> Value {
    let mut seen = Value::Null;
    eventually(async || {
        seen = client.get(&format!("/v1/runs/{run}")).await.expect(200);
        matches!(
            seen["status"].as_str(),
            Some("succeeded" | "failed" | "cancelled")
        )
    })
    .await;
    seen
}
