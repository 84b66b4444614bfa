//! Sends one request: follows its redirects and applies its limits to the response.

use std::future::poll_fn;

use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use http_body::Body as _;
use http_body_util::Full;
use hyper::body::Incoming;
use url::Url;

use super::{
    Egress, Request, Response,
    body::{Body, ResponseTimeouts},
    client,
    error::{EgressError, ErrorKind, explain, was_closed_in_pool},
    host_of,
    url_policy::Route,
};

impl Egress {
    /// Sends a request, follows its redirects, and returns the final URL and response; fails when a timer runs out first.
    pub(super) async fn send_in_time(
        &self,
        timeouts: &mut ResponseTimeouts,
        request: Request,
    ) -> Result<(Url, http::Response<Incoming>), EgressError> {
        let answered = tokio::select! {
            kind = poll_fn(|cx| timeouts.poll_expired(cx)) => return Err(kind.sent()),
            answered = self.send_with_redirects(request) => answered?,
        };
        timeouts.reset_idle();
        Ok(answered)
    }

    async fn send_with_redirects(
        &self,
        mut request: Request,
    ) -> Result<(Url, http::Response<Incoming>), EgressError> {
        let most = request.limits.redirects;
        for hop in 0..=most {
            // After the first hop, the server that redirected has seen the request.
            let response = self
                .send_once(&request)
                .await
                .map_err(|error| EgressError {
                    sent: error.sent || hop > 0,
                    ..error
                })?;
            if most == 0
                || !apply_redirect(&mut request, response.status(), response.headers())
                    .map_err(ErrorKind::sent)?
            {
                return Ok((request.url, response));
            }
        }
        Err(ErrorKind::TooManyRedirects(most).sent())
    }

    /// Sends one request without following redirects. A connection that had closed in the pool is replaced, since
    /// nothing of the request has left.
    async fn send_once(&self, request: &Request) -> Result<http::Response<Incoming>, EgressError> {
        let client = match self.url_policy.choose_route(&request.url)? {
            Route::Public => &self.shared.public,
            Route::Allowed => &self.shared.allowed,
        };
        let uri = Uri::try_from(request.url.as_str()).map_err(|error| {
            ErrorKind::Broken {
                host: host_of(&request.url),
                cause: error.to_string(),
            }
            .unsent()
        })?;
        let mut closed = 0;
        loop {
            let mut sent = http::Request::new(Full::new(request.body.clone()));
            *sent.method_mut() = request.method.clone();
            *sent.uri_mut() = uri.clone();
            sent.headers_mut().clone_from(&request.headers);
            let sending =
                client::CONNECT_TIMEOUT.scope(request.limits.connect, client.request(sent));
            match sending.await {
                Err(error) if was_closed_in_pool(&error) && closed < MAX_CLOSED => closed += 1,
                answer => return answer.map_err(|error| explain(&error, &request.url)),
            }
        }
    }
}

/// Removes headers that only the client may set, asks for an uncompressed body, and names this program.
pub(super) fn prepare_headers(headers: &mut HeaderMap) {
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
    let mut set_default = |name, value| {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    };
    set_default(header::ACCEPT, "*/*");
    set_default(header::USER_AGENT, client::USER_AGENT);
}

/// Turns a response of the HTTP client into ours, whose body has limits.
pub(super) fn limit_response(
    url: Url,
    response: http::Response<Incoming>,
    timeouts: ResponseTimeouts,
    max: usize,
) -> Result<Response, EgressError> {
    check_head(&response, max)?;
    let (head, body) = response.into_parts();
    let body = Body::new(body, host_of(&url), timeouts, max);
    Ok(Response {
        status: head.status,
        headers: head.headers,
        url,
        body,
    })
}

/// Refuses a response whose headers show that it is too large or compressed.
fn check_head(response: &http::Response<Incoming>, max: usize) -> Result<(), EgressError> {
    let length = response.body().size_hint().exact();
    if length.is_some_and(|length| length > max as u64) {
        return Err(ErrorKind::TooLarge(max).sent());
    }
    let encodings = response.headers().get_all(header::CONTENT_ENCODING);
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

/// Connections that had closed in the pool and are replaced, for one request.
const MAX_CLOSED: usize = 8;

/// Redirects that are followed unless the request says otherwise.
pub(super) const MAX_REDIRECTS: usize = 5;

/// Headers that carry no credential and no data of the caller.
const SAFE_HEADERS: &[&str] = &[
    "accept",
    "accept-language",
    "user-agent",
    "mcp-protocol-version",
];

/// Changes `request` into the one that a redirect asks for; `Ok(false)` when the response is no redirect. Methods change
/// as RFC 9110, section 15.4 allows and as browsers do. A request to another origin carries no body and only
/// [`SAFE_HEADERS`].
fn apply_redirect(
    request: &mut Request,
    status: StatusCode,
    headers: &HeaderMap,
) -> Result<bool, ErrorKind> {
    if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(false);
    }
    let Some(location) = headers.get(header::LOCATION) else {
        return Ok(false);
    };
    let bad = || ErrorKind::BadRedirect("its `location` is not a URL".to_owned());
    let location = str::from_utf8(location.as_bytes()).map_err(|_| bad())?;
    let target = request.url.join(location).map_err(|_| bad())?;
    if becomes_get(status, &request.method) {
        request.method = Method::GET;
        drop_body(request);
    }
    if target.origin() != request.url.origin() {
        if !request.body.is_empty() {
            let why = "it would carry the request's body to another origin".to_owned();
            return Err(ErrorKind::BadRedirect(why));
        }
        if request.headers.contains_key(header::UPGRADE) {
            return Err(ErrorKind::BadRedirect(
                "it would open a WebSocket at another origin".to_owned(),
            ));
        }
        drop_body(request);
        let sent = std::mem::take(&mut request.headers);
        for name in SAFE_HEADERS {
            sent.get_all(*name).iter().for_each(|value| {
                request.headers.append(*name, value.clone());
            });
        }
    }
    request.url = target;
    Ok(true)
}

fn becomes_get(status: StatusCode, method: &Method) -> bool {
    match status.as_u16() {
        301 | 302 => method == Method::POST,
        303 => method != Method::GET && method != Method::HEAD,
        _ => false,
    }
}

fn drop_body(request: &mut Request) {
    request.body = bytes::Bytes::new();
    for name in [
        header::CONTENT_TYPE,
        header::CONTENT_ENCODING,
        header::CONTENT_LANGUAGE,
        header::CONTENT_LOCATION,
    ] {
        request.headers.remove(name);
    }
}
