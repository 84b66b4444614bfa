//! One call of a tool, executed at most once: it is sent again only if nothing of it was sent, or if its session was lost
//! and a second execution does no harm.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::value::RawValue;
use tokio::time::{sleep, timeout};

use super::{
    CallError, CallRequest, Caller, Key, Lifecycle, ProgressSender,
    error::{Failure, SessionDoubt},
    list_tools, lock, outcome,
    param_headers::{MarkedParam, call_headers},
    peer::LiveQuestions,
    pool::{InUse, Pool},
    request::{OpenRequest, Request},
    session::Session,
};
use domain::{
    clock, elicitation::Answer, jsonrpc::HEADER_MISMATCH, server::ServerSpec, tool::ToolOutcome,
    trace_context::TraceContext,
};

/// The refusal of a credential counts as immediate if it took at most this long. After a later one, the call may have been
/// read before.
pub(super) const IMMEDIATE_REFUSAL: Duration = Duration::from_secs(2);

/// One call of a tool with its options; see [`super::CallOptions`].
pub(super) struct Call<'a> {
    pub(super) request: CallRequest<'a>,
    pub(super) progress: Option<ProgressSender>,
    pub(super) idempotency_key: Option<String>,
    pub(super) can_ask_user: bool,
    pub(super) live_questions: Option<Arc<LiveQuestions>>,
    pub(super) answer: Option<Answer>,
    pub(super) caller: Option<Caller>,
    pub(super) may_repeat: bool,
    pub(super) trace: Option<TraceContext>,
    /// The last attempt, if it may have been executed. It decides the error of a cancelled call.
    pub(super) in_flight: Mutex<Option<Arc<OpenRequest>>>,
    /// The status of the last answer, if it said that the call failed.
    pub(super) status: Mutex<Option<u16>>,
}

impl Call<'_> {
    /// Makes the call; see [`super::Mcp::call`].
    pub(super) async fn send(
        &self,
        pool: &Arc<Pool>,
        key: &Key,
        spec: &Arc<ServerSpec>,
    ) -> Result<ToolOutcome, CallError> {
        let time_limit = spec.timeouts.request;
        let using = pool.claim(key, spec);
        let known = &using.slot.target.known;
        let acquired = known.call_slots.acquire(self.caller.as_ref());
        let Ok(_call_slot) = timeout(time_limit, acquired).await else {
            return Err(CallError::NotSent(format!(
                "no place for one more call was free within {} s",
                time_limit.as_secs_f32()
            )));
        };
        match self.attempt(pool, &using).await {
            // The first attempt may have been executed, whatever became of the second.
            Err(lost @ CallError::SessionLost { .. }) if self.may_repeat => {
                self.attempt(pool, &using).await.map_err(|_| lost)
            }
            outcome => outcome,
        }
    }

    /// Sends the call in the open session or in a new one; again only if nothing of it was executed.
    async fn attempt(&self, pool: &Arc<Pool>, using: &InUse) -> Result<ToolOutcome, CallError> {
        let (known, time_limit) = (
            &using.slot.target.known,
            using.slot.target.spec.timeouts.request,
        );
        let mut may_send_again = self.idempotency_key.is_none();
        loop {
            let Ok(session) = timeout(time_limit, pool.session_for_call(&using.slot)).await else {
                return Err(CallError::NotSent(format!(
                    "the server could not be reached within {} s",
                    time_limit.as_secs_f32()
                )));
            };
            let session = session?;
            let headers = if session.lifecycle() == Lifecycle::Stateless {
                known.headers_of(self.request.tool)
            } else {
                None
            };
            let open = self.new_open_request(&session, headers.as_deref().unwrap_or_default());
            // After an attempt that may have been executed, that one decides.
            lock(&self.in_flight).get_or_insert(open.clone());
            let sent_at = clock::instant();
            let failure = match self.request_in_time(&session, &open, time_limit).await? {
                Ok(raw) => {
                    using.slot.mark_credential_good();
                    session.mark_served();
                    let outcome =
                        outcome::read(raw, open.can_ask_user).map_err(Failure::into_call_error)?;
                    return Ok(ToolOutcome {
                        declined: open.take_declined(),
                        ..outcome
                    });
                }
                Err(failure) => failure,
            };
            *lock(&self.status) = failure.status();
            match failure {
                Failure::SessionInDoubt(doubt) => {
                    Pool::doubt(&using.slot, &session);
                    let is_immediate = sent_at.elapsed() <= IMMEDIATE_REFUSAL;
                    return Err(self.explain(pool, using, *doubt, is_immediate).await);
                }
                Failure::NotSent(_) if may_send_again => {
                    may_send_again = false;
                    lock(&self.in_flight).take();
                    Pool::retire(&using.slot, &session);
                }
                // The headers do not match the body, and the server did nothing. It requires those that its tool list defines,
                // and this process has not read the list.
                Failure::Refused {
                    code: Some(HEADER_MISMATCH),
                    ..
                } if may_send_again
                    && headers.is_none()
                    && session.lifecycle() == Lifecycle::Stateless =>
                {
                    may_send_again = false;
                    lock(&self.in_flight).take();
                    list_tools(using, &session)
                        .await
                        .map_err(Failure::into_call_error)?;
                }
                failure => {
                    if failure.is_redirect() {
                        Pool::doubt(&using.slot, &session);
                    }
                    return Err(failure.into_call_error());
                }
            }
        }
    }

    /// The error after a refusal that may come from a lost session. Where it may be about the credential, a new handshake
    /// shows whether it is.
    async fn explain(
        &self,
        pool: &Arc<Pool>,
        using: &InUse,
        doubt: SessionDoubt,
        is_immediate: bool,
    ) -> CallError {
        if is_immediate && doubt.is_about_credential() {
            let time_limit = using.slot.target.spec.timeouts.request;
            match timeout(time_limit, pool.session(&using.slot)).await {
                Ok(Err(error)) if error.is_credential_refused() => return error.into(),
                // Some servers judge a credential only where it is used, and this one was never good for anything.
                Ok(Ok(_)) if !using.slot.is_credential_good() => {
                    return doubt.own.into_call_error();
                }
                _ => {}
            }
        }
        CallError::SessionLost {
            status: doubt.status,
            message: doubt.words,
        }
    }

    fn new_open_request(&self, session: &Session, headers: &[MarkedParam]) -> Arc<OpenRequest> {
        let mut open = OpenRequest::for_call(
            call_headers(headers, self.request.arguments),
            self.progress.clone(),
            self.idempotency_key.clone(),
            self.trace.clone(),
        );
        open.tenant = self.caller.as_ref().map(|caller| caller.tenant);
        match session.lifecycle() {
            Lifecycle::Stateless => open.can_ask_user = self.can_ask_user,
            Lifecycle::Handshake => open.live_questions.clone_from(&self.live_questions),
        }
        Arc::new(open)
    }

    /// Sends the call and waits for its answer within the time limit, which begins when the request leaves this machine.
    /// After a timeout, the session must answer a ping before its next request.
    async fn request_in_time(
        &self,
        session: &Session,
        open: &Arc<OpenRequest>,
        time_limit: Duration,
    ) -> Result<Result<Box<RawValue>, Failure>, CallError> {
        let elapsed = async {
            // Everything before the sending, such as getting an access token, may take as long again.
            let _ = timeout(time_limit, open.wait_until_sent()).await;
            if open.was_sent() {
                self.elapse(time_limit).await;
            }
        };
        let request = Request::Call {
            tool: self.request.tool,
            arguments: self.request.arguments,
            answer: self.answer.as_ref(),
        };
        tokio::select! {
            biased;
            answered = session.request(&request, open) => Ok(answered),
            () = elapsed => Err(if open.was_sent() {
                session.mark_unresponsive();
                CallError::TimedOut(time_limit)
            } else {
                CallError::NotSent(format!(
                    "the server could not be reached within {} s",
                    time_limit.as_secs_f32()
                ))
            }),
        }
    }

    /// Waits until the time limit has passed, without the time in which the user answers questions.
    async fn elapse(&self, time_limit: Duration) {
        match &self.live_questions {
            Some(questions) => questions.elapse(time_limit).await,
            None => sleep(time_limit).await,
        }
    }

    /// The error for a call that its caller cancelled.
    pub(super) fn cancellation_error(&self) -> CallError {
        let in_flight = lock(&self.in_flight);
        let sent = in_flight.as_ref().is_some_and(|open| open.was_sent());
        CallError::Cancelled { sent }
    }
}
