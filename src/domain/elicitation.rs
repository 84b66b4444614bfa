//! What a server asks the user in the middle of a call: a form of a few plain fields, or an address to open.
//! All of it is text of the server. It is capped, shown under the server's name, and never a request for a
//! secret.
//!
//! Invariant: an answer goes to the server that asked, with the state that the server gave, and nowhere else. It cannot
//! be printed.

mod form;
mod pending;
mod prompt;
mod secrets;

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};
use url::Url;

pub use self::{
    form::{AnswerError, Field, Format, Kind, match_choice, parse_boolean},
    pending::{Elicitation, Entered, Request, State},
    prompt::{fault_notice, prompt},
};

/// Questions of one answer, and fields of all of them.
const QUESTIONS: usize = 4;
const FIELDS: usize = 16;
/// Bytes of a server's own state, and of its questions.
const STATE: usize = 64 * 1024;
const BYTES: usize = 64 * 1024;
/// Characters of a message, and bytes of an address.
const MESSAGE: usize = 2000;
const ADDRESS: usize = 2000;

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

/// The key of a question that has no key of its own.
const DEFAULT_KEY: &str = "question";

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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawInputRequired<'a> {
    #[serde(borrow, default)]
    input_requests: Option<&'a RawValue>,
    #[serde(default)]
    request_state: Option<String>,
}

#[derive(Deserialize)]
struct WireRequest<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireElicitation<'a> {
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    message: String,
    #[serde(default)]
    url: Option<String>,
    #[serde(borrow, default)]
    requested_schema: Option<&'a RawValue>,
}

/// Reads an answer that asks for input; the error says why it cannot be understood at all.
pub fn read(result: &RawValue) -> Result<InputRequired, String> {
    let wire: RawInputRequired =
        serde_json::from_str(result.get()).map_err(|_| "it cannot be read".to_owned())?;
    if wire
        .request_state
        .as_ref()
        .is_some_and(|state| state.len() > STATE)
    {
        return Err(format!("its state has more than {STATE} bytes"));
    }
    let requests = wire.input_requests.map_or("{}", RawValue::get);
    if requests.len() > BYTES {
        return Err(format!("its questions have more than {BYTES} bytes"));
    }
    // The order of the server is the order in which the user is asked.
    let requests: OrderedMembers =
        serde_json::from_str(requests).map_err(|_| "its questions cannot be read".to_owned())?;
    if requests.0.is_empty() && wire.request_state.is_none() {
        return Err("it asks for nothing".to_owned());
    }
    let keys = requests.0.iter().map(|(key, _)| key.clone()).collect();
    Ok(InputRequired {
        keys,
        questions: questions(&requests.0),
        state: wire.request_state,
    })
}

/// Reads a question that a server asks while the call is open and whose answer it waits for.
pub fn read_single(params: Option<&RawValue>) -> InputRequired {
    let params = params.map_or("{}", RawValue::get);
    let question = if params.len() > BYTES {
        Err(Refusal::Unanswerable(format!(
            "a question of more than {BYTES} bytes"
        )))
    } else {
        parse_question(DEFAULT_KEY, params)
    };
    let questions = question.and_then(|question| check_count(vec![question]));
    InputRequired {
        keys: vec![DEFAULT_KEY.to_owned()],
        questions,
        state: None,
    }
}

/// An object whose members stay in the order of the text.
struct OrderedMembers(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for OrderedMembers {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = OrderedMembers;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<M: serde::de::MapAccess<'de>>(
                self,
                mut map: M,
            ) -> Result<OrderedMembers, M::Error> {
                let mut all = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    all.push(entry);
                }
                Ok(OrderedMembers(all))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

fn questions(requests: &[(String, Box<RawValue>)]) -> Result<Vec<Question>, Refusal> {
    if requests.len() > QUESTIONS {
        return Err(Refusal::Unanswerable(format!(
            "more than {QUESTIONS} questions at once"
        )));
    }
    check_count(
        requests
            .iter()
            .map(|(key, raw)| parse_request(key, raw))
            .collect::<Result<Vec<Question>, Refusal>>()?,
    )
}

fn check_count(questions: Vec<Question>) -> Result<Vec<Question>, Refusal> {
    if steps(&questions).len() > FIELDS {
        return Err(Refusal::Unanswerable(format!(
            "more than {FIELDS} fields at once"
        )));
    }
    Ok(questions)
}

fn parse_request(key: &str, raw: &RawValue) -> Result<Question, Refusal> {
    let unanswerable = |why: &str| Refusal::Unanswerable(why.to_owned());
    let request: WireRequest =
        serde_json::from_str(raw.get()).map_err(|_| unanswerable("it is no request"))?;
    if request.method != "elicitation/create" {
        return Err(Refusal::Unanswerable(format!(
            "{:?} instead of a question",
            readable(&request.method, 64)
        )));
    }
    parse_question(key, request.params.map_or("{}", RawValue::get))
}

fn parse_question(key: &str, params: &str) -> Result<Question, Refusal> {
    let unanswerable = |why: &str| Refusal::Unanswerable(why.to_owned());
    let asked: WireElicitation =
        serde_json::from_str(params).map_err(|_| unanswerable("a question that cannot be read"))?;
    let message = readable(&asked.message, MESSAGE);
    let mode = match asked.mode.as_deref() {
        None | Some("form") => {
            let fields = form::fields(asked.requested_schema.map_or("{}", RawValue::get))
                .map_err(Refusal::Unanswerable)?;
            if let Some(what) = secrets::asked_for(&message, &fields) {
                return Err(Refusal::Secret(what));
            }
            Mode::Form(fields)
        }
        Some("url") => {
            let (address, host) =
                address(asked.url.as_deref().unwrap_or_default()).map_err(unanswerable)?;
            Mode::Url { address, host }
        }
        Some(_) => return Err(unanswerable("a question of an unknown kind")),
    };
    Ok(Question {
        key: key.to_owned(),
        message,
        mode,
    })
}

/// An address that is safe to show: its host is spelt as browsers send it, so the user sees where the address
/// leads.
fn address(text: &str) -> Result<(Url, String), &'static str> {
    let url = Url::parse(text).map_err(|_| "an address that is none")?;
    let plain = text.len() <= ADDRESS && !text.chars().any(|c| c.is_control() || c.is_whitespace());
    if !plain
        || !matches!(url.scheme(), "https" | "http")
        || !url.username().is_empty()
        || url.password().is_some()
    {
        return Err("an address that nobody should open");
    }
    let host = url
        .host_str()
        .ok_or("an address without a host")?
        .to_owned();
    let host = url
        .port()
        .map_or(host.clone(), |port| format!("{host}:{port}"));
    Ok((url, host))
}

/// Text of a server: cut, in one direction, without control characters.
pub(super) fn readable(text: &str, most: usize) -> String {
    let hidden = |c: &char| {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        !turns && (!c.is_control() || *c == '\n')
    };
    let mut shown: String = text.chars().filter(hidden).take(most).collect();
    if text.chars().filter(hidden).count() > most {
        shown.push('…');
    }
    shown.trim().to_owned()
}
