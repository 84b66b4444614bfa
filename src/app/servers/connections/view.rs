//! The state of an agent's servers, as its users and its admins see it.

use std::sync::Arc;

use serde::Serialize;

use super::{Connections, SharedServer, is_shared};
use domain::{
    connection::DownCause,
    ids::TenantId,
    owner::SharedKey,
    pack::Pack,
    server::{AccessMode, ServerSpec},
    tool::Catalog,
};

/// The state of a server, as users see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
#[schema(as = ServerState)]
pub enum State {
    Connecting,
    /// Connected at least once and not known to be down; while nobody uses it, the connection may be closed. `protocol`: the
    /// revision, such as `2026-07-28`.
    Ready {
        protocol: String,
    },
    /// Unreachable; the connection is tried again automatically. Known tools stay listed.
    Down {
        cause: DownCause,
        reason: String,
    },
    /// Personal, and the user has not entered a credential.
    NotConfigured,
    /// Personal, and the server has accepted the user's credential.
    Configured,
    /// Personal, and the first call will show whether the server accepts what the user entered.
    Saved,
    /// Personal, and what the user entered is no longer good. `reason`: `rejected` by the server, or
    /// `quarantined` because it cannot be opened.
    NeedsAttention {
        reason: String,
    },
}

/// Whose credential a server is reached with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionKind {
    Shared,
    Personal,
}

/// One server of an agent, for `GET …/connections`.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ConnectionView {
    pub server: String,
    /// `shared` or `personal`.
    pub kind: ConnectionKind,
    #[serde(flatten)]
    pub state: State,
    /// The number of tools that the caller may use; all tools for the people who run the agent.
    pub tools: usize,
    /// Tools that discovery left out, and why; only for the people who run the agent.
    pub dropped: Vec<String>,
    /// Tools that the pack's allowlist names and the server does not have; only for the people who run the agent.
    pub missing: Vec<String>,
    /// Names in the pack's rules for this server, and in its skills, that fit none of its tools, each as a sentence;
    /// only for the people who run the agent.
    pub unmatched: Vec<String>,
}

impl ConnectionView {
    /// Keeps what a user of the agent may see: how many tools they may use, and whether a shared server is
    /// down. The exact reason is replaced by a general sentence.
    pub fn redact_for_user(&mut self, usable: usize) {
        self.tools = usable;
        self.dropped.clear();
        self.missing.clear();
        self.unmatched.clear();
        if let (State::Down { cause, reason }, ConnectionKind::Shared) =
            (&mut self.state, self.kind)
        {
            cause.sentence().clone_into(reason);
        }
    }
}

impl Connections {
    /// Why a shared server is down, if it is.
    pub fn down_cause(&self, tenant: TenantId, spec: &ServerSpec) -> Option<DownCause> {
        match &self.servers().get(&SharedKey::new(tenant, spec))?.state {
            State::Down { cause, .. } => Some(*cause),
            _ => None,
        }
    }

    /// The state of a pack's server for a tenant, and its catalog. Of a personal server neither says anything: a user has a
    /// connection of their own.
    pub fn view(
        &self,
        tenant: TenantId,
        pack: &Pack,
        server: &ServerSpec,
    ) -> (ConnectionView, Option<Arc<Catalog>>) {
        let (state, catalog) = if is_shared(server) {
            let read = |known: &SharedServer| (known.state.clone(), known.catalog.clone());
            self.read(tenant, pack.id(), server, read)
        } else {
            (State::NotConfigured, None)
        };
        let view = ConnectionView {
            server: server.id.to_string(),
            kind: match server.access_mode {
                AccessMode::AdminControlled => ConnectionKind::Shared,
                AccessMode::UserControlled => ConnectionKind::Personal,
            },
            state,
            tools: catalog.as_ref().map_or(0, |catalog| catalog.tools.len()),
            dropped: catalog
                .as_ref()
                .map(|catalog| catalog.dropped.clone())
                .unwrap_or_default(),
            missing: catalog
                .as_ref()
                .map(|catalog| server.missing(&catalog.tools))
                .unwrap_or_default(),
            unmatched: catalog
                .as_ref()
                .map(|catalog| pack.unmatched_names(server, &catalog.tools))
                .unwrap_or_default(),
        };
        (view, catalog)
    }
}
