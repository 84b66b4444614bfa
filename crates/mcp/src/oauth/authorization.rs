//! The sign-in of a user: an authorization request with PKCE (RFC 7636) and the server as its resource (RFC 8707), and
//! the answer that comes back with the browser, whose issuer is checked before its code is sent anywhere (RFC 9207).

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use url::Url;

use super::{
    AuthorizationServer, OAuthError, OAuthErrorKind, ProtectedServer, TokenSet,
    client_auth::signed_form, is_code, parse, refusal, send, token::redeem_code,
};
use crate::interceptor::clipped;
use domain::{
    oauth::{OAuthClient, PendingSignIn, TokenService},
    secret::Secret,
};
use egress::Egress;

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
    /// What the authorization server says about the error.
    pub error_description: Option<String>,
}

/// What a sign-in is to be.
pub struct SignInRequest<'a> {
    /// Where, and for which resource. Without one it is empty.
    pub at: &'a ProtectedServer,
    pub client: OAuthClient,
    pub redirect_uri: &'a str,
    pub scopes: Vec<String>,
    /// What else this authorization server wants to know.
    pub parameters: &'a BTreeMap<String, String>,
}

/// Begins a sign-in. The egress guard also decides where a browser may be sent.
pub async fn start(
    egress: &Egress,
    request: SignInRequest<'_>,
) -> Result<StartedSignIn, OAuthError> {
    let authorization_server = &request.at.authorization_server;
    let endpoint = authorization_server.sign_in_endpoint()?;
    egress
        .check_url(endpoint)
        .map_err(|error| OAuthError::unusable(error.to_string()))?;
    let (state, verifier) = (random(), random());
    let form = form(&request, &state, &verifier);
    let SignInRequest {
        at, client, scopes, ..
    } = request;
    let service = service(authorization_server, &at.resource, client);
    let mut url = endpoint.clone();
    match &authorization_server.pushed_request_endpoint {
        Some(place) => {
            let pushed = push(egress, &service, place, &form).await?;
            url.query_pairs_mut()
                .append_pair("client_id", &service.client.id)
                .append_pair("request_uri", &pushed);
        }
        None => {
            url.query_pairs_mut()
                .append_pair("client_id", &service.client.id)
                .extend_pairs(&form);
        }
    }
    let pending = PendingSignIn {
        service,
        scopes,
        redirect_uri: request.redirect_uri.to_owned(),
        names_issuer: authorization_server.names_issuer,
        verifier,
    };
    Ok(StartedSignIn {
        url,
        state,
        pending,
    })
}

/// What an authorization server is asked, but for who asks.
fn form<'a>(
    request: &SignInRequest<'a>,
    state: &Secret,
    verifier: &Secret,
) -> Vec<(&'a str, String)> {
    let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.expose()));
    let mut form = vec![
        ("response_type", "code".to_owned()),
        ("redirect_uri", request.redirect_uri.to_owned()),
        ("state", state.expose().to_owned()),
        ("code_challenge", challenge),
        ("code_challenge_method", "S256".to_owned()),
    ];
    if !request.at.resource.is_empty() {
        form.push(("resource", request.at.resource.clone()));
    }
    if !request.scopes.is_empty() {
        form.push(("scope", request.scopes.join(" ")));
    }
    if request.scopes.iter().any(|scope| scope == "offline_access") {
        // OpenID Connect Core, section 11: without it the scope is ignored.
        form.push(("prompt", "consent".to_owned()));
    }
    for (name, value) in request.parameters {
        form.retain(|(known, _)| known != name);
        form.push((name, value.clone()));
    }
    form
}

/// Leaves a request at the authorization server (RFC 9126): the address by which it is known there.
async fn push(
    egress: &Egress,
    service: &TokenService,
    endpoint: &Url,
    form: &[(&str, String)],
) -> Result<String, OAuthError> {
    #[derive(serde::Deserialize)]
    struct Pushed {
        request_uri: String,
    }
    let fields: Vec<_> = form
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let request = signed_form(&service.client, endpoint, &service.issuer, &fields)?;
    let (status, body) = send(egress, request).await?;
    if !status.is_success() {
        return Err(refusal("the endpoint for pushed requests", status, &body));
    }
    let pushed: Pushed = parse(&body, "the answer to the pushed request")?;
    Ok(pushed.request_uri)
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
        let words = params.error_description.as_deref().map(clipped);
        let words = words.filter(|words| !words.is_empty());
        let words = words.map_or_else(String::new, |words| format!(": {words:?}"));
        let why = format!("the authorization server answered with {code}{words}");
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
