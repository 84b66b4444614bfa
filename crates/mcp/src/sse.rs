//! Reads server-sent events from a response body.
//!
//! Lines are read as the HTML standard says (section 9.2.6): unknown fields and a `retry` that is not a number are ignored
//! and never affect the data beside them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use encoding_rs::{Decoder, UTF_8};
use futures_util::{Stream, StreamExt};
use memchr::memchr2;
use sse_stream::Sse;
use tokio::time::sleep;

use super::{
    read_pace::{MIN_MESSAGE, ReadPace},
    request::OpenRequest,
};
use egress::{Body, EgressError, ErrorKind};

/// The most bytes of an event, and so of a result.
const MAX_EVENT: usize = 8 * 1024 * 1024;
/// The buffer for lines that a stream keeps between events, in bytes.
const KEPT_LINE: usize = 64 * 1024;
/// A server that asks for a shorter pause before a reconnect gets this pause.
const SHORTEST_RETRY: Duration = Duration::from_millis(250);
/// A longer `retry` is ignored.
const LONGEST_RETRY: Duration = Duration::from_secs(3600);

/// Why a stream of events broke.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("an event exceeds {MAX_EVENT} bytes")]
    TooLarge,
    #[error(transparent)]
    Egress(#[from] EgressError),
}

impl StreamError {
    /// Whether resuming the stream would only fail again: it is too large or too slow.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::TooLarge => true,
            Self::Egress(error) => {
                matches!(error.kind, ErrorKind::TooLarge(_) | ErrorKind::Idle(_))
            }
        }
    }
}

/// The events of a body, at whatever points its chunks are cut. Reading is no faster than [`ReadPace`] allows.
pub(super) struct Events<S = Body> {
    body: S,
    /// The longest time without a byte while a request waits, not counting the time in which its user answers questions.
    silence: Option<(Duration, Arc<OpenRequest>)>,
    byte_pace: ReadPace,
    event_pace: ReadPace,
    /// Keeps the state of characters that chunks cut. Invalid bytes become U+FFFD.
    decoder: Decoder,
    /// The newest chunk, which is parsed up to `at`.
    rest: String,
    at: usize,
    /// The line that has not ended yet.
    line: String,
    /// The event that has not ended yet.
    event: Option<Sse>,
    /// Bytes of the lines of that event.
    size: usize,
    /// The last line ended with a carriage return; a line feed that follows belongs to the same line end.
    after_cr: bool,
    /// The first line was read, which may begin with a byte order mark.
    has_begun: bool,
    has_ended: bool,
}

impl<S: Stream<Item = Result<Bytes, EgressError>> + Unpin> Events<S> {
    pub(super) fn new(body: S) -> Self {
        Self {
            body,
            silence: None,
            byte_pace: ReadPace::new(),
            event_pace: ReadPace::new(),
            decoder: UTF_8.new_decoder_without_bom_handling(),
            rest: String::new(),
            at: 0,
            line: String::new(),
            event: None,
            size: 0,
            after_cr: false,
            has_begun: false,
            has_ended: false,
        }
    }

    /// The same, but the stream breaks after this long without a byte while the request waits.
    pub(super) fn with_silence(self, limit: Option<Duration>, open: &Arc<OpenRequest>) -> Self {
        Self {
            silence: limit.map(|limit| (limit, open.clone())),
            ..self
        }
    }

    /// The next event; `None` at the end, and after an error.
    pub(super) async fn next(&mut self) -> Option<Result<Sse, StreamError>> {
        loop {
            match self.next_event() {
                Ok(Some(event)) => {
                    self.event_pace.count(MIN_MESSAGE).await;
                    return Some(Ok(event));
                }
                Ok(None) if self.has_ended => return None,
                Ok(None) => {}
                Err(error) => return Some(Err(self.end_with(error))),
            }
            match self.next_chunk().await {
                Some(Ok(chunk)) => {
                    self.decode(&chunk);
                    self.byte_pace.count(chunk.len()).await;
                }
                Some(Err(error)) => return Some(Err(self.end_with(error.into()))),
                None => {
                    self.has_ended = true;
                    // The last event counts even without the blank line that should end it.
                    let last = self.end_line();
                    return last.or_else(|| self.event.take()).map(Ok);
                }
            }
        }
    }

    async fn next_chunk(&mut self) -> Option<Result<Bytes, EgressError>> {
        let Some((limit, open)) = &self.silence else {
            return self.body.next().await;
        };
        let expired = async {
            match &open.live_questions {
                Some(questions) => questions.elapse(*limit).await,
                None => sleep(*limit).await,
            }
        };
        tokio::select! {
            biased;
            chunk = self.body.next() => chunk,
            () = expired => Some(Err(EgressError { kind: ErrorKind::Idle(*limit), sent: true })),
        }
    }

    /// Ends the stream because it broke.
    fn end_with(&mut self, error: StreamError) -> StreamError {
        self.rest.clear();
        self.at = 0;
        self.has_ended = true;
        error
    }

    fn decode(&mut self, chunk: &[u8]) {
        let room = self.decoder.max_utf8_buffer_length(chunk.len());
        self.rest.clear();
        self.rest.reserve(room.expect("a chunk is small"));
        self.at = 0;
        let _ = self.decoder.decode_to_string(chunk, &mut self.rest, false);
    }

    /// The next event that ends within the newest chunk.
    fn next_event(&mut self) -> Result<Option<Sse>, StreamError> {
        while self.at < self.rest.len() {
            let rest = &self.rest[self.at..];
            if std::mem::take(&mut self.after_cr) && rest.starts_with('\n') {
                self.at += 1;
                continue;
            }
            let end = memchr2(b'\n', b'\r', rest.as_bytes());
            let line = &rest[..end.unwrap_or(rest.len())];
            if self.size + self.line.len() + line.len() > MAX_EVENT {
                return Err(StreamError::TooLarge);
            }
            self.line.push_str(line);
            let Some(end) = end else {
                self.at = self.rest.len();
                break;
            };
            self.after_cr = rest[end..].starts_with('\r');
            self.at += end + 1;
            if let Some(event) = self.end_line() {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Reads a line that has ended; the event that it ends, if it is blank.
    fn end_line(&mut self) -> Option<Sse> {
        let mut line = self.line.as_str();
        if !std::mem::replace(&mut self.has_begun, true) {
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
        }
        let event = if line.is_empty() {
            self.size = 0;
            self.event.take()
        } else {
            self.size += line.len() + 1;
            read_field(line, &mut self.event);
            None
        };
        self.line.clear();
        // Frees the memory of a large event, since the stream may stay open for days.
        self.line.shrink_to(KEPT_LINE);
        event
    }
}

/// Adds the field in a line to the event.
fn read_field(line: &str, event: &mut Option<Sse>) {
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    let value = value.strip_prefix(' ').unwrap_or(value);
    match name {
        "data" => match &mut event.get_or_insert_default().data {
            Some(data) => {
                data.push('\n');
                data.push_str(value);
            }
            data @ None => *data = Some(value.to_owned()),
        },
        "event" => event.get_or_insert_default().event = Some(value.to_owned()),
        "id" if !value.contains('\0') => {
            event.get_or_insert_default().id = Some(value.to_owned());
        }
        "retry" => {
            if let Some(pause) = read_retry(value) {
                event.get_or_insert_default().retry = Some(pause);
            }
        }
        _ => {}
    }
}

/// The pause of a `retry` field in milliseconds, raised to [`SHORTEST_RETRY`]; `None` if it is invalid.
fn read_retry(value: &str) -> Option<u64> {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let pause = Duration::from_millis(value.parse().ok().filter(|_| is_number)?);
    let pause = (pause <= LONGEST_RETRY).then(|| pause.max(SHORTEST_RETRY))?;
    u64::try_from(pause.as_millis()).ok()
}
