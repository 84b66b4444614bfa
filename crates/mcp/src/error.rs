//! Why a server could not be used, or a call brought nothing back. Two questions decide everything
//! above: is it definite (the credential is refused), and may the call be made again.
//!
//! Messages name hosts, statuses and what a server said, and never an argument, a header or a result.

use std::time::Duration;

use super::oauth::Challenge;
use domain::{
    connection::{ConnectionTestError, DownCause},
    scrub::Scrubber,
};

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
    /// Refused in a session, in a way that a lost session is told in, too.
    SessionInDoubt(Box<SessionDoubt>),
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

/// A refusal that may be the session's or the request's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SessionDoubt {
    pub(super) status: u16,
    pub(super) said: Said,
    /// The refusal for people.
    pub(super) words: String,
    /// What it means when the session is not lost.
    pub(super) own: Failure,
}

/// What a refusal says, but for the id of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// A JSON-RPC error.
    Error { code: i64, message: String },
    /// Anything else.
    Body(String),
}

impl Said {
    pub(super) fn read(body: &[u8]) -> Self {
        let mut json: serde_json::Value = match serde_json::from_slice(body) {
            Ok(json) => json,
            Err(_) => return Self::Body(String::from_utf8_lossy(body.trim_ascii()).into_owned()),
        };
        if let Some(code) = json["error"]["code"].as_i64() {
            let message = json["error"]["message"].as_str().unwrap_or_default();
            return Self::Error {
                code,
                message: message.to_owned(),
            };
        }
        if let Some(members) = json.as_object_mut() {
            members.remove("id");
        }
        Self::Body(json.to_string())
    }
}

impl SessionDoubt {
    /// Whether the server refused both in the same way.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.status == other.status && self.said == other.said
    }

    fn is_about_credential(&self) -> bool {
        matches!(
            self.own,
            Failure::Unauthorized | Failure::Forbidden | Failure::SignInRequired(_)
        )
    }

    /// What it means in a session that is alive: the tool's own refusal, and nothing about the credential, with which
    /// the server answers everything else.
    pub(super) fn of_tool(self) -> Failure {
        if !self.is_about_credential() {
            return self.own;
        }
        let code = match self.said {
            Said::Error { code, .. } => Some(code),
            Said::Body(_) => None,
        };
        Failure::Refused {
            code,
            message: self.words,
        }
    }

    /// What it means when a new session is refused like the one before. `is_proven`: the server has answered with this
    /// credential before, so that it is not the credential which the server refuses.
    pub(super) fn of_new_session(self, is_proven: bool) -> Failure {
        if self.is_about_credential() && is_proven {
            return Failure::NotSent(FORGETFUL.to_owned());
        }
        self.own
    }
}

/// A server that loses a session which it has opened a moment ago.
pub(super) const FORGETFUL: &str = "the server forgot the session twice in a row";

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
    /// The failure without the credentials of its connection.
    pub(super) fn scrubbed(mut self, scrubber: &Scrubber) -> Self {
        match &mut self {
            Self::NotSent(text)
            | Self::Refused { message: text, .. }
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
                doubt.own = own.scrubbed(scrubber);
            }
            Self::Unauthorized | Self::SignInRequired(_) | Self::Forbidden | Self::Busy { .. } => {}
        }
        self
    }

    /// Whether the answer leads elsewhere.
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

    /// The failure as a call reports it.
    pub(super) fn of_call(self) -> CallError {
        match self {
            Self::NotSent(reason) | Self::Misconfigured(reason) => CallError::NotSent(reason),
            Self::SessionInDoubt(doubt) => doubt.own.of_call(),
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
            Self::Refused { code, message } => CallError::Refused {
                code,
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
            Self::SessionInDoubt(doubt) => doubt.own.of_server(),
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
            Self::Refused { message, .. } | Self::Status { message, .. } => {
                McpError::new(Protocol, message)
            }
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
