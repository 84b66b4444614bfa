//! The Ollama daemon's own chat, which takes `num_predict` and says why it stopped.

use serde_json::{Map, Value, json};

use super::{
    Stop, answer_format,
    history::{self, Call, CallResult, Piece, Prepared},
    provider::{Request, UnsupportedParams},
    reply::{CallBuilder, Counts, ReplyBuilder},
};
use domain::pack::Llm;

const BASE: &str = "http://localhost:11434";
const OPENING: &str = "<think>";
const CLOSING: &str = "</think>";

pub(super) fn request(
    llm: &Llm,
    base: Option<&str>,
    prepared: &Prepared<'_>,
    without: UnsupportedParams,
) -> Request {
    let mut body = json!({ "model": llm.model, "stream": true });
    let tools = history::function_tools(prepared);
    if !tools.is_empty() {
        body["tools"] = tools.into();
    } else if let Some(format) = prepared.format {
        body["format"] = answer_format::ollama(format);
    }
    let temperature = llm
        .temperature
        .filter(|_| !without.temperature)
        .map(Value::from);
    let options = [
        ("temperature", temperature),
        ("num_predict", llm.max_tokens.map(Value::from)),
    ];
    let options = options
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let options: Map<String, Value> = options.collect();
    if !options.is_empty() {
        body["options"] = options.into();
    }
    body["messages"] = history::chat_messages(prepared, user, call, result).into();
    let base = base.map_or(BASE, |base| base.strip_suffix("/v1").unwrap_or(base));
    Request {
        url: format!("{base}/api/chat"),
        headers: &[],
        body,
    }
}

fn user(pieces: &[Piece<'_>]) -> Value {
    let mut message = json!({ "role": "user", "content": history::text_of(pieces) });
    let images = pieces.iter().filter_map(|piece| match piece {
        Piece::Text(_) => None,
        Piece::Image { data, .. } => Some(history::base64(data)),
    });
    let images: Vec<_> = images.collect();
    if !images.is_empty() {
        message["images"] = images.into();
    }
    message
}

fn call(call: &Call<'_>) -> Value {
    json!({ "id": call.id, "function": { "name": call.name, "arguments": call.arguments.to_value() } })
}

fn result(result: &CallResult<'_>) -> Value {
    json!({ "role": "tool", "tool_call_id": result.id, "tool_name": result.name, "content": result.text })
}

/// Which part of the stream comes next. Older models write their thoughts between tags, before the answer.
pub(super) enum Reader {
    /// Before the opening tag. Holds text that may be the beginning of the tag.
    Start(String),
    /// Between the tags. Holds text that may be the beginning of the closing tag.
    Thinking(String),
    /// After the closing tag. Leading blanks are dropped.
    AfterThinking,
    Answer,
}

impl Reader {
    /// Takes in one record; `true` after the last one.
    pub(super) fn read(&mut self, record: &Value, draft: &mut ReplyBuilder) -> bool {
        let message = &record["message"];
        if message["thinking"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
        {
            self.release(draft);
        }
        self.text(message["content"].as_str().unwrap_or_default(), draft);
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            self.release(draft);
            let function = &call["function"];
            let mut made = CallBuilder {
                id: call["id"].as_str().unwrap_or_default().to_owned(),
                name: function["name"].as_str().unwrap_or_default().to_owned(),
                ..CallBuilder::default()
            };
            match &function["arguments"] {
                Value::String(text) => made.arguments.clone_from(text),
                input => made.input = Some(input.clone()),
            }
            draft.calls.push(made);
        }
        if record["done"] != true {
            return false;
        }
        self.release(draft);
        draft.usage = Counts {
            input: record["prompt_eval_count"].as_u64(),
            output: record["eval_count"].as_u64(),
            cached: None,
        };
        draft.stop = Some(match record["done_reason"].as_str() {
            // Old daemons do not give a reason.
            None | Some("stop") => Stop::End,
            Some("length") => Stop::Length,
            Some(other) => Stop::Other(other.to_owned()),
        });
        true
    }

    fn text(&mut self, text: &str, draft: &mut ReplyBuilder) {
        if text.is_empty() {
            return;
        }
        match std::mem::replace(self, Self::Answer) {
            Self::Start(held) => self.start(held + text, draft),
            Self::Thinking(held) => {
                let held = held + text;
                if let Some((_, answer)) = held.split_once(CLOSING) {
                    *self = Self::AfterThinking;
                    self.text(answer, draft);
                } else {
                    let partial = (1..CLOSING.len())
                        .rev()
                        .find(|len| held.ends_with(&CLOSING[..*len]));
                    *self = Self::Thinking(CLOSING[..partial.unwrap_or_default()].to_owned());
                }
            }
            Self::AfterThinking if text.trim_start().is_empty() => *self = Self::AfterThinking,
            Self::AfterThinking => draft.push(text.trim_start()),
            Self::Answer => draft.push(text),
        }
    }

    fn start(&mut self, held: String, draft: &mut ReplyBuilder) {
        let trimmed = held.trim_start();
        if let Some(thought) = trimmed.strip_prefix(OPENING) {
            *self = Self::Thinking(String::new());
            self.text(thought, draft);
        } else if OPENING.starts_with(trimmed) {
            *self = Self::Start(held);
        } else {
            draft.push(&held);
        }
    }

    /// Ends the search for tags: the held text is part of the answer.
    fn release(&mut self, draft: &mut ReplyBuilder) {
        if let Self::Start(held) = std::mem::replace(self, Self::Answer) {
            draft.push(&held);
        }
    }
}
