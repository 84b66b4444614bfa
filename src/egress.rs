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
mod redirect;
mod upgrade;
mod url_policy;

use std::{error::Error as StdError, future::poll_fn, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
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

    /// The first answer that is no redirect, in time.
    async fn wait(
        &self,
        timeouts: &mut ResponseTimeouts,
        request: Request,
    ) -> Result<(Url, reqwest::Response), EgressError> {
        let answer = tokio::select! {
            kind = poll_fn(|cx| timeouts.poll_expired(cx)) => return Err(kind.sent()),
            answer = self.exchange(request) => answer?,
        };
        timeouts.reset_idle();
        Ok(answer)
    }

    /// One request after another until an answer is no redirect.
    async fn exchange(
        &self,
        mut request: Request,
    ) -> Result<(Url, reqwest::Response), EgressError> {
        let most = request.limits.redirects;
        for hop in 0..=most {
            // The server that redirected has seen the request, whatever fails after it.
            let answer = self.hop(&request).await.map_err(|error| EgressError {
                sent: error.sent || hop > 0,
                ..error
            })?;
            if most == 0
                || !redirect::follow(&mut request, answer.status(), answer.headers())
                    .map_err(ErrorKind::sent)?
            {
                return Ok((request.url, answer));
            }
        }
        Err(ErrorKind::TooManyRedirects(most).sent())
    }

    async fn hop(&self, request: &Request) -> Result<reqwest::Response, EgressError> {
        let client = match self.url_policy.choose_route(&request.url)? {
            Route::Public => &self.shared.public,
            Route::Allowed => &self.shared.allowed,
        };
        let sending = client
            .request(request.method.clone(), request.url.clone())
            .headers(request.headers.clone())
            .body(request.body.clone())
            .send();
        client::CONNECT_TIMEOUT
            .scope(request.limits.connect, sending)
            .await
            .map_err(|error| explain(error, &request.url))
    }
}

/// Leaves out what belongs to the connection, and asks for a body as it is.
fn clean(headers: &mut HeaderMap) {
    for name in [
        header::HOST,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::CONNECTION,
        header::TE,
        header::TRAILER,
        header::UPGRADE,
        header::EXPECT,
        header::PROXY_AUTHORIZATION,
    ] {
        headers.remove(name);
    }
    headers.insert(
        header::ACCEPT_ENCODING,
        HeaderValue::from_static("identity"),
    );
}

/// The head of an answer, with a body that is counted and timed.
fn read(
    url: Url,
    answer: reqwest::Response,
    timeouts: ResponseTimeouts,
    max: usize,
) -> Result<Response, EgressError> {
    check_head(&answer, max)?;
    let (head, body) = http::Response::<reqwest::Body>::from(answer).into_parts();
    let body = Body::new(body, host_of(&url), timeouts, max);
    Ok(Response {
        status: head.status,
        headers: head.headers,
        url,
        body,
    })
}

/// Refuses an answer whose head shows that it is too large or compressed.
fn check_head(answer: &reqwest::Response, max: usize) -> Result<(), EgressError> {
    if answer
        .content_length()
        .is_some_and(|length| length > max as u64)
    {
        return Err(ErrorKind::TooLarge(max).sent());
    }
    let encodings = answer.headers().get_all(header::CONTENT_ENCODING);
    let encoding = encodings
        .iter()
        .find(|value| !value.is_empty() && !value.as_bytes().eq_ignore_ascii_case(b"identity"));
    match encoding {
        Some(encoding) => Err(ErrorKind::Compressed(
            String::from_utf8_lossy(encoding.as_bytes()).into_owned(),
        )
        .sent()),
        None => Ok(()),
    }
}

fn explain(error: reqwest::Error, url: &Url) -> EgressError {
    let host = host_of(url);
    let error = error.without_url();
    if let Some(client::PrivateAddressError(address)) = found_in(&error) {
        return ErrorKind::PrivateAddress {
            host,
            address: *address,
        }
        .unsent();
    }
    if let Some(client::Unresolved(cause)) = found_in(&error) {
        return ErrorKind::Unresolved {
            host,
            cause: cause.to_string(),
        }
        .unsent();
    }
    if let Some(client::ConnectTimeoutError(after)) = found_in(&error) {
        return ErrorKind::ConnectTimeout {
            host,
            after: *after,
        }
        .unsent();
    }
    let cause = cause_of(&error);
    if error.is_connect() {
        return ErrorKind::Connect { host, cause }.unsent();
    }
    // Cancelled by hyper: the connection was gone before the request was handed to it.
    let unsent = error.is_builder()
        || found_in::<hyper::Error>(&error).is_some_and(hyper::Error::is_canceled);
    EgressError {
        kind: ErrorKind::Broken { host, cause },
        sent: !unsent,
    }
}

fn found_in<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    chain(error).find_map(<dyn StdError>::downcast_ref)
}

/// The innermost cause, which says what happened.
fn cause_of(error: &(dyn StdError + 'static)) -> String {
    chain(error)
        .last()
        .map(ToString::to_string)
        .unwrap_or_default()
}

fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}
