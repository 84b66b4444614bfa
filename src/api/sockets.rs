//! The open connections of clients. Their number has a maximum. When it is reached, the connection that has
//! waited longest for its client is closed for a new one, so idle and half-sent requests keep no client out.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use tokio_util::sync::CancellationToken;

pub(super) struct Sockets {
    most: usize,
    open: AtomicUsize,
    waiting: Mutex<Waiting>,
}

/// Connections that wait for their client, the longest first.
#[derive(Default)]
struct Waiting {
    next: u64,
    sockets: BTreeMap<u64, CancellationToken>,
}

impl Sockets {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            open: AtomicUsize::default(),
            waiting: Mutex::default(),
        })
    }

    /// Adds a new connection, which waits for its client. `None` when there are too many and all are at work.
    pub fn add(self: &Arc<Self>) -> Option<Arc<Socket>> {
        if self.open.load(Ordering::Relaxed) >= self.most {
            let (_, longest) = self.waiting().sockets.pop_first()?;
            longest.cancel();
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        let socket = Arc::new(Socket {
            sockets: Arc::clone(self),
            closed: CancellationToken::new(),
            waits: Mutex::default(),
        });
        socket.begin_to_wait();
        Some(socket)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection of a client.
pub(super) struct Socket {
    sockets: Arc<Sockets>,
    /// Cancelled when the connection has to make room.
    pub closed: CancellationToken,
    /// The number under which it waits for its client.
    waits: Mutex<Option<u64>>,
}

impl Socket {
    /// The service works on a request until the answer was handed over.
    pub fn work(self: &Arc<Self>) -> Work {
        self.end_wait();
        Work(Arc::clone(self))
    }

    /// Amid a request, the client is waited for until this is dropped.
    pub fn wait(self: &Arc<Self>) -> Wait {
        self.begin_to_wait();
        Wait(Arc::clone(self))
    }

    fn begin_to_wait(&self) {
        let mut waiting = self.sockets.waiting();
        let number = waiting.next;
        waiting.next += 1;
        waiting.sockets.insert(number, self.closed.clone());
        *self.number() = Some(number);
    }

    fn end_wait(&self) {
        let mut waiting = self.sockets.waiting();
        if let Some(number) = self.number().take() {
            waiting.sockets.remove(&number);
        }
    }

    fn number(&self) -> MutexGuard<'_, Option<u64>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.end_wait();
        self.sockets.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that is worked on; afterwards the connection waits for the next one.
pub(super) struct Work(Arc<Socket>);

impl Work {
    /// The same answer, which ends the work when it was handed over.
    pub fn until_sent(self, body: Body) -> Body {
        Body::new(WorkBody { body, _work: self })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.begin_to_wait();
    }
}

pub(super) struct Wait(Arc<Socket>);

impl Drop for Wait {
    fn drop(&mut self) {
        self.0.end_wait();
    }
}

struct WorkBody {
    body: Body,
    _work: Work,
}

impl http_body::Body for WorkBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
