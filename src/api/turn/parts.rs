//! The answer as a stream, which a client may leave and come back to.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::{Stream, future::BoxFuture, stream};

use super::{
    AnswerPart, Turn,
    leaving::{Leaving, OnDisconnect},
};
use crate::{api::problem::Problem, domain::error::Result};

/// A part of an answer, and what is left of the answer after it.
type PartAndRest = (Result<AnswerPart, Problem>, Option<Box<Turn>>);

impl Turn {
    /// The pieces of the answer and its end, or what went wrong.
    pub fn into_parts(self) -> impl Stream<Item = Result<AnswerPart, Problem>> + Send {
        stream::unfold(Some(Box::new(self)), async |turn| {
            Some(turn?.next_and_rest().await)
        })
    }

    /// The same for a client that may come back to the answer by the id of its chat. The answer is read to its end
    /// when the client leaves, so that the next question finds the conversation.
    pub fn into_resumable_parts(
        mut self,
    ) -> impl Stream<Item = Result<AnswerPart, Problem>> + Send {
        let leaving = self.leaving();
        self.on_disconnect = OnDisconnect::Ignore;
        ResumableParts {
            next: Some(Box::pin(Box::new(self).next_and_rest())),
            leaving,
        }
    }

    /// The next part, and what is left of the answer after it.
    async fn next_and_rest(mut self: Box<Self>) -> PartAndRest {
        let part = self.next().await;
        if let Err(problem) = &part {
            self.log(problem);
        }
        let is_piece = matches!(part, Ok(AnswerPart::Piece(_)));
        (part, is_piece.then_some(self))
    }
}

struct ResumableParts {
    /// The next part; `None` after the last one.
    next: Option<BoxFuture<'static, PartAndRest>>,
    leaving: Leaving,
}

impl Stream for ResumableParts {
    type Item = Result<AnswerPart, Problem>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(next) = &mut self.next else {
            return Poll::Ready(None);
        };
        let (part, rest) = ready!(next.as_mut().poll(context));
        self.next = rest.map(|turn| Box::pin(turn.next_and_rest()) as _);
        Poll::Ready(Some(part))
    }
}

impl Drop for ResumableParts {
    fn drop(&mut self) {
        let Some(mut next) = self.next.take() else {
            return;
        };
        self.leaving.leave();
        self.leaving.app.tasks.spawn(async move {
            while let (_, Some(turn)) = next.await {
                next = Box::pin(turn.next_and_rest());
            }
        });
    }
}
