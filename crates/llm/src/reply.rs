//! Collects the deltas of one answer and builds the reply from them.
//!
//! Arguments are kept as the model wrote them, even if they are not JSON. They never fail the step: the call fails later,
//! and the model reads why.

use std::collections::HashSet;

use serde_json::Value;
use uuid::Uuid;

use super::{
    ModelCall, ModelError, Reply, StepRequest, Stop, Turn, history,
    provider::Restrictions,
    schema::{self, Dialect},
};
use domain::{
    json::{self, Json},
    run::Usage,
};

/// Shorter call ids are counters that start again in every reply, so they are replaced.
const MIN_ID: usize = 9;
/// Longer call ids are replaced, since not all providers accept them in a history.
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

/// Token counts, as far as the provider reports them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// All tokens of the request, with those from a cache.
    pub(super) input: Option<u64>,
    pub(super) output: Option<u64>,
    /// The tokens of the request that came from a cache.
    pub(super) cached: Option<u64>,
}

/// A call that may still be incomplete.
#[derive(Default)]
pub(super) struct CallBuilder {
    /// The provider's index of the call or its content block, if it has one.
    pub(super) slot: Option<u64>,
    pub(super) id: String,
    pub(super) name: String,
    /// The text of the arguments, as streamed.
    pub(super) arguments: String,
    /// The arguments, if they came as one JSON value. `arguments` takes precedence.
    pub(super) input: Option<Value>,
    /// The provider marks the end of a call, and this one has not ended yet.
    pub(super) is_open: bool,
}

impl ReplyBuilder {
    /// Adds text to the answer.
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// The text that has not been emitted yet. It counts as emitted afterwards.
    pub(super) fn take_text(&mut self) -> Option<String> {
        let text = self.text[self.emitted_bytes..].to_owned();
        self.emitted_bytes = self.text.len();
        Some(text).filter(|text| !text.is_empty())
    }

    /// Whether the answer looks complete, for a provider that did not say why it ended.
    pub(super) fn is_whole(&self) -> bool {
        let whole = |call: &CallBuilder| {
            !call.is_open
                && (call.input.is_some()
                    || call.arguments.trim().is_empty()
                    || is_object(&call.arguments))
        };
        (!self.text.is_empty() || !self.calls.is_empty()) && self.calls.iter().all(whole)
    }

    /// The bytes of text and arguments so far.
    pub(super) fn size(&self) -> usize {
        let arguments = self.calls.iter().map(|call| call.arguments.len());
        self.text.len() + arguments.sum::<usize>()
    }

    /// The last call with this slot.
    pub(super) fn call_in(&mut self, slot: Option<u64>) -> Option<&mut CallBuilder> {
        self.calls.iter_mut().rfind(|call| call.slot == slot)
    }

    /// The reply, or an error when the provider did not end it. Names of tools and arguments become those that the servers
    /// know.
    pub(super) fn finish(
        self,
        request: &StepRequest,
        dialect: Dialect,
        restrictions: &Restrictions,
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
                let repaired =
                    schema::for_endpoint(&tool.schema, restrictions.dialect(tool, dialect));
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
        let usage = usage_from_counts(self.usage)
            .unwrap_or_else(|| estimate_usage(request, &self.text, &calls));
        let text = if history::is_placeholder(&self.text) {
            String::new()
        } else {
            self.text
        };
        Ok(Reply {
            text,
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

/// Whether a text is a complete JSON object. The last character decides most cases without parsing.
pub(super) fn is_object(text: &str) -> bool {
    text.trim_end().ends_with('}') && Json::parse(text).is_ok_and(|json| json.as_object().is_some())
}

fn known_ids(request: &StepRequest) -> impl Iterator<Item = &str> {
    request.history.iter().flat_map(|turn| match turn {
        Turn::Assistant { calls, .. } => calls.iter().map(|call| call.call_id.as_str()).collect(),
        _ => Vec::new(),
    })
}

/// The provider's id if it is usable and not taken, otherwise a new id.
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

/// The usage that the provider reported. Zero input tokens mean that it did not count.
fn usage_from_counts(counts: Counts) -> Option<Usage> {
    let count = |tokens: Option<u64>| i64::try_from(tokens?).ok();
    let input_tokens = count(counts.input).filter(|tokens| *tokens > 0)?;
    Some(Usage {
        input_tokens,
        cached_input_tokens: count(counts.cached).unwrap_or_default().min(input_tokens),
        output_tokens: count(counts.output)?,
        estimated: false,
    })
}

/// The usage when the provider reports none: four bytes count as one token, which is right within a factor of two for
/// most text.
fn estimate_usage(request: &StepRequest, text: &str, calls: &[ModelCall]) -> Usage {
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
