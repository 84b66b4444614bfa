//! The pace at which a stream of a server's news is asked for again: a stream that ends soon is asked for ever more
//! slowly, whatever its server says.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream, stream::BoxStream};
use sse_stream::{Error as SseError, Sse};

use crate::{
    domain::{backoff, ids::ServerId},
    mcp::interceptor::locked,
};

/// The pause before a stream is asked for again that ended soon twice in a row, and the longest one.
const FIRST: Duration = Duration::from_secs(4);
const LONGEST: Duration = Duration::from_secs(60);
/// A stream that lasted this long was a good one.
const GOOD: Duration = Duration::from_secs(60);

/// How often in a row a stream ended soon.
#[derive(Default)]
pub(super) struct Pace(Mutex<u32>);

impl Pace {
    /// How long to wait before the next stream is asked for.
    pub(super) fn pause(&self) -> Duration {
        match *locked(&self.0) {
            0 | 1 => Duration::ZERO,
            short => backoff::delay(FIRST, LONGEST, short - 1, rand::random()),
        }
    }

    pub(super) fn ended(&self, opened: Instant) {
        let mut short = locked(&self.0);
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
