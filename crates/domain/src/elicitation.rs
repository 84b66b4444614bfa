//! What a server asks the user in the middle of a call: a form of a few plain fields, or an address to open.
//! All of it is text of the server. It is capped, shown under the server's name, and never a request for a
//! secret.
//!
//! Invariant: an answer goes to the server that asked, with the state that the server gave, and nowhere else. It cannot
//! be printed.

mod form;
mod pending;
mod prompt;
mod reading;
mod secrets;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use url::Url;

pub(crate) use self::form::without_zeros;
use self::reading::DEFAULT_KEY;
pub use self::reading::readable;
pub use self::{
    form::{AnswerError, Field, Format, Kind, match_choice, parse_boolean},
    pending::{Elicitation, Entered, Request, State},
    prompt::{fault_notice, prompt},
    reading::{read, read_single},
};

/// A call was answered with this instead of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct InputRequired {
    /// The server's names of its questions.
    pub keys: Vec<String>,
    /// What the user is asked; empty where the server only wants the call again.
    pub questions: Result<Vec<Question>, Refusal>,
    /// Goes back to the server unchanged.
    pub state: Option<String>,
}

/// Why a question is not shown to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It asks for a secret: this field, or this message.
    Secret(String),
    /// The question asks for something other than an answer, or it cannot be shown.
    Unanswerable(String),
}

/// One question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    pub key: String,
    pub message: String,
    #[serde(rename = "ask")]
    pub mode: Mode,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Without fields it asks whether the user agrees.
    Form(Vec<Field>),
    /// An address to open. Only the user opens it.
    Url { address: Url, host: String },
}

/// One thing that the user is asked at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step<'a> {
    Field(&'a Question, &'a Field),
    /// Yes or no.
    Confirm(&'a Question),
}

/// An answer that dismisses all questions of a call, without values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dismissal {
    /// The user says no.
    Decline,
    /// The user does not answer.
    Cancel,
}

/// What goes back to the server.
#[derive(Clone, Default, PartialEq)]
pub struct Answer {
    pub responses: Map<String, Value>,
    pub state: Option<String>,
}

/// Without the values: they are the user's.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

impl Answer {
    /// The answer that these values make, one for each step.
    pub fn from_values(questions: &[Question], values: &[Value], state: Option<String>) -> Self {
        let mut responses = Map::new();
        for (step, value) in steps(questions).iter().zip(values) {
            let response = responses
                .entry(step.question().key.clone())
                .or_insert_with(|| json!({ "action": "accept", "content": {} }));
            match step {
                Step::Confirm(_) if *value != Value::Bool(true) => {
                    *response = json!({ "action": Dismissal::Decline });
                }
                Step::Confirm(question) if matches!(question.mode, Mode::Url { .. }) => {
                    *response = json!({ "action": "accept" });
                }
                Step::Field(_, field) if !value.is_null() => {
                    response["content"][&field.name] = value.clone();
                }
                Step::Confirm(_) | Step::Field(..) => {}
            }
        }
        Self { responses, state }
    }

    /// The answer that dismisses all questions.
    pub fn dismissed(keys: &[String], how: Dismissal, state: Option<String>) -> Self {
        let responses = keys
            .iter()
            .map(|key| (key.clone(), json!({ "action": how })))
            .collect();
        Self { responses, state }
    }

    /// The answer to the one question of [`read_single`].
    pub fn into_single(mut self) -> Value {
        self.responses
            .remove(DEFAULT_KEY)
            .unwrap_or_else(|| json!({ "action": Dismissal::Cancel }))
    }
}

/// The steps in which the user is asked.
pub fn steps(questions: &[Question]) -> Vec<Step<'_>> {
    questions.iter().flat_map(steps_of).collect()
}

fn steps_of(question: &Question) -> Vec<Step<'_>> {
    match &question.mode {
        Mode::Form(fields) if !fields.is_empty() => fields
            .iter()
            .map(|field| Step::Field(question, field))
            .collect(),
        Mode::Form(_) | Mode::Url { .. } => vec![Step::Confirm(question)],
    }
}

impl Step<'_> {
    /// The name that an answer over the API gives.
    pub fn name(&self) -> &str {
        match self {
            Self::Field(_, field) => &field.name,
            Self::Confirm(_) => "confirm",
        }
    }

    pub fn question(&self) -> &Question {
        match self {
            Self::Field(question, _) | Self::Confirm(question) => question,
        }
    }

    /// What a text means as the answer; `Null` leaves a field out.
    pub fn value(&self, text: &str) -> Result<Value, AnswerError> {
        match self {
            Self::Field(_, field) => field.value(text),
            Self::Confirm(_) => form::yes_or_no(text)
                .map(Value::Bool)
                .ok_or(AnswerError::NotABoolean),
        }
    }
}
