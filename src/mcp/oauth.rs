//! OAuth 2.1 as a client, after the authorization specification of MCP (2025-11-25 and 2026-07-28, with the fallbacks
//! of 2025-03-26): where a server's authorization server is, who the program is to it, and how tokens are got,
//! refreshed and revoked.
//!
//! Every request goes through [`Egress`] and follows no redirect. What a server says is believed of that server only:
//! its metadata comes from its own origin, an issuer is the one that was asked for, a code is sent only to the token
//! endpoint of the issuer that the user was sent to.

mod authorization;
pub mod challenge;
mod client_auth;
mod device;
mod metadata;
mod registration;
mod token;

use http::StatusCode;
use serde::de::DeserializeOwned;

pub use self::{
    authorization::{CallbackParams, SignInRequest, StartedSignIn, redeem, start},
    challenge::Challenge,
    device::{DeviceSignIn, start_device, wait_for_user},
    metadata::{AuthorizationServer, ProtectedServer, discover, discover_issuer},
    registration::{ClientChoice, choose_client, client_metadata},
    token::{TokenSet, client_credentials, refresh, revoke, service_for},
};
use crate::egress::{Egress, Limits, Request};

/// How long an authorization server may take for one request, and what it may say.
pub const TIME_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);
const MAX_ANSWER: usize = 256 * 1024;

/// Why a sign-in or a token is not to be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct OAuthError {
    pub kind: OAuthErrorKind,
    /// For people. It repeats no secret and nothing that a server says but codes of the protocol.
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OAuthErrorKind {
    /// Nobody answers, or with an error of its own: it may work later.
    Away,
    /// The server or its authorization server lacks something, or the guard forbids it.
    Unusable,
    /// An answer that cannot be from the one who was asked.
    Untrusted,
    /// The authorization server says no, with this code of the protocol.
    Refused(String),
}

impl OAuthError {
    fn new(kind: OAuthErrorKind, why: impl Into<String>) -> Self {
        Self {
            kind,
            why: why.into(),
        }
    }

    fn unusable(why: impl Into<String>) -> Self {
        Self::new(OAuthErrorKind::Unusable, why)
    }

    fn untrusted(why: impl Into<String>) -> Self {
        Self::new(OAuthErrorKind::Untrusted, why)
    }

    /// Whether the authorization server answered with this code.
    pub fn is_refusal(&self, code: &str) -> bool {
        matches!(&self.kind, OAuthErrorKind::Refused(said) if said == code)
    }
}

/// The limits of a request to an authorization server. No redirect is followed: it would take a secret along.
fn limits() -> Limits {
    Limits {
        deadline: Some(TIME_LIMIT),
        max_body: MAX_ANSWER,
        redirects: 0,
        ..Limits::default()
    }
}

/// Sends a request: the status, and the body.
async fn send(egress: &Egress, request: Request) -> Result<(StatusCode, bytes::Bytes), OAuthError> {
    let failed = |error: crate::egress::EgressError| {
        let kind = if error.is_rejected() {
            OAuthErrorKind::Unusable
        } else {
            OAuthErrorKind::Away
        };
        OAuthError::new(kind, error.to_string())
    };
    let answer = egress.send(request).await.map_err(failed)?;
    let status = answer.status;
    Ok((status, answer.bytes().await.map_err(failed)?))
}

/// An answer as JSON; `what` names it.
fn parse<T: DeserializeOwned>(body: &[u8], what: &str) -> Result<T, OAuthError> {
    serde_json::from_slice(body)
        .map_err(|_| OAuthError::unusable(format!("{what} is not what it should be")))
}

/// The code of an error is a word of the protocol; whatever else a server says is not repeated.
fn error_code(body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct ErrorAnswer {
        error: String,
    }
    let answer: ErrorAnswer = serde_json::from_slice(body).ok()?;
    is_code(&answer.error).then_some(answer.error)
}

/// Whether a text may be an error code of OAuth.
fn is_code(text: &str) -> bool {
    let is_of_code = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    !text.is_empty() && text.len() <= 64 && text.bytes().all(is_of_code)
}

/// What a status other than success means.
fn refusal(what: &str, status: StatusCode, body: &[u8]) -> OAuthError {
    let code = error_code(body);
    let said = code.as_deref().map(|code| format!(" ({code})"));
    let why = format!(
        "{what} answered with HTTP {}{}",
        status.as_u16(),
        said.unwrap_or_default()
    );
    let is_later = status.is_server_error()
        || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    let kind = match code {
        _ if is_later => OAuthErrorKind::Away,
        // What an authorization server says while it cannot.
        Some(code) if code == "temporarily_unavailable" || code == "server_error" => {
            OAuthErrorKind::Away
        }
        Some(code) => OAuthErrorKind::Refused(code),
        None => OAuthErrorKind::Unusable,
    };
    OAuthError::new(kind, why)
}
