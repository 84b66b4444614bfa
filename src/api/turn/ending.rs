//! The end of an answer: its status, and what the next request finds.

use std::sync::atomic::Ordering::Relaxed;

use http::StatusCode;

use super::{AnswerEnd, AnswerPart, Piece, Turn};
use crate::{
    api::{
        problem::{AnswerIds, Problem},
        request_key::{ANEW, KEPT},
    },
    app::{
        self,
        chat::{
            conversations::ConversationEvent,
            transcript::{self, Arrival},
        },
        runs::{
            OpenRequests,
            ending::{self, RunFailure},
            repeats,
        },
    },
    domain::{
        error::{Error, ErrorCode, Result},
        event::EventKind,
        message::{Role, called_tools},
        request_key::KeySource,
        run::{Run, RunStatus},
    },
};

impl Turn {
    pub(super) fn end_of(&self, heard: &ConversationEvent) -> Option<RunStatus> {
        let ConversationEvent::Durable(event) = heard else {
            return None;
        };
        match &event.kind {
            EventKind::Run { run_id, status, .. }
                if *run_id == self.run.id && status.is_final() =>
            {
                Some(*status)
            }
            _ => None,
        }
    }

    /// Whether the run has called tools with this.
    pub(super) fn calls_tools(&self, heard: &ConversationEvent) -> bool {
        let ConversationEvent::Durable(event) = heard else {
            return false;
        };
        match &event.kind {
            EventKind::Message(message) if message.run_id == Some(self.run.id) => {
                !called_tools(std::slice::from_ref(message)).is_empty()
            }
            _ => false,
        }
    }

    /// Stops the run: the client has all the text that it wants.
    pub(super) async fn stop(&self) -> Result<()> {
        match app::runs::cancel(
            &self.app,
            &self.principal,
            self.run.id,
            OpenRequests::TakeBack,
        )
        .await
        {
            // It is over.
            Ok(_) | Err(Error::Conflict(..)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn end(&mut self, status: RunStatus) -> Result<AnswerPart, Problem> {
        let cut = self.limiter.reason();
        let is_answered = status == RunStatus::Succeeded
            || (status == RunStatus::Cancelled && cut.is_some())
            || self.is_failure_told;
        if is_answered {
            let run = self.remember().await?;
            return Ok(AnswerPart::AnswerEnd(AnswerEnd {
                usage: run.usage,
                finished_at: run.finished_at,
                reason: cut.unwrap_or("stop"),
            }));
        }
        let failure = ending::failure(&self.app, &self.principal, self.run.id).await?;
        let is_told = self.is_streamed && !self.is_formatted && status == RunStatus::Failed;
        if is_told && !failure.called.is_empty() {
            return Ok(self.tell(failure));
        }
        Err(self.problem_of(status, failure))
    }

    /// Ends the text of a stream with why its run has failed. An error in its place would invite the client to send the
    /// request again, and the tools would be called again.
    fn tell(&mut self, failure: RunFailure) -> AnswerPart {
        self.is_failure_told = true;
        if !self.sent.is_empty() {
            self.add(Piece::Break, false);
        }
        self.add_text(failure.text);
        let first = self.ready.pop_front();
        AnswerPart::Piece(first.expect("a text that is not blank was added"))
    }

    /// How a run has ended that gave no answer. Many clients repeat a request by themselves that is answered with 408, 409,
    /// 429 or 5xx; none repeats one that is answered with 400.
    fn problem_of(&self, status: RunStatus, failure: RunFailure) -> Problem {
        let RunFailure {
            reason,
            called,
            retry_after,
            ..
        } = failure;
        let ids = self.ids(true);
        // Who reads an answer again, or as it comes, begins nothing by reading it.
        let awaits_whole = self.key.is_some() && !self.is_streamed;
        if awaits_whole && !called.is_empty() {
            let called = called.join(", ");
            let anew = if self.has_named_key() { KEPT } else { ANEW };
            let detail = format!(
                "the turn failed after it had called {called}: {reason}; what was called is not undone, and an equal \
                 request would call it again, so look at the run first; {anew}"
            );
            let code = ErrorCode::TurnFailedAfterCall;
            return Problem::new(StatusCode::BAD_REQUEST, code, detail).of_run(ids);
        }
        let (status, code) = match (status, retry_after) {
            (RunStatus::Cancelled, _) => (StatusCode::CONFLICT, ErrorCode::RunCancelled),
            (_, Some(_)) => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Busy),
            _ => (StatusCode::BAD_GATEWAY, ErrorCode::RunFailed),
        };
        let mut problem = Problem::new(status, code, reason).of_run(ids);
        if self.has_named_key() {
            problem.detail = format!("{}; {KEPT}", problem.detail);
        } else {
            // Nothing was sent to the model, so the same request can be sent again.
            problem.begun = retry_after.is_none();
        }
        problem.retry_after = retry_after;
        problem
    }

    /// The problem of a client that is left without the answer of a run that goes on. The same request finds the run again
    /// when it has a key; otherwise it would begin a second run beside the first.
    pub(super) async fn leave(&self, mut problem: Problem) -> Problem {
        let ids = self.ids(false);
        if self.key.is_none() || self.has_named_key() {
            problem.run = Some(ids);
            return problem;
        }
        let AnswerIds {
            conversation, run, ..
        } = ids;
        let left = repeats::leave_unanswered(&self.app, &self.principal, conversation, run).await;
        let is_repeated = problem.status.is_server_error()
            || [StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS].contains(&problem.status);
        // An equal request is refused for a while from here on. One that comes when the tools were called is not invited.
        let is_safe =
            problem.code == ErrorCode::Stopping && left.is_ok_and(|has_called| !has_called);
        if is_repeated && !is_safe {
            problem.status = StatusCode::BAD_REQUEST;
            problem.code = ErrorCode::AnswerPending;
            problem.retry_after = None;
            problem.detail = format!(
                "{}; run {run} goes on, and its answer will be in conversation {conversation}; {ANEW}",
                problem.detail
            );
        }
        problem.of_run(ids)
    }

    fn ids(&self, is_over: bool) -> AnswerIds {
        AnswerIds {
            conversation: self.conversation,
            run: self.run.id,
            is_over,
        }
    }

    /// Whether the client named the request, so that its answer is kept.
    fn has_named_key(&self) -> bool {
        self.key == Some(KeySource::Named)
    }

    /// Stores the state before the client learns that the answer is complete, so that its next request finds
    /// this conversation. When this fails, the next request starts a new conversation with the client's
    /// transcript, so the answer is not withheld.
    async fn remember(&mut self) -> Result<Run> {
        let Some(mut question) = self.question.take() else {
            return app::runs::get(&self.app, &self.principal, self.run.id).await;
        };
        question
            .transcript
            .push((Role::Assistant, self.sent.clone()));
        let last = self.listening.last();
        let answered = transcript::record_answer(
            &self.app,
            &self.principal,
            self.conversation,
            self.run.id,
            &question,
            transcript::DeliveredEvents {
                event: self.answer_text.last_reported(last),
                last,
                is_late: self.repeats.is_some(),
                arrival: if self.is_delivered_whole && self.has_effects.load(Relaxed) {
                    Arrival::Pending
                } else if self.ended == Some(RunStatus::Cancelled) || self.repeats.is_some() {
                    Arrival::CompleteAgain
                } else {
                    Arrival::Complete
                },
                is_cut: self.limiter.reason().is_some(),
            },
        );
        match answered.await {
            Ok(run) => Ok(run),
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::from(error));
                tracing::warn!(error, conversation = %self.conversation, "the client's transcript could not be remembered");
                app::runs::get(&self.app, &self.principal, self.run.id).await
            }
        }
    }
}
