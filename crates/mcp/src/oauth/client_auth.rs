//! How the program proves who it is at a token or revocation endpoint: not at all, with its secret in a header or in
//! the form (RFC 6749, section 2.3.1), or with a signed assertion (RFC 7523).

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderValue, header};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::Serialize;
use url::{Url, form_urlencoded};
use uuid::Uuid;

use super::{OAuthError, limits};
use domain::{
    clock::Clock,
    oauth::{ClientAuthMethod, ClientProof, OAuthClient},
    secret::Secret,
};
use egress::Request;

/// How long an assertion is good for, in seconds.
const ASSERTION_LIFE: i64 = 120;

#[derive(Serialize)]
struct Assertion<'a> {
    iss: &'a str,
    sub: &'a str,
    aud: &'a str,
    exp: i64,
    iat: i64,
    jti: String,
}

/// A form as this client posts it. `issuer`: for whom an assertion is meant.
pub(super) fn signed_form(
    client: &OAuthClient,
    endpoint: &Url,
    issuer: &str,
    fields: &[(&str, &str)],
) -> Result<Request, OAuthError> {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(fields);
    // Some servers look a client up by the form even when it authenticates with a header.
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

/// Both parts are encoded as in a form (RFC 6749, section 2.3.1).
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
