//! One call of a tool, executed at most once: sent again only when nothing of it was sent, or when its session was lost
//! and the server provably did nothing.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest};
use serde_json::value::RawValue;
use tokio::time::{sleep, timeout};

use super::{
    CallError, CallRequest, Era, Key, ProgressSender, RepeatCheck,
    error::{FORGETFUL, Failure, SessionDoubt},
    interceptor::{PendingRequest, locked},
    list,
    live_questions::LiveQuestions,
    outcome, params,
    pool::{Pool, Slot},
    session::{Examination, Session},
};
use domain::{clock, elicitation::Answer, ids::UserId, server::ServerSpec, tool::ToolOutcome};

/// JSON-RPC: the headers of a request do not fit its body (2026-07-28). The server did nothing.
const HEADER_MISMATCH: i64 = -32020;
/// A refusal within this time and three times that of a ping came before the call was read.
const SOON: Duration = Duration::from_secs(2);

/// One call.
pub(super) struct Call<'a> {
    pub(super) request: CallRequest<'a>,
    pub(super) progress: Option<ProgressSender>,
    pub(super) once: Option<String>,
    pub(super) asks: bool,
    pub(super) asking: Option<Arc<LiveQuestions>>,
    pub(super) answer: Option<Answer>,
    pub(super) user: Option<UserId>,
    pub(super) repeat_check: Option<RepeatCheck>,
    /// What was tried last and may have been executed, for a caller who gives the call up.
    pub(super) in_flight: Mutex<Option<Arc<PendingRequest>>>,
}

impl Call<'_> {
    pub(super) async fn send(
        &self,
        pool: &Arc<Pool>,
        key: &Key,
        spec: &Arc<ServerSpec>,
    ) -> Result<ToolOutcome, CallError> {
        let time_limit = spec.timeouts.request;
        let using = pool.claim(key, spec);
        let known = &using.slot.target.known;
        let place = known.call_slots.acquire(self.user.as_ref());
        let Ok(_slot) = timeout(time_limit, place).await else {
            return Err(CallError::NotSent(format!(
                "no place for one more call was free within {} s",
                time_limit.as_secs_f32()
            )));
        };
        let (mut may_send_again, mut may_renew) = (self.once.is_none(), true);
        loop {
            let Ok(session) = timeout(time_limit, pool.session(&using.slot)).await else {
                return Err(CallError::NotSent(format!(
                    "the server could not be reached within {} s",
                    time_limit.as_secs_f32()
                )));
            };
            let session = session?;
            let headers = if session.era == Era::Modern {
                known.headers_of(self.request.tool)
            } else {
                None
            };
            let pending = self.pending(&session, headers.as_deref().unwrap_or_default());
            *locked(&self.in_flight) = Some(pending.clone());
            let sent_at = clock::instant();
            let failure = match self.request_in_time(&session, &pending, time_limit).await? {
                Ok(raw) => {
                    using.slot.prove();
                    session.mark_served();
                    let outcome = outcome::read(raw, pending.asks).map_err(Failure::of_call)?;
                    return Ok(ToolOutcome {
                        declined: pending.take_declined(),
                        ..outcome
                    });
                }
                Err(failure) => failure,
            };
            match failure {
                Failure::SessionInDoubt(doubt) => {
                    let refusal = (*doubt, sent_at.elapsed());
                    self.survive_doubt(pool, &using.slot, &session, refusal, may_renew)
                        .await?;
                    may_renew = false;
                }
                Failure::NotSent(_) if may_send_again => {
                    may_send_again = false;
                    Pool::retire(&using.slot, &session);
                }
                // The server wants headers that only its list tells of, and this process never asked for it.
                Failure::Refused {
                    code: Some(HEADER_MISMATCH),
                    ..
                } if may_send_again && headers.is_none() => {
                    may_send_again = false;
                    list(&using, &session).await.map_err(Failure::of_call)?;
                }
                failure => {
                    if failure.is_redirect() {
                        Pool::doubt(&using.slot, &session);
                    }
                    return Err(failure.of_call());
                }
            }
        }
    }

    /// The call was refused in a way in which lost sessions are refused, too. It may be made once more, in a new session,
    /// if nothing was executed; else what came of it.
    async fn survive_doubt(
        &self,
        pool: &Pool,
        slot: &Slot,
        session: &Arc<Session>,
        (doubt, took): (SessionDoubt, Duration),
        may_renew: bool,
    ) -> Result<(), CallError> {
        let asked_at = clock::instant();
        let examination = pool.examine(slot, session, &doubt).await;
        let longest = SOON + asked_at.elapsed() * 3;
        match examination {
            // Who refuses a session before reading a request refuses a call as soon as a ping. What took longer may have
            // been executed, by a server that lost the session meanwhile or by another one behind the same address.
            Examination::Lost if took > longest => {
                let (words, took) = (doubt.words, took.as_secs_f32());
                return Err(CallError::OutcomeUnknown(format!(
                    "{words}; this came after {took:.1} s, so the call may have been read before"
                )));
            }
            Examination::Lost if may_renew => {}
            Examination::Lost => {
                let failure = match doubt.of_new_session(slot.is_proven()) {
                    failure @ (Failure::Unauthorized | Failure::Forbidden) => failure,
                    _ => Failure::NotSent(FORGETFUL.to_owned()),
                };
                return Err(failure.of_call());
            }
            Examination::Alive => return Err(doubt.of_tool().of_call()),
            Examination::Unclear(why) => {
                let words = doubt.words;
                return Err(CallError::OutcomeUnknown(format!(
                    "{words}; whether its session was lost could not be found out: {why}"
                )));
            }
        }
        // Nothing was executed.
        *locked(&self.in_flight) = None;
        if let Some(check) = &self.repeat_check
            && !check.passes().await
        {
            return Err(CallError::NotSent(
                "the server lost the session, and the time for another attempt is over".to_owned(),
            ));
        }
        Ok(())
    }

    fn pending(&self, session: &Session, headers: &[params::Param]) -> Arc<PendingRequest> {
        let arguments = self.request.arguments;
        let mut pending = PendingRequest::of_call(
            arguments.to_owned(),
            params::headers(headers, arguments),
            self.progress.clone(),
            self.once.clone(),
        );
        pending.asks = self.asks && session.era == Era::Modern;
        pending.asking = self.asking.clone().filter(|_| session.era == Era::Legacy);
        Arc::new(pending)
    }

    /// One request in its own time, which begins when it leaves this machine. A server that had the call and said
    /// nothing is asked for an answer to a ping before the next one.
    async fn request_in_time(
        &self,
        session: &Session,
        pending: &Arc<PendingRequest>,
        time_limit: Duration,
    ) -> Result<Result<Box<RawValue>, Failure>, CallError> {
        let elapsed = async {
            // What comes before, such as an access token, has as much time.
            let _ = timeout(time_limit, pending.sent()).await;
            if pending.was_sent() {
                self.elapse(time_limit).await;
            }
        };
        tokio::select! {
            biased;
            answered = session.request(self.request(), pending) => Ok(answered),
            () = elapsed => Err(if pending.was_sent() {
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

    fn request(&self) -> ClientRequest {
        let mut params = CallToolRequestParams::new(self.request.tool.to_owned());
        if let Some(Answer { responses, state }) = &self.answer {
            params.input_responses =
                (!responses.is_empty()).then(|| responses.clone().into_iter().collect());
            params.request_state.clone_from(state);
        }
        ClientRequest::CallToolRequest(CallToolRequest::new(params))
    }

    async fn elapse(&self, time_limit: Duration) {
        match &self.asking {
            Some(asking) => asking.elapse(time_limit).await,
            None => sleep(time_limit).await,
        }
    }

    /// The call was given up by the one who made it.
    pub(super) fn cancelled(&self) -> CallError {
        let in_flight = locked(&self.in_flight);
        let sent = in_flight.as_ref().is_some_and(|pending| pending.was_sent());
        CallError::Cancelled { sent }
    }
}
