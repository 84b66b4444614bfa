//! Calls that need somebody's consent: the client is told what they wait for, and gets the real result afterwards.

use serde_json::{Value, json};

use super::{call, modern_with};
use crate::support::{
    bank::{self, payment},
    client::Client,
    has::Has,
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

const CONFIRM: &str = "{
  default: none,
  roles: { employee: [get_exchange_rate, send_money] },
  confirm: [{ tools: [send_money] }],
}";

async fn confirming() -> World {
    let world = World::with(|setup| setup.packs[0] = bank::pack("bank", CONFIRM)).await;
    world.tools_ready().await;
    world
}

#[tokio::test]
async fn a_client_that_can_ask_puts_the_question_to_its_user_and_brings_the_answer() {
    let world = confirming().await;
    let ann = world.user("ann", &["employee"]).await;
    let asks = json!({ "elicitation": {} });
    let send = async |amount: &str, answer: Value| {
        let mut params = json!({ "name": "bank__send_money", "arguments": payment(amount) });
        if let (Some(params), Value::Object(answer)) = (params.as_object_mut(), answer) {
            params.extend(answer);
        }
        let made = modern_with(&ann, "tools/call", params, asks.clone()).await;
        made.expect(200)["result"].clone()
    };
    let form = |action: &str, content: Value, state: &Value| json!({ "inputResponses": { "confirm": { "action": action, "content": content } }, "requestState": state });
    let answer = |action: &str, state: &Value| {
        let content = match action {
            "accept" => json!({ "confirm": true }),
            _ => json!({}),
        };
        form(action, content, state)
    };
    let asked = send("7", Value::Null).await;
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let question = &asked["inputRequests"]["confirm"];
    assert_eq!(question["method"], "elicitation/create");
    let words = question["params"]["message"].as_str().unwrap();
    assert!(words.contains(r#""amount":"7""#), "{words}");
    let schema = &question["params"]["requestedSchema"];
    assert_eq!(schema["required"], json!(["confirm"]), "{schema}");
    assert_eq!(schema["properties"]["confirm"]["type"], "boolean");
    assert_eq!(world.bank.executions("send_money"), 0);
    // A form that does not say yes or no, and nothing else, is no answer: the user is asked again.
    for (action, content) in [
        ("accept", Value::Null),
        ("accept", json!({})),
        ("accept", json!({ "confirm": "true" })),
        ("accept", json!({ "confirm": true, "comment": "no, wait" })),
        ("accept", json!([true])),
        ("decline", json!({ "confirm": true })),
        ("maybe", json!({ "confirm": true })),
    ] {
        let unclear = form(action, content, &asked["requestState"]);
        let again = send("7", unclear.clone()).await;
        assert_eq!(again["requestState"], asked["requestState"], "{unclear}");
        let words = &again["inputRequests"]["confirm"]["params"]["message"];
        assert!(
            words.as_str().unwrap().contains("Nothing is decided"),
            "{words}"
        );
    }
    // Nor does one of two answers count.
    let mut two = answer("accept", &asked["requestState"]);
    two["inputResponses"]["other"] = json!({ "action": "decline" });
    let again = send("7", two).await;
    assert_eq!(again["requestState"], asked["requestState"], "{again}");
    assert_eq!(world.bank.executions("send_money"), 0);
    // An answer is about the arguments that were shown, and about no others.
    let other = send("8", answer("accept", &asked["requestState"])).await;
    assert_eq!(
        about(&json!({ "result": other }))["state"],
        "pending",
        "{other}"
    );
    // Who closes the question has not answered, and is not asked again at once.
    let closed = send("7", answer("cancel", &asked["requestState"])).await;
    assert_eq!(
        about(&json!({ "result": closed }))["state"],
        "pending",
        "{closed}"
    );
    let done = send("7", answer("accept", &asked["requestState"])).await;
    assert_eq!(done["isError"], false, "{done}");
    assert!(done["structuredContent"].is_object(), "{done}");
    let repeated = send("7", answer("accept", &asked["requestState"])).await;
    assert_eq!(repeated["structuredContent"], done["structuredContent"]);
    assert_eq!(world.bank.executions("send_money"), 1);
    for (amount, action, content) in [
        ("9", "decline", json!({})),
        // Accepted, but what stands in the form is a no.
        ("10", "accept", json!({ "confirm": false })),
    ] {
        let asked = send(amount, Value::Null).await;
        let declined = send(amount, form(action, content, &asked["requestState"])).await;
        assert_eq!(
            about(&json!({ "result": declined }))["state"],
            "rejected",
            "{declined}"
        );
    }
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn a_client_that_cannot_ask_is_told_how_its_user_confirms() {
    let world = confirming().await;
    let ann = world.user("ann", &["employee"]).await;
    let first = call(&ann, "bank__send_money", payment("7")).await;
    assert_eq!(about(&first)["kind"], "confirmation", "{first}");
    let text = first["result"]["content"][0]["text"].as_str().unwrap();
    let code = about(&first)["code"].as_str().unwrap();
    assert!(text.contains(&format!("/confirm {code}")), "{text}");
    assert!(
        text.contains(about(&first)["link"].as_str().unwrap()),
        "{text}"
    );
    let path = format!("/v1/approvals/{}", about(&first)["id"].as_str().unwrap());
    let view = ann.get(&path).await.expect(200);
    let body = json!({ "decision": "approve", "args_sha256": view["args_sha256"] });
    ann.post(&format!("{path}/decision"), body)
        .await
        .expect(200);
    let mut last = Value::Null;
    eventually(async || {
        last = call(&ann, "bank__send_money", payment("7")).await;
        about(&last).is_null()
    })
    .await;
    assert_eq!(last["result"]["isError"], false, "{last}");
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn a_client_reads_how_many_people_a_call_needs_and_who_they_were() {
    let access = ACCESS.replace("timeoutMinutes: 60", "minApprovals: 2, selfApproval: false");
    let world = World::with(|setup| setup.packs[0] = bank::pack("bank", &access)).await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    let waits = call(&ann, "bank__send_money", payment("12.50")).await;
    let text = waits["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("needs 2 approvals, 0 so far"), "{text}");
    assert_eq!(about(&waits)["minApprovals"], 2);
    assert_eq!(about(&waits)["approvals"], 0);
}

/// A token of the bank's endpoint, of somebody with these roles.
async fn at_endpoint(world: &World, user: &str, roles: &[&str]) -> Client {
    world.user_for(user, roles, &["{}/mcp/bank"]).await
}

#[tokio::test]
async fn with_a_token_of_an_endpoint_nobody_votes_on_somebodys_request() {
    let world = world().await;
    let ann = world.user("ann", &["employee"]).await;
    let carl = at_endpoint(&world, "carl", &["cfo"]).await;
    let first = call(&ann, "bank__send_money", payment("12.50")).await;
    let id = about(&first)["id"].as_str().unwrap();
    let view = ann.get(&format!("/v1/approvals/{id}")).await.expect(200);
    let decision = json!({ "decision": "approve", "args_sha256": view["args_sha256"] });
    let path = format!("/v1/approvals/{id}/decision");
    let refused = carl.post(&path, decision.clone()).await;
    assert_eq!(refused.expect(401)["code"], "unauthenticated");
    let challenge = refused.header("www-authenticate");
    assert!(
        challenge.contains(r#"error="invalid_token""#),
        "{challenge}"
    );
    let code = about(&first)["code"].as_str().unwrap();
    let typed = json!({ "model": "bank", "messages": [{ "role": "user", "content": format!("/approve {code}") }] });
    carl.post("/v1/chat/completions", typed).await.expect(401);
    // In its own place it knows neither the task of somebody else nor an answer to their question.
    let tasks = json!({ "extensions": { TASKS: {} }, "elicitation": {} });
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        let asked = modern_with(&carl, method, json!({ "taskId": id }), tasks.clone()).await;
        assert_eq!(asked.expect(200)["error"]["code"], -32602, "{method}");
    }
    let answer = json!({
        "name": "bank__get_exchange_rate", "arguments": bank::pair(), "requestState": id,
        "inputResponses": { "confirm": { "action": "accept", "content": {} } },
    });
    modern_with(&carl, "tools/call", answer, tasks)
        .await
        .expect(200);
    let still = ann.get(&format!("/v1/approvals/{id}")).await.expect(200);
    still.has(json!({ "state": "pending", "votes": [] }));
    assert_eq!(world.bank.executions("send_money"), 0);
    // The same person with a token for the service decides.
    let carl = world.user("carl", &["cfo"]).await;
    carl.post(&path, decision).await.expect(200);
    eventually(async || world.bank.executions("send_money") == 1).await;
}

#[tokio::test]
async fn with_a_token_of_an_endpoint_its_user_confirms_their_own_call_there() {
    let world = confirming().await;
    let ann = at_endpoint(&world, "ann", &["employee"]).await;
    let asks = json!({ "elicitation": {} });
    let params = json!({ "name": "bank__send_money", "arguments": payment("7") });
    let asked = modern_with(&ann, "tools/call", params.clone(), asks.clone()).await;
    let asked = asked.expect(200)["result"].clone();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let mut answered = params;
    answered["requestState"] = asked["requestState"].clone();
    answered["inputResponses"] =
        json!({ "confirm": { "action": "accept", "content": { "confirm": true } } });
    let done = modern_with(&ann, "tools/call", answered, asks).await;
    assert_eq!(
        done.expect(200)["result"]["isError"],
        false,
        "{}",
        done.text
    );
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn with_a_token_of_an_endpoint_asking_is_ones_own_vote_where_the_policy_says_so() {
    let access = ACCESS.replace(
        "timeoutMinutes: 60",
        "timeoutMinutes: 60, minApprovals: 2, selfApproval: true",
    );
    let access = access.replace("cfo: [get_exchange_rate]", "cfo: [send_money]");
    let world = World::with(|setup| setup.packs[0] = bank::pack("bank", &access)).await;
    world.tools_ready().await;
    let carl = at_endpoint(&world, "carl", &["cfo"]).await;
    let first = call(&carl, "bank__send_money", payment("5")).await;
    assert_eq!(about(&first)["state"], "pending", "{first}");
    let cleo = world.user("cleo", &["cfo"]).await;
    decide(&cleo, "approve").await;
    eventually(async || world.bank.executions("send_money") == 1).await;
}
