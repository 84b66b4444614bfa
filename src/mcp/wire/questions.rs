//! What servers of the older revisions ask while calls are open: whose call it is, and what is answered.
//!
//! Invariant: a question is put to nobody but the user of the call that it belongs to. What comes on the stream that
//! answers a call belongs to that call. Of what comes in any other way it can only be said while one call alone is open
//! on the connection and none was given up that the server may still be working on; everything else is declined.

use std::sync::Arc;

use rmcp::model::RequestId;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{Tap, Wire, clipped, locked, object};
use crate::{
    domain::elicitation::{self, InputRequired},
    mcp::error::Failure,
};

/// Questions of one call that its user is told of although they were not put to them.
const MAX_DECLINED: usize = 4;
/// Questions that came in and were not looked at yet.
const MAX_UNREAD: usize = 64;

/// What a server asked in the course of a call.
pub(super) struct Put {
    tap: Arc<Tap>,
    input: InputRequired,
    message: String,
}

impl Wire {
    /// Notes a question until it is answered ([`Wire::answer_to`]).
    pub(super) fn asked(&self, id: &RawValue, params: Option<&RawValue>, of: Option<&Arc<Tap>>) {
        #[derive(Deserialize)]
        struct Asked {
            #[serde(default)]
            message: String,
        }
        let (Some(tap), Ok(id)) = (self.whose(of), serde_json::from_str::<RequestId>(id.get()))
        else {
            return;
        };
        let params = params.map(|params| {
            self.token
                .load()
                .json(self.scrubber.json(params.to_owned()))
        });
        let asked = params
            .as_ref()
            .and_then(|params| object::<Asked>(params.get()).ok());
        let message = asked
            .map(|asked| clipped(&asked.message))
            .unwrap_or_default();
        if tap.asking.is_none() {
            return tap.decline(message);
        }
        let input = elicitation::read_alone(params.as_deref());
        let mut questions = locked(&self.questions);
        if questions.len() < MAX_UNREAD {
            // Of two with one id the first counts; nobody answers the other one.
            questions.entry(id).or_insert(Put {
                tap,
                input,
                message,
            });
        }
    }

    /// The answer to a question that came in: its user's, if there is somebody to ask.
    pub(in crate::mcp) async fn answer_to(&self, id: &RequestId) -> Value {
        let decline = json!({ "action": "decline" });
        let Some(Put {
            tap,
            input,
            message,
        }) = locked(&self.questions).remove(id)
        else {
            return decline;
        };
        if let Some(asking) = &tap.asking
            && let Some(answer) = asking.ask(input).await
        {
            return answer.alone();
        }
        tap.decline(message);
        decline
    }

    fn whose(&self, of: Option<&Arc<Tap>>) -> Option<Arc<Tap>> {
        if let Some(tap) = of {
            return (tap.arguments.is_some() && locked(&tap.answer).is_none()).then(|| tap.clone());
        }
        let waiting = locked(&self.waiting);
        let mut calls = waiting.values().filter(|tap| tap.arguments.is_some());
        let (Some(tap), None) = (calls.next(), calls.next()) else {
            return None;
        };
        locked(&self.given_up).is_empty().then(|| tap.clone())
    }
}

impl Tap {
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
                Failure::Silent(_) | Failure::Broken(_) | Failure::Lost(_)
            ),
            None => false,
        };
        self.arguments.is_some() && self.was_sent() && !answered
    }
}
