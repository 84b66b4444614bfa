//! As whom the program comes to an authorization server, in this order: a client of the pack, the address of a metadata
//! document, the client that was registered before, a client that is registered now (RFC 7591).

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use url::{Host, Url};

use super::{AuthorizationServer, OAuthError, limits, parse, refusal, send};
use domain::{
    oauth::{ClientAuthMethod, ClientProof, OAuthClient, OAuthConfig, add_scopes},
    secret::Secret,
};
use egress::{Egress, Request};

/// What users read at the authorization server.
const NAME: &str = "Chatelaine";
/// With a secret, in the order of preference.
const WITH_SECRET: [ClientAuthMethod; 2] = [
    ClientAuthMethod::ClientSecretBasic,
    ClientAuthMethod::ClientSecretPost,
];

/// What the program can come as.
pub struct ClientChoice<'a> {
    pub config: &'a OAuthConfig,
    /// Where the user comes back to.
    pub redirect_uri: &'a str,
    /// The address of the program's own metadata document, where an authorization server can read it.
    pub document: Option<&'a Url>,
    /// The client that was registered at this issuer before.
    pub registered: Option<OAuthClient>,
    /// What a client that is registered now will ask for.
    pub scopes: &'a [String],
}

#[derive(Deserialize)]
struct Registered {
    client_id: String,
    client_secret: Option<String>,
    client_secret_expires_at: Option<serde_json::Value>,
    token_endpoint_auth_method: Option<ClientAuthMethod>,
}

/// The end of a secret (RFC 7591, section 3.2.1), in seconds since 1970; 0: it has none. Some send the number as text.
fn end_of(value: &Value) -> Option<OffsetDateTime> {
    let number = value
        .as_i64()
        .or_else(|| value.as_str()?.trim().parse().ok())?;
    OffsetDateTime::from_unix_timestamp(number)
        .ok()
        .filter(|_| number > 0)
}

/// Whether the program comes as a client that it registered itself, and as none that is known otherwise.
pub fn is_registered(
    server: &AuthorizationServer,
    config: &OAuthConfig,
    document: Option<&Url>,
) -> bool {
    let has_document = config.client_metadata_url.is_some() || document.is_some();
    config.client_id.is_none() && !(has_document && server.takes_metadata_documents)
}

/// The client for a sign-in. Only a client that was registered now is to be kept.
pub async fn choose_client(
    egress: &Egress,
    server: &AuthorizationServer,
    choice: ClientChoice<'_>,
) -> Result<OAuthClient, OAuthError> {
    if let Some(id) = &choice.config.client_id {
        return Ok(of_pack(server, id, choice.config.client_secret.clone()));
    }
    let document = choice.config.client_metadata_url.as_ref();
    let document = document.or(choice.document);
    if let Some(document) = document.filter(|_| server.takes_metadata_documents) {
        return Ok(public(document.as_str()));
    }
    match choice.registered {
        Some(registered) => Ok(registered),
        None => register(egress, server, &choice).await,
    }
}

fn of_pack(server: &AuthorizationServer, id: &str, secret: Option<Secret>) -> OAuthClient {
    let method = if secret.is_some() {
        let first = server.auth_method(&WITH_SECRET);
        first.unwrap_or(ClientAuthMethod::ClientSecretBasic)
    } else {
        ClientAuthMethod::None
    };
    OAuthClient {
        id: id.to_owned(),
        proof: secret.map(ClientProof::Secret),
        method,
        is_of_pack: true,
        secret_ends_at: None,
    }
}

fn public(id: &str) -> OAuthClient {
    OAuthClient {
        id: id.to_owned(),
        proof: None,
        method: ClientAuthMethod::None,
        is_of_pack: false,
        secret_ends_at: None,
    }
}

/// The program as a client, for the metadata document at `id` and for a registration without one.
pub fn client_metadata(id: Option<&Url>, redirect_uri: &str, method: ClientAuthMethod) -> Value {
    let mut metadata = json!({
        "client_name": NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method.as_str(),
        "application_type": if is_loopback(redirect_uri) { "native" } else { "web" },
    });
    if let Some(id) = id {
        metadata["client_id"] = id.as_str().into();
    }
    metadata
}

fn is_loopback(uri: &str) -> bool {
    match Url::parse(uri).ok().as_ref().and_then(Url::host) {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

async fn register(
    egress: &Egress,
    server: &AuthorizationServer,
    choice: &ClientChoice<'_>,
) -> Result<OAuthClient, OAuthError> {
    let Some(endpoint) = &server.registration_endpoint else {
        return Err(OAuthError::unusable(
            "the authorization server registers no clients by itself; put a `clientId` into the pack",
        ));
    };
    let [basic, post] = WITH_SECRET;
    let method = server
        .auth_method(&[basic, post, ClientAuthMethod::None])
        .unwrap_or(basic);
    let mut metadata = client_metadata(None, choice.redirect_uri, method);
    // Some let a client ask only for what it was registered with.
    let mut scopes = choice.scopes.to_vec();
    add_scopes(&mut scopes, server.scopes.iter().map(String::as_str));
    if !scopes.is_empty() {
        metadata["scope"] = scopes.join(" ").into();
    }
    let mut request = Request::post(endpoint.clone(), metadata.to_string())
        .header("accept", "application/json")
        .header("content-type", "application/json");
    request.limits = limits();
    let (status, body) = send(egress, request).await?;
    if !matches!(status, StatusCode::OK | StatusCode::CREATED) {
        return Err(refusal("the registration", status, &body));
    }
    let registered: Registered = parse(&body, "the answer to the registration")?;
    let proof = registered.client_secret.filter(|secret| !secret.is_empty());
    Ok(OAuthClient {
        id: registered.client_id,
        method: match &proof {
            Some(_) => registered.token_endpoint_auth_method.unwrap_or(method),
            None => ClientAuthMethod::None,
        },
        proof: proof.map(Secret::new).map(ClientProof::Secret),
        is_of_pack: false,
        secret_ends_at: registered
            .client_secret_expires_at
            .as_ref()
            .and_then(end_of),
    })
}
