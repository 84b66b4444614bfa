//! One request on its way: redirects, timeouts and the size of the response.

use std::future::poll_fn;

use http::{HeaderMap, HeaderValue, header};
use url::Url;

use super::{
    Egress, Request, Response,
    body::{Body, ResponseTimeouts},
    client,
    error::{EgressError, ErrorKind},
    explanation::explain,
    host_of, redirect,
    url_policy::Route,
};

impl Egress {
    /// The first answer that is no redirect, in time.
    pub(super) async fn wait(
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
pub(super) fn clean(headers: &mut HeaderMap) {
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
pub(super) fn read(
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
