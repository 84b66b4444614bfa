//! Sends a request and reads its answer as a stream of JSON events.
//!
//! The limits of the step bound every wait, every line and the whole answer, before anything is parsed.

use std::time::Duration;

use bytes::{Buf, BytesMut};
use http::{HeaderName, HeaderValue, header};
use serde_json::Value;
use tokio::time::timeout;

use super::{
    Limits, ModelError,
    error::{AttemptError, Outage, clean},
    provider::Request,
    refusal::refusal_error,
};
use domain::{
    encoding::replace_lone_surrogates,
    json,
    pack::{Llm, Provider},
    secret::Secret,
};

/// The most bytes that are read of an error response.
const MAX_ERROR_BODY: usize = 64 << 10;

/// The events of one answer.
pub(super) struct Events {
    response: reqwest::Response,
    limits: Limits,
    /// The stream has server-sent events; otherwise each line is an event.
    is_sse: bool,
    /// Bytes of the response so far.
    read: usize,
    unread: BytesMut,
    /// The bytes at the start of `unread` that hold no line end.
    searched: usize,
    /// The data so far of the event that has not ended yet.
    data: String,
    /// The last line ended with a carriage return; a line feed that follows belongs to the same line end.
    after_cr: bool,
    /// The endpoint sent `[DONE]`: its answer is complete.
    is_done: bool,
}

/// Sends `request` with the header of the key, and returns the events of its answer. A response that is not a stream
/// becomes an error.
pub(super) async fn open(
    client: &reqwest::Client,
    llm: &Llm,
    request: Request,
    key: Option<(HeaderName, HeaderValue)>,
    limits: Limits,
) -> Result<Events, AttemptError> {
    let is_sse = llm.provider != Provider::Ollama;
    let post = client.post(request.url);
    let post = post.header(header::CONTENT_TYPE, "application/json");
    let mut post = post.body(json::to_text(&request.body));
    if is_sse {
        post = post.header(header::ACCEPT, "text/event-stream");
    }
    for (name, value) in request.headers {
        post = post.header(*name, *value);
    }
    if let Some((name, value)) = key {
        post = post.header(name, value);
    }
    let response = timeout(limits.first_byte, post.send())
        .await
        .map_err(|_| Outage::Silent.into_error(ModelError::TimedOut))?
        .map_err(|error| send_error(&error))?;
    if !response.status().is_success() {
        return Err(read_refusal(response, limits.idle, llm.api_key.as_ref()).await);
    }
    if is_sse {
        check_content_type(&response)?;
    }
    Ok(Events {
        response,
        limits,
        is_sse,
        read: 0,
        unread: BytesMut::new(),
        searched: 0,
        data: String::new(),
        after_cr: false,
        is_done: false,
    })
}

pub(super) fn send_error(error: &reqwest::Error) -> AttemptError {
    if error.is_builder() {
        return ModelError::BadRequest("its address is not a URL".to_owned()).into();
    }
    let (outage, reason) = if error.is_connect() {
        (Outage::Unreachable, "the endpoint cannot be reached")
    } else {
        (Outage::Silent, "the connection broke before an answer came")
    };
    outage.into_error(ModelError::Unavailable {
        reason: reason.to_owned(),
        retry_after: None,
    })
}

/// The error for a response with a status other than success. Its body is read as far as it arrives in time.
pub(super) async fn read_refusal(
    mut response: reqwest::Response,
    idle: Duration,
    key: Option<&Secret>,
) -> AttemptError {
    let mut body = Vec::new();
    while body.len() < MAX_ERROR_BODY
        && let Ok(Ok(Some(chunk))) = timeout(idle, response.chunk()).await
    {
        body.extend_from_slice(&chunk);
    }
    let body = serde_json::from_slice(&body).unwrap_or_default();
    refusal_error(Some(response.status()), response.headers(), &body, key)
}

fn check_content_type(response: &reqwest::Response) -> Result<(), ModelError> {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("text/event-stream") {
        return Ok(());
    }
    let kind = if kind.is_empty() { "unnamed" } else { kind };
    Err(ModelError::Protocol(format!(
        "it came as {} and not as a stream",
        clean(kind, None)
    )))
}

impl Events {
    /// Whether the endpoint sent `[DONE]`.
    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// The next event; `None` after the last one.
    pub(super) async fn next(&mut self) -> Result<Option<Value>, ModelError> {
        loop {
            while let Some(line) = self.take_line() {
                match self.take_event(&line) {
                    Some(data) if data.trim() == "[DONE]" => {
                        self.is_done = true;
                        return Ok(None);
                    }
                    Some(data) => return parse(&data).map(Some),
                    None => {}
                }
            }
            if self.unread.len() > self.limits.max_line {
                return Err(ModelError::TooLarge);
            }
            let chunk = timeout(self.limits.idle, self.response.chunk())
                .await
                .map_err(|_| ModelError::TimedOut)?
                .map_err(|_| ModelError::Truncated)?;
            let Some(chunk) = chunk else {
                return Ok(self.take_rest());
            };
            let bom: &[u8] = if self.read == 0 { b"\xef\xbb\xbf" } else { b"" };
            self.read += chunk.len();
            self.unread
                .extend_from_slice(chunk.strip_prefix(bom).unwrap_or(&chunk));
            if self.read > self.limits.max_body {
                return Err(ModelError::TooLarge);
            }
        }
    }

    /// The next whole line, without its line end.
    fn take_line(&mut self) -> Option<String> {
        if self.after_cr && self.unread.first() == Some(&b'\n') {
            self.unread.advance(1);
            self.searched = self.searched.saturating_sub(1);
        }
        self.after_cr &= self.unread.is_empty();
        // In server-sent events, a carriage return alone ends a line too (HTML standard, section 9.2.5).
        let ends = |byte: &u8| *byte == b'\n' || (self.is_sse && *byte == b'\r');
        let Some(at) = self.unread[self.searched..].iter().position(ends) else {
            self.searched = self.unread.len();
            return None;
        };
        let line = self.unread.split_to(self.searched + at);
        self.after_cr = self.unread[0] == b'\r';
        self.unread.advance(1);
        self.searched = 0;
        Some(decode_line(&line))
    }

    /// Adds a line to the current event; the data of the event that it ends, if it ends one.
    fn take_event(&mut self, line: &str) -> Option<String> {
        if !self.is_sse {
            return Some(line.to_owned()).filter(|line| !line.trim().is_empty());
        }
        if line.is_empty() {
            return Some(std::mem::take(&mut self.data)).filter(|data| !data.is_empty());
        }
        // Comments and fields other than `data` are ignored.
        if let Some(data) = line.strip_prefix("data:") {
            if !self.data.is_empty() {
                self.data.push('\n');
            }
            self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
        }
        None
    }

    /// The last event of a stream that ends without a line end, if the event is complete.
    fn take_rest(&mut self) -> Option<Value> {
        let line = decode_line(&std::mem::take(&mut self.unread));
        let data = self.take_event(&line).or_else(|| self.take_event(""))?;
        self.is_done |= data.trim() == "[DONE]";
        parse(&data).ok()
    }
}

fn decode_line(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    String::from_utf8_lossy(line).into_owned()
}

/// Parses the data of an event. A lone surrogate, which endpoints send when they cut a text within an emoji, becomes U+FFFD.
fn parse(data: &str) -> Result<Value, ModelError> {
    json::read_value(&replace_lone_surrogates(data))
        .map_err(|_| ModelError::Protocol(String::new()))
}
