//! Stopping a run stops everything below it, on every replica, and takes back what that has asked consent for.

use std::time::Duration;

use chatelaine::app::{
    runs::{
        ending, sign_outs,
        starting::{RunInitiator, RunSpec, RunTarget, begin},
    },
    servers::orchestrator::RunCaller,
};
use domain::{
    ids::{RunId, UserId},
    json::Members,
    principal::{Audience, Principal},
};
use serde_json::{Value, json};

use super::{came_to, run_with, said_in, start};
use crate::support::{
    bank::payment,
    client::{Client, tool_results},
    has::Has,
    model::{Gate, Reply, calls, error, last_user, text, text_of},
    wait::{ended, eventually},
    world::{Setup, World},
};

fn last(request: &Value) -> String {
    text_of(request["messages"].as_array().unwrap().last().unwrap())
}

/// Whether this agent has called something and is told what came of it.
fn called(request: &Value, prompt: &str) -> bool {
    let messages = request["messages"].as_array().unwrap();
    text_of(&messages[0]).contains(prompt) && messages.last().unwrap()["role"] == "tool"
}

/// A world whose worker waits at the gate when it is told to go slowly.
async fn gated(change: impl FnOnce(&mut Setup)) -> (World, Gate) {
    gated_with(change, |_, _| None).await
}

/// The same with something else that its models say, perhaps at the gate.
async fn gated_with(
    change: impl FnOnce(&mut Setup),
    say: impl Fn(&Value, &Gate) -> Option<Reply> + Send + Sync + 'static,
) -> (World, Gate) {
    let world = World::with(|setup| {
        super::add_packs(setup);
        change(setup);
    })
    .await;
    let gate = Gate::new();
    let held = gate.clone();
    world.model.on(move |request| say(request, &held));
    let held = gate.clone();
    world
        .model
        .on(move |request| (last(request) == "slowly").then(|| text("never heard").gate(0, &held)));
    world.model.on(super::obedient);
    (world, gate)
}

/// Every session of the user, those of agents too, the oldest first.
pub async fn sessions(client: &Client) -> Vec<Value> {
    let listed = client
        .get("/v1/conversations?include=children&limit=100")
        .await
        .expect(200);
    let mut sessions = listed["items"].as_array().unwrap().clone();
    sessions.reverse();
    sessions
}

/// The run that the first message of a session opened.
async fn run_of(client: &Client, session: &Value) -> String {
    let id = session
        .as_str()
        .unwrap_or_else(|| session["id"].as_str().unwrap());
    client.messages(id).await[0]["run_id"]
        .as_str()
        .unwrap()
        .to_owned()
}

async fn stop(client: &Client, run: &str) -> Value {
    client
        .post(&format!("/runs/{run}/cancel"), json!({}))
        .await
        .expect(202)
}

/// What became of the first run of every session, the oldest first.
async fn fates(client: &Client) -> Vec<String> {
    let mut fates = Vec::new();
    for session in sessions(client).await {
        let run = run_of(client, &session).await;
        fates.push(
            ended(client, &run).await["status"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    fates
}

#[tokio::test]
async fn three_generations_stop_together() {
    let (world, gate) = gated(|_| {}).await;
    let ann = world.user("ann", &[]).await;
    let prompt = start("lead", &start("worker", "slowly", "sync"), "sync");
    let begun = ann
        .post("/runs", json!({ "agent_name": "lead", "prompt": prompt }))
        .await
        .expect(202);
    gate.reached().await;
    let asked = world.model.requests().len();
    stop(&ann, begun["run_id"].as_str().unwrap()).await;
    assert_eq!(fates(&ann).await, ["cancelled"; 3]);
    world.model.wait_for_hangups(1).await;
    assert_eq!(
        world.model.requests().len(),
        asked,
        "no model is asked anything more"
    );
}

#[tokio::test]
async fn children_on_another_replica_stop_too() {
    let (world, gate) = gated(|setup| setup.config.run_lease = Duration::from_secs(1)).await;
    let other = world.replica().await;
    let here = world.user("ann", &[]).await;
    let there = here.at(&other.url);
    let body = json!({ "agent_name": "lead", "prompt": start("worker", "slowly", "sync") });
    let begun = there.post("/runs", body).await.expect(202);
    gate.reached().await;
    stop(&here, begun["run_id"].as_str().unwrap()).await;
    assert_eq!(fates(&here).await, ["cancelled"; 2]);
}

#[tokio::test]
async fn a_run_that_is_over_is_stopped_for_what_it_has_left_behind_and_nobody_is_called_back() {
    let (world, gate) = gated(|_| {}).await;
    let ann = world.user("ann", &[]).await;
    let body =
        json!({ "agent_name": "lead", "prompt": start("worker", "slowly", "async_callback") });
    let lead = run_with(&ann, body).await;
    let (run, session) = (
        lead["run_id"].as_str().unwrap(),
        lead["session_id"].as_str().unwrap(),
    );
    gate.reached().await;
    let said = said_in(&ann, session).await;
    assert_eq!(
        stop(&ann, run).await["status"],
        "succeeded",
        "the run itself was over"
    );
    assert_eq!(fates(&ann).await, ["succeeded", "cancelled"]);
    let child = run_of(&ann, &sessions(&ann).await[1]).await;
    ending::finalize(world.app(), world.tenant.id, child.parse().unwrap()).await;
    assert_eq!(
        said_in(&ann, session).await,
        said,
        "whoever stops it all is not answered"
    );
    let over = ann
        .post(&format!("/runs/{run}/cancel"), json!({}))
        .await
        .expect(409);
    over["detail"].says("is already succeeded");
}

#[tokio::test]
async fn a_child_that_has_finished_stays_as_it_is() {
    let (world, gate) = gated_with(
        |_| {},
        |request, _| {
            let one = |prompt: &str| json!({ "agent_name": "worker", "prompt": prompt });
            let tool = "orchestrator__start_agent_session";
            (last(request) == "both").then(|| calls([(tool, one("quick")), (tool, one("slowly"))]))
        },
    )
    .await;
    let ann = world.user("ann", &[]).await;
    let lead = ann
        .post("/runs", json!({ "agent_name": "lead", "prompt": "both" }))
        .await
        .expect(202);
    gate.reached().await;
    eventually(async || {
        !tool_results(&ann, lead["session_id"].as_str().unwrap())
            .await
            .is_empty()
    })
    .await;
    stop(&ann, lead["run_id"].as_str().unwrap()).await;
    let mut fates = fates(&ann).await;
    fates[1..].sort();
    assert_eq!(fates, ["cancelled", "cancelled", "succeeded"]);
}

#[tokio::test]
async fn a_child_that_waits_for_a_place_never_begins() {
    let (world, gate) = gated_with(
        |setup| setup.config.runs_at_once = 1,
        |request, gate| called(request, "You lead.").then(|| text("Started.").gate(0, gate)),
    )
    .await;
    let ann = world.user("ann", &[]).await;
    let body = json!({ "agent_name": "lead", "prompt": start("worker", "later", "async_poll") });
    let lead = ann.post("/runs", body).await.expect(202);
    gate.reached().await;
    stop(&ann, lead["run_id"].as_str().unwrap()).await;
    assert_eq!(fates(&ann).await, ["cancelled"; 2]);
    assert!(
        world
            .model
            .requests()
            .iter()
            .all(|request| last(&request.body) != "later")
    );
}

#[tokio::test]
async fn a_run_that_was_asked_to_stop_before_anybody_took_it_ends_without_its_model() {
    let (world, gate) = gated(|_| {}).await;
    let ann = world.user("ann", &[]).await;
    let first = ann
        .post(
            "/runs",
            json!({ "agent_name": "worker", "prompt": "slowly" }),
        )
        .await
        .expect(202);
    gate.reached().await;
    let session = first["session_id"].as_str().unwrap();
    let body = json!({ "type": "resume_session", "session_id": session, "prompt": "unheard" });
    let second = ann.post("/runs", body).await.expect(202)["run_id"]
        .as_str()
        .unwrap()
        .to_owned();
    // As if whoever stopped it had died right after.
    mark(&world, &second).await;
    gate.open();
    assert_eq!(ended(&ann, &second).await["status"], "cancelled");
    assert!(
        world
            .model
            .requests()
            .iter()
            .all(|request| last(&request.body) != "unheard")
    );
}

/// Asks a run to stop behind the program's back.
async fn mark(world: &World, run: &str) {
    let marked = sqlx::query("update runs set cancel_requested = true where id = $1::uuid")
        .bind(run)
        .execute(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    assert_eq!(marked.rows_affected(), 1);
}

#[tokio::test]
async fn a_run_that_is_being_stopped_starts_nothing() {
    let (world, _) = gated(|_| {}).await;
    let ann = world.user("ann", &[]).await;
    let lead = run_with(&ann, json!({ "agent_name": "lead", "prompt": "hello" })).await;
    mark(&world, lead["run_id"].as_str().unwrap()).await;
    let session = lead["session_id"].as_str().unwrap().parse().unwrap();
    let run = lead["run_id"].as_str().unwrap().parse().unwrap();
    let caller = RunCaller {
        run,
        session,
        principal: principal(&world),
    };
    let wanted = RunSpec {
        target: RunTarget::Start {
            agent: "worker".to_owned(),
        },
        prompt: "dig".to_owned(),
        params: Members::default(),
        scope: Members::default(),
        callback: None,
        parent_session: Some(session),
        key: None,
    };
    let refused = begin(
        world.app(),
        RunInitiator::Run {
            caller: &caller,
            waits: false,
        },
        wanted,
    )
    .await
    .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "not started: the run that wants it is being stopped"
    );
    assert_eq!(sessions(&ann).await.len(), 1);
}

/// Ann, as the program knows her.
fn principal(world: &World) -> Principal {
    let user = UserId("ann".into());
    Principal {
        tenant: world.tenant.id,
        user,
        authenticated: true,
        claims: std::sync::Arc::default(),
        locale: None,
        key: None,
        audience: Audience::default(),
    }
}

#[tokio::test]
async fn whoever_signs_out_is_not_called_back() {
    let (world, gate) = gated(|_| {}).await;
    let ann = world.user("ann", &[]).await;
    let body =
        json!({ "agent_name": "lead", "prompt": start("worker", "slowly", "async_callback") });
    let lead = run_with(&ann, body).await;
    gate.reached().await;
    let child = run_of(&ann, &sessions(&ann).await[1]).await;
    sign_outs::end(world.app(), &principal(&world), RunId::new())
        .await
        .unwrap();
    let ann = world.user("ann", &[]).await;
    assert_eq!(ended(&ann, &child).await["status"], "cancelled");
    ending::finalize(world.app(), world.tenant.id, child.parse().unwrap()).await;
    let said = said_in(&ann, lead["session_id"].as_str().unwrap()).await;
    assert!(said.last().unwrap().starts_with("It came to: "), "{said:?}");
}

/// An agent that starts others and one whose payments need somebody's consent.
const PAYER: &str = r#"
metadata: { id: payer, displayName: Payer, description: Pays, defaultLanguage: en }
languages: { en: { systemPrompt: "You pay." } }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
flows: { authentication: { rolesAttribute: roles } }
mcp:
  servers:
    - name: bank
      transport: streamable-http
      url: "${BANK_URL}"
      toolAccess: { default: public, approval: [{ tools: [send_money], approvers: [cfo], timeoutMinutes: 60 }] }
"#;

/// A model of a payer pays, and says nothing of it for as long as the gate is shut; a leader says nothing of what it
/// has started.
fn paying(request: &Value, gate: &Gate) -> Option<Reply> {
    match last(request).as_str() {
        "pay" | "pay and wait" => Some(calls([("bank__send_money", payment("8.00"))])),
        _ if called(request, "You lead.") => Some(text("unheard").gate(0, gate)),
        _ if called(request, "You pay.") && last_user(request) == "pay and wait" => {
            Some(text("unheard").gate(0, gate))
        }
        _ => None,
    }
}

/// Ann, the one who may approve, and the gate.
pub async fn payers() -> (World, Gate, Client, Client) {
    let (world, gate) = gated_with(
        |setup| setup.packs.push(("payer".to_owned(), PAYER.to_owned())),
        paying,
    )
    .await;
    let (ann, carl) = (
        world.user("ann", &[]).await,
        world.user("carl", &["cfo"]).await,
    );
    eventually(async || {
        carl.get("/v1/agents/payer/tools")
            .await
            .text
            .contains("send_money")
    })
    .await;
    (world, gate, ann, carl)
}

/// The request that waits, when there is one.
pub async fn waiting(client: &Client) -> Value {
    let mut request = Value::Null;
    eventually(async || {
        request = client.get("/v1/approvals").await.expect(200)["items"][0].clone();
        request["state"] == "pending"
    })
    .await;
    request
}

/// Whether it can be approved.
pub async fn approve(client: &Client, request: &Value) -> u16 {
    let path = format!("/v1/approvals/{}/decision", request["id"].as_str().unwrap());
    client
        .post(
            &path,
            json!({ "decision": "approve", "args_sha256": request["args_sha256"] }),
        )
        .await
        .status
}

pub async fn state(client: &Client, request: &Value) -> Value {
    client
        .get(&format!(
            "/v1/approvals/{}",
            request["id"].as_str().unwrap()
        ))
        .await
        .expect(200)["state"]
        .clone()
}

#[tokio::test]
async fn what_a_child_has_asked_consent_for_is_taken_back_with_its_parent() {
    let (world, gate, ann, carl) = payers().await;
    let body = json!({ "agent_name": "lead", "prompt": start("payer", "pay", "async_poll") });
    let lead = ann.post("/runs", body).await.expect(202);
    gate.reached().await;
    let request = waiting(&carl).await;
    let child = sessions(&ann).await[1].clone();
    assert_eq!(
        ended(&ann, &run_of(&ann, &child).await).await["status"],
        "succeeded",
        "the child is over"
    );
    stop(&ann, lead["run_id"].as_str().unwrap()).await;
    assert_eq!(approve(&carl, &request).await, 409, "from that moment on");
    eventually(async || state(&carl, &request).await == "cancelled").await;
    let session = child["id"].as_str().unwrap();
    let told = json!(ann.messages(session).await.last().unwrap()).to_string();
    assert!(told.contains("was taken back by ann"), "{told}");
    let told = world
        .model
        .requests()
        .iter()
        .any(|request| request.body.to_string().contains("cancelled"));
    assert!(!told, "no turn of the child follows");
    assert_eq!(world.bank.executions("send_money"), 0);
    // Whoever goes on with the child all the same has a model that knows.
    let body = json!({ "type": "resume_session", "session_id": session, "prompt": "and?" });
    run_with(&ann, body).await;
    let heard = world.model.last_request()["messages"].to_string();
    assert!(heard.contains("cancelled"), "{heard}");
}

#[tokio::test]
async fn what_was_taken_back_by_somebody_who_died_right_after_is_ended_by_the_clock() {
    let (world, _, ann, carl) = payers().await;
    ann.post("/runs", json!({ "agent_name": "payer", "prompt": "pay" }))
        .await
        .expect(202);
    let request = waiting(&carl).await;
    let mut db = world.db.as_tenant(world.tenant.id).await;
    sqlx::query("update approvals set withdrawn_by = 'ann'")
        .execute(&mut db)
        .await
        .unwrap();
    assert_eq!(approve(&carl, &request).await, 409);
    eventually(async || state(&carl, &request).await == "cancelled").await;
}

#[tokio::test]
async fn what_a_run_has_asked_consent_for_is_taken_back_when_it_is_stopped() {
    let (world, gate, ann, carl) = payers().await;
    let begun = ann
        .post(
            "/runs",
            json!({ "agent_name": "payer", "prompt": "pay and wait" }),
        )
        .await
        .expect(202);
    gate.reached().await;
    let request = waiting(&carl).await;
    let run = begun["run_id"].as_str().unwrap();
    stop(&ann, run).await;
    assert_eq!(approve(&carl, &request).await, 409);
    assert_eq!(ended(&ann, run).await["status"], "cancelled");
    eventually(async || state(&carl, &request).await == "cancelled").await;
    assert_eq!(
        (
            world.bank.executions("send_money"),
            world.model.requests().len()
        ),
        (0, 2)
    );
}

#[tokio::test]
async fn what_a_run_has_asked_consent_for_waits_on_when_only_its_answer_is_stopped() {
    let (world, gate, ann, carl) = payers().await;
    let asked = json!({ "agent_name": "payer", "prompt": "pay and wait" });
    let begun = ann.post("/runs", asked).await.expect(202);
    gate.reached().await;
    let request = waiting(&carl).await;
    let run = begun["run_id"].as_str().unwrap();
    ann.post(&format!("/runs/{run}/cancel?keep_requests=true"), json!({}))
        .await
        .expect(202);
    assert_eq!(ended(&ann, run).await["status"], "cancelled");
    assert_eq!(state(&carl, &request).await, "pending");
    assert_eq!(approve(&carl, &request).await, 200);
    eventually(async || state(&carl, &request).await == "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn a_chats_list_holds_no_session_that_an_agent_started() {
    let (world, _) = gated(|_| {}).await;
    let ann = world.user("ann", &[]).await;
    let lead = run_with(
        &ann,
        json!({ "agent_name": "lead", "prompt": start("worker", "x", "sync") }),
    )
    .await;
    let child = came_to(lead["result"].as_str().unwrap())["session_id"].clone();
    let listed = ann.get("/v1/conversations").await.expect(200)["items"].clone();
    assert_eq!(
        listed.as_array().unwrap().len(),
        1,
        "what a program started for the user is theirs to go on with"
    );
    assert_eq!(listed[0]["id"], lead["session_id"]);
    assert_eq!(listed[0].get("parent_id"), None);
    let all = sessions(&ann).await;
    all[1].has(json!({ "id": child, "parent_id": lead["session_id"] }));
    ann.get(&format!("/v1/conversations/{}", child.as_str().unwrap()))
        .await
        .expect(200);
    let wrong = ann
        .get("/v1/conversations?include=everything")
        .await
        .expect(400);
    assert_eq!(wrong["field"], "include");
}

#[tokio::test]
async fn a_parent_that_fails_does_not_stop_its_children() {
    let (world, gate) = gated_with(
        |_| {},
        |request, _| called(request, "You lead.").then(|| error(400, "no such model")),
    )
    .await;
    let ann = world.user("ann", &[]).await;
    let lead = run_with(
        &ann,
        json!({ "agent_name": "lead", "prompt": start("worker", "slowly", "async_poll") }),
    )
    .await;
    assert_eq!(lead["status"], "failed");
    gate.reached().await;
    gate.open();
    assert_eq!(fates(&ann).await, ["failed", "succeeded"]);
}
