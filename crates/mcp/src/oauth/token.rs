//! The token endpoint: a code, a refresh token or the client's own credentials for an access token. And the revocation
//! endpoint (RFC 7009).

use std::time::Duration;

use http::HeaderValue;
use serde_json::Value;
use time::OffsetDateTime;

use super::{
    Challenge, OAuthError, OAuthErrorKind, authorization::service, client_auth::signed_form,
    discover, error_code, members, refusal, send,
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

/// A token that is said to hold for longer is replaced all the same.
const LONGEST_LIFE: Duration = Duration::from_secs(30 * 86_400);

/// What a token endpoint gave.
pub struct TokenSet {
    pub access_token: Secret,
    pub refresh_token: Option<Secret>,
    /// Counted from when it was asked for.
    pub expires_at: Option<OffsetDateTime>,
    /// Absent: what was asked for.
    pub scopes: Option<Vec<String>>,
    /// Who the user is (OpenID Connect). Nothing of it is checked here.
    pub id_token: Option<Secret>,
}

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
    request(egress, &pending.service, &form).await
}

/// New tokens for old ones. A refresh token that is not replaced stays good.
pub async fn refresh(egress: &Egress, of: &Authorization) -> Result<TokenSet, OAuthError> {
    let Some(token) = &of.refresh_token else {
        let refused = OAuthErrorKind::Refused("invalid_grant".to_owned());
        return Err(OAuthError::new(refused, "there is no refresh token"));
    };
    let form = [
        ("grant_type", "refresh_token"),
        ("refresh_token", token.expose()),
    ];
    request(egress, &of.service, &form).await
}

/// Where the program gets tokens for itself, which the metadata of the server says where nobody else does.
pub async fn service_for(
    egress: &Egress,
    of: &ClientCredentials,
) -> Result<TokenService, OAuthError> {
    let first = match &of.proof {
        ClientProof::Secret(_) => ClientAuthMethod::ClientSecretBasic,
        ClientProof::Key { .. } => ClientAuthMethod::PrivateKeyJwt,
    };
    let mut client = OAuthClient {
        id: of.client_id.expose().to_owned(),
        proof: Some(of.proof.clone()),
        method: first,
        is_of_pack: true,
        secret_ends_at: None,
    };
    match &of.issued_by {
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
            Ok(service(server, &found.resource, client))
        }
    }
}

/// A token for the program itself (RFC 6749, section 4.4). `resource`: where it is to be used.
pub async fn client_credentials(
    egress: &Egress,
    service: &TokenService,
    scope: Option<&str>,
) -> Result<TokenSet, OAuthError> {
    let mut form = vec![("grant_type", "client_credentials")];
    form.extend(scope.map(|scope| ("scope", scope)));
    request(egress, service, &form).await
}

/// Ends an authorization: the refresh token, with which its access tokens end, or else the access token.
pub async fn revoke(egress: &Egress, of: &Authorization) -> Result<(), OAuthError> {
    let Some(endpoint) = &of.service.revocation_endpoint else {
        return Ok(());
    };
    let (token, kind) = match &of.refresh_token {
        Some(token) => (token, "refresh_token"),
        None => (&of.access_token, "access_token"),
    };
    let form = [("token", token.expose()), ("token_type_hint", kind)];
    let TokenService { client, issuer, .. } = &of.service;
    let (status, body) = send(egress, signed_form(client, endpoint, issuer, &form)?).await?;
    if status.is_success() {
        return Ok(());
    }
    Err(refusal("the revocation endpoint", status, &body))
}

pub(super) async fn request(
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
    let (status, body) = send(egress, signed_form(client, token_endpoint, issuer, &form)?).await?;
    let Some(answer) = members(&body).filter(|_| status.is_success()) else {
        if status.is_success() {
            return Err(OAuthError::unusable(
                "the token endpoint answered with something that is neither JSON nor a form",
            ));
        }
        return Err(refusal("the token endpoint", status, &body));
    };
    let text = |name: &str| answer.get(name).and_then(Value::as_str).map(str::trim);
    let Some(token) = text("access_token").filter(|token| !token.is_empty()) else {
        // Some say no with HTTP 200.
        if error_code(&body).is_some() {
            return Err(refusal("the token endpoint", status, &body));
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
    let life = answer.get("expires_in").and_then(seconds);
    let given = |name| text(name).filter(|text| !text.is_empty()).map(Secret::new);
    Ok(TokenSet {
        access_token: Secret::new(token),
        refresh_token: given("refresh_token"),
        expires_at: life.map(|life| asked_at + life.min(LONGEST_LIFE)),
        scopes: answer.get("scope").and_then(scopes),
        id_token: given("id_token"),
    })
}

/// Blanks stand between scopes; some servers write commas, and some a list.
fn scopes(value: &Value) -> Option<Vec<String>> {
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

/// Some endpoints send the number as text.
fn seconds(value: &Value) -> Option<Duration> {
    let number = value
        .as_f64()
        .or_else(|| value.as_str()?.trim().parse().ok())?;
    Duration::try_from_secs_f64(number).ok()
}

impl TokenSet {
    /// For how much longer it is good.
    pub fn life(&self) -> Option<Duration> {
        let left = self.expires_at? - Clock::System.now();
        Some(left.try_into().unwrap_or_default())
    }

    /// The tokens as an authorization, in which what was not replaced stays as it was.
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
