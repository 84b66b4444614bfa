//! Reads server-sent events from a response body, and passes their messages through the interceptor.
//!
//! Lines are read as the HTML standard says (section 9.2.6): unknown fields and a `retry` that is not a number are ignored
//! and never affect the data beside them.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use encoding_rs::{Decoder, UTF_8};
use futures_util::{
    Stream, StreamExt,
    stream::{BoxStream, unfold},
};
use memchr::memchr2;
use rmcp::model::RequestId;
use sse_stream::{Error as SseError, Sse};
use tokio::time::sleep;

use super::{
    error::Failure,
    interceptor::{AskedRequest, Incoming, Interceptor, PendingRequest},
    read_pace::{MIN_MESSAGE, ReadPace},
};
use egress::{EgressError, ErrorKind};

/// The most bytes of an event, and so of a result.
pub(super) const MAX_EVENT: usize = 8 * 1024 * 1024;
/// The buffer for lines that a stream keeps between events, in bytes.
const KEPT_LINE: usize = 64 * 1024;
/// A server that asks for a shorter pause before a reconnect gets this pause.
const SHORTEST_RETRY: Duration = Duration::from_millis(250);
/// A longer `retry` is ignored.
const LONGEST_RETRY: Duration = Duration::from_secs(3600);

/// The events of a body. `asked` is the request that the stream answers, if it answers one. When the stream breaks and
/// resuming it is of no use, the failure becomes the answer of that request, and rmcp gets an empty response. `silence` is
/// the longest time without a byte while the request waits, not counting the time in which its user answers questions.
pub(super) fn events(
    body: impl Stream<Item = Result<Bytes, EgressError>> + Unpin + Send + 'static,
    interceptor: Arc<Interceptor>,
    asked: Option<AskedRequest>,
    silence: Option<Duration>,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let body = match (&asked, silence) {
        (Some(asked), Some(limit)) => limit_silence(body, asked.pending.clone(), limit),
        _ => body.boxed(),
    };
    let events = EventStream {
        body: limit_pace(body),
        decoder: UTF_8.new_decoder_without_bom_handling(),
        rest: String::new(),
        at: 0,
        line: String::new(),
        event: None,
        size: 0,
        after_cr: false,
        has_begun: false,
        has_ended: false,
    };
    unfold(
        Some((events.boxed(), interceptor, asked, ReadPace::new())),
        |state| async move {
            let (mut events, interceptor, asked, mut pace) = state?;
            if let Some(reason) = interceptor.overrun_reason() {
                if let Some(asked) = asked {
                    asked.pending.settle(Err(Failure::Lost(reason.to_owned())));
                }
                return None;
            }
            match events.next().await? {
                Ok(event) => {
                    let event = rewrite(event, &interceptor, asked.as_ref());
                    pace.count(MIN_MESSAGE).await;
                    Some((Ok(event), Some((events, interceptor, asked, pace))))
                }
                Err(error) => {
                    let item = match asked {
                        Some(AskedRequest { id, pending }) if is_final(&error) => {
                            pending.settle(Err(Failure::Lost(format!(
                                "the answer of the server cannot be read: {error}"
                            ))));
                            Ok(Sse::default().data(empty_response_text(&id)))
                        }
                        _ => Err(error),
                    };
                    Some((item, None))
                }
            }
        },
    )
    .boxed()
}

/// Reads a body no faster than [`ReadPace`] allows.
fn limit_pace(
    body: BoxStream<'static, Result<Bytes, EgressError>>,
) -> BoxStream<'static, Result<Bytes, EgressError>> {
    unfold((body, ReadPace::new()), |(mut body, mut pace)| async move {
        let chunk = body.next().await?;
        if let Ok(chunk) = &chunk {
            pace.count(chunk.len()).await;
        }
        Some((chunk, (body, pace)))
    })
    .boxed()
}

/// Ends a body with an error after this long without a byte. The time in which the user of the request answers questions
/// does not count.
fn limit_silence(
    body: impl Stream<Item = Result<Bytes, EgressError>> + Unpin + Send + 'static,
    pending: Arc<PendingRequest>,
    limit: Duration,
) -> BoxStream<'static, Result<Bytes, EgressError>> {
    unfold(Some((body, pending)), move |state| async move {
        let (mut body, pending) = state?;
        let expired = async {
            match &pending.live_questions {
                Some(questions) => questions.elapse(limit).await,
                None => sleep(limit).await,
            }
        };
        let chunk = tokio::select! {
            biased;
            chunk = body.next() => chunk?,
            () = expired => {
                let silent = EgressError { kind: ErrorKind::Idle(limit), sent: true };
                return Some((Err(silent), None));
            }
        };
        Some((chunk, Some((body, pending))))
    })
    .boxed()
}

/// The event for rmcp after the interceptor has read its message.
fn rewrite(mut event: Sse, interceptor: &Interceptor, asked: Option<&AskedRequest>) -> Sse {
    let data = match event
        .data
        .as_deref()
        .map(|data| interceptor.intercept(data, asked))
    {
        None | Some(Incoming::Pass) => return event,
        Some(Incoming::Taken) => None,
        Some(Incoming::Answered(id)) => Some(empty_response_text(&id)),
    };
    event.data = data;
    event
}

/// Whether resuming the stream would only fail again: it is too large, too slow or not a stream of events.
fn is_final(error: &SseError) -> bool {
    let SseError::Body(cause) = error else {
        return true;
    };
    cause
        .downcast_ref::<StreamError>()
        .is_some_and(|broken| match broken {
            StreamError::TooLarge => true,
            StreamError::Egress(error) => {
                matches!(error.kind, ErrorKind::TooLarge(_) | ErrorKind::Idle(_))
            }
        })
}

/// The error of egress because of which a stream broke, if it broke there.
pub(super) fn egress_error(error: &SseError) -> Option<&EgressError> {
    let SseError::Body(cause) = error else {
        return None;
    };
    match cause.downcast_ref::<StreamError>()? {
        StreamError::Egress(error) => Some(error),
        StreamError::TooLarge => None,
    }
}

fn empty_response_text(id: &RequestId) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("an event exceeds {MAX_EVENT} bytes")]
    TooLarge,
    #[error(transparent)]
    Egress(#[from] EgressError),
}

/// Parses the events of a body, at whatever points its chunks are cut.
struct EventStream<S> {
    body: S,
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

impl<S> EventStream<S> {
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

impl<S: Stream<Item = Result<Bytes, EgressError>> + Unpin> Stream for EventStream<S> {
    type Item = Result<Sse, SseError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let broken = |error: StreamError| Poll::Ready(Some(Err(SseError::Body(Box::new(error)))));
        loop {
            match self.next_event() {
                Ok(Some(event)) => return Poll::Ready(Some(Ok(event))),
                Ok(None) if self.has_ended => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => return broken(error),
            }
            match ready!(self.body.poll_next_unpin(cx)) {
                Some(Ok(chunk)) => self.decode(&chunk),
                Some(Err(error)) => return broken(error.into()),
                None => {
                    self.has_ended = true;
                    // The last event counts even without the blank line that should end it.
                    let last = self.end_line();
                    return Poll::Ready(last.or_else(|| self.event.take()).map(Ok));
                }
            }
        }
    }
}
