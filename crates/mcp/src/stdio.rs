//! The stdio transport: servers that are child processes, with one JSON message in each line of their standard streams.
//!
//! Invariants: a child is started without a shell. Its environment holds what the pack declares, `PATH`, `HOME` and the
//! variables that the operator passes on, and no setting of ours. The child leads its own process group, and all processes
//! of the group end with the task that writes to it or with this process. Its standard error is logged only after
//! it was cut, limited in number of lines and cleared of the child's secrets.

mod lines;
mod process;
mod stderr;

use std::{sync::Arc, time::Duration};

use encoding_rs::Encoding;
use tokio::{io::AsyncWriteExt, process::ChildStdin, time::timeout};
use tokio_util::sync::CancellationToken;

pub use self::process::LAUNCH;
use self::{lines::Lines, process::Group, stderr::Tail};
pub(super) use self::{
    process::{Launch, Watchdog},
    stderr::LineQuota,
};
use super::{
    error::Failure,
    outbox::{self, Outbox, OutboxReceiver},
    peer::Peer,
    read_pace::{MIN_MESSAGE, ReadPace},
};
use domain::ids::ServerId;

/// The most bytes of a line of a server.
const MAX_LINE: usize = 8 * 1024 * 1024;
/// How long the end of a child is waited for that has closed one of its streams.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// A child process that was started, and is not read yet.
pub(super) struct Child {
    server: ServerId,
    lines: Lines,
    writer: Writer,
    status: ChildStatus,
}

/// What is known of a child while it runs and after its end.
#[derive(Clone)]
pub(super) struct ChildStatus {
    /// Cancelled when the child has closed its output.
    ended: CancellationToken,
    tail: Arc<Tail>,
}

/// Writes to a child, and stops it.
struct Writer {
    stdin: ChildStdin,
    group: Group,
    encoding: &'static Encoding,
    outbox: OutboxReceiver,
}

impl Child {
    /// Starts the process, and the task that reads its standard error.
    pub(super) fn start(
        launch: &Launch,
        watchdog: &Arc<Watchdog>,
        quota: Arc<LineQuota>,
    ) -> Result<(Self, Outbox), Failure> {
        let (group, streams) = launch.spawn(watchdog)?;
        let tail = Arc::new(Tail::default());
        tokio::spawn(stderr::drain(
            streams.stderr,
            launch.server.clone(),
            launch.secrets.clone(),
            tail.clone(),
            quota,
        ));
        let (outbox, receiver) = outbox::new();
        let child = Self {
            server: launch.server.clone(),
            lines: Lines::new(streams.stdout, launch.encoding),
            writer: Writer {
                stdin: streams.stdin,
                group,
                encoding: launch.encoding,
                outbox: receiver,
            },
            status: ChildStatus {
                ended: CancellationToken::new(),
                tail,
            },
        };
        Ok((child, outbox))
    }

    /// Starts the tasks that read and write for `peer`.
    pub(super) fn run(self, peer: &Arc<Peer>) -> ChildStatus {
        let Self {
            server,
            lines,
            writer,
            status,
        } = self;
        let ended = status.ended.clone();
        tokio::spawn(writer.run(ended.clone()));
        let peer = peer.clone();
        tokio::spawn(async move {
            let _ended = ended.drop_guard();
            tokio::select! {
                biased;
                () = peer.wait_for_end() => {}
                () = read(lines, &server, &peer) => peer.end(),
            }
        });
        status
    }
}

impl ChildStatus {
    /// Waits a moment for the end of a child that has stopped to read or to write. Whether it has ended.
    pub(super) async fn is_ending(&self) -> bool {
        timeout(END_TIMEOUT, self.ended.cancelled()).await.is_ok()
    }

    /// The last lines of the child's standard error, for the message of a failed start.
    pub(super) fn last_stderr_lines(&self) -> Option<String> {
        self.tail.join()
    }
}

impl Writer {
    /// Writes until the child ends or is to stop. Then closes its input, so that it can end by itself, and kills its whole
    /// process group.
    async fn run(mut self, ended: CancellationToken) {
        let stop = self.outbox.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = ended.cancelled() => {}
            () = self.write_all() => {}
        }
        drop(self.stdin);
        self.group.stop(&ended).await;
    }

    async fn write_all(&mut self) {
        while let Some(message) = self.outbox.next().await {
            let line = lines::encode_line(message.text(), self.encoding);
            if let Err(failure) = write(&mut self.stdin, &line).await {
                message.fail(failure);
            }
        }
    }
}

/// Writes one line. If the pipe accepted no byte of it, nothing was sent.
async fn write(stdin: &mut ChildStdin, line: &[u8]) -> Result<(), Failure> {
    let broken = || Failure::Lost("the server stopped while the request was written".to_owned());
    let mut written = 0;
    while written < line.len() {
        match stdin.write(&line[written..]).await {
            Ok(some) if some > 0 => written += some,
            _ if written == 0 => return Err(Failure::NotSent("the server has stopped".to_owned())),
            _ => return Err(broken()),
        }
    }
    stdin.flush().await.map_err(|_| broken())
}

/// Reads lines until the child ends or writes a line that is too long. Lines that are no messages, such as a banner, are
/// skipped.
async fn read(mut lines: Lines, server: &ServerId, peer: &Arc<Peer>) {
    let mut pace = ReadPace::new();
    loop {
        let line = match lines.next().await {
            Ok(Some(line)) => line,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%server, "{error}; its connection is closed");
                return peer.set_close_reason(error.to_string());
            }
        };
        let line = line.trim();
        if !line.is_empty() {
            peer.take_message(line, None);
        }
        if let Some(reason) = peer.overrun_reason() {
            return tracing::warn!(%server, "{reason}; its connection is closed");
        }
        pace.count(line.len().max(MIN_MESSAGE)).await;
    }
}
