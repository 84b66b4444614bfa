//! HTTP with SSE as in revision 2024-11-05: one stream of events that the server speaks on, and an address of its
//! choice where it hears us.
//!
//! Invariants: that address has the origin of the server, or nothing is sent to it, since every request carries the
//! server's headers; a stream that ended is not taken up again, because the session ended with it: who waits for an
//! answer is told that it is lost, and the next use opens a new connection.

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
    response::media_type,
    verdict::{Refusal, broken, id_of, is_handshake},
};
use crate::{
    error::Failure,
    interceptor::{clipped, locked},
    sse,
};
use domain::ids::ServerId;

/// Messages read ahead of rmcp.
const AHEAD: usize = 4;

/// An open stream with the address that belongs to it.
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
    /// Opens the stream and waits until the server says where it hears us.
    pub(crate) async fn open(client: Client) -> Result<Self, Failure> {
        client.shared.cookies.open();
        let response = client.get_events(client.shared.headers.clone()).await?;
        if !response.status.is_success() {
            let refusal = Refusal::read(response, client.shared.signed).await;
            return Err(refusal.failure(&client.shared.interceptor, None));
        }
        let (headers, url) = (response.headers, response.url);
        if media_type(&headers).as_deref() != Some("text/event-stream") {
            return Err(Failure::Lost(
                "the server answered with something else than a stream of events".to_owned(),
            ));
        }
        let mut events = sse::events(response.body, client.shared.interceptor.clone(), None, None);
        let endpoint = Arc::new(endpoint(&mut events, &client.shared.url, &url).await?);
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
        let answering = client.shared.interceptor.answering(&message);
        async move {
            let _answering = answering;
            client.post_aside(&endpoint, &message).await
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
    /// Posts a message whose answer, if there is one, comes over the stream.
    async fn post_aside(
        &self,
        endpoint: &Url,
        message: &ClientJsonRpcMessage,
    ) -> Result<(), Failed> {
        let shared = &*self.shared;
        let pending = shared.interceptor.outgoing(message);
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
                    Refusal::read(response, shared.signed).await,
                    &shared.interceptor,
                );
                // The session belongs to the stream and is named in the address, so that each request after the handshake
                // is one in a session, and 401 and 403 say nothing of it.
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
            None => *locked(&shared.failure) = Some(shared.interceptor.without_token(failure)),
        }
        Err(Failed)
    }
}

/// The address in the event `endpoint`, which comes first.
async fn endpoint(
    events: &mut (impl Stream<Item = Result<Sse, SseError>> + Unpin),
    ours: &Url,
    answered: &Url,
) -> Result<Url, Failure> {
    while let Some(event) = events.next().await {
        let event = event.map_err(|error| lost(&error))?;
        let (Some("endpoint"), Some(place)) = (event.event.as_deref(), event.data) else {
            continue;
        };
        let place = answered.join(place.trim()).map_err(|_| {
            Failure::Lost("the server names an endpoint that is no address".to_owned())
        })?;
        if place.origin() != ours.origin() {
            let origin = clipped(&place.origin().ascii_serialization());
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

/// Reads events until the stream ends or nobody listens any more.
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

fn lost(error: &SseError) -> Failure {
    match sse::egress_error(error) {
        Some(cause) => broken(cause),
        None => Failure::Lost(format!("the stream of events cannot be read: {error}")),
    }
}
