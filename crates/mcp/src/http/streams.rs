//! The streams of events of streamable HTTP: those that answer a request, which are resumed when they end too early, and
//! the stream of notifications of a session.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use http::{HeaderValue, header};
use sse_stream::Sse;
use tokio::time::{sleep, timeout};

use super::{Http, LAST_EVENT_ID, response::media_type};
use crate::{
    answer::Answer,
    error::Failure,
    lock,
    peer::{Asked, Peer},
    sse::{Events, StreamError},
};
use domain::{backoff, clock};

/// The pause before a stream that ended is resumed, and the longest one after failures.
const RESUME: Duration = Duration::from_secs(2);
const RESUME_LONGEST: Duration = Duration::from_secs(60);
/// The first and the longest pause before a notification stream is opened again, after it ended early twice in a row.
const NOTIFICATION_PAUSES: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(60)];
/// The same pauses for a stream that resumes the answer to a request, which is awaited.
const ANSWER_PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(2)];
/// A stream that lasted this long did not end early.
const GOOD_STREAM: Duration = Duration::from_secs(60);
/// How long the end of a stream is waited for after its answer. A response that was read to its end leaves a connection
/// for the next request.
const DRAIN: Duration = Duration::from_millis(50);

/// The place in a stream from which it can be resumed.
#[derive(Default)]
struct Place {
    /// The id of the last event that had one.
    last_event: Option<String>,
    /// The pause that the server asks for.
    retry: Option<Duration>,
}

impl Place {
    fn note(&mut self, event: &Sse) {
        if let Some(retry) = event.retry {
            self.retry = Some(Duration::from_millis(retry));
        }
        if let Some(id) = &event.id {
            self.last_event = Some(id.clone());
        }
    }

    /// Waits before the stream is resumed for the first time.
    async fn pause(&mut self) {
        sleep(self.retry.take().unwrap_or(RESUME)).await;
    }

    /// Waits after the stream could not be resumed.
    async fn pause_after_failure(&self, failures: u32) {
        let pause = RESUME.saturating_mul(2_u32.saturating_pow(failures));
        sleep(
            pause
                .min(RESUME_LONGEST)
                .max(self.retry.unwrap_or_default()),
        )
        .await;
    }
}

impl Http {
    /// Reads the stream that answers a request until the answer has come. A stream that ends before is resumed, if the
    /// server has given its events ids.
    pub(super) async fn read_answer(
        &self,
        peer: &Arc<Peer>,
        asked: Asked<'_>,
        mut events: Events,
    ) -> Answer {
        let (mut place, mut is_resumed) = (Place::default(), false);
        loop {
            let opened = clock::instant();
            let broken = loop {
                let event = match events.next().await {
                    Some(Ok(event)) => event,
                    Some(Err(error)) => break Some(error),
                    None => break None,
                };
                place.note(&event);
                if let Some(data) = &event.data {
                    peer.take_message(data, Some(asked));
                }
                if let Some(answer) = asked.open.take_answer() {
                    drain(events);
                    return answer;
                }
                if peer.has_ended() {
                    // The one who sent the request knows what that means.
                    return std::future::pending().await;
                }
            };
            if is_resumed {
                self.answer_pace.note_end(opened);
            }
            if let Some(error) = &broken
                && error.is_final()
                && (!is_resumed || matches!(error, StreamError::TooLarge))
            {
                return Err(Failure::Lost(format!(
                    "the answer of the server cannot be read: {error}"
                )));
            }
            if place.last_event.is_none() {
                return Err(Failure::Lost(match broken {
                    Some(error) => format!("the stream broke before the answer came: {error}"),
                    None => "the stream ended before the answer came".to_owned(),
                }));
            }
            if broken.is_none() || is_resumed {
                place.pause().await;
            }
            let Some(next) = self.reopen(&place, &self.answer_pace).await else {
                return Err(Failure::Lost(
                    "the stream ended before the answer came, and cannot be resumed".to_owned(),
                ));
            };
            (events, is_resumed) = (next, true);
        }
    }

    /// Reads what the server sends in its session without being asked, until it offers that no more.
    pub(crate) async fn follow_notifications(&self, peer: &Arc<Peer>) {
        let (pace, mut place) = (&self.notification_pace, Place::default());
        let Ok(mut stream) = self.open_stream(None, pace).await else {
            return;
        };
        while let Some(mut events) = stream {
            let opened = clock::instant();
            while let Some(event) = events.next().await {
                let event = match event {
                    Ok(event) => event,
                    Err(error) => {
                        let server = &self.client.server;
                        tracing::debug!(%server, %error, "a stream of events broke");
                        break;
                    }
                };
                place.note(&event);
                if let Some(data) = &event.data {
                    peer.take_message(data, None);
                }
                if peer.has_ended() {
                    return;
                }
            }
            pace.note_end(opened);
            place.pause().await;
            stream = self.reopen(&place, pace).await;
        }
    }

    /// Opens a stream again, as often as it takes; `None` when the server offers none.
    async fn reopen(&self, place: &Place, pace: &ReconnectPace) -> Option<Events> {
        let mut failures = 0;
        loop {
            if let Ok(stream) = self.open_stream(place.last_event.as_deref(), pace).await {
                return stream;
            }
            failures += 1;
            place.pause_after_failure(failures).await;
        }
    }

    /// Opens a stream of events: for notifications, or to resume one after `last_event`. `None`: the server offers none.
    async fn open_stream(
        &self,
        last_event: Option<&str>,
        pace: &ReconnectPace,
    ) -> Result<Option<Events>, Failure> {
        sleep(pace.pause()).await;
        let session = self.session.load_full();
        let mut headers = session.headers.clone();
        headers.remove(header::CONTENT_TYPE);
        let last_event = last_event.filter(|id| !id.is_empty());
        if let Some(id) = last_event.and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.insert(LAST_EVENT_ID, id);
        }
        let response = self.client.get_events(session.url.clone(), headers).await?;
        let is_stream = media_type(&response.headers).as_deref() == Some("text/event-stream");
        match response.status {
            status if status.is_success() && is_stream => Ok(Some(Events::new(response.body))),
            status if status.is_server_error() => Err(Failure::Lost(format!(
                "the server answered with HTTP {status}"
            ))),
            _ => Ok(None),
        }
    }
}

/// Reads a stream to its end after its answer has come, if that is soon.
fn drain(mut events: Events) {
    if !matches!(events.next().now_or_never(), Some(None | Some(Err(_)))) {
        tokio::spawn(timeout(DRAIN, async move {
            while let Some(Ok(_)) = events.next().await {}
        }));
    }
}

/// The pauses before streams of one kind are opened again. A stream that ends early is opened again more and more slowly,
/// whatever pause its server asks for.
pub(super) struct ReconnectPace {
    /// The first pause and the longest one.
    pauses: [Duration; 2],
    /// How many streams in a row ended early.
    early_ends: Mutex<u32>,
}

impl ReconnectPace {
    fn new(pauses: [Duration; 2]) -> Self {
        Self {
            pauses,
            early_ends: Mutex::default(),
        }
    }

    pub(super) fn for_notifications() -> Self {
        Self::new(NOTIFICATION_PAUSES)
    }

    pub(super) fn for_answers() -> Self {
        Self::new(ANSWER_PAUSES)
    }

    /// How long to wait before the next stream is opened.
    fn pause(&self) -> Duration {
        let [first, longest] = self.pauses;
        match *lock(&self.early_ends) {
            0 | 1 => Duration::ZERO,
            ends => backoff::delay(first, longest, ends - 1, rand::random()),
        }
    }

    /// Forgets earlier streams, so that a new request does not wait because of them.
    pub(super) fn restart(&self) {
        *lock(&self.early_ends) = 0;
    }

    /// Counts a stream that has ended.
    fn note_end(&self, opened: Instant) {
        let mut ends = lock(&self.early_ends);
        *ends = if opened.elapsed() >= GOOD_STREAM {
            0
        } else {
            ends.saturating_add(1)
        };
    }
}
