//! A call that waits for its user: a row, so that it outlives restarts and goes on at any replica.

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use uuid::Uuid;

use super::{Answer, Fault, Leave, Question, answer, left};
use crate::domain::ids::{AgentId, ConversationId, RunId, ServerId, UserId};

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The user is being asked.
    Open,
    /// All is answered; the run that was given the last answer makes the call.
    Answered,
    /// It may have been sent.
    Sent,
}

impl State {
    /// As the row says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Answered => "answered",
            Self::Sent => "sent",
        }
    }

    /// Back from [`State::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Open, Self::Answered, Self::Sent]
            .into_iter()
            .find(|state| state.as_str() == text)
    }
}

#[derive(Clone, Debug)]
pub struct Pending {
    pub id: Uuid,
    pub conversation: ConversationId,
    pub user: UserId,
    pub agent: AgentId,
    pub server: ServerId,
    pub tool: String,
    /// The run and the call that the server answered with its questions.
    pub run: RunId,
    pub call_id: String,
    /// Whose connection it was.
    pub credential: String,
    /// A model waits for the outcome; otherwise the user who typed `/call`.
    pub for_model: bool,
    /// How often the server has asked in the course of this call, from 1.
    pub round: i32,
    pub state: State,
    /// Which step is asked now.
    pub step: usize,
    /// [`Asked`], sealed.
    pub sealed: Vec<u8>,
    /// [`Entered`], sealed.
    pub entered: Option<Vec<u8>>,
    /// Why the last answer could not be used.
    pub fault: Option<Fault>,
    pub answer_run: Option<RunId>,
    /// The server waits for the answer, and with it the run: whoever answers does so in that run.
    pub live: bool,
}

/// What a call needs to go on.
#[derive(Serialize, Deserialize)]
pub struct Asked {
    pub arguments: Box<RawValue>,
    pub keys: Vec<String>,
    pub questions: Vec<Question>,
    /// The server's own.
    pub state: Option<String>,
}

/// What the user has answered so far.
#[derive(Default, Serialize, Deserialize)]
pub struct Entered {
    /// One for each step.
    pub values: Vec<Value>,
    pub leave: Option<Leave>,
}

impl Asked {
    /// What goes back to the server.
    pub fn answer(&self, entered: &Entered) -> Answer {
        match entered.leave {
            Some(leave) => left(&self.keys, leave, self.state.clone()),
            None => answer(&self.questions, &entered.values, self.state.clone()),
        }
    }
}
