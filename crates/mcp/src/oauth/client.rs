//! The program as a client of an authorization server. Which client it is, in this order: the client of the pack, a
//! metadata document, the client that was registered before, a client that is registered now (RFC 7591). How it
//! authenticates: not at all, with its secret in a header or in the form (RFC 6749, section 2.3.1), or with a signed
//! assertion (RFC 7523).

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderValue, StatusCode, header};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use time::OffsetDateTime;
use url::{Host, Url, form_urlencoded};
use uuid::Uuid;

use super::{AuthorizationServer, OAuthError, limits, parse, refusal_error, send};
use domain::{
    clock::Clock,
    oauth::{ClientAuthMethod, ClientProof, OAuthClient, OAuthConfig, add_scopes},
    secret::Secret,
};
use egress::{Egress, Request};

/// The name of the program that users read at the authorization server.
const NAME: &str = "Chatelaine";
/// The methods for a client with a secret, preferred ones first.
const SECRET_METHODS: [ClientAuthMethod; 2] = [
    ClientAuthMethod::ClientSecretBasic,
    ClientAuthMethod::ClientSecretPost,
];
/// The life of an assertion in seconds.
const ASSERTION_LIFE: i64 = 120;

/// The clients that the program can be.
pub struct ClientChoice<'a> {
    pub config: &'a OAuthConfig,
    /// The URL to which the browser returns.
    pub redirect_uri: &'a str,
    /// The URL of the program's own metadata document, if authorization servers can reach it.
    pub document: Option<&'a Url>,
    /// The client that was registered at this issuer before, if there is one.
    pub registered: Option<OAuthClient>,
    /// The scopes that a newly registered client will request.
    pub scopes: &'a [String],
}

#[derive(Deserialize)]
struct Registered {
    client_id: String,
    client_secret: Option<String>,
    client_secret_expires_at: Option<serde_json::Value>,
    token_endpoint_auth_method: Option<ClientAuthMethod>,
}

/// `client_secret_expires_at` (RFC 7591, section 3.2.1): seconds since 1970, or 0 if the secret does not expire. Some
/// servers send the number as a string.
fn read_expiry(value: &Value) -> Option<OffsetDateTime> {
    let number = value
        .as_i64()
        .or_else(|| value.as_str()?.trim().parse().ok())?;
    OffsetDateTime::from_unix_timestamp(number)
        .ok()
        .filter(|_| number > 0)
}

/// Whether the program needs a registered client, because neither the pack nor a metadata document provides one.
pub fn uses_registration(
    server: &AuthorizationServer,
    config: &OAuthConfig,
    document: Option<&Url>,
) -> bool {
    let has_document = config.client_metadata_url.is_some() || document.is_some();
    config.client_id.is_none() && !(has_document && server.takes_metadata_documents)
}

/// The client for a sign-in. It is registered if there is no other; then the caller should store it.
pub async fn choose_client(
    egress: &Egress,
    server: &AuthorizationServer,
    choice: ClientChoice<'_>,
) -> Result<OAuthClient, OAuthError> {
    if let Some(id) = &choice.config.client_id {
        return Ok(pack_client(server, id, choice.config.client_secret.clone()));
    }
    let document = choice.config.client_metadata_url.as_ref();
    let document = document.or(choice.document);
    if let Some(document) = document.filter(|_| server.takes_metadata_documents) {
        return Ok(public_client(document.as_str()));
    }
    match choice.registered {
        Some(registered) => Ok(registered),
        None => register(egress, server, &choice).await,
    }
}

fn pack_client(server: &AuthorizationServer, id: &str, secret: Option<Secret>) -> OAuthClient {
    let method = if secret.is_some() {
        let first = server.auth_method(&SECRET_METHODS);
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

fn public_client(id: &str) -> OAuthClient {
    OAuthClient {
        id: id.to_owned(),
        proof: None,
        method: ClientAuthMethod::None,
        is_of_pack: false,
        secret_ends_at: None,
    }
}

/// The client metadata of the program: for the metadata document at the URL `id`, or for a registration (`None`).
pub fn client_metadata(id: Option<&Url>, redirect_uri: &str, method: ClientAuthMethod) -> Value {
    let mut metadata = json!({
        "client_name": NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method.into_str(),
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

/// Registers a new client (RFC 7591).
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
    let [basic, post] = SECRET_METHODS;
    let method = server
        .auth_method(&[basic, post, ClientAuthMethod::None])
        .unwrap_or(basic);
    let mut metadata = client_metadata(None, choice.redirect_uri, method);
    // Some servers let a client request only the scopes of its registration.
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
        return Err(refusal_error("the registration", status, &body));
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
            .and_then(read_expiry),
    })
}

/// The claims of a client assertion (RFC 7523).
#[derive(Serialize)]
struct Assertion<'a> {
    iss: &'a str,
    sub: &'a str,
    aud: &'a str,
    exp: i64,
    iat: i64,
    jti: String,
}

/// A POST of a form, authenticated as this client. `issuer` is the audience of an assertion.
pub(super) fn authenticated_form(
    client: &OAuthClient,
    endpoint: &Url,
    issuer: &str,
    fields: &[(&str, &str)],
) -> Result<Request, OAuthError> {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(fields);
    // Some servers look up the client by the form even if it authenticates with a header.
    form.append_pair("client_id", &client.id);
    let mut basic = None;
    match (&client.proof, client.method) {
        (Some(ClientProof::Secret(secret)), ClientAuthMethod::ClientSecretBasic) => {
            basic = Some(basic_header(&client.id, secret));
        }
        (Some(ClientProof::Secret(secret)), _) => {
            form.append_pair("client_secret", secret.expose());
        }
        (Some(ClientProof::Key { pem, algorithm }), _) => {
            let assertion = assertion(&client.id, issuer, pem, algorithm)?;
            form.append_pair(
                "client_assertion_type",
                "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            );
            form.append_pair("client_assertion", assertion.expose());
        }
        (None, _) => {}
    }
    let mut request = Request::post(endpoint.clone(), form.finish())
        .header("accept", "application/json")
        .header("content-type", "application/x-www-form-urlencoded");
    if let Some(basic) = basic {
        request.headers.insert(header::AUTHORIZATION, basic);
    }
    request.limits = limits();
    Ok(request)
}

/// The header for HTTP Basic. Id and secret are form-encoded first (RFC 6749, section 2.3.1).
fn basic_header(id: &str, secret: &Secret) -> HeaderValue {
    let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let pair = format!("{}:{}", encoded(id), encoded(secret.expose()));
    let mut basic = HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(pair)))
        .expect("Base64 is ASCII");
    basic.set_sensitive(true);
    basic
}

fn assertion(
    client: &str,
    issuer: &str,
    pem: &Secret,
    algorithm: &str,
) -> Result<Secret, OAuthError> {
    let unfit = |_| OAuthError::unusable("the client's private key does not fit its algorithm");
    let algorithm: Algorithm = algorithm
        .parse()
        .map_err(|_| OAuthError::unusable("the client's algorithm is not known"))?;
    let pem = pem.expose().as_bytes();
    let key = match algorithm {
        Algorithm::ES256 | Algorithm::ES384 => EncodingKey::from_ec_pem(pem),
        Algorithm::EdDSA => EncodingKey::from_ed_pem(pem),
        _ => EncodingKey::from_rsa_pem(pem),
    };
    let now = Clock::System.now().unix_timestamp();
    let claims = Assertion {
        iss: client,
        sub: client,
        aud: issuer,
        exp: now + ASSERTION_LIFE,
        iat: now,
        jti: Uuid::now_v7().to_string(),
    };
    let token = jsonwebtoken::encode(&Header::new(algorithm), &claims, &key.map_err(unfit)?);
    token.map(Secret::new).map_err(unfit)
}
