//! A turn: one question of a client that keeps its own transcript, and the run that answers it. The encoders of the
//! protocols write the answer.
//!
//! When the client disconnects, its run is stopped, unless its key has the setting `keep_running`. A client that is
//! likely to come back has some time to do so.
//!
//! In order: the turn and how it begins, its pieces, the stream of its parts, its end, and the disconnection of its
//! client.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::{IntoResponse, Response},
};
use futures_util::{Stream, future::BoxFuture, stream};
use http::StatusCode;
use http_body::{Frame, SizeHint};
use time::OffsetDateTime;
use tokio_util::task::AbortOnDropHandle;

use super::answer_text::{AnswerStyle, AnswerText, Limiter, Piece};
use super::{
    limits,
    problem::{AnswerIds, Problem},
    request_key::{self, ANEW, KEPT},
};
use crate::app::{
    self, App,
    accounts::Caller,
    chat::{
        conversations::{ConversationEvent, ConversationStream},
        transcript::{self, Arrival, ClientQuestion, PostedQuestion},
    },
    runs::{
        OpenRequests,
        ending::{self, RunFailure},
        repeats::{self, AfterLeaving, LeftRun},
    },
};
use domain::{
    clock,
    error::{Error, ErrorCode, Result},
    event::EventKind,
    ids::{ConversationId, RunId},
    message::{Role, called_tools},
    principal::Principal,
    request_key::{KeySource, RequestServer},
    run::{Run, RunKind, RunStatus, Usage},
};

/// The client of a streamed answer counts as having read a part of it after this time. If the connection breaks sooner,
/// the answer may have been lost on the way: a client that repeats by itself then repeats.
const READ_AFTER: Duration = Duration::from_secs(1);
/// An answer that takes longer counts as lost: a proxy reads the whole answer, although the client behind it may have
/// given up and may be about to repeat its request.
const PATIENCE: Duration = Duration::from_secs(20);
/// The most equal requests that may begin at the same moment.
const MOST_EQUAL: usize = 16;

/// One question and the run that answers it.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct Turn {
    app: Arc<App>,
    principal: Principal,
    /// The question, which is recorded when the answer has ended. Absent when an earlier answer is read again.
    question: Option<ClientQuestion>,
    /// The kind of the key of the request that began the run or was repeated. Absent when an earlier answer is read.
    key: Option<KeySource>,
    conversation: ConversationId,
    run: Run,
    listening: ConversationStream,
    style: AnswerStyle,
    answer_text: AnswerText,
    limiter: Limiter,
    /// The pieces that the client can have now.
    ready: VecDeque<Piece>,
    /// The text that was sent to the client.
    pub sent: String,
    /// When the first text was sent.
    readable_since: Option<Instant>,
    /// Whether the next text begins a paragraph of `sent`.
    begins_paragraph: bool,
    /// The final status of the run, when it has ended. The ready pieces are sent before the end.
    ended: Option<RunStatus>,
    /// Whether the client reads the answer as it comes.
    is_streamed: bool,
    /// Whether the answer has a format, so that nothing but the answer is sent.
    is_formatted: bool,
    /// Whether the answer is sent when it is complete.
    is_delivered_whole: bool,
    /// Whether the run is a command or has called tools. A person who lost its answer must not repeat it unknowingly,
    /// so [`Delivery`] records that the answer was read.
    has_effects: Arc<AtomicBool>,
    /// Why the run has failed, when the text of the answer has said so.
    told_failure: Option<RunFailure>,
    /// How often the request was sent again. 0 if this request began the run.
    repeats: i32,
    on_disconnect: OnDisconnect,
    /// Records that the client still waits, until it is dropped.
    served: Option<AbortOnDropHandle<()>>,
    _open: limits::Stream,
}

/// How the client of a turn is answered.
pub(super) struct AnswerOptions {
    pub style: AnswerStyle,
    pub limiter: Limiter,
    pub on_disconnect: OnDisconnect,
    /// Whether the client reads the answer as it comes.
    pub is_streamed: bool,
    /// Whether the answer has a format that the client asked for.
    pub is_formatted: bool,
    pub open: limits::Stream,
}

/// A part of an answer: a piece, or its end.
pub(super) enum AnswerPart {
    Piece(Piece),
    AnswerEnd(AnswerEnd),
}

/// The end of an answer.
#[derive(Clone, Copy)]
pub(super) struct AnswerEnd {
    pub usage: Usage,
    pub finished_at: Option<OffsetDateTime>,
    /// Why the answer has ended, as OpenAI names it: `stop` or `length`.
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
        if question.key.takes_over() {
            question.key.server = Some(RequestServer {
                replica: app.replica,
                lease: app.config.run_lease,
            });
        }
        let mut earlier = None;
        // A repeated attempt joins the run of the earlier one. All others try to begin a run, whose transaction finds
        // out whether the key is taken.
        if question.key.takes_over() && question.key.joins_earlier_run() {
            question.key.replaced =
                request_key::settle_equal_request(app, principal, &question.key).await?;
            earlier = request_key::join_earlier(app, principal, Some(&question.key)).await?;
        }
        let mut posted = None;
        if earlier.is_none() {
            let mut begun = transcript::ask(app, principal, &question).await;
            // Equal requests may begin at the same moment, and this one may begin beside those that came first.
            for _ in 0..MOST_EQUAL {
                if !question.key.takes_over() || !matches!(begun, Err(Error::Repeated)) {
                    break;
                }
                question.key.replaced =
                    request_key::settle_equal_request(app, principal, &question.key).await?;
                begun = transcript::ask(app, principal, &question).await;
            }
            posted = match begun {
                Ok(posted) => Some(posted),
                // A repeated request gets the same answer, although the question could not be posted any more.
                Err(error) => {
                    let key = Some(&question.key);
                    earlier = request_key::join_earlier(app, principal, key).await?;
                    if earlier.is_none() {
                        return Err(error.into());
                    }
                    None
                }
            };
        }
        let begun = earlier.and_then(|begun| Some((begun.conversation, begun.run?)));
        let posted = match (posted, begun) {
            (Some(posted), _) => posted,
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
        turn.repeats = earlier.map_or(0, |begun| begun.repeats);
        Ok(turn)
    }

    /// Reads the answer of a chat whose client has come back. `None` when the answer has ended.
    pub async fn rejoin(
        app: &Arc<App>,
        principal: &Principal,
        chat: &str,
        options: AnswerOptions,
    ) -> Result<Option<Self>, Problem> {
        let open = transcript::resume_stream(app, principal, chat).await?;
        Ok(open.map(|(posted, repeats)| {
            let mut turn = Self::listen_to(app, principal, posted, options);
            turn.repeats = repeats;
            turn
        }))
    }

    /// Reads the answer of a run whose question was posted before.
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
            readable_since: None,
            begins_paragraph: false,
            ended: None,
            is_streamed: options.is_streamed,
            is_formatted: options.is_formatted,
            is_delivered_whole: false,
            told_failure: None,
            repeats: 0,
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

    /// Logs the cause of a problem that a stream sends to its client.
    fn log(&self, problem: &Problem) {
        if let Some(cause) = &problem.cause {
            tracing::error!(error = format!("{cause:#}"), run = %self.run.id, "a streamed answer broke");
        }
    }

    /// Begins the delivery of the answer as a whole, which records whether the client got it.
    pub fn delivery(&mut self) -> Delivery {
        self.is_delivered_whole = true;
        let served = self.served.take();
        Delivery::new(self.disconnection(), served, self.has_effects.clone())
    }

    /// What must be done if the client disconnects now.
    fn disconnection(&self) -> Disconnection {
        Disconnection {
            app: self.app.clone(),
            principal: self.principal.clone(),
            conversation: self.conversation,
            run: self.run.id,
            on_disconnect: self.on_disconnect,
            is_read: self.is_streamed
                && self
                    .readable_since
                    .is_some_and(|since| since.elapsed() >= READ_AFTER),
            repeats: self.repeats,
        }
    }

    /// Expects that the client, which waits for the whole answer, sends the request again when it loses its connection.
    pub fn expect_retry(&mut self) {
        let question = self.question.as_ref();
        let may_come_back = question.is_some_and(|question| question.key.may_come_back());
        if self.on_disconnect == OnDisconnect::Stop && may_come_back {
            self.on_disconnect = OnDisconnect::StopLater;
        }
    }

    /// Waits for the whole answer.
    pub async fn complete(&mut self) -> Result<AnswerEnd, Problem> {
        self.expect_retry();
        let repeats = self.key.is_some();
        let _waiting = repeats.then(|| self.app.repeating_clients.add(self.run.id));
        loop {
            if let AnswerPart::AnswerEnd(finished) = self.next().await? {
                return Ok(finished);
            }
        }
    }

    /// Waits for the next part of the answer.
    async fn next(&mut self) -> Result<AnswerPart, Problem> {
        let part = self.read_next().await;
        if !matches!(part, Ok(AnswerPart::Piece(_))) {
            // The run has ended, or this process cannot stop it any more.
            self.on_disconnect = OnDisconnect::Ignore;
        }
        match part {
            Err(problem) if problem.run.is_none() => Err(self.problem_while_running(problem).await),
            part => part,
        }
    }

    async fn read_next(&mut self) -> Result<AnswerPart, Problem> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(AnswerPart::Piece(piece));
            }
            if let Some(status) = self.ended {
                return self.end(status).await;
            }
            let Some(event) = self.listening.next().await? else {
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
            if self.calls_tools(&event) {
                self.has_effects.store(true, Relaxed);
            }
            for piece in self.answer_text.render_report(&event) {
                self.add(piece, false);
            }
            if let Some(status) = self.final_status(&event) {
                self.ended = Some(status);
                let rest = self.limiter.flush();
                self.add_text(rest);
            } else if self.limiter.reason().is_none() {
                for piece in self.answer_text.render_run_event(&event) {
                    self.add(piece, true);
                }
                // Reading an earlier answer again must not stop its run.
                if self.limiter.reason().is_some() && self.question.is_some() {
                    self.stop().await?;
                }
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.disconnection().handle();
    }
}

impl Turn {
    /// Adds a piece to those that are ready. With `is_limited`, the limits of the client hold for its text.
    fn add(&mut self, piece: Piece, is_limited: bool) {
        let text = match (piece, self.style) {
            (Piece::Text(text), _) => text,
            (Piece::Break, AnswerStyle::Text(_)) => "\n\n".to_owned(),
            (_, AnswerStyle::Text(_)) => return,
            (piece, AnswerStyle::Typed) => return self.add_typed(piece, is_limited),
        };
        let text = if is_limited {
            self.limiter.pass(&text)
        } else {
            text
        };
        self.add_text(text);
    }

    fn add_typed(&mut self, piece: Piece, is_limited: bool) {
        if is_limited {
            // A text ends here, so the held text is not the beginning of a stop text.
            let rest = self.limiter.flush();
            self.add_text(rest);
            if self.limiter.reason().is_some() {
                return;
            }
        }
        if matches!(piece, Piece::Break | Piece::Reset) {
            self.begins_paragraph = !self.sent.is_empty();
        }
        self.ready.push_back(piece);
    }

    fn add_text(&mut self, text: String) {
        if text.is_empty() {
            return;
        }
        if std::mem::take(&mut self.begins_paragraph) {
            self.sent.push_str("\n\n");
        }
        self.sent.push_str(&text);
        self.readable_since.get_or_insert_with(clock::instant);
        match self.ready.back_mut() {
            Some(Piece::Text(last)) => last.push_str(&text),
            _ => self.ready.push_back(Piece::Text(text)),
        }
    }
}

/// A part of an answer, and the turn that has the rest; `None` after the last part.
type PartAndRest = (Result<AnswerPart, Problem>, Option<Box<Turn>>);

impl Turn {
    /// The parts of the answer as a stream. A problem ends it.
    pub fn into_parts(self) -> impl Stream<Item = Result<AnswerPart, Problem>> + Send {
        stream::unfold(Some(Box::new(self)), async |turn| {
            Some(turn?.next_and_rest().await)
        })
    }

    /// Like [`Turn::into_parts`], for a client that may come back to the answer by the id of its chat. When the client
    /// leaves, the answer is read to its end, so that the next question finds the conversation.
    pub fn into_resumable_parts(
        mut self,
    ) -> impl Stream<Item = Result<AnswerPart, Problem>> + Send {
        let disconnection = self.disconnection();
        self.on_disconnect = OnDisconnect::Ignore;
        ResumableParts {
            next: Some(Box::pin(Box::new(self).next_and_rest())),
            disconnection,
        }
    }

    /// Waits for the next part.
    async fn next_and_rest(mut self: Box<Self>) -> PartAndRest {
        let part = self.next().await;
        if let Err(problem) = &part {
            self.log(problem);
        }
        let is_piece = matches!(part, Ok(AnswerPart::Piece(_)));
        (part, is_piece.then_some(self))
    }
}

/// The stream of [`Turn::into_resumable_parts`].
struct ResumableParts {
    /// The next part; `None` after the last one.
    next: Option<BoxFuture<'static, PartAndRest>>,
    disconnection: Disconnection,
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
        self.disconnection.handle();
        self.disconnection.app.tasks.spawn(async move {
            while let (_, Some(turn)) = next.await {
                next = Box::pin(turn.next_and_rest());
            }
        });
    }
}

impl Turn {
    /// The status of the run, if the event ends it.
    fn final_status(&self, event: &ConversationEvent) -> Option<RunStatus> {
        let ConversationEvent::Durable(event) = event else {
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

    /// Whether the event is a message of the run that calls tools.
    fn calls_tools(&self, event: &ConversationEvent) -> bool {
        let ConversationEvent::Durable(event) = event else {
            return false;
        };
        match &event.kind {
            EventKind::Message(message) if message.run_id == Some(self.run.id) => {
                !called_tools(std::slice::from_ref(message)).is_empty()
            }
            _ => false,
        }
    }

    /// Stops the run when the answer has reached a limit of the client.
    async fn stop(&self) -> Result<()> {
        match app::runs::cancel(
            &self.app,
            &self.principal,
            self.run.id,
            OpenRequests::Withdraw,
        )
        .await
        {
            // A conflict means that the run has ended.
            Ok(_) | Err(Error::Conflict(..)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn end(&mut self, status: RunStatus) -> Result<AnswerPart, Problem> {
        let cut = self.limiter.reason();
        let is_answered =
            status == RunStatus::Succeeded || (status == RunStatus::Cancelled && cut.is_some());
        if is_answered {
            let reason = cut.unwrap_or("stop");
            return self.end_answer(reason).await;
        }
        let told = self.told_failure.take();
        let is_told = told.is_some();
        let failure = match told {
            Some(failure) => failure,
            None => ending::load_failure(&self.app, &self.principal, self.run.id).await?,
        };
        let is_streamed = self.is_streamed && !self.is_formatted && status == RunStatus::Failed;
        if !is_streamed || (failure.called.is_empty() && !failure.is_superseded) {
            return Err(self.problem_of_failure(status, failure));
        }
        // A client that knows its chat by the texts in it sends this one back.
        if !is_told {
            return Ok(self.tell_failure(failure));
        }
        if failure.is_superseded {
            return self.end_answer("stop").await;
        }
        self.record_answer().await?;
        Err(self.problem_of_failure(status, failure))
    }

    async fn end_answer(&mut self, reason: &'static str) -> Result<AnswerPart, Problem> {
        let run = self.record_answer().await?;
        Ok(AnswerPart::AnswerEnd(AnswerEnd {
            usage: run.usage,
            finished_at: run.finished_at,
            reason,
        }))
    }

    /// Adds the reason why the run has failed to the text of a stream. The end of the stream is an error all the same.
    fn tell_failure(&mut self, failure: RunFailure) -> AnswerPart {
        if !self.sent.is_empty() {
            self.add(Piece::Break, false);
        }
        self.add_text(failure.text.clone());
        self.told_failure = Some(failure);
        let first = self.ready.pop_front();
        AnswerPart::Piece(first.expect("a text that is not blank was added"))
    }

    /// The problem of a run that has ended without an answer. Many clients repeat a request by themselves after 408,
    /// 409, 429 or 5xx; none repeats it after 400.
    fn problem_of_failure(&self, status: RunStatus, failure: RunFailure) -> Problem {
        let RunFailure {
            reason,
            code,
            called,
            is_superseded,
            retry_after,
            text,
        } = failure;
        let ids = self.ids(true);
        // A client that reads an earlier answer, or a stream, does not repeat the request by itself.
        let awaits_whole = self.key.is_some() && !self.is_streamed;
        if awaits_whole && is_superseded {
            let code = ErrorCode::AnswerPending;
            let detail = format!("{reason}; {ANEW}");
            return Problem::new(StatusCode::BAD_REQUEST, code, detail).with_run(ids);
        }
        if awaits_whole && !called.is_empty() {
            let called = called.join(", ");
            let anew = if self.has_named_key() { KEPT } else { ANEW };
            let reason = reason.trim_end_matches('.');
            let detail = format!(
                "the turn failed after it had called {called}: {reason}; what was called is not undone, and an equal \
                 request would call it again, so look at the run first; {anew}"
            );
            let code = ErrorCode::TurnFailedAfterCall;
            return Problem::new(StatusCode::BAD_REQUEST, code, detail).with_run(ids);
        }
        if status == RunStatus::Failed && !called.is_empty() {
            let code = ErrorCode::TurnFailedAfterCall;
            return Problem::new(StatusCode::BAD_GATEWAY, code, text).with_run(ids);
        }
        let (status, code) = match (status, retry_after) {
            (RunStatus::Cancelled, _) => (StatusCode::CONFLICT, ErrorCode::RunCancelled),
            (_, Some(_)) => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Busy),
            _ if code == ErrorCode::AnswerNotInFormat => (StatusCode::UNPROCESSABLE_ENTITY, code),
            _ => (StatusCode::BAD_GATEWAY, code),
        };
        let mut problem = Problem::new(status, code, reason).with_run(ids);
        if self.has_named_key() {
            // The words of a stream are for people, who have sent no key.
            if !self.is_streamed {
                problem.detail = format!("{}; {KEPT}", problem.detail.trim_end_matches('.'));
            }
        } else {
            // With `retry_after` the model has not answered, so the client can repeat the request.
            problem.begun = retry_after.is_none();
        }
        problem.retry_after = retry_after;
        problem
    }

    /// The problem for a client whose run continues without it. A repeated request with a key finds the run again; one
    /// without a key would begin a second run beside the first.
    async fn problem_while_running(&self, mut problem: Problem) -> Problem {
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
        // Equal requests are refused for some time from here on. A client must not be invited to repeat one after its
        // run has called tools.
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
        problem.with_run(ids)
    }

    fn ids(&self, is_over: bool) -> AnswerIds {
        AnswerIds {
            conversation: self.conversation,
            run: self.run.id,
            is_over,
        }
    }

    /// Whether the answer is that to an earlier request with the key of this one.
    pub fn is_replayed(&self) -> bool {
        self.has_named_key() && self.is_repeated()
    }

    /// Whether an earlier request began the run. Each request that joins a run is counted before.
    fn is_repeated(&self) -> bool {
        self.repeats > 0
    }

    /// Whether the client gave the request a key, so that its answer is kept.
    fn has_named_key(&self) -> bool {
        self.key == Some(KeySource::Named)
    }

    /// Records the transcript before the client learns that the answer is complete, so that its next request finds this
    /// conversation. If that fails, the answer is sent all the same, and the next request starts a new conversation
    /// with the client's transcript.
    async fn record_answer(&mut self) -> Result<Run> {
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
                event: self.answer_text.last_delivered(last),
                last,
                is_late: self.is_repeated(),
                arrival: if self.is_delivered_whole && self.has_effects.load(Relaxed) {
                    Arrival::Pending
                } else if self.ended == Some(RunStatus::Cancelled) || self.is_repeated() {
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
                let error = error.with_cause();
                tracing::warn!(error, conversation = %self.conversation, "the client's transcript could not be remembered");
                app::runs::get(&self.app, &self.principal, self.run.id).await
            }
        }
    }
}

/// What happens to a run when its client disconnects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OnDisconnect {
    /// Nothing: the run has ended, or its client finds the answer without the connection.
    Ignore,
    KeepRunning,
    Stop,
    /// Stop, unless the client comes back in time.
    StopLater,
}

impl OnDisconnect {
    /// The setting of the caller's key.
    pub fn for_caller(caller: &Caller) -> Self {
        if caller.chat.keep_running {
            Self::KeepRunning
        } else {
            Self::Stop
        }
    }
}

/// The disconnection of a client, and the run that it leaves.
struct Disconnection {
    pub app: Arc<App>,
    pub principal: Principal,
    pub conversation: ConversationId,
    pub run: RunId,
    pub on_disconnect: OnDisconnect,
    /// Whether the client has read a part of the answer.
    pub is_read: bool,
    /// How often the client has come back before.
    pub repeats: i32,
}

impl Disconnection {
    fn handle(&self) {
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

    /// Records that the client is left without the answer, whatever becomes of it.
    async fn record_left(&self) {
        repeats::record_left(&self.app, &self.principal, self.conversation, self.run).await;
    }

    /// Records that the client has read the whole answer.
    fn record_arrival(&self) {
        repeats::arrive(&self.app, &self.principal, self.conversation, self.run);
    }
}

/// The delivery of an answer as a whole. A client that disconnects before it has the answer may send its request again,
/// so the end of a delivery is recorded: the answer was read to its end, or dropped before.
pub(super) struct Delivery {
    /// Absent when the delivery has ended.
    underway: Option<Disconnection>,
    begun: Instant,
    /// Records that the client still waits, until it is dropped.
    _served: Option<AbortOnDropHandle<()>>,
    /// Without effects, the end of the answer is recorded with the transcript, before the answer is sent.
    has_effects: Arc<AtomicBool>,
}

impl Delivery {
    /// Begins a delivery. The turn itself stops the run, if it is to be stopped, so the delivery does not.
    fn new(
        disconnection: Disconnection,
        served: Option<AbortOnDropHandle<()>>,
        has_effects: Arc<AtomicBool>,
    ) -> Self {
        Self {
            underway: Some(Disconnection {
                on_disconnect: OnDisconnect::KeepRunning,
                ..disconnection
            }),
            begun: clock::instant(),
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
        if self.counts_as_lost()
            && let Some(disconnection) = &self.underway
        {
            // Before the answer is sent: an equal request may follow at once.
            disconnection.record_left().await;
        }
        Ok(answer.map(|body| {
            Body::new(DeliveredBody {
                body,
                delivery: self,
            })
        }))
    }

    /// Whether the answer took so long that an equal request that comes soon must not do the same again.
    fn counts_as_lost(&self) -> bool {
        self.has_effects.load(Relaxed) && self.begun.elapsed() >= PATIENCE
    }

    /// Ends the delivery when the whole answer was read.
    fn end(&mut self) {
        let is_lost = self.counts_as_lost();
        let underway = self.underway.take();
        if let Some(disconnection) = underway.filter(|_| self.has_effects.load(Relaxed)) {
            if is_lost {
                disconnection.handle();
            } else {
                disconnection.record_arrival();
            }
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(disconnection) = self.underway.take() {
            disconnection.handle();
        }
    }
}

/// A body that completes the delivery when it was read to its end.
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
