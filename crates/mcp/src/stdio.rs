//! The stdio transport: servers that are child processes, with one JSON message in each line of their standard streams.
//!
//! Invariants: a child is started without a shell. Its environment holds what the pack declares, `PATH`, `HOME` and the
//! variables that the operator passes on, and no setting of ours. The child leads its own process group, and all processes
//! of the group end when the last [`Child`] handle is dropped or this process ends. Its standard error is logged only after
//! it was cut, limited in number of lines and cleared of the child's secrets.

mod lines;
mod process;
mod stderr;

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
use self::{lines::Lines, process::Group, stderr::Tail};
pub(super) use self::{
    process::{Launch, Watchdog},
    stderr::LineQuota,
};
use super::{
    error::Failure,
    interceptor::{Interceptor, PendingRequest, body_of, lock},
    read_pace::{MIN_MESSAGE, ReadPace},
};
use domain::ids::ServerId;

/// The most bytes of a line of a server.
const MAX_LINE: usize = 8 * 1024 * 1024;
/// The most messages that are read before rmcp takes them.
const AHEAD: usize = 4;

/// A handle to a running child process. A handle is a transport for rmcp. Several handles may use the same child, one
/// after the other, so that a second handshake does not need a second start.
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

/// The error for rmcp; the details are in the pending request.
#[derive(Debug, thiserror::Error)]
#[error("the child does not read")]
pub(super) struct WriteFailed;

impl Child {
    /// Starts the process, and the tasks that read its streams.
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

    /// The last lines of the child's standard error, for the message of a failed start.
    pub(super) fn last_stderr_lines(&self) -> Option<String> {
        self.shared.tail.join()
    }

    /// Closes the input of the child so that it can end by itself, then kills its whole process group.
    pub(super) async fn stop(&self) {
        // A write that hangs holds the lock; killing the child ends it.
        if let Ok(mut stdin) = self.shared.stdin.try_lock() {
            stdin.take();
        }
        let group = lock(&self.shared.group).take();
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
        let pending = self.shared.interceptor.register_outgoing(&message);
        let reply = self.shared.interceptor.begin_reply(&message);
        let (stdin, encoding) = (self.shared.stdin.clone(), self.shared.encoding);
        async move {
            let _reply = reply;
            let line = lines::encode_line(
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

/// Writes one line. If the pipe accepted no byte of it, nothing was sent.
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

/// Reads lines until the child ends or writes a line that is too long, or until the receiver is gone. Lines that are no
/// messages, such as a banner, are skipped.
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
            && let Some(message) = interceptor.read_message(line)
            && messages.send(message).await.is_err()
        {
            return;
        }
        pace.count(line.len().max(MIN_MESSAGE)).await;
    }
}
