//! The sign-in of a user on a device without a browser (RFC 8628): the user types a short code at an address on another
//! device, while the program polls for the tokens.

use std::time::Duration;

use serde::Deserialize;
use url::Url;

use super::{
    AuthorizationServer, OAuthError, OAuthErrorKind, TokenSet, authorization::token_service,
    client::authenticated_form, parse, refusal_error, send, token,
};
use domain::{
    oauth::{OAuthClient, TokenService},
    secret::Secret,
};
use egress::Egress;

/// The polling interval, unless the authorization server sets one. Each `slow_down` adds as much.
const INTERVAL: Duration = Duration::from_secs(5);
/// The longest time for which the program polls.
const LONGEST_WAIT: Duration = Duration::from_secs(1800);

/// A sign-in that waits for the user.
pub struct DeviceSignIn {
    pub service: TokenService,
    /// The code that the user types.
    pub user_code: String,
    /// The address at which the user types it.
    pub address: String,
    /// An address that contains the code, if there is one.
    pub whole_address: Option<String>,
    device_code: Secret,
    interval: Duration,
    life: Duration,
}

#[derive(Deserialize)]
struct DeviceAnswer {
    device_code: String,
    user_code: String,
    verification_uri: String,
    verification_uri_complete: Option<String>,
    expires_in: u64,
    interval: Option<u64>,
}

/// Begins a sign-in. `resource` may be empty.
pub async fn start_device(
    egress: &Egress,
    server: &AuthorizationServer,
    client: OAuthClient,
    scopes: &[String],
    resource: &str,
) -> Result<DeviceSignIn, OAuthError> {
    let Some(endpoint) = &server.device_endpoint else {
        return Err(OAuthError::unusable(
            "the provider has no sign-in for devices; sign in with a browser",
        ));
    };
    let service = token_service(server, resource, client);
    let scopes = scopes.join(" ");
    let mut form = vec![("scope", scopes.as_str())];
    if !resource.is_empty() {
        form.push(("resource", resource));
    }
    let request = authenticated_form(&service.client, endpoint, &service.issuer, &form)?;
    let (status, body) = send(egress, request).await?;
    if !status.is_success() {
        return Err(refusal_error("the endpoint for devices", status, &body));
    }
    let answer: DeviceAnswer = parse(&body, "the answer of the endpoint for devices")?;
    for address in [
        Some(&answer.verification_uri),
        answer.verification_uri_complete.as_ref(),
    ] {
        let is_web = |address: &String| {
            Url::parse(address).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
        };
        if !address.is_none_or(is_web) {
            return Err(OAuthError::untrusted(
                "the provider's address for users is no web page",
            ));
        }
    }
    Ok(DeviceSignIn {
        service,
        user_code: answer.user_code,
        address: answer.verification_uri,
        whole_address: answer.verification_uri_complete,
        device_code: Secret::new(answer.device_code),
        interval: answer.interval.map_or(INTERVAL, Duration::from_secs),
        life: Duration::from_secs(answer.expires_in).min(LONGEST_WAIT),
    })
}

/// Polls for the tokens until the user has allowed or denied the sign-in, or the code has expired.
pub async fn wait_for_user(
    egress: &Egress,
    sign_in: &DeviceSignIn,
) -> Result<TokenSet, OAuthError> {
    let until = tokio::time::Instant::now() + sign_in.life;
    let mut interval = sign_in.interval;
    let form = [
        ("grant_type", "urn:ietf:params:oauth:grant-type:device_code"),
        ("device_code", sign_in.device_code.expose()),
    ];
    while tokio::time::Instant::now() < until {
        tokio::time::sleep(interval).await;
        match token::request_tokens(egress, &sign_in.service, &form).await {
            Err(error) if error.is_refusal("authorization_pending") => {}
            Err(error)
                if error.is_refusal("slow_down") || error.kind == OAuthErrorKind::Unavailable =>
            {
                interval += INTERVAL;
            }
            answer => return answer,
        }
    }
    let why = "nobody typed the code in time; begin again";
    Err(OAuthError::new(
        OAuthErrorKind::Refused("expired_token".to_owned()),
        why,
    ))
}
