//! The HTTP with SSE transport of revision 2024-11-05: the server sends its messages as one stream of events, whose first
//! event names the address for our messages.
//!
//! Invariants: nothing is sent to an address of another origin, since every request carries the server's headers. The
//! session ends with the stream: requests that wait are lost, and the next use opens a new connection.

use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use sse_stream::{Error as SseError, Sse};
use tokio::{sync::mpsc, task::AbortHandle};
use url::Url;

use super::{
    Client, Failed,
    response::{Refusal, body_failure, id_of, is_handshake, media_type},
};
use crate::{
    error::Failure,
    interceptor::{clip, lock},
    sse,
};
use domain::ids::ServerId;

/// The most messages that are read before rmcp takes them.
const AHEAD: usize = 4;

/// An open stream of events, and the address for our messages.
pub(crate) struct LegacySse {
    client: Client,
    endpoint: Arc<Url>,
    messages: mpsc::Receiver<ServerJsonRpcMessage>,
    reader: AbortHandle,
}

impl Drop for LegacySse {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl LegacySse {
    /// Opens the stream and waits for the event with the address.
    pub(crate) async fn open(client: Client) -> Result<Self, Failure> {
        client.shared.cookies.open();
        let response = client.get_events(client.shared.headers.clone()).await?;
        if !response.status.is_success() {
            let refusal = Refusal::read(response, client.shared.has_credential).await;
            return Err(refusal.failure(&client.shared.interceptor, None));
        }
        let (headers, url) = (response.headers, response.url);
        if media_type(&headers).as_deref() != Some("text/event-stream") {
            return Err(Failure::Lost(
                "the server answered with something else than a stream of events".to_owned(),
            ));
        }
        let mut events = sse::events(response.body, client.shared.interceptor.clone(), None, None);
        let endpoint = Arc::new(read_endpoint(&mut events, &client.shared.url, &url).await?);
        let (sender, messages) = mpsc::channel(AHEAD);
        let server = client.shared.server.clone();
        let reader = tokio::spawn(read(events, server, sender)).abort_handle();
        Ok(Self {
            client,
            endpoint,
            messages,
            reader,
        })
    }
}

impl Transport<RoleClient> for LegacySse {
    type Error = Failed;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Failed>> + Send + 'static {
        let (client, endpoint) = (self.client.clone(), self.endpoint.clone());
        let reply = client.shared.interceptor.begin_reply(&message);
        async move {
            let _reply = reply;
            client.post_to_endpoint(&endpoint, &message).await
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.messages.recv().await
    }

    async fn close(&mut self) -> Result<(), Failed> {
        self.reader.abort();
        Ok(())
    }
}

impl Client {
    /// Posts a message. An answer to it comes over the stream.
    async fn post_to_endpoint(
        &self,
        endpoint: &Url,
        message: &ClientJsonRpcMessage,
    ) -> Result<(), Failed> {
        let shared = &*self.shared;
        let pending = shared.interceptor.register_outgoing(message);
        let failure = match self
            .send_message(
                endpoint,
                shared.headers.clone(),
                message,
                pending.as_deref(),
            )
            .await
        {
            Ok(response) if response.status.is_success() => return Ok(()),
            Ok(response) => {
                let (refusal, interceptor) = (
                    Refusal::read(response, shared.has_credential).await,
                    &shared.interceptor,
                );
                // The address names the session, so every request after the handshake is in a session. 401 and 403 are
                // about the credential here.
                match id_of(message) {
                    Some(id) if !is_handshake(message) && !refusal.is_about_credential() => {
                        refusal.failure_in_session(interceptor, id)
                    }
                    id => refusal.failure(interceptor, id),
                }
            }
            Err(failure) => failure,
        };
        match &pending {
            Some(pending) => pending.settle(Err(failure)),
            None => *lock(&shared.failure) = Some(shared.interceptor.scrub_token(failure)),
        }
        Err(Failed)
    }
}

/// The address in the event `endpoint`, resolved against the URL that `answered`. It must have the origin of `ours`.
async fn read_endpoint(
    events: &mut (impl Stream<Item = Result<Sse, SseError>> + Unpin),
    ours: &Url,
    answered: &Url,
) -> Result<Url, Failure> {
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

/// Passes messages on until the stream ends or the receiver is gone.
async fn read(
    mut events: impl Stream<Item = Result<Sse, SseError>> + Unpin,
    server: ServerId,
    messages: mpsc::Sender<ServerJsonRpcMessage>,
) {
    while let Some(event) = events.next().await {
        let Ok(event) =
            event.inspect_err(|error| tracing::debug!(%server, %error, "a stream of events broke"))
        else {
            return;
        };
        let (None | Some("message" | ""), Some(data)) = (event.event.as_deref(), &event.data)
        else {
            continue;
        };
        let Ok(message) = serde_json::from_str(data) else {
            tracing::debug!(%server, "the server sent an event that is no message of the protocol");
            continue;
        };
        if messages.send(message).await.is_err() {
            return;
        }
    }
}

/// The failure of a stream that broke before it named the address.
fn stream_failure(error: &SseError) -> Failure {
    match sse::egress_error(error) {
        Some(cause) => body_failure(cause),
        None => Failure::Lost(format!("the stream of events cannot be read: {error}")),
    }
}
