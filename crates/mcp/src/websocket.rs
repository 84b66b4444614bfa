//! The WebSocket transport: one JSON message in each text frame. It is in no revision of the protocol, but gateways use it.
//!
//! Invariants: egress makes the WebSocket handshake. No message is larger than [`MAX_MESSAGE`]. A server that does not
//! answer pings counts as gone. A request is marked as sent before its first byte leaves this machine.

use std::{sync::Arc, time::Duration};

use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};
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
    outbox::{self, Outbox, OutboxReceiver},
    peer::Peer,
    read_pace::{MIN_MESSAGE, ReadPace},
};
use domain::ids::ServerId;
use egress::Socket;

/// The WebSocket subprotocol.
const PROTOCOL: &str = "mcp";
/// The most bytes of a message, and so of a result.
const MAX_MESSAGE: usize = 8 * 1024 * 1024;
/// The longest pause between two pings.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// How many pings in a row may stay without an answer.
const MAX_LOST_PINGS: u32 = 3;
/// How long sending the close frame may take.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// An open WebSocket, which is not read yet.
pub(super) struct WebSocket {
    stream: SplitStream<WebSocketStream<Socket>>,
    writer: Writer,
    server: ServerId,
    /// The longest time without a message or the answer to a ping.
    silence: Duration,
}

/// Writes messages, and pings at an interval.
struct Writer {
    sink: SplitSink<WebSocketStream<Socket>, Message>,
    outbox: OutboxReceiver,
    pings: Interval,
}

impl WebSocket {
    /// Opens a WebSocket to the server of `client`.
    pub(super) async fn open(client: &Client) -> Result<(Self, Outbox), Failure> {
        let socket = client.open_web_socket(PROTOCOL).await?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE))
            .max_write_buffer_size(4 * MAX_MESSAGE);
        let socket = WebSocketStream::from_raw_socket(socket, Role::Client, Some(config)).await;
        let (sink, stream) = socket.split();
        let silence = client
            .timeouts()
            .stream_idle
            .unwrap_or(PING_INTERVAL * MAX_LOST_PINGS);
        let pause = PING_INTERVAL.min(silence / MAX_LOST_PINGS);
        let mut pings = interval_at(Instant::now() + pause, pause);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (outbox, receiver) = outbox::new();
        let writer = Writer {
            sink,
            outbox: receiver,
            pings,
        };
        let socket = Self {
            stream,
            writer,
            server: client.server().clone(),
            silence,
        };
        Ok((socket, outbox))
    }

    /// Starts the tasks that read and write for `peer`.
    pub(super) fn start(self, peer: &Arc<Peer>) {
        let Self {
            stream,
            writer,
            server,
            silence,
        } = self;
        tokio::spawn(writer.run(peer.clone()));
        let peer = peer.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = peer.wait_for_end() => {}
                () = read(stream, &peer, &server, silence) => peer.end(),
            }
        });
    }
}

impl Writer {
    /// Writes until the connection is to end, and closes the WebSocket then.
    async fn run(mut self, peer: Arc<Peer>) {
        let stop = self.outbox.stop.clone();
        tokio::select! {
            biased;
            () = peer.wait_for_end() => {}
            () = stop.cancelled() => {}
            () = self.write_all() => {}
        }
        peer.end();
        // Fails when the server is gone.
        let _ = timeout(CLOSE_TIMEOUT, self.sink.close()).await;
    }

    async fn write_all(&mut self) {
        loop {
            let message = tokio::select! {
                message = self.outbox.next() => message,
                _ = self.pings.tick() => {
                    // [`read`] ends the connection when no answer comes.
                    if self.sink.send(Message::Ping(Bytes::new())).await.is_err() {
                        return;
                    }
                    continue;
                }
            };
            let Some(message) = message else { return };
            let written = self.sink.send(Message::text(message.text())).await;
            if let Err(error) = written {
                message.fail(write_failure(&error));
            }
        }
    }
}

/// The failure of a message that could not be written. If the WebSocket was closed before, nothing was sent.
fn write_failure(error: &WsError) -> Failure {
    match error {
        WsError::ConnectionClosed | WsError::AlreadyClosed => {
            Failure::NotSent("the server has closed the WebSocket".to_owned())
        }
        WsError::WriteBufferFull(_) | WsError::Capacity(_) => {
            Failure::NotSent("the request does not fit into a message of a WebSocket".to_owned())
        }
        _ => Failure::Lost("the WebSocket broke while the request was written".to_owned()),
    }
}

/// Reads messages until the WebSocket ends, a message is too large, or the server is silent for too long.
async fn read(
    mut stream: SplitStream<WebSocketStream<Socket>>,
    peer: &Arc<Peer>,
    server: &ServerId,
    silence: Duration,
) {
    let mut pace = ReadPace::new();
    while !peer.has_ended() {
        let message = match timeout(silence, stream.next()).await {
            Ok(Some(Ok(message))) => message,
            Ok(Some(Err(error))) => {
                return tracing::debug!(%server, %error, "a WebSocket broke");
            }
            Ok(None) => return,
            Err(_) => {
                return tracing::debug!(
                    %server,
                    "a WebSocket gave no sign of life for {} s",
                    silence.as_secs_f32()
                );
            }
        };
        // Some gateways send messages in binary frames.
        let bytes = match &message {
            Message::Text(text) => text.as_bytes(),
            Message::Binary(bytes) => bytes,
            _ => continue,
        };
        let text = String::from_utf8_lossy(bytes);
        peer.take_message(text.trim(), None);
        pace.count(text.len().max(MIN_MESSAGE)).await;
    }
}
