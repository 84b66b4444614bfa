//! One question of an OpenAI client and the run that answers it. The encoders of the protocols write the
//! result. When the client disconnects, its run is stopped, unless its key says `keep_running`. A client that
//! is likely to send the request again is given some time to do so.

use std::sync::Arc;

use http::StatusCode;

use super::{answer_text::AnswerText, limiter::Limiter};
use crate::{
    api::{limits, problem::Problem, request_key},
    app::{
        self, App,
        accounts::Caller,
        chat::{
            conversations::{ConversationEvent, ConversationStream},
            transcript::{self, ClientQuestion, PostedQuestion},
        },
        runs::repeats,
    },
    domain::{
        error::{Error, Result},
        event::EventKind,
        ids::ConversationId,
        message::Role,
        principal::Principal,
        run::{Run, RunStatus, Usage},
    },
};

/// One question and the run that answers it.
pub(super) struct Turn {
    app: Arc<App>,
    principal: Principal,
    question: ClientQuestion,
    conversation: ConversationId,
    run: Run,
    listening: ConversationStream,
    answer_text: AnswerText,
    limiter: Limiter,
    /// The text that was sent to the client.
    pub sent: String,
    /// The run has ended; the end of the answer was sent before that is said.
    ended: Option<RunStatus>,
    /// How often the request was sent again, if an earlier one began the run.
    repeats: Option<i32>,
    on_disconnect: OnDisconnect,
    _open: limits::Stream,
}

/// What happens to the run when the client disconnects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnDisconnect {
    KeepRunning,
    Stop,
    /// Unless the client sends the request again.
    StopLater,
}

pub(super) enum AnswerPart {
    Text(String),
    AnswerEnd(AnswerEnd),
}

/// How an answer has ended.
pub(super) struct AnswerEnd {
    pub usage: Usage,
    /// As OpenAI names it.
    pub reason: &'static str,
}

impl Turn {
    /// Posts the question where the transcript belongs, or finds the run that an earlier request began.
    pub async fn begin(
        app: &Arc<App>,
        caller: &Caller,
        question: ClientQuestion,
        limiter: Limiter,
        open: limits::Stream,
    ) -> Result<Self, Problem> {
        let principal = caller.principal.clone();
        let key = question.key.as_ref();
        let mut earlier = request_key::find_earlier(app, &principal, key).await?;
        let mut asked = None;
        if earlier.is_none() {
            asked = match transcript::resume(app, &principal, &question).await {
                Err(Error::Repeated) => {
                    earlier = request_key::find_earlier(app, &principal, key).await?;
                    None
                }
                asked => Some(asked?),
            };
        }
        let PostedQuestion {
            conversation,
            run,
            listening,
        } = match (
            asked,
            earlier.and_then(|begun| Some((begun.conversation, begun.run?))),
        ) {
            (Some(asked), _) => asked,
            (None, Some((conversation, run))) => {
                transcript::reopen_stream(app, &principal, conversation, run).await?
            }
            (None, None) => return Err(Error::Repeated.into()),
        };
        Ok(Self {
            app: app.clone(),
            principal,
            conversation,
            listening,
            answer_text: AnswerText::new(run.id, caller.chat.tool_calls),
            run,
            limiter,
            sent: String::new(),
            ended: None,
            repeats: earlier.map(|begun| begun.repeats),
            on_disconnect: if caller.chat.keep_running {
                OnDisconnect::KeepRunning
            } else {
                OnDisconnect::Stop
            },
            question,
            _open: open,
        })
    }

    pub fn conversation(&self) -> ConversationId {
        self.conversation
    }

    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Waits for the whole answer.
    pub async fn complete(&mut self) -> Result<AnswerEnd, Problem> {
        if self.on_disconnect == OnDisconnect::Stop && self.question.key.is_some() {
            self.on_disconnect = OnDisconnect::StopLater;
        }
        loop {
            if let AnswerPart::AnswerEnd(finished) = self.next().await? {
                return Ok(finished);
            }
        }
    }

    /// Waits for more of the answer or its end.
    pub async fn next(&mut self) -> Result<AnswerPart, Problem> {
        let news = self.listen().await;
        if !matches!(news, Ok(AnswerPart::Text(_))) {
            // The run has ended, or this process cannot stop it.
            self.on_disconnect = OnDisconnect::KeepRunning;
        }
        news
    }

    async fn listen(&mut self) -> Result<AnswerPart, Problem> {
        loop {
            if let Some(status) = self.ended {
                return self.end(status).await;
            }
            let Some(heard) = self.listening.next().await? else {
                let detail = format!(
                    "the service is stopping; the answer will be in conversation {} when it is back",
                    self.conversation
                );
                return Err(Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "stopping",
                    detail,
                ));
            };
            let mut text = self.answer_text.news(&heard);
            if let Some(status) = self.end_of(&heard) {
                self.ended = Some(status);
                text.push_str(&self.limiter.flush());
            } else if self.limiter.reason().is_none() {
                text.push_str(&self.limiter.pass(&self.answer_text.render_event(&heard)));
                if self.limiter.reason().is_some() {
                    self.stop().await?;
                }
            }
            if !text.is_empty() {
                self.sent.push_str(&text);
                return Ok(AnswerPart::Text(text));
            }
        }
    }

    fn end_of(&self, heard: &ConversationEvent) -> Option<RunStatus> {
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
    async fn stop(&self) -> Result<()> {
        match app::runs::cancel(&self.app, &self.principal, self.run.id).await {
            // It is over.
            Ok(_) | Err(Error::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn end(&mut self, status: RunStatus) -> Result<AnswerPart, Problem> {
        let cut = self.limiter.reason();
        if status == RunStatus::Succeeded || (status == RunStatus::Cancelled && cut.is_some()) {
            return Ok(AnswerPart::AnswerEnd(AnswerEnd {
                usage: self.remember().await?.usage,
                reason: cut.unwrap_or("stop"),
            }));
        }
        if status == RunStatus::Cancelled {
            return Err(Problem::new(
                StatusCode::CONFLICT,
                "run_cancelled",
                "the run was cancelled",
            ));
        }
        let run = app::runs::get(&self.app, &self.principal, self.run.id).await?;
        let detail = run.error.unwrap_or_else(|| "the run failed".to_owned());
        Err(Problem::new(StatusCode::BAD_GATEWAY, "run_failed", detail))
    }

    /// Stores the state before the client learns that the answer is complete, so that its next request finds
    /// this conversation. When this fails, the next request starts a new conversation with the client's
    /// transcript, so the answer is not withheld.
    async fn remember(&mut self) -> Result<Run> {
        self.question
            .transcript
            .push((Role::Assistant, self.sent.clone()));
        let last = self.listening.last();
        let answered = transcript::record_answer(
            &self.app,
            &self.principal,
            (self.conversation, self.run.id),
            &self.question,
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

impl Drop for Turn {
    fn drop(&mut self) {
        let later = match self.on_disconnect {
            OnDisconnect::KeepRunning => return,
            OnDisconnect::Stop => None,
            OnDisconnect::StopLater => Some(self.repeats.unwrap_or_default()),
        };
        repeats::stop_unless_repeated(&self.app, &self.principal, self.run.id, later);
    }
}
