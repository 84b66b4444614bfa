//! MCP over a WebSocket: one JSON message a frame of text. No revision of the protocol has it, and gateways speak it.
//!
//! Invariants: the handshake is a request of the guarded client; no message is larger than the cap; a server that
//! gives no answer to a ping, although it is asked for one, is gone; whether anything of a request left this machine is
//! written into its pending request before the first byte does.

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
    read_pace::{MESSAGE, ReadPace},
};
use egress::Socket;

/// What a server of this kind calls the language.
const PROTOCOL: &str = "mcp";
/// The largest message; a result travels in one.
const MAX_MESSAGE: usize = 8 * 1024 * 1024;
/// Messages read ahead of rmcp.
const AHEAD: usize = 4;
/// The longest pause between two questions for an answer to a ping, and how many may stay without answer.
const PING: Duration = Duration::from_secs(20);
const PINGS: u32 = 3;
/// How long saying goodbye may take.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

type Sink = SplitSink<WebSocketStream<Socket>, Message>;
type Shared = Arc<AsyncMutex<Sink>>;

/// An open socket.
pub(super) struct WebSocket {
    interceptor: Arc<Interceptor>,
    sink: Shared,
    messages: mpsc::Receiver<ServerJsonRpcMessage>,
    tasks: [AbortHandle; 2],
}

#[derive(Debug, thiserror::Error)]
#[error("the server does not listen")]
pub(super) struct WriteFailed;

impl Drop for WebSocket {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl WebSocket {
    pub(super) async fn open(client: &Client) -> Result<Self, Failure> {
        let socket = client.dial(PROTOCOL).await?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE))
            .max_write_buffer_size(4 * MAX_MESSAGE);
        let socket = WebSocketStream::from_raw_socket(socket, Role::Client, Some(config)).await;
        let (sink, stream) = socket.split();
        let sink = Arc::new(AsyncMutex::new(sink));
        let (sender, messages) = mpsc::channel(AHEAD);
        let silence = client.timeouts().stream_idle.unwrap_or(PING * PINGS);
        let reader = tokio::spawn(read(stream, client.interceptor().clone(), sender, silence));
        let pinger = tokio::spawn(ping(sink.clone(), PING.min(silence / PINGS)));
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
        let pending = self.interceptor.outgoing(&message);
        let answering = self.interceptor.answering(&message);
        let sink = self.sink.clone();
        async move {
            let _answering = answering;
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
        let goodbye = async { self.sink.lock().await.close().await };
        // A server that is gone hears no goodbye.
        let _ = timeout(CLOSE_TIMEOUT, goodbye).await;
        self.tasks.iter().for_each(AbortHandle::abort);
        Ok(())
    }
}

/// Writes one message. A socket that was closed before has sent nothing.
async fn write(
    sink: &Shared,
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

/// Reads messages until the socket ends, says too much at once or nothing for too long, or nobody listens any more.
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
        // Gateways send what they were given, as text or as bytes.
        let bytes = match &message {
            Message::Text(text) => text.as_bytes(),
            Message::Binary(bytes) => bytes,
            _ => continue,
        };
        let text = String::from_utf8_lossy(bytes);
        if let Some(message) = interceptor.message(text.trim())
            && messages.send(message).await.is_err()
        {
            return;
        }
        pace.count(text.len().max(MESSAGE)).await;
    }
}

/// Asks for an answer to a ping from time to time. Whoever reads notices when none comes.
async fn ping(sink: Shared, pause: Duration) {
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
