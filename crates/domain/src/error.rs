//! The one error of all work. Inner errors know no HTTP; `api` maps this to a status and a problem.
//!
//! Messages are lower case without a full stop, name the thing, and say what to do. They may be shown
//! to the caller, so they never carry a secret, an argument or a result. `Internal` is only logged.

use std::{fmt, time::Duration};

mod code;
#[cfg(feature = "sqlx")]
pub mod database;

use super::ids::{ConversationId, RunId, WebhookId};

pub use code::ErrorCode;

/// Why a piece of work was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something does not exist, or the principal may not know that it does.
    #[error("{0} was not found")]
    NotFound(Missing),
    /// There is no such session, or it is not the principal's. The sentence is the registry document's.
    #[error("Session not found: {0}")]
    SessionNotFound(String),
    /// The caller has no valid credential.
    #[error("{0}")]
    Unauthenticated(String),
    /// The principal is known and may not do this.
    #[error("{0}")]
    Forbidden(String),
    /// The principal's tenant was put on hold by the operator.
    #[error("{0}")]
    Suspended(String),
    /// The principal was blocked by an admin.
    #[error("{0}")]
    Blocked(String),
    /// What was given cannot be used; `field` is the path of it.
    #[error("{field}: {reason}")]
    Invalid {
        code: ErrorCode,
        field: String,
        reason: Reason,
    },
    /// The state of the thing does not allow this.
    #[error("{1}")]
    Conflict(ErrorCode, String),
    /// A request with the same key came first. The answer is what the first request began.
    #[error("a request with the same key was made at the same time; send it again")]
    Repeated,
    /// Too many requests at once. The same request may be sent again after `retry_after`.
    #[error("{reason}")]
    Busy {
        reason: String,
        retry_after: Duration,
    },
    /// The database undid a transaction, because it and another one were in each other's way. Nothing of it is kept, and
    /// the same may be tried again.
    #[error("another change came at the same time; try again")]
    Collided,
    /// A limit is used up. There is more after `retry_after`.
    #[error("{reason}")]
    Limited {
        code: ErrorCode,
        reason: String,
        retry_after: Duration,
    },
    /// Another system that this request needs does not work: a model or an MCP server.
    #[error("{0}")]
    Unavailable(String),
    /// What is stored of a tenant is sealed with a key that the service cannot read. Nothing of it is lost: the same may be
    /// tried again once the operator has put the key back.
    #[error("the service cannot read its keys; the operator knows")]
    KeysUnreadable,
    /// A defect of this program or its database. The caller learns only that; the cause is for the log.
    #[error("internal error")]
    Internal(#[source] anyhow::Error),
}

/// The kind and name of what was not found. Callers branch on the variant; people read the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    #[error("agent {0:?}")]
    Agent(String),
    #[error("approval {0:?}")]
    Approval(String),
    #[error("conversation {0}")]
    Conversation(ConversationId),
    /// The conversation exists, but with another agent than the one that was asked for.
    #[error("conversation {0} with this agent")]
    ConversationWithAgent(ConversationId),
    #[error("run {0}")]
    Run(RunId),
    #[error("server {0:?}")]
    Server(String),
    #[error("skill {0:?}")]
    Skill(String),
    #[error("webhook {0}")]
    Webhook(WebhookId),
    /// Anything else, for which no caller branches.
    #[error("{0}")]
    Other(String),
}

impl From<&str> for Missing {
    fn from(text: &str) -> Self {
        Self::Other(text.to_owned())
    }
}

impl From<String> for Missing {
    fn from(text: String) -> Self {
        Self::Other(text)
    }
}

/// Why an input cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Reads on from the field's name: `must be one JSON object`.
    Clause(String),
    /// A sentence that names the input itself.
    Sentence(String),
}

impl Reason {
    pub fn into_text(self) -> String {
        match self {
            Self::Clause(text) | Self::Sentence(text) => text,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clause(text) | Self::Sentence(text) => f.write_str(text),
        }
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        Self::Clause(text.to_owned())
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self::Clause(text)
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn not_found(missing: impl Into<Missing>) -> Self {
        Self::NotFound(missing.into())
    }

    pub fn invalid(field: impl Into<String>, reason: impl Into<Reason>) -> Self {
        Self::unfit(ErrorCode::Invalid, field, reason)
    }

    /// An input that cannot be used, with the code of the case.
    pub fn unfit(code: ErrorCode, field: impl Into<String>, reason: impl Into<Reason>) -> Self {
        Self::Invalid {
            code,
            field: field.into(),
            reason: reason.into(),
        }
    }

    pub fn conflict(code: ErrorCode, reason: impl Into<String>) -> Self {
        Self::Conflict(code, reason.into())
    }

    pub fn internal(cause: impl Into<anyhow::Error>) -> Self {
        Self::Internal(cause.into())
    }

    /// The error for the log. As a text it tells people nothing of what is inside of the program.
    pub fn with_cause(&self) -> String {
        match self {
            Self::Internal(cause) => format!("{self}: {cause:#}"),
            error => error.to_string(),
        }
    }

    /// Whether the reason is not in what was asked: the same may succeed later.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Busy { .. }
                | Self::Collided
                | Self::Unavailable(_)
                | Self::KeysUnreadable
                | Self::Internal(_)
        )
    }

    /// A copy for each caller that waited for the same work. An error whose kind no such caller tells apart becomes
    /// internal.
    #[must_use]
    pub fn share(&self) -> Self {
        match self {
            Self::NotFound(missing) => Self::NotFound(missing.clone()),
            Self::Conflict(code, text) => Self::Conflict(*code, text.clone()),
            Self::Unavailable(text) => Self::Unavailable(text.clone()),
            Self::KeysUnreadable => Self::KeysUnreadable,
            Self::Busy {
                reason,
                retry_after,
            } => Self::Busy {
                reason: reason.clone(),
                retry_after: *retry_after,
            },
            other => Self::Internal(anyhow::anyhow!("{other:?}")),
        }
    }

    /// The stable `code` of the problem document (RFC 9457), also used in metrics.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound(_) | Self::SessionNotFound(_) => ErrorCode::NotFound,
            Self::Unauthenticated(_) => ErrorCode::Unauthenticated,
            Self::Forbidden(_) => ErrorCode::Forbidden,
            Self::Suspended(_) => ErrorCode::TenantSuspended,
            Self::Blocked(_) => ErrorCode::UserBlocked,
            Self::Invalid { code, .. } | Self::Conflict(code, _) | Self::Limited { code, .. } => {
                *code
            }
            Self::Repeated => ErrorCode::RepeatedRequest,
            Self::Busy { .. } | Self::Collided => ErrorCode::Busy,
            Self::Unavailable(_) => ErrorCode::Unavailable,
            Self::KeysUnreadable => ErrorCode::KeysUnreadable,
            Self::Internal(_) => ErrorCode::Internal,
        }
    }
}
