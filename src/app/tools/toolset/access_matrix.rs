//! The access matrix of an agent: which role may use which tool, and why not, for the tenant's admins.

use std::sync::Arc;

use serde::Serialize;

use super::{AgentTools, MissingToolList, load_agent_tools};
use crate::app::{
    App,
    servers::{
        agents,
        credentials::{self, views},
    },
};
use domain::{
    error::Result,
    pack::Pack,
    policy::{Denial, EffectiveAccess, Offer, offer},
    principal::{GUEST, Principal, roles_named_by},
    server::ServerSpec,
};

/// The rights of each role on each tool.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AccessMatrix {
    /// The columns: what a user may hold.
    pub holders: Vec<AccessHolder>,
    pub servers: Vec<ServerAccessRows>,
    /// The claim that the pack's `rolesAttribute` names, if none of the last 1000 users with a token had it. Then
    /// nobody has the roles of the pack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unseen_claim: Option<String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AccessHolder {
    /// A user without a role that the agent names.
    NoRole,
    Role {
        role: String,
    },
    /// One of the pack's `adminUsers`.
    Admin,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ServerAccessRows {
    pub server: String,
    pub tools: Vec<ToolAccessRow>,
    /// Why the server has no list of tools, if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unlisted: Option<MissingToolList>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ToolAccessRow {
    pub tool: String,
    /// In the order of the holders.
    pub cells: Vec<AccessCell>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(tag = "decision", rename_all = "snake_case")]
pub enum AccessCell {
    Allow,
    /// Calls, or some of them, wait for one of these roles.
    Approve {
        approvers: Vec<String>,
    },
    /// Calls, or some of them, wait until their user confirms them.
    Confirm,
    Deny {
        reason: Denial,
        /// What to change, for the author of the pack.
        remedy: &'static str,
    },
}

/// The matrix of an agent. The tools of personal servers are those that `principal` sees.
pub async fn access_matrix(
    app: &Arc<App>,
    principal: &Principal,
    agent: &str,
) -> Result<AccessMatrix> {
    let pack = agents::pack(app, principal, agent).await?;
    let seen = credentials::server_access(app, principal, &pack).await?;
    let tools = load_agent_tools(app, principal, &pack, seen).await?;
    let holders = list_holders(&pack);
    let takes_guests = !pack.flows.authentication.required;
    let accesses = holders.iter().map(|holder| holder.access(takes_guests));
    let accesses: Vec<_> = accesses.collect();
    let connections = views(app, principal, &pack).await?;
    let servers = tools.specs.iter().zip(connections).enumerate();
    let servers = servers.map(|(at, (server, connection))| {
        let known = tools.catalogs[at].as_ref();
        let is_listed = known.is_some_and(|catalog| !catalog.tools.is_empty());
        ServerAccessRows {
            server: server.id.to_string(),
            tools: access_rows(&tools, server, &accesses),
            unlisted: (!is_listed)
                .then(|| MissingToolList::from_state(&connection.state, known.is_some())),
        }
    });
    let servers = servers.collect();
    Ok(AccessMatrix {
        holders,
        servers,
        unseen_claim: find_unseen_claim(app, principal, &pack).await?,
    })
}

async fn find_unseen_claim(
    app: &App,
    principal: &Principal,
    pack: &Pack,
) -> Result<Option<String>> {
    let Some(claim) = &pack.flows.authentication.roles_attribute else {
        return Ok(None);
    };
    let mut tx = app.db.tenant(principal.tenant).await?;
    let seen = store::users::has_been_claimed(&mut tx, claim).await?;
    Ok((seen == Some(false)).then(|| claim.clone()))
}

fn list_holders(pack: &Pack) -> Vec<AccessHolder> {
    let roles = roles_named_by(pack).into_iter();
    let roles = roles.map(|role| AccessHolder::Role {
        role: role.to_owned(),
    });
    let ends = (AccessHolder::NoRole, AccessHolder::Admin);
    std::iter::once(ends.0)
        .chain(roles)
        .chain([ends.1])
        .collect()
}

impl AccessHolder {
    fn access(&self, takes_guests: bool) -> EffectiveAccess {
        let roles = match self {
            Self::Role { role } => [role.clone()].into(),
            Self::NoRole | Self::Admin => [].into(),
        };
        EffectiveAccess {
            roles,
            admin: matches!(self, Self::Admin),
            is_guest: takes_guests && matches!(self, Self::Role { role } if role == GUEST),
        }
    }
}

fn access_rows(
    tools: &AgentTools,
    server: &ServerSpec,
    who: &[EffectiveAccess],
) -> Vec<ToolAccessRow> {
    let all = tools.tools.iter().enumerate();
    let of_server = all.filter(|(_, tool)| tools.spec(tool).id == server.id);
    let row = |(at, tool): (usize, &super::NamedTool)| ToolAccessRow {
        tool: tool.tool.name.clone(),
        cells: who
            .iter()
            .map(|who| match offer(server, who, &tool.tool.name) {
                Offer::Deny(reason) => AccessCell::deny(reason),
                _ if tools.closed.contains(&at) => AccessCell::deny(Denial::ApprovalNameMisspelt),
                Offer::Call => AccessCell::Allow,
                Offer::Approve { policy, .. } if policy.is_confirmation() => AccessCell::Confirm,
                Offer::Approve { policy, .. } => AccessCell::Approve {
                    approvers: policy.approvers.clone(),
                },
            })
            .collect(),
    };
    of_server.map(row).collect()
}

impl AccessCell {
    fn deny(reason: Denial) -> Self {
        Self::Deny {
            reason,
            remedy: reason.remedy(),
        }
    }
}
