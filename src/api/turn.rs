//! One question of a client that keeps its own transcript, and the run that answers it. The encoders of the protocols
//! write the result. When the client disconnects, its run is stopped, unless its key says `keep_running`. A client that
//! is likely to come back is given some time to do so.

mod answer_text;
mod ending;
mod leaving;
mod limiter;
mod parts;
mod pieces;
mod unread;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use http::StatusCode;
use time::OffsetDateTime;
use tokio_util::task::AbortOnDropHandle;

use self::{
    answer_text::AnswerText,
    leaving::{Delivery, Leaving},
};
pub(super) use self::{
    answer_text::{AnswerStyle, Piece},
    leaving::OnDisconnect,
    limiter::Limiter,
    unread::pieces_of,
};
use crate::{
    api::{limits, problem::Problem, request_key},
    app::{
        App,
        chat::{
            conversations::ConversationStream,
            transcript::{self, ClientQuestion, PostedQuestion},
        },
        runs::repeats,
    },
    domain::{
        error::{Error, ErrorCode, Result},
        ids::ConversationId,
        principal::Principal,
        request_key::{KeySource, RequestServer},
        run::{Run, RunKind, RunStatus, Usage},
    },
};

/// Equal requests that begin at the same moment.
const MOST_EQUAL: usize = 16;

/// One question and the run that answers it.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct Turn {
    app: Arc<App>,
    principal: Principal,
    /// What to remember when the answer has ended; absent when an earlier answer is read again.
    question: Option<ClientQuestion>,
    /// Where the key of the request comes from that began the run or asked for it again; absent when the answer is read.
    key: Option<KeySource>,
    conversation: ConversationId,
    run: Run,
    listening: ConversationStream,
    style: AnswerStyle,
    answer_text: AnswerText,
    limiter: Limiter,
    /// Pieces that were not taken yet.
    ready: VecDeque<Piece>,
    /// The text that was sent to the client.
    pub sent: String,
    /// The next text begins a paragraph of `sent`.
    is_apart: bool,
    /// The run has ended; the end of the answer was sent before that is said.
    ended: Option<RunStatus>,
    /// The client reads the answer as it comes.
    is_streamed: bool,
    /// The answer has a form, so that nothing but the answer is sent.
    is_formatted: bool,
    /// The answer is sent when it is complete.
    is_delivered_whole: bool,
    /// The run is a command or has called tools. Whoever lost its answer must not do it again without knowing, so
    /// [`Delivery`] records that the answer was read.
    has_effects: Arc<AtomicBool>,
    /// The answer ends with why the run has failed.
    is_failure_told: bool,
    /// How often the request was sent again, if an earlier one began the run.
    repeats: Option<i32>,
    on_disconnect: OnDisconnect,
    /// Says that the client still waits.
    served: Option<AbortOnDropHandle<()>>,
    _open: limits::Stream,
}

/// How a turn is answered.
pub(super) struct AnswerOptions {
    pub style: AnswerStyle,
    pub limiter: Limiter,
    pub on_disconnect: OnDisconnect,
    /// The client reads the answer as it comes.
    pub is_streamed: bool,
    /// The answer has a form that the client asked for.
    pub is_formatted: bool,
    pub open: limits::Stream,
}

pub(super) enum AnswerPart {
    Piece(Piece),
    AnswerEnd(AnswerEnd),
}

/// How an answer has ended.
#[derive(Clone, Copy)]
pub(super) struct AnswerEnd {
    pub usage: Usage,
    pub finished_at: Option<OffsetDateTime>,
    /// As OpenAI names it.
    pub reason: &'static str,
}

impl Turn {
    /// Posts the question where it belongs, or finds the run that an earlier request began.
    pub async fn begin(
        app: &Arc<App>,
        principal: &Principal,
        mut question: ClientQuestion,
        options: AnswerOptions,
    ) -> Result<Self, Problem> {
        if question.key.replaces() {
            question.key.server = Some(RequestServer {
                replica: app.replica,
                lease: app.config.run_lease,
            });
        }
        let mut earlier = None;
        // Other keys are looked up in the transaction that would use them.
        if question.key.replaces() && question.key.may_be_repeated() {
            question.key.replaced =
                request_key::refuse_repeated(app, principal, &question.key).await?;
            earlier = request_key::find_earlier(app, principal, Some(&question.key)).await?;
        }
        let mut asked = None;
        if earlier.is_none() {
            let mut begun = transcript::resume(app, principal, &question).await;
            // An equal request came first, and this one may begin beside it. There may be several at the same moment.
            for _ in 0..MOST_EQUAL {
                if !question.key.replaces() || !matches!(begun, Err(Error::Repeated)) {
                    break;
                }
                question.key.replaced =
                    request_key::refuse_repeated(app, principal, &question.key).await?;
                begun = transcript::resume(app, principal, &question).await;
            }
            asked = match begun {
                Ok(asked) => Some(asked),
                // A request that was answered is answered again, whatever has changed since.
                Err(error) => {
                    let key = Some(&question.key);
                    earlier = request_key::find_earlier(app, principal, key).await?;
                    if earlier.is_none() {
                        return Err(error.into());
                    }
                    None
                }
            };
        }
        let begun = earlier.and_then(|begun| Some((begun.conversation, begun.run?)));
        let posted = match (asked, begun) {
            (Some(asked), _) => asked,
            (None, Some((conversation, run))) => {
                transcript::reopen_stream(app, principal, conversation, run, None).await?
            }
            (None, None) => return Err(Error::Repeated.into()),
        };
        let mut turn = Self::listen_to(app, principal, posted, options);
        turn.key = Some(question.key.origin);
        turn.served = question.key.server.map(|server| {
            repeats::keep_served(app, principal, turn.conversation, turn.run.id, server)
        });
        turn.question = Some(question);
        turn.repeats = earlier.map(|begun| begun.repeats);
        Ok(turn)
    }

    /// Reads the answer to which the client of a chat has come back. `None` when it has ended.
    pub async fn come_back(
        app: &Arc<App>,
        principal: &Principal,
        chat: &str,
        options: AnswerOptions,
    ) -> Result<Option<Self>, Problem> {
        let open = transcript::resume_stream(app, principal, chat).await?;
        Ok(open.map(|(posted, repeats)| {
            let mut turn = Self::listen_to(app, principal, posted, options);
            turn.repeats = Some(repeats);
            turn
        }))
    }

    /// Reads the answer of a run, whose question was posted before.
    pub fn listen_to(
        app: &Arc<App>,
        principal: &Principal,
        posted: PostedQuestion,
        options: AnswerOptions,
    ) -> Self {
        Self {
            app: app.clone(),
            principal: principal.clone(),
            question: None,
            key: None,
            conversation: posted.conversation,
            listening: posted.listening,
            style: options.style,
            answer_text: AnswerText::new(posted.run.id, options.style, options.is_formatted),
            has_effects: Arc::new((posted.run.kind == RunKind::Command).into()),
            run: posted.run,
            limiter: options.limiter,
            ready: VecDeque::new(),
            sent: String::new(),
            is_apart: false,
            ended: None,
            is_streamed: options.is_streamed,
            is_formatted: options.is_formatted,
            is_delivered_whole: false,
            is_failure_told: false,
            repeats: None,
            on_disconnect: options.on_disconnect,
            served: None,
            _open: options.open,
        }
    }

    pub fn conversation(&self) -> ConversationId {
        self.conversation
    }

    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Logs the cause of a problem that a stream tells its client.
    fn log(&self, problem: &Problem) {
        if let Some(cause) = &problem.cause {
            tracing::error!(error = format!("{cause:#}"), run = %self.run.id, "a streamed answer broke");
        }
    }

    /// What records whether the client got the whole answer.
    pub fn delivery(&mut self) -> Delivery {
        self.is_delivered_whole = true;
        let served = self.served.take();
        Delivery::of(self.leaving(), served, self.has_effects.clone())
    }

    fn leaving(&self) -> Leaving {
        Leaving {
            app: self.app.clone(),
            principal: self.principal.clone(),
            conversation: self.conversation,
            run: self.run.id,
            on_disconnect: self.on_disconnect,
            is_read: self.is_streamed && !self.sent.is_empty(),
            repeats: self.repeats.unwrap_or_default(),
        }
    }

    /// The client waits for the whole answer, so it may send the request again when it loses its connection.
    pub fn expect_retry(&mut self) {
        let question = self.question.as_ref();
        let may_come_back = question.is_some_and(|asked| asked.key.may_come_back());
        if self.on_disconnect == OnDisconnect::Stop && may_come_back {
            self.on_disconnect = OnDisconnect::StopLater;
        }
    }

    /// Waits for the whole answer.
    pub async fn complete(&mut self) -> Result<AnswerEnd, Problem> {
        self.expect_retry();
        loop {
            if let AnswerPart::AnswerEnd(finished) = self.next().await? {
                return Ok(finished);
            }
        }
    }

    /// Waits for more of the answer or its end.
    async fn next(&mut self) -> Result<AnswerPart, Problem> {
        let news = self.listen().await;
        if !matches!(news, Ok(AnswerPart::Piece(_))) {
            // The run has ended, or this process cannot stop it.
            self.on_disconnect = OnDisconnect::Ignore;
        }
        match news {
            Err(problem) if problem.run.is_none() => Err(self.leave(problem).await),
            news => news,
        }
    }

    async fn listen(&mut self) -> Result<AnswerPart, Problem> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(AnswerPart::Piece(piece));
            }
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
                    ErrorCode::Stopping,
                    detail,
                ));
            };
            if self.calls_tools(&heard) {
                self.has_effects.store(true, Relaxed);
            }
            for piece in self.answer_text.news(&heard) {
                self.add(piece, false);
            }
            if let Some(status) = self.end_of(&heard) {
                self.ended = Some(status);
                let held = self.limiter.flush();
                self.add_text(held);
            } else if self.limiter.reason().is_none() {
                for piece in self.answer_text.render_event(&heard) {
                    self.add(piece, true);
                }
                // Who reads an earlier answer again changes nothing.
                if self.limiter.reason().is_some() && self.question.is_some() {
                    self.stop().await?;
                }
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.leaving().leave();
    }
}
