//! OAuth 2.1 as a client, after the authorization specification of MCP (2025-11-25 and 2026-07-28, with the fallbacks
//! of 2025-03-26): where a server's authorization server is, who the program is to it, and how tokens are got,
//! refreshed and revoked.
//!
//! Every request goes through [`Egress`] and follows no redirect. What a server says is believed of that server only:
//! its metadata names it as the resource, wherever the metadata is; an issuer is the one that was asked for; a code is
//! sent only to the token endpoint of the issuer that the user was sent to.

mod authorization;
pub mod challenge;
mod client_auth;
mod device;
mod metadata;
mod registration;
mod token;

use http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::{
    authorization::{CallbackParams, SignInRequest, StartedSignIn, redeem, start},
    challenge::Challenge,
    device::{DeviceSignIn, start_device, wait_for_user},
    metadata::{AuthorizationServer, ProtectedServer, discover, discover_issuer},
    registration::{ClientChoice, choose_client, client_metadata, is_registered},
    token::{TokenSet, client_credentials, refresh, revoke, service_for},
};
use egress::{Egress, Limits, Request};

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
    /// The answer leads elsewhere, where nothing is sent.
    Redirected,
    /// The server or its authorization server lacks something, or the guard forbids it.
    Unusable,
    /// An answer that cannot be from the one who was asked.
    Untrusted,
    /// The authorization server says no, with this code of the protocol.
    Refused(String),
}

/// What a refusal to refresh tokens means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefreshRefusal {
    /// The authorization has ended.
    Dead,
    /// The authorization server does not know the client, or not with this secret.
    UnknownClient,
    /// It may be the fault of this one request.
    Doubtful,
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

    /// What a refusal to refresh tokens says of them.
    pub fn refresh_refusal(&self) -> Option<RefreshRefusal> {
        let OAuthErrorKind::Refused(code) = &self.kind else {
            return None;
        };
        Some(match code.as_str() {
            // RFC 6749; GitHub; Supabase; OpenID Connect; others.
            "invalid_grant"
            | "bad_refresh_token"
            | "refresh_token_not_found"
            | "refresh_token_already_used"
            | "session_not_found"
            | "session_expired"
            | "user_not_found"
            | "user_banned"
            | "invalid_refresh_token"
            | "refresh_token_expired"
            | "refresh_token_revoked"
            | "invalid_token"
            | "expired_token"
            | "token_expired"
            | "token_revoked"
            | "access_denied"
            | "interaction_required"
            | "login_required"
            | "consent_required" => RefreshRefusal::Dead,
            "invalid_client" | "incorrect_client_credentials" => RefreshRefusal::UnknownClient,
            _ => RefreshRefusal::Doubtful,
        })
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
    let failed = |error: egress::EgressError| {
        let kind = if error.is_rejected() {
            OAuthErrorKind::Unusable
        } else if error.is_redirect() {
            OAuthErrorKind::Redirected
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

/// An answer as its members: of a JSON object, or of a form, as GitHub sends one.
fn members(body: &[u8]) -> Option<serde_json::Map<String, Value>> {
    if let Ok(members) = serde_json::from_slice(body) {
        return Some(members);
    }
    let is_form = body.contains(&b'=') && !body.contains(&b'<') && !body.contains(&b'{');
    let form = url::form_urlencoded::parse(body);
    is_form.then(|| {
        form.map(|(name, value)| (name.into_owned(), value.into()))
            .collect()
    })
}

/// The code of an error is a word of the protocol; whatever else a server says is not repeated. RFC 6749 writes it as
/// `error`; others write `error_code` or `code`, or an object.
fn error_code(body: &[u8]) -> Option<String> {
    let members = members(body)?;
    let texts = ["error", "error_code", "code"]
        .into_iter()
        .filter_map(|name| {
            let value = members.get(name)?;
            let inner = value.get("code").or_else(|| value.get("type"));
            inner.unwrap_or(value).as_str().map(str::to_ascii_lowercase)
        });
    texts.into_iter().find(|text| is_code(text))
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
