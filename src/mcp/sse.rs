//! Server-sent events from a body: an event has a largest size, and what is ours is taken out on the way.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use encoding_rs::{Decoder, UTF_8};
use futures_util::{
    Stream, StreamExt,
    stream::{BoxStream, unfold},
};
use rmcp::model::RequestId;
use sse_stream::{Error as SseError, Sse, SseStream};

use super::{
    error::Failure,
    interceptor::{Exchange, Incoming, Interceptor},
};
use crate::egress::EgressError;

/// One event; a result travels in one.
pub(super) const MAX_EVENT: usize = 8 * 1024 * 1024;

/// The events of a body. When it breaks while `asked` waits and nothing can resume it, the break is
/// written into the pending request and rmcp is told that the request is answered.
pub(super) fn events(
    body: impl Stream<Item = Result<Bytes, EgressError>> + Unpin + Send + 'static,
    interceptor: Arc<Interceptor>,
    asked: Option<Exchange>,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let events = SseStream::from_bytes_stream(CappedStream {
        body,
        decoder: UTF_8.new_decoder_without_bom_handling(),
        rest: Bytes::new(),
        size: 0,
        line: 0,
        after_cr: false,
    });
    unfold(
        Some((events.boxed(), interceptor, asked)),
        |state| async move {
            let (mut events, interceptor, asked) = state?;
            if let Some(reason) = interceptor.overrun_reason() {
                if let Some((_, pending)) = asked {
                    pending.settle(Err(Failure::Lost(reason.to_owned())));
                }
                return None;
            }
            match events.next().await? {
                Ok(event) => {
                    let event = rewrite(event, &interceptor, asked.as_ref());
                    Some((Ok(event), Some((events, interceptor, asked))))
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

/// A break that asking again would only repeat: what came is too large or is not an event stream.
fn is_final(error: &SseError) -> bool {
    let SseError::Body(cause) = error else {
        return true;
    };
    cause
        .downcast_ref::<StreamError>()
        .is_some_and(|broken| match broken {
            StreamError::TooLarge => true,
            StreamError::Egress(error) => {
                matches!(error.kind, crate::egress::ErrorKind::TooLarge(_))
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

/// Counts the bytes since the last blank line, and hands them on event by event: a line that is none costs no event
/// that came before it.
struct CappedStream<S> {
    body: S,
    /// Bytes that are no UTF-8 become U+FFFD, also where chunks cut a character.
    decoder: Decoder,
    rest: Bytes,
    size: usize,
    line: usize,
    after_cr: bool,
}

impl<S> CappedStream<S> {
    fn decode(&mut self, chunk: &[u8]) -> Bytes {
        let room = self.decoder.max_utf8_buffer_length(chunk.len());
        let mut text = String::with_capacity(room.expect("a chunk is small"));
        let _ = self.decoder.decode_to_string(chunk, &mut text, false);
        text.into()
    }

    /// Where in what is left an event ends, or all of it.
    fn admit(&mut self) -> Result<usize, StreamError> {
        for (at, &byte) in self.rest.iter().enumerate() {
            let ends_line = byte == b'\r' || (byte == b'\n' && !self.after_cr);
            let ends_event = ends_line && self.line == 0;
            if ends_line {
                self.size = if ends_event { 0 } else { self.size + 1 };
                self.line = 0;
            } else if byte != b'\n' {
                self.size += 1;
                self.line += 1;
            }
            self.after_cr = byte == b'\r';
            if self.size > MAX_EVENT {
                return Err(StreamError::TooLarge);
            }
            if ends_event {
                return Ok(at + 1);
            }
        }
        Ok(self.rest.len())
    }
}

impl<S: Stream<Item = Result<Bytes, EgressError>> + Unpin> Stream for CappedStream<S> {
    type Item = Result<Bytes, StreamError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while self.rest.is_empty() {
            match ready!(self.body.poll_next_unpin(cx)) {
                Some(Ok(chunk)) => self.rest = self.decode(&chunk),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
        Poll::Ready(Some(self.admit().map(|end| self.rest.split_to(end))))
    }
}
