//! The native chat API of the Ollama daemon, which has `num_predict` and reports why it stopped: writes requests and reads
//! the records of answers.

use serde_json::{Map, Value, json};

use super::{
    Stop, answer_format,
    history::{self, Call, CallResult, Piece, Prepared},
    provider::{Request, UnsupportedParams},
    reply::{CallBuilder, Counts, ReplyBuilder},
};
use domain::pack::Llm;

const BASE: &str = "http://localhost:11434";
/// The tags around the thoughts of older models.
const OPENING: &str = "<think>";
const CLOSING: &str = "</think>";

/// Where the endpoint lists its models.
pub(super) fn models_url(base: Option<&str>) -> String {
    format!("{}/api/tags", without_version(base))
}

fn without_version(base: Option<&str>) -> &str {
    base.map_or(BASE, |base| base.strip_suffix("/v1").unwrap_or(base))
}

pub(super) fn write_request(
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
    let base = without_version(base);
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

/// The part of the stream that comes next. Older models write their thoughts between tags, before the answer.
pub(super) enum Reader {
    /// Before the opening tag, with text that may be the beginning of the tag.
    Start(String),
    /// Between the tags, with text that may be the beginning of the closing tag.
    Thinking(String),
    /// After the closing tag. Leading blanks are dropped.
    AfterThinking,
    Answer,
}

impl Reader {
    /// Adds one record to the reply; `true` after the last one.
    pub(super) fn read(&mut self, record: &Value, draft: &mut ReplyBuilder) -> bool {
        let message = &record["message"];
        if message["thinking"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
        {
            self.end_tag_search(draft);
        }
        self.add_text(message["content"].as_str().unwrap_or_default(), draft);
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            self.end_tag_search(draft);
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
        self.end_tag_search(draft);
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

    /// Adds text to the reply, without thoughts.
    fn add_text(&mut self, text: &str, draft: &mut ReplyBuilder) {
        if text.is_empty() {
            return;
        }
        match std::mem::replace(self, Self::Answer) {
            Self::Start(held) => self.add_start(held + text, draft),
            Self::Thinking(held) => {
                let held = held + text;
                if let Some((_, answer)) = held.split_once(CLOSING) {
                    *self = Self::AfterThinking;
                    self.add_text(answer, draft);
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

    /// Adds the beginning of the stream, which may be an opening tag.
    fn add_start(&mut self, held: String, draft: &mut ReplyBuilder) {
        let trimmed = held.trim_start();
        if let Some(thought) = trimmed.strip_prefix(OPENING) {
            *self = Self::Thinking(String::new());
            self.add_text(thought, draft);
        } else if OPENING.starts_with(trimmed) {
            *self = Self::Start(held);
        } else {
            draft.push(&held);
        }
    }

    /// Ends the search for tags: the text that was held is part of the answer.
    fn end_tag_search(&mut self, draft: &mut ReplyBuilder) {
        if let Self::Start(held) = std::mem::replace(self, Self::Answer) {
            draft.push(&held);
        }
    }
}
