//! Deleting a session removes and stops everything below it, whatever is at work there.

use std::time::Duration;

use serde_json::json;

use super::{
    start,
    stopping::{approve, payers, sessions, state, waiting},
};
use crate::support::wait::eventually;

#[tokio::test]
async fn what_a_child_has_asked_consent_for_goes_with_the_session_of_its_parent() {
    let (world, _, ann, carl) = payers().await;
    let body = json!({ "agent_name": "lead", "prompt": start("payer", "pay", "async_poll") });
    let lead = ann.post("/runs", body).await.expect(202);
    let request = waiting(&carl).await;
    ann.delete(&format!(
        "/v1/conversations/{}",
        lead["session_id"].as_str().unwrap()
    ))
    .await
    .expect(204);
    assert_eq!(approve(&carl, &request).await, 409);
    eventually(async || state(&carl, &request).await == "cancelled").await;
    assert_eq!(
        (
            world.bank.executions("send_money"),
            sessions(&ann).await.len()
        ),
        (0, 0)
    );
}

#[tokio::test]
async fn a_session_is_deleted_while_everything_below_it_works() {
    let (world, _, ann, carl) = payers().await;
    let deleted = (0..24).map(async |round| {
        let body = json!({ "agent_name": "lead", "prompt": start("payer", "pay", "async_poll") });
        let lead = ann.post("/runs", body).await.expect(202);
        tokio::time::sleep(Duration::from_millis(150 * round)).await;
        ann.delete(&format!(
            "/v1/conversations/{}",
            lead["session_id"].as_str().unwrap()
        ))
        .await
        .expect(204);
    });
    futures_util::future::join_all(deleted).await;
    eventually(async || {
        let asked = carl.get("/v1/approvals").await.expect(200);
        asked["items"]
            .as_array()
            .unwrap()
            .iter()
            .all(|request| request["state"] == "cancelled")
    })
    .await;
    assert_eq!(
        (
            world.bank.executions("send_money"),
            sessions(&ann).await.len()
        ),
        (0, 0)
    );
}
