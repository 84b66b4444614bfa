use serde_json::{Value, json};

use super::SkillsFixture;
use crate::support::{bank::payment, client::Client, has::Has, wait::eventually};

/// Asks for a payment; the path of the run, and the run as it waits.
async fn asked(client: &Client, amount: &str) -> (String, Value) {
    let waits = client
        .post(
            "/v1/agents/bank/skills/pay",
            json!({ "arguments": payment(amount) }),
        )
        .await
        .expect(202);
    assert_eq!(waits["status"], "awaiting_approval", "{waits}");
    (
        format!(
            "/v1/agents/bank/skills/pay/runs/{}",
            waits["run_id"].as_str().unwrap()
        ),
        waits,
    )
}

async fn decide(client: &Client, approval: &Value, decision: &str) {
    let path = format!(
        "/v1/approvals/{}/decision",
        approval["id"].as_str().unwrap()
    );
    client
        .post(
            &path,
            json!({ "decision": decision, "args_sha256": approval["args_sha256"] }),
        )
        .await
        .expect(200);
}

/// The run once it waits no more.
async fn settled(client: &Client, path: &str) -> Value {
    let mut run = Value::Null;
    eventually(async || {
        run = client.get(path).await.expect(200);
        run["status"] != "awaiting_approval"
    })
    .await;
    run
}

#[tokio::test]
async fn a_call_that_needs_consent_waits_and_its_outcome_is_the_runs() {
    let fixture = SkillsFixture::new().await;
    let (ann, carl) = (
        fixture.world.user("ann", &["employee"]).await,
        fixture.world.user("carl", &["cfo"]).await,
    );
    let (path, waits) = asked(&ann, "12.50").await;
    waits["approval"].has(json!({ "state": "pending", "tool": "send_money" }));
    assert_eq!(fixture.world.bank.executions("send_money"), 0);
    decide(&carl, &waits["approval"], "approve").await;
    let done = settled(&ann, &path).await;
    done.has(json!({ "status": "succeeded", "approval": { "state": "succeeded" } }));
    done["text"].says("\"amount\":\"12.50\"");
    assert_eq!(fixture.world.bank.executions("send_money"), 1);
    assert!(
        fixture.world.model.requests().is_empty(),
        "no model was asked and none is told"
    );
}

#[tokio::test]
async fn a_call_that_nobody_consents_to_is_refused() {
    let fixture = SkillsFixture::new().await;
    let (ann, carl) = (
        fixture.world.user("ann", &["employee"]).await,
        fixture.world.user("carl", &["cfo"]).await,
    );
    let (path, waits) = asked(&ann, "12.50").await;
    decide(&carl, &waits["approval"], "reject").await;
    let done = settled(&ann, &path).await;
    done.has(json!({ "status": "refused", "approval": { "state": "rejected" } }));
    assert_eq!(fixture.world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn the_same_call_of_two_runs_is_two_requests_and_both_runs_hear_of_theirs() {
    let fixture = SkillsFixture::new().await;
    let (ann, carl) = (
        fixture.world.user("ann", &["employee"]).await,
        fixture.world.user("carl", &["cfo"]).await,
    );
    let (first, waits) = asked(&ann, "12.50").await;
    let (second, again) = asked(&ann, "12.50").await;
    assert_ne!(waits["approval"]["id"], again["approval"]["id"]);
    for waits in [&waits, &again] {
        decide(&carl, &waits["approval"], "approve").await;
    }
    for path in [&first, &second] {
        let done = settled(&ann, path).await;
        done["text"].says("12.50");
    }
    assert_eq!(fixture.world.bank.executions("send_money"), 2);
}
