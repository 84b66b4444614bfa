//! The HTTP with SSE transport of revision 2024-11-05: the server sends its messages as one stream of events, whose first
//! event names the address for our messages.
//!
//! Invariants: nothing is sent to an address of another origin, since every request carries the server's headers. The
//! session ends with the stream: requests that wait are lost, and the next use opens a new connection.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, header};
use url::Url;

use super::{
    Client,
    response::{Refusal, body_failure, media_type},
};
use crate::{
    error::Failure,
    peer::Peer,
    redaction::clip,
    request::{OpenRequest, Request},
    sse::{Events, StreamError},
};
use domain::ids::ServerId;

/// The address for our messages.
pub(crate) struct LegacySse {
    client: Client,
    endpoint: Url,
}

/// The stream of the server's messages.
pub(crate) struct ServerEvents {
    events: Events,
    server: ServerId,
}

impl LegacySse {
    /// Opens the stream and waits for the event with the address.
    pub(crate) async fn open(client: Client) -> Result<(Self, ServerEvents), Failure> {
        client.cookies.open();
        let response = client
            .get_events(client.url.clone(), client.headers.clone())
            .await?;
        if !response.status.is_success() {
            let refusal = Refusal::read(response, client.has_credential).await;
            return Err(refusal.failure(&client.redactor, None));
        }
        if media_type(&response.headers).as_deref() != Some("text/event-stream") {
            return Err(Failure::Lost(
                "the server answered with something else than a stream of events".to_owned(),
            ));
        }
        let mut events = Events::new(response.body);
        let endpoint = read_endpoint(&mut events, &client.url, &response.url).await?;
        let server = client.server.clone();
        Ok((Self { client, endpoint }, ServerEvents { events, server }))
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = self.client.headers.clone();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        headers
    }

    /// Posts a request. The answer comes over the stream.
    pub(crate) async fn post_request(
        &self,
        id: i64,
        request: &Request<'_>,
        open: &OpenRequest,
        text: String,
    ) -> Result<(), Failure> {
        let response = self
            .client
            .post_request(self.endpoint.clone(), self.headers(), request, open, text)
            .await?;
        if response.status.is_success() {
            return Ok(());
        }
        let refusal = Refusal::read(response, self.client.has_credential).await;
        // The address names the session, so every request after the handshake is in a session. 401 and 403 are about the
        // credential here.
        Err(if request.is_handshake() || refusal.is_about_credential() {
            refusal.failure(&self.client.redactor, Some(id))
        } else {
            refusal.failure_in_session(&self.client.redactor, id)
        })
    }

    /// Posts a notification or a reply.
    pub(crate) async fn post_message(&self, text: String) -> Result<(), Failure> {
        self.client
            .post_message(self.endpoint.clone(), self.headers(), text)
            .await
    }
}

impl ServerEvents {
    /// Hands the messages over until the stream or the connection ends. The connection ends with the stream.
    pub(crate) async fn read(self, peer: Arc<Peer>) {
        tokio::select! {
            biased;
            () = peer.wait_for_end() => {}
            () = self.read_all(&peer) => peer.end(),
        }
    }

    async fn read_all(mut self, peer: &Arc<Peer>) {
        while let Some(event) = self.events.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) => {
                    let server = &self.server;
                    return tracing::debug!(%server, %error, "a stream of events broke");
                }
            };
            if let (None | Some("message" | ""), Some(data)) = (event.event.as_deref(), &event.data)
            {
                peer.take_message(data, None);
            }
            if peer.has_ended() {
                return;
            }
        }
    }
}

/// The address in the event `endpoint`, resolved against the URL that `answered`. It must have the origin of `ours`.
async fn read_endpoint(events: &mut Events, ours: &Url, answered: &Url) -> Result<Url, Failure> {
    while let Some(event) = events.next().await {
        let event = event.map_err(|error| stream_failure(&error))?;
        let (Some("endpoint"), Some(place)) = (event.event.as_deref(), event.data) else {
            continue;
        };
        let place = answered.join(place.trim()).map_err(|_| {
            Failure::Lost("the server names an endpoint that is no address".to_owned())
        })?;
        if place.origin() != ours.origin() {
            let origin = clip(&place.origin().ascii_serialization());
            return Err(Failure::Lost(format!(
                "the server names an endpoint at another origin, {origin}"
            )));
        }
        return Ok(place);
    }
    Err(Failure::Lost(
        "the stream of events ended before the server named its endpoint".to_owned(),
    ))
}

/// The failure of a stream that broke before it named the address.
fn stream_failure(error: &StreamError) -> Failure {
    match error {
        StreamError::Egress(cause) => body_failure(cause),
        StreamError::TooLarge => {
            Failure::Lost(format!("the stream of events cannot be read: {error}"))
        }
    }
}
