//! A stream of server-sent events that is kept open: when it breaks, it is opened again after the last event that
//! arrived.
//!
//! The future of [`Stream::next`] may be dropped at any time. No event is lost.

use std::{io, pin::Pin, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::BoxStream};
use reqwest::{RequestBuilder, StatusCode};
use serde_json::Value;
use sse_stream::{Sse, SseStream};
use tokio::time::Sleep;

use super::client::{RequestRefused, request_refused};
use domain::json;

/// The server sends a keep-alive every 15 seconds. After a silence of this length the stream counts as broken.
const MAX_SILENCE: Duration = Duration::from_secs(50);
/// The pause before a stream that ended is opened again.
const RETRY_DELAY: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// The user is told after this number of failures in a row, which is about a minute.
const MAX_FAILURES: u32 = 7;

pub enum StreamItem {
    Event {
        name: String,
        data: Value,
    },
    /// The stream was broken for a while. Durable events are sent again; deltas are lost.
    Gap,
    /// The stream has been broken for long; the client still tries to reconnect.
    Lost(anyhow::Error),
}

/// Makes the request of a stream. It is called for each attempt, because the token may have been replaced.
pub type MakeRequest = Box<dyn Fn() -> anyhow::Result<RequestBuilder> + Send + Sync>;

pub struct Stream {
    request: MakeRequest,
    last: Option<String>,
    state: State,
    failures: u32,
}

enum State {
    Open(Events),
    Pausing(Pin<Box<Sleep>>),
    Opening(BoxFuture<'static, anyhow::Result<Events>>),
}

type Events = BoxStream<'static, Result<Sse, sse_stream::Error>>;

impl Stream {
    /// Opens a stream after the event `last`; without it, where the server begins.
    pub async fn open(request: MakeRequest, last: Option<String>) -> anyhow::Result<Self> {
        let events = open(request(), last.as_deref()).await?;
        Ok(Self {
            request,
            last,
            state: State::Open(events),
            failures: 0,
        })
    }

    /// Waits for the next item. An error is a final refusal of the server.
    pub async fn next(&mut self) -> anyhow::Result<StreamItem> {
        loop {
            match &mut self.state {
                State::Open(events) => match events.next().await {
                    Some(Ok(event)) => {
                        if let Some(id) = event.id.filter(|id| !id.is_empty()) {
                            self.last = Some(id);
                        }
                        if let Some(data) = event.data {
                            let data = json::read_value(&data).unwrap_or_default();
                            return Ok(StreamItem::Event {
                                name: event.event.unwrap_or_default(),
                                data,
                            });
                        }
                    }
                    Some(Err(_)) | None => self.pause(RETRY_DELAY),
                },
                State::Pausing(pause) => {
                    pause.await;
                    self.state = State::Opening(open((self.request)(), self.last.as_deref()));
                }
                State::Opening(opening) => match opening.await {
                    Ok(events) => {
                        self.state = State::Open(events);
                        self.failures = 0;
                        return Ok(StreamItem::Gap);
                    }
                    Err(error) => {
                        self.failures += 1;
                        self.pause(
                            LONGEST_PAUSE.min(Duration::from_secs(1 << self.failures.min(6)) / 2),
                        );
                        if error.downcast_ref().is_some_and(RequestRefused::is_final) {
                            return Err(error);
                        }
                        if self.failures.is_multiple_of(MAX_FAILURES) {
                            return Ok(StreamItem::Lost(error));
                        }
                    }
                },
            }
        }
    }

    fn pause(&mut self, time: Duration) {
        self.state = State::Pausing(Box::pin(tokio::time::sleep(time)));
    }
}

fn open(
    request: anyhow::Result<RequestBuilder>,
    last: Option<&str>,
) -> BoxFuture<'static, anyhow::Result<Events>> {
    let request = request.map(|request| match last {
        Some(last) => request.header("last-event-id", last),
        None => request,
    });
    async move {
        let answer = request?.send().await?;
        if answer.status() != StatusCode::OK {
            return Err(request_refused(answer.status(), &answer.bytes().await?).into());
        }
        let bytes = tokio_stream::StreamExt::timeout(answer.bytes_stream(), MAX_SILENCE);
        let bytes = bytes.map(|piece| piece.map_err(io::Error::other)?.map_err(io::Error::other));
        Ok(SseStream::from_bytes_stream(bytes).boxed())
    }
    .boxed()
}
