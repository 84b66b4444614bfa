//! The end of an answer: its status, and what the next request finds.

use http::StatusCode;

use super::{AnswerEnd, AnswerPart, Turn};
use crate::{
    api::problem::Problem,
    app::{
        self,
        chat::{conversations::ConversationEvent, transcript},
        runs::OpenRequests,
    },
    domain::{
        error::{Error, ErrorCode, Result},
        event::EventKind,
        message::Role,
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
        if status == RunStatus::Succeeded || (status == RunStatus::Cancelled && cut.is_some()) {
            let run = self.remember().await?;
            return Ok(AnswerPart::AnswerEnd(AnswerEnd {
                usage: run.usage,
                finished_at: run.finished_at,
                reason: cut.unwrap_or("stop"),
            }));
        }
        if status == RunStatus::Cancelled {
            return Err(Problem::new(
                StatusCode::CONFLICT,
                ErrorCode::RunCancelled,
                "the run was cancelled",
            ));
        }
        let run = app::runs::get(&self.app, &self.principal, self.run.id).await?;
        let detail = run.error.unwrap_or_else(|| "the run failed".to_owned());
        Err(Problem::new(
            StatusCode::BAD_GATEWAY,
            ErrorCode::RunFailed,
            detail,
        ))
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
            (self.conversation, self.run.id),
            &question,
            transcript::DeliveredEvents {
                event: self.answer_text.last_reported(last),
                last,
                is_late: self.repeats.is_some(),
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
