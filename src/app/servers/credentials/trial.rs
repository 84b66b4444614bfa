//! Connections that are made to see whether something works, and what came of it.

use std::sync::Arc;

use serde::Serialize;

use crate::{
    app::App,
    domain::{connection::ConnectionTestError, server::ServerSpec},
    mcp::{CallError, Discovery, Key, McpError, McpErrorKind},
};

/// How a test went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TestOutcome {
    /// The server has accepted it in a request in which it refuses a false one.
    pub ok: bool,
    /// Why it does not work. Absent without `ok`: the test shows nothing, and the first call will.
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

    /// Nothing could judge it.
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
    /// The tool that tests the credential could not be called, or nobody knows whether it was.
    Call(CallError),
    /// The tool that tests the credential says no.
    Tool,
}

impl TrialError {
    /// Whether the server definitely refuses the credential.
    pub(super) fn is_credential(&self) -> bool {
        match self {
            Self::Server(error) => error.is_credential(),
            Self::Call(error) => {
                matches!(error, CallError::Unauthorized | CallError::Forbidden)
            }
            Self::Tool => false,
        }
    }

    /// Whether this says something of the credential, and not of the server or the network.
    pub(super) fn is_judgement(&self) -> bool {
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

    /// Whether the server or the network was in trouble, so that nothing is known.
    pub(super) fn is_trouble(&self) -> bool {
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

impl From<&McpError> for ConnectionTestError {
    fn from(error: &McpError) -> Self {
        match error.kind {
            McpErrorKind::Unauthorized
            | McpErrorKind::Forbidden
            | McpErrorKind::ScopeRequired
            | McpErrorKind::SignInRequired => Self::Unauthorized,
            McpErrorKind::Unreachable | McpErrorKind::Closed | McpErrorKind::RateLimited => {
                Self::Unreachable
            }
            McpErrorKind::TimedOut => Self::Timeout,
            McpErrorKind::Misconfigured => Self::BadTemplate,
            McpErrorKind::Protocol | McpErrorKind::Redirected | McpErrorKind::WebPage => {
                Self::NotMcp
            }
        }
    }
}

/// A connection made to see whether something works. There is no row of its credential, and the poll for outdated
/// connections leaves it alone meanwhile.
pub(in crate::app::servers) struct ConnectionTrial<'a> {
    app: &'a App,
    pub(super) key: Key,
}

impl<'a> ConnectionTrial<'a> {
    pub(in crate::app::servers) fn begin(app: &'a App, key: Key) -> Self {
        app.credentials.trials().insert(key.clone());
        Self { app, key }
    }

    /// Connects and lists the tools.
    pub(in crate::app::servers) async fn list(
        &self,
        spec: &Arc<ServerSpec>,
    ) -> Result<Discovery, McpError> {
        self.app.mcp.discover(&self.key, spec).await
    }

    /// Lists the tools, and calls the one that its pack names as the test. A server that does not list that one is tested
    /// by the list alone.
    pub(super) async fn run(&self, spec: &Arc<ServerSpec>) -> Result<Discovery, TrialError> {
        let discovery = self.list(spec).await.map_err(TrialError::Server)?;
        let Some(test) = &spec.credential_test else {
            return Ok(discovery);
        };
        if spec.load_tools && !discovery.tools.iter().any(|tool| tool.name == test.tool) {
            tracing::warn!(server = %spec.id, tool = test.tool, "the server does not have the tool that tests its credentials");
            return Ok(discovery);
        }
        match self.app.mcp.try_tool(&self.key, spec, test).await {
            Ok(true) => Ok(discovery),
            Ok(false) => Err(TrialError::Tool),
            Err(error) => Err(TrialError::Call(error)),
        }
    }

    pub(in crate::app::servers) async fn give_up(&self) {
        self.app.mcp.close(&self.key).await;
    }
}

impl Drop for ConnectionTrial<'_> {
    fn drop(&mut self) {
        self.app.credentials.trials().remove(&self.key);
    }
}
