//! The answer as a stream, which a client may leave and come back to.

use futures_util::{Stream, stream};
use tokio::sync::mpsc;

use super::{AnswerPart, Turn, leaving::OnDisconnect};
use crate::{api::problem::Problem, domain::error::Result};

impl Turn {
    /// The pieces of the answer and its end, or what went wrong.
    pub fn into_parts(self) -> impl Stream<Item = Result<AnswerPart, Problem>> + Send {
        stream::unfold(Some(self), async |turn| {
            let mut turn = turn?;
            let part = turn.next().await;
            match &part {
                Ok(AnswerPart::Piece(_)) => return Some((part, Some(turn))),
                Ok(AnswerPart::AnswerEnd(_)) => {}
                Err(problem) => turn.log(problem),
            }
            Some((part, None))
        })
    }

    /// The same for a client that may come back to the answer by the id of its chat. The answer is read to its end
    /// when the client leaves, so that the next question finds the conversation.
    pub fn into_resumable_parts(
        mut self,
    ) -> impl Stream<Item = Result<AnswerPart, Problem>> + Send {
        let (sender, receiver) = mpsc::channel(1);
        let tasks = self.app.tasks.clone();
        let leaving = self.leaving();
        self.on_disconnect = OnDisconnect::KeepRunning;
        tasks.spawn(async move {
            let mut is_gone = false;
            loop {
                let part = {
                    let mut next = std::pin::pin!(self.next());
                    loop {
                        tokio::select! {
                            part = &mut next => break part,
                            () = sender.closed(), if !is_gone => {
                                is_gone = true;
                                leaving.stop();
                            }
                        }
                    }
                };
                if let Err(problem) = &part {
                    self.log(problem);
                }
                let is_last = !matches!(part, Ok(AnswerPart::Piece(_)));
                // A client that has left is noticed above.
                let _ = sender.send(part).await;
                if is_last {
                    return;
                }
            }
        });
        stream::unfold(receiver, async |mut receiver| {
            let part = receiver.recv().await?;
            Some((part, receiver))
        })
    }
}
