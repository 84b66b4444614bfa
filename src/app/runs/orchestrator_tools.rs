//! The tools of the orchestrator, the built-in server with which agents start agents. A tool acts for the run that
//! calls it: with its principal and the scope of its tree. It sees the sessions that the caller's session has started;
//! any other session is not found.

use std::{str::FromStr, sync::Arc};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    delete_conversation, ending,
    starting::{RunInitiator, RunSpec, RunTarget, StartedRun, begin},
};
use crate::app::{
    App,
    servers::{agents, orchestrator::RunCaller},
};
use domain::{
    error::{Error, ErrorCode, Reason, Result},
    ids::ConversationId,
    json::Members,
    orchestrator::{DELETE_ALL, START, status_name},
    run::{Mode, RunStatus},
};
use store::trees::Child;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StartArguments {
    agent_name: String,
    #[serde(default)]
    prompt: String,
    #[serde(default)]
    params: Members,
    mode: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResumeArguments {
    session_id: String,
    prompt: String,
    mode: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionArguments {
    session_id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoArguments {}

/// Makes a call for a run. The error is a sentence for the run's model.
pub async fn call(
    app: &Arc<App>,
    caller: &RunCaller,
    tool: &str,
    arguments: Members,
) -> Result<Value, String> {
    let arguments = arguments.to_string();
    let done = match tool {
        "list_agent_blueprints" => match read::<NoArguments>(&arguments) {
            Ok(_) => list_blueprints(app, caller).await,
            Err(error) => Err(error),
        },
        "list_agent_sessions" => match read::<NoArguments>(&arguments) {
            Ok(_) => list_sessions(app, caller).await,
            Err(error) => Err(error),
        },
        START => match read(&arguments) {
            Ok(start) => start_session(app, caller, start).await,
            Err(error) => Err(error),
        },
        "resume_agent_session" => match read(&arguments) {
            Ok(resume) => resume_session(app, caller, resume).await,
            Err(error) => Err(error),
        },
        "get_agent_session_status" => match read::<SessionArguments>(&arguments) {
            Ok(one) => read_status(app, caller, &one.session_id).await,
            Err(error) => Err(error),
        },
        "get_agent_session_result" => match read::<SessionArguments>(&arguments) {
            Ok(one) => read_result(app, caller, &one.session_id).await,
            Err(error) => Err(error),
        },
        DELETE_ALL => match read::<NoArguments>(&arguments) {
            Ok(_) => delete_all(app, caller).await,
            Err(error) => Err(error),
        },
        other => Err(Error::not_found(format!(
            "tool {:?}",
            other.chars().take(64).collect::<String>()
        ))),
    };
    done.map_err(|error| match error {
        Error::Invalid { field, reason: Reason::Clause(why), .. } => format!("{field} {why}"),
        Error::Invalid { reason: Reason::Sentence(why), .. } => why,
        Error::Internal(cause) => {
            tracing::error!(run = %caller.run, tool, error = format!("{cause:#}"), "the orchestrator failed");
            "internal error".to_owned()
        }
        error => error.to_string(),
    })
}

fn read<T: DeserializeOwned>(arguments: &str) -> Result<T> {
    serde_json::from_str(arguments).map_err(|error| Error::invalid("arguments", error.to_string()))
}

async fn list_blueprints(app: &App, caller: &RunCaller) -> Result<Value> {
    let mut listed = Vec::new();
    for agent in agents::list(app, &caller.principal).await? {
        let pack = agents::pack(app, &caller.principal, &agent.id).await?;
        listed.push(json!({
            "name": agent.id, "display_name": agent.display_name, "description": agent.description,
            "params_schema": pack.params,
        }));
    }
    Ok(json!({ "blueprints": listed }))
}

/// Reads the sessions that the caller's session has started.
async fn load_children(app: &App, caller: &RunCaller) -> Result<Vec<Child>> {
    let mut tx = app.db.tenant(caller.principal.tenant).await?;
    store::trees::list_children(&mut tx, &caller.principal.user, caller.session).await
}

async fn find_child(app: &App, caller: &RunCaller, session: &str) -> Result<Child> {
    let unknown = || Error::SessionNotFound(session.chars().take(64).collect());
    let id = parse_session(session)?;
    load_children(app, caller)
        .await?
        .into_iter()
        .find(|child| child.session == id)
        .ok_or_else(unknown)
}

fn parse_session(session: &str) -> Result<ConversationId> {
    session
        .parse()
        .map_err(|_| Error::SessionNotFound(session.chars().take(64).collect()))
}

async fn list_sessions(app: &App, caller: &RunCaller) -> Result<Value> {
    let children = load_children(app, caller).await?;
    let sessions = children.iter().map(
        |child| json!({ "session_id": child.session, "agent_name": child.agent, "status": status_name(child.status) }),
    );
    Ok(json!({ "sessions": sessions.collect::<Vec<_>>() }))
}

async fn start_session(app: &Arc<App>, caller: &RunCaller, start: StartArguments) -> Result<Value> {
    let mode = parse_mode(start.mode.as_deref())?;
    let spec = RunSpec {
        target: RunTarget::Start {
            agent: start.agent_name,
        },
        prompt: start.prompt,
        params: start.params,
        scope: Members::default(),
        callback: (mode == Mode::AsyncCallback).then_some(caller.session),
        parent_session: Some(caller.session),
        key: None,
    };
    start_run(app, caller, mode, spec).await
}

async fn resume_session(
    app: &Arc<App>,
    caller: &RunCaller,
    resume: ResumeArguments,
) -> Result<Value> {
    let mode = parse_mode(resume.mode.as_deref())?;
    let spec = RunSpec {
        target: RunTarget::Resume {
            session: parse_session(&resume.session_id)?,
        },
        prompt: resume.prompt,
        params: Members::default(),
        scope: Members::default(),
        callback: (mode == Mode::AsyncCallback).then_some(caller.session),
        parent_session: None,
        key: None,
    };
    start_run(app, caller, mode, spec).await
}

fn parse_mode(name: Option<&str>) -> Result<Mode> {
    name.map_or(Ok(Mode::Sync), |name| {
        Mode::from_str(name).map_err(|why| Error::invalid("mode", Reason::Sentence(why)))
    })
}

/// Starts a run, and in the mode `sync` waits for its end.
async fn start_run(app: &Arc<App>, caller: &RunCaller, mode: Mode, spec: RunSpec) -> Result<Value> {
    let initiator = RunInitiator::Run {
        caller,
        waits: mode == Mode::Sync,
    };
    let started = begin(app, initiator, spec).await?;
    if mode != Mode::Sync {
        return Ok(json!({ "session_id": started.session, "status": "pending" }));
    }
    let ended = ending::wait(app, &caller.principal, &started).await?;
    let StartedRun { session, run, .. } = started;
    if !ended.status.is_final() {
        let note = "it goes on; ask for its status later";
        return Ok(
            json!({ "session_id": session, "status": status_name(ended.status), "note": note }),
        );
    }
    let mut tx = app.db.tenant(caller.principal.tenant).await?;
    let text =
        ending::load_outcome_text(&mut tx, run, ended.status, ended.error.as_deref()).await?;
    Ok(json!({ "session_id": session, "status": status_name(ended.status), "result": text }))
}

async fn read_status(app: &App, caller: &RunCaller, session: &str) -> Result<Value> {
    let child = find_child(app, caller, session).await?;
    Ok(json!({ "session_id": child.session, "status": status_name(child.status) }))
}

async fn read_result(app: &App, caller: &RunCaller, session: &str) -> Result<Value> {
    let child = find_child(app, caller, session).await?;
    if matches!(child.status, RunStatus::Queued | RunStatus::Running) {
        let status = status_name(child.status);
        return Err(Error::conflict(
            ErrorCode::SessionBusy,
            format!("Session not finished: {} (status: {status})", child.session),
        ));
    }
    let mut tx = app.db.tenant(caller.principal.tenant).await?;
    let text =
        ending::load_outcome_text(&mut tx, child.run, child.status, child.error.as_deref()).await?;
    Ok(json!({ "session_id": child.session, "status": status_name(child.status), "result": text }))
}

/// Deletes the sessions that the caller's session has started, with the sessions below them.
async fn delete_all(app: &App, caller: &RunCaller) -> Result<Value> {
    let children = load_children(app, caller).await?;
    for child in &children {
        match delete_conversation(app, &caller.principal, child.session).await {
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(json!({ "deleted": children.len() }))
}
