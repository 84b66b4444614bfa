//! How long things are kept: days for each kind, by the settings or by the operator for one tenant.

use serde::{Deserialize, Serialize};

use super::usage::Limit;

/// The most days that can be named.
pub const MAX_DAYS: i32 = 36_500;
/// The most days that the arguments of calls are kept.
pub const MAX_CALL_DAYS: i32 = 366;

/// What is deleted when it is old.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Conversations of users, by their last message.
    Conversations,
    /// Conversations of guests, by their last message.
    GuestConversations,
    /// Runs that ended. Their messages stay with the conversation.
    Runs,
    /// The arguments of closed approvals, and the claims of their requesters.
    ApprovalArguments,
    /// Calls that are kept with their arguments, to try policies with. Where no days are named, none is kept.
    CallArguments,
    /// Lines of the audit trail.
    Audit,
}

impl Kind {
    pub const ALL: [Self; 6] = [
        Self::Conversations,
        Self::GuestConversations,
        Self::Runs,
        Self::ApprovalArguments,
        Self::CallArguments,
        Self::Audit,
    ];

    /// As people read it, behind a number.
    pub fn name(self) -> &'static str {
        match self {
            Self::Conversations => "conversations",
            Self::GuestConversations => "guest conversations",
            Self::Runs => "runs",
            Self::ApprovalArguments => "closed approvals' arguments",
            Self::CallArguments => "kept calls",
            Self::Audit => "audit lines",
        }
    }
}

/// A tenant's own days. An absent kind is the installation's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Retention {
    /// Conversations of users, by their last message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversations: Option<Limit>,
    /// The same of guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_conversations: Option<Limit>,
    /// Runs that ended. Their messages stay with the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<Limit>,
    /// The arguments of closed approvals, and the claims of their requesters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_arguments: Option<Limit>,
    /// The arguments of all calls, 1 to 366 days: admins of the tenant can try policies with them. Absent: not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_arguments: Option<Limit>,
    /// Lines of the audit trail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Limit>,
}

/// From its column.
#[cfg(feature = "sqlx")]
impl From<sqlx::types::Json<Retention>> for Retention {
    fn from(column: sqlx::types::Json<Self>) -> Self {
        column.0
    }
}

/// Days in force. An absent kind is kept for ever, but for `call_arguments`, which are not kept then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = RetentionInForce))]
pub struct Days {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversations: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_conversations: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_arguments: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_arguments: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<i32>,
}

impl Retention {
    /// The days in force, where `settings` are the installation's.
    pub fn effective(&self, settings: &Days) -> Days {
        let either = |own: Option<Limit>, general: Option<i32>| match own {
            None => general,
            Some(Limit::Unlimited(_)) => None,
            Some(Limit::AtMost(days)) => {
                Some(i32::try_from(days).unwrap_or(MAX_DAYS).clamp(1, MAX_DAYS))
            }
        };
        Days {
            conversations: either(self.conversations, settings.conversations),
            guest_conversations: either(self.guest_conversations, settings.guest_conversations),
            runs: either(self.runs, settings.runs),
            approval_arguments: either(self.approval_arguments, settings.approval_arguments),
            call_arguments: either(self.call_arguments, None),
            audit: either(self.audit, settings.audit),
        }
    }
}

impl Days {
    /// After how many days the rows of a kind are deleted; `None` for never.
    pub fn get(&self, kind: Kind) -> Option<i32> {
        match kind {
            Kind::Conversations => self.conversations,
            Kind::GuestConversations => self.guest_conversations,
            Kind::Runs => self.runs,
            Kind::ApprovalArguments => self.approval_arguments,
            Kind::CallArguments => Some(self.call_arguments.unwrap_or_default()),
            Kind::Audit => self.audit,
        }
    }
}
