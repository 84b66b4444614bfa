//! The sign-in of a user with a browser: an authorization request with PKCE (RFC 7636) for the server as its resource
//! (RFC 8707), and the answer, whose issuer is checked before its code is sent anywhere (RFC 9207).

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use url::Url;

use super::{
    AuthorizationServer, OAuthError, OAuthErrorKind, ProtectedServer, TokenSet,
    client::authenticated_form, is_code, parse, refusal_error, send, token::redeem_code,
};
use crate::redaction::clip;
use domain::{
    oauth::{OAuthClient, PendingSignIn, TokenService},
    secret::Secret,
};
use egress::Egress;

/// A sign-in that has begun.
pub struct StartedSignIn {
    /// The URL to which the browser is sent.
    pub url: Url,
    /// The `state` parameter, by which the answer is recognised.
    pub state: Secret,
    pub pending: PendingSignIn,
}

/// The parameters with which the browser comes back.
#[derive(Default)]
pub struct CallbackParams {
    pub code: Option<Secret>,
    pub issuer: Option<String>,
    pub error: Option<String>,
    /// The explanation of the error by the authorization server.
    pub error_description: Option<String>,
}

/// The parameters of a sign-in.
pub struct SignInRequest<'a> {
    /// The authorization server and the resource, which may be empty.
    pub at: &'a ProtectedServer,
    pub client: OAuthClient,
    pub redirect_uri: &'a str,
    pub scopes: Vec<String>,
    /// Further parameters that this authorization server requires.
    pub parameters: &'a BTreeMap<String, String>,
}

/// Begins a sign-in. Egress also checks the URL to which the browser is sent.
pub async fn start(
    egress: &Egress,
    request: SignInRequest<'_>,
) -> Result<StartedSignIn, OAuthError> {
    let authorization_server = &request.at.authorization_server;
    let endpoint = authorization_server.sign_in_endpoint()?;
    egress
        .check_url(endpoint)
        .map_err(|error| OAuthError::unusable(error.to_string()))?;
    let (state, verifier) = (random_secret(), random_secret());
    let form = request_form(&request, &state, &verifier);
    let SignInRequest {
        at, client, scopes, ..
    } = request;
    let service = token_service(authorization_server, &at.resource, client);
    let mut url = endpoint.clone();
    match &authorization_server.pushed_request_endpoint {
        Some(push_endpoint) => {
            let request_uri = push_request(egress, &service, push_endpoint, &form).await?;
            url.query_pairs_mut()
                .append_pair("client_id", &service.client.id)
                .append_pair("request_uri", &request_uri);
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

/// The parameters of an authorization request, without the client id.
fn request_form<'a>(
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

/// Pushes an authorization request to the authorization server (RFC 9126). Returns its `request_uri`.
async fn push_request(
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
    let request = authenticated_form(&service.client, endpoint, &service.issuer, &fields)?;
    let (status, body) = send(egress, request).await?;
    if !status.is_success() {
        return Err(refusal_error(
            "the endpoint for pushed requests",
            status,
            &body,
        ));
    }
    let pushed: Pushed = parse(&body, "the answer to the pushed request")?;
    Ok(pushed.request_uri)
}

/// The token service of an authorization server, for this resource and client.
pub(super) fn token_service(
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

/// Exchanges the code for tokens, after checking that the answer is from the authorization server of the sign-in.
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
        let words = params.error_description.as_deref().map(clip);
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

/// 256 random bits as Base64.
fn random_secret() -> Secret {
    Secret::new(BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()))
}
