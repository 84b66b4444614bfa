//! What happens to a run whose client leaves.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::{IntoResponse, Response},
};
use http_body::{Frame, SizeHint};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    api::problem::Problem,
    app::{
        App,
        accounts::Caller,
        runs::repeats::{self, AfterLeaving, LeftRun},
    },
    domain::{
        ids::{ConversationId, RunId},
        principal::Principal,
    },
};

/// What happens to the run when the client disconnects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::api) enum OnDisconnect {
    /// Nothing: the run has ended, or its client needs no connection to find the answer.
    Ignore,
    KeepRunning,
    Stop,
    /// Unless the client comes back.
    StopLater,
}

impl OnDisconnect {
    /// As the caller's key says.
    pub fn of(caller: &Caller) -> Self {
        if caller.chat.keep_running {
            Self::KeepRunning
        } else {
            Self::Stop
        }
    }
}

/// What is to be done when a client leaves.
pub(super) struct Leaving {
    pub app: Arc<App>,
    pub principal: Principal,
    pub conversation: ConversationId,
    pub run: RunId,
    pub on_disconnect: OnDisconnect,
    pub is_read: bool,
    /// How often the client came back before.
    pub repeats: i32,
}

impl Leaving {
    pub fn leave(&self) {
        let after = match self.on_disconnect {
            OnDisconnect::Ignore => return,
            OnDisconnect::KeepRunning => AfterLeaving::GoOn,
            OnDisconnect::Stop => AfterLeaving::Stop,
            OnDisconnect::StopLater => AfterLeaving::StopUnlessRepeated(self.repeats),
        };
        let left = LeftRun {
            conversation: self.conversation,
            run: self.run,
            is_read: self.is_read,
        };
        repeats::leave(&self.app, &self.principal, left, after);
    }

    fn arrive(&self) {
        repeats::arrive(&self.app, &self.principal, self.conversation, self.run);
    }
}

/// An answer on its way as a whole. A client that leaves before it has it may send its request again, so it is recorded
/// whether the answer was read to its end or dropped before.
pub(in crate::api) struct Delivery {
    underway: Option<Leaving>,
    /// Says that the client still waits.
    _served: Option<AbortOnDropHandle<()>>,
    /// Otherwise the end of the answer is recorded with the transcript, before it is sent.
    has_effects: Arc<AtomicBool>,
}

impl Delivery {
    /// Of a turn whose own end stops the run, if it is to be stopped.
    pub(super) fn of(
        leaving: Leaving,
        served: Option<AbortOnDropHandle<()>>,
        has_effects: Arc<AtomicBool>,
    ) -> Self {
        Self {
            underway: Some(Leaving {
                on_disconnect: OnDisconnect::KeepRunning,
                ..leaving
            }),
            _served: served,
            has_effects,
        }
    }

    /// Waits for the answer. A problem tells the client what to do, so it needs no record.
    pub async fn send<T: serde::Serialize>(
        mut self,
        answer: impl Future<Output = Result<T, Problem>>,
    ) -> Result<Response, Problem> {
        let answer = match answer.await {
            Ok(answer) => axum::Json(answer).into_response(),
            Err(problem) => {
                self.underway = None;
                return Err(problem);
            }
        };
        Ok(answer.map(|body| {
            Body::new(DeliveredBody {
                body,
                delivery: self,
            })
        }))
    }

    /// The client has read all of it.
    fn end(&mut self) {
        let underway = self.underway.take();
        if let Some(leaving) = underway.filter(|_| self.has_effects.load(Relaxed)) {
            leaving.arrive();
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(leaving) = self.underway.take() {
            leaving.leave();
        }
    }
}

/// A body that ends the delivery when it was read to its end.
struct DeliveredBody {
    body: Body,
    delivery: Delivery,
}

impl HttpBody for DeliveredBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if self.body.is_end_stream() {
            self.delivery.end();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
