//! Consent to a tool call: its states, who may give it, and the code by which people name a request.
//!
//! ```text
//! pending → approved → executing → succeeded | failed | outcome_unknown
//!    ├→ rejected   ├→ revoked (rights, tool or credential changed)
//!    ├→ expired    └→ lapsed  (not executed in time)
//!    └→ cancelled
//! ```
//!
//! A request never goes back: what was sent is never sent again. Its arguments never change.

mod note;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

pub use self::note::Note;
use super::{
    canonical::Hash,
    error::Error,
    ids::{AgentId, ApprovalId, ConversationId, RunId, ServerId, TenantId, UserId},
    pack::Pack,
    policy::ApprovalPolicy,
    principal::{Principal, tool_accesses},
    session::SessionEnd,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Pending,
    Approved,
    /// It is being sent, or has been and is not answered yet.
    Executing,
    Succeeded,
    Failed,
    /// It was sent, or may have been, and nobody knows what came of it. Never repeated.
    OutcomeUnknown,
    Rejected,
    Expired,
    Cancelled,
    /// Approved, but what was approved is not what would run now.
    Revoked,
    /// Approved, but it could not be executed in time.
    Lapsed,
}

impl State {
    pub const ALL: [Self; 11] = [
        Self::Pending,
        Self::Approved,
        Self::Executing,
        Self::Succeeded,
        Self::Failed,
        Self::OutcomeUnknown,
        Self::Rejected,
        Self::Expired,
        Self::Cancelled,
        Self::Revoked,
        Self::Lapsed,
    ];

    /// As the row says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Executing => "executing",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Revoked => "revoked",
            Self::Lapsed => "lapsed",
        }
    }

    /// Back from [`State::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// The one list of what may follow what.
    pub fn can_become(self, next: Self) -> bool {
        match self {
            Self::Pending => {
                matches!(
                    next,
                    Self::Approved
                        | Self::Rejected
                        | Self::Expired
                        | Self::Cancelled
                        | Self::Revoked
                )
            }
            Self::Approved => matches!(next, Self::Executing | Self::Revoked | Self::Lapsed),
            Self::Executing => {
                matches!(next, Self::Succeeded | Self::Failed | Self::OutcomeUnknown)
            }
            _ => false,
        }
    }

    /// Whether anything may still happen.
    pub fn is_open(self) -> bool {
        Self::ALL.into_iter().any(|next| self.can_become(next))
    }
}

/// A request for consent, as it is kept. Its arguments lie sealed beside it.
#[derive(Clone, Debug)]
pub struct Approval {
    pub tenant: TenantId,
    pub id: ApprovalId,
    pub code: String,
    pub state: State,
    pub agent: AgentId,
    pub server: ServerId,
    pub tool: String,
    /// What the tool said of itself when the call was asked for.
    pub about: About,
    pub fingerprint: Hash,
    /// Over the canonical text of the arguments.
    pub args_sha256: Hash,
    /// `CV1`; see [`crate::vault`].
    pub sealed: Vec<u8>,
    /// Which credential the call would go out with.
    pub credential: String,
    /// Who asked, as verified then.
    pub principal: Principal,
    pub conversation: Option<ConversationId>,
    pub run: Option<RunId>,
    pub call_id: String,
    /// A model asked: it hears of the outcome in a run of its own.
    pub follow_up: bool,
    /// Who stopped the run that asked, or one above it. Nobody can approve it any more, and no run follows.
    pub withdrawn_by: Option<UserId>,
    /// Why, when the session of its requester ended rather than the run.
    pub withdrawn_cause: Option<SessionEnd>,
    pub consent: Consent,
    /// Why it is in this state, in words for people.
    pub reason: Option<String>,
    /// Who brought it into this state, when a person did.
    pub decided_by: Option<UserId>,
    /// What to call them, or whoever recorded the outcome.
    pub by_name: Option<String>,
    pub decided_at: Option<OffsetDateTime>,
    pub created_at: OffsetDateTime,
    /// From this moment on nobody can approve it.
    pub expires_at: OffsetDateTime,
    pub changed_at: OffsetDateTime,
    pub finished_at: Option<OffsetDateTime>,
    /// What arrived after the call was recorded as of unknown outcome. It changes nothing.
    pub evidence: Option<String>,
    /// What an approver found out about an unknown outcome.
    pub recorded: Option<Recorded>,
    /// Must match the row at every write of whoever executes it.
    pub fence: i64,
}

impl Approval {
    /// Why nothing comes of a request that was taken back.
    pub fn withdrawn_reason(&self) -> &'static str {
        self.withdrawn_cause
            .map_or("the run that asked for it was stopped", SessionEnd::reason)
    }

    /// Whether its arguments are still kept. Erased ones leave the bytes that name their key.
    pub fn has_arguments(&self) -> bool {
        self.sealed.len() > 7
    }

    pub fn requester(&self) -> &UserId {
        &self.principal.user
    }
}

/// The policy as it was when the call was asked for, without what selects the tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consent {
    pub approvers: Vec<String>,
    pub min_approvals: u32,
    pub self_approval: bool,
}

impl From<&ApprovalPolicy> for Consent {
    fn from(policy: &ApprovalPolicy) -> Self {
        let (approvers, min_approvals) = (policy.approvers.clone(), policy.min_approvals);
        Self {
            approvers,
            min_approvals,
            self_approval: policy.self_approval,
        }
    }
}

/// A server's own words of a tool. Nobody has checked them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct About {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default)]
    pub description: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<serde_json::Value>,
}

/// What one approver said.
#[derive(Clone, Debug)]
pub struct Vote {
    pub approval: ApprovalId,
    pub by: UserId,
    pub choice: Choice,
    pub reason: Option<String>,
    pub at: OffsetDateTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    Approve,
    Reject,
}

impl Choice {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Reject => "reject",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Approve, Self::Reject]
            .into_iter()
            .find(|choice| choice.as_str() == text)
    }

    /// In a sentence: "bob approved it".
    pub fn done(self) -> &'static str {
        match self {
            Self::Approve => "approved",
            Self::Reject => "rejected",
        }
    }
}

/// What really happened to a call of unknown outcome, as an approver found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// Whether the call was carried out.
    pub happened: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    pub by: UserId,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
}

/// The right to decide requests: the user, and the roles at each agent. [`Principal::approver`] is the only
/// way to get one, so its holder has an approver role now.
#[derive(Clone, Debug)]
pub struct Approver {
    tenant: TenantId,
    user: UserId,
    name: String,
    roles: BTreeMap<AgentId, BTreeSet<String>>,
}

impl Principal {
    /// The power to decide, by today's packs and the claims that were verified just now. Being one of
    /// `adminUsers` is not enough: a pack that wants them to decide gives them the role.
    pub fn approver(&self, packs: &[Arc<Pack>]) -> Result<Approver, Error> {
        let mut roles = BTreeMap::new();
        for pack in packs.iter().filter(|_| self.authenticated) {
            let standing = self.standing(pack);
            let named = tool_accesses(pack)
                .flat_map(|access| &access.approval)
                .flat_map(|policy| &policy.approvers);
            let held: BTreeSet<String> = named
                .filter(|role| standing.roles.contains(*role))
                .cloned()
                .collect();
            if !held.is_empty() {
                roles.insert(pack.id().clone(), held);
            }
        }
        if roles.is_empty() {
            return Err(Error::Forbidden(
                "you hold none of the roles that may decide".to_owned(),
            ));
        }
        Ok(Approver {
            tenant: self.tenant,
            user: self.user.clone(),
            name: self.display_name(),
            roles,
        })
    }
}

impl Approver {
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    pub fn user(&self) -> &UserId {
        &self.user
    }

    /// What to call them.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether one of their roles is among those that decide about this request.
    pub fn holds_role_for(&self, approval: &Approval) -> bool {
        let held = self.roles.get(&approval.agent);
        held.is_some_and(|held| {
            approval
                .consent
                .approvers
                .iter()
                .any(|role| held.contains(role))
        })
    }

    /// Whether they may decide it. Nobody decides their own where the policy says so, admins included.
    pub fn may_decide(&self, approval: &Approval) -> bool {
        let own = self.user == *approval.requester();
        self.tenant == approval.tenant
            && self.holds_role_for(approval)
            && (!own || approval.consent.self_approval)
    }

    /// Every (agent, role), as two columns.
    pub fn columns(&self) -> (Vec<String>, Vec<String>) {
        let pairs = self
            .roles
            .iter()
            .flat_map(|(agent, roles)| roles.iter().map(move |role| (agent, role)));
        pairs
            .map(|(agent, role)| (agent.to_string(), role.clone()))
            .unzip()
    }
}

/// Digits and letters without those that people mistake for one another.
const ALPHABET: &[u8; 30] = b"23456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Characters of a code at first; longer ones come when those are taken.
const SHORTEST: usize = 4;
const LONGEST: usize = 8;

/// A random code for the `attempt`th try, from 0.
pub fn code(attempt: usize) -> String {
    let length = (SHORTEST + attempt / 2).min(LONGEST);
    (0..length)
        .map(|_| char::from(ALPHABET[rand::random_range(0..ALPHABET.len())]))
        .collect()
}

/// A code as somebody typed it; `None` when it cannot be one.
pub fn parse_code(text: &str) -> Option<String> {
    let code = text.trim().trim_start_matches('#').to_ascii_uppercase();
    let fits = (SHORTEST..=LONGEST).contains(&code.len())
        && code.bytes().all(|byte| ALPHABET.contains(&byte));
    fits.then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_its_name_and_every_open_one_an_end() {
        for state in State::ALL {
            assert_eq!(State::parse(state.as_str()), Some(state));
            assert!(
                !state.can_become(state) && !state.can_become(State::Pending),
                "{state:?}"
            );
        }
        let open: Vec<_> = State::ALL
            .into_iter()
            .filter(|state| state.is_open())
            .collect();
        assert_eq!(open, [State::Pending, State::Approved, State::Executing]);
    }

    #[test]
    fn nothing_runs_but_by_way_of_approval() {
        for state in State::ALL {
            assert_eq!(
                state.can_become(State::Executing),
                state == State::Approved,
                "{state:?}"
            );
            assert_eq!(
                state.can_become(State::Approved),
                state == State::Pending,
                "{state:?}"
            );
        }
    }

    #[test]
    fn codes_are_read_as_people_type_them() {
        for attempt in 0..20 {
            let code = code(attempt);
            assert_eq!(
                parse_code(&format!(" #{} ", code.to_lowercase())),
                Some(code)
            );
        }
        for text in ["", "7F3", "7F3O", "7F3K7F3K7", "7F 3K"] {
            assert_eq!(parse_code(text), None, "{text:?}");
        }
    }
}
