//! What is asked of a server for a user besides calls: a prompt, a resource that a result linked to. The same connection
//! as a call's, the same audit trail; whether they may is decided by the toolbox, as it is for calls.

use std::sync::Arc;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{outcome_name, reach};
use crate::{
    app::{App, servers::credentials, tools::toolset::Toolbox},
    domain::{
        ids::{AuditId, RunId},
        message::CallStatus,
        principal::Principal,
        prompt::{Said, ServerPrompt},
        resource::Resource,
        server::{AccessMode, ServerSpec},
    },
    mcp::{CallError, Key},
    store::audit::AuditRow,
};

/// Who asks, and in which run.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    pub principal: &'a Principal,
    pub toolbox: &'a Toolbox,
    pub run: Option<RunId>,
}

/// What a prompt comes to; the error is a sentence for the user.
pub async fn prompt(
    app: &Arc<App>,
    asking: &Asking<'_>,
    spec: &Arc<ServerSpec>,
    prompt: &ServerPrompt,
    arguments: &Map<String, Value>,
) -> Result<Vec<Said>, String> {
    let (key, target) = reach(
        app,
        asking.principal,
        asking.toolbox.agent(),
        spec,
        asking.run,
    )
    .await?;
    let what = ("prompt.get", prompt.name.as_str());
    let line = app.audit.reserve(row(
        app,
        asking,
        spec,
        what,
        &Value::from(arguments.clone()).to_string(),
    ));
    let line = line.map_err(|error| format!("not executed: {error}"))?;
    let asked = app
        .orchestrator
        .mcp(spec, &app.mcp)
        .prompt(&key, &target, &prompt.name, arguments)
        .await;
    line.write(outcome_name(status_of(&asked)));
    came_of(app, asking, &key, spec, asked).await
}

/// Reads a resource that a result of `tool` linked to; the error is a sentence for whoever asked.
pub async fn resource(
    app: &Arc<App>,
    asking: &Asking<'_>,
    spec: &Arc<ServerSpec>,
    tool: &str,
    uri: &str,
) -> Result<Resource, String> {
    let (key, target) = reach(
        app,
        asking.principal,
        asking.toolbox.agent(),
        spec,
        asking.run,
    )
    .await?;
    let line = app
        .audit
        .reserve(row(app, asking, spec, ("resource.read", tool), uri));
    let line = line.map_err(|error| format!("not read: {error}"))?;
    let mcp = app.orchestrator.mcp(spec, &app.mcp);
    let read = mcp.resource(&key, &target, uri).await;
    line.write(outcome_name(status_of(&read)));
    came_of(app, asking, &key, spec, read).await
}

/// A credential that the server refused is marked.
async fn came_of<T>(
    app: &App,
    asking: &Asking<'_>,
    key: &Key,
    spec: &ServerSpec,
    asked: Result<T, CallError>,
) -> Result<T, String> {
    if let Err(CallError::Unauthorized | CallError::Forbidden) = &asked
        && spec.access_mode == AccessMode::UserControlled
        && let Err(error) = credentials::reject(app, asking.principal, key).await
    {
        tracing::warn!(%error, server = %spec.id, "a refused credential could not be marked; the next call tries again");
    }
    asked.map_err(|error| match error {
        // Nothing was changed by asking, so nothing is unknown.
        CallError::TimedOut(patience) => format!("no answer within {} s", patience.as_secs_f32()),
        CallError::OutcomeUnknown(reason) => reason,
        error => error.to_string(),
    })
}

fn status_of<T>(asked: &Result<T, CallError>) -> CallStatus {
    if asked.is_ok() {
        CallStatus::Succeeded
    } else {
        CallStatus::Failed
    }
}

/// `what`: the action, and the name of what was asked for. A name may hold what Postgres takes for no text.
fn row(
    app: &App,
    asking: &Asking<'_>,
    spec: &ServerSpec,
    what: (&'static str, &str),
    asked: &str,
) -> AuditRow {
    AuditRow {
        tenant: asking.principal.tenant,
        id: AuditId::new(),
        at: app.clock.now(),
        actor: asking.principal.user.to_string(),
        action: what.0,
        agent: asking.toolbox.agent().to_string(),
        run: asking.run,
        server: spec.id.to_string(),
        tool: what.1.replace('\0', "\u{fffd}"),
        args_sha256: Sha256::digest(asked).to_vec(),
        outcome: outcome_name(CallStatus::Failed),
        detail: None,
    }
}
