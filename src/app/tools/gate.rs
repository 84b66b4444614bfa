//! The one gate. Every tool call from every entry point passes [`call`], and a call that needed consent
//! passes [`approved::call`] later. The gate makes the same pure decision as the listing, checks the
//! arguments against the schema of the tool, queues an audit line, and sends the call once.
//!
//! A call that was sent and not answered is `OutcomeUnknown` and is never repeated by the program.

mod admission;
pub mod approved;
pub mod elicitation;
pub mod reads;
mod send;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use self::{
    admission::{Admission, admit, denied, refused, unknown},
    send::{CallContext, Destination, Permit, counted_result, resolve_connection},
};
use super::{approvals, elicitations::ElicitationTarget};
use crate::{
    app::{App, tools::toolset::Toolbox},
    domain::{
        error::Error,
        ids::RunId,
        json::Json,
        message::{CallStatus, ToolCall, ToolResult},
        orchestrator,
        policy::{Allowed, Decision, decide},
        principal::Principal,
        run::ClaimedRun,
        server::ServerSpec,
    },
    mcp::ProgressSender,
    store::audit::AuditRow,
};

/// A call that somebody wants to be made.
pub struct Call<'a> {
    pub principal: &'a Principal,
    pub toolbox: &'a Arc<Toolbox>,
    /// `None` for a client that calls tools itself.
    pub run: Option<RunId>,
    pub call_id: &'a str,
    /// Its line in the audit trail is written ([`opening_line`]); whoever keeps the result writes the outcome.
    pub is_recorded: bool,
    pub target: CallTarget<'a>,
    /// Parsed arguments, or the text that is no JSON.
    pub arguments: Result<Json, &'a str>,
    /// Why two readers could understand the text of the arguments differently.
    pub ambiguity: Option<&'a str>,
    pub progress: ProgressSender,
    pub cancel: CancellationToken,
    /// Where its user can be asked when the server wants to know something first.
    pub elicitation: Option<ElicitationTarget>,
}

/// What is to be called.
pub enum CallTarget<'a> {
    /// By the name in the model's request.
    Name(&'a str),
    /// By the server's id and the tool's own name.
    Pair { server: &'a str, tool: &'a str },
}

/// The line of the audit trail for a call that may be sent without anybody's consent. It is written in the transaction
/// that makes the call a row: a call of a run without a line was never sent. `None` for any other call.
pub fn opening_line(
    app: &Arc<App>,
    run: &ClaimedRun,
    toolbox: &Toolbox,
    call: &ToolCall,
) -> Option<AuditRow> {
    let (server, tool) = (call.server.as_deref()?, call.tool.as_deref()?);
    let (spec, named) = toolbox.by_pair(server, tool)?;
    let Decision::Allow(allowed) = decide(spec, toolbox.access(), &named.tool.name) else {
        return None;
    };
    let caller = CallContext {
        app,
        principal: &run.principal,
        agent: toolbox.agent(),
        run: Some(run.id),
        is_recorded: true,
    };
    let (arguments, unknown) = (call.arguments.get(), CallStatus::OutcomeUnknown);
    Some(AuditRow {
        id: call.audit_id?,
        detail: detail_of(&allowed),
        ..caller.audit_row("tool.call", (server, tool), arguments, unknown)
    })
}

fn detail_of(allowed: &Allowed<'_>) -> Option<String> {
    allowed
        .is_self_approved()
        .then(|| "self-approved".to_owned())
}

/// Makes the call, or says why not. The result is what the model hears; nothing here is an error of ours.
pub async fn call(app: &Arc<App>, mut call: Call<'_>) -> ToolResult {
    let found = match &call.target {
        CallTarget::Name(name) => call.toolbox.by_name(name),
        CallTarget::Pair { server, tool } => call.toolbox.by_pair(server, tool),
    };
    let Some((spec, named)) = found else {
        return denied(app, &call, unknown(app, &call));
    };
    if let (true, Ok(arguments)) = (orchestrator::is_built_in(spec), &mut call.arguments) {
        orchestrator::use_own_arguments(&named.tool.name, arguments);
    }
    let admitted = match admit(app, &call, spec, named).await {
        Ok(admitted) => admitted,
        Err(reason) => return denied(app, &call, reason),
    };
    let destination = match connect(app, &call, spec).await {
        Ok(destination) => destination,
        Err(reason) => return denied(app, &call, reason),
    };
    let (arguments, allowed) = match admitted {
        Admission::Now { arguments, allowed } => (arguments, allowed),
        Admission::Later { arguments, policy } => {
            let credential = destination.credential();
            let asked = approvals::ApprovalRequest {
                principal: call.principal,
                agent: call.toolbox.agent(),
                server: &spec.id,
                tool: &named.tool,
                policy,
                counts_requester: policy.counts_requester(call.toolbox.access()),
                arguments: &arguments,
                credential: &credential,
                run: call.run,
                call_id: call.call_id,
            };
            return ask(app, &call, asked).await;
        }
    };
    let (caller, detail) = (call.caller(app), detail_of(&allowed));
    let permit = Permit::allowed(caller, &allowed, destination, &arguments, detail);
    let permit = match permit.await {
        Ok(permit) => permit,
        Err(error) => return refused(&call, format!("not executed: {error}")),
    };
    let started = crate::domain::clock::instant();
    let ready = elicitation::AdmittedCall {
        permit,
        tool: &named.tool.name,
        arguments,
        rounds: 0,
    };
    let result = elicitation::make(app, &call, ready, None).await;
    metrics::histogram!("chatelaine_tool_call_seconds").record(started.elapsed().as_secs_f64());
    result
}

impl<'a> Call<'a> {
    fn caller(&self, app: &'a Arc<App>) -> CallContext<'a> {
        CallContext {
            app,
            principal: self.principal,
            agent: self.toolbox.agent(),
            run: self.run,
            is_recorded: self.is_recorded,
        }
    }
}

/// Stores the call until an approver decides. The model is told at once that it waits.
async fn ask(app: &Arc<App>, call: &Call<'_>, asked: approvals::ApprovalRequest<'_>) -> ToolResult {
    let requested = match approvals::request(app, asked).await {
        Ok(requested) => requested,
        Err(error) => {
            if let Error::Internal(cause) = &error {
                tracing::error!(
                    error = format!("{cause:#}"),
                    "a request for approval could not be kept"
                );
            }
            return denied(
                app,
                call,
                format!("not executed: this call needs approval, and {error}"),
            );
        }
    };
    let approvals::Requested {
        approval,
        is_new,
        equal_elsewhere,
    } = requested;
    let equal = equal_elsewhere.map(|code| {
        format!(" An equal request of the user, {code}, waits in another conversation; say so.")
    });
    let (text, advice) = approvals::waiting_text(&approval, is_new);
    ToolResult {
        advice: Some(advice.to_owned() + &equal.unwrap_or_default()),
        approval: Some(approval.id),
        ..counted_result(call.call_id, CallStatus::AwaitingApproval, text)
    }
}

/// The connection of a call, or why there is none.
async fn connect(
    app: &Arc<App>,
    call: &Call<'_>,
    spec: &Arc<ServerSpec>,
) -> Result<Destination, String> {
    match resolve_connection(&call.caller(app), spec).await {
        Ok(Some(connection)) => Ok(connection),
        Ok(None) => Err(not_connected(spec)),
        Err(error) => Err(format!("not executed: {error}")),
    }
}

fn not_connected(spec: &ServerSpec) -> String {
    format!(
        "not executed: {0} is not connected; type /connect {0}",
        spec.id
    )
}
