//! Collects the pieces of one answer and builds the reply from them.
//!
//! Arguments are kept as the model wrote them, JSON or not. Wrong arguments never fail the step; the model
//! gets a tool error for them.

use std::collections::HashSet;

use serde_json::Value;
use uuid::Uuid;

use super::{
    ModelCall, ModelError, Reply, StepRequest, Stop, Turn,
    provider::Refused,
    schema::{self, Dialect},
};
use domain::{
    json::{self, Json},
    run::Usage,
};

/// Call ids this short are counters, and start again in every reply.
const MIN_ID: usize = 9;
/// The longest id that all providers take back.
const MAX_ID: usize = 40;

/// The part of one answer that has arrived so far.
#[derive(Default)]
pub(super) struct ReplyBuilder {
    text: String,
    /// How many bytes of `text` have been emitted.
    emitted_bytes: usize,
    /// In the order in which the model began them.
    pub(super) calls: Vec<CallBuilder>,
    /// Why the provider ended the answer; `None` until it did.
    pub(super) stop: Option<Stop>,
    pub(super) usage: Counts,
}

/// Tokens, as far as the provider says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// All of the request, those from a cache included.
    pub(super) input: Option<u64>,
    pub(super) output: Option<u64>,
    /// Those of the input that came from a cache.
    pub(super) cached: Option<u64>,
}

/// A call that may still be incomplete.
#[derive(Default)]
pub(super) struct CallBuilder {
    /// The provider's number for the call or its block, if it has one.
    pub(super) slot: Option<u64>,
    pub(super) id: String,
    pub(super) name: String,
    /// The text of the arguments, as streamed.
    pub(super) arguments: String,
    /// The arguments when they came as one value. Text goes before them.
    pub(super) input: Option<Value>,
    /// The provider announced an end that has not come.
    pub(super) is_open: bool,
}

impl ReplyBuilder {
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// The text that has not been emitted yet.
    pub(super) fn take_text(&mut self) -> Option<String> {
        let text = self.text[self.emitted_bytes..].to_owned();
        self.emitted_bytes = self.text.len();
        Some(text).filter(|text| !text.is_empty())
    }

    /// Whether the answer can be complete as it is, although its provider did not say why it ended.
    pub(super) fn is_whole(&self) -> bool {
        let whole = |call: &CallBuilder| {
            !call.is_open
                && (call.input.is_some()
                    || call.arguments.trim().is_empty()
                    || is_object(&call.arguments))
        };
        (!self.text.is_empty() || !self.calls.is_empty()) && self.calls.iter().all(whole)
    }

    /// Bytes that have arrived so far.
    pub(super) fn size(&self) -> usize {
        let arguments = self.calls.iter().map(|call| call.arguments.len());
        self.text.len() + arguments.sum::<usize>()
    }

    pub(super) fn call_in(&mut self, slot: Option<u64>) -> Option<&mut CallBuilder> {
        self.calls.iter_mut().rfind(|call| call.slot == slot)
    }

    /// The reply, if the provider ended it.
    pub(super) fn finish(
        self,
        request: &StepRequest,
        dialect: Dialect,
        refused: &Refused,
    ) -> Result<Reply, ModelError> {
        let stop = self.stop.ok_or(ModelError::Truncated)?;
        let mut calls = Vec::new();
        if stop != Stop::ContentFilter {
            let mut ids: HashSet<String> = known_ids(request).map(str::to_owned).collect();
            // A call without a name cannot be made.
            let named = self.calls.into_iter().filter(|call| !call.name.is_empty());
            calls.extend(named.map(|call| call.finish(&mut ids)));
            for call in &mut calls {
                let mut tools = request.tools.iter();
                let Some(tool) = tools.find(|tool| dialect.tool_name(&tool.name) == call.name)
                else {
                    continue;
                };
                call.name.clone_from(&tool.name);
                let repaired = schema::for_endpoint(&tool.schema, refused.dialect(tool, dialect));
                if !repaired.renamed.is_empty() {
                    call.arguments = schema::rename_back(&call.arguments, &repaired.renamed);
                }
            }
        }
        let stop = match stop {
            Stop::End | Stop::Other(_) if !calls.is_empty() => Stop::ToolCalls,
            Stop::ToolCalls if calls.is_empty() => Stop::End,
            stop => stop,
        };
        let usage =
            reported_usage(self.usage).unwrap_or_else(|| estimate(request, &self.text, &calls));
        Ok(Reply {
            text: self.text,
            calls,
            stop,
            usage,
        })
    }
}

impl CallBuilder {
    fn finish(self, ids: &mut HashSet<String>) -> ModelCall {
        let arguments = match (self.arguments.trim(), self.input) {
            ("" | "null", None | Some(Value::Null)) => "{}".to_owned(),
            ("" | "null", Some(input)) => json::to_text(&input),
            _ => self.arguments,
        };
        ModelCall {
            call_id: unique_id(&self.id, ids),
            name: self.name,
            arguments,
        }
    }
}

/// Whether the text of some arguments is whole. The last character decides most cases without parsing.
pub(super) fn is_object(text: &str) -> bool {
    text.trim_end().ends_with('}') && Json::parse(text).is_ok_and(|json| json.as_object().is_some())
}

fn known_ids(request: &StepRequest) -> impl Iterator<Item = &str> {
    request.history.iter().flat_map(|turn| match turn {
        Turn::Assistant { calls, .. } => calls.iter().map(|call| call.call_id.as_str()).collect(),
        _ => Vec::new(),
    })
}

/// The provider's id if it is usable and not taken; else a new id.
fn unique_id(id: &str, taken: &mut HashSet<String>) -> String {
    let is_legal = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    let is_usable = (MIN_ID..=MAX_ID).contains(&id.len()) && id.bytes().all(is_legal);
    let id = if is_usable && !taken.contains(id) {
        id.to_owned()
    } else {
        format!("call_{}", Uuid::now_v7().simple())
    };
    taken.insert(id.clone());
    id
}

/// The usage that the provider says. Zero input tokens mean that it did not count.
fn reported_usage(counts: Counts) -> Option<Usage> {
    let count = |tokens: Option<u64>| i64::try_from(tokens?).ok();
    let input_tokens = count(counts.input).filter(|tokens| *tokens > 0)?;
    Some(Usage {
        input_tokens,
        cached_input_tokens: count(counts.cached).unwrap_or_default().min(input_tokens),
        output_tokens: count(counts.output)?,
        estimated: false,
    })
}

/// Four characters are taken as one token. For most text this is right within a factor of two.
fn estimate(request: &StepRequest, text: &str, calls: &[ModelCall]) -> Usage {
    let size = |calls: &[ModelCall]| {
        calls
            .iter()
            .map(|call| call.name.len() + call.arguments.len())
            .sum::<usize>()
    };
    let input = request.size();
    let tokens = |bytes: usize| i64::try_from(bytes.div_ceil(4)).unwrap_or(i64::MAX);
    Usage {
        input_tokens: tokens(input),
        cached_input_tokens: 0,
        output_tokens: tokens(text.len() + size(calls)),
        estimated: true,
    }
}
