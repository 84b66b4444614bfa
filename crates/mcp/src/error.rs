//! The errors of servers and of calls. Callers need to know two things: whether the credential was refused for good, and
//! whether a call may be made again.
//!
//! Messages name hosts, statuses and the server's own texts, and never an argument, a header or a result.

use std::time::Duration;

use super::oauth::Challenge;
use domain::{
    connection::{ConnectionTestError, DownCause},
    jsonrpc::UNSUPPORTED_VERSION,
    scrub::Scrubber,
};

/// Why there is no connection to a server, or no list of its tools.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", retry_note(*.retry_in))]
pub struct McpError {
    pub kind: McpErrorKind,
    pub message: String,
    /// How long nothing is sent to the server because of this failure.
    pub retry_in: Option<Duration>,
    /// How to sign in, if the server says so.
    pub challenge: Option<Box<Challenge>>,
}

/// The kind of an [`McpError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpErrorKind {
    /// HTTP 401: the credential is not accepted.
    Unauthorized,
    /// HTTP 403: the credential is known but does not suffice.
    Forbidden,
    /// HTTP 403 that names the scopes which the access token lacks.
    ScopeRequired,
    /// HTTP 401 to a request without a credential.
    SignInRequired,
    /// HTTP 429.
    RateLimited,
    /// The server redirects to a place that must not be followed.
    Redirected,
    /// The address serves a web page.
    WebPage,
    /// Nothing answers at the address, or the child process does not run.
    Unreachable,
    TimedOut,
    /// The server answers with an error, or with something that is not usable MCP.
    Protocol,
    /// The settings of the server cannot work: its command is not allowed, or a header is invalid.
    Misconfigured,
    /// This program is shutting down.
    Closed,
}

/// Why a call brought no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing of the call left this machine, or the server certainly did not execute it. Safe to repeat.
    #[error("{0}")]
    NotSent(String),
    /// HTTP 401.
    #[error("the server does not accept the credential (HTTP 401)")]
    Unauthorized,
    /// HTTP 403.
    #[error("the server refuses this with the credential it was given (HTTP 403)")]
    Forbidden,
    /// HTTP 403 that names the scopes which the access token lacks. Nothing was executed.
    #[error("the server wants permissions that were not given yet ({0:?})")]
    ScopeRequired(String),
    /// The server refused the call. `code` is the JSON-RPC code of its error.
    #[error("{message}")]
    Refused {
        code: Option<i64>,
        message: String,
        retry_after: Option<Duration>,
    },
    /// The call was sent and not answered in time. The tool may have run.
    #[error("no answer within {} s; the tool may have run", .0.as_secs_f32())]
    TimedOut(Duration),
    /// The call was sent, and its answer was lost or is not readable. The tool may have run.
    #[error("{0}; the tool may have run")]
    OutcomeUnknown(String),
    /// The call was sent, and the refusal of its session came back. Another instance of the server may have read the call
    /// before, or this one may have executed it first. The tool may have run.
    #[error("{message}; the server did not know the session, and the tool may have run")]
    SessionLost { status: u16, message: String },
    #[error("the call was cancelled{}", if *.sent { "" } else { " before it was sent" })]
    Cancelled { sent: bool },
}

impl CallError {
    /// A code for log lines, which must not carry a server's text.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotSent(_) => "not_sent",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::ScopeRequired(_) => "scope_required",
            Self::Refused { .. } => "refused",
            Self::TimedOut(_) => "timed_out",
            Self::OutcomeUnknown(_) => "outcome_unknown",
            Self::SessionLost { .. } => "session_lost",
            Self::Cancelled { .. } => "cancelled",
        }
    }

    /// Whether the call certainly had no effect: nothing of it has left. What a server refused (a token, a session) may
    /// have been read by another server behind the same address.
    pub fn is_unsent(&self) -> bool {
        matches!(self, Self::NotSent(_) | Self::Cancelled { sent: false })
    }
}

/// Why a single request failed, as the transports report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Nothing of the request left this machine, or the server certainly ignored it.
    NotSent(String),
    /// Refused in a way that may mean that the session is lost.
    SessionInDoubt(Box<SessionDoubt>),
    Unauthorized,
    /// HTTP 401 to a request without a credential.
    SignInRequired(Option<Box<Challenge>>),
    Forbidden,
    /// HTTP 403: the access token lacks these scopes.
    ScopeRequired(String),
    /// The answer was a redirect that must not be followed.
    Redirected(String),
    /// The answer was a web page.
    WebPage(String),
    /// HTTP 429, or 503 with `Retry-After`.
    Busy {
        status: u16,
        retry_after: Option<Duration>,
    },
    /// The answer was a JSON-RPC error, or another certain refusal.
    Refused {
        code: Option<i64>,
        message: String,
    },
    /// The answer was the error that the server does not speak the revision of the request; it speaks these.
    OtherRevision {
        supported: Vec<String>,
        message: String,
    },
    /// There was no answer in time.
    Silent(String),
    /// The settings of the server cannot work, or egress refuses its address.
    Misconfigured(String),
    /// The answer had a status other than success, and no JSON-RPC answer to the request.
    Status {
        status: u16,
        message: String,
    },
    /// The answer was lost or is not readable.
    Lost(String),
}

/// A refusal after which it is not known whether the server refuses the session or the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SessionDoubt {
    pub(super) status: u16,
    /// The refusal in words for people.
    pub(super) words: String,
    /// The failure that it is where nothing tells whether the session is lost.
    pub(super) own: Failure,
}

impl SessionDoubt {
    pub(super) fn is_about_credential(&self) -> bool {
        matches!(
            self.own,
            Failure::Unauthorized | Failure::Forbidden | Failure::SignInRequired(_)
        )
    }

    /// The failure when a new session was refused like the one before. `is_credential_good`: the server has accepted the
    /// credential before, so the refusal is not about the credential.
    pub(super) fn into_failure_of_new_session(self, is_credential_good: bool) -> Failure {
        if self.is_about_credential() && is_credential_good {
            return Failure::NotSent("the server forgot the session twice in a row".to_owned());
        }
        self.own
    }
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

    /// Whether the credential was refused. Waiting does not help then.
    pub fn is_credential_refused(&self) -> bool {
        matches!(
            self.kind,
            McpErrorKind::Unauthorized | McpErrorKind::Forbidden
        )
    }

    pub(super) fn shutting_down() -> Self {
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

impl From<&McpError> for ConnectionTestError {
    fn from(error: &McpError) -> Self {
        match error.kind {
            McpErrorKind::Unauthorized
            | McpErrorKind::Forbidden
            | McpErrorKind::ScopeRequired
            | McpErrorKind::SignInRequired => Self::Unauthorized,
            McpErrorKind::Unreachable | McpErrorKind::Closed | McpErrorKind::RateLimited => {
                Self::Unreachable
            }
            McpErrorKind::TimedOut => Self::Timeout,
            McpErrorKind::Misconfigured => Self::BadTemplate,
            McpErrorKind::Protocol | McpErrorKind::Redirected | McpErrorKind::WebPage => {
                Self::NotMcp
            }
        }
    }
}

impl Failure {
    /// Removes the credentials of the connection from the texts of the failure.
    pub(super) fn scrub(mut self, scrubber: &Scrubber) -> Self {
        match &mut self {
            Self::NotSent(text)
            | Self::Refused { message: text, .. }
            | Self::OtherRevision { message: text, .. }
            | Self::Silent(text)
            | Self::Misconfigured(text)
            | Self::Redirected(text)
            | Self::WebPage(text)
            | Self::ScopeRequired(text)
            | Self::Status { message: text, .. }
            | Self::Lost(text) => scrubber.clean(text),
            Self::SessionInDoubt(doubt) => {
                scrubber.clean(&mut doubt.words);
                let own = std::mem::replace(&mut doubt.own, Self::Forbidden);
                doubt.own = own.scrub(scrubber);
            }
            Self::Unauthorized | Self::SignInRequired(_) | Self::Forbidden | Self::Busy { .. } => {}
        }
        self
    }

    /// Whether the answer was a redirect.
    pub(super) fn is_redirect(&self) -> bool {
        matches!(
            self,
            Self::Redirected(_)
                | Self::Status {
                    status: 300..400,
                    ..
                }
        )
    }

    /// The status of the answer, if it is what says that the request failed.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Unauthorized | Self::SignInRequired(_) => Some(401),
            Self::Forbidden | Self::ScopeRequired(_) => Some(403),
            Self::Busy { status, .. } | Self::Status { status, .. } => Some(*status),
            Self::SessionInDoubt(doubt) => Some(doubt.status),
            _ => None,
        }
    }

    /// The failure as the error of a call.
    pub(super) fn into_call_error(self) -> CallError {
        match self {
            Self::NotSent(reason) | Self::Misconfigured(reason) => CallError::NotSent(reason),
            Self::SessionInDoubt(doubt) => doubt.own.into_call_error(),
            Self::Unauthorized => CallError::Unauthorized,
            Self::Forbidden => CallError::Forbidden,
            Self::ScopeRequired(scope) => CallError::ScopeRequired(scope),
            Self::SignInRequired(challenge) => CallError::Refused {
                code: None,
                message: sign_in_message(challenge.as_deref()).to_owned(),
                retry_after: None,
            },
            Self::Busy {
                status: status @ 500..,
                retry_after,
            } => CallError::OutcomeUnknown(busy_message(status, retry_after)),
            Self::Busy {
                status,
                retry_after,
            } => CallError::Refused {
                code: None,
                message: busy_message(status, retry_after),
                retry_after,
            },
            Self::Refused { code, message } => CallError::Refused {
                code,
                message,
                retry_after: None,
            },
            Self::OtherRevision { message, .. } => CallError::Refused {
                code: Some(UNSUPPORTED_VERSION),
                message,
                retry_after: None,
            },
            Self::Silent(reason)
            | Self::Redirected(reason)
            | Self::WebPage(reason)
            | Self::Status {
                message: reason, ..
            }
            | Self::Lost(reason) => CallError::OutcomeUnknown(reason),
        }
    }

    /// The failure as the error of connecting or listing.
    pub(super) fn into_server_error(self) -> McpError {
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
            Self::SessionInDoubt(doubt) => doubt.own.into_server_error(),
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
                let error = McpError::new(kind, busy_message(status, retry_after));
                McpError {
                    retry_in: retry_after,
                    ..error
                }
            }
            Self::SignInRequired(challenge) => McpError {
                challenge: challenge.clone(),
                ..McpError::new(SignInRequired, sign_in_message(challenge.as_deref()))
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
            | Self::OtherRevision { message, .. }
            | Self::Status { message, .. } => McpError::new(Protocol, message),
            Self::Silent(reason) => McpError::new(TimedOut, reason),
            Self::Misconfigured(reason) => McpError::new(Misconfigured, reason),
            Self::Lost(reason) => McpError::new(Protocol, reason),
        }
    }
}

impl From<McpError> for CallError {
    /// The error of a call for which no connection could be made, so nothing of it was sent.
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

fn sign_in_message(challenge: Option<&Challenge>) -> &'static str {
    if challenge.is_some_and(|challenge| challenge.resource_metadata.is_some()) {
        "the server wants a sign-in (OAuth), and none is configured; write `auth` into the pack"
    } else {
        "the server wants a credential, and none is configured (HTTP 401)"
    }
}

fn busy_message(status: u16, retry_after: Option<Duration>) -> String {
    let when = retry_after.map(|after| format!("; it asks to wait {} s", after.as_secs()));
    format!(
        "the server is busy (HTTP {status}){}",
        when.unwrap_or_default()
    )
}

fn retry_note(retry_in: Option<Duration>) -> String {
    retry_in.map_or_else(String::new, |wait| {
        format!(" (next try in {} s)", wait.as_secs_f32().ceil())
    })
}
