//! Discovery: from a server to the metadata of its protected resource (RFC 9728), and from there to its authorization
//! server (RFC 8414, or OpenID Connect Discovery).

use http::StatusCode;
use serde::Deserialize;
use url::Url;

use super::{Challenge, OAuthError, OAuthErrorKind, limits, send};
use domain::oauth::{ClientAuthMethod, OAuthConfig, add_scopes, scopes_of};
use egress::{Egress, Request};

/// Authorization servers of one resource that are tried, one after the other.
const MAX_ISSUERS: usize = 4;

/// A server, and the authorization server at which its users sign in.
#[derive(Clone, Debug)]
pub struct ProtectedServer {
    /// The resource indicator (RFC 8707), exactly as published.
    pub resource: String,
    pub authorization_server: AuthorizationServer,
    /// What the server asks for: those of its challenge, or else all that it supports.
    pub scopes: Vec<String>,
}

/// What an authorization server says of itself.
#[derive(Clone, Debug)]
pub struct AuthorizationServer {
    pub issuer: String,
    /// Where users sign in, with PKCE.
    pub authorization_endpoint: Option<Url>,
    /// The same, where the metadata does not say whether there is PKCE.
    pub endpoint_without_pkce: Option<Url>,
    pub token_endpoint: Url,
    pub registration_endpoint: Option<Url>,
    pub revocation_endpoint: Option<Url>,
    /// Where a request to sign in must be left before the user comes (RFC 9126).
    pub pushed_request_endpoint: Option<Url>,
    /// Where a device that has no browser asks for a code (RFC 8628).
    pub device_endpoint: Option<Url>,
    pub scopes: Vec<String>,
    /// Empty: it does not say.
    pub auth_methods: Vec<String>,
    /// A client's id may be the address of its metadata.
    pub takes_metadata_documents: bool,
    /// Every answer to a sign-in names its issuer (RFC 9207).
    pub names_issuer: bool,
}

#[derive(Deserialize)]
struct ResourceMetadata {
    resource: String,
    #[serde(default)]
    authorization_servers: Vec<String>,
    #[serde(default)]
    scopes_supported: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct ServerMetadata {
    issuer: String,
    authorization_endpoint: Option<Url>,
    token_endpoint: Url,
    registration_endpoint: Option<Url>,
    revocation_endpoint: Option<Url>,
    pushed_authorization_request_endpoint: Option<Url>,
    #[serde(default)]
    require_pushed_authorization_requests: Option<bool>,
    device_authorization_endpoint: Option<Url>,
    #[serde(default)]
    scopes_supported: Option<Vec<String>>,
    #[serde(default)]
    code_challenge_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    client_id_metadata_document_supported: Option<bool>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: Option<bool>,
}

/// Finds where the users of a server sign in. `challenge` is what the server said without a token.
pub async fn discover(
    egress: &Egress,
    server: &Url,
    challenge: &Challenge,
) -> Result<ProtectedServer, OAuthError> {
    let Some(published) = resource_metadata(egress, server, challenge).await? else {
        return older(egress, server, challenge).await;
    };
    if !covers(&published.resource, server) {
        return Err(OAuthError::untrusted(
            "the server's metadata is of another resource than the server",
        ));
    }
    let mut failure =
        OAuthError::unusable("the server's metadata names no authorization server to sign in at");
    for issuer in published.authorization_servers.iter().take(MAX_ISSUERS) {
        match authorization_server(egress, issuer).await {
            Ok(Some(authorization_server)) => {
                let supported = published.scopes_supported.unwrap_or_default();
                return Ok(ProtectedServer {
                    resource: published.resource,
                    authorization_server,
                    scopes: scopes(challenge, &supported),
                });
            }
            Ok(None) => {
                failure = OAuthError::unusable("the authorization server publishes no metadata");
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Those that the server asks for right now, or else all that it supports.
fn scopes(challenge: &Challenge, supported: &[String]) -> Vec<String> {
    let mut scopes = scopes_of(challenge.scope.as_deref().unwrap_or_default());
    if scopes.is_empty() {
        add_scopes(&mut scopes, supported.iter().map(String::as_str));
    }
    scopes
}

/// The metadata of a protected resource: where the challenge says, on any host (RFC 9728, section 5.1), or at one of the
/// two well-known places. It counts only if it names the server as its resource.
async fn resource_metadata(
    egress: &Egress,
    server: &Url,
    challenge: &Challenge,
) -> Result<Option<ResourceMetadata>, OAuthError> {
    let named = challenge.resource_metadata.clone();
    let path = server.path().trim_end_matches('/');
    let mut places: Vec<Url> = named.into_iter().collect();
    for path in [path, ""] {
        let place = at(
            server,
            &format!("/.well-known/oauth-protected-resource{path}"),
        );
        if !places.contains(&place) {
            places.push(place);
        }
    }
    first_of(egress, places, RESOURCE).await
}

/// Whether a resource is the server, or something above it at the same origin.
fn covers(resource: &str, server: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else {
        return false;
    };
    let above = resource.path().trim_end_matches('/');
    let below = server.path().strip_prefix(above);
    resource.origin() == server.origin()
        && resource.fragment().is_none()
        && below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// What an issuer says of itself that somebody named in a setting; it is written there exactly as it is. Of a provider of
/// OpenID Connect that does not say whether it supports PKCE it is taken for granted that it does.
pub async fn discover_issuer(
    egress: &Egress,
    issuer: &str,
) -> Result<AuthorizationServer, OAuthError> {
    let found = server_metadata(egress, issuer).await?.ok_or_else(|| {
        OAuthError::unusable("the issuer publishes no metadata; is its address right?")
    })?;
    if found.issuer != issuer {
        return Err(another_issuer());
    }
    Ok(found.check(issuer)?.assuming_pkce())
}

/// The metadata of an issuer, checked; `None` when it has none at any of the places.
async fn authorization_server(
    egress: &Egress,
    issuer: &str,
) -> Result<Option<AuthorizationServer>, OAuthError> {
    let found = server_metadata(egress, issuer).await?;
    found.map(|found| found.check(issuer)).transpose()
}

async fn server_metadata(
    egress: &Egress,
    issuer: &str,
) -> Result<Option<ServerMetadata>, OAuthError> {
    let Ok(url) = Url::parse(issuer) else {
        return Err(OAuthError::untrusted("the issuer is not an address"));
    };
    let path = url.path().trim_end_matches('/');
    let mut places = vec![
        format!("/.well-known/oauth-authorization-server{path}"),
        format!("/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        places.push(format!("{path}/.well-known/openid-configuration"));
    }
    let places = places.iter().map(|place| at(&url, place)).collect();
    first_of(egress, places, AUTHORIZATION_SERVER).await
}

/// Revision 2025-03-26: the server is its own authorization server, with or without metadata.
async fn older(
    egress: &Egress,
    server: &Url,
    challenge: &Challenge,
) -> Result<ProtectedServer, OAuthError> {
    let issuer = server.origin().ascii_serialization();
    let place = at(server, "/.well-known/oauth-authorization-server");
    let found = first_of::<ServerMetadata>(egress, vec![place], AUTHORIZATION_SERVER).await?;
    let authorization_server = match found {
        Some(found) => found.check(&issuer)?,
        None if challenge.resource_metadata.is_some() => {
            return Err(OAuthError::unusable(
                "the server names metadata that it does not have",
            ));
        }
        None => AuthorizationServer {
            authorization_endpoint: Some(at(server, "/authorize")),
            endpoint_without_pkce: None,
            token_endpoint: at(server, "/token"),
            registration_endpoint: Some(at(server, "/register")),
            revocation_endpoint: None,
            pushed_request_endpoint: None,
            device_endpoint: None,
            scopes: Vec::new(),
            auth_methods: Vec::new(),
            takes_metadata_documents: false,
            names_issuer: false,
            issuer,
        },
    };
    let mut resource = server.clone();
    resource.set_fragment(None);
    resource.set_query(None);
    Ok(ProtectedServer {
        resource: resource.into(),
        authorization_server,
        scopes: scopes(challenge, &[]),
    })
}

/// Another path at the same origin.
fn at(origin: &Url, path: &str) -> Url {
    let mut url = origin.clone();
    url.set_path(path);
    url.set_query(None);
    url.set_fragment(None);
    url
}

/// A kind of document.
#[derive(Clone, Copy)]
struct Document {
    /// Each has it.
    member: &'static str,
    name: &'static str,
}

const RESOURCE: Document = Document {
    member: "resource",
    name: "the metadata of the server",
};
const AUTHORIZATION_SERVER: Document = Document {
    member: "issuer",
    name: "the metadata of the authorization server",
};

/// The first document of several places; `None` when it is at none of them. A place in trouble is passed over, and so are
/// the others of a host that does not answer; what was wrong is said when there is no document elsewhere.
async fn first_of<T: serde::de::DeserializeOwned>(
    egress: &Egress,
    places: Vec<Url>,
    document: Document,
) -> Result<Option<T>, OAuthError> {
    let mut failure: Option<OAuthError> = None;
    let mut silent = Vec::new();
    for place in places {
        let origin = place.origin();
        if silent.contains(&origin) {
            continue;
        }
        match get(egress, place, document).await {
            Ok(Answer::Document(found)) => return Ok(Some(found)),
            Ok(Answer::Absent) => {}
            Ok(Answer::Trouble(error)) => failure = failure.or(Some(error)),
            Err(error) => {
                silent.push(origin);
                failure = failure.or(Some(error));
            }
        }
    }
    failure.map_or(Ok(None), Err)
}

/// What is at a place.
enum Answer<T> {
    Document(T),
    Absent,
    Trouble(OAuthError),
}

/// Asks one place. A page for a browser, a redirect, and JSON of another kind are not the document.
async fn get<T: serde::de::DeserializeOwned>(
    egress: &Egress,
    url: Url,
    Document { member, name }: Document,
) -> Result<Answer<T>, OAuthError> {
    let mut request = Request::get(url).header("accept", "application/json");
    request.limits = limits();
    let (status, body) = match send(egress, request).await {
        Err(error) if error.kind == OAuthErrorKind::Redirected => return Ok(Answer::Absent),
        answer => answer?,
    };
    Ok(match status {
        StatusCode::OK => match serde_json::from_slice::<serde_json::Value>(&body) {
            Ok(json) if json.get(member).is_some() => match serde_json::from_value(json) {
                Ok(found) => Answer::Document(found),
                Err(_) => {
                    let why = format!("{name} is not what it should be");
                    Answer::Trouble(OAuthError::unusable(why))
                }
            },
            _ => Answer::Absent,
        },
        status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            let why = format!("{name}: HTTP {}", status.as_u16());
            Answer::Trouble(OAuthError::new(OAuthErrorKind::Away, why))
        }
        _ => Answer::Absent,
    })
}

fn another_issuer() -> OAuthError {
    OAuthError::untrusted("the metadata of the authorization server names another issuer")
}

/// Whether two issuers are one where metadata is looked up: they are the same text, or have no path and differ only by the
/// last slash (RFC 3986, section 6.2.3). Google and Auth0 publish such pairs.
fn is_same_issuer(one: &str, other: &str) -> bool {
    let has_no_path = |text: &str| {
        Url::parse(text)
            .is_ok_and(|url| url.path() == "/" && url.query().is_none() && url.fragment().is_none())
    };
    let bare = |text: &str| text.strip_suffix('/').unwrap_or(text).to_owned();
    one == other || (has_no_path(one) && has_no_path(other) && bare(one) == bare(other))
}

impl ServerMetadata {
    /// The metadata, if it is the issuer's own and the issuer can protect a code.
    fn check(self, issuer: &str) -> Result<AuthorizationServer, OAuthError> {
        if !is_same_issuer(&self.issuer, issuer) {
            return Err(another_issuer());
        }
        let (authorization_endpoint, endpoint_without_pkce) =
            match self.code_challenge_methods_supported {
                None => (None, self.authorization_endpoint),
                Some(methods) => {
                    let has_pkce = methods.iter().any(|method| method == "S256");
                    (self.authorization_endpoint.filter(|_| has_pkce), None)
                }
            };
        let must_push = self.require_pushed_authorization_requests == Some(true);
        if must_push && self.pushed_authorization_request_endpoint.is_none() {
            return Err(OAuthError::unusable(
                "the authorization server wants requests to be pushed and does not say where",
            ));
        }
        Ok(AuthorizationServer {
            issuer: self.issuer,
            authorization_endpoint,
            endpoint_without_pkce,
            token_endpoint: self.token_endpoint,
            registration_endpoint: self.registration_endpoint,
            revocation_endpoint: self.revocation_endpoint,
            pushed_request_endpoint: self
                .pushed_authorization_request_endpoint
                .filter(|_| must_push),
            device_endpoint: self.device_authorization_endpoint,
            scopes: self.scopes_supported.unwrap_or_default(),
            auth_methods: self
                .token_endpoint_auth_methods_supported
                .unwrap_or_default(),
            takes_metadata_documents: self.client_id_metadata_document_supported == Some(true),
            names_issuer: self.authorization_response_iss_parameter_supported == Some(true),
        })
    }
}

impl AuthorizationServer {
    /// Where users sign in, or why they cannot.
    pub fn sign_in_endpoint(&self) -> Result<&Url, OAuthError> {
        self.authorization_endpoint.as_ref().ok_or_else(|| {
            OAuthError::unusable(if self.endpoint_without_pkce.is_some() {
                "the metadata of the authorization server does not say that it supports PKCE with S256, without which a code is not safe; if you know that it does, write `pkce: assumed` beside the `clientId` of a client that you registered"
            } else {
                "the authorization server does not support PKCE with S256, without which a code is not safe"
            })
        })
    }

    /// The same server, which supports PKCE where its metadata does not say so.
    #[must_use]
    pub fn assuming_pkce(mut self) -> Self {
        self.authorization_endpoint = self
            .authorization_endpoint
            .or(self.endpoint_without_pkce.take());
        self
    }

    /// The first of these methods that the token endpoint takes. One that says nothing takes a secret in a header
    /// (RFC 8414, section 2).
    pub(super) fn auth_method(&self, of: &[ClientAuthMethod]) -> Option<ClientAuthMethod> {
        let takes = |method: &&ClientAuthMethod| {
            self.auth_methods.is_empty()
                || self.auth_methods.iter().any(|name| name == method.as_str())
        };
        of.iter().find(takes).copied()
    }
}

impl ProtectedServer {
    /// The same, if users can sign in there as a pack wants it. This is asked before anything is registered.
    pub fn for_sign_in(&self, config: &OAuthConfig) -> Result<Self, OAuthError> {
        let mut found = self.clone();
        if config.assumes_pkce {
            found.authorization_server = found.authorization_server.assuming_pkce();
        }
        found.authorization_server.sign_in_endpoint()?;
        Ok(found)
    }

    /// What to ask for: what the pack says, or else what the server asks for; with that a refresh token where the
    /// authorization server gives one only if asked.
    pub fn scopes_to_request(&self, of_pack: &[String], wanted: &[String]) -> Vec<String> {
        let mut scopes = Vec::new();
        let first = if of_pack.is_empty() {
            &self.scopes
        } else {
            of_pack
        };
        add_scopes(&mut scopes, first.iter().chain(wanted).map(String::as_str));
        let offline = "offline_access";
        if self
            .authorization_server
            .scopes
            .iter()
            .any(|scope| scope == offline)
        {
            add_scopes(&mut scopes, [offline]);
        }
        scopes
    }
}
