//! Why a server could not be used, or a call brought nothing back. Two questions decide everything
//! above: is it definite (the credential is refused), and may the call be made again.
//!
//! Messages name hosts, statuses and what a server said, and never an argument, a header or a result.

use std::time::Duration;

use super::oauth::Challenge;
use crate::domain::{connection::DownCause, scrub::Scrubber};

/// Why there is no connection to a server, or no list of its tools.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", again(*.retry_in))]
pub struct McpError {
    pub kind: McpErrorKind,
    pub message: String,
    /// Set while the server is left alone after a failure: when it is tried again.
    pub retry_in: Option<Duration>,
    /// What the server says about signing in to it.
    pub challenge: Option<Box<Challenge>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpErrorKind {
    /// A definite 401: the credential is not accepted.
    Unauthorized,
    /// A definite 403: the credential is known and not enough.
    Forbidden,
    /// A 403 that names scopes which the access token lacks.
    ScopeRequired,
    /// A 401 to a request that carried no credential.
    SignInRequired,
    /// 429.
    RateLimited,
    /// The answer leads elsewhere, where it is not followed.
    Redirected,
    /// A page for a browser answers there.
    WebPage,
    /// Nobody answers there, or the child does not run.
    Unreachable,
    TimedOut,
    /// Somebody answers and it is not usable MCP, or an error of the server's.
    Protocol,
    /// The pack names something that cannot work: a command outside the list, a broken header.
    Misconfigured,
    /// This program is shutting down.
    Closed,
}

/// Why a call brought no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing of the call left this machine, or the server said that it took no notice of it. Safe to repeat.
    #[error("{0}")]
    NotSent(String),
    /// A definite 401.
    #[error("the server does not accept the credential (HTTP 401)")]
    Unauthorized,
    /// A definite 403.
    #[error("the server refuses this with the credential it was given (HTTP 403)")]
    Forbidden,
    /// A 403 that names the scopes which the access token lacks. Nothing was done.
    #[error("the server wants permissions that were not given yet ({0:?})")]
    ScopeRequired(String),
    /// The server answered that it will not do it. `code` is its JSON-RPC code.
    #[error("{message}")]
    Refused {
        code: Option<i64>,
        message: String,
        retry_after: Option<Duration>,
    },
    /// Sent, and no answer in time. The tool may have run.
    #[error("no answer within {} s; the tool may have run", .0.as_secs_f32())]
    TimedOut(Duration),
    /// Sent, and the answer was lost or is not readable. The tool may have run.
    #[error("{0}; the tool may have run")]
    OutcomeUnknown(String),
    #[error("the call was cancelled{}", if *.sent { "" } else { " before it was sent" })]
    Cancelled { sent: bool },
}

/// What the transports say of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    NotSent(String),
    /// The server does not know the session, so it did nothing with the request.
    SessionUnknown,
    Unauthorized,
    /// 401, and no credential was sent.
    SignInRequired(Option<Box<Challenge>>),
    Forbidden,
    /// 403, and the access token lacks these scopes.
    ScopeRequired(String),
    /// A redirect that is not followed.
    Redirected(String),
    /// Sent, and answered with a page for a browser.
    WebPage(String),
    /// 429, or 503 with `Retry-After`.
    Busy {
        status: u16,
        retry_after: Option<Duration>,
    },
    Refused {
        code: Option<i64>,
        message: String,
    },
    /// The same in a session, in an error without an id: the server may have refused the session, too.
    RefusedUnmatched {
        code: Option<i64>,
        message: String,
    },
    /// Too slow or silent, before anything was understood.
    Silent(String),
    /// The guard or the pack's own text forbids it.
    Misconfigured(String),
    /// Sent, and answered with a status of failure and without a JSON-RPC answer to the request.
    Status {
        status: u16,
        message: String,
    },
    /// Sent, and lost or unreadable.
    Lost(String),
}

impl McpError {
    pub(super) fn new(kind: McpErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retry_in: None,
            challenge: None,
        }
    }

    /// Whether the credential was refused, which no waiting will change.
    pub fn is_credential(&self) -> bool {
        matches!(
            self.kind,
            McpErrorKind::Unauthorized | McpErrorKind::Forbidden
        )
    }

    pub(super) fn closed() -> Self {
        Self::new(McpErrorKind::Closed, "this program is shutting down")
    }
}

impl From<McpErrorKind> for DownCause {
    fn from(kind: McpErrorKind) -> Self {
        match kind {
            McpErrorKind::Unauthorized | McpErrorKind::Forbidden | McpErrorKind::ScopeRequired => {
                Self::CredentialRefused
            }
            McpErrorKind::SignInRequired => Self::SignInRequired,
            McpErrorKind::RateLimited => Self::RateLimited,
            McpErrorKind::Redirected => Self::Redirected,
            McpErrorKind::WebPage => Self::WebPage,
            McpErrorKind::Unreachable | McpErrorKind::Closed => Self::Unreachable,
            McpErrorKind::TimedOut => Self::Timeout,
            McpErrorKind::Protocol => Self::NotMcp,
            McpErrorKind::Misconfigured => Self::Misconfigured,
        }
    }
}

impl Failure {
    /// The failure without the credentials of its connection.
    pub(super) fn scrubbed(mut self, scrubber: &Scrubber) -> Self {
        match &mut self {
            Self::NotSent(text)
            | Self::Refused { message: text, .. }
            | Self::RefusedUnmatched { message: text, .. }
            | Self::Silent(text)
            | Self::Misconfigured(text)
            | Self::Redirected(text)
            | Self::WebPage(text)
            | Self::ScopeRequired(text)
            | Self::Status { message: text, .. }
            | Self::Lost(text) => scrubber.clean(text),
            Self::SessionUnknown
            | Self::Unauthorized
            | Self::SignInRequired(_)
            | Self::Forbidden
            | Self::Busy { .. } => {}
        }
        self
    }

    /// The failure as a call reports it.
    pub(super) fn of_call(self) -> CallError {
        match self {
            Self::NotSent(reason) | Self::Misconfigured(reason) => CallError::NotSent(reason),
            Self::SessionUnknown => {
                CallError::NotSent("the server forgot the session twice in a row".to_owned())
            }
            Self::Unauthorized => CallError::Unauthorized,
            Self::Forbidden => CallError::Forbidden,
            Self::ScopeRequired(scope) => CallError::ScopeRequired(scope),
            Self::SignInRequired(challenge) => CallError::Refused {
                code: None,
                message: sign_in(challenge.as_deref()).to_owned(),
                retry_after: None,
            },
            Self::Busy {
                status: status @ 500..,
                retry_after,
            } => CallError::OutcomeUnknown(busy(status, retry_after)),
            Self::Busy {
                status,
                retry_after,
            } => CallError::Refused {
                code: None,
                message: busy(status, retry_after),
                retry_after,
            },
            Self::Refused { code, message } | Self::RefusedUnmatched { code, message } => {
                CallError::Refused {
                    code,
                    message,
                    retry_after: None,
                }
            }
            Self::Silent(reason)
            | Self::Redirected(reason)
            | Self::WebPage(reason)
            | Self::Status {
                message: reason, ..
            }
            | Self::Lost(reason) => CallError::OutcomeUnknown(reason),
        }
    }

    /// The failure as connecting or listing reports it.
    pub(super) fn of_server(self) -> McpError {
        use McpErrorKind::{
            Forbidden, Misconfigured, Protocol, RateLimited, Redirected, ScopeRequired,
            SignInRequired, TimedOut, Unauthorized, Unreachable, WebPage,
        };
        match self {
            Self::NotSent(reason)
            | Self::Status {
                status: 500..,
                message: reason,
            } => McpError::new(Unreachable, reason),
            Self::SessionUnknown => {
                McpError::new(Protocol, "the server forgot the session twice in a row")
            }
            Self::Unauthorized => McpError::new(Unauthorized, CallError::Unauthorized.to_string()),
            Self::Forbidden => McpError::new(Forbidden, CallError::Forbidden.to_string()),
            Self::Busy {
                status,
                retry_after,
            } => {
                let kind = if status == 429 {
                    RateLimited
                } else {
                    Unreachable
                };
                let error = McpError::new(kind, busy(status, retry_after));
                McpError {
                    retry_in: retry_after,
                    ..error
                }
            }
            Self::SignInRequired(challenge) => McpError {
                challenge: challenge.clone(),
                ..McpError::new(SignInRequired, sign_in(challenge.as_deref()))
            },
            Self::ScopeRequired(scope) => McpError {
                challenge: Some(Box::new(Challenge {
                    scope: Some(scope.clone()),
                    ..Challenge::default()
                })),
                ..McpError::new(ScopeRequired, CallError::ScopeRequired(scope).to_string())
            },
            Self::Redirected(message)
            | Self::Status {
                status: 300..400,
                message,
            } => McpError::new(Redirected, message),
            Self::WebPage(message) => McpError::new(WebPage, message),
            Self::Refused { message, .. }
            | Self::RefusedUnmatched { message, .. }
            | Self::Status { message, .. } => McpError::new(Protocol, message),
            Self::Silent(reason) => McpError::new(TimedOut, reason),
            Self::Misconfigured(reason) => McpError::new(Misconfigured, reason),
            Self::Lost(reason) => McpError::new(Protocol, reason),
        }
    }
}

impl From<McpError> for CallError {
    /// A call that needed a connection and got none: nothing of it was sent.
    fn from(error: McpError) -> Self {
        match error.kind {
            McpErrorKind::Unauthorized => Self::Unauthorized,
            McpErrorKind::Forbidden => Self::Forbidden,
            McpErrorKind::ScopeRequired => {
                let scope = error.challenge.and_then(|challenge| challenge.scope);
                Self::ScopeRequired(scope.unwrap_or_default())
            }
            _ => Self::NotSent(error.to_string()),
        }
    }
}

fn sign_in(challenge: Option<&Challenge>) -> &'static str {
    if challenge.is_some_and(|challenge| challenge.resource_metadata.is_some()) {
        "the server wants a sign-in (OAuth), and none is configured; write `auth` into the pack"
    } else {
        "the server wants a credential, and none is configured (HTTP 401)"
    }
}

fn busy(status: u16, retry_after: Option<Duration>) -> String {
    let when = retry_after.map(|after| format!("; it asks to wait {} s", after.as_secs()));
    format!(
        "the server is busy (HTTP {status}){}",
        when.unwrap_or_default()
    )
}

fn again(retry_in: Option<Duration>) -> String {
    retry_in.map_or_else(String::new, |wait| {
        format!(" (next try in {} s)", wait.as_secs_f32().ceil())
    })
}
