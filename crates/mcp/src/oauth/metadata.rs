//! Finds the authorization server of an MCP server: by the metadata of the protected resource (RFC 9728), then by the
//! metadata of the authorization server (RFC 8414 or OpenID Connect Discovery).

use http::StatusCode;
use serde::Deserialize;
use url::Url;

use super::{Challenge, OAuthError, OAuthErrorKind, limits, send};
use domain::oauth::{ClientAuthMethod, OAuthConfig, add_scopes, scopes_of};
use egress::{Egress, Request};

/// How many authorization servers of one resource are tried.
const MAX_ISSUERS: usize = 4;

/// A server, and the authorization server at which its users sign in.
#[derive(Clone, Debug)]
pub struct ProtectedServer {
    /// The resource indicator (RFC 8707), exactly as published.
    pub resource: String,
    pub authorization_server: AuthorizationServer,
    /// The scopes of its challenge, or else all scopes that it supports.
    pub scopes: Vec<String>,
}

/// The checked metadata of an authorization server.
#[derive(Clone, Debug)]
pub struct AuthorizationServer {
    pub issuer: String,
    /// Where users sign in; `None` if the metadata does not declare PKCE with S256.
    pub authorization_endpoint: Option<Url>,
    /// Where users sign in, if the metadata does not say whether PKCE is supported.
    pub endpoint_without_pkce: Option<Url>,
    pub token_endpoint: Url,
    pub registration_endpoint: Option<Url>,
    pub revocation_endpoint: Option<Url>,
    /// Where authorization requests must be pushed (RFC 9126), if that is required.
    pub pushed_request_endpoint: Option<Url>,
    /// Where a device without a browser gets its code (RFC 8628).
    pub device_endpoint: Option<Url>,
    pub scopes: Vec<String>,
    /// The methods of client authentication; empty if the metadata does not say.
    pub auth_methods: Vec<String>,
    /// The id of a client may be the URL of its metadata document.
    pub takes_metadata_documents: bool,
    /// Every authorization response names the issuer (RFC 9207).
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

/// Finds the authorization server of an MCP server. `challenge` is the server's answer to a request without a token.
pub async fn discover(
    egress: &Egress,
    server: &Url,
    challenge: &Challenge,
) -> Result<ProtectedServer, OAuthError> {
    let Some(published) = resource_metadata(egress, server, challenge).await? else {
        return discover_by_2025_03_26(egress, server, challenge).await;
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

/// The scopes of the challenge, or else all supported ones.
fn scopes(challenge: &Challenge, supported: &[String]) -> Vec<String> {
    let mut scopes = scopes_of(challenge.scope.as_deref().unwrap_or_default());
    if scopes.is_empty() {
        add_scopes(&mut scopes, supported.iter().map(String::as_str));
    }
    scopes
}

/// The metadata of a protected resource: at the address in the challenge, on any host (RFC 9728, section 5.1), or at one of
/// the two well-known addresses.
async fn resource_metadata(
    egress: &Egress,
    server: &Url,
    challenge: &Challenge,
) -> Result<Option<ResourceMetadata>, OAuthError> {
    let named = challenge.resource_metadata.clone();
    let path = server.path().trim_end_matches('/');
    let mut addresses: Vec<Url> = named.into_iter().collect();
    for path in [path, ""] {
        let address = with_path(
            server,
            &format!("/.well-known/oauth-protected-resource{path}"),
        );
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    fetch_first(egress, addresses, RESOURCE).await
}

/// Whether a resource is the server itself, or a parent path at the same origin.
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

/// The metadata of an issuer that is named in a setting. It must name exactly the same issuer. If it does not say whether
/// PKCE is supported, as with many providers of OpenID Connect, PKCE is assumed.
pub async fn discover_issuer(
    egress: &Egress,
    issuer: &str,
) -> Result<AuthorizationServer, OAuthError> {
    let found = server_metadata(egress, issuer).await?.ok_or_else(|| {
        OAuthError::unusable("the issuer publishes no metadata; is its address right?")
    })?;
    if found.issuer != issuer {
        return Err(wrong_issuer());
    }
    Ok(found.check(issuer)?.assuming_pkce())
}

/// The checked metadata of an issuer; `None` when it publishes none.
async fn authorization_server(
    egress: &Egress,
    issuer: &str,
) -> Result<Option<AuthorizationServer>, OAuthError> {
    let found = server_metadata(egress, issuer).await?;
    found.map(|found| found.check(issuer)).transpose()
}

/// The metadata of an issuer, from the addresses of RFC 8414 and OpenID Connect Discovery.
async fn server_metadata(
    egress: &Egress,
    issuer: &str,
) -> Result<Option<ServerMetadata>, OAuthError> {
    let Ok(url) = Url::parse(issuer) else {
        return Err(OAuthError::untrusted("the issuer is not an address"));
    };
    let path = url.path().trim_end_matches('/');
    let mut paths = vec![
        format!("/.well-known/oauth-authorization-server{path}"),
        format!("/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        paths.push(format!("{path}/.well-known/openid-configuration"));
    }
    let addresses = paths.iter().map(|path| with_path(&url, path)).collect();
    fetch_first(egress, addresses, AUTHORIZATION_SERVER).await
}

/// Revision 2025-03-26: the server is its own authorization server, with or without metadata.
async fn discover_by_2025_03_26(
    egress: &Egress,
    server: &Url,
    challenge: &Challenge,
) -> Result<ProtectedServer, OAuthError> {
    let issuer = server.origin().ascii_serialization();
    let address = with_path(server, "/.well-known/oauth-authorization-server");
    let found = fetch_first::<ServerMetadata>(egress, vec![address], AUTHORIZATION_SERVER).await?;
    let authorization_server = match found {
        Some(found) => found.check(&issuer)?,
        None if challenge.resource_metadata.is_some() => {
            return Err(OAuthError::unusable(
                "the server names metadata that it does not have",
            ));
        }
        None => AuthorizationServer {
            authorization_endpoint: Some(with_path(server, "/authorize")),
            endpoint_without_pkce: None,
            token_endpoint: with_path(server, "/token"),
            registration_endpoint: Some(with_path(server, "/register")),
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

/// The URL of another path at the same origin.
fn with_path(origin: &Url, path: &str) -> Url {
    let mut url = origin.clone();
    url.set_path(path);
    url.set_query(None);
    url.set_fragment(None);
    url
}

/// A kind of metadata document.
#[derive(Clone, Copy)]
struct Document {
    /// The member by which such a document is recognised.
    member: &'static str,
    /// The name for error messages.
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

/// The first document found at these addresses; `None` when there is none. Addresses with an error are skipped, and so are
/// further ones of a host that does not answer. The first error is returned if no document is found.
async fn fetch_first<T: serde::de::DeserializeOwned>(
    egress: &Egress,
    addresses: Vec<Url>,
    document: Document,
) -> Result<Option<T>, OAuthError> {
    let mut failure: Option<OAuthError> = None;
    let mut silent = Vec::new();
    for address in addresses {
        let origin = address.origin();
        if silent.contains(&origin) {
            continue;
        }
        match fetch_document(egress, address, document).await {
            Ok(Answer::Document(found)) => return Ok(Some(found)),
            Ok(Answer::Absent) => {}
            Ok(Answer::Failed(error)) => failure = failure.or(Some(error)),
            Err(error) => {
                silent.push(origin);
                failure = failure.or(Some(error));
            }
        }
    }
    failure.map_or(Ok(None), Err)
}

/// The result of asking one address for a document.
enum Answer<T> {
    Document(T),
    Absent,
    Failed(OAuthError),
}

/// Fetches a document. Web pages, redirects and other JSON count as absent.
async fn fetch_document<T: serde::de::DeserializeOwned>(
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
                    Answer::Failed(OAuthError::unusable(why))
                }
            },
            _ => Answer::Absent,
        },
        status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            let why = format!("{name}: HTTP {}", status.as_u16());
            Answer::Failed(OAuthError::new(OAuthErrorKind::Unavailable, why))
        }
        _ => Answer::Absent,
    })
}

fn wrong_issuer() -> OAuthError {
    OAuthError::untrusted("the metadata of the authorization server names another issuer")
}

/// Whether two issuers have the same metadata addresses: they are the same text, or have no path and differ only in a
/// slash at the end (RFC 3986, section 6.2.3). Google and Auth0 publish such pairs.
fn is_same_issuer(one: &str, other: &str) -> bool {
    let has_no_path = |text: &str| {
        Url::parse(text)
            .is_ok_and(|url| url.path() == "/" && url.query().is_none() && url.fragment().is_none())
    };
    let bare = |text: &str| text.strip_suffix('/').unwrap_or(text).to_owned();
    one == other || (has_no_path(one) && has_no_path(other) && bare(one) == bare(other))
}

impl ServerMetadata {
    /// Checks that the metadata is that of `issuer` and can be used.
    fn check(self, issuer: &str) -> Result<AuthorizationServer, OAuthError> {
        if !is_same_issuer(&self.issuer, issuer) {
            return Err(wrong_issuer());
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
    /// Where users sign in. The error says why they cannot.
    pub fn sign_in_endpoint(&self) -> Result<&Url, OAuthError> {
        self.authorization_endpoint.as_ref().ok_or_else(|| {
            OAuthError::unusable(if self.endpoint_without_pkce.is_some() {
                "the metadata of the authorization server does not say that it supports PKCE with S256, without which a code is not safe; if you know that it does, write `pkce: assumed` beside the `clientId` of a client that you registered"
            } else {
                "the authorization server does not support PKCE with S256, without which a code is not safe"
            })
        })
    }

    /// The same server with PKCE, if its metadata does not say whether it is supported.
    #[must_use]
    pub fn assuming_pkce(mut self) -> Self {
        self.authorization_endpoint = self
            .authorization_endpoint
            .or(self.endpoint_without_pkce.take());
        self
    }

    /// The first of these methods that the token endpoint supports. Metadata without methods means the first of all, which
    /// should be a secret in a header (RFC 8414, section 2).
    pub(super) fn auth_method(&self, methods: &[ClientAuthMethod]) -> Option<ClientAuthMethod> {
        let takes = |method: &&ClientAuthMethod| {
            self.auth_methods.is_empty()
                || self
                    .auth_methods
                    .iter()
                    .any(|name| name == method.into_str())
        };
        methods.iter().find(takes).copied()
    }
}

impl ProtectedServer {
    /// The same server, adapted to the settings of a pack. The error says why users cannot sign in. Call it before a client
    /// is registered.
    pub fn for_sign_in(&self, config: &OAuthConfig) -> Result<Self, OAuthError> {
        let mut found = self.clone();
        if config.assumes_pkce {
            found.authorization_server = found.authorization_server.assuming_pkce();
        }
        found.authorization_server.sign_in_endpoint()?;
        Ok(found)
    }

    /// The scopes for a sign-in: those of the pack or else of the server, those in `wanted`, and `offline_access` if the
    /// authorization server supports it, since some give a refresh token only then.
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
