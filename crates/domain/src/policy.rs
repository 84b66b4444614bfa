//! One decision: may this principal call this tool? Pure and ordered.
//! The listing and the gate ask the same function, so what a model is shown is what it may call.
//!
//! What no rule covers is denied.

mod denial;
mod lookalikes;
pub mod names;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

pub use self::{denial::Denial, lookalikes::Standing};
use super::server::ServerSpec;

/// A tool name in which `*` stands for any characters, none included.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct ToolPattern(pub String);

impl ToolPattern {
    /// Linear-time glob over the whole name; case matters.
    pub fn matches(&self, tool: &str) -> bool {
        // Most pairs differ in a letter or two: searching for `*` first would take longer than this.
        let pairs = self.0.bytes().zip(tool.bytes());
        let same = pairs
            .take_while(|(wanted, is)| wanted == is && *wanted != b'*')
            .count();
        if self.0.as_bytes().get(same) != Some(&b'*') {
            return same == self.0.len() && same == tool.len();
        }
        let (rest, mut left) = (&self.0[same + 1..], &tool[same..]);
        let mut pieces = rest.split('*').peekable();
        while let Some(piece) = pieces.next() {
            if pieces.peek().is_none() {
                return left.ends_with(piece);
            }
            match left.find(piece) {
                Some(at) => left = &left[at + piece.len()..],
                None => return false,
            }
        }
        true
    }

    pub fn has_wildcard(&self) -> bool {
        self.0.contains('*')
    }
}

fn any_matches(patterns: &[ToolPattern], tool: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(tool))
}

/// `toolAccess` of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolAccess {
    pub default: DefaultAccess,
    /// Legacy: tools for everyone. Never together with `roles` (refused at load).
    pub public: Vec<ToolPattern>,
    /// RBAC: role → tools. `Some` of an empty map is RBAC that grants nothing.
    pub roles: Option<BTreeMap<String, Vec<ToolPattern>>>,
    pub approval: Vec<ApprovalPolicy>,
}

/// `toolAccess.default`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DefaultAccess {
    #[default]
    None,
    All,
    /// All tools, for everybody.
    Public,
    /// All tools, for every user of the tenant; guests have what `public` lists.
    Users,
    Admin,
}

impl ToolAccess {
    /// The rule of a reference to the registry that says nothing of access: every tool for the tenant's users.
    pub fn for_users() -> Self {
        Self {
            default: DefaultAccess::Users,
            ..Self::default()
        }
    }

    /// Whether every tool is open to this principal without being named.
    fn opens_all(&self, who: &EffectiveAccess) -> bool {
        self.roles.is_none()
            && match self.default {
                DefaultAccess::Public | DefaultAccess::All => true,
                DefaultAccess::Users => !who.is_guest,
                DefaultAccess::Admin | DefaultAccess::None => false,
            }
    }
}

/// Calls of these tools need somebody's consent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalPolicy {
    pub tools: Vec<ToolPattern>,
    /// Roles whose holders may decide. Never empty (refused at load).
    pub approvers: Vec<String>,
    pub timeout_minutes: u32,
    pub min_approvals: u32,
    /// The call of a requester who holds an approver role counts as that requester's own approval.
    pub self_approval: bool,
}

impl ApprovalPolicy {
    /// Whether asking for the call is itself one of the approvals that the policy wants.
    pub fn counts_requester(&self, who: &EffectiveAccess) -> bool {
        self.self_approval && self.approvers.iter().any(|role| who.roles.contains(role))
    }
}

/// Who asks, as one pack sees them: roles computed from the claims, and whether `adminUsers` names them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EffectiveAccess {
    pub roles: BTreeSet<String>,
    pub admin: bool,
    /// Nobody vouched for them. A user whose token names a role `guest` is none.
    pub is_guest: bool,
}

#[derive(Debug, PartialEq)]
pub enum Decision<'a> {
    Deny(Denial),
    Allow(Allowed<'a>),
    Approve(&'a ApprovalPolicy),
}

/// Proof that [`decide`] allowed one tool of one server. Only [`decide`] makes one.
#[derive(Debug, PartialEq)]
pub struct Allowed<'a> {
    server: &'a ServerSpec,
    tool: &'a str,
    self_approved: bool,
}

impl<'a> Allowed<'a> {
    pub fn server(&self) -> &'a ServerSpec {
        self.server
    }

    pub fn tool(&self) -> &'a str {
        self.tool
    }

    /// Whether an approval policy names the tool and the principal's own role satisfied it.
    pub fn is_self_approved(&self) -> bool {
        self.self_approved
    }
}

/// Decides about one tool of one server for one principal.
pub fn decide<'a>(server: &'a ServerSpec, who: &EffectiveAccess, tool: &'a str) -> Decision<'a> {
    if !server.load_tools {
        return Decision::Deny(Denial::NotInAllowlist);
    }
    decide_about_loaded(server, who, tool)
}

/// The decision, whether or not the tools of the server are loaded.
fn decide_about_loaded<'a>(
    server: &'a ServerSpec,
    who: &EffectiveAccess,
    tool: &'a str,
) -> Decision<'a> {
    let allow = |self_approved| {
        Decision::Allow(Allowed {
            server,
            tool,
            self_approved,
        })
    };
    if server
        .tools
        .as_ref()
        .is_some_and(|allowlist| !any_matches(allowlist, tool))
    {
        return Decision::Deny(Denial::NotInAllowlist);
    }
    let access = server.tool_access.as_ref();
    if who.admin {
        return match server.approval_policy(tool) {
            Some(policy) if !policy.self_approval || policy.min_approvals > 1 => {
                Decision::Approve(policy)
            }
            policy => allow(policy.is_some()),
        };
    }
    let Some(access) = access else {
        return Decision::Deny(Denial::NoToolAccess);
    };
    if let Err(denial) = admits(access, who, tool) {
        return Decision::Deny(denial);
    }
    match server.approval_policy(tool) {
        None => allow(false),
        Some(policy) if policy.min_approvals <= 1 && policy.counts_requester(who) => allow(true),
        Some(policy) => Decision::Approve(policy),
    }
}

/// Whether this principal may hear that a tool is outside the server's allowlist: it is, and the server keeps nothing
/// else from them, so that the answer tells nothing of what others may call.
pub fn may_see_unlisted(server: &ServerSpec, who: &EffectiveAccess, tool: &str) -> bool {
    let outside = server
        .tools
        .as_ref()
        .is_some_and(|allowlist| !any_matches(allowlist, tool));
    let access = server.tool_access.as_ref();
    outside && (who.admin || access.is_some_and(|access| access.opens_all(who)))
}

/// Whether a server's prompts are for this principal. No rule of the pack names prompts, so the rules of the
/// tools decide: a principal who may use at least one tool of the server may use its prompts. Where the
/// server has no tools or they are not loaded, only a rule that allows every tool includes its prompts.
pub fn offers_prompts<'t>(
    server: &ServerSpec,
    who: &EffectiveAccess,
    tools: impl IntoIterator<Item = &'t str>,
) -> bool {
    // Whether the tools are loaded is a switch of its own.
    let may = |tool: &str| !matches!(decide_about_loaded(server, who, tool), Decision::Deny(_));
    let mut tools = tools.into_iter().peekable();
    server.load_prompts
        && if tools.peek().is_none() {
            may("")
        } else {
            tools.any(may)
        }
}

/// Rules 4 and 5, without approval.
fn admits(access: &ToolAccess, who: &EffectiveAccess, tool: &str) -> Result<(), Denial> {
    let Some(roles) = &access.roles else {
        return if access.opens_all(who) || any_matches(&access.public, tool) {
            Ok(())
        } else if access.default == DefaultAccess::Users {
            Err(Denial::GuestsExcluded)
        } else {
            Err(Denial::NotPublic)
        };
    };
    let own = who.roles.iter().filter_map(|role| roles.get(role));
    if own.into_iter().any(|tools| any_matches(tools, tool)) {
        return Ok(());
    }
    let listed = roles.values().any(|tools| any_matches(tools, tool));
    match (listed, access.default) {
        (true, _) => Err(Denial::RoleLacksTool),
        (false, DefaultAccess::All) => Ok(()),
        (false, _) => Err(Denial::NoRoleListsTool),
    }
}
