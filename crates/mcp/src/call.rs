//! One call of a tool, executed at most once: it is sent again only if nothing of it was sent, or if its session was lost
//! and so the server did not read it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::value::RawValue;
use tokio::time::{sleep, timeout};

use super::{
    CallError, CallRequest, Caller, Key, Lifecycle, ProgressSender, RepeatCheck,
    error::{Failure, SESSION_LOST_TWICE, SessionDoubt},
    list_tools, lock, outcome,
    param_headers::{MarkedParam, call_headers},
    peer::LiveQuestions,
    pool::{Pool, Slot},
    request::{OpenRequest, Request},
    session::{Examination, Session},
};
use domain::{
    clock, elicitation::Answer, jsonrpc::HEADER_MISMATCH, server::ServerSpec, tool::ToolOutcome,
    trace_context::TraceContext,
};

/// A refusal of a session counts as immediate if it took at most this long and three times as long as the ping after it,
/// and one of an access token if it took at most this long.
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
    pub(super) repeat_check: Option<RepeatCheck>,
    pub(super) trace: Option<TraceContext>,
    /// The last attempt, if it may have been executed. It decides the error of a cancelled call.
    pub(super) in_flight: Mutex<Option<Arc<OpenRequest>>>,
    /// The status of the last answer, if it said that the call failed.
    pub(super) status: Mutex<Option<u16>>,
}

/// A refusal that may come from a lost session, and how long it took.
struct Refusal {
    doubt: SessionDoubt,
    took: Duration,
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
        let (mut may_send_again, mut may_renew) = (self.idempotency_key.is_none(), true);
        loop {
            let Ok(session) = timeout(time_limit, pool.session(&using.slot)).await else {
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
            *lock(&self.in_flight) = Some(open.clone());
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
                    let refusal = Refusal {
                        doubt: *doubt,
                        took: sent_at.elapsed(),
                    };
                    self.resolve_doubt(pool, &using.slot, &session, refusal, may_renew)
                        .await?;
                    may_renew = false;
                }
                Failure::NotSent(_) if may_send_again => {
                    may_send_again = false;
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
                    list_tools(&using, &session)
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

    /// Finds out what a refusal means that may come from a lost session. `Ok`: the session was lost and nothing was
    /// executed, so the call may be sent once more in a new session.
    async fn resolve_doubt(
        &self,
        pool: &Pool,
        slot: &Slot,
        session: &Arc<Session>,
        Refusal { doubt, took }: Refusal,
        may_renew: bool,
    ) -> Result<(), CallError> {
        let asked_at = clock::instant();
        let examination = pool.examine(slot, session, &doubt).await;
        let longest = IMMEDIATE_REFUSAL + asked_at.elapsed() * 3;
        match examination {
            // A server that refuses a session before it reads requests refuses a call as fast as a ping. A call that took
            // longer may have been executed before the session was lost, or by another server behind the same address.
            Examination::Lost if took > longest => {
                let (words, took) = (doubt.words, took.as_secs_f32());
                return Err(CallError::OutcomeUnknown(format!(
                    "{words}; this came after {took:.1} s, so the call may have been read before"
                )));
            }
            Examination::Lost if may_renew => {}
            Examination::Lost => {
                let failure = match doubt.into_failure_of_new_session(slot.is_credential_good()) {
                    failure @ (Failure::Unauthorized | Failure::Forbidden) => failure,
                    _ => Failure::NotSent(SESSION_LOST_TWICE.to_owned()),
                };
                return Err(failure.into_call_error());
            }
            Examination::Alive => return Err(doubt.into_tool_refusal().into_call_error()),
            Examination::Unclear(why) => {
                let words = doubt.words;
                return Err(CallError::OutcomeUnknown(format!(
                    "{words}; whether its session was lost could not be found out: {why}"
                )));
            }
        }
        // The session was lost, so nothing was executed.
        *lock(&self.in_flight) = None;
        if let Some(check) = &self.repeat_check
            && !check.passes().await
        {
            return Err(CallError::NotSent(
                "the server lost the session, and the time for another attempt is over".to_owned(),
            ));
        }
        Ok(())
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
