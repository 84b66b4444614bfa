//! Converts our turns to messages that every provider accepts.
//!
//! Providers refuse a whole conversation for one detail: a call without its result right after, a name with a
//! dot, an empty text, a schema that is not an object. One such row would break a conversation for good. This
//! module corrects all of these, so a history can be cut anywhere.

use std::{borrow::Cow, collections::HashSet};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{ModelCall, StepRequest, ToolDef, Turn, schema};
use crate::domain::{
    json::{Json, Members},
    pack::Provider,
};

/// The result of a call whose own result is not in the history.
const NO_RESULT: &str = "there is no result of this call";
/// Sent in place of a blank text, which some providers refuse.
const NO_TEXT: &str = "(empty)";
/// Stands between the result of a call and the next question, where no answer was given: many templates want one there.
const NO_ANSWER: &str = "(no answer was given)";
/// Bytes that are left of a result that is shortened.
const SHORT: usize = 1024;

#[derive(Debug)]
pub(super) enum Message<'a> {
    /// What the user said and showed, without anything of the model between.
    User(Vec<Piece<'a>>),
    Assistant {
        text: Cow<'a, str>,
        calls: Vec<Call<'a>>,
    },
    /// One result for each call of the message before, in the order of the calls.
    Results(Vec<CallResult<'a>>),
}

/// A text or an image of the user.
#[derive(Clone, Copy, Debug)]
pub(super) enum Piece<'a> {
    Text(&'a str),
    Image { media_type: &'a str, data: &'a [u8] },
}

/// The data of an image as JSON carries it.
pub(super) fn base64(data: &[u8]) -> String {
    STANDARD.encode(data)
}

#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) id: &'a str,
    pub(super) name: String,
    pub(super) arguments: Json,
}

#[derive(Debug)]
pub(super) struct CallResult<'a> {
    pub(super) id: &'a str,
    pub(super) name: String,
    pub(super) text: &'a str,
    pub(super) is_error: bool,
}

/// The system prompt, if there is one.
pub(super) fn system(request: &StepRequest) -> Option<&str> {
    Some(request.system.as_str()).filter(|text| !text.trim().is_empty())
}

pub(super) fn messages(history: &[Turn]) -> Vec<Message<'_>> {
    let mut messages = Vec::with_capacity(history.len());
    let mut used = HashSet::new();
    for (at, turn) in history.iter().enumerate() {
        match turn {
            Turn::User(text) => add(&mut messages, Piece::Text(non_blank(text))),
            Turn::Image { media_type, data } => {
                add(&mut messages, Piece::Image { media_type, data });
            }
            Turn::Assistant { text, calls } => {
                let text = if text.trim().is_empty() { "" } else { text };
                match messages.last_mut() {
                    // Two answers in a row are one.
                    Some(Message::Assistant {
                        text: said,
                        calls: made,
                    }) if made.is_empty() && !text.is_empty() => {
                        let said = said.to_mut();
                        said.push_str("\n\n");
                        said.push_str(text);
                        made.extend(calls.iter().map(call));
                    }
                    _ if text.is_empty() && calls.is_empty() => {}
                    _ => messages.push(Message::Assistant {
                        text: text.into(),
                        calls: calls.iter().map(call).collect(),
                    }),
                }
                if !calls.is_empty() {
                    let results = calls
                        .iter()
                        .map(|call| result(call, history, at, &mut used));
                    messages.push(Message::Results(results.collect()));
                }
            }
            // A result stands right after its call, or nowhere.
            Turn::ToolResult { .. } => {}
        }
    }
    messages
}

fn add<'a>(messages: &mut Vec<Message<'a>>, piece: Piece<'a>) {
    match messages.last_mut() {
        Some(Message::User(pieces)) => return pieces.push(piece),
        Some(Message::Results(_)) => messages.push(Message::Assistant {
            text: NO_ANSWER.into(),
            calls: Vec::new(),
        }),
        _ => {}
    }
    messages.push(Message::User(vec![piece]));
}

/// The texts of the user in one.
pub(super) fn text_of(pieces: &[Piece<'_>]) -> String {
    let texts = pieces.iter().filter_map(|piece| match piece {
        Piece::Text(text) => Some(*text),
        Piece::Image { .. } => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn call(call: &ModelCall) -> Call<'_> {
    Call {
        id: &call.call_id,
        name: legal_name(&call.name),
        arguments: match Json::parse(&call.arguments) {
            Ok(arguments @ Json::Object(_)) => arguments,
            _ => Json::Object(Members::default()),
        },
    }
}

/// The first result after `at` that belongs to `call` and was not used for another call.
fn result<'a>(
    call: &'a ModelCall,
    history: &'a [Turn],
    at: usize,
    used: &mut HashSet<usize>,
) -> CallResult<'a> {
    let found = history
        .iter()
        .enumerate()
        .skip(at + 1)
        .find_map(|(index, turn)| match turn {
            Turn::ToolResult {
                call_id,
                text,
                is_error,
                ..
            } if *call_id == call.call_id && !used.contains(&index) => {
                Some((index, text.as_str(), *is_error))
            }
            _ => None,
        });
    let (text, is_error) = found.map_or((NO_RESULT, true), |(index, text, is_error)| {
        used.insert(index);
        (text, is_error)
    });
    CallResult {
        id: &call.call_id,
        name: legal_name(&call.name),
        text: non_blank(text),
        is_error,
    }
}

fn non_blank(text: &str) -> &str {
    if text.trim().is_empty() {
        NO_TEXT
    } else {
        text
    }
}

/// A name that a model invented, changed so that providers accept it in a history.
fn legal_name(name: &str) -> String {
    let fold = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') {
            c
        } else {
            '_'
        }
    };
    let name: String = name.chars().map(fold).take(64).collect();
    if name.is_empty() {
        "unnamed".to_owned()
    } else {
        name
    }
}

/// Each tool with the schema of its arguments, as the provider takes it.
pub(super) fn tools(
    tools: &[ToolDef],
    provider: Provider,
) -> impl Iterator<Item = (&ToolDef, Value)> {
    let named = tools.iter().filter(|tool| !tool.name.is_empty());
    named.map(move |tool| {
        let repaired = schema::for_provider(&tool.schema, provider);
        (tool, repaired.schema)
    })
}

/// Shortens the results of tools, oldest first, so that a request stays below `budget` bytes. `fixed` is what the
/// request has beside its history. Many are shortened at once and then none for long, so that the beginning of a
/// conversation's requests stays the same.
pub(super) fn fit(history: &mut [Turn], fixed: usize, budget: usize) {
    let (mut total, mut whole_from) = (fixed, 0);
    for at in 0..history.len() {
        total += size(&history[at]);
        if total <= budget {
            continue;
        }
        for turn in &mut history[whole_from..at] {
            let before = size(turn);
            shorten(turn);
            total -= before - size(turn);
        }
        whole_from = at;
    }
}

/// Makes a request that is too long for its endpoint much shorter; `false` when there is nothing to leave out.
pub(super) fn halve(history: &mut Vec<Turn>) -> bool {
    let before: usize = history.iter().map(size).sum();
    history.iter_mut().for_each(shorten);
    let mut left: usize = history.iter().map(size).sum();
    // What the user said last stays, and what came after it.
    let last = history
        .iter()
        .rposition(|turn| matches!(turn, Turn::User(_)))
        .unwrap_or_default();
    let mut cut = 0;
    for (at, turn) in history[..last].iter().enumerate() {
        if left <= before / 2 && matches!(turn, Turn::User(_)) {
            cut = at;
            break;
        }
        left -= size(turn);
        cut = at + 1;
    }
    history.drain(..cut);
    left < before
}

fn shorten(turn: &mut Turn) {
    if let Turn::ToolResult { text, .. } = turn
        && text.len() > 2 * SHORT
    {
        let left_out = text.len() - SHORT;
        text.truncate(text.floor_char_boundary(SHORT));
        text.push_str(&format!(
            "\n[shortened: {left_out} bytes of this result are left out]"
        ));
    }
}

/// Bytes of a turn in a request, about.
pub(super) fn size(turn: &Turn) -> usize {
    match turn {
        Turn::User(text) | Turn::ToolResult { text, .. } => text.len(),
        Turn::Assistant { text, calls } => {
            let calls = calls
                .iter()
                .map(|call| call.name.len() + call.arguments.len());
            text.len() + calls.sum::<usize>()
        }
        // About a thousand tokens for an image, whatever its size.
        Turn::Image { .. } => 4000,
    }
}

/// The messages in the form that OpenAI and Ollama share. `user`, `call` and `result` write the parts that differ.
pub(super) fn chat_messages(
    request: &StepRequest,
    user: impl Fn(&[Piece<'_>]) -> Value,
    call: impl Fn(&Call<'_>) -> Value,
    result: impl Fn(&CallResult<'_>) -> Value,
) -> Vec<Value> {
    let system = system(request).map(|text| json!({ "role": "system", "content": text }));
    let mut chat: Vec<Value> = system.into_iter().collect();
    for message in messages(&request.history) {
        match message {
            Message::User(pieces) => chat.push(user(&pieces)),
            Message::Assistant { text, calls } => {
                let mut message = json!({ "role": "assistant", "content": text });
                if !calls.is_empty() {
                    message["tool_calls"] = calls.iter().map(&call).collect();
                }
                chat.push(message);
            }
            Message::Results(results) => chat.extend(results.iter().map(&result)),
        }
    }
    chat
}

/// The tools in the form that OpenAI and Ollama share.
pub(super) fn function_tools(request: &StepRequest, provider: Provider) -> Vec<Value> {
    let function = |(tool, schema): (&ToolDef, Value)| {
        json!({ "type": "function", "function": {
            "name": tool.name, "description": tool.description, "parameters": schema,
        } })
    };
    tools(&request.tools, provider).map(function).collect()
}
