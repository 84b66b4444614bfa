//! Reads what a server asks for from its JSON, within limits of count and size.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use url::Url;

use super::{InputRequired, Mode, Question, Refusal, form, secrets, steps};
use crate::hidden::{one_line, quote_imitations, remove_hidden};

/// Questions of one answer, and fields of all of them.
const QUESTIONS: usize = 4;

const FIELDS: usize = 16;

/// Bytes of a server's own state, and of its questions.
const STATE: usize = 64 * 1024;

const BYTES: usize = 64 * 1024;

/// Characters of a message, and bytes of an address.
const MESSAGE: usize = 2000;

const ADDRESS: usize = 2000;

/// The key of a question that has no key of its own.
pub(super) const DEFAULT_KEY: &str = "question";

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
    pub(super) mode: Option<String>,
    #[serde(default)]
    pub(super) message: String,
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
pub(super) struct OrderedMembers(pub(super) Vec<(String, Box<RawValue>)>);

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

pub(super) fn questions(requests: &[(String, Box<RawValue>)]) -> Result<Vec<Question>, Refusal> {
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

pub(super) fn check_count(questions: Vec<Question>) -> Result<Vec<Question>, Refusal> {
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
            one_line(&request.method, 64)
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
pub(super) fn address(text: &str) -> Result<(Url, String), &'static str> {
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

/// Text of a server: cut, in one direction, without control characters and what nobody sees. What imitates a notice of
/// the program is a quotation in it.
pub fn readable(text: &str, most: usize) -> String {
    let seen = remove_hidden(text);
    let mut seen = seen.chars().filter(|c| !c.is_control() || *c == '\n');
    let mut shown: String = seen.by_ref().take(most).collect();
    if seen.next().is_some() {
        shown.push('…');
    }
    quote_imitations(shown.trim())
}
