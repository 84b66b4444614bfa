//! One call of a tool, sent at most once.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest};
use tokio::time::sleep;

use super::{
    CallError, CallRequest, Era, Key, ProgressSender,
    error::Failure,
    interceptor::{PendingRequest, locked},
    list,
    live_questions::LiveQuestions,
    outcome, params,
    pool::Pool,
    session::Session,
};
use crate::domain::{elicitation::Answer, ids::UserId, server::ServerSpec, tool::ToolOutcome};

/// JSON-RPC: the headers of a request do not fit its body (2026-07-28). The server did nothing.
const HEADER_MISMATCH: i64 = -32020;

/// One call.
pub(super) struct Call<'a> {
    pub(super) request: CallRequest<'a>,
    pub(super) progress: Option<ProgressSender>,
    pub(super) once: Option<String>,
    pub(super) asks: bool,
    pub(super) asking: Option<Arc<LiveQuestions>>,
    pub(super) answer: Option<Answer>,
    pub(super) user: Option<UserId>,
    /// What was tried last, for the one caller whose time has run out.
    pub(super) in_flight: Mutex<Option<(Arc<Session>, Arc<PendingRequest>)>>,
}

impl Call<'_> {
    pub(super) async fn send(
        &self,
        pool: &Arc<Pool>,
        key: &Key,
        spec: &Arc<ServerSpec>,
    ) -> Result<ToolOutcome, CallError> {
        let CallRequest { tool, arguments } = self.request;
        let using = pool.claim(key, spec);
        let known = &using.slot.target.known;
        let _slot = known.call_slots.acquire(self.user.as_ref()).await;
        let mut tries = if self.once.is_some() { 1 } else { 2 };
        loop {
            tries -= 1;
            let session = pool.session(&using.slot).await?;
            let headers = if session.era == Era::Modern {
                known.headers_of(tool)
            } else {
                None
            };
            let param_headers = params::headers(headers.as_deref().unwrap_or_default(), arguments);
            let mut pending = PendingRequest::of_call(
                arguments.to_owned(),
                param_headers,
                self.progress.clone(),
                self.once.clone(),
            );
            pending.asks = self.asks && session.era == Era::Modern;
            pending.asking = self.asking.clone().filter(|_| session.era == Era::Legacy);
            let pending = Arc::new(pending);
            *locked(&self.in_flight) = Some((session.clone(), pending.clone()));
            let failure = match session.request(self.request(), &pending).await {
                Ok(raw) => {
                    let outcome = outcome::read(raw, pending.asks).map_err(Failure::of_call)?;
                    return Ok(ToolOutcome {
                        declined: pending.take_declined(),
                        ..outcome
                    });
                }
                Err(failure) => failure,
            };
            match failure {
                Failure::RefusedUnmatched { .. } => {
                    Pool::retire(&using.slot, &session);
                    return Err(failure.of_call());
                }
                Failure::NotSent(_) | Failure::SessionUnknown if tries > 0 => {
                    Pool::retire(&using.slot, &session);
                }
                // The server wants headers that only its list tells of, and this process never asked for it.
                Failure::Refused {
                    code: Some(HEADER_MISMATCH),
                    ..
                } if tries > 0 && headers.is_none() => {
                    list(&using, &session).await.map_err(Failure::of_call)?;
                }
                failure => return Err(failure.of_call()),
            }
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

    pub(super) async fn elapse(&self, time_limit: Duration) {
        match &self.asking {
            Some(asking) => asking.elapse(time_limit).await,
            None => sleep(time_limit).await,
        }
    }

    /// The call was given up by the one who made it.
    pub(super) fn cancelled(&self) -> CallError {
        let in_flight = locked(&self.in_flight);
        let sent = in_flight
            .as_ref()
            .is_some_and(|(_, pending)| pending.was_sent());
        CallError::Cancelled { sent }
    }

    /// The time is up. A server that had the call and said nothing is asked for an answer to a ping before the
    /// next one.
    pub(super) fn timeout_error(&self, time_limit: Duration) -> CallError {
        match &*locked(&self.in_flight) {
            Some((session, pending)) if pending.was_sent() => {
                session.mark_unresponsive();
                CallError::TimedOut(time_limit)
            }
            _ => CallError::NotSent(format!(
                "the server could not be reached within {} s",
                time_limit.as_secs_f32()
            )),
        }
    }
}
