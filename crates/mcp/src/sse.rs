//! Server-sent events from a body: an event has a largest size, and what is ours is taken out on the way.
//!
//! Lines are read as the HTML standard says (9.2.6): a field that is not known, a `retry` that is no number and a line
//! without a colon are ignored, and never cost the answer that stands beside them.

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
    interceptor::{Exchange, Incoming, Interceptor, PendingRequest},
    read_pace::{MESSAGE, ReadPace},
};
use egress::{EgressError, ErrorKind};

/// One event; a result travels in one.
pub(super) const MAX_EVENT: usize = 8 * 1024 * 1024;
/// The room for a line that an open stream keeps.
const KEPT_LINE: usize = 64 * 1024;
/// The shortest pause that a server may ask for before a stream is asked for again: less would be a storm.
const SHORTEST_RETRY: Duration = Duration::from_millis(250);
/// A longer pause is nonsense, and is ignored.
const LONGEST_RETRY: Duration = Duration::from_secs(3600);

/// The events of a body. When it breaks while `asked` waits and nothing can resume it, the break is
/// written into the pending request and rmcp is told that the request is answered. `silence` bounds the time
/// without a byte in which the request waits for its server; the time of a question to the user does not count.
pub(super) fn events(
    body: impl Stream<Item = Result<Bytes, EgressError>> + Unpin + Send + 'static,
    interceptor: Arc<Interceptor>,
    asked: Option<Exchange>,
    silence: Option<Duration>,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let body = match (&asked, silence) {
        (Some((_, pending)), Some(limit)) => without_silence(body, pending.clone(), limit),
        _ => body.boxed(),
    };
    let events = EventStream {
        body: at_a_pace(body),
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
                if let Some((_, pending)) = asked {
                    pending.settle(Err(Failure::Lost(reason.to_owned())));
                }
                return None;
            }
            match events.next().await? {
                Ok(event) => {
                    let event = rewrite(event, &interceptor, asked.as_ref());
                    pace.count(MESSAGE).await;
                    Some((Ok(event), Some((events, interceptor, asked, pace))))
                }
                Err(error) => {
                    let item = match asked {
                        Some((id, pending)) if is_final(&error) => {
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

/// A body that is read no faster than a connection may be.
fn at_a_pace(
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

/// A body that ends with an error after this much silence.
fn without_silence(
    body: impl Stream<Item = Result<Bytes, EgressError>> + Unpin + Send + 'static,
    pending: Arc<PendingRequest>,
    limit: Duration,
) -> BoxStream<'static, Result<Bytes, EgressError>> {
    unfold(Some((body, pending)), move |state| async move {
        let (mut body, pending) = state?;
        let expired = async {
            match &pending.asking {
                Some(asking) => asking.elapse(limit).await,
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

fn rewrite(mut event: Sse, interceptor: &Interceptor, of: Option<&Exchange>) -> Sse {
    let taken = match event
        .data
        .as_deref()
        .map(|data| interceptor.incoming(data, of))
    {
        None | Some(Incoming::Pass) => return event,
        Some(Incoming::Taken) => None,
        Some(Incoming::Answered(id)) => Some(empty_response_text(&id)),
    };
    event.data = taken;
    event
}

/// A break that asking again would only repeat: what came is too large, too slow or is not an event stream.
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

/// What the guarded client said of a stream that broke.
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

/// The events of a body. An event that is over has no line of the next one in it, however the bytes are cut.
struct EventStream<S> {
    body: S,
    /// Bytes that are no UTF-8 become U+FFFD, also where chunks cut a character.
    decoder: Decoder,
    /// What came and is read up to `at`.
    rest: String,
    at: usize,
    /// The line that is not over yet.
    line: String,
    event: Option<Sse>,
    /// Bytes of whole lines since the last blank one.
    size: usize,
    after_cr: bool,
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

    /// The next event that is over in what came.
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

    /// Reads the line that is over; the event that a blank one ends.
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
        // A stream that once had a large event may stay open for days.
        self.line.shrink_to(KEPT_LINE);
        event
    }
}

/// Writes the field of a line into the event that it belongs to.
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
            if let Some(pause) = retry(value) {
                event.get_or_insert_default().retry = Some(pause);
            }
        }
        _ => {}
    }
}

/// Milliseconds of a `retry` that can be kept.
fn retry(value: &str) -> Option<u64> {
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
                    // A server that ends its stream with the answer and no blank line has answered all the same.
                    let last = self.end_line();
                    return Poll::Ready(last.or_else(|| self.event.take()).map(Ok));
                }
            }
        }
    }
}
