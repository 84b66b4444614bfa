//! Requests to the token endpoint, which gives an access token for a code, a refresh token or the client's own credentials,
//! and to the revocation endpoint (RFC 7009).

use std::time::Duration;

use http::HeaderValue;
use serde_json::Value;
use time::OffsetDateTime;

use super::{
    Challenge, OAuthError, OAuthErrorKind, authorization::token_service,
    client::authenticated_form, discover, error_code, read_members, refusal_error, send,
};
use domain::{
    clock::Clock,
    oauth::{
        Authorization, ClientAuthMethod, ClientProof, OAuthClient, PendingSignIn, TokenService,
        scopes_of,
    },
    secret::Secret,
    server::{ClientCredentials, TokenIssuer},
};
use egress::Egress;

/// Longer lives of tokens are shortened to this.
const LONGEST_LIFE: Duration = Duration::from_secs(30 * 86_400);

/// The tokens from a token endpoint.
pub struct TokenSet {
    pub access_token: Secret,
    pub refresh_token: Option<Secret>,
    /// When the access token expires, counted from the request for it.
    pub expires_at: Option<OffsetDateTime>,
    /// The scopes that were granted; `None`: those that were requested.
    pub scopes: Option<Vec<String>>,
    /// The id token of OpenID Connect. It is not verified here.
    pub id_token: Option<Secret>,
}

/// Exchanges an authorization code for tokens.
pub(super) async fn redeem_code(
    egress: &Egress,
    pending: &PendingSignIn,
    code: &Secret,
) -> Result<TokenSet, OAuthError> {
    let form = [
        ("grant_type", "authorization_code"),
        ("code", code.expose()),
        ("redirect_uri", &pending.redirect_uri),
        ("code_verifier", pending.verifier.expose()),
    ];
    request_tokens(egress, &pending.service, &form).await
}

/// Gets new tokens with the refresh token. The refresh token stays valid if the answer has no new one.
pub async fn refresh(
    egress: &Egress,
    authorization: &Authorization,
) -> Result<TokenSet, OAuthError> {
    let Some(token) = &authorization.refresh_token else {
        let refused = OAuthErrorKind::Refused("invalid_grant".to_owned());
        return Err(OAuthError::new(refused, "there is no refresh token"));
    };
    let form = [
        ("grant_type", "refresh_token"),
        ("refresh_token", token.expose()),
    ];
    request_tokens(egress, &authorization.service, &form).await
}

/// The token service at which the program gets tokens for itself: the endpoint of the pack, or the one that the metadata
/// of the server leads to.
pub async fn service_for(
    egress: &Egress,
    credentials: &ClientCredentials,
) -> Result<TokenService, OAuthError> {
    let first = match &credentials.proof {
        ClientProof::Secret(_) => ClientAuthMethod::ClientSecretBasic,
        ClientProof::Key { .. } => ClientAuthMethod::PrivateKeyJwt,
    };
    let mut client = OAuthClient {
        id: credentials.client_id.expose().to_owned(),
        proof: Some(credentials.proof.clone()),
        method: first,
        is_of_pack: true,
        secret_ends_at: None,
    };
    match &credentials.issued_by {
        TokenIssuer::Endpoint(url) => Ok(TokenService {
            issuer: url.to_string(),
            token_endpoint: url.clone(),
            revocation_endpoint: None,
            resource: String::new(),
            client,
        }),
        TokenIssuer::OfServer(url) => {
            let found = discover(egress, url, &Challenge::default()).await?;
            let server = &found.authorization_server;
            let methods = [first, ClientAuthMethod::ClientSecretPost];
            client.method = server.auth_method(&methods).unwrap_or(first);
            Ok(token_service(server, &found.resource, client))
        }
    }
}

/// Gets a token for the program itself (RFC 6749, section 4.4).
pub async fn client_credentials(
    egress: &Egress,
    service: &TokenService,
    scope: Option<&str>,
) -> Result<TokenSet, OAuthError> {
    let mut form = vec![("grant_type", "client_credentials")];
    form.extend(scope.map(|scope| ("scope", scope)));
    request_tokens(egress, service, &form).await
}

/// Revokes an authorization by its refresh token, which also ends its access tokens, or else by its access token. Does
/// nothing if there is no revocation endpoint.
pub async fn revoke(egress: &Egress, authorization: &Authorization) -> Result<(), OAuthError> {
    let Some(endpoint) = &authorization.service.revocation_endpoint else {
        return Ok(());
    };
    let (token, kind) = match &authorization.refresh_token {
        Some(token) => (token, "refresh_token"),
        None => (&authorization.access_token, "access_token"),
    };
    let form = [("token", token.expose()), ("token_type_hint", kind)];
    let TokenService { client, issuer, .. } = &authorization.service;
    let (status, body) = send(egress, authenticated_form(client, endpoint, issuer, &form)?).await?;
    if status.is_success() {
        return Ok(());
    }
    Err(refusal_error("the revocation endpoint", status, &body))
}

/// Sends a form to the token endpoint, and reads the tokens in its answer.
pub(super) async fn request_tokens(
    egress: &Egress,
    service: &TokenService,
    form: &[(&str, &str)],
) -> Result<TokenSet, OAuthError> {
    let TokenService {
        token_endpoint,
        client,
        issuer,
        resource,
        ..
    } = service;
    let mut form = form.to_vec();
    if !resource.is_empty() {
        form.push(("resource", resource));
    }
    let asked_at = Clock::System.now();
    let (status, body) = send(
        egress,
        authenticated_form(client, token_endpoint, issuer, &form)?,
    )
    .await?;
    let Some(answer) = read_members(&body).filter(|_| status.is_success()) else {
        if status.is_success() {
            return Err(OAuthError::unusable(
                "the token endpoint answered with something that is neither JSON nor a form",
            ));
        }
        return Err(refusal_error("the token endpoint", status, &body));
    };
    let text = |name: &str| answer.get(name).and_then(Value::as_str).map(str::trim);
    let Some(token) = text("access_token").filter(|token| !token.is_empty()) else {
        // Some servers refuse with HTTP 200.
        if error_code(&body).is_some() {
            return Err(refusal_error("the token endpoint", status, &body));
        }
        return Err(OAuthError::unusable(
            "the answer of the token endpoint has no `access_token`",
        ));
    };
    match text("token_type") {
        Some(kind) if kind.eq_ignore_ascii_case("bearer") => {}
        Some(_) => {
            return Err(OAuthError::unusable(
                "the token endpoint gives other tokens than bearer tokens",
            ));
        }
        None => {
            return Err(OAuthError::unusable(
                "the answer of the token endpoint has no `token_type` (RFC 6749, section 5.1), so nobody knows how the token is sent",
            ));
        }
    }
    if HeaderValue::from_str(token).is_err() {
        return Err(OAuthError::unusable(
            "the token endpoint gave a token that no header can carry",
        ));
    }
    let life = answer.get("expires_in").and_then(read_seconds);
    let given = |name| text(name).filter(|text| !text.is_empty()).map(Secret::new);
    Ok(TokenSet {
        access_token: Secret::new(token),
        refresh_token: given("refresh_token"),
        expires_at: life.map(|life| asked_at + life.min(LONGEST_LIFE)),
        scopes: answer.get("scope").and_then(read_scopes),
        id_token: given("id_token"),
    })
}

/// The scopes in an answer: separated by blanks, or by commas, or as a list.
fn read_scopes(value: &Value) -> Option<Vec<String>> {
    let text = match value {
        Value::Array(items) => {
            let texts: Option<Vec<_>> = items.iter().map(Value::as_str).collect();
            texts?.join(" ")
        }
        value => value.as_str()?.to_owned(),
    };
    let has_blanks = text.trim().contains([' ', '\t']);
    Some(scopes_of(&if has_blanks {
        text
    } else {
        text.replace(',', " ")
    }))
}

/// A number of seconds, which some servers send as a string.
fn read_seconds(value: &Value) -> Option<Duration> {
    let number = value
        .as_f64()
        .or_else(|| value.as_str()?.trim().parse().ok())?;
    Duration::try_from_secs_f64(number).ok()
}

impl TokenSet {
    /// The time until the access token expires, if that is known.
    pub fn life(&self) -> Option<Duration> {
        let left = self.expires_at? - Clock::System.now();
        Some(left.try_into().unwrap_or_default())
    }

    /// The tokens as an authorization. `requested` and `refresh_token` are the scopes and the refresh token where the answer
    /// has none.
    pub fn into_authorization(
        self,
        service: TokenService,
        requested: Vec<String>,
        refresh_token: Option<Secret>,
    ) -> Authorization {
        Authorization {
            service,
            scopes: self.scopes.unwrap_or(requested),
            access_token: self.access_token,
            refresh_token: self.refresh_token.or(refresh_token),
            expires_at: self.expires_at,
        }
    }
}
