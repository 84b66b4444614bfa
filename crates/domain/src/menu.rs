//! What an agent offers besides talking: the items of a pack's menu, when each is shown, and what the number
//! beside it counts. A pack without `flows.menu` has every item once.

use std::collections::BTreeMap;

use serde::Serialize;

/// One item. What it does is a command, so that it can be typed as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub id: String,
    pub label: Label,
    pub action: Action,
    pub visible_when: Visibility,
    pub badge: Option<Badge>,
}

/// How an item is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// By the program, in the user's language.
    BuiltIn,
    /// Language tag → text.
    Texts(BTreeMap<String, String>),
    /// A key of `languages.*.strings`.
    Key(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Says how to sign in.
    Authenticate,
    /// Ends the session and closes its connections.
    Logout,
    /// Starts the configuration of personal servers.
    McpConfig,
    /// Leaves that configuration.
    AbortConfig,
    /// Shows the requests that the user can decide about.
    PendingApprovals,
    /// Shows the user's own requests, to take one back.
    MyApprovalRequests,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    Always,
    Authenticated,
    Unauthenticated,
    /// While a personal server is being configured.
    Configuring,
    /// While none is, for those who could configure one.
    NotConfiguring,
    /// While something waits for the user's decision.
    HasPendingApprovals,
    /// While a request of the user's own is open.
    HasApprovalRequests,
}

/// What is counted; zero is no badge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Badge {
    /// Personal servers whose credential is not accepted any more.
    NeedsAttention,
    /// Requests that the user can decide about.
    PendingApprovals,
    /// Open requests of the user's own.
    ApprovalRequests,
}

/// What the visibility and the badge of an item depend on.
#[derive(Clone, Copy, Debug, Default)]
pub struct MenuContext {
    pub authenticated: bool,
    pub configuring: bool,
    /// The agent has servers that a user brings a credential for.
    pub personal_servers: bool,
    pub needs_attention: i64,
    pub pending_approvals: i64,
    pub approval_requests: i64,
}

impl Action {
    /// As packs write it, which is also the id of the item in the menu of a pack without one.
    pub const ALL: [(&str, Self); 6] = [
        ("authenticate", Self::Authenticate),
        ("logout", Self::Logout),
        ("mcp-config", Self::McpConfig),
        ("abort-config", Self::AbortConfig),
        ("pending-approvals", Self::PendingApprovals),
        ("my-approval-requests", Self::MyApprovalRequests),
    ];

    /// The command that does the same.
    pub fn command(self) -> &'static str {
        match self {
            Self::Authenticate => "/authenticate",
            Self::Logout => "/logout",
            Self::McpConfig => "/connect",
            Self::AbortConfig => "/cancel",
            Self::PendingApprovals | Self::MyApprovalRequests => "/approvals",
        }
    }

    /// When the item makes sense, unless the pack says otherwise.
    pub fn visible_when(self) -> Visibility {
        match self {
            Self::Authenticate => Visibility::Unauthenticated,
            Self::Logout | Self::McpConfig => Visibility::Authenticated,
            Self::AbortConfig => Visibility::Configuring,
            Self::PendingApprovals => Visibility::HasPendingApprovals,
            Self::MyApprovalRequests => Visibility::HasApprovalRequests,
        }
    }

    pub fn badge(self) -> Option<Badge> {
        match self {
            Self::McpConfig => Some(Badge::NeedsAttention),
            Self::PendingApprovals => Some(Badge::PendingApprovals),
            Self::MyApprovalRequests => Some(Badge::ApprovalRequests),
            Self::Authenticate | Self::Logout | Self::AbortConfig => None,
        }
    }
}

impl Item {
    /// The item of a pack that gives only the action.
    pub fn for_action(action: Action) -> Self {
        let (id, _) = Action::ALL
            .into_iter()
            .find(|(_, other)| *other == action)
            .expect("every action has its row");
        Self {
            id: id.to_owned(),
            label: Label::BuiltIn,
            action,
            visible_when: action.visible_when(),
            badge: action.badge(),
        }
    }

    /// Whether the item is shown and may be selected. A pack cannot show an item that has no effect now.
    pub fn is_visible(&self, now: MenuContext) -> bool {
        let sensible = match self.action {
            Action::McpConfig => now.authenticated && now.personal_servers,
            Action::AbortConfig => now.configuring,
            Action::Authenticate => !now.authenticated,
            Action::Logout | Action::PendingApprovals | Action::MyApprovalRequests => {
                now.authenticated
            }
        };
        sensible
            && match self.visible_when {
                Visibility::Always => true,
                Visibility::Authenticated => now.authenticated,
                Visibility::Unauthenticated => !now.authenticated,
                Visibility::Configuring => now.configuring,
                Visibility::NotConfiguring => now.authenticated && !now.configuring,
                Visibility::HasPendingApprovals => now.pending_approvals > 0,
                Visibility::HasApprovalRequests => now.approval_requests > 0,
            }
    }

    /// The number beside the item.
    pub fn count(&self, now: MenuContext) -> Option<i64> {
        let count = match self.badge? {
            Badge::NeedsAttention => now.needs_attention,
            Badge::PendingApprovals => now.pending_approvals,
            Badge::ApprovalRequests => now.approval_requests,
        };
        (count > 0).then_some(count)
    }
}

/// The menu of a pack that has none of its own.
pub fn standard() -> Vec<Item> {
    Action::ALL
        .into_iter()
        .map(|(_, action)| Item::for_action(action))
        .collect()
}
