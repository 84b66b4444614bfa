//! The one way to a server. A [`Permit`] is the right to send one request of one user to one server. Only a decision
//! of the policy or a claimed approval makes one. Its methods are the only callers of a server's tools, prompts and
//! resources, and all of them end in [`Permit::send`]; but the test of a credential, which calls the tool that the pack
//! names for it, is in `app::servers::credentials::trial`.
//!
//! Invariant: the audit line exists before anything is sent. The line of a run's call is written in the transaction
//! that stores the call, and the line of an approved call in the one that makes it `executing`. Any other line is
//! queued when the permit is made; that of a run's call is waited for. A permit that is dropped, because its call was stopped, leaves the line as it was.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value, value::RawValue};
use sha2::{Digest, Sha256};
use tracing::{Instrument as _, Span, field::Empty};

use crate::app::{
    App,
    platform::{audit::Line, measurements::REGISTRY},
    servers::{
        connections,
        credentials::{self, ResolvedConnection},
        orchestrator::{self, RunCaller},
    },
    tools::{
        approvals::execution::{self, Claimed, PermittedCall, credential_of},
        toolset::{Toolset, not_available},
    },
};
use domain::{
    clock,
    credential::CredentialRef,
    error::{Error, ErrorCode, Result},
    ids::{AgentId, AuditId, RunId},
    message::{CallStatus, ToolResult},
    policy::Allowed,
    principal::Principal,
    prompt::{PromptOutcome, ServerPrompt},
    resource::Resource,
    server::{AccessMode, ServerSpec},
    texts,
    tool::{Tool, ToolOutcome},
    trace_context::TRACES,
};
use mcp::{CallError, CallOptions, CallRequest, Caller, Key, McpError};
use store::audit::AuditRow;

/// The most bytes of a server's own result that are kept. A longer one is kept as its text alone.
const MAX_RAW: usize = 1 << 20;

/// The user of an agent, and the run, that a call is for.
#[derive(Clone, Copy)]
pub(in crate::app::tools) struct CallContext<'a> {
    pub app: &'a Arc<App>,
    pub principal: &'a Principal,
    pub agent: &'a AgentId,
    pub run: Option<RunId>,
    /// The line of a run's call in the audit trail, if it has one of its own.
    pub line: Option<AuditId>,
    /// Whether that line exists already. Its outcome is then written with the result.
    pub is_recorded: bool,
}

pub(in crate::app::tools) struct Permit<'a> {
    caller: CallContext<'a>,
    /// The server as its pack defines it.
    server: &'a ServerSpec,
    destination: Destination,
    /// The queued audit line of a call that has no row of its own.
    line: Option<Line<'a>>,
}

/// The permit of an approved call, or why the request was withdrawn meanwhile.
pub(in crate::app::tools) enum ApprovedPermit<'a> {
    Granted(Box<Permit<'a>>),
    Withdrawn(String),
}

/// Where a request is sent.
pub(in crate::app::tools) enum Destination {
    /// The orchestrator, which is called in process.
    BuiltIn(RunCaller),
    Server(ResolvedConnection),
}

impl Destination {
    /// Identifies the credential that goes along: another credential or generation gives another text.
    pub(in crate::app::tools) fn credential(&self) -> String {
        match self {
            Self::BuiltIn(caller) => format!("run:{}/0", caller.run),
            Self::Server(connection) => credential_of(connection),
        }
    }

    /// A tool as its server lists it, by a list that is at most so old ([`connections::list_within`]). A credential that
    /// the server refuses is marked.
    pub(in crate::app::tools) async fn find_tool(
        &self,
        caller: &CallContext<'_>,
        server: &ServerSpec,
        tool: &str,
        age: Duration,
    ) -> Result<Option<Arc<Tool>>, McpError> {
        let CallContext {
            app,
            principal,
            agent,
            ..
        } = *caller;
        let is_it = |listed: &&Arc<Tool>| listed.name == tool;
        let Self::Server(connection) = self else {
            return Ok(app.orchestrator.tools().iter().find(is_it).cloned());
        };
        let listing = connections::list_within(app, agent, server, connection, age);
        let listed = Box::pin(listing).await;
        if let (Err(error), Some(used)) = (&listed, self.user_credential())
            && error.is_credential_refused()
            && let Err(error) = credentials::reject(app, principal, used).await
        {
            tracing::warn!(error = error.with_cause(), server = %server.id, "a refused credential could not be marked; the next call tries again");
        }
        Ok(listed?.tools.iter().find(is_it).cloned())
    }

    /// The credential of the user that goes along, if it is one.
    fn user_credential(&self) -> Option<&CredentialRef> {
        match self {
            Self::Server(ResolvedConnection {
                key: Key::Personal(credential),
                ..
            }) => Some(credential),
            Self::Server(_) | Self::BuiltIn(_) => None,
        }
    }
}

impl CallContext<'_> {
    /// An audit line of this caller. It has the hash of `asked_for`.
    pub(in crate::app::tools) fn audit_row(
        &self,
        action: &'static str,
        server: &str,
        tool: &str,
        asked_for: &str,
        status: CallStatus,
    ) -> AuditRow {
        let Self { app, principal, .. } = self;
        let actor = principal.user.as_str();
        AuditRow {
            agent: self.agent.to_string(),
            run: self.run,
            server: server.to_owned(),
            // Postgres takes no NUL for text.
            tool: tool.replace('\0', "\u{fffd}"),
            args_sha256: Sha256::digest(asked_for).to_vec(),
            outcome: status.into_str(),
            ..AuditRow::new(principal.tenant, app.clock.now(), actor, action)
        }
    }
}

impl<'a> Permit<'a> {
    /// Calls a tool once. A permit calls again only to answer a question that the server returned instead of a result.
    pub(in crate::app::tools) async fn call(
        &self,
        tool: &str,
        arguments: &RawValue,
        options: CallOptions,
    ) -> Result<ToolOutcome, CallError> {
        let span = self.span_of_call(tool);
        let calling = Box::pin(self.call_within(&span, tool, arguments, options));
        let answer = calling.instrument(span.clone()).await;
        let code = match &answer {
            Ok(outcome) => outcome.is_error.then_some("tool_error"),
            Err(error) => Some(error.code()),
        };
        span.record("code", code);
        answer
    }

    /// The span of a call, for traces.
    fn span_of_call(&self, tool: &str) -> Span {
        let spec = match &self.destination {
            Destination::Server(connection) => Some(&connection.spec),
            Destination::BuiltIn(_) => None,
        };
        // What a user entered may be part of the address.
        let spec = spec.filter(|spec| !spec.has_user_values);
        tracing::error_span!(
            target: TRACES,
            "tool",
            server = %self.server.id,
            tool,
            host = spec.and_then(|spec| spec.endpoint.host()),
            http_status = Empty,
            code = Empty,
        )
    }

    async fn call_within(
        &self,
        span: &Span,
        tool: &str,
        arguments: &RawValue,
        options: CallOptions,
    ) -> Result<ToolOutcome, CallError> {
        let app = self.caller.app;
        let began = clock::instant();
        let answer = match &self.destination {
            Destination::BuiltIn(caller) => {
                let cancel = &options.cancel;
                let answer = orchestrator::call(app, caller, tool, arguments, cancel).await;
                self.take_answer(answer).await
            }
            Destination::Server(ResolvedConnection { key, spec }) => {
                let Principal { tenant, user, .. } = self.caller.principal;
                let caller = Caller {
                    tenant: *tenant,
                    user: user.clone(),
                };
                let options = CallOptions {
                    caller: Some(caller),
                    trace: telemetry::context_of(span),
                    ..options
                };
                let request = CallRequest { tool, arguments };
                let answer = app.mcp.call(key, spec, request, options).await;
                let answer = self.take_answer(answer).await;
                self.prove_credential(&answer).await;
                answer
            }
        };
        let server = if self.server.of_tenant {
            REGISTRY
        } else {
            self.server.id.as_str()
        };
        metrics::histogram!("chatelaine_tool_call_seconds", "server" => server.to_owned())
            .record(began.elapsed().as_secs_f64());
        answer
    }

    pub(in crate::app::tools) async fn prompt(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<PromptOutcome, CallError> {
        let ResolvedConnection { key, spec } = self.connection()?;
        let mcp = &self.caller.app.mcp;
        let answer = mcp.get_prompt(key, spec, name, arguments).await;
        self.take_answer(answer).await
    }

    pub(in crate::app::tools) async fn complete(
        &self,
        prompt: &str,
        argument: &str,
        value: &str,
    ) -> Result<Box<RawValue>, CallError> {
        let ResolvedConnection { key, spec } = self.connection()?;
        let mcp = &self.caller.app.mcp;
        let answer = mcp.complete(key, spec, prompt, argument, value).await;
        self.take_answer(answer).await
    }

    pub(in crate::app::tools) async fn resource(&self, uri: &str) -> Result<Resource, CallError> {
        let ResolvedConnection { key, spec } = self.connection()?;
        let answer = self.caller.app.mcp.read_resource(key, spec, uri).await;
        self.take_answer(answer).await
    }

    fn connection(&self) -> Result<&ResolvedConnection, CallError> {
        match &self.destination {
            Destination::Server(connection) => Ok(connection),
            Destination::BuiltIn(_) => Err(CallError::NotSent(
                "the orchestrator has neither prompts nor resources".to_owned(),
            )),
        }
    }

    /// Handles a server that wants more scopes: the next sign-in of the user asks for them. When the user has granted
    /// them already, the call is refused for good.
    async fn request_missing_scopes<T>(
        &self,
        answer: Result<T, CallError>,
    ) -> Result<T, CallError> {
        let (Err(CallError::ScopeRequired(scope)), Destination::Server(connection)) =
            (&answer, &self.destination)
        else {
            return answer;
        };
        let (CallContext { app, principal, .. }, scope) = (self.caller, scope.clone());
        let asked = match &connection.key {
            Key::Personal(used) => credentials::request_scopes(app, principal, used, &scope).await,
            Key::Shared(_) => Ok(false),
        };
        match asked {
            Ok(true) => answer,
            Ok(false) => Err(CallError::Refused {
                code: None,
                message: format!("the server refuses this for lack of permissions ({scope:?})"),
                retry_after: None,
            }),
            Err(error) => {
                tracing::warn!(error = error.with_cause(), server = %self.server.id, "the scopes that a server wants could not be kept");
                answer
            }
        }
    }

    /// Notes that a personal server accepts the user's credential, when the result is no error.
    async fn prove_credential(&self, answer: &Result<ToolOutcome, CallError>) {
        let is_result = |outcome: &ToolOutcome| !outcome.is_error && outcome.input.is_none();
        let Some(used) = self.destination.user_credential() else {
            return;
        };
        if !answer.as_ref().is_ok_and(is_result) {
            return;
        }
        let CallContext { app, principal, .. } = self.caller;
        if let Err(error) = credentials::prove(app, principal, used).await {
            tracing::warn!(error = error.with_cause(), server = %self.server.id, "a credential that works could not be put in force; the next call tries again");
        }
    }

    /// Passes an answer on, and marks a credential that the server refused.
    async fn take_answer<T>(&self, answer: Result<T, CallError>) -> Result<T, CallError> {
        let answer = self.request_missing_scopes(answer).await;
        if let Err(CallError::Unauthorized | CallError::Forbidden) = &answer
            && let Some(used) = self.destination.user_credential()
        {
            let CallContext { app, principal, .. } = self.caller;
            let rejected = credentials::reject(app, principal, used).await;
            if let Err(error) = rejected {
                tracing::warn!(error = error.with_cause(), server = %self.server.id, "a refused credential could not be marked; the next call tries again");
            }
        }
        answer
    }

    /// Identifies the credential that goes along: another credential or generation gives another text.
    pub(in crate::app::tools) fn credential(&self) -> String {
        self.destination.credential()
    }

    pub(in crate::app::tools) fn server(&self) -> &'a ServerSpec {
        self.server
    }

    /// Completes the audit line of a call that has no row of its own.
    pub(in crate::app::tools) fn end(self, status: CallStatus) {
        if let Some(line) = self.line {
            line.end(status.into_str());
        }
    }
}

/// The destination of a call: a shared server as its pack defines it, or a personal one with the user's own
/// credential. `None` when the user has none.
pub(in crate::app::tools) async fn resolve_destination(
    caller: &CallContext<'_>,
    spec: &Arc<ServerSpec>,
) -> Result<Option<Destination>> {
    let CallContext {
        app,
        principal,
        agent,
        run,
        ..
    } = *caller;
    if app.orchestrator.is(spec) {
        let no_run = || Error::conflict(ErrorCode::Conflict, "the orchestrator answers runs only");
        let run = run.ok_or_else(no_run)?;
        let caller = orchestrator::caller(app, principal.tenant, run).await?;
        return Ok(Some(Destination::BuiltIn(caller)));
    }
    let connection = match spec.access_mode {
        AccessMode::AdminControlled => Some(ResolvedConnection {
            key: connections::shared_key(principal.tenant, spec),
            spec: spec.clone(),
        }),
        AccessMode::UserControlled => {
            credentials::resolve_connection(app, principal, agent, spec).await?
        }
    };
    Ok(connection.map(Destination::Server))
}

impl<'a> CallContext<'a> {
    async fn permit(
        self,
        server: &'a ServerSpec,
        destination: Destination,
        row: AuditRow,
        waits: bool,
    ) -> Result<Permit<'a>> {
        let line = if self.is_recorded {
            None
        } else {
            let mut line = self.app.audit.open(row, waits)?;
            line.wait_until_written().await?;
            Some(line)
        };
        Ok(Permit {
            caller: self,
            server,
            destination,
            line,
        })
    }
}

impl<'a> Permit<'a> {
    /// A permit for a call that the policy allows without consent.
    pub(in crate::app::tools) async fn allowed(
        caller: CallContext<'a>,
        allowed: &Allowed<'a>,
        destination: Destination,
        arguments: &RawValue,
        detail: Option<String>,
    ) -> Result<Self> {
        let (server, tool) = (allowed.server().id.as_str(), allowed.tool());
        let unknown = CallStatus::OutcomeUnknown;
        let row = caller.audit_row("tool.call", server, tool, arguments.get(), unknown);
        // A run is taken up by the lines of its calls. A call that has none was judged otherwise when its row was written,
        // and does not leave before there is one.
        let id = caller.line.unwrap_or(row.id);
        let row = AuditRow { id, detail, ..row };
        let waits = caller.run.is_some();
        caller
            .permit(allowed.server(), destination, row, waits)
            .await
    }

    /// A permit for an approved call that this process has claimed. The request is executing from here on, which is
    /// committed before anything is sent. `Conflict` when the claim was lost.
    pub(in crate::app::tools) async fn approved(
        caller: CallContext<'a>,
        claimed: &'a Claimed,
        permitted: &'a PermittedCall,
        destination: Destination,
    ) -> Result<ApprovedPermit<'a>> {
        let (id, tool) = (claimed.server.as_str(), claimed.tool.as_str());
        let row = AuditRow {
            id: claimed.audit_id(),
            args_sha256: claimed.args_sha256.to_vec(),
            detail: Some(format!("approval {}", claimed.code)),
            ..caller.audit_row("tool.call", id, tool, "", CallStatus::OutcomeUnknown)
        };
        let started = execution::start(caller.app, claimed, permitted, &row);
        if let Some(reason) = started.await? {
            return Ok(ApprovedPermit::Withdrawn(reason));
        }
        Ok(ApprovedPermit::Granted(Box::new(Permit {
            caller,
            server: permitted.spec(),
            destination,
            line: None,
        })))
    }

    /// A permit for a prompt that the toolset offers, by the policy for the server's tools.
    pub(in crate::app::tools) async fn offered(
        caller: CallContext<'a>,
        toolset: &'a Toolset,
        server: &'a ServerSpec,
        prompt: &ServerPrompt,
        destination: Destination,
        arguments: &Map<String, Value>,
    ) -> Result<Self> {
        let is_it = |offered: &(&Arc<ServerSpec>, &Arc<ServerPrompt>)| {
            offered.0.id == server.id && offered.1.name == prompt.name
        };
        if toolset.prompts().find(is_it).is_none() {
            return Err(Error::not_found(format!("prompt {:?}", prompt.name)));
        }
        let arguments = Value::from(arguments.clone()).to_string();
        let (id, name) = (server.id.as_str(), prompt.name.as_str());
        let row = caller.audit_row("prompt.get", id, name, &arguments, CallStatus::Failed);
        caller.permit(server, destination, row, false).await
    }

    /// A permit for a resource that a result of a tool linked to, if the toolset still has the tool.
    pub(in crate::app::tools) async fn linked(
        caller: CallContext<'a>,
        toolset: &'a Toolset,
        server: &ServerSpec,
        tool: &str,
        destination: Destination,
        uri: &str,
    ) -> Result<Self> {
        let Some((server, _)) = toolset.by_pair(server.id.as_str(), tool) else {
            return Err(Error::not_found(format!("tool {tool:?}")));
        };
        let id = server.id.as_str();
        let row = caller.audit_row("resource.read", id, tool, uri, CallStatus::Failed);
        caller.permit(server, destination, row, false).await
    }
}

impl Permit<'_> {
    /// Makes the result of a call and completes its audit line.
    pub(in crate::app::tools) fn into_result(
        self,
        call_id: &str,
        answer: Result<ToolOutcome, CallError>,
    ) -> ToolResult {
        let language = self.caller.principal.locale.as_deref();
        let texts = texts::in_language(language.unwrap_or("en"));
        let result = match answer {
            Ok(outcome) => {
                let status = if outcome.is_error {
                    CallStatus::Failed
                } else {
                    CallStatus::Succeeded
                };
                // Some readers of this text cannot handle a NUL.
                let mut text = outcome.text.replace('\0', "\u{fffd}");
                if outcome.is_error && text.trim().is_empty() {
                    text = texts.render(texts::Key::ToolErrorWithoutWords, &[]);
                }
                ToolResult {
                    // A result outside of a run is not stored, so the connection's limit is enough.
                    raw: Some(outcome.raw)
                        .filter(|raw| self.caller.run.is_none() || raw.get().len() <= MAX_RAW),
                    ..counted_result(call_id, status, text)
                }
            }
            Err(CallError::SessionLost { message, .. }) => {
                let text = texts.render(texts::Key::CallSessionLost, &[("reason", &message)]);
                counted_result(call_id, CallStatus::OutcomeUnknown, text)
            }
            Err(error) => without_answer(call_id, self.server, &error),
        };
        self.end(result.status);
        result
    }
}

/// The result of a call without an answer, for the model and the user.
fn without_answer(call_id: &str, server: &ServerSpec, error: &CallError) -> ToolResult {
    let unknown = "it may or may not have been done. Do not repeat it; check first";
    let (status, text) = match error {
        CallError::NotSent(reason) => (
            CallStatus::Failed,
            format!(
                "failed, nothing was sent: {}: {reason}",
                not_available(server.id.as_str(), None)
            ),
        ),
        CallError::ScopeRequired(_) => {
            let server = &server.id;
            let how = format!("the user can allow them with /connect {server}");
            let text =
                format!("failed, the call was not made: {error}; {how}, then it can be made again");
            (CallStatus::Failed, text)
        }
        CallError::Refused { .. } | CallError::Unauthorized | CallError::Forbidden => {
            (CallStatus::Failed, format!("failed: {error}"))
        }
        CallError::Cancelled { sent: false } => (CallStatus::Cancelled, error.to_string()),
        CallError::TimedOut(_)
        | CallError::OutcomeUnknown(_)
        | CallError::SessionLost { .. }
        | CallError::Cancelled { .. } => (
            CallStatus::OutcomeUnknown,
            format!("outcome unknown: {error}; {unknown}"),
        ),
    };
    counted_result(call_id, status, text)
}

/// A result in the program's own words, counted in the metrics.
pub(in crate::app::tools) fn counted_result(
    call_id: &str,
    status: CallStatus,
    text: String,
) -> ToolResult {
    metrics::counter!("chatelaine_tool_calls_total", "outcome" => status.into_str()).increment(1);
    ToolResult::new(call_id, status, text)
}
