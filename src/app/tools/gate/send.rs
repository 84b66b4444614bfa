//! The one way to a server. A [`Permit`] is the right to send one server what one user asked for: the policy's own
//! decision or a claimed approval makes it, and nothing else. Its methods are the only callers of a server's tools,
//! prompts and resources, and all of them end in [`Permit::send`].
//!
//! Invariant: the audit line is there before anything is sent. That of a call of a run is written in the transaction that
//! made the call a row, that of an approved call in the one that makes it `executing`; of anything else it is queued
//! when the permit is made. A permit that is dropped, because its call was stopped, leaves the line as it was.

use std::sync::Arc;

use serde_json::{Map, Value, value::RawValue};
use sha2::{Digest, Sha256};

use crate::{
    app::{
        App,
        platform::audit::Line,
        servers::{
            connections,
            credentials::{self, ResolvedConnection},
            orchestrator::{self, RunCaller},
        },
        tools::{
            approvals::{
                execution::{self, Claimed},
                recheck::credential_of,
            },
            toolset::{Toolbox, not_available},
        },
    },
    domain::{
        error::{Error, Result},
        ids::{AgentId, RunId},
        message::{CallStatus, ToolResult},
        owner::ConnectionOwner,
        policy::Allowed,
        principal::Principal,
        prompt::{PromptOutcome, ServerPrompt},
        resource::Resource,
        server::{AccessMode, ServerSpec},
        tool::ToolOutcome,
    },
    mcp::{CallError, CallOptions},
    store::audit::AuditRow,
};

/// Bytes of a server's own result that are kept; the model's text of a longer one says that it was cut.
const MAX_RAW: usize = 1 << 20;

/// The user of an agent, and the run, that a call is for.
#[derive(Clone, Copy)]
pub(super) struct CallContext<'a> {
    pub app: &'a Arc<App>,
    pub principal: &'a Principal,
    pub agent: &'a AgentId,
    pub run: Option<RunId>,
    /// The line of the call in the audit trail is written, and whoever keeps its result writes its outcome.
    pub is_recorded: bool,
}

pub(super) struct Permit<'a> {
    caller: CallContext<'a>,
    /// As the pack has it.
    server: &'a ServerSpec,
    destination: Destination,
    /// Of a call that has no row of its own.
    line: Option<Line<'a>>,
}

/// Where a request goes.
pub(super) enum Destination {
    /// The orchestrator, which is called in process.
    BuiltIn(RunCaller),
    Server(ResolvedConnection),
}

impl Destination {
    /// Which credential goes along, in words that change when it does.
    pub(super) fn credential(&self) -> String {
        match self {
            Self::BuiltIn(caller) => ConnectionOwner::Run(caller.run).to_string(),
            Self::Server(connection) => credential_of(&connection.key),
        }
    }
}

impl<'a> CallContext<'a> {
    /// An audit line about what this caller asked for. `asked_for` is written as its hash.
    pub(super) fn audit_row(
        &self,
        action: &'static str,
        (server, tool): (&str, &str),
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
            outcome: status.as_str(),
            ..AuditRow::new(principal.tenant, app.clock.now(), actor, action)
        }
    }

    async fn permit(
        self,
        server: &'a ServerSpec,
        destination: Destination,
        row: AuditRow,
    ) -> Result<Permit<'a>> {
        let line = if self.is_recorded {
            None
        } else {
            let mut line = self.app.audit.open(row)?;
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
    /// For a call that the policy allows without anybody's consent.
    pub(super) async fn allowed(
        caller: CallContext<'a>,
        allowed: &Allowed<'a>,
        destination: Destination,
        arguments: &RawValue,
        detail: Option<String>,
    ) -> Result<Self> {
        let what = (allowed.server().id.as_str(), allowed.tool());
        let unknown = CallStatus::OutcomeUnknown;
        let row = caller.audit_row("tool.call", what, arguments.get(), unknown);
        let row = AuditRow { detail, ..row };
        caller.permit(allowed.server(), destination, row).await
    }

    /// For an approved call that this process has claimed. The request is being executed from here on, which is
    /// committed before anything is sent. The inner error says why the request was taken back; `Conflict` when the claim
    /// was lost.
    pub(super) async fn approved(
        caller: CallContext<'a>,
        claimed: &'a Claimed,
        server: &'a ServerSpec,
        destination: Destination,
    ) -> Result<Result<Self, &'static str>> {
        let what = (claimed.server.as_str(), claimed.tool.as_str());
        let row = AuditRow {
            id: claimed.audit_id(),
            args_sha256: claimed.args_sha256.to_vec(),
            detail: Some(format!("approval {}", claimed.code)),
            ..caller.audit_row("tool.call", what, "", CallStatus::OutcomeUnknown)
        };
        let withdrawn = execution::start(caller.app, claimed, &row).await?;
        Ok(match withdrawn {
            None => Ok(Permit {
                caller,
                server,
                destination,
                line: None,
            }),
            Some(reason) => Err(reason),
        })
    }

    /// For a prompt that the toolbox offers, which it decides by the policy for the server's tools.
    pub(super) async fn offered(
        caller: CallContext<'a>,
        toolbox: &'a Toolbox,
        (server, prompt): (&'a ServerSpec, &ServerPrompt),
        destination: Destination,
        arguments: &Map<String, Value>,
    ) -> Result<Self> {
        let is_it = |offered: &(&Arc<ServerSpec>, &Arc<ServerPrompt>)| {
            offered.0.id == server.id && offered.1.name == prompt.name
        };
        if toolbox.prompts().find(is_it).is_none() {
            return Err(Error::not_found(format!("prompt {:?}", prompt.name)));
        }
        let arguments = Value::from(arguments.clone()).to_string();
        let what = (server.id.as_str(), prompt.name.as_str());
        let row = caller.audit_row("prompt.get", what, &arguments, CallStatus::Failed);
        caller.permit(server, destination, row).await
    }

    /// For a resource that a result of a tool linked to, if the toolbox still has the tool.
    pub(super) async fn linked(
        caller: CallContext<'a>,
        toolbox: &'a Toolbox,
        (server, tool): (&ServerSpec, &str),
        destination: Destination,
        uri: &str,
    ) -> Result<Self> {
        let Some((server, _)) = toolbox.by_pair(server.id.as_str(), tool) else {
            return Err(Error::not_found(format!("tool {tool:?}")));
        };
        let what = (server.id.as_str(), tool);
        let row = caller.audit_row("resource.read", what, uri, CallStatus::Failed);
        caller.permit(server, destination, row).await
    }

    /// Calls a tool once. Made again only to answer what the server asked instead of giving a result.
    pub(super) async fn call(
        &self,
        tool: &str,
        arguments: &RawValue,
        options: CallOptions,
    ) -> Result<ToolOutcome, CallError> {
        let app = self.caller.app;
        match &self.destination {
            Destination::BuiltIn(caller) => {
                let cancel = &options.cancel;
                self.send(orchestrator::call(app, caller, tool, arguments, cancel))
                    .await
            }
            Destination::Server(ResolvedConnection { key, spec }) => {
                let options = CallOptions {
                    user: Some(self.caller.principal.user.clone()),
                    ..options
                };
                self.send(app.mcp.call(key, spec, tool, arguments, options))
                    .await
            }
        }
    }

    pub(super) async fn prompt(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<PromptOutcome, CallError> {
        let ResolvedConnection { key, spec } = self.connection()?;
        let mcp = &self.caller.app.mcp;
        self.send(mcp.prompt(key, spec, name, arguments)).await
    }

    pub(super) async fn complete(
        &self,
        prompt: &str,
        argument: (&str, &str),
    ) -> Result<Box<RawValue>, CallError> {
        let ResolvedConnection { key, spec } = self.connection()?;
        let mcp = &self.caller.app.mcp;
        self.send(mcp.complete(key, spec, prompt, argument)).await
    }

    pub(super) async fn resource(&self, uri: &str) -> Result<Resource, CallError> {
        let ResolvedConnection { key, spec } = self.connection()?;
        self.send(self.caller.app.mcp.resource(key, spec, uri))
            .await
    }

    fn connection(&self) -> Result<&ResolvedConnection, CallError> {
        match &self.destination {
            Destination::Server(connection) => Ok(connection),
            Destination::BuiltIn(_) => Err(CallError::NotSent(
                "the orchestrator has neither prompts nor resources".to_owned(),
            )),
        }
    }

    /// A server that wants more scopes: the user is asked for them at the next sign-in, or is refused for good when they
    /// were given already.
    async fn after_scopes<T>(&self, answer: Result<T, CallError>) -> Result<T, CallError> {
        let (Err(CallError::ScopeRequired(scope)), Destination::Server(connection)) =
            (&answer, &self.destination)
        else {
            return answer;
        };
        let (CallContext { app, principal, .. }, scope) = (self.caller, scope.clone());
        let asked = if self.server.access_mode == AccessMode::UserControlled {
            credentials::want_scopes(app, principal, &connection.key, &scope).await
        } else {
            Ok(false)
        };
        match asked {
            Ok(true) => answer,
            Ok(false) => Err(CallError::Refused {
                code: None,
                message: format!("the server refuses this for lack of permissions ({scope:?})"),
                retry_after: None,
            }),
            Err(error) => {
                tracing::warn!(%error, server = %self.server.id, "the scopes that a server wants could not be kept");
                answer
            }
        }
    }

    /// Sends, and marks a credential that the server refused.
    async fn send<T>(
        &self,
        request: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let answer = self.after_scopes(request.await).await;
        if let Err(CallError::Unauthorized | CallError::Forbidden) = &answer
            && self.server.access_mode == AccessMode::UserControlled
            && let Destination::Server(connection) = &self.destination
        {
            let CallContext { app, principal, .. } = self.caller;
            let rejected = credentials::reject(app, principal, &connection.key).await;
            if let Err(error) = rejected {
                tracing::warn!(%error, server = %self.server.id, "a refused credential could not be marked; the next call tries again");
            }
        }
        answer
    }

    /// Which credential goes along, in words that change when it does.
    pub(super) fn credential(&self) -> String {
        self.destination.credential()
    }

    pub(super) fn server(&self) -> &'a ServerSpec {
        self.server
    }

    /// Writes the audit line of a call that has no row of its own.
    pub(super) fn end(self, status: CallStatus) {
        if let Some(line) = self.line {
            line.end(status.as_str());
        }
    }

    /// The result of a call that was tried, with its audit line.
    pub(super) fn into_result(
        self,
        call_id: &str,
        answer: Result<ToolOutcome, CallError>,
    ) -> ToolResult {
        let result = match answer {
            Ok(outcome) => {
                let status = if outcome.is_error {
                    CallStatus::Failed
                } else {
                    CallStatus::Succeeded
                };
                // Some readers of this text cannot handle a NUL.
                let text = outcome.text.replace('\0', "\u{fffd}");
                ToolResult {
                    // What is not stored may be of any size that the connection lets through.
                    raw: Some(outcome.raw)
                        .filter(|raw| self.caller.run.is_none() || raw.get().len() <= MAX_RAW),
                    ..counted_result(call_id, status, text)
                }
            }
            Err(error) => without_answer(call_id, self.server, &error),
        };
        self.end(result.status);
        result
    }
}

/// The result of a call that brought no answer, for the model and the user.
fn without_answer(call_id: &str, server: &ServerSpec, error: &CallError) -> ToolResult {
    let unknown = "it may or may not have been done. Do not repeat it; check first";
    let (status, text) = match error {
        CallError::NotSent(reason) => (
            CallStatus::Failed,
            format!(
                "failed, nothing was sent: {}: {reason}",
                not_available(server.id.as_str())
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
        CallError::TimedOut(_) | CallError::OutcomeUnknown(_) | CallError::Cancelled { .. } => (
            CallStatus::OutcomeUnknown,
            format!("outcome unknown: {error}; {unknown}"),
        ),
    };
    counted_result(call_id, status, text)
}

/// A result in our words, counted in the metrics.
pub(super) fn counted_result(call_id: &str, status: CallStatus, text: String) -> ToolResult {
    metrics::counter!("chatelaine_tool_calls_total", "outcome" => status.as_str()).increment(1);
    ToolResult {
        call_id: call_id.to_owned(),
        status,
        text,
        raw: None,
        approval: None,
        took_ms: None,
    }
}

/// Where a server is reached: a shared one as the pack has it, a personal one with the user's own credential. `None`
/// when the user has none.
pub(super) async fn resolve_connection(
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
        let no_run = || Error::Conflict("the orchestrator answers runs only".to_owned());
        let run = run.ok_or_else(no_run)?;
        let caller = orchestrator::caller(app, principal.tenant, run).await?;
        return Ok(Some(Destination::BuiltIn(caller)));
    }
    let connection = match spec.access_mode {
        AccessMode::AdminControlled => Some(ResolvedConnection {
            key: connections::key(principal.tenant, agent, spec),
            spec: spec.clone(),
        }),
        AccessMode::UserControlled => credentials::connection(app, principal, agent, spec).await?,
    };
    Ok(connection.map(Destination::Server))
}
