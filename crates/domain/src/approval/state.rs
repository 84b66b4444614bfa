//! The states of a request and the ways from one to another.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ApprovalState))]
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
