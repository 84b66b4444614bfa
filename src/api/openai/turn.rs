//! One question of an OpenAI client and the run that answers it. The encoders of the protocols write what this says.
//!
//! A client that goes away stops its run, unless its key says `keep_running`. One that is likely to send the request
//! again is given some time to do so.

use std::sync::Arc;

use http::StatusCode;

use super::{limiter::Limiter, shown::Shown};
use crate::{
    api::{limits, problem::Problem, request_key},
    app::{
        self, App,
        accounts::Caller,
        chat::{
            conversations::{Heard, Listening},
            transcript::{self, Asked, Question},
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
    question: Question,
    conversation: ConversationId,
    run: Run,
    listening: Listening,
    shown: Shown,
    limiter: Limiter,
    /// What the client was sent.
    pub sent: String,
    /// The run has ended; the end of the answer was sent before that is said.
    ended: Option<RunStatus>,
    /// How often the request was sent again, if an earlier one began the run.
    repeats: Option<i32>,
    leaving: Leaving,
    _open: limits::Stream,
}

/// What becomes of the run when the client goes away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    KeepRunning,
    Stop,
    /// Unless the client sends the request again.
    StopLater,
}

pub(super) enum News {
    Text(String),
    Finished(Finished),
}

/// How an answer has ended.
pub(super) struct Finished {
    pub usage: Usage,
    /// As OpenAI names it.
    pub reason: &'static str,
}

impl Turn {
    /// Posts the question where the transcript belongs, or finds the run that an earlier request began.
    pub async fn begin(
        app: &Arc<App>,
        caller: &Caller,
        question: Question,
        limiter: Limiter,
        open: limits::Stream,
    ) -> Result<Self, Problem> {
        let principal = caller.principal.clone();
        let key = question.key.as_ref();
        let mut earlier = request_key::earlier(app, &principal, key).await?;
        let mut asked = None;
        if earlier.is_none() {
            asked = match transcript::resume(app, &principal, &question).await {
                Err(Error::Repeated) => {
                    earlier = request_key::earlier(app, &principal, key).await?;
                    None
                }
                asked => Some(asked?),
            };
        }
        let Asked {
            conversation,
            run,
            listening,
        } = match (
            asked,
            earlier.and_then(|begun| Some((begun.conversation, begun.run?))),
        ) {
            (Some(asked), _) => asked,
            (None, Some((conversation, run))) => {
                transcript::rejoin(app, &principal, conversation, run).await?
            }
            (None, None) => return Err(Error::Repeated.into()),
        };
        Ok(Self {
            app: app.clone(),
            principal,
            conversation,
            listening,
            shown: Shown::new(run.id, caller.chat.tool_calls),
            run,
            limiter,
            sent: String::new(),
            ended: None,
            repeats: earlier.map(|begun| begun.repeats),
            leaving: if caller.chat.keep_running {
                Leaving::KeepRunning
            } else {
                Leaving::Stop
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
    pub async fn complete(&mut self) -> Result<Finished, Problem> {
        if self.leaving == Leaving::Stop && self.question.key.is_some() {
            self.leaving = Leaving::StopLater;
        }
        loop {
            if let News::Finished(finished) = self.next().await? {
                return Ok(finished);
            }
        }
    }

    /// Waits for more of the answer or its end.
    pub async fn next(&mut self) -> Result<News, Problem> {
        let news = self.listen().await;
        if !matches!(news, Ok(News::Text(_))) {
            // There is nothing left to stop, or this process cannot do it.
            self.leaving = Leaving::KeepRunning;
        }
        news
    }

    async fn listen(&mut self) -> Result<News, Problem> {
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
            let mut text = self.shown.news(&heard);
            if let Some(status) = self.end_of(&heard) {
                self.ended = Some(status);
                text.push_str(&self.limiter.flush());
            } else if self.limiter.reason().is_none() {
                text.push_str(&self.limiter.pass(&self.shown.hear(&heard)));
                if self.limiter.reason().is_some() {
                    self.stop().await?;
                }
            }
            if !text.is_empty() {
                self.sent.push_str(&text);
                return Ok(News::Text(text));
            }
        }
    }

    fn end_of(&self, heard: &Heard) -> Option<RunStatus> {
        let Heard::Durable(event) = heard else {
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

    /// The client wants no more than it has.
    async fn stop(&self) -> Result<()> {
        match app::runs::cancel(&self.app, &self.principal, self.run.id).await {
            // It is over.
            Ok(_) | Err(Error::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn end(&mut self, status: RunStatus) -> Result<News, Problem> {
        let cut = self.limiter.reason();
        if status == RunStatus::Succeeded || (status == RunStatus::Cancelled && cut.is_some()) {
            return Ok(News::Finished(Finished {
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

    /// Before the client learns that it has the whole answer, so that its next request finds this
    /// conversation. Without it, that request starts a new one with what the client sends: no reason to
    /// withhold the answer.
    async fn remember(&mut self) -> Result<Run> {
        self.question
            .transcript
            .push((Role::Assistant, self.sent.clone()));
        let last = self.listening.last();
        let answered = transcript::answered(
            &self.app,
            &self.principal,
            (self.conversation, self.run.id),
            &self.question,
            transcript::Told {
                event: self.shown.told(last),
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
        let later = match self.leaving {
            Leaving::KeepRunning => return,
            Leaving::Stop => None,
            Leaving::StopLater => Some(self.repeats.unwrap_or_default()),
        };
        repeats::stop_unless_repeated(&self.app, &self.principal, self.run.id, later);
    }
}
