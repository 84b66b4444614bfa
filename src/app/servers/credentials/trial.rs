//! Temporary connections that test a credential before it is stored, and whether such a test proves anything.
//!
//! Some servers answer the test of a false credential like that of a right one. Each server is therefore tested once
//! with a false credential. It looks like the user's and belongs to no account ([`Values::falsify`]), so no account
//! is locked. The result is remembered for all replicas.
//!
//! Invariant: while it is not known whether a server refuses a false credential, no test of a credential there counts
//! as a success.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::app::{App, servers::pins};
use domain::{
    connection::ConnectionTestError,
    credential::CredentialRef,
    error::Result,
    ids::{AgentId, CredentialId, ServerId},
    personal::{self, Values},
    principal::Principal,
    server::{Endpoint, ServerSpec},
};
use mcp::{CallError, Discovery, Key, McpError, McpErrorKind};
use store::credential_judges::ResultLives;

/// The outcome of a test of a credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = Tested)]
pub struct TestOutcome {
    /// The server has accepted the credential in a request in which it refuses a false one.
    pub ok: bool,
    /// Why the credential does not work. When this is absent and `ok` is false, the test proves nothing, and the first
    /// call will show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<ConnectionTestError>,
    /// For people.
    pub message: &'static str,
}

impl TestOutcome {
    pub(super) fn ok() -> Self {
        Self {
            ok: true,
            reason: None,
            message: "connected",
        }
    }

    /// The test proves nothing.
    pub(super) fn unproven(keeps_old: bool) -> Self {
        Self {
            ok: false,
            reason: None,
            message: if keeps_old {
                "saved; its first call will show whether the server accepts it, and what was entered before is kept until then"
            } else {
                "saved; its first call will show whether the server accepts it"
            },
        }
    }

    pub(super) fn failed(reason: ConnectionTestError) -> Self {
        Self {
            ok: false,
            reason: Some(reason),
            message: reason.sentence(),
        }
    }
}

/// Why a test did not succeed.
pub(super) enum TrialError {
    Server(McpError),
    /// The call of the tool that tests the credential failed, or its outcome is unknown.
    Call(CallError),
    /// The tool that tests the credential answered with an error.
    Tool,
}

impl TrialError {
    /// Whether the server definitely refuses the credential.
    pub(super) fn is_credential_refused(&self) -> bool {
        match self {
            Self::Server(error) => error.is_credential_refused(),
            Self::Call(error) => {
                matches!(error, CallError::Unauthorized | CallError::Forbidden)
            }
            Self::Tool => false,
        }
    }

    /// Whether the failure is about the credential, and not about the server or the network.
    pub(super) fn is_about_credential(&self) -> bool {
        match self {
            Self::Server(error) => matches!(
                error.kind,
                McpErrorKind::Unauthorized
                    | McpErrorKind::Forbidden
                    | McpErrorKind::ScopeRequired
                    | McpErrorKind::SignInRequired
            ),
            Self::Call(error) => matches!(
                error,
                CallError::Unauthorized | CallError::Forbidden | CallError::ScopeRequired(_)
            ),
            Self::Tool => true,
        }
    }

    /// Whether the server or the network failed, so that nothing is known about the credential.
    pub(super) fn is_outage(&self) -> bool {
        match self {
            Self::Server(error) => !matches!(
                error.kind,
                McpErrorKind::Protocol | McpErrorKind::Redirected | McpErrorKind::WebPage
            ),
            Self::Call(_) => true,
            Self::Tool => false,
        }
    }

    pub(super) fn reason(&self) -> ConnectionTestError {
        match self {
            Self::Server(error) => ConnectionTestError::from(error),
            Self::Call(CallError::TimedOut(_)) => ConnectionTestError::Timeout,
            Self::Tool
            | Self::Call(
                CallError::Unauthorized | CallError::Forbidden | CallError::ScopeRequired(_),
            ) => ConnectionTestError::Unauthorized,
            Self::Call(_) => ConnectionTestError::Unreachable,
        }
    }
}

/// A connection that tests a credential before it has a row. The connection has the key of the new generation, so once the
/// credential is stored, the next call uses it. Until then the poll that closes outdated connections leaves it alone while
/// this value lives.
pub(in crate::app::servers) struct ConnectionTrial<'a> {
    app: &'a App,
    pub(super) credential: CredentialRef,
    key: Key,
}

impl<'a> ConnectionTrial<'a> {
    pub(in crate::app::servers) fn begin(app: &'a App, credential: CredentialRef) -> Self {
        app.credentials.trials().insert(credential.clone());
        let key = Key::Personal(credential.clone());
        Self {
            app,
            credential,
            key,
        }
    }

    /// Begins with a credential that nobody has.
    pub(in crate::app::servers) fn begin_without(
        app: &'a App,
        principal: &Principal,
        agent: &AgentId,
        server: &ServerId,
    ) -> Self {
        let credential = CredentialRef {
            tenant: principal.tenant,
            user: principal.user.clone(),
            agent: agent.clone(),
            server: server.clone(),
            id: CredentialId::new(),
            generation: 0,
        };
        Self::begin(app, credential)
    }

    /// Connects and lists the tools.
    pub(in crate::app::servers) async fn list(
        &self,
        spec: &Arc<ServerSpec>,
    ) -> Result<Discovery, McpError> {
        self.app.mcp.discover(&self.key, spec).await
    }

    /// Lists the tools and calls the one that the pack names as the test. A server that does not have that tool is
    /// tested by the list alone.
    pub(super) async fn run(&self, spec: &Arc<ServerSpec>) -> Result<Discovery, TrialError> {
        let discovery = self.list(spec).await.map_err(TrialError::Server)?;
        let Some(test) = &spec.credential_test else {
            return Ok(discovery);
        };
        if spec.load_tools && !discovery.tools.iter().any(|tool| tool.name == test.tool) {
            tracing::warn!(server = %spec.id, tool = test.tool, "the server does not have the tool that tests its credentials");
            return Ok(discovery);
        }
        if self.is_held(spec, &discovery, &test.tool).await {
            tracing::warn!(server = %spec.id, tool = test.tool, "the tool that tests the credentials has changed, and nobody has accepted it");
            return Ok(discovery);
        }
        match self.app.mcp.try_tool(&self.key, spec, test).await {
            Ok(true) => Ok(discovery),
            Ok(false) => Err(TrialError::Tool),
            Err(error) => Err(TrialError::Call(error)),
        }
    }

    /// Whether the tool has changed since somebody accepted it, so that nobody may call it. It counts as changed while
    /// nobody can tell.
    async fn is_held(&self, spec: &ServerSpec, discovery: &Discovery, tool: &str) -> bool {
        let CredentialRef { tenant, agent, .. } = &self.credential;
        let Ok(pins) = pins::of_agent(self.app, *tenant, agent).await else {
            return true;
        };
        let mut tools = discovery.tools.iter();
        let tool = tools.find(|listed| listed.name == tool);
        tool.is_some_and(|tool| {
            pins.has_accepted(&spec.id, &tool.name) && pins.find_hold(spec, tool).is_some()
        })
    }

    pub(in crate::app::servers) async fn give_up(&self) {
        self.app.mcp.close(&self.key).await;
    }
}

impl Drop for ConnectionTrial<'_> {
    fn drop(&mut self) {
        self.app.credentials.trials().remove(&self.credential);
    }
}

/// How long a result is used. A server that accepts everybody may be mended, and one that was unreachable is tested
/// again soon.
const LIVES: ResultLives = ResultLives {
    judges: Duration::from_secs(7 * 86_400),
    is_blind: Duration::from_secs(86_400),
    unknown: Duration::from_secs(600),
};

/// Whether the test that `values` passed would have failed with a false credential.
pub(super) async fn is_test_conclusive(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    spec: &Arc<ServerSpec>,
    values: &Values,
) -> Result<bool> {
    let is_child = matches!(spec.endpoint, Endpoint::Stdio { .. });
    if is_child && spec.credential_test.is_none() {
        return Ok(false);
    }
    let Some(falsified) = values.falsify(&spec.user_config) else {
        return Ok(false);
    };
    let (tenant, asked) = (principal.tenant, digest_of(spec));
    // Two users who connect at once cause one test.
    let place = (tenant, agent.clone(), spec.id.clone());
    let lock = app
        .credentials
        .test_locks
        .get_with(place, async { Arc::default() });
    let lock = lock.await;
    let _guard = lock.lock().await;
    let mut tx = app.db.tenant(tenant).await?;
    let known = store::credential_judges::get(&mut tx, agent, &spec.id, &asked, LIVES).await?;
    if let Some(known) = known {
        return Ok(known);
    }
    if !store::credential_judges::claim(&mut tx, agent, &spec.id, &asked, LIVES).await? {
        return Ok(false);
    }
    tx.commit().await?;
    let Ok(effective) = personal::effective(spec, &falsified) else {
        return Ok(false);
    };
    let trial = ConnectionTrial::begin_without(app, principal, agent, &spec.id);
    let tried = trial.run(&Arc::new(effective)).await;
    trial.give_up().await;
    let is_conclusive = match tried {
        Err(error) if error.is_about_credential() => true,
        // The test showed nothing. The claim keeps other replicas from testing again at once.
        Err(error) if error.is_outage() => return Ok(false),
        // Another failure may have any cause, and a success shows that the server accepts a false credential.
        Ok(_) | Err(_) => false,
    };
    if !is_conclusive {
        tracing::warn!(server = %spec.id, %agent, "a test of a credential at this server proves nothing; the first call of a user shows whether theirs is good");
    }
    let mut tx = app.db.tenant(tenant).await?;
    store::credential_judges::put(&mut tx, agent, &spec.id, &asked, is_conclusive).await?;
    tx.commit().await?;
    Ok(is_conclusive)
}

/// The digest of a test: its address and its tool. Another address or another tool needs a result of its own.
fn digest_of(spec: &ServerSpec) -> Vec<u8> {
    let mut digest = Sha256::new();
    let mut part = |part: &str| {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    };
    match &spec.endpoint {
        Endpoint::Remote { url, .. } => part(&url[..url::Position::AfterPath]),
        Endpoint::Stdio { command, .. } => part(command),
    }
    if let Some(test) = &spec.credential_test {
        part(&test.tool);
        part(&serde_json::Value::Object(test.arguments.clone()).to_string());
    }
    digest.finalize().to_vec()
}
