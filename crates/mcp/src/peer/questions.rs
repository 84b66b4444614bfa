//! Questions that a server asks during a call (`elicitation/create`, up to revision 2025-11-25). The user of the call
//! answers them, and the time limit of the call is suspended meanwhile.
//!
//! Invariants: only the user of the call that a question belongs to is asked. A question on the stream that answers a call
//! belongs to that call. Any other question belongs to the only open call of the connection; it is declined when several
//! are open, when the server may still be working on a cancelled call, or when several tenants have used the connection. The questions of one call are asked one after the
//! other, and their number and total time are limited.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::{
    sync::{Mutex, MutexGuard, mpsc::UnboundedSender, oneshot, watch},
    time::{sleep, timeout},
};

use super::{Asked, Peer};
use crate::{redaction::clip, request::OpenRequest};
use domain::{
    clock,
    elicitation::{self, Answer, Dismissal, InputRequired},
    jsonrpc::object,
};

/// The most questions that the user of one call is asked.
const MAX_QUESTIONS: usize = 5;
/// How long a call waits for its user, for all questions together.
pub const LIVE_TIME_LIMIT: Duration = Duration::from_secs(300);

/// A question of the server, and the call whose user can be asked.
pub(super) struct Question {
    call: Option<Arc<OpenRequest>>,
    input: InputRequired,
    message: String,
}

impl Peer {
    /// Reads a question. `asked` is the request whose stream brought it.
    pub(super) fn read_question(
        &self,
        params: Option<&RawValue>,
        asked: Option<Asked<'_>>,
    ) -> Question {
        #[derive(Deserialize)]
        struct ElicitParams {
            #[serde(default)]
            message: String,
        }
        let call = self.call_of(asked);
        let params = params.map(|params| self.redactor.json(params.to_owned()));
        let message = params
            .as_ref()
            .and_then(|params| object::<ElicitParams>(params.get()).ok())
            .map(|params| clip(&params.message))
            .unwrap_or_default();
        let (of_user, of_nobody) = match call {
            Some(call) if call.live_questions.is_some() => (Some(call), None),
            call => (None, call),
        };
        if let Some(call) = of_nobody {
            call.decline(message.clone());
        }
        Question {
            call: of_user,
            input: elicitation::read_single(params.as_deref()),
            message,
        }
    }
}

impl Question {
    /// The answer: that of the user, or else `decline`.
    pub(super) async fn answer(self) -> Value {
        let decline = json!({ "action": "decline" });
        let Some(call) = self.call else {
            return decline;
        };
        if let Some(questions) = &call.live_questions
            && let Some(answer) = questions.ask(self.input).await
        {
            return answer.into_single();
        }
        call.decline(self.message);
        decline
    }
}

/// A question whose server waits for the answer. Dropping it cancels the question. When the receiver of `answer` is gone,
/// the server has withdrawn the question.
#[derive(Debug)]
pub struct LiveQuestion {
    pub input: InputRequired,
    pub answer: oneshot::Sender<Answer>,
}

/// Asks the user of one call, within a budget of questions and time.
#[derive(Debug)]
pub(crate) struct LiveQuestions {
    questions: UnboundedSender<LiveQuestion>,
    budget: Mutex<Budget>,
    /// Whether a question is open now.
    open: watch::Sender<bool>,
}

/// The questions and the time that are left.
#[derive(Debug)]
struct Budget {
    questions: usize,
    time: Duration,
}

impl LiveQuestions {
    pub(crate) fn new(questions: UnboundedSender<LiveQuestion>) -> Self {
        let budget = Mutex::new(Budget {
            questions: MAX_QUESTIONS,
            time: LIVE_TIME_LIMIT,
        });
        Self {
            questions,
            budget,
            open: watch::Sender::new(false),
        }
    }

    /// Asks the user and waits for the answer; `None` when the budget is used up and the user was not asked.
    pub(super) async fn ask(&self, input: InputRequired) -> Option<Answer> {
        let mut budget = self.budget.lock().await;
        if budget.questions == 0 || budget.time.is_zero() {
            return None;
        }
        budget.questions -= 1;
        let (time_limit, keys) = (budget.time, input.keys.clone());
        let (answer, answered) = oneshot::channel();
        let _open = OpenQuestion::new(self, budget);
        self.questions.send(LiveQuestion { input, answer }).ok()?;
        let answered = timeout(time_limit, answered).await;
        Some(match answered {
            Ok(Ok(answer)) => answer,
            // There was no answer in time, or the caller dropped the question.
            Ok(Err(_)) | Err(_) => Answer::dismissed(&keys, Dismissal::Cancel, None),
        })
    }

    /// Waits until this much time has passed, not counting the time in which a question was open.
    pub(crate) async fn elapse(&self, mut time: Duration) {
        let mut open = self.open.subscribe();
        loop {
            let is_suspended = *open.borrow_and_update();
            let began = clock::instant();
            tokio::select! {
                () = sleep(time), if !is_suspended => return,
                changed = open.changed() => changed.expect("the sender lives as long as this"),
            }
            if !is_suspended {
                time = time.saturating_sub(began.elapsed());
            }
        }
    }
}

/// A question that is open until this is dropped. Dropping it charges its time to the budget.
struct OpenQuestion<'a> {
    call: &'a LiveQuestions,
    budget: MutexGuard<'a, Budget>,
    began: Instant,
}

impl<'a> OpenQuestion<'a> {
    fn new(call: &'a LiveQuestions, budget: MutexGuard<'a, Budget>) -> Self {
        call.open.send_replace(true);
        Self {
            call,
            budget,
            began: clock::instant(),
        }
    }
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        self.budget.time = self.budget.time.saturating_sub(self.began.elapsed());
        self.call.open.send_replace(false);
    }
}
