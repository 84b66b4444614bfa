//! The messages that wait for the one task which writes to a child process or a WebSocket. A caller who leaves in the
//! middle of a write leaves half a message otherwise.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{error::Failure, peer::OpenServerRequest, request::OpenRequest};

/// The most messages that wait. Further senders wait, too.
const MAX_WAITING: usize = 256;

/// A message that is to be written, in JSON.
pub(super) enum Outgoing {
    Request {
        text: String,
        open: Arc<OpenRequest>,
    },
    /// The request of the server counts as open until the reply is written.
    Reply {
        text: String,
        _request: OpenServerRequest,
    },
    Message(String),
}

/// The sending side. The task stops when it is dropped.
pub(super) struct Outbox {
    sender: mpsc::Sender<Outgoing>,
    stop: CancellationToken,
    stopped: CancellationToken,
}

/// The side of the task that writes.
pub(super) struct OutboxReceiver {
    receiver: mpsc::Receiver<Outgoing>,
    pub(super) stop: CancellationToken,
    /// Cancelled when this is dropped.
    stopped: CancellationToken,
}

impl Drop for OutboxReceiver {
    fn drop(&mut self) {
        self.stopped.cancel();
    }
}

pub(super) fn new() -> (Outbox, OutboxReceiver) {
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    let (stop, stopped) = (CancellationToken::new(), CancellationToken::new());
    let outbox = Outbox {
        sender,
        stop: stop.clone(),
        stopped: stopped.clone(),
    };
    let receiver = OutboxReceiver {
        receiver,
        stop,
        stopped,
    };
    (outbox, receiver)
}

impl Outbox {
    /// Hands a message over. The failure of a request to be written becomes its answer.
    pub(super) async fn send(&self, message: Outgoing) -> Result<(), Failure> {
        let sent = self.sender.send(message).await;
        sent.map_err(|_| Failure::NotSent("the server was stopped".to_owned()))
    }

    /// Asks the task to stop, and waits until it has.
    pub(super) async fn stop(&self) {
        self.stop.cancel();
        self.stopped.cancelled().await;
    }
}

impl OutboxReceiver {
    /// The next message that somebody still wants to be written; `None` when there will be none. A request counts as sent
    /// from now on.
    pub(super) async fn next(&mut self) -> Option<Outgoing> {
        loop {
            let message = self.receiver.recv().await?;
            match &message {
                Outgoing::Request { open, .. } if !open.mark_sent() => {}
                _ => return Some(message),
            }
        }
    }
}

impl Outgoing {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Request { text, .. } | Self::Reply { text, .. } | Self::Message(text) => text,
        }
    }

    /// Records that the message could not be written.
    pub(super) fn fail(&self, failure: Failure) {
        if let Self::Request { open, .. } = self {
            open.settle(Err(failure));
        }
    }
}
