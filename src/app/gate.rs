//! The one gate: every tool call of every door goes through [`call`]. It asks the same pure decision as
//! the listing, checks the arguments against the tool's schema, promises an audit line, and sends once.
//!
//! A call that was sent and not answered is `OutcomeUnknown` and is never repeated by the program.

use std::sync::Arc;

use serde_json::{Value, value::RawValue};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    App, connections, credentials,
    tools::{NamedTool, Toolbox, clipped},
};
use crate::{
    domain::{
        ids::{AuditId, RunId},
        message::{CallStatus, ToolResult},
        policy::{Decision, decide},
        principal::Principal,
        server::{AccessMode, ServerSpec},
    },
    mcp::{CallError, CallOptions, Key, Progress},
    store::audit::AuditRow,
};

/// Bytes of a server's own result that are kept; the model's text of a longer one says that it was cut.
const MAX_RAW: usize = 1 << 20;
/// Characters of a name that somebody made up.
const MAX_NAME: usize = 128;

/// A call that somebody wants to be made.
pub struct Call<'a> {
    pub principal: &'a Principal,
    pub toolbox: &'a Arc<Toolbox>,
    pub run: RunId,
    pub call_id: &'a str,
    pub target: Target<'a>,
    /// Parsed arguments, or the text that is no JSON.
    pub arguments: Result<Value, &'a str>,
    pub progress: mpsc::UnboundedSender<Progress>,
    pub cancel: CancellationToken,
}

/// What is to be called.
pub enum Target<'a> {
    /// By the name in the model's request.
    Name(&'a str),
    /// By the server's id and the tool's own name.
    Pair { server: &'a str, tool: &'a str },
}

/// Makes the call, or says why not. The result is what the model hears; nothing here is an error of ours.
pub async fn call(app: &App, call: Call<'_>) -> ToolResult {
    let found = match &call.target {
        Target::Name(name) => call.toolbox.by_name(name),
        Target::Pair { server, tool } => call.toolbox.by_pair(server, tool),
    };
    let Some((spec, named)) = found else { return denied(app, &call, unknown(&call)) };
    let arguments = match admit(&call, spec, named) {
        Ok(arguments) => arguments,
        Err(reason) => return denied(app, &call, reason),
    };
    let (key, target) = match reach(app, &call, spec).await {
        Ok(reached) => reached,
        Err(reason) => return denied(app, &call, reason),
    };
    let what = (spec.id.as_str(), named.tool.name.as_str());
    let promised = audit_row(app, &call, what, arguments.get(), CallStatus::OutcomeUnknown);
    let line = match app.audit.reserve(promised) {
        Ok(line) => line,
        Err(error) => return refused(&call, format!("not executed: {error}")),
    };
    let started = crate::domain::clock::instant();
    let options = CallOptions { progress: Some(call.progress.clone()), cancel: call.cancel.clone() };
    let sent = app.mcp.call(&key, &target, &named.tool.name, &arguments, options).await;
    if let Err(CallError::Unauthorized | CallError::Forbidden) = &sent
        && spec.access_mode == AccessMode::UserControlled
        && let Err(error) = credentials::reject(app, call.principal, &key).await
    {
        tracing::warn!(%error, server = %spec.id, "a refused credential could not be marked; the next call tries again");
    }
    let result = match sent {
        Ok(outcome) => ToolResult {
            call_id: call.call_id.to_owned(),
            status: if outcome.is_error { CallStatus::Failed } else { CallStatus::Succeeded },
            // Not everybody who is shown this takes a NUL for text.
            text: outcome.text.replace('\0', "\u{fffd}"),
            raw: Some(outcome.raw).filter(|raw| raw.get().len() <= MAX_RAW),
        },
        Err(error) => failed(&call, &error),
    };
    metrics::histogram!("chatelaine_tool_call_seconds").record(started.elapsed().as_secs_f64());
    metrics::counter!("chatelaine_tool_calls_total", "outcome" => outcome_name(result.status)).increment(1);
    line.write(outcome_name(result.status));
    result
}

/// Whose connection the call goes over, and to what: a shared server as the pack has it, a personal one with
/// the user's own credential.
async fn reach(app: &App, call: &Call<'_>, spec: &Arc<ServerSpec>) -> Result<(Key, Arc<ServerSpec>), String> {
    let agent = call.toolbox.agent();
    if spec.access_mode == AccessMode::AdminControlled {
        return Ok((connections::key(call.principal.tenant, agent, spec), spec.clone()));
    }
    match credentials::connection(app, call.principal, agent, spec).await {
        Ok(Some(connection)) => Ok((connection.key, connection.spec)),
        Ok(None) => Err(format!(
            "not executed: the user is not connected to {0}; do not retry, tell them to type /connect {0}",
            spec.id
        )),
        Err(error) => Err(format!("not executed: {error}")),
    }
}

/// The gate's own checks, in order; `Ok` is the text of the arguments to send.
fn admit(call: &Call<'_>, spec: &ServerSpec, named: &NamedTool) -> Result<Box<RawValue>, String> {
    match decide(spec, call.toolbox.standing(), &named.tool.name) {
        Decision::Deny(_) => return Err(unknown(call)),
        Decision::Approve(policy) => {
            return Err(format!(
                "not executed: this call needs the approval of {}, and approvals cannot be given here yet; do not retry, \
                 tell the user to ask them to do it",
                policy.approvers.join(" or ")
            ));
        }
        Decision::Allow { .. } => {}
    }
    let arguments = call.arguments.as_ref().map_err(|_| {
        "not executed: the arguments are not valid JSON; send one JSON object that fits the tool's schema".to_owned()
    })?;
    if !arguments.is_object() {
        return Err("not executed: the arguments must be one JSON object".to_owned());
    }
    named
        .check(arguments)
        .map_err(|problems| format!("not executed: the arguments do not fit the tool: {problems}"))?;
    serde_json::value::to_raw_value(arguments).map_err(|error| format!("not executed: {error}"))
}

/// For a tool that is not there and one that the principal may not see alike.
fn unknown(call: &Call<'_>) -> String {
    let name = match &call.target {
        Target::Name(name) => clipped(name, MAX_NAME),
        Target::Pair { server, tool } => format!("{} {}", clipped(server, MAX_NAME), clipped(tool, MAX_NAME)),
    };
    format!("not executed: there is no tool {name:?}; use one of the tools you were given")
}

fn refused(call: &Call<'_>, text: String) -> ToolResult {
    metrics::counter!("chatelaine_tool_calls_total", "outcome" => "denied").increment(1);
    ToolResult { call_id: call.call_id.to_owned(), status: CallStatus::Denied, text, raw: None }
}

/// What the model and the user hear when there is no result.
fn failed(call: &Call<'_>, error: &CallError) -> ToolResult {
    let unknown = "it may or may not have been done. Do not repeat it; check first";
    let (status, text) = match error {
        CallError::NotSent(_) | CallError::Refused { .. } | CallError::Unauthorized | CallError::Forbidden => {
            (CallStatus::Failed, format!("failed: {error}"))
        }
        CallError::TimedOut(_) | CallError::OutcomeUnknown(_) | CallError::Cancelled => {
            (CallStatus::OutcomeUnknown, format!("outcome unknown: {error}; {unknown}"))
        }
    };
    ToolResult { call_id: call.call_id.to_owned(), status, text, raw: None }
}

/// A refusal is in the trail, too, also that of a tool which the principal may not even know of. If the queue
/// is full nothing was done that would be missed.
fn denied(app: &App, call: &Call<'_>, reason: String) -> ToolResult {
    let (server, tool) = match &call.target {
        Target::Name(name) => call.toolbox.pair_of(name).unwrap_or(("", name)),
        Target::Pair { server, tool } => (*server, *tool),
    };
    // Words of a model or a user: they may be long and hold what Postgres takes for no text.
    let [server, tool] = [server, tool].map(|name| clipped(name, MAX_NAME).replace('\0', "\u{fffd}"));
    let arguments = call.arguments.as_ref().map_or_else(|text| (*text).to_owned(), Value::to_string);
    let row = audit_row(app, call, (&server, &tool), &arguments, CallStatus::Denied);
    // Written when it is dropped.
    drop(app.audit.reserve(row));
    refused(call, reason)
}

fn audit_row(app: &App, call: &Call<'_>, what: (&str, &str), arguments: &str, status: CallStatus) -> AuditRow {
    AuditRow {
        tenant: call.principal.tenant,
        id: AuditId::new(),
        at: app.clock.now(),
        actor: call.principal.user.to_string(),
        action: "tool.call",
        agent: call.toolbox.agent().to_string(),
        run: Some(call.run),
        server: what.0.to_owned(),
        tool: what.1.to_owned(),
        args_sha256: Sha256::digest(arguments).to_vec(),
        outcome: outcome_name(status),
    }
}

fn outcome_name(status: CallStatus) -> &'static str {
    match status {
        CallStatus::Succeeded => "succeeded",
        CallStatus::Failed => "failed",
        CallStatus::Denied => "denied",
        CallStatus::OutcomeUnknown => "outcome_unknown",
        CallStatus::Cancelled => "cancelled",
    }
}
