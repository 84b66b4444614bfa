//! An OAuth 2.1 client, after the authorization specification of MCP (2025-11-25 and 2026-07-28, with the fallbacks of
//! 2025-03-26): finds the authorization server of an MCP server, registers the program there, and gets, refreshes and
//! revokes tokens.
//!
//! Every request goes through [`Egress`] and follows no redirect. The statements of a server are trusted only about itself:
//! metadata must name the server as its resource, wherever the metadata is published; an issuer must be the one that was
//! asked for; a code is sent only to the token endpoint of the issuer to which the user was sent.

mod authorization;
pub mod challenge;
mod client;
mod device;
mod metadata;
mod token;

use http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::{
    authorization::{CallbackParams, SignInRequest, StartedSignIn, redeem, start},
    challenge::Challenge,
    client::{ClientChoice, choose_client, client_metadata, uses_registration},
    device::{DeviceSignIn, start_device, wait_for_user},
    metadata::{AuthorizationServer, ProtectedServer, discover, discover_issuer},
    token::{TokenSet, client_credentials, refresh, revoke, service_for},
};
use egress::{Egress, Limits, Request};

/// How long an authorization server may take for one request.
pub const TIME_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);
/// The most bytes of a response of an authorization server.
const MAX_RESPONSE: usize = 256 * 1024;

/// Why a sign-in failed, or there is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct OAuthError {
    pub kind: OAuthErrorKind,
    /// The message for people. It holds no secret.
    pub why: String,
}

/// The kind of an [`OAuthError`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OAuthErrorKind {
    /// The authorization server does not answer, or has an internal error. Trying again later may succeed.
    Unavailable,
    /// The response was a redirect, which is not followed.
    Redirected,
    /// The server or its authorization server lacks something that is needed, or egress refuses an address.
    Unusable,
    /// An answer that is not from the server that was asked.
    Untrusted,
    /// The authorization server refused, with this error code of OAuth.
    Refused(String),
}

/// The meaning of a refusal to refresh tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefreshRefusal {
    /// The authorization has ended.
    Ended,
    /// The authorization server does not know the client, or not with this secret.
    UnknownClient,
    /// The authorization may still be good.
    Unclear,
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

    /// The meaning of this error of a refresh; `None` if it is no refusal.
    pub fn refresh_refusal(&self) -> Option<RefreshRefusal> {
        let OAuthErrorKind::Refused(code) = &self.kind else {
            return None;
        };
        Some(match code.as_str() {
            // The codes of RFC 6749, GitHub, Supabase, OpenID Connect and others.
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
            | "consent_required" => RefreshRefusal::Ended,
            "invalid_client" | "incorrect_client_credentials" => RefreshRefusal::UnknownClient,
            _ => RefreshRefusal::Unclear,
        })
    }

    /// Whether the authorization server refused with this code.
    pub fn is_refusal(&self, code: &str) -> bool {
        matches!(&self.kind, OAuthErrorKind::Refused(said) if said == code)
    }
}

/// The limits of a request to an authorization server. No redirect is followed, since it would carry a secret along.
fn limits() -> Limits {
    Limits {
        deadline: Some(TIME_LIMIT),
        max_body: MAX_RESPONSE,
        redirects: 0,
        ..Limits::default()
    }
}

/// Sends a request. Returns the status and the body of the response.
async fn send(egress: &Egress, request: Request) -> Result<(StatusCode, bytes::Bytes), OAuthError> {
    let failed = |error: egress::EgressError| {
        let kind = if error.is_rejected() {
            OAuthErrorKind::Unusable
        } else if error.is_redirect() {
            OAuthErrorKind::Redirected
        } else {
            OAuthErrorKind::Unavailable
        };
        OAuthError::new(kind, error.to_string())
    };
    let answer = egress.send(request).await.map_err(failed)?;
    let status = answer.status;
    Ok((status, answer.bytes().await.map_err(failed)?))
}

/// Parses a JSON body. `what` names it in the error.
fn parse<T: DeserializeOwned>(body: &[u8], what: &str) -> Result<T, OAuthError> {
    serde_json::from_slice(body)
        .map_err(|_| OAuthError::unusable(format!("{what} is not what it should be")))
}

/// The members of a body that is a JSON object, or a form, as GitHub sends.
fn read_members(body: &[u8]) -> Option<serde_json::Map<String, Value>> {
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

/// The error code in a body. RFC 6749 has it as `error`; some servers send `error_code`, `code` or an object. Other texts
/// are ignored.
fn error_code(body: &[u8]) -> Option<String> {
    let members = read_members(body)?;
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

/// The error for a response with a status other than success. `what` names the endpoint.
fn refusal_error(what: &str, status: StatusCode, body: &[u8]) -> OAuthError {
    let code = error_code(body);
    let code_note = code.as_deref().map(|code| format!(" ({code})"));
    let why = format!(
        "{what} answered with HTTP {}{}",
        status.as_u16(),
        code_note.unwrap_or_default()
    );
    let is_temporary = status.is_server_error()
        || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    let kind = match code {
        _ if is_temporary => OAuthErrorKind::Unavailable,
        // The authorization server cannot answer at the moment.
        Some(code) if code == "temporarily_unavailable" || code == "server_error" => {
            OAuthErrorKind::Unavailable
        }
        Some(code) => OAuthErrorKind::Refused(code),
        None => OAuthErrorKind::Unusable,
    };
    OAuthError::new(kind, why)
}
