//! The one guarded HTTP client. MCP, key sets and every other request to a place that
//! somebody configured goes through here.
//!
//! Invariants: no connection is opened to an address that is not public unless the operator's allowlist names
//! the host. The connection goes to the same address that was checked. Each redirect is checked like a first
//! request and carries neither credential nor body to another origin. No answer is larger or slower than its
//! request allows.

mod address;
mod body;
mod client;
mod error;
mod exchange;
mod explanation;
mod redirect;
mod upgrade;
mod url_policy;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use url::Url;

pub use self::{
    address::is_public,
    body::Body,
    client::{NameSource, install_crypto},
    error::{EgressError, ErrorKind},
    upgrade::{Handshake, Socket},
    url_policy::parse_url,
};
use self::{
    body::ResponseTimeouts,
    exchange::{clean, read},
    url_policy::{Route, UrlPolicy},
};

/// The largest body that is read unless the request says otherwise.
pub const MAX_BODY: usize = 8 * 1024 * 1024;

/// The guarded client. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct Egress {
    shared: Arc<Shared>,
    /// Which addresses it admits.
    url_policy: Arc<UrlPolicy>,
}

struct Shared {
    /// For addresses that a tenant wrote.
    tenant_gate: Arc<UrlPolicy>,
    /// Refuses names with a private address.
    public: reqwest::Client,
    /// For hosts that the operator named.
    allowed: reqwest::Client,
}

/// One request. Headers of the connection (`host`, `content-length`, …) are set by the client.
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

    /// Sets a header of the program's own, whose value is printable.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("the program's own values are printable");
        self.headers.insert(name, value);
        self
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Look-up, TCP and TLS together, for each connection that has to be opened.
    pub connect: Duration,
    /// From the call to the last byte of the body, redirects included.
    pub deadline: Option<Duration>,
    /// The longest silence: before the headers, and between two pieces of the body.
    pub idle: Option<Duration>,
    /// Bytes of the body.
    pub max_body: usize,
    /// How many redirects are followed. With 0 a redirect is returned as the answer.
    pub redirects: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            deadline: Some(Duration::from_secs(30)),
            idle: None,
            max_body: MAX_BODY,
            redirects: redirect::MAX_REDIRECTS,
        }
    }
}

/// The answer: the head at once, the body as it comes.
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Where the answer came from, after redirects.
    pub url: Url,
    pub body: Body,
}

impl Response {
    /// The whole body.
    pub async fn bytes(self) -> Result<Bytes, EgressError> {
        self.body.bytes().await
    }
}

impl Egress {
    /// `allow`: `host` or `host:port` of hosts that may be private or without TLS. The error names an entry
    /// that is neither form. An address that a tenant wrote may not be reached so.
    pub fn new(allow: &[String]) -> Result<Self, String> {
        Self::with_tenant_list(allow, &[])
    }

    /// The same, with a list of its own for the addresses that tenants write.
    pub fn with_tenant_list(allow: &[String], of_tenants: &[String]) -> Result<Self, String> {
        Self::build(allow, of_tenants, &NameSource::System)
    }

    /// The same as `new`, with names resolved by a table.
    pub fn with_names(allow: &[String], names: &NameSource) -> Result<Self, String> {
        Self::build(allow, &[], names)
    }

    fn build(allow: &[String], of_tenants: &[String], names: &NameSource) -> Result<Self, String> {
        let shared = Shared {
            tenant_gate: Arc::new(UrlPolicy::new(of_tenants)?),
            public: client::build(names, Route::Public)?,
            allowed: client::build(names, Route::Allowed)?,
        };
        Ok(Self {
            shared: Arc::new(shared),
            url_policy: Arc::new(UrlPolicy::new(allow)?),
        })
    }

    /// The same client for addresses that a tenant wrote.
    #[must_use]
    pub fn for_tenants(&self) -> Self {
        Self {
            url_policy: self.shared.tenant_gate.clone(),
            ..self.clone()
        }
    }

    /// Checks a URL by its text, without a look-up.
    pub fn check_url(&self, url: &Url) -> Result<(), EgressError> {
        self.url_policy.choose_route(url).map(|_| ())
    }

    /// A client for endpoints that the operator named, such as models: the same hygiene (no proxy, no
    /// redirects, no decompression) without the refusal of private addresses. Never for a URL that a
    /// user or a server chose. Limits of time and size are the caller's work.
    pub fn operator_client(&self) -> reqwest::Client {
        self.shared.allowed.clone()
    }

    /// Sends a request and follows its redirects. Dropping the future gives the request up.
    pub async fn send(&self, mut request: Request) -> Result<Response, EgressError> {
        let mut timeouts = ResponseTimeouts::new(&request.limits);
        let max = request.limits.max_body;
        clean(&mut request.headers);
        let (url, answer) = self.wait(&mut timeouts, request).await?;
        read(url, answer, timeouts, max)
    }
}

fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}
