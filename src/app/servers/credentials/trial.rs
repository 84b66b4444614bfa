//! Connections that are made to see whether something works, and what came of it.

use std::sync::Arc;

use serde::Serialize;

use crate::{
    app::App,
    domain::{connection::ConnectionTestError, server::ServerSpec},
    mcp::{Discovery, Key, McpError, McpErrorKind},
};

/// How a test went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TestOutcome {
    pub ok: bool,
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

    pub(super) fn failed(reason: ConnectionTestError) -> Self {
        Self {
            ok: false,
            reason: Some(reason),
            message: reason.sentence(),
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

    pub(in crate::app::servers) async fn run(
        &self,
        spec: &Arc<ServerSpec>,
        list: bool,
    ) -> Result<Option<Discovery>, McpError> {
        if list {
            return self.app.mcp.discover(&self.key, spec).await.map(Some);
        }
        self.app.mcp.connect(&self.key, spec).await.map(|_| None)
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
