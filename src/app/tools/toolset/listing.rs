//! The tools of a principal, for people: the tools that they may call and, for the people who run the agent, the tools
//! that they may not call and why.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use super::{MissingToolList, NamedTool, Toolset, select, truncate_text};
use crate::app::{
    App,
    servers::{
        agents,
        connections::{ConnectionKind, State},
        credentials,
    },
};
use domain::{
    error::{Error, Result},
    ids::UserId,
    policy::{Denial, Offer, offer},
    principal::{Admin, Principal},
    server::ServerSpec,
};

/// The tools of one server, for people.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ServerTools {
    pub server: String,
    pub kind: ConnectionKind,
    #[serde(flatten)]
    pub state: State,
    pub tools: Vec<ToolView>,
    /// Tools that discovery left out, and why; only for the people who run the agent.
    pub dropped: Vec<String>,
    /// Tools that the pack's allowlist names and the server does not have; only for the people who run the agent.
    pub missing: Vec<String>,
    /// Names in the pack's rules for this server, and in its skills, that fit none of its tools, each as a sentence;
    /// only for the people who run the agent.
    pub unmatched: Vec<String>,
    /// Only with `explain`: tools the principal may not use, and what to change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied: Option<Vec<DeniedTool>>,
    /// Only with `explain`: why the server has no list of tools, if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unlisted: Option<MissingToolList>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ToolView {
    /// The server's own name of the tool.
    pub tool: String,
    /// The name in the model's request.
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What a call means, in the words of the pack. Each `{name}` stands for the argument of that name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    pub description: String,
    #[schema(value_type = Object)]
    pub input_schema: Box<RawValue>,
    /// The server's own hints; nobody has checked them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub annotations: Option<Box<RawValue>>,
    /// Calls, or some of them, wait for one of these roles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs_approval_by: Option<Vec<String>>,
    /// Calls, or some of them, wait until their user confirms them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub needs_confirmation: bool,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct DeniedTool {
    pub tool: String,
    pub reason: Denial,
    /// What to change, for the author of the pack.
    pub remedy: &'static str,
}

/// The principal's tools, grouped by server. Servers without a tool for the principal are left out unless
/// they are down or not configured.
pub async fn list(app: &Arc<App>, principal: &Principal, agent: &str) -> Result<Vec<ServerTools>> {
    let pack = agents::pack(app, principal, agent).await?;
    let toolset = select(app, principal, &pack).await?;
    let mut servers = group_by_server(app, principal, &toolset, false).await?;
    servers.retain(|server| {
        !server.tools.is_empty()
            || !matches!(
                server.state,
                State::Ready { .. } | State::Configured | State::Saved
            )
    });
    Ok(servers)
}

/// The tools of another user, by their newest claims, as [`explain`] shows them.
pub async fn explain_for(
    app: &Arc<App>,
    admin: &Admin,
    user: &str,
    agent: &str,
) -> Result<Vec<ServerTools>> {
    let unknown = || {
        let shown = truncate_text(user, 80);
        Error::not_found(format!("user {shown:?}, or any claims of theirs,"))
    };
    if user.contains('\0') {
        return Err(unknown());
    }
    let mut tx = app.db.tenant(admin.tenant()).await?;
    let found = store::users::list_principals(&mut tx, &[UserId(user.into())]).await?;
    drop(tx);
    let principal = found.into_iter().next().ok_or_else(unknown)?;
    explain(app, &principal, agent, true).await
}

/// Like [`list`], for the people who run the agent: with every server, and with every tool that `principal` may not
/// use and the reason. Only for a principal whom the pack names in `adminUsers`, or with the right to administrate.
pub async fn explain(
    app: &Arc<App>,
    principal: &Principal,
    agent: &str,
    operator: bool,
) -> Result<Vec<ServerTools>> {
    let pack = agents::pack(app, principal, agent).await?;
    let toolset = select(app, principal, &pack).await?;
    if !operator && !toolset.access.admin {
        return Err(Error::Forbidden(
            "`explain` is for the pack's adminUsers and for keys with the `admin` scope".to_owned(),
        ));
    }
    let mut servers = group_by_server(app, principal, &toolset, true).await?;
    for (at, (server, spec)) in servers.iter_mut().zip(&toolset.all.specs).enumerate() {
        let unusable = match &server.state {
            _ if toolset.usable[at] => None,
            State::NeedsAttention { .. } => Some(Denial::CredentialNeedsAttention),
            _ => Some(Denial::NoCredential),
        };
        let all = toolset.all.tools.iter().enumerate();
        let all = all.filter(|(_, tool)| toolset.all.spec(tool).id == spec.id);
        let denied = all.filter_map(|(at, tool)| {
            let reason = match offer(spec, &toolset.access, &tool.tool.name) {
                Offer::Deny(reason) => Some(reason),
                _ if toolset.all.closed.contains(&at) => Some(Denial::ApprovalNameMisspelt),
                _ => unusable,
            };
            reason.map(|reason| DeniedTool {
                tool: tool.tool.name.clone(),
                reason,
                remedy: reason.remedy(),
            })
        });
        server.denied = Some(denied.collect());
        let known = toolset.all.catalogs[at].as_ref();
        if known.is_none_or(|catalog| catalog.tools.is_empty()) {
            server.unlisted = Some(MissingToolList::from_state(&server.state, known.is_some()));
        }
    }
    Ok(servers)
}

/// The tools by server, in the pack's order. Only an operator sees why a server is down and which tools were left out.
async fn group_by_server(
    app: &App,
    principal: &Principal,
    toolset: &Toolset,
    operator: bool,
) -> Result<Vec<ServerTools>> {
    let pack = &toolset.all.pack;
    let view = |spec: &ServerSpec, named: &NamedTool| {
        let offer = offer(spec, &toolset.access, &named.tool.name);
        ToolView {
            tool: named.tool.name.clone(),
            name: named.name.clone(),
            title: named.tool.title.clone(),
            summary: pack
                .summary(
                    spec.id.as_str(),
                    &named.tool.name,
                    principal.locale.as_deref(),
                )
                .map(str::to_owned),
            description: named.tool.description.clone(),
            input_schema: named.tool.input_schema.clone(),
            annotations: named.tool.annotations.clone(),
            needs_approval_by: offer.approvers(),
            needs_confirmation: offer.needs_confirmation(),
        }
    };
    let views = credentials::views(app, principal, pack).await?;
    let servers = pack.servers.iter().zip(views);
    let servers = servers.map(|(server, mut connection)| {
        let of_server = toolset.iter().filter(|(spec, _)| spec.id == server.id);
        let tools: Vec<_> = of_server.map(|(spec, tool)| view(spec, tool)).collect();
        if !operator {
            connection.redact_for_user(tools.len());
        }
        ServerTools {
            server: connection.server,
            kind: connection.kind,
            state: connection.state,
            tools,
            dropped: connection.dropped,
            missing: connection.missing,
            unmatched: connection.unmatched,
            denied: None,
            unlisted: None,
        }
    });
    Ok(servers.collect())
}
