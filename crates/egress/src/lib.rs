//! The one HTTP client for outgoing requests: to MCP servers, authorization servers, key sets, webhooks and every
//! other address that a person configured.
//!
//! Invariants: no connection is opened to an address that is not public unless the operator's allowlist names
//! the host. The connection goes to the same address that was checked. Each redirect is checked like a first
//! request and carries neither credential nor body to another origin. No response is larger or slower than its
//! request allows.

mod address;
mod body;
mod client;
mod error;
mod exchange;
mod url_policy;
mod websocket;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use url::Url;

pub use self::{
    address::is_public,
    body::Body,
    client::{NameSource, install_crypto, operator_client},
    error::{EgressError, ErrorKind, tls_failure},
    url_policy::parse_url,
    websocket::{Handshake, Socket},
};
use self::{
    body::ResponseTimeouts,
    client::HttpClient,
    exchange::{limit_response, prepare_headers},
    url_policy::{Route, UrlPolicy},
};

/// The largest body that is read unless the request says otherwise.
pub const MAX_BODY: usize = 8 * 1024 * 1024;

/// The HTTP client. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct Egress {
    shared: Arc<Shared>,
    /// The URLs that this client may call.
    url_policy: Arc<UrlPolicy>,
}

struct Shared {
    /// The policy for URLs that a tenant wrote.
    tenant_policy: Arc<UrlPolicy>,
    /// Connects to public addresses only.
    public: HttpClient,
    /// Connects to any address; for hosts that the operator named.
    allowed: HttpClient,
}

/// One request. The client itself sets the headers of the connection (`host`, `content-length`, …).
#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub limits: Limits,
}

impl Request {
    pub fn get(url: Url) -> Self {
        Self {
            method: Method::GET,
            url,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            limits: Limits::default(),
        }
    }

    pub fn post(url: Url, body: impl Into<Bytes>) -> Self {
        Self {
            method: Method::POST,
            body: body.into(),
            ..Self::get(url)
        }
    }

    /// Sets a header whose value is part of this program. Panics when the value is not printable ASCII.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("the program's own values are printable");
        self.headers.insert(name, value);
        self
    }
}

/// The limits of one request in time and size.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The time for DNS, TCP and TLS together, for each connection that has to be opened.
    pub connect: Duration,
    /// The time from the call to the last byte of the body, redirects included. `None`: no limit.
    pub deadline: Option<Duration>,
    /// The longest time without a byte, before the headers and between two chunks of the body. `None`: no limit.
    pub idle: Option<Duration>,
    /// The most bytes of the response body.
    pub max_body: usize,
    /// How many redirects are followed. With 0, a redirect is returned as the response.
    pub redirects: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            deadline: Some(Duration::from_secs(30)),
            idle: None,
            max_body: MAX_BODY,
            redirects: exchange::MAX_REDIRECTS,
        }
    }
}

/// A response whose body has not been read yet.
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The URL that responded, after redirects.
    pub url: Url,
    pub body: Body,
}

impl Response {
    /// Reads the whole body, within the limits of the request.
    pub async fn bytes(self) -> Result<Bytes, EgressError> {
        self.body.bytes().await
    }
}

impl Egress {
    /// Creates a client. `allow` lists hosts that may be private or without TLS, as `host` or `host:port`; the list does
    /// not hold for URLs that a tenant wrote ([`Egress::for_tenants`]). The error names an entry that has neither form.
    pub fn new(allow: &[String]) -> Result<Self, String> {
        Self::with_tenant_list(allow, &[])
    }

    /// Creates a client like [`Egress::new`] with a second list, `of_tenants`, for the URLs that tenants write.
    pub fn with_tenant_list(allow: &[String], of_tenants: &[String]) -> Result<Self, String> {
        Self::build(allow, of_tenants, &NameSource::System)
    }

    /// Creates a client like [`Egress::new`] that resolves names from `names`. Tests use it.
    pub fn with_names(allow: &[String], names: &NameSource) -> Result<Self, String> {
        Self::build(allow, &[], names)
    }

    fn build(allow: &[String], of_tenants: &[String], names: &NameSource) -> Result<Self, String> {
        let shared = Shared {
            tenant_policy: Arc::new(UrlPolicy::new(of_tenants)?),
            public: client::build(names, Route::Public)?,
            allowed: client::build(names, Route::Allowed)?,
        };
        Ok(Self {
            shared: Arc::new(shared),
            url_policy: Arc::new(UrlPolicy::new(allow)?),
        })
    }

    /// This client with the policy for URLs that a tenant wrote. Both share their connections.
    #[must_use]
    pub fn for_tenants(&self) -> Self {
        Self {
            url_policy: self.shared.tenant_policy.clone(),
            ..self.clone()
        }
    }

    /// Checks the text of a URL, without resolving its name. The error is the refusal.
    pub fn check_url(&self, url: &Url) -> Result<(), EgressError> {
        self.url_policy.choose_route(url).map(|_| ())
    }

    /// Sends a request and follows its redirects. Dropping the future cancels the request.
    pub async fn send(&self, mut request: Request) -> Result<Response, EgressError> {
        let mut timeouts = ResponseTimeouts::new(&request.limits);
        let max = request.limits.max_body;
        prepare_headers(&mut request.headers);
        let (url, response) = self.send_in_time(&mut timeouts, request).await?;
        limit_response(url, response, timeouts, max)
    }
}

fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}
