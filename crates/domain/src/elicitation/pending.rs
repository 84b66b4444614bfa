//! An elicitation: a server's request to the user of a call. It is a row, so that it outlives restarts and is answered
//! at any replica.

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use uuid::Uuid;

use super::{Answer, AnswerError, Dismissal, Question};
use crate::ids::{AgentId, ConversationId, RunId, ServerId, UserId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type))]
#[cfg_attr(feature = "sqlx", sqlx(type_name = "text", rename_all = "snake_case"))]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum State {
    /// The user is being asked.
    Open,
    /// All questions are answered. The run that was given the last answer makes the call again, or the open
    /// call takes the answer.
    Answered,
    /// The answer may have been sent.
    Sent,
}

#[derive(Clone, Debug)]
pub struct Elicitation {
    pub id: Uuid,
    pub conversation: ConversationId,
    pub user: UserId,
    pub agent: AgentId,
    pub server: ServerId,
    pub tool: String,
    /// The run and the call in which the server asked.
    pub run: RunId,
    pub call_id: String,
    /// The credential of the connection.
    pub credential: String,
    /// A model waits for the outcome; otherwise the user who typed `/call`.
    pub for_model: bool,
    /// How often the server has asked in the course of this call, from 1.
    pub round: i32,
    pub state: State,
    /// The step that is asked now.
    pub step: usize,
    /// [`Request`], sealed.
    pub request: Vec<u8>,
    /// [`Entered`], sealed.
    pub entered: Option<Vec<u8>>,
    /// Why the last answer could not be used.
    pub fault: Option<AnswerError>,
    pub answer_run: Option<RunId>,
    /// The server waits for the answer while its call is open, so the answer belongs to that run.
    pub live: bool,
}

/// What the server asked, and what the call needs to go on.
#[derive(Serialize, Deserialize)]
pub struct Request {
    pub arguments: Box<RawValue>,
    pub keys: Vec<String>,
    pub questions: Vec<Question>,
    /// The server's own.
    pub state: Option<String>,
}

/// What the user has answered so far. It has no `Debug`: the values are the user's.
#[derive(Default, Serialize, Deserialize)]
pub struct Entered {
    /// One for each step.
    pub values: Vec<Value>,
    #[serde(rename = "leave")]
    pub dismissal: Option<Dismissal>,
}

impl Request {
    /// The answer that goes back to the server.
    pub fn answer(&self, entered: &Entered) -> Answer {
        let state = self.state.clone();
        match entered.dismissal {
            Some(how) => Answer::dismissed(&self.keys, how, state),
            None => Answer::from_values(&self.questions, &entered.values, state),
        }
    }
}
