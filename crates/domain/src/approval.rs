//! Consent to a tool call: its states, who may give it, and the code by which people name a request. A request for
//! approval asks others. A request for confirmation asks its own requester, and nobody else may decide it.
//!
//! ```text
//! pending → approved → executing → succeeded | failed | outcome_unknown
//!    ├→ rejected   ├→ revoked (rights, tool or credential changed)
//!    ├→ expired    └→ lapsed  (not executed in time)
//!    └→ cancelled
//! ```
//!
//! A request never goes back: what was sent is never sent again. Its arguments never change.

mod approver;
mod code;
mod note;
mod state;

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

pub use self::{
    approver::Approver,
    code::{code, parse_code},
    note::Note,
    state::State,
};
use super::{
    canonical::{Hash, Hex, parse_hash},
    decimal::write_for,
    hidden::remove_hidden,
    ids::{AgentId, ApprovalId, ConversationId, RunId, ServerId, TenantId, UserId},
    json::Json,
    policy::{ApprovalPolicy, Origin},
    principal::Principal,
    session::{ActKind, PastAct, SessionEnd},
    tool,
    trace_context::TraceContext,
};

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
    /// `CV1`; see the `vault` of the store.
    pub sealed: Vec<u8>,
    /// Which credential the call would go out with.
    pub credential: String,
    /// Who asked, as verified then.
    pub principal: Principal,
    /// What to call them.
    pub requester_name: String,
    pub conversation: Option<ConversationId>,
    pub run: Option<RunId>,
    pub call_id: String,
    pub origin: Origin,
    /// A model asked: it hears of the outcome in a run of its own.
    pub follow_up: bool,
    /// Who stopped the run that asked, or one above it. Nobody can approve it any more, and no run follows.
    pub withdrawn_by: Option<UserId>,
    /// Why, when the session of its requester ended rather than the run.
    pub withdrawn_cause: Option<SessionEnd>,
    pub rule: ApprovalRule,
    /// Why it is in this state, in words for people.
    pub reason: Option<String>,
    /// Who brought it into this state, when a person did.
    pub decided_by: Option<UserId>,
    /// What to call them.
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
    /// The span in which it was asked for, if there were traces.
    pub trace: Option<TraceContext>,
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

    pub fn shown_id(&self) -> ShownId {
        ShownId {
            id: self.id,
            args_sha256: Some(self.args_sha256),
        }
    }

    pub fn requester(&self) -> &UserId {
        &self.principal.user
    }

    /// Whether this user, who made the request, is the one whom it asks.
    pub fn asks_requester(&self, user: &UserId) -> bool {
        self.rule.kind() == Kind::Confirmation && self.requester() == user
    }

    pub fn as_act(&self) -> PastAct<'_> {
        PastAct {
            who: &self.principal,
            at: self.created_at,
            kind: ActKind::Request,
        }
    }
}

/// The name of a request in protocols whose clients send back nothing but an id: `ID.HASH`, with the hash of the arguments
/// that were shown, or the id alone, with which nothing is confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownId {
    pub id: ApprovalId,
    pub args_sha256: Option<Hash>,
}

impl fmt::Display for ShownId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)?;
        match self.args_sha256 {
            Some(hash) => write!(f, ".{}", Hex(hash)),
            None => Ok(()),
        }
    }
}

impl FromStr for ShownId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (id, hash) = match text.split_once('.') {
            Some((id, hash)) => (id, Some(parse_hash(hash).ok_or(())?)),
            None => (text, None),
        };
        Ok(Self {
            id: id.parse().map_err(|_| ())?,
            args_sha256: hash,
        })
    }
}

/// Whose consent a request wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ApprovalKind))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// That of holders of the approver roles.
    #[default]
    Approval,
    /// That of its own requester: "really?".
    Confirmation,
}

/// The policy as it was when the call was asked for, without what selects the tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalRule {
    /// Empty for a confirmation.
    pub approvers: Vec<String>,
    pub min_approvals: u32,
    pub self_approval: bool,
}

impl ApprovalRule {
    pub fn kind(&self) -> Kind {
        if self.approvers.is_empty() {
            Kind::Confirmation
        } else {
            Kind::Approval
        }
    }
}

impl From<&ApprovalPolicy> for ApprovalRule {
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
    /// The arguments that are decimal numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decimals: Vec<String>,
}

impl About {
    /// The decimal numbers among the arguments as readers of a locale write them, by name, where that differs from the
    /// exact ones, which are shown beside them.
    pub fn amounts(&self, arguments: &str, locale: Option<&str>) -> BTreeMap<String, String> {
        let Ok(Json::Object(arguments)) = Json::parse(arguments) else {
            return BTreeMap::new();
        };
        let amounts = self.decimals.iter().filter_map(|name| {
            let exact = match arguments.get(name)? {
                Json::Number(number) => number.as_str(),
                Json::Text(text) => text,
                _ => return None,
            };
            let written = write_for(locale, exact)?;
            (written != exact).then(|| (name.clone(), written))
        });
        amounts.collect()
    }

    /// The same as people may be shown it, whatever an older version has kept: hints of their type, a title of one line.
    #[must_use]
    pub fn cleaned(self) -> Self {
        let hints = self.annotations.and_then(|hints| match hints {
            serde_json::Value::Object(mut hints) => {
                hints.retain(|name, _| tool::is_hint(name));
                Some(tool::clean_hints(hints)).filter(|hints| !hints.is_empty())
            }
            _ => None,
        });
        Self {
            title: self.title.and_then(|title| tool::clean_title(&title)),
            description: remove_hidden(&self.description),
            annotations: hints.map(serde_json::Value::Object),
            decimals: self.decimals,
        }
    }
}

/// What one approver said.
#[derive(Clone, Debug)]
pub struct Vote {
    pub approval: ApprovalId,
    /// Who said it, in which session. Of their claims only those that name the session.
    pub voter: Principal,
    pub choice: Choice,
    pub reason: Option<String>,
    /// By the clock of the database.
    pub at: OffsetDateTime,
}

impl Vote {
    pub fn by(&self) -> &UserId {
        &self.voter.user
    }

    pub fn as_act(&self) -> PastAct<'_> {
        PastAct {
            who: &self.voter,
            at: self.at,
            kind: ActKind::Vote,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ApprovalDecision))]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type))]
#[cfg_attr(feature = "sqlx", sqlx(type_name = "text", rename_all = "snake_case"))]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Choice {
    Approve,
    Reject,
}

impl Choice {
    /// In a sentence: "bob approved it".
    pub fn done(self, kind: Kind) -> &'static str {
        match (self, kind) {
            (Self::Approve, Kind::Approval) => "approved",
            (Self::Reject, Kind::Approval) => "rejected",
            (Self::Approve, Kind::Confirmation) => "confirmed",
            (Self::Reject, Kind::Confirmation) => "declined",
        }
    }
}

/// What really happened to a call of unknown outcome, as an approver found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Recorded {
    /// Whether the call was carried out.
    pub happened: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub by: UserId,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
}
