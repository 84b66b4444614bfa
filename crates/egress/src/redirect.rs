//! What the next request of a redirect is. Methods follow RFC 9110 section 15.4 as browsers do; what
//! crosses to another origin is a bare request: no body, and of the caller's headers only the harmless.

use http::{HeaderMap, Method, StatusCode, header};

use super::{Request, error::ErrorKind};

pub(super) const MAX_REDIRECTS: usize = 5;

/// Headers that do not identify the caller. They may follow a redirect to another origin.
const SAFE_HEADERS: &[&str] = &[
    "accept",
    "accept-language",
    "user-agent",
    "mcp-protocol-version",
];

/// Changes the request into the one that `status` and its `Location` ask for. `Ok(false)`: no redirect.
pub(super) fn follow(
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
