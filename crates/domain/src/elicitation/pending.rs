//! An elicitation: a server's request to the user of a call. It is a row, so that it outlives restarts and is answered
//! at any replica.

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use uuid::Uuid;

use super::{Answer, AnswerError, Dismissal, Field, Mode, Question, reading, secrets, steps};
use crate::{
    ids::{AgentId, ConversationId, RunId, ServerId, UserId},
    json::{Json, Members},
};

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
    /// How often the server has asked in the course of this call, from 1. 0: no server asks, but a command that lacks
    /// arguments.
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

impl Elicitation {
    /// Whether the user's own command asks, and no server.
    pub fn is_of_command(&self) -> bool {
        self.round == 0
    }
}

/// What the server asked, and what the call needs to go on.
#[derive(Serialize, Deserialize)]
pub struct Request {
    pub arguments: Box<RawValue>,
    pub keys: Vec<String>,
    pub questions: Vec<Question>,
    /// The server's own.
    pub state: Option<String>,
    /// Under which id the call was taken from limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<Uuid>,
}

/// What the user has answered so far. It has no `Debug`: the values are the user's.
#[derive(Default, Serialize, Deserialize)]
pub struct Entered {
    /// One for each step.
    pub values: Vec<Value>,
    #[serde(rename = "leave")]
    pub dismissal: Option<Dismissal>,
    /// The last answer, if it could not be used.
    #[serde(default)]
    pub unread: Option<String>,
}

impl Request {
    /// What a command asks for that lacks arguments; `None` when a chat is no place for it.
    pub fn of_command(command: &str, given: Members, missing: Vec<Field>) -> Option<Self> {
        let question = Question {
            key: command.to_owned(),
            message: String::new(),
            mode: Mode::Form(missing),
        };
        let questions = reading::check_count(vec![question]).ok()?;
        let Mode::Form(fields) = &questions[0].mode else {
            return None;
        };
        (secrets::asked_for("", fields).is_none()).then(|| Self {
            arguments: Json::Object(given).to_raw(),
            keys: Vec::new(),
            questions,
            state: None,
            taken: None,
        })
    }

    /// The command that asks, and its arguments with those that were entered.
    pub fn command(&self, entered: &Entered) -> Option<(&str, Members)> {
        let Ok(Json::Object(mut arguments)) = Json::parse(self.arguments.get()) else {
            return None;
        };
        for (step, value) in steps(&self.questions).iter().zip(&entered.values) {
            if !value.is_null() {
                arguments.add(step.name(), value.into());
            }
        }
        Some((&self.questions.first()?.key, arguments))
    }

    /// The answer that goes back to the server.
    pub fn answer(&self, entered: &Entered) -> Answer {
        let state = self.state.clone();
        match entered.dismissal {
            Some(how) => Answer::dismissed(&self.keys, how, state),
            None => Answer::from_values(&self.questions, &entered.values, state),
        }
    }
}
