//! The seven tools, as an agent uses them.

use serde_json::{Value, json};

use super::{came_to, order, run, run_with, said_in, shared_world, start};
use crate::support::{
    client::{Client, tool_results},
    has::Has,
    model::{Gate, calls, said, text, text_of, tool_names},
    wait::eventually,
    world::World,
};

const TOOLS: [&str; 7] = [
    "delete_all_agent_sessions",
    "get_agent_session_result",
    "get_agent_session_status",
    "list_agent_blueprints",
    "list_agent_sessions",
    "resume_agent_session",
    "start_agent_session",
];

#[tokio::test]
async fn an_agent_that_names_the_orchestrator_has_its_seven_tools() {
    let world = shared_world().await;
    let ann = world.user("ann", &[]).await;
    run(&ann, "lead", "hello").await;
    let mut names = tool_names(&world.model.last_request());
    names.sort();
    // The name of the document stands for the tool's own.
    let shown = TOOLS.map(|name| match name {
        "start_agent_session" => "orchestrator__start_agent".to_owned(),
        name => format!("orchestrator__{name}"),
    });
    assert_eq!(names, shown);
    let connections = ann.get("/v1/agents/lead/connections").await.expect(200);
    assert_eq!(connections["items"][0]["state"], "ready");
    run(&ann, "worker", "hello").await;
    assert!(
        tool_names(&world.model.last_request()).is_empty(),
        "who does not name it has none"
    );
}

/// The rules of a pack name it either way, and guard it under both names.
#[tokio::test]
async fn the_two_names_of_a_tool_are_one_tool_for_every_rule() {
    for (written, shown) in [
        ("start_agent", "start_agent"),
        ("start_agent_session", "start_agent_session"),
    ] {
        let pack = super::LEAD.replace("id: lead,", "id: guarded,").replace(
            "toolAccess: { default: public }",
            &format!(
                "tools: [{written}]\n      toolAccess: {{ default: public, approval: [{{ tools: [{written}], approvers: [boss], selfApproval: false }}] }}"
            ),
        );
        let world = super::world_with(|setup| setup.packs.push(("guarded".to_owned(), pack))).await;
        let ann = world.user("ann", &[]).await;
        for called in ["start_agent", "start_agent_session"] {
            let start = order(called, &json!({ "agent_name": "worker", "prompt": "x" }));
            let ran = run_with(&ann, json!({ "agent_name": "guarded", "prompt": start })).await;
            let session = ran["session_id"].as_str().unwrap();
            let result = &tool_results(&ann, session).await[0];
            assert_eq!(result["status"], "awaiting_approval", "{written} {called}");
        }
        let names = tool_names(&world.model.requests()[0].body);
        assert_eq!(names, [format!("orchestrator__{shown}")]);
        let waiting = ann.get("/v1/approvals?role=requester").await.expect(200);
        for request in waiting["items"].as_array().unwrap() {
            assert_eq!(request["tool"], "start_agent_session", "{request}");
        }
    }
}

/// A rule about `agent_name` is one about `name`, which the document calls it, and about nothing that only looks like it.
#[tokio::test]
async fn members_of_a_guarded_tool_that_are_spelt_otherwise_start_nobody() {
    let rules = "toolAccess: { default: public, approval: [{ tools: [start_agent], approvers: [boss], \
                 when: args.agent_name != 'worker' }] }";
    let pack = super::LEAD
        .replace("id: lead,", "id: guarded,")
        .replace("toolAccess: { default: public }", rules);
    let world = super::world_with(|setup| setup.packs.push(("guarded".to_owned(), pack))).await;
    let ann = world.user("ann", &[]).await;
    for (arguments, status) in [
        (json!({ "name": "worker" }), "succeeded"),
        (json!({ "agent_name": "worker" }), "succeeded"),
        (json!({ "name": "bank" }), "awaiting_approval"),
        (json!({ "agent_name": "bank" }), "awaiting_approval"),
        (
            json!({ "agent_name": "worker", "agentName": "bank" }),
            "denied",
        ),
        (json!({ "name": "worker", "Agent_Name": "bank" }), "denied"),
        (json!({ "agent_name": "worker", "name": "bank" }), "denied"),
        (json!({ "name": "worker", "Name": "bank" }), "denied"),
        (json!({ "AgentName": "worker" }), "denied"),
        (json!({ "NAME": "worker" }), "denied"),
    ] {
        for called in ["start_agent", "start_agent_session"] {
            let mut given = arguments.clone();
            given["prompt"] = json!("x");
            let start = order(called, &given);
            let ran = run_with(&ann, json!({ "agent_name": "guarded", "prompt": start })).await;
            let session = ran["session_id"].as_str().unwrap();
            let result = &tool_results(&ann, session).await[0];
            assert_eq!(result["status"], status, "{called} {arguments}: {result}");
        }
    }
}

#[tokio::test]
async fn blueprints_are_the_agents_of_the_user_with_their_params() {
    let world = shared_world().await;
    let ann = world.user("ann", &[]).await;
    let listed = came_to(&run(&ann, "lead", &order("list_agent_blueprints", &json!({}))).await);
    let names: Vec<_> = listed["blueprints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].clone())
        .collect();
    assert_eq!(
        names,
        ["bank", "lead", "office", "sprint-researcher", "worker"]
    );
    let schema = &listed["blueprints"][3]["params_schema"];
    assert_eq!(
        *schema,
        json!({ "topic": { "type": "string", "required": true } })
    );
}

#[tokio::test]
async fn a_child_that_is_waited_for_brings_its_result() {
    let world = shared_world().await;
    let ann = world.user("ann", &[]).await;
    let child = came_to(&run(&ann, "lead", &start("worker", "dig here", "sync")).await);
    child.has(json!({ "status": "finished", "result": "Done: dig here" }));
    let session = child["session_id"].as_str().unwrap();
    assert_eq!(
        said_in(&ann, session).await,
        ["dig here", "Done: dig here"],
        "it is the user's own session"
    );
}

#[tokio::test]
async fn a_grandchild_is_started_by_a_child() {
    let world = shared_world().await;
    let ann = world.user("ann", &[]).await;
    let prompt = start("lead", &start("worker", "the bottom", "sync"), "sync");
    let child = came_to(&run(&ann, "lead", &prompt).await);
    let grandchild = came_to(child["result"].as_str().unwrap());
    assert_eq!(grandchild["result"], "Done: the bottom");
}

#[tokio::test]
async fn a_child_is_polled_resumed_and_read() {
    let world = shared_world().await;
    let ann = world.user("ann", &[]).await;
    let first = run_with(
        &ann,
        json!({ "agent_name": "lead", "prompt": start("worker", "one", "async_poll") }),
    )
    .await;
    let child = came_to(first["result"].as_str().unwrap());
    assert_eq!(child["status"], "pending");
    let session = child["session_id"].as_str().unwrap();
    let say = async |prompt: String| {
        let body = json!({ "type": "resume_session", "session_id": first["session_id"], "prompt": prompt });
        run_with(&ann, body).await["result"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    eventually(async || said_in(&ann, session).await.len() == 2).await;
    let status = order(
        "get_agent_session_status",
        &json!({ "session_id": session }),
    );
    eventually(async || came_to(&say(status.clone()).await)["status"] == "finished").await;
    let result = order(
        "get_agent_session_result",
        &json!({ "session_id": session }),
    );
    assert_eq!(came_to(&say(result.clone()).await)["result"], "Done: one");
    let resume = order(
        "resume_agent_session",
        &json!({ "session_id": session, "prompt": "two" }),
    );
    assert_eq!(came_to(&say(resume).await)["result"], "Done: two");
    assert_eq!(came_to(&say(result).await)["result"], "Done: two");
    let listed = came_to(&say(order("list_agent_sessions", &json!({}))).await);
    let expected = json!([{ "session_id": session, "agent_name": "worker", "status": "finished" }]);
    assert_eq!(listed["sessions"], expected);
}

#[tokio::test]
async fn a_result_asked_for_too_early_is_refused_with_the_status() {
    let world = World::with(super::add_packs).await;
    let ann = world.user("ann", &[]).await;
    let gate = Gate::new();
    let held = gate.clone();
    world
        .model
        .on(move |request| (last(request) == "slowly").then(|| text("There.").gate(0, &held)));
    world.model.on(super::obedient);
    let first = run_with(
        &ann,
        json!({ "agent_name": "lead", "prompt": start("worker", "slowly", "async_poll") }),
    )
    .await;
    let session = came_to(first["result"].as_str().unwrap())["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    gate.reached().await;
    let ask = order(
        "get_agent_session_result",
        &json!({ "session_id": session }),
    );
    let body =
        json!({ "type": "resume_session", "session_id": first["session_id"], "prompt": ask });
    let said = run_with(&ann, body).await["result"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        said,
        format!("It came to: failed: Session not finished: {session} (status: running)")
    );
    gate.open();
}

fn last(request: &Value) -> String {
    text_of(request["messages"].as_array().unwrap().last().unwrap())
}

/// What the model is told instead of a result.
async fn told(client: &Client, tool: &str, arguments: Value) -> String {
    let said = run(client, "lead", &order(tool, &arguments)).await;
    said.strip_prefix("It came to: ").unwrap().to_owned()
}

#[tokio::test]
async fn what_a_tool_refuses_is_said_in_the_documents_words() {
    let world = shared_world().await;
    let ann = world.user("ann", &[]).await;
    let nobody = uuid::Uuid::now_v7();
    for (tool, arguments, sentence) in [
        (
            "start_agent_session",
            json!({ "agent_name": "worker", "prompt": "x", "mode": "soon" }),
            "Invalid mode: soon. Must be one of: sync, async_poll, async_callback".to_owned(),
        ),
        (
            "start_agent_session",
            json!({ "agent_name": "nobody", "prompt": "x" }),
            "agent \"nobody\" was not found".to_owned(),
        ),
        (
            "start_agent_session",
            json!({ "agent_name": "sprint-researcher", "prompt": "x" }),
            "Missing required value: params.topic".to_owned(),
        ),
        (
            "start_agent_session",
            json!({ "agent_name": "worker" }),
            "prompt is empty; say what the agent is to do".to_owned(),
        ),
        (
            "get_agent_session_status",
            json!({ "session_id": nobody }),
            format!("Session not found: {nobody}"),
        ),
        (
            "get_agent_session_result",
            json!({ "session_id": "x" }),
            "Session not found: x".to_owned(),
        ),
        (
            "resume_agent_session",
            json!({ "session_id": nobody, "prompt": "x" }),
            format!("Session not found: {nobody}"),
        ),
    ] {
        assert_eq!(
            told(&ann, tool, arguments).await,
            format!("failed: {sentence}")
        );
    }
}

#[tokio::test]
async fn a_child_is_not_given_more_than_it_may_be() {
    let world = World::with(super::add_packs).await;
    world.model.on(|request| {
        let huge = json!({ "agent_name": "worker", "prompt": "x".repeat(100_000) });
        (last(request) == "huge").then(|| calls([("orchestrator__start_agent_session", huge)]))
    });
    world.model.on(super::obedient);
    let ann = world.user("ann", &[]).await;
    let said = run(&ann, "lead", "huge").await;
    assert_eq!(
        said,
        "It came to: failed: Parameters too large: 100002 characters (max 100000)"
    );
}

#[tokio::test]
async fn a_session_that_this_one_did_not_start_is_not_found() {
    let world = shared_world().await;
    let ann = world.user("ann", &[]).await;
    // The user's own, but another session's; another user's is tried by way of the API.
    let other = came_to(&run(&ann, "lead", &start("worker", "theirs", "sync")).await);
    let session = other["session_id"].as_str().unwrap();
    for tool in ["get_agent_session_status", "get_agent_session_result"] {
        let said = told(&ann, tool, json!({ "session_id": session })).await;
        assert_eq!(said, format!("failed: Session not found: {session}"));
    }
    let said = told(
        &ann,
        "resume_agent_session",
        json!({ "session_id": session, "prompt": "x" }),
    )
    .await;
    assert_eq!(said, format!("failed: Session not found: {session}"));
    assert_eq!(
        told(&ann, "list_agent_sessions", json!({})).await,
        r#"{"sessions":[]}"#
    );
    assert_eq!(
        said_in(&ann, session).await.len(),
        2,
        "nothing was said to it"
    );
}

#[tokio::test]
async fn to_delete_all_sessions_needs_consent_and_is_done_once_it_is_given() {
    let world = shared_world().await;
    let (ann, boss) = (
        world.user("ann", &[]).await,
        world.user("boss", &["admin"]).await,
    );
    let first = run_with(
        &ann,
        json!({ "agent_name": "lead", "prompt": start("worker", "one", "sync") }),
    )
    .await;
    let child = came_to(first["result"].as_str().unwrap())["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let lead = first["session_id"].as_str().unwrap();
    let delete = order("delete_all_agent_sessions", &json!({}));
    let body = json!({ "type": "resume_session", "session_id": lead, "prompt": delete });
    run_with(&ann, body).await;
    assert_eq!(
        tool_results(&ann, lead).await.last().unwrap()["status"],
        "awaiting_approval"
    );
    ann.get(&format!("/v1/conversations/{child}"))
        .await
        .expect(200);
    let waiting = boss.get("/v1/approvals").await.expect(200);
    let request = &waiting["items"][0];
    let decision = json!({ "decision": "approve", "args_sha256": request["args_sha256"] });
    let id = request["id"].as_str().unwrap();
    boss.post(&format!("/v1/approvals/{id}/decision"), decision)
        .await
        .expect(200);
    eventually(async || ann.get(&format!("/v1/conversations/{child}")).await.status == 404).await;
    eventually(async || {
        ann.get(&format!("/v1/approvals/{id}")).await.json()["state"] == "succeeded"
    })
    .await;
    ann.get(&format!("/v1/conversations/{lead}"))
        .await
        .expect(200);
    eventually(async || {
        world
            .model
            .requests()
            .iter()
            .any(|request| said(&request.body, r#"{\"deleted\":1}"#))
    })
    .await;
}

#[tokio::test]
async fn an_admin_of_tools_deletes_their_own_sessions_and_those_below_them() {
    let world = shared_world().await;
    let boss = world.user("boss", &["admin"]).await;
    let first = run_with(
        &boss,
        json!({ "agent_name": "lead", "prompt": start("lead", &start("worker", "deep", "sync"), "sync") }),
    )
    .await;
    let child = came_to(first["result"].as_str().unwrap());
    let grandchild = came_to(child["result"].as_str().unwrap());
    let delete = order("delete_all_agent_sessions", &json!({}));
    let body =
        json!({ "type": "resume_session", "session_id": first["session_id"], "prompt": delete });
    assert_eq!(
        came_to(run_with(&boss, body).await["result"].as_str().unwrap()),
        json!({ "deleted": 1 })
    );
    for gone in [&child, &grandchild] {
        let id = gone["session_id"].as_str().unwrap();
        boss.get(&format!("/v1/conversations/{id}"))
            .await
            .expect(404);
    }
}

#[tokio::test]
async fn no_other_server_may_be_at_the_orchestrators_address() {
    let world = World::with(|setup| {
        super::add_packs(setup);
        setup.config.egress_allow = vec!["127.0.0.1:1".to_owned()];
    })
    .await;
    let refused = egress::Egress::new(&world.config.egress_allow).unwrap();
    assert!(refused.check_url(&domain::orchestrator::address()).is_err());
    world.model.on(super::obedient);
    let ann = world.user("ann", &[]).await;
    assert_eq!(world.model.requests().len(), 0);
    // The model is at loopback too, but its address was named by the operator in the pack.
    let child = came_to(&run(&ann, "lead", &start("worker", "x", "sync")).await);
    assert_eq!(
        child["status"], "finished",
        "it is called in process all the same"
    );
}

#[tokio::test]
async fn what_a_tool_answers_is_kept_as_a_servers_result() {
    let world = shared_world().await;
    let ann = world.user("ann", &[]).await;
    for (order, text, is_error) in [
        (
            order("list_agent_sessions", &json!({})),
            r#"{"sessions":[]}"#,
            false,
        ),
        (
            order("get_agent_session_status", &json!({ "session_id": "none" })),
            "Session not found: none",
            true,
        ),
    ] {
        let ran = run_with(&ann, json!({ "agent_name": "lead", "prompt": order })).await;
        let kept = tool_results(&ann, ran["session_id"].as_str().unwrap()).await;
        assert_eq!(
            kept[0]["raw"],
            json!({
                "resultType": "complete",
                "content": [{ "type": "text", "text": text }],
                "isError": is_error,
            })
        );
    }
}
