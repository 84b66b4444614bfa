//! Servers that are child processes and speak over their standard streams, one JSON message a line.
//!
//! Invariants: no shell; the environment holds what the pack declares, `PATH` and `HOME`, and nothing of
//! ours; the child leads its own process group, and when the last handle to it goes, or this process does,
//! so does every process of that group; what it writes to its standard error is cut, counted and cleared of the
//! secrets we gave it before it reaches our log.

mod process;
mod stderr;
mod text;
mod watchdog;

use std::sync::{Arc, Mutex};

use encoding_rs::Encoding;
use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::AsyncWriteExt,
    process::ChildStdin,
    sync::{Mutex as AsyncMutex, mpsc},
};
use tokio_util::sync::CancellationToken;

pub use self::process::LAUNCH;
use self::{process::Group, stderr::Tail, text::Lines};
pub(super) use self::{process::Launch, stderr::LineQuota, watchdog::Watchdog};
use super::{
    error::Failure,
    interceptor::{Interceptor, PendingRequest, body_of, locked},
    read_pace::{MESSAGE, ReadPace},
};
use domain::ids::ServerId;

/// The longest line of a server.
const MAX_LINE: usize = 8 * 1024 * 1024;
/// Messages read ahead of rmcp.
const AHEAD: usize = 4;

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
    interceptor: Arc<Interceptor>,
    encoding: &'static Encoding,
    /// Cancelled when the child closed its output.
    ended: CancellationToken,
    tail: Arc<Tail>,
}

#[derive(Debug, thiserror::Error)]
#[error("the child does not read")]
pub(super) struct WriteFailed;

impl Child {
    /// Starts the process.
    pub(super) fn start(
        launch: &Launch,
        interceptor: Arc<Interceptor>,
        watchdog: &Arc<Watchdog>,
        quota: Arc<LineQuota>,
    ) -> Result<Self, Failure> {
        let (group, streams) = launch.spawn(watchdog)?;
        let tail = Arc::new(Tail::default());
        tokio::spawn(stderr::drain(
            streams.stderr,
            launch.server.clone(),
            launch.secrets.clone(),
            tail.clone(),
            quota,
        ));
        let (sender, messages) = mpsc::channel(AHEAD);
        let ended = CancellationToken::new();
        let lines = Lines::new(streams.stdout, launch.encoding);
        let server = launch.server.clone();
        tokio::spawn(read(
            lines,
            server,
            interceptor.clone(),
            sender,
            ended.clone(),
        ));
        let shared = Shared {
            stdin: Arc::new(AsyncMutex::new(Some(streams.stdin))),
            messages: AsyncMutex::new(messages),
            group: Mutex::new(Some(group)),
            interceptor,
            encoding: launch.encoding,
            ended,
            tail,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.shared.ended.is_cancelled()
    }

    /// The child's last words, for the message of a failed start.
    pub(super) fn last_stderr_line(&self) -> Option<String> {
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
    type Error = WriteFailed;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), WriteFailed>> + Send + 'static {
        let pending = self.shared.interceptor.outgoing(&message);
        let answering = self.shared.interceptor.answering(&message);
        let (stdin, encoding) = (self.shared.stdin.clone(), self.shared.encoding);
        async move {
            let _answering = answering;
            let line = text::line(
                body_of(&message, pending.as_deref()).map_err(|_| WriteFailed)?,
                encoding,
            );
            let mut stdin = stdin.lock().await;
            let written = match stdin.as_mut() {
                Some(stdin) => write(stdin, &line, pending.as_deref()).await,
                None => Err(Failure::NotSent("the server was stopped".to_owned())),
            };
            written.map_err(|failure| {
                if let Some(pending) = &pending {
                    pending.settle(Err(failure));
                }
                WriteFailed
            })
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.shared.messages.lock().await.recv().await
    }

    async fn close(&mut self) -> Result<(), WriteFailed> {
        self.stop().await;
        Ok(())
    }
}

/// Writes one line. A pipe that took nothing of it has sent nothing.
async fn write(
    stdin: &mut ChildStdin,
    line: &[u8],
    pending: Option<&PendingRequest>,
) -> Result<(), Failure> {
    let mut written = 0;
    if let Some(pending) = pending {
        pending.mark_sent();
    }
    while written < line.len() {
        match stdin.write(&line[written..]).await {
            Ok(some) if some > 0 => written += some,
            _ if written == 0 => return Err(Failure::NotSent("the server has stopped".to_owned())),
            _ => {
                return Err(Failure::Lost(
                    "the server stopped while the request was written".to_owned(),
                ));
            }
        }
    }
    stdin
        .flush()
        .await
        .map_err(|_| Failure::Lost("the server stopped while the request was written".to_owned()))
}

/// Reads lines until the child ends, writes one that is too long, or nobody listens any more. A line that is no
/// message (a banner, a stray print) is left out.
async fn read(
    mut lines: Lines,
    server: ServerId,
    interceptor: Arc<Interceptor>,
    messages: mpsc::Sender<ServerJsonRpcMessage>,
    ended: CancellationToken,
) {
    let (_ended, mut pace) = (ended.drop_guard(), ReadPace::new());
    loop {
        let line = match lines.next().await {
            Ok(Some(line)) => line,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%server, "{error}; its connection is closed");
                return interceptor.close(error.to_string());
            }
        };
        let line = line.trim();
        if let Some(reason) = interceptor.overrun_reason() {
            tracing::warn!(%server, "{reason}; its connection is closed");
            return;
        }
        if !line.is_empty()
            && let Some(message) = interceptor.message(line)
            && messages.send(message).await.is_err()
        {
            return;
        }
        pace.count(line.len().max(MESSAGE)).await;
    }
}
