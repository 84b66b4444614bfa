//! A conversation's events as they happen (SSE).
//!
//! Durable events have their number as `id` and are replayed after `Last-Event-ID`, each exactly once. Deltas and progress
//! reach only those who listen at that moment. So do notices for approvers, which belong to no conversation. `event` names
//! the kind, and `data` is one JSON object. The last event, `end`, says why no more will come.

use std::{convert::Infallible, future::ready, sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::{FromRequestParts, State},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use tokio::time::{Instant, error::Elapsed};

use super::{
    ApiState,
    extract::{Caller, Listener, Path, Query},
    limits::{self, RequestPermit},
    once::make_once,
    problem::Problem,
    request_key::Key,
};
use crate::app::{
    self, App,
    chat::conversations::{ConversationEvent, ConversationStream},
    tools::approvals::{self, notices::NoticeStream},
};
use domain::{
    error::Error,
    event::{EventKind, StreamEnd},
    ids::ConversationId,
};

/// How often a quiet stream sends a comment, so that proxies keep it open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A stream ends after this time, and the client reconnects with its credential. So a revoked key does not listen for ever.
pub(super) const LIFETIME: Duration = Duration::from_secs(30 * 60);
/// How long a client waits before it reconnects.
pub(super) const RETRY: Duration = Duration::from_secs(2);

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct After {
    /// Replay the durable events after this one. `Last-Event-ID` says the same and goes first.
    after: Option<i64>,
    /// Of `POST /v1/events/ticket`, instead of a credential.
    #[expect(dead_code, reason = "read by the extractor `Listener`")]
    ticket: Option<String>,
}

/// Opens one event stream, once.
#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct StreamTicket {
    /// For `?ticket=` of an event stream.
    ticket: String,
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
}

/// The last event of a stream.
#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct EndOfStream {
    reason: StreamEnd,
}

/// Get a ticket for `EventSource`, which cannot send a credential.
///
/// It opens one event stream of the caller, once, within a minute.
#[utoipa::path(post, path = "/v1/events/ticket", operation_id = "createEventTicket", tag = "conversations",
    responses((status = 200, body = StreamTicket), (status = 409, description = "answer_not_kept")))]
pub(super) async fn create_ticket(
    State(app): State<Arc<App>>,
    caller: Caller,
    Key(key): Key,
) -> Result<Response, Problem> {
    let (maker, principal) = (app.clone(), caller.principal().clone());
    let make = async move {
        let made = app::accounts::tickets::create(&maker, &principal).await?;
        // The only response that holds the ticket; it goes to its owner.
        let ticket = made.0.expose().to_owned();
        let expires_at = made.1;
        Ok(axum::Json(StreamTicket { ticket, expires_at }))
    };
    make_once(&app, caller.principal(), key, make).await
}

/// Listen to a conversation.
///
/// Messages and runs have an `id` and come again after `Last-Event-ID`; everything else is lost with the
/// connection. The last event, `end`, says why the stream ends.
#[utoipa::path(get, path = "/v1/conversations/{id}/events", operation_id = "listenToConversation",
    tag = "conversations", params(("id" = ConversationId, Path), ("Last-Event-ID" = Option<i64>, Header), After),
    responses((status = 200, body = EventKind, content_type = "text/event-stream"),
        (status = 429, description = "too_many_streams")))]
pub(super) async fn listen(
    State(state): State<ApiState>,
    Listener { principal, .. }: Listener,
    Path(id): Path<ConversationId>,
    ResumeAfter(after): ResumeAfter,
    Extension(permit): Extension<RequestPermit>,
) -> Result<Response, Problem> {
    let stream = state.limits.open_stream(&principal)?;
    let listening = app::chat::conversations::listen(&state.app, &principal, id, after).await?;
    permit.release();
    let hello = stream::iter([Event::default().retry(RETRY).comment("listening")]);
    let session_end = state.app.accounts.wait_for_session_end(&principal);
    let notices = notices(approvals::notices::listen(&state.app, &principal));
    let both = stream::select(events(listening, stream), notices.map(Ok));
    Ok(answer(hello.chain(until_end(both, session_end))))
}

/// The events until the first reason to end, which is the last event.
pub(super) fn until_end(
    events: impl Stream<Item = Result<Event, StreamEnd>>,
    session_end: impl Future<Output = StreamEnd>,
) -> impl Stream<Item = Event> {
    let session_end = stream::once(session_end).map(Err);
    let events = stream::select(events, session_end).flat_map(|event| {
        let is_end = event.is_err();
        let event = event.unwrap_or_else(end);
        stream::iter([Some(event)].into_iter().chain(is_end.then_some(None)))
    });
    events
        .take_while(|event| ready(event.is_some()))
        .filter_map(ready)
}

fn end(reason: StreamEnd) -> Event {
    let event = Event::default()
        .event("end")
        .json_data(EndOfStream { reason });
    event.expect("a reason is plain data that can be written")
}

/// The notices for an approver who has the conversation open.
fn notices(listening: NoticeStream) -> impl Stream<Item = Event> {
    let batches = stream::unfold(listening, async |mut listening| {
        match listening.next().await {
            Ok(notices) => Some((notices?, listening)),
            Err(error) => {
                tracing::error!(error = error.with_cause(), "a stream of notices broke");
                None
            }
        }
    });
    let event = |notice| {
        let event = Event::default().event("notice").json_data(notice);
        event.expect("notices are plain data that can be written")
    };
    batches.flat_map(move |notices| stream::iter(notices.into_iter().map(event)))
}

/// The event after which a client listens: `Last-Event-ID`, else `after` of the query.
pub(super) struct ResumeAfter(Option<i64>);

impl FromRequestParts<ApiState> for ResumeAfter {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        let Query(After { after, .. }) = Query::from_request_parts(parts, state).await?;
        Ok(Self(last_event_id(&parts.headers)?.or(after)))
    }
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, Problem> {
    let Some(value) = headers
        .get("last-event-id")
        .filter(|value| !value.is_empty())
    else {
        return Ok(None);
    };
    let number = value
        .to_str()
        .ok()
        .and_then(|text| text.parse().ok())
        .filter(|number| *number >= 0);
    number.map(Some).ok_or_else(|| {
        Problem::invalid(
            "Last-Event-ID",
            "must be the id of an event: a whole number",
        )
    })
}

/// The events of a conversation, and why there are no more.
fn events(
    listening: ConversationStream,
    open: limits::Stream,
) -> impl Stream<Item = Result<Event, StreamEnd>> {
    let end = Instant::now() + LIFETIME;
    stream::unfold((listening, open), move |(mut listening, open)| async move {
        let next = tokio::time::timeout_at(end, listening.next()).await;
        let next = next_or_end(next).map(|next| event(&next));
        Some((next, (listening, open)))
    })
}

/// What a source of events gave within the lifetime of its stream, else why the stream ends.
pub(super) fn next_or_end<T>(
    next: Result<domain::error::Result<Option<T>>, Elapsed>,
) -> Result<T, StreamEnd> {
    match next {
        Err(Elapsed { .. }) => Err(StreamEnd::LifetimeOver),
        Ok(Ok(next)) => next.ok_or(StreamEnd::Stopping),
        Ok(Err(Error::NotFound(_))) => Err(StreamEnd::Deleted),
        Ok(Err(error)) => {
            tracing::error!(error = error.with_cause(), "an event stream broke");
            Err(StreamEnd::Failed)
        }
    }
}

fn event(event: &ConversationEvent) -> Event {
    let event = match event {
        ConversationEvent::Durable(event) => Event::default()
            .id(event.seq.to_string())
            .event(event.kind.name())
            .json_data(&event.kind),
        ConversationEvent::Transient(transient) => Event::default()
            .event(transient.name())
            .json_data(transient),
    };
    event.expect("events are plain data that can be written")
}

/// Answers with a stream of server-sent events. Comments keep a quiet stream open, and headers stop proxies from buffering.
pub(super) fn answer(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive");
    let mut response = Sse::new(events.map(Ok::<_, Infallible>))
        .keep_alive(keep_alive)
        .into_response();
    let headers = response.headers_mut();
    headers.insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
