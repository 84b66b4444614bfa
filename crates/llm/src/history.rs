//! Converts the turns of a history to messages that every provider accepts.
//!
//! Providers refuse a whole conversation for one detail: a call without its result right after, a name with a
//! dot, an empty text, a schema that is not an object. One such row would break a conversation forever. This
//! module corrects all of them, so a history can be cut anywhere.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    ModelCall, StepRequest, ToolDef, Turn,
    provider::Restrictions,
    schema::{self, Dialect},
};
use domain::{
    answer_format::AnswerFormat,
    json::{Json, Members},
};

/// The result of a call whose own result is not in the history.
const NO_RESULT: &str = "there is no result of this call";
/// Sent in place of a blank text, which some providers refuse.
const NO_TEXT: &str = "(empty)";
/// An answer of the model between a result and the next question, where there was none: many chat templates require one.
const NO_ANSWER: &str = "[note of the chat program, not the assistant's words: the user went on before there was an answer]";
/// A user's message at the start of a history that begins with an answer: all providers require one there.
const BEGINNING_LEFT_OUT: &str = "(the beginning of the conversation is left out)";
/// An answer of the model between results and their images, for endpoints that take no images in results.
const IMAGES_FOLLOW: &str =
    "[note of the chat program, not the assistant's words: the images in these results follow]";
/// The most characters of a tool's description at endpoints that refuse longer ones.
const SHORT_DESCRIPTION: usize = 1024;
/// The bytes that are kept of a result that is shortened.
const SHORT_RESULT: usize = 1024;

/// Whether a text is one of those that stand in a history in the place of an answer. A model that repeats one has not
/// answered.
pub(super) fn is_placeholder(text: &str) -> bool {
    [NO_ANSWER, IMAGES_FOLLOW].contains(&text.trim())
}

/// A message as all providers have it.
#[derive(Debug)]
pub(super) enum Message<'a> {
    /// Texts and images of the user that follow one another.
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

/// The data of an image as Base64, for JSON.
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
    /// Images that the tool returned. [`chat_messages`] sends them as the user's, after the results.
    pub(super) images: Vec<Piece<'a>>,
}

/// A request with the names, schemas and descriptions that its endpoint accepts.
pub(super) struct Prepared<'a> {
    pub(super) system: Option<&'a str>,
    pub(super) tools: Vec<PreparedTool<'a>>,
    pub(super) format: Option<&'a AnswerFormat>,
    history: &'a [Turn],
    dialect: Dialect,
    /// By tool: from the server's names of properties to the names that the endpoint accepts.
    renamed: HashMap<&'a str, BTreeMap<String, String>>,
}

pub(super) struct PreparedTool<'a> {
    pub(super) name: String,
    pub(super) description: Cow<'a, str>,
    pub(super) schema: Value,
}

impl<'a> Prepared<'a> {
    pub(super) fn new(
        step: &'a StepRequest,
        dialect: Dialect,
        restrictions: &Restrictions,
    ) -> Self {
        let mut renamed = HashMap::new();
        let named = step.tools.iter().filter(|tool| !tool.name.is_empty());
        let prepare = |tool: &'a ToolDef| {
            let repaired = schema::for_endpoint(&tool.schema, restrictions.dialect(tool, dialect));
            if !repaired.renamed.is_empty() {
                let names = repaired.renamed.into_iter().map(|(new, old)| (old, new));
                renamed.insert(tool.name.as_str(), names.collect());
            }
            let description = tool.description.as_str();
            PreparedTool {
                name: dialect.tool_name(&tool.name),
                description: match description.char_indices().nth(SHORT_DESCRIPTION - 1) {
                    Some((end, _)) if restrictions.params.long_descriptions => {
                        format!("{}…", &description[..end]).into()
                    }
                    // A description is required of Gemini's functions.
                    None if description.is_empty() && dialect == Dialect::Gemini => {
                        tool.name.as_str().into()
                    }
                    _ => description.into(),
                },
                schema: repaired.schema,
            }
        };
        let tools = named.map(prepare).collect();
        Self {
            system: Some(step.system.as_str()).filter(|text| !text.trim().is_empty()),
            tools,
            format: step.format.as_ref(),
            history: &step.history,
            dialect,
            renamed,
        }
    }

    /// A call of the history with the names that this endpoint accepts.
    fn call(&self, call: &'a ModelCall) -> Call<'a> {
        let mut arguments = match Json::parse(&call.arguments) {
            Ok(arguments @ Json::Object(_)) => arguments,
            _ => Json::Object(Members::default()),
        };
        if let Some(names) = self.renamed.get(call.name.as_str()) {
            arguments.rename_members(names);
        }
        Call {
            id: &call.call_id,
            name: self.tool_name(&call.name),
            arguments,
        }
    }

    fn tool_name(&self, name: &str) -> String {
        self.dialect.tool_name(&legal_name(name))
    }

    /// The history as messages in an order that every provider accepts.
    pub(super) fn messages(&self) -> Vec<Message<'a>> {
        messages(self)
    }
}

fn messages<'a>(prepared: &Prepared<'a>) -> Vec<Message<'a>> {
    let history = prepared.history;
    let mut messages = Vec::with_capacity(history.len());
    let mut used = HashSet::new();
    for (at, turn) in history.iter().enumerate() {
        match turn {
            Turn::User(text) => add_piece(&mut messages, Piece::Text(non_blank(text))),
            Turn::Image { media_type, data } => {
                add_piece(&mut messages, Piece::Image { media_type, data });
            }
            Turn::Assistant { text, calls } => {
                let text = if text.trim().is_empty() { "" } else { text };
                if messages.is_empty() && !(text.is_empty() && calls.is_empty()) {
                    add_piece(&mut messages, Piece::Text(BEGINNING_LEFT_OUT));
                }
                match messages.last_mut() {
                    // Two answers in a row are one.
                    Some(Message::Assistant {
                        text: said,
                        calls: made,
                    }) if made.is_empty() => {
                        if !text.is_empty() {
                            let said = said.to_mut();
                            said.push_str("\n\n");
                            said.push_str(text);
                        }
                        made.extend(calls.iter().map(|call| prepared.call(call)));
                    }
                    _ if text.is_empty() && calls.is_empty() => {}
                    _ => messages.push(Message::Assistant {
                        text: text.into(),
                        calls: calls.iter().map(|call| prepared.call(call)).collect(),
                    }),
                }
                if !calls.is_empty() {
                    let results = calls
                        .iter()
                        .map(|call| result(prepared, call, at, &mut used));
                    messages.push(Message::Results(results.collect()));
                }
            }
            // Results were added right after their calls, above.
            Turn::ToolResult { .. } | Turn::ToolImage { .. } => {}
        }
    }
    messages
}

/// Adds a piece to the last message of the user, or begins one.
fn add_piece<'a>(messages: &mut Vec<Message<'a>>, piece: Piece<'a>) {
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

/// The texts among the pieces, joined by line ends.
pub(super) fn text_of(pieces: &[Piece<'_>]) -> String {
    let texts = pieces.iter().filter_map(|piece| match piece {
        Piece::Text(text) => Some(*text),
        Piece::Image { .. } => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The first result after `at` that belongs to `call` and was not used for another call, with its images.
fn result<'a>(
    prepared: &Prepared<'a>,
    call: &'a ModelCall,
    at: usize,
    used: &mut HashSet<usize>,
) -> CallResult<'a> {
    let history = prepared.history;
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
    let mut images = Vec::new();
    let (text, is_error) = found.map_or((NO_RESULT, true), |(index, text, is_error)| {
        used.insert(index);
        let following = history[index + 1..].iter();
        images.extend(following.map_while(|turn| match turn {
            Turn::ToolImage { media_type, data } => Some(Piece::Image { media_type, data }),
            _ => None,
        }));
        (text, is_error)
    });
    CallResult {
        id: &call.call_id,
        name: prepared.tool_name(&call.name),
        text: non_blank(text),
        is_error,
        images,
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

/// Shortens the results of tools, oldest first, so that a request stays below `budget` bytes. `fixed` is the size of the
/// request without its history. All older results are shortened at once and then none for many steps: so the beginning of
/// the requests stays the same, and the provider can serve it from its cache.
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

/// Shortens a history to about half: first the results, then the oldest turns. `false` when nothing can be left out.
pub(super) fn halve(history: &mut Vec<Turn>) -> bool {
    let before: usize = history.iter().map(size).sum();
    history.iter_mut().for_each(shorten);
    let mut left: usize = history.iter().map(size).sum();
    // The last message of the user and everything after it stay.
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
        && text.len() > 2 * SHORT_RESULT
    {
        let left_out = text.len() - SHORT_RESULT;
        text.truncate(text.floor_char_boundary(SHORT_RESULT));
        text.push_str(&format!(
            "\n[shortened: {left_out} bytes of this result are left out]"
        ));
    }
}

/// The approximate size of a turn in a request, in bytes.
pub(super) fn size(turn: &Turn) -> usize {
    match turn {
        Turn::User(text) | Turn::ToolResult { text, .. } => text.len(),
        Turn::Assistant { text, calls } => {
            let calls = calls
                .iter()
                .map(|call| call.name.len() + call.arguments.len());
            text.len() + calls.sum::<usize>()
        }
        // Providers count about a thousand tokens for an image of any size.
        Turn::Image { .. } | Turn::ToolImage { .. } => 4000,
    }
}

/// The messages as JSON in the form that OpenAI and Ollama share. `user`, `call` and `result` write the parts that differ.
pub(super) fn chat_messages(
    prepared: &Prepared<'_>,
    user: impl Fn(&[Piece<'_>]) -> Value,
    call: impl Fn(&Call<'_>) -> Value,
    result: impl Fn(&CallResult<'_>) -> Value,
) -> Vec<Value> {
    let system = prepared.system;
    let system = system.map(|text| json!({ "role": "system", "content": text }));
    let mut chat: Vec<Value> = system.into_iter().collect();
    for message in prepared.messages() {
        match message {
            Message::User(pieces) => chat.push(user(&pieces)),
            Message::Assistant { text, calls } => {
                let mut message = json!({ "role": "assistant", "content": text });
                if !calls.is_empty() {
                    message["tool_calls"] = calls.iter().map(&call).collect();
                }
                chat.push(message);
            }
            Message::Results(results) => {
                chat.extend(results.iter().map(&result));
                let images: Vec<Piece<'_>> = results
                    .into_iter()
                    .flat_map(|result| result.images)
                    .collect();
                if !images.is_empty() {
                    chat.push(json!({ "role": "assistant", "content": IMAGES_FOLLOW }));
                    chat.push(user(&images));
                }
            }
        }
    }
    chat
}

/// The tools as JSON in the form that OpenAI and Ollama share.
pub(super) fn function_tools(prepared: &Prepared<'_>) -> Vec<Value> {
    let function = |tool: &PreparedTool<'_>| {
        json!({ "type": "function", "function": {
            "name": tool.name, "description": tool.description, "parameters": tool.schema,
        } })
    };
    prepared.tools.iter().map(function).collect()
}
