//! The state of an agent's servers, as its users and its admins see it.

use serde::Serialize;

use super::Connections;
use domain::{
    connection::DownCause,
    ids::{AgentId, ServerId, TenantId},
    pack::Pack,
    server::{AccessMode, ServerSpec},
};

/// The state of a server, as users see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
#[schema(as = ServerState)]
pub enum State {
    Connecting,
    /// Connected at least once and not known to be down. `protocol`: the revision, such as `2026-07-28`.
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
    /// Why a shared server of an agent is down, if it is.
    pub fn down_cause(&self, tenant: TenantId, agent: &AgentId, server: &str) -> Option<DownCause> {
        let server = ServerId::parse(server).ok()?;
        match &self.servers().get(&(tenant, agent.clone(), server))?.state {
            State::Down { cause, .. } => Some(*cause),
            _ => None,
        }
    }

    /// The state of a pack's server for a tenant.
    pub fn view(&self, tenant: TenantId, pack: &Pack, server: &ServerSpec) -> ConnectionView {
        let servers = self.servers();
        let known = servers.get(&(tenant, pack.id().clone(), server.id.clone()));
        // The discovery with the operator's headers says nothing about a user's own connection.
        let known = known.filter(|_| server.access_mode == AccessMode::AdminControlled);
        let (kind, unknown) = match server.access_mode {
            AccessMode::AdminControlled => (ConnectionKind::Shared, State::Connecting),
            AccessMode::UserControlled => (ConnectionKind::Personal, State::NotConfigured),
        };
        let catalog = known.and_then(|known| known.catalog.as_ref());
        ConnectionView {
            server: server.id.to_string(),
            kind,
            state: known.map_or(unknown, |known| known.state.clone()),
            tools: catalog.map_or(0, |catalog| catalog.tools.len()),
            dropped: catalog
                .map(|catalog| catalog.dropped.clone())
                .unwrap_or_default(),
            missing: catalog
                .map(|catalog| server.missing(&catalog.tools))
                .unwrap_or_default(),
            unmatched: catalog
                .map(|catalog| pack.unmatched_names(server, &catalog.tool_names()))
                .unwrap_or_default(),
        }
    }
}
