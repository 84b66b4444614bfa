//! The pace at which streams are asked for again: one that ends soon is asked for ever more slowly, whatever its server
//! says.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream, stream::BoxStream};
use sse_stream::{Error as SseError, Sse};

use crate::interceptor::locked;
use domain::{backoff, ids::ServerId};

/// The pause before a stream of a server's news is asked for again that ended soon twice in a row, and the longest one.
const NEWS: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(60)];
/// The same for a stream that may bring the answer to a request: somebody waits for it.
const ANSWERS: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(2)];
/// A stream that lasted this long was a good one.
const GOOD: Duration = Duration::from_secs(60);

/// The pace of one kind of stream.
pub(super) struct Pace {
    pauses: [Duration; 2],
    /// How often in a row a stream ended soon.
    short: Mutex<u32>,
}

impl Pace {
    pub(super) fn of_news() -> Self {
        Self {
            pauses: NEWS,
            short: Mutex::default(),
        }
    }

    pub(super) fn of_answers() -> Self {
        Self {
            pauses: ANSWERS,
            short: Mutex::default(),
        }
    }

    /// How long to wait before the next stream is asked for.
    pub(super) fn pause(&self) -> Duration {
        let [first, longest] = self.pauses;
        match *locked(&self.short) {
            0 | 1 => Duration::ZERO,
            short => backoff::delay(first, longest, short - 1, rand::random()),
        }
    }

    /// A new request does not wait for what the streams of others did.
    pub(super) fn restart(&self) {
        *locked(&self.short) = 0;
    }

    pub(super) fn ended(&self, opened: Instant) {
        let mut short = locked(&self.short);
        *short = if opened.elapsed() >= GOOD {
            0
        } else {
            short.saturating_add(1)
        };
    }
}

/// The same events. A stream that breaks ends: rmcp asks for a broken one again at once, and for an ended one after a
/// pause.
pub(super) fn end_quietly(
    events: BoxStream<'static, Result<Sse, SseError>>,
    server: ServerId,
    ended: impl FnOnce() + Send + 'static,
) -> BoxStream<'static, Result<Sse, SseError>> {
    stream::unfold(Some((events, server, ended)), |state| async move {
        let (mut events, server, ended) = state?;
        match events.next().await {
            Some(Ok(event)) => Some((Ok(event), Some((events, server, ended)))),
            Some(Err(error)) => {
                tracing::debug!(%server, %error, "a stream of events broke");
                ended();
                None
            }
            None => {
                ended();
                None
            }
        }
    })
    .boxed()
}
