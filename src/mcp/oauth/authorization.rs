//! The sign-in of a user: an authorization request with PKCE (RFC 7636) and the server as its resource (RFC 8707), and
//! the answer that comes back with the browser, whose issuer is checked before its code is sent anywhere (RFC 9207).

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use url::Url;

use super::{
    AuthorizationServer, OAuthError, OAuthErrorKind, ProtectedServer, TokenSet, is_code,
    token::redeem_code,
};
use crate::{
    domain::{
        oauth::{OAuthClient, PendingSignIn, TokenService},
        secret::Secret,
    },
    egress::Egress,
};

/// A sign-in that has begun.
pub struct StartedSignIn {
    /// Where the user signs in.
    pub url: Url,
    /// By which the answer is known.
    pub state: Secret,
    pub pending: PendingSignIn,
}

/// What came back with the browser.
#[derive(Default)]
pub struct CallbackParams {
    pub code: Option<Secret>,
    pub issuer: Option<String>,
    pub error: Option<String>,
}

/// Begins a sign-in. The egress guard also decides where a browser may be sent.
pub fn start(
    egress: &Egress,
    server: &ProtectedServer,
    client: OAuthClient,
    redirect_uri: &str,
    scopes: Vec<String>,
) -> Result<StartedSignIn, OAuthError> {
    let authorization_server = &server.authorization_server;
    let Some(endpoint) = &authorization_server.authorization_endpoint else {
        return Err(OAuthError::unusable(
            "the authorization server does not support PKCE with S256, without which a code is not safe",
        ));
    };
    egress
        .check_url(endpoint)
        .map_err(|error| OAuthError::unusable(error.to_string()))?;
    let (state, verifier) = (random(), random());
    let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.expose()));
    let mut url = endpoint.clone();
    url.query_pairs_mut()
        .append_pair("response_type", "code")
        .append_pair("client_id", &client.id)
        .append_pair("redirect_uri", redirect_uri)
        .append_pair("state", state.expose())
        .append_pair("code_challenge", &challenge)
        .append_pair("code_challenge_method", "S256")
        .append_pair("resource", &server.resource);
    if !scopes.is_empty() {
        url.query_pairs_mut()
            .append_pair("scope", &scopes.join(" "));
    }
    if scopes.iter().any(|scope| scope == "offline_access") {
        // OpenID Connect Core, section 11: without it the scope is ignored.
        url.query_pairs_mut().append_pair("prompt", "consent");
    }
    let pending = PendingSignIn {
        service: service(authorization_server, &server.resource, client),
        scopes,
        redirect_uri: redirect_uri.to_owned(),
        names_issuer: authorization_server.names_issuer,
        verifier,
    };
    Ok(StartedSignIn {
        url,
        state,
        pending,
    })
}

pub(super) fn service(
    server: &AuthorizationServer,
    resource: &str,
    client: OAuthClient,
) -> TokenService {
    TokenService {
        issuer: server.issuer.clone(),
        token_endpoint: server.token_endpoint.clone(),
        revocation_endpoint: server.revocation_endpoint.clone(),
        resource: resource.to_owned(),
        client,
    }
}

/// Exchanges the code that came back for tokens, once it is certain that the right authorization server sent it.
pub async fn redeem(
    egress: &Egress,
    pending: &PendingSignIn,
    params: &CallbackParams,
) -> Result<TokenSet, OAuthError> {
    let issuer_fits = match &params.issuer {
        Some(issuer) => *issuer == pending.service.issuer,
        None => !pending.names_issuer,
    };
    if !issuer_fits {
        return Err(OAuthError::untrusted(
            "the answer is not from the authorization server that the user was sent to",
        ));
    }
    if let Some(code) = &params.error {
        let code = if is_code(code) { code } else { "error" };
        let why = format!("the authorization server answered with {code}");
        return Err(OAuthError::new(
            OAuthErrorKind::Refused(code.to_owned()),
            why,
        ));
    }
    let Some(code) = &params.code else {
        return Err(OAuthError::unusable("the answer has no code"));
    };
    redeem_code(egress, pending, code).await
}

/// 256 random bits.
fn random() -> Secret {
    Secret::new(BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()))
}
