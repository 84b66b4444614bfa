//! The states of a request and the ways from one to another.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, strum::IntoStaticStr)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ApprovalState))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type))]
#[cfg_attr(feature = "sqlx", sqlx(type_name = "text", rename_all = "snake_case"))]
#[strum(serialize_all = "snake_case", const_into_str)]
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
