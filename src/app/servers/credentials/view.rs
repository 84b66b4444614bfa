//! Connections as users see them: their state, and the fields to enter. Values are never shown.

use std::sync::Arc;

use serde::Serialize;

use super::{catalogs, credential_ref, of_user};
use crate::app::{
    App,
    servers::{
        agents,
        connections::{ConnectionView, State},
    },
};
use domain::{
    credential::CredentialState,
    error::{Error, Missing, Result},
    message::Choice,
    pack::Pack,
    policy::is_offered,
    principal::Principal,
    server::{AccessMode, FieldKind, ServerSpec},
    tool::{Catalog, Tool},
};
use mcp::{ConnectionState, Key};

/// The servers of an agent and their state for the principal.
pub async fn list(
    app: &App,
    principal: &Principal,
    agent: &str,
    operator: bool,
) -> Result<Vec<ConnectionView>> {
    let pack = agents::pack(app, principal, agent).await?;
    views_of_pack(app, principal, &pack, operator).await
}

/// Like [`list`] for a pack that is loaded. The views hold all details, since the program itself reads them. The
/// callers choose which of them a user is shown.
pub async fn views(app: &App, principal: &Principal, pack: &Pack) -> Result<Vec<ConnectionView>> {
    views_of_pack(app, principal, pack, true).await
}

async fn views_of_pack(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    operator: bool,
) -> Result<Vec<ConnectionView>> {
    let mut views = Vec::with_capacity(pack.servers.len());
    for server in &pack.servers {
        views.push(redacted_view(app, principal, pack, server, operator).await?);
    }
    Ok(views)
}

/// A server as the principal may see it. The operator and the pack's admins see all tools and what discovery left out;
/// other users see how many tools they may use.
async fn redacted_view(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    server: &ServerSpec,
    operator: bool,
) -> Result<ConnectionView> {
    let (mut view, catalog) = view(app, principal, pack, server).await?;
    let access = principal.access(pack);
    if !operator && !access.admin {
        let may = |tool: &&Arc<Tool>| is_offered(server, &access, &tool.name);
        view.redact_for_user(catalog.map_or(0, |catalog| catalog.tools.iter().filter(may).count()));
    }
    Ok(view)
}

/// The state of a server for the principal, and its catalog.
async fn view(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    server: &ServerSpec,
) -> Result<(ConnectionView, Option<Arc<Catalog>>)> {
    let (mut view, catalog) = app.connections.view(principal.tenant, pack, server);
    if app.orchestrator.is(server) {
        let catalog = app.orchestrator.catalog(&server.id);
        view.state = State::Ready {
            protocol: "built in".to_owned(),
        };
        view.tools = catalog.tools.len();
        return Ok((view, Some(catalog)));
    }
    if server.access_mode == AccessMode::AdminControlled {
        return Ok((view, catalog));
    }
    let credentials = of_user(app, principal, pack.id()).await?;
    let Some(stored) = credentials.get(&server.id) else {
        return Ok((view, None));
    };
    view.state = match stored.state {
        CredentialState::Active => {
            let key = Key::Personal(credential_ref(principal, pack.id(), &server.id, stored));
            match app.mcp.state(&key) {
                ConnectionState::Down { error, .. } => State::Down {
                    cause: error.kind.into(),
                    reason: error.to_string(),
                },
                _ if stored.awaits_first_call() => State::Saved,
                _ => State::Configured,
            }
        }
        state => State::NeedsAttention {
            reason: state.into_str().to_owned(),
        },
    };
    if stored.state != CredentialState::Active {
        return Ok((view, None));
    }
    let catalog = catalogs::load_known(app, principal.tenant, pack.id(), &[(server, Some(stored))])
        .await?
        .pop()
        .flatten();
    if let Some(catalog) = &catalog {
        (view.tools, view.dropped) = (catalog.tools.len(), catalog.dropped.clone());
        view.missing = server.missing(&catalog.tools);
        view.unmatched = pack.unmatched_names(server, &catalog.tools);
    }
    Ok((view, catalog))
}

/// One server of an agent, with the fields that a user fills in.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ServerConnection {
    #[serde(flatten)]
    pub connection: ConnectionView,
    /// The fields to fill in; empty for a shared server. Values never come back.
    pub fields: Vec<FieldView>,
    /// Whether the user can sign in at the server, instead of filling in fields or because there are none.
    pub sign_in: bool,
}

/// One field that a user fills in.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct FieldView {
    pub name: String,
    /// `text`, `secret`, `url`, `boolean` or `select`.
    #[serde(rename = "type")]
    pub kind: FieldKind,
    /// In the caller's language.
    pub label: String,
    pub required: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<Choice>,
}

/// One server of an agent, as the principal sees it.
pub async fn get(
    app: &App,
    principal: &Principal,
    agent: &str,
    server: &str,
    operator: bool,
) -> Result<ServerConnection> {
    let pack = agents::pack(app, principal, agent).await?;
    let spec = pack
        .server(server)
        .ok_or_else(|| Error::NotFound(Missing::Server(server.to_owned())))?;
    let fields = spec.user_config.iter().map(|field| {
        let options = field.options.iter().map(|option| Choice {
            value: option.value.clone(),
            label: pack
                .text(&option.label, principal.locale.as_deref())
                .unwrap_or(&option.value)
                .to_owned(),
        });
        FieldView {
            name: field.name.clone(),
            kind: field.kind,
            label: pack
                .text(&field.label, principal.locale.as_deref())
                .unwrap_or(&field.name)
                .to_owned(),
            required: field.required,
            options: options.collect(),
        }
    });
    let connection = redacted_view(app, principal, &pack, spec, operator).await?;
    Ok(ServerConnection {
        connection,
        fields: fields.collect(),
        sign_in: spec.takes_sign_in(),
    })
}
