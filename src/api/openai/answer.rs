//! One question of an OpenAI client and the run that answers it, whole or as a stream of chunks.

use std::sync::Arc;

use axum::response::{Response, sse::Event};
use futures_util::{StreamExt, stream};
use http::StatusCode;

use super::{
    shown::Shown,
    wire::{Completion, Delta, Head},
};
use crate::{
    api::{events, limits, problem::Problem},
    app::{
        self, App,
        accounts::Caller,
        chat::{
            conversations::{Heard, Listening},
            transcript::{self, Transcript},
        },
    },
    domain::{
        error::Result,
        event::EventKind,
        ids::{ConversationId, RunId},
        message::Role,
        principal::Principal,
        run::{Run, RunStatus, Usage},
    },
};

/// One question and the run that answers it.
pub(super) struct Turn {
    app: Arc<App>,
    principal: Principal,
    /// The frontend's own id of the chat.
    chat: Option<String>,
    conversation: ConversationId,
    run: RunId,
    listening: Listening,
    transcript: Transcript,
    shown: Shown,
    head: Head,
    _open: limits::Stream,
}

enum News {
    Text(String),
    Finished(Usage),
}

impl Turn {
    /// Posts the question where the transcript belongs.
    pub async fn begin(
        app: &Arc<App>,
        caller: &Caller,
        model: &str,
        transcript: Transcript,
        open: limits::Stream,
    ) -> Result<Self> {
        let (principal, chat) = (caller.principal.clone(), caller.conversation_key.clone());
        let resumed =
            transcript::resume(app, &principal, model, chat.as_deref(), transcript.clone()).await?;
        let (conversation, posted, listening) = resumed;
        Ok(Self {
            app: app.clone(),
            principal,
            chat,
            conversation: conversation.id,
            run: posted.run.id,
            listening,
            transcript,
            shown: Shown::default(),
            head: Head::new(&posted.run, model),
            _open: open,
        })
    }

    pub fn conversation(&self) -> ConversationId {
        self.conversation
    }

    pub fn run(&self) -> RunId {
        self.run
    }

    /// Waits for the whole answer.
    pub async fn complete(mut self) -> Result<Completion, Problem> {
        loop {
            if let News::Finished(usage) = self.next().await? {
                return Ok(self.head.completion(self.shown.text, usage));
            }
        }
    }

    /// The answer as chunks. An error after the start is a chunk of its own and ends the stream without
    /// `[DONE]`, as clients expect.
    pub fn stream(self, with_usage: bool) -> Response {
        let role = Delta {
            role: Some("assistant"),
            content: Some(""),
        };
        let first = data(&self.head.chunk(role, false));
        let rest = stream::unfold(Some(self), move |turn: Option<Self>| async move {
            let mut turn = turn?;
            let (chunks, turn) = match turn.next().await {
                Ok(News::Text(text)) => {
                    let delta = Delta {
                        role: None,
                        content: Some(&text),
                    };
                    (vec![data(&turn.head.chunk(delta, false))], Some(turn))
                }
                Ok(News::Finished(usage)) => (turn.ending(with_usage.then_some(usage)), None),
                Err(problem) => {
                    if let Some(cause) = &problem.cause {
                        tracing::error!(error = format!("{cause:#}"), run = %turn.run, "a streamed answer broke");
                    }
                    (vec![data(&problem.openai())], None)
                }
            };
            Some((stream::iter(chunks), turn))
        });
        events::answer(stream::iter([first]).chain(rest.flatten()))
    }

    fn ending(&self, usage: Option<Usage>) -> Vec<Event> {
        let mut chunks = vec![data(&self.head.chunk(Delta::default(), true))];
        chunks.extend(usage.map(|usage| data(&self.head.usage(usage))));
        chunks.push(Event::default().data("[DONE]"));
        chunks
    }

    /// Waits for more of the answer or its end.
    async fn next(&mut self) -> Result<News, Problem> {
        loop {
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
            if let Some(status) = self.ended(&heard) {
                return self.end(status).await;
            }
            let text = self.shown.hear(self.run, &heard);
            if !text.is_empty() {
                return Ok(News::Text(text));
            }
        }
    }

    fn ended(&self, heard: &Heard) -> Option<RunStatus> {
        let Heard::Durable(event) = heard else {
            return None;
        };
        match &event.kind {
            EventKind::Run { run_id, status, .. } if *run_id == self.run && status.is_final() => {
                Some(*status)
            }
            _ => None,
        }
    }

    async fn end(&mut self, status: RunStatus) -> Result<News, Problem> {
        if status == RunStatus::Succeeded {
            return Ok(News::Finished(self.remember().await?.usage));
        }
        if status == RunStatus::Cancelled {
            return Err(Problem::new(
                StatusCode::CONFLICT,
                "run_cancelled",
                "the run was cancelled",
            ));
        }
        let run = app::runs::get(&self.app, &self.principal, self.run).await?;
        let detail = run.error.unwrap_or_else(|| "the run failed".to_owned());
        Err(Problem::new(StatusCode::BAD_GATEWAY, "run_failed", detail))
    }

    /// Before the client learns that it has the whole answer, so that its next request finds this
    /// conversation. Without it, that request starts a new one with what the client sends: no reason to
    /// withhold the answer.
    async fn remember(&mut self) -> Result<Run> {
        self.transcript
            .push((Role::Assistant, self.shown.text.clone()));
        let answered = transcript::answered(
            &self.app,
            &self.principal,
            (self.conversation, self.run),
            self.chat.as_deref(),
            &self.transcript,
        );
        match answered.await {
            Ok(run) => Ok(run),
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::from(error));
                tracing::warn!(error, conversation = %self.conversation, "the client's transcript could not be remembered");
                app::runs::get(&self.app, &self.principal, self.run).await
            }
        }
    }
}

fn data(chunk: &impl serde::Serialize) -> Event {
    Event::default()
        .json_data(chunk)
        .expect("chunks are plain data that can be written")
}
