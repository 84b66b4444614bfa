//! An agent's menu as one user sees it now. When the user chooses an item, its command runs, after a second check that
//! the user may choose it.

use serde::Serialize;

use super::flows;
use crate::app::servers::connections::State;
use crate::app::{
    App,
    servers::{agents, credentials},
    tools::approvals,
};
use domain::{
    error::{Error, Result},
    ids::ConversationId,
    menu::{self, Action, Item, Label, MenuContext},
    pack::Pack,
    principal::Principal,
    server::AccessMode,
    texts::{self, Key},
};

/// An item as a frontend shows it.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ItemView {
    pub id: String,
    /// In the caller's language.
    pub label: String,
    pub action: Action,
    /// How many things wait behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub badge: Option<i64>,
    /// The command that can be typed instead.
    pub command: &'static str,
}

/// A menu as a frontend shows it.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct MenuView {
    /// Whether the pack defines the items. Otherwise the menu has the items that every agent offers.
    pub own: bool,
    /// The heading that the pack gives it, in the caller's language.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub items: Vec<ItemView>,
}

/// Reads the menu of an agent, with the items of [`list`].
pub async fn view(
    app: &App,
    principal: &Principal,
    agent: &str,
    conversation: Option<ConversationId>,
) -> Result<MenuView> {
    let items = list(app, principal, agent, conversation).await?;
    let pack = agents::pack(app, principal, agent).await?;
    Ok(MenuView {
        own: pack.flows.menu != menu::standard(),
        title: texts::of(&pack, principal).of_pack(Key::Menu),
        items,
    })
}

/// Lists the items that the principal may choose now. With a `conversation`, only its own open flow counts.
pub async fn list(
    app: &App,
    principal: &Principal,
    agent: &str,
    conversation: Option<ConversationId>,
) -> Result<Vec<ItemView>> {
    let pack = agents::pack(app, principal, agent).await?;
    let now = load_context(app, principal, &pack, conversation).await?;
    let shown = pack.flows.menu.iter().filter(|item| item.is_visible(now));
    Ok(shown
        .map(|item| item_view(&pack, principal, item, now))
        .collect())
}

/// Returns the command of an item that the principal may choose now.
pub async fn choose(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    item: &str,
) -> Result<&'static str> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let agent = store::conversations::get(&mut tx, &principal.user, conversation, false)
        .await?
        .agent;
    drop(tx);
    let items = list(app, principal, agent.as_str(), Some(conversation)).await?;
    let chosen = items.into_iter().find(|shown| shown.id == item);
    chosen
        .map(|item| item.command)
        .ok_or_else(|| Error::not_found(format!("menu item {item:?} for you at the moment")))
}

/// Reads the state of the principal that decides which items are shown.
async fn load_context(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    conversation: Option<ConversationId>,
) -> Result<MenuContext> {
    let personal_servers = pack
        .servers
        .iter()
        .any(|server| server.access_mode == AccessMode::UserControlled);
    if !principal.authenticated {
        return Ok(MenuContext {
            personal_servers,
            ..MenuContext::default()
        });
    }
    let mut now = MenuContext {
        authenticated: true,
        personal_servers,
        pending_approvals: approvals::decidable_count(app, principal).await?,
        approval_requests: approvals::own_open_count(app, principal).await?,
        ..MenuContext::default()
    };
    if personal_servers {
        let views = credentials::views(app, principal, pack).await?;
        let needing_attention = views
            .iter()
            .filter(|view| matches!(view.state, State::NeedsAttention { .. }))
            .count();
        now.needs_attention = i64::try_from(needing_attention).unwrap_or(i64::MAX);
        now.configuring = flows::is_open(app, principal, pack.id(), conversation).await?;
    }
    Ok(now)
}

fn item_view(pack: &Pack, principal: &Principal, item: &Item, now: MenuContext) -> ItemView {
    let texts = texts::of(pack, principal);
    let locale = principal.locale.as_deref();
    let label = match &item.label {
        Label::BuiltIn => texts.render(label_key(item.action), &[]),
        Label::Texts(labels) => pack.text(labels, locale).unwrap_or(&item.id).to_owned(),
        Label::Key(key) => match texts::named(key) {
            Some(key) => texts.render(key, &[]),
            None => {
                let own = pack.language(locale).strings.get(key);
                let own = own.or_else(|| pack.language(None).strings.get(key));
                own.unwrap_or(&item.id).to_owned()
            }
        },
    };
    ItemView {
        id: item.id.clone(),
        label,
        action: item.action,
        badge: item.count(now),
        command: item.action.command(),
    }
}

fn label_key(action: Action) -> Key {
    match action {
        Action::Authenticate => Key::MenuAuthenticate,
        Action::Logout => Key::MenuLogout,
        Action::McpConfig => Key::MenuMcpConfig,
        Action::AbortConfig => Key::MenuAbortConfig,
        Action::PendingApprovals => Key::MenuPendingApprovals,
        Action::MyApprovalRequests => Key::MenuMyApprovalRequests,
    }
}
