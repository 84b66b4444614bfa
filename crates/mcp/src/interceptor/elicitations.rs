//! Questions that servers of the older revisions ask while calls are open: the call that a question belongs to, and the
//! answer.
//!
//! Invariant: only the user of the call that a question belongs to is asked. A question on the stream that answers a call
//! belongs to that call. Any other question belongs to the one open call of the connection; it is declined when several
//! are open, or when the server may still be at work on one that was given up.

use std::sync::Arc;

use rmcp::model::RequestId;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{Interceptor, PendingRequest, clipped, locked, object};
use crate::error::Failure;
use domain::elicitation::{self, InputRequired};

/// Declined questions of one call that its user is told of.
const MAX_DECLINED: usize = 4;
/// Questions that came in and are not answered yet.
const MAX_UNREAD: usize = 64;

/// A question in the course of a call.
pub(super) struct UnansweredQuestion {
    pending: Arc<PendingRequest>,
    input: InputRequired,
    message: String,
}

impl Interceptor {
    /// Notes a question until it is answered ([`Interceptor::answer_to`]).
    pub(super) fn note_question(
        &self,
        id: &RawValue,
        params: Option<&RawValue>,
        of: Option<&Arc<PendingRequest>>,
    ) {
        #[derive(Deserialize)]
        struct Exchange {
            #[serde(default)]
            message: String,
        }
        let (Some(pending), Ok(id)) = (
            self.call_of(of),
            serde_json::from_str::<RequestId>(id.get()),
        ) else {
            return;
        };
        let params = params.map(|params| {
            self.token
                .load()
                .json(self.scrubber.json(params.to_owned()))
        });
        let asked = params
            .as_ref()
            .and_then(|params| object::<Exchange>(params.get()).ok());
        let message = asked
            .map(|asked| clipped(&asked.message))
            .unwrap_or_default();
        if pending.asking.is_none() {
            return pending.decline(message);
        }
        let input = elicitation::read_single(params.as_deref());
        let mut questions = locked(&self.questions);
        if questions.len() < MAX_UNREAD {
            // Of two with one id the first counts; the other one is declined.
            questions.entry(id).or_insert(UnansweredQuestion {
                pending,
                input,
                message,
            });
        }
    }

    /// The answer to a question that came in: its user's, if there is somebody to ask.
    pub(crate) async fn answer_to(&self, id: &RequestId) -> Value {
        let decline = json!({ "action": "decline" });
        let Some(UnansweredQuestion {
            pending,
            input,
            message,
        }) = locked(&self.questions).remove(id)
        else {
            return decline;
        };
        if let Some(questions) = &pending.asking
            && let Some(answer) = questions.ask(input).await
        {
            return answer.into_single();
        }
        pending.decline(message);
        decline
    }

    /// The call that a question belongs to; `of` is the call whose stream brought it.
    fn call_of(&self, of: Option<&Arc<PendingRequest>>) -> Option<Arc<PendingRequest>> {
        if let Some(pending) = of {
            return (pending.arguments.is_some() && locked(&pending.answer).is_none())
                .then(|| pending.clone());
        }
        let waiting = locked(&self.waiting);
        let mut calls = waiting
            .values()
            .filter(|pending| pending.arguments.is_some());
        let (Some(pending), None) = (calls.next(), calls.next()) else {
            return None;
        };
        locked(&self.given_up).is_empty().then(|| pending.clone())
    }
}

impl PendingRequest {
    fn decline(&self, message: String) {
        let mut declined = locked(&self.declined);
        if declined.len() < MAX_DECLINED {
            declined.push(message);
        }
    }

    /// Whether its server may still be at work on this call although nobody waits for the answer.
    pub(super) fn is_given_up(&self) -> bool {
        let answered = match &*locked(&self.answer) {
            Some(Ok(_)) => true,
            Some(Err(failure)) => !matches!(
                failure,
                Failure::Silent(_)
                    | Failure::Status { .. }
                    | Failure::Redirected(_)
                    | Failure::WebPage(_)
                    | Failure::Lost(_)
            ),
            None => false,
        };
        self.arguments.is_some() && self.was_sent() && !answered
    }
}
