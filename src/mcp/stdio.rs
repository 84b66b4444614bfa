//! Servers that are child processes and speak over their standard streams, one JSON message a line.
//!
//! Invariants: no shell; the environment holds what the pack declares, `PATH` and `HOME`, and nothing of
//! ours; the child leads its own process group, and when the last handle to it goes, so does every
//! process of that group; what it writes to its standard error is cut, counted and cleared of the
//! secrets we gave it before it reaches our log.

mod process;
mod stderr;

use std::sync::{Arc, Mutex};

use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{ChildStdin, ChildStdout},
    sync::{Mutex as AsyncMutex, mpsc},
};
use tokio_util::sync::CancellationToken;

pub(super) use self::process::Launch;
use self::{process::Group, stderr::Tail};
use super::{
    error::Failure,
    wire::{Incoming, Tap, Wire, body_of, locked, stand_in},
};

/// The longest line of a server.
const MAX_LINE: u64 = 8 * 1024 * 1024;
/// Messages read ahead of rmcp.
const AHEAD: usize = 64;

/// A running child. Handles are transports for rmcp; several may follow one another on the same child,
/// one at a time, so that a second handshake needs no second start.
#[derive(Clone)]
pub(super) struct Child {
    shared: Arc<Shared>,
}

struct Shared {
    stdin: Arc<AsyncMutex<Option<ChildStdin>>>,
    messages: AsyncMutex<mpsc::Receiver<ServerJsonRpcMessage>>,
    group: Mutex<Option<Group>>,
    wire: Arc<Wire>,
    /// Cancelled when the child closed its output.
    ended: CancellationToken,
    tail: Arc<Tail>,
}

#[derive(Debug, thiserror::Error)]
#[error("the child does not read")]
pub(super) struct Deaf;

impl Child {
    /// Starts the process.
    pub(super) fn start(launch: &Launch, wire: Arc<Wire>) -> Result<Self, Failure> {
        let (group, streams) = launch.spawn()?;
        let tail = Arc::new(Tail::default());
        tokio::spawn(stderr::drain(streams.stderr, launch.server.clone(), launch.secrets.clone(), tail.clone()));
        let (sender, messages) = mpsc::channel(AHEAD);
        let ended = CancellationToken::new();
        tokio::spawn(read(streams.stdout, wire.clone(), sender, ended.clone()));
        let shared = Shared {
            stdin: Arc::new(AsyncMutex::new(Some(streams.stdin))),
            messages: AsyncMutex::new(messages),
            group: Mutex::new(Some(group)),
            wire,
            ended,
            tail,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.shared.ended.is_cancelled()
    }

    /// The child's last words, for the message of a failed start.
    pub(super) fn last_words(&self) -> Option<String> {
        self.shared.tail.last()
    }

    /// Asks the child to go, then makes it and everything it started go.
    pub(super) async fn stop(&self) {
        // A write that hangs keeps the pipe; the kill ends it.
        if let Ok(mut stdin) = self.shared.stdin.try_lock() {
            stdin.take();
        }
        let group = locked(&self.shared.group).take();
        if let Some(group) = group {
            group.stop(&self.shared.ended).await;
        }
    }
}

impl Transport<RoleClient> for Child {
    type Error = Deaf;

    fn send(&mut self, message: ClientJsonRpcMessage) -> impl Future<Output = Result<(), Deaf>> + Send + 'static {
        let tap = self.shared.wire.outgoing(&message);
        let stdin = self.shared.stdin.clone();
        async move {
            let mut line = body_of(&message, tap.as_deref()).map_err(|_| Deaf)?;
            line.push('\n');
            let mut stdin = stdin.lock().await;
            let written = match stdin.as_mut() {
                Some(stdin) => write(stdin, line.as_bytes(), tap.as_deref()).await,
                None => Err(Failure::NotSent("the server was stopped".to_owned())),
            };
            written.map_err(|failure| {
                if let Some(tap) = &tap {
                    tap.settle(Err(failure));
                }
                Deaf
            })
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.shared.messages.lock().await.recv().await
    }

    async fn close(&mut self) -> Result<(), Deaf> {
        self.stop().await;
        Ok(())
    }
}

/// Writes one line. A pipe that took nothing of it has sent nothing.
async fn write(stdin: &mut ChildStdin, line: &[u8], tap: Option<&Tap>) -> Result<(), Failure> {
    let mut written = 0;
    if let Some(tap) = tap {
        tap.mark_sent();
    }
    while written < line.len() {
        match stdin.write(&line[written..]).await {
            Ok(some) if some > 0 => written += some,
            _ if written == 0 => return Err(Failure::NotSent("the server has stopped".to_owned())),
            _ => return Err(Failure::Lost("the server stopped while the request was written".to_owned())),
        }
    }
    stdin.flush().await.map_err(|_| Failure::Lost("the server stopped while the request was written".to_owned()))
}

/// Reads lines until the child ends, writes one that is too long, or nobody listens any more.
async fn read(
    stdout: ChildStdout,
    wire: Arc<Wire>,
    messages: mpsc::Sender<ServerJsonRpcMessage>,
    ended: CancellationToken,
) {
    let _ended = ended.drop_guard();
    let mut stdout = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut stdout).take(MAX_LINE + 1).read_until(b'\n', &mut line).await;
        if !matches!(read, Ok(count) if count > 0) {
            return;
        }
        if line.len() as u64 > MAX_LINE {
            tracing::warn!("a stdio server wrote a line over {MAX_LINE} bytes; its connection is closed");
            return;
        }
        if let Some(message) = parse(&line, &wire)
            && messages.send(message).await.is_err()
        {
            return;
        }
    }
}

/// One line; what is no message (a banner, a stray print) is left out.
fn parse(line: &[u8], wire: &Wire) -> Option<ServerJsonRpcMessage> {
    let line = std::str::from_utf8(line).ok()?.trim();
    if line.is_empty() {
        return None;
    }
    match wire.incoming(line) {
        Incoming::Pass => serde_json::from_str(line)
            .inspect_err(|_| tracing::debug!("a stdio server wrote a line that is not a message of the protocol"))
            .ok(),
        Incoming::Answered(id) => Some(stand_in(id)),
        Incoming::Taken => None,
    }
}
