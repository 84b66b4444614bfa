//! Calls that need somebody's consent: the client is told what they wait for, and gets the real result afterwards.

use serde_json::{Value, json};

use super::{call, modern_with};
use crate::support::{
    bank::{self, payment},
    client::Client,
    wait::eventually,
    world::World,
};

const ACCESS: &str = "{
  default: none,
  roles: { employee: [get_exchange_rate, send_money], cfo: [get_exchange_rate] },
  approval: [{ tools: [send_money], approvers: [cfo], timeoutMinutes: 60 }],
}";

const TASKS: &str = "io.modelcontextprotocol/tasks";

async fn world() -> World {
    let world = World::with(|setup| setup.packs[0] = bank::pack("bank", ACCESS)).await;
    world.tools_ready().await;
    world
}

fn about(answer: &Value) -> &Value {
    &answer["result"]["_meta"]["chatelaine/approval"]
}

/// Decides the only request in the queue of an approver.
async fn decide(approver: &Client, decision: &str) {
    let queue = approver
        .get("/v1/approvals?role=approver")
        .await
        .expect(200);
    let waiting = &queue["items"][0];
    let id = waiting["id"].as_str().unwrap();
    let body = json!({ "decision": decision, "args_sha256": waiting["args_sha256"] });
    let path = format!("/v1/approvals/{id}/decision");
    approver.post(&path, body).await.expect(200);
}

#[tokio::test]
async fn a_call_waits_in_the_queue_and_the_same_call_gets_the_result() {
    let world = world().await;
    let (ann, carl) = (
        world.user("ann", &["employee"]).await,
        world.user("carl", &["cfo"]).await,
    );
    let first = call(&ann, "bank__send_money", payment("12.50")).await;
    assert_eq!(first["result"]["isError"], true, "{first}");
    let (code, link) = (&about(&first)["code"], &about(&first)["link"]);
    let text = first["result"]["content"][0]["text"].as_str().unwrap();
    for part in [code, link] {
        assert!(text.contains(part.as_str().unwrap()), "{text}");
    }
    assert!(text.contains("cfo"), "{text}");
    let again = call(&ann, "bank__send_money", payment("12.50")).await;
    assert_eq!(about(&again)["id"], about(&first)["id"]);
    assert_eq!(world.bank.executions("send_money"), 0);

    decide(&carl, "approve").await;
    let mut last = Value::Null;
    eventually(async || {
        last = call(&ann, "bank__send_money", payment("12.50")).await;
        about(&last).is_null()
    })
    .await;
    assert_eq!(last["result"]["isError"], false, "{last}");
    assert!(last["result"]["structuredContent"].is_object(), "{last}");
    // An answer that was lost on the way is given once more.
    let repeated = call(&ann, "bank__send_money", payment("12.50")).await;
    assert_eq!(repeated["result"], last["result"]);
    assert_eq!(world.bank.executions("send_money"), 1);
    // Another call is a request of its own.
    let other = call(&ann, "bank__send_money", payment("13")).await;
    assert_ne!(about(&other)["id"], about(&first)["id"]);
}

#[tokio::test]
async fn a_rejected_call_says_so() {
    let world = world().await;
    let (ann, carl) = (
        world.user("ann", &["employee"]).await,
        world.user("carl", &["cfo"]).await,
    );
    call(&ann, "bank__send_money", payment("5")).await;
    decide(&carl, "reject").await;
    let told = call(&ann, "bank__send_money", payment("5")).await;
    assert_eq!(about(&told)["state"], "rejected", "{told}");
    assert_eq!(told["result"]["isError"], true, "{told}");
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn a_client_that_knows_tasks_waits_for_the_real_result() {
    let world = world().await;
    let (ann, carl) = (
        world.user("ann", &["employee"]).await,
        world.user("carl", &["cfo"]).await,
    );
    let tasks = json!({ "extensions": { TASKS: {} } });
    let params = json!({ "name": "bank__send_money", "arguments": payment("7") });
    let made = modern_with(&ann, "tools/call", params, tasks.clone()).await;
    let made = made.expect(200)["result"].clone();
    assert_eq!(made["resultType"], "task", "{made}");
    assert_eq!(made["status"], "working");
    let of = |id: &Value| json!({ "taskId": id });
    let get = async || {
        let task = modern_with(&ann, "tasks/get", of(&made["taskId"]), tasks.clone()).await;
        task.expect(200)["result"].clone()
    };
    assert_eq!(get().await["status"], "working");
    // It belongs to its user, and to clients that know tasks.
    let stolen = modern_with(&carl, "tasks/get", of(&made["taskId"]), tasks.clone()).await;
    assert_eq!(stolen.expect(200)["error"]["code"], -32602);
    let plain = modern_with(&ann, "tasks/get", of(&made["taskId"]), json!({})).await;
    assert_eq!(plain.expect(400)["error"]["code"], -32021);

    decide(&carl, "approve").await;
    eventually(async || get().await["status"] == "completed").await;
    let done = get().await;
    assert_eq!(done["result"]["isError"], false, "{done}");
    assert!(done["result"]["structuredContent"].is_object(), "{done}");
    assert_eq!(world.bank.executions("send_money"), 1);

    // A task that waits is taken back by its client.
    let params = json!({ "name": "bank__send_money", "arguments": payment("8") });
    let made = modern_with(&ann, "tools/call", params, tasks.clone()).await;
    let id = made.expect(200)["result"]["taskId"].clone();
    let ack = modern_with(&ann, "tasks/cancel", of(&id), tasks.clone()).await;
    assert_eq!(
        ack.expect(200)["result"],
        json!({ "resultType": "complete" })
    );
    let task = modern_with(&ann, "tasks/get", of(&id), tasks.clone()).await;
    assert_eq!(task.expect(200)["result"]["status"], "cancelled");
}

#[tokio::test]
async fn an_outcome_outlives_a_restart() {
    let world = world().await;
    let (ann, carl) = (
        world.user("ann", &["employee"]).await,
        world.user("carl", &["cfo"]).await,
    );
    let first = call(&ann, "bank__send_money", payment("3")).await;
    let id = about(&first)["id"].clone();
    let token = domain::secret::Secret::new(ann.token());
    let carls = domain::secret::Secret::new(carl.token());
    let world = world.stop().await.start().await;
    world.tools_ready().await;
    let (ann, carl) = (world.client(&token), world.client(&carls));
    let again = call(&ann, "bank__send_money", payment("3")).await;
    assert_eq!(about(&again)["id"], id);
    decide(&carl, "approve").await;
    eventually(async || world.bank.executions("send_money") == 1).await;
    eventually(async || {
        let answer = call(&ann, "bank__send_money", payment("3")).await;
        answer["result"]["isError"] == false
    })
    .await;
    assert_eq!(world.bank.executions("send_money"), 1);
}
