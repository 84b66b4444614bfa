//! The HTTP under the client library: it adds the key, and bounds what an endpoint may do to us.
//!
//! The library parses lines without a cap and reads an unfinished one again with every chunk, and knows no
//! timeouts; so bytes, line lengths and silences are counted here, before it sees anything. The key is added here
//! too and never given to the library, which would put Gemini's into the URL.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{HeaderName, HeaderValue, Request, Response, Uri};
use rig_core::http_client::{
    BoxedStream, Error, HttpClientExt, LazyBody, MultipartForm, StreamingResponse,
};
use tokio::time::timeout;
use tracing::Dispatch;

use super::{Limits, quiet::aloud};

/// Why no (whole) answer came; read back by `error`.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("the endpoint cannot be reached")]
    Connect,
    #[error("the connection broke before an answer came")]
    NoAnswer,
    #[error("the connection broke in the middle of the answer")]
    Broken,
    #[error("no answer within {0:?}")]
    FirstByte(Duration),
    #[error("silence for {0:?} in the middle of the answer")]
    Idle(Duration),
    #[error("the answer is larger than {0} bytes")]
    Body(usize),
    #[error("the answer has a line longer than {0} bytes")]
    Line(usize),
    #[error("the request cannot be sent: {0}")]
    Request(&'static str),
}

/// One endpoint with its key.
#[derive(Clone)]
pub(super) struct Guarded {
    pub(super) client: reqwest::Client,
    /// Marked sensitive by whoever made it.
    pub(super) key: Option<(HeaderName, HeaderValue)>,
    pub(super) limits: Limits,
    /// Hears the HTTP client, which runs inside the quiet library.
    pub(super) listener: Dispatch,
}

impl Guarded {
    fn prepare(&self, request: Request<Bytes>) -> Result<reqwest::Request, Fault> {
        let (mut parts, body) = request.into_parts();
        parts.uri = without_key(parts.uri)?;
        for name in ["authorization", "x-api-key"] {
            parts.headers.remove(name);
        }
        if let Some((name, value)) = &self.key {
            parts.headers.insert(name, value.clone());
        }
        reqwest::Request::try_from(Request::from_parts(parts, body))
            .map_err(|_| Fault::Request("its address is not a URL"))
    }

    async fn open(self, request: Request<Bytes>) -> Result<StreamingResponse, Fault> {
        let request = self.prepare(request)?;
        let answer = aloud(
            timeout(self.limits.first_byte, self.client.execute(request)),
            &self.listener,
        )
        .await
        .map_err(|_| Fault::FirstByte(self.limits.first_byte))?
        .map_err(|error| {
            if error.is_connect() {
                Fault::Connect
            } else {
                Fault::NoAnswer
            }
        })?;
        let mut response = Response::new(());
        *response.status_mut() = answer.status();
        *response.headers_mut() = answer.headers().clone();
        Ok(response
            .map(|()| -> BoxedStream { Box::pin(bounded(answer, self.limits, self.listener)) }))
    }
}

/// The library ends Gemini's URL with the (empty) key.
fn without_key(uri: Uri) -> Result<Uri, Fault> {
    let text = uri.to_string();
    match text.strip_suffix("&key=") {
        Some(rest) => rest
            .parse()
            .map_err(|_| Fault::Request("its address is not a URL")),
        None => Ok(uri),
    }
}

/// The chunks of `answer`, until they break a limit.
fn bounded(
    answer: reqwest::Response,
    limits: Limits,
    listener: Dispatch,
) -> impl Stream<Item = Result<Bytes, Error>> + Send {
    let count = Count {
        limits,
        body: 0,
        line: 0,
    };
    stream::try_unfold(
        (answer, count, listener),
        async |(mut answer, mut count, listener)| {
            let chunk = aloud(timeout(count.limits.idle, answer.chunk()), &listener)
                .await
                .map_err(|_| Error::instance(Fault::Idle(count.limits.idle)))?
                .map_err(|_| Error::instance(Fault::Broken))?;
            let Some(chunk) = chunk else { return Ok(None) };
            count.add(&chunk).map_err(Error::instance)?;
            Ok(Some((chunk, (answer, count, listener))))
        },
    )
}

struct Count {
    limits: Limits,
    body: usize,
    line: usize,
}

impl Count {
    fn add(&mut self, chunk: &[u8]) -> Result<(), Fault> {
        self.body += chunk.len();
        if self.body > self.limits.max_body {
            return Err(Fault::Body(self.limits.max_body));
        }
        for (index, piece) in chunk
            .split(|byte| matches!(byte, b'\n' | b'\r'))
            .enumerate()
        {
            self.line = if index == 0 {
                self.line + piece.len()
            } else {
                piece.len()
            };
            if self.line > self.limits.max_line {
                return Err(Fault::Line(self.limits.max_line));
            }
        }
        Ok(())
    }
}

impl HttpClientExt for Guarded {
    fn send<T, U>(
        &self,
        _: Request<T>,
    ) -> impl Future<Output = Result<Response<LazyBody<U>>, Error>> + Send + 'static
    where
        T: Into<Bytes> + Send,
        U: From<Bytes> + Send + 'static,
    {
        std::future::ready(Err(Error::instance(Fault::Request(
            "only streams are asked for",
        ))))
    }

    fn send_multipart<U>(
        &self,
        _: Request<MultipartForm>,
    ) -> impl Future<Output = Result<Response<LazyBody<U>>, Error>> + Send + 'static
    where
        U: From<Bytes> + Send + 'static,
    {
        std::future::ready(Err(Error::instance(Fault::Request(
            "only streams are asked for",
        ))))
    }

    fn send_streaming<T>(
        &self,
        request: Request<T>,
    ) -> impl Future<Output = Result<StreamingResponse, Error>> + Send
    where
        T: Into<Bytes> + Send,
    {
        let request = request.map(Into::into);
        let this = self.clone();
        async move { this.open(request).await.map_err(Error::instance) }
    }
}
