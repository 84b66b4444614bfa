//! The open connections of clients, whose number has a maximum. When it is reached, a new connection takes the place of
//! the one that has waited longest for its client. So idle connections and half-sent requests keep no client out.

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

/// Connections that wait for their client, by a number that grows with time.
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

    /// Adds a new connection, which waits for its client. `None` when the maximum is reached and every connection has a
    /// request that is worked on.
    pub fn add(self: &Arc<Self>) -> Option<Arc<Socket>> {
        if self.open.load(Ordering::Relaxed) >= self.most {
            let (_, longest) = self.waiting().sockets.pop_first()?;
            longest.cancel();
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        let socket = Arc::new(Socket {
            sockets: Arc::clone(self),
            closed: CancellationToken::new(),
            waiting_number: Mutex::default(),
        });
        socket.start_waiting();
        Some(socket)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection of a client.
pub(super) struct Socket {
    sockets: Arc<Sockets>,
    /// Cancelled when the connection has to make room for a new one.
    pub closed: CancellationToken,
    /// The number of the connection among those that wait for their client.
    waiting_number: Mutex<Option<u64>>,
}

impl Socket {
    /// Marks that a request is worked on, until the returned value is dropped.
    pub fn begin_work(self: &Arc<Self>) -> Work {
        self.stop_waiting();
        Work(Arc::clone(self))
    }

    /// Marks that the service waits for the client in the middle of a request, until the returned value is dropped.
    pub fn begin_wait(self: &Arc<Self>) -> Wait {
        self.start_waiting();
        Wait(Arc::clone(self))
    }

    fn start_waiting(&self) {
        let mut waiting = self.sockets.waiting();
        let number = waiting.next;
        waiting.next += 1;
        waiting.sockets.insert(number, self.closed.clone());
        *self.number() = Some(number);
    }

    fn stop_waiting(&self) {
        let mut waiting = self.sockets.waiting();
        if let Some(number) = self.number().take() {
            waiting.sockets.remove(&number);
        }
    }

    fn number(&self) -> MutexGuard<'_, Option<u64>> {
        self.waiting_number
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.stop_waiting();
        self.sockets.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that is worked on. When it is dropped, the connection waits for the next request.
pub(super) struct Work(Arc<Socket>);

impl Work {
    /// Wraps the body of the answer, so that the work ends when the body was sent.
    pub fn until_sent(self, body: Body) -> Body {
        Body::new(WorkBody { body, _work: self })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.start_waiting();
    }
}

/// A wait for the client in the middle of a request.
pub(super) struct Wait(Arc<Socket>);

impl Drop for Wait {
    fn drop(&mut self) {
        self.0.stop_waiting();
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
