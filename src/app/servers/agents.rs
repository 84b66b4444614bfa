//! Which agents a principal may talk to: a pack that serves their tenant, and, for a guest, one that
//! does not require authentication.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use super::registry;
use crate::app::App;
use domain::{
    account::Tenant,
    error::{Error, Missing, Result},
    ids::{AgentId, UserId},
    pack::Pack,
    principal::{Admin, Audience, Principal, find_claim, is_left_out},
    texts::{self, Key},
};

/// An agent as a frontend lists it.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct AgentView {
    pub id: String,
    pub display_name: String,
    pub description: String,
    pub tags: Vec<String>,
    /// Languages of the agent's texts; the first is its default.
    pub languages: Vec<String>,
    /// Whether guests may not talk to it.
    pub requires_authentication: bool,
}

impl From<&Pack> for AgentView {
    fn from(pack: &Pack) -> Self {
        let default = &pack.metadata.default_language;
        let others = pack.languages.keys().filter(|tag| *tag != default).cloned();
        Self {
            id: pack.id().to_string(),
            display_name: pack.metadata.display_name.clone(),
            description: pack.metadata.description.clone(),
            tags: pack.metadata.tags.clone(),
            languages: std::iter::once(default.clone()).chain(others).collect(),
            requires_authentication: pack.flows.authentication.required,
        }
    }
}

/// The agents that the principal may talk to, by id.
pub async fn list(app: &App, principal: &Principal) -> Result<Vec<AgentView>> {
    let tenant = app.accounts.tenant(principal.tenant).await?;
    let packs = app.packs.snapshot();
    let usable = packs
        .packs()
        .filter(|pack| tenant.serves(pack.id()) && admits(pack, principal));
    Ok(usable.map(|pack| view(app, pack, principal)).collect())
}

/// The roles of the caller at an agent.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct AgentRoles {
    pub agent: String,
    /// The roles that the agent's pack names and the caller has.
    pub roles: Vec<String>,
    /// Whether the caller is one of the pack's `adminUsers`.
    pub admin: bool,
    /// Why roles may be missing: their issuer has left the claim with the roles out of the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// Explains to an admin that an issuer leaves a claim out, and what to change there.
pub fn explain_left_out(claim: &str) -> String {
    format!(
        "the issuer left the claim `{claim}` out of the token, as Entra ID does for people in more than 200 groups; let it \
         send app roles (the claim `roles`), or only the groups that are assigned to the application"
    )
}

/// The roles of the principal at each agent that they may talk to, and the claims that these roles come from.
pub async fn roles(
    app: &App,
    principal: &Principal,
) -> Result<(Vec<AgentRoles>, Map<String, Value>)> {
    let (mut agents, mut claims) = (Vec::new(), Map::new());
    for agent in list(app, principal).await? {
        let pack = pack(app, principal, &agent.id).await?;
        let auth = &pack.flows.authentication;
        for name in auth.roles_attribute.iter().chain([&auth.user_id_attribute]) {
            if let Some(value) = find_claim(&principal.claims, name) {
                claims.insert(name.clone(), value.clone());
            }
        }
        let access = principal.access(&pack);
        agents.push(AgentRoles {
            agent: agent.id,
            roles: access.roles.into_iter().collect(),
            admin: access.admin,
            left_out: auth
                .roles_attribute
                .as_ref()
                .filter(|name| is_left_out(&principal.claims, name))
                .map(|name| explain_left_out(name)),
        });
    }
    Ok((agents, claims))
}

/// The roles of another user at each agent, from their newest claims; empty when no claims of theirs are stored.
pub async fn roles_of_user(app: &App, admin: &Admin, user: &str) -> Result<Vec<AgentRoles>> {
    let mut tx = app.db.tenant(admin.tenant()).await?;
    let found = store::users::list_principals(&mut tx, &[UserId(user.into())]).await?;
    drop(tx);
    match found.first() {
        Some(principal) => Ok(roles(app, principal).await?.0),
        None => Ok(Vec::new()),
    }
}

/// One agent that the principal may talk to.
pub async fn get(app: &App, principal: &Principal, agent: &str) -> Result<AgentView> {
    Ok(view(app, &*pack(app, principal, agent).await?, principal))
}

/// An agent as a user sees it. If rules stand in for its model, its description says so.
fn view(app: &App, pack: &Pack, principal: &Principal) -> AgentView {
    let mut view = AgentView::from(pack);
    if app.config.demo_model {
        let notice = texts::of(pack, principal).render(Key::DemoModel, &[]);
        view.description = format!("{}. {notice}", view.description.trim_end_matches('.'));
    }
    view
}

/// An agent as people see it before they sign in.
pub struct AgentSignIn {
    pub agent: AgentView,
    /// The issuers that vouch for users of the tenant.
    pub issuers: Vec<String>,
}

/// Where users of an agent sign in. `tenant` is the name of their tenant; without it, the only tenant that has the
/// agent.
pub async fn find_sign_in(app: &App, agent: &str, tenant: Option<&str>) -> Result<AgentSignIn> {
    let unknown = || Error::NotFound(Missing::Agent(agent.to_owned()));
    let id = AgentId::parse(agent).map_err(|_| unknown())?;
    let pack = app.packs.get(&id).ok_or_else(unknown)?;
    let mut tenants = app.accounts.tenants().await?;
    tenants.retain(|found| found.serves(&id) && tenant.is_none_or(|name| found.name == name));
    let issuers = match tenants.as_slice() {
        [] => return Err(unknown()),
        [tenant] => app.accounts.issuers_of(tenant.id).await?,
        // The tenant of the caller is unknown.
        _ => Vec::new(),
    };
    // An issuer that is trusted for other endpoints alone gives no token for this one.
    let issuers = issuers
        .into_iter()
        .filter(|issuer| Audience::narrowest([issuer.audience.as_str()]).includes(agent));
    Ok(AgentSignIn {
        agent: AgentView::from(&*pack),
        issuers: issuers.map(|issuer| issuer.issuer).collect(),
    })
}

/// The pack of an agent that the principal may talk to, as a snapshot that a run keeps. Its servers include those that
/// it takes from the tenant's registry.
pub async fn pack(app: &App, principal: &Principal, agent: &str) -> Result<Arc<Pack>> {
    let tenant = app.accounts.tenant(principal.tenant).await?;
    tenant.require_active()?;
    let pack = pack_of(app, &tenant, principal, agent)?;
    registry::pack_for(app, tenant.id, &pack).await
}

/// Like [`pack`], but as its author wrote it and without a query, so that it can be called inside a transaction.
pub(in crate::app) fn pack_of(
    app: &App,
    tenant: &Tenant,
    principal: &Principal,
    agent: &str,
) -> Result<Arc<Pack>> {
    let unknown = || Error::NotFound(Missing::Agent(agent.to_owned()));
    let id = AgentId::parse(agent).map_err(|_| unknown())?;
    let pack = app
        .packs
        .get(&id)
        .filter(|pack| tenant.serves(pack.id()))
        .ok_or_else(unknown)?;
    if admits(&pack, principal) {
        Ok(pack)
    } else {
        Err(Error::Forbidden(format!(
            "agent {agent:?} is for signed-in users only; sign in and try again"
        )))
    }
}

fn admits(pack: &Pack, principal: &Principal) -> bool {
    principal.authenticated || !pack.flows.authentication.required
}
