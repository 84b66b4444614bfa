//! The one way to a server. A [`Permit`] is the right to send one server what one user asked for: the policy's own
//! decision or a claimed approval makes it, and nothing else. Its methods are the only callers of a server's tools,
//! prompts and resources, and all of them end in [`Permit::send`].
//!
//! Invariant: the audit line is there before anything is sent. That of a call of a run is written in the transaction that
//! made the call a row, that of an approved call in the one that makes it `executing`; of anything else it is queued
//! when the permit is made. A permit that is dropped, because its call was stopped, leaves the line as it was.

mod permits;
mod result;

use std::sync::Arc;

use serde_json::{Map, Value, value::RawValue};
use sha2::{Digest, Sha256};

pub(super) use self::result::counted_result;
use crate::{
    app::{
        App,
        platform::audit::Line,
        servers::{
            connections,
            credentials::{self, ResolvedConnection},
            orchestrator::{self, RunCaller},
        },
        tools::approvals::recheck::credential_of,
    },
    domain::{
        error::{Error, ErrorCode, Result},
        ids::{AgentId, RunId},
        message::CallStatus,
        owner::ConnectionOwner,
        principal::Principal,
        prompt::PromptOutcome,
        resource::Resource,
        server::{AccessMode, ServerSpec},
        tool::ToolOutcome,
    },
    mcp::{CallError, CallOptions, CallRequest},
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
    /// Identifies the credential that goes along: another credential or generation gives another text.
    pub(super) fn credential(&self) -> String {
        match self {
            Self::BuiltIn(caller) => ConnectionOwner::Run(caller.run).to_string(),
            Self::Server(connection) => credential_of(&connection.key),
        }
    }
}

impl CallContext<'_> {
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
}

impl<'a> Permit<'a> {
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
                let answer = self
                    .send(
                        app.mcp
                            .call(key, spec, CallRequest { tool, arguments }, options),
                    )
                    .await;
                self.prove_credential(&answer).await;
                answer
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
            credentials::request_scopes(app, principal, &connection.key, &scope).await
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

    /// A result that is no error shows that a personal server accepts the user's credential.
    async fn prove_credential(&self, answer: &Result<ToolOutcome, CallError>) {
        let is_result = |outcome: &ToolOutcome| !outcome.is_error && outcome.input.is_none();
        if !answer.as_ref().is_ok_and(is_result)
            || self.server.access_mode != AccessMode::UserControlled
        {
            return;
        }
        let Destination::Server(connection) = &self.destination else {
            return;
        };
        let CallContext { app, principal, .. } = self.caller;
        if let Err(error) = credentials::prove(app, principal, &connection.key).await {
            tracing::warn!(%error, server = %self.server.id, "a credential that works could not be put in force; the next call tries again");
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

    /// Identifies the credential that goes along: another credential or generation gives another text.
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
        let no_run = || Error::conflict(ErrorCode::Conflict, "the orchestrator answers runs only");
        let run = run.ok_or_else(no_run)?;
        let caller = orchestrator::caller(app, principal.tenant, run).await?;
        return Ok(Some(Destination::BuiltIn(caller)));
    }
    let connection = match spec.access_mode {
        AccessMode::AdminControlled => Some(ResolvedConnection {
            key: connections::connection_key(principal.tenant, agent, spec),
            spec: spec.clone(),
        }),
        AccessMode::UserControlled => {
            credentials::resolve_connection(app, principal, agent, spec).await?
        }
    };
    Ok(connection.map(Destination::Server))
}
