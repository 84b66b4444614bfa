//! The WebSocket transport: one JSON message in each text frame. It is in no revision of the protocol, but gateways use it.
//!
//! Invariants: egress makes the WebSocket handshake. No message is larger than [`MAX_MESSAGE`]. A server that does not
//! answer pings counts as gone. A pending request is marked as sent before its first byte leaves this machine.

use std::{sync::Arc, time::Duration};

use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    sync::{Mutex as AsyncMutex, mpsc},
    task::AbortHandle,
    time::{Instant, interval_at, timeout},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Bytes, Error as WsError, Message,
        protocol::{Role, WebSocketConfig},
    },
};

use super::{
    error::Failure,
    http::Client,
    interceptor::{Interceptor, PendingRequest, body_of},
    read_pace::{MIN_MESSAGE, ReadPace},
};
use egress::Socket;

/// The WebSocket subprotocol.
const PROTOCOL: &str = "mcp";
/// The most bytes of a message, and so of a result.
const MAX_MESSAGE: usize = 8 * 1024 * 1024;
/// The most messages that are read before rmcp takes them.
const AHEAD: usize = 4;
/// The longest pause between two pings.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// How many pings in a row may stay without an answer.
const MAX_LOST_PINGS: u32 = 3;
/// How long sending the close frame may take.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

type Sink = SplitSink<WebSocketStream<Socket>, Message>;
type SharedSink = Arc<AsyncMutex<Sink>>;

/// An open WebSocket.
pub(super) struct WebSocket {
    interceptor: Arc<Interceptor>,
    sink: SharedSink,
    messages: mpsc::Receiver<ServerJsonRpcMessage>,
    tasks: [AbortHandle; 2],
}

/// The error for rmcp; the details are in the pending request.
#[derive(Debug, thiserror::Error)]
#[error("the server does not listen")]
pub(super) struct WriteFailed;

impl Drop for WebSocket {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl WebSocket {
    /// Opens a WebSocket to the server of `client`, and starts the tasks that read it and ping.
    pub(super) async fn open(client: &Client) -> Result<Self, Failure> {
        let socket = client.open_web_socket(PROTOCOL).await?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE))
            .max_write_buffer_size(4 * MAX_MESSAGE);
        let socket = WebSocketStream::from_raw_socket(socket, Role::Client, Some(config)).await;
        let (sink, stream) = socket.split();
        let sink = Arc::new(AsyncMutex::new(sink));
        let (sender, messages) = mpsc::channel(AHEAD);
        let silence = client
            .timeouts()
            .stream_idle
            .unwrap_or(PING_INTERVAL * MAX_LOST_PINGS);
        let reader = tokio::spawn(read(stream, client.interceptor().clone(), sender, silence));
        let pinger = tokio::spawn(ping(
            sink.clone(),
            PING_INTERVAL.min(silence / MAX_LOST_PINGS),
        ));
        let tasks = [reader.abort_handle(), pinger.abort_handle()];
        Ok(Self {
            interceptor: client.interceptor().clone(),
            sink,
            messages,
            tasks,
        })
    }
}

impl Transport<RoleClient> for WebSocket {
    type Error = WriteFailed;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), WriteFailed>> + Send + 'static {
        let pending = self.interceptor.register_outgoing(&message);
        let reply = self.interceptor.begin_reply(&message);
        let sink = self.sink.clone();
        async move {
            let _reply = reply;
            let text = body_of(&message, pending.as_deref()).map_err(|_| WriteFailed)?;
            write(&sink, text, pending.as_deref())
                .await
                .map_err(|failure| {
                    if let Some(pending) = &pending {
                        pending.settle(Err(failure));
                    }
                    WriteFailed
                })
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.messages.recv().await
    }

    async fn close(&mut self) -> Result<(), WriteFailed> {
        let closing = async { self.sink.lock().await.close().await };
        // Fails when the server is gone.
        let _ = timeout(CLOSE_TIMEOUT, closing).await;
        self.tasks.iter().for_each(AbortHandle::abort);
        Ok(())
    }
}

/// Writes one message. If the WebSocket was closed before, nothing was sent.
async fn write(
    sink: &SharedSink,
    text: String,
    pending: Option<&PendingRequest>,
) -> Result<(), Failure> {
    let mut sink = sink.lock().await;
    if let Some(pending) = pending {
        pending.mark_sent();
    }
    sink.send(Message::text(text))
        .await
        .map_err(|error| match error {
            WsError::ConnectionClosed | WsError::AlreadyClosed => {
                Failure::NotSent("the server has closed the WebSocket".to_owned())
            }
            WsError::WriteBufferFull(_) | WsError::Capacity(_) => Failure::NotSent(
                "the request does not fit into a message of a WebSocket".to_owned(),
            ),
            _ => Failure::Lost("the WebSocket broke while the request was written".to_owned()),
        })
}

/// Reads messages until the WebSocket ends, a message is too large, the server is silent for too long, or the receiver is
/// gone.
async fn read(
    mut stream: SplitStream<WebSocketStream<Socket>>,
    interceptor: Arc<Interceptor>,
    messages: mpsc::Sender<ServerJsonRpcMessage>,
    silence: Duration,
) {
    let mut pace = ReadPace::new();
    while interceptor.overrun_reason().is_none() {
        let message = match timeout(silence, stream.next()).await {
            Ok(Some(Ok(message))) => message,
            Ok(Some(Err(error))) => {
                tracing::debug!(server = interceptor.server(), %error, "a WebSocket broke");
                return;
            }
            Ok(None) => return,
            Err(_) => {
                tracing::debug!(
                    server = interceptor.server(),
                    "a WebSocket gave no sign of life for {} s",
                    silence.as_secs_f32()
                );
                return;
            }
        };
        // Some gateways send messages in binary frames.
        let bytes = match &message {
            Message::Text(text) => text.as_bytes(),
            Message::Binary(bytes) => bytes,
            _ => continue,
        };
        let text = String::from_utf8_lossy(bytes);
        if let Some(message) = interceptor.read_message(text.trim())
            && messages.send(message).await.is_err()
        {
            return;
        }
        pace.count(text.len().max(MIN_MESSAGE)).await;
    }
}

/// Sends pings at an interval. [`read`] ends the connection when no answer comes.
async fn ping(sink: SharedSink, pause: Duration) {
    let mut times = interval_at(Instant::now() + pause, pause);
    loop {
        times.tick().await;
        if sink
            .lock()
            .await
            .send(Message::Ping(Bytes::new()))
            .await
            .is_err()
        {
            return;
        }
    }
}
