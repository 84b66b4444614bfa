//! From the library's events to our reply.
//!
//! Arguments are kept as the model wrote them, JSON or not: what is wrong with them goes back to the model as a
//! tool error, and never fails the step.

use std::collections::{HashMap, HashSet};

use rig_core::{
    completion::{CompletionResponse, FinishReason},
    message::{AssistantContent, CallId, ProviderCallId},
    streaming::StreamEvent,
};
use uuid::Uuid;

use super::{ModelCall, ModelError, Reply, StepRequest, Stop, Turn};
use crate::domain::{pack::Provider, run::Usage};

/// Call ids this short are counters, and start again in every reply.
const MIN_ID: usize = 9;
/// The longest id that all providers take back.
const MAX_ID: usize = 40;

/// What arrived of one answer so far.
#[derive(Default)]
pub(super) struct Draft {
    text: String,
    /// By position in the answer, while it arrives.
    arguments: HashMap<usize, String>,
    /// Of the calls that are whole.
    written: HashMap<CallId, String>,
}

impl Draft {
    /// Takes in one event; a piece of text is handed back for the user.
    pub(super) fn absorb(&mut self, event: StreamEvent) -> Option<String> {
        match event {
            StreamEvent::Text { text, .. } if !text.is_empty() => {
                self.text.push_str(&text);
                return Some(text);
            }
            StreamEvent::Arguments { part, json } => self
                .arguments
                .entry(part.index())
                .or_default()
                .push_str(&json),
            StreamEvent::End {
                part,
                content: AssistantContent::ToolCall(call),
            } => {
                let text = self.arguments.remove(&part.index()).unwrap_or_default();
                self.written.insert(call.id, text);
            }
            _ => {}
        }
        None
    }

    /// The reply that the provider ended with `response`.
    pub(super) fn finish(
        mut self,
        response: &CompletionResponse,
        provider: Provider,
        request: &StepRequest,
    ) -> Result<Reply, ModelError> {
        let stop = stop(response, provider)?;
        let mut ids: HashSet<String> = known_ids(request).map(str::to_owned).collect();
        let mut calls = Vec::new();
        if stop != Stop::ContentFilter {
            for call in response.tool_calls() {
                let arguments = self
                    .written
                    .remove(&call.id)
                    .unwrap_or_else(|| "{}".to_owned());
                calls.push(ModelCall {
                    call_id: unique(call.id.provider().map(ProviderCallId::as_str), &mut ids),
                    name: call.function.name.as_str().to_owned(),
                    arguments,
                });
            }
        }
        let stop = match stop {
            Stop::End | Stop::Other(_) if !calls.is_empty() => Stop::ToolCalls,
            Stop::ToolCalls if calls.is_empty() => Stop::End,
            stop => stop,
        };
        let usage = usage(response, request, &self.text, &calls);
        Ok(Reply {
            text: self.text,
            calls,
            stop,
            usage,
        })
    }

    /// The reply of a provider that refused to go on.
    pub(super) fn filtered(self, request: &StepRequest) -> Reply {
        let usage = estimate(request, &self.text, &[]);
        Reply {
            text: self.text,
            calls: Vec::new(),
            stop: Stop::ContentFilter,
            usage,
        }
    }
}

fn stop(response: &CompletionResponse, provider: Provider) -> Result<Stop, ModelError> {
    let stop = match response.finish_reason() {
        Some(FinishReason::ContentFilter) => return Ok(Stop::ContentFilter),
        Some(FinishReason::Stop) => Stop::End,
        Some(FinishReason::ToolCalls) => Stop::ToolCalls,
        Some(FinishReason::Length) => Stop::Length,
        Some(FinishReason::Other(reason)) => Stop::Other(reason),
        // Old daemons say that they are done and not why.
        None if provider == Provider::Ollama => return Ok(Stop::End),
        // The enum may grow; no reason at all means that the answer just ended.
        _ => return Err(ModelError::Truncated),
    };
    // A call that was begun and never ended.
    if response.error.is_some() {
        Err(ModelError::Truncated)
    } else {
        Ok(stop)
    }
}

fn known_ids(request: &StepRequest) -> impl Iterator<Item = &str> {
    request.history.iter().flat_map(|turn| match turn {
        Turn::Assistant { calls, .. } => calls.iter().map(|call| call.call_id.as_str()).collect(),
        _ => Vec::new(),
    })
}

/// The provider's id when it can be told from every other one; else a fresh one.
fn unique(id: Option<&str>, taken: &mut HashSet<String>) -> String {
    let usable = |id: &&str| {
        (MIN_ID..=MAX_ID).contains(&id.len())
            && id
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
            && !taken.contains(*id)
    };
    let id = id.filter(usable).map_or_else(
        || format!("call_{}", Uuid::now_v7().simple()),
        str::to_owned,
    );
    taken.insert(id.clone());
    id
}

/// What the provider counted; estimated where it did not.
fn usage(
    response: &CompletionResponse,
    request: &StepRequest,
    text: &str,
    calls: &[ModelCall],
) -> Usage {
    let count = |tokens: Option<u64>| tokens.and_then(|tokens| i64::try_from(tokens).ok());
    let mut usage = estimate(request, text, calls);
    // A prompt of no tokens is a counter that nobody filled.
    if let (Some(input @ 1..), Some(output)) = (
        count(response.usage.input_tokens),
        count(response.usage.output_tokens),
    ) {
        usage = Usage {
            input_tokens: input,
            output_tokens: output,
            estimated: false,
        };
    }
    usage
}

/// Four characters to a token: right within a factor of two for most text, and never nothing.
fn estimate(request: &StepRequest, text: &str, calls: &[ModelCall]) -> Usage {
    let size = |calls: &[ModelCall]| {
        calls
            .iter()
            .map(|call| call.name.len() + call.arguments.len())
            .sum::<usize>()
    };
    let history = request.history.iter().map(|turn| match turn {
        Turn::User(text) | Turn::ToolResult { text, .. } => text.len(),
        Turn::Assistant { text, calls } => text.len() + size(calls),
    });
    let tools = request
        .tools
        .iter()
        .map(|tool| tool.name.len() + tool.description.len() + tool.schema.get().len());
    let input = request.system.len() + history.sum::<usize>() + tools.sum::<usize>();
    let tokens = |bytes: usize| i64::try_from(bytes.div_ceil(4)).unwrap_or(i64::MAX);
    Usage {
        input_tokens: tokens(input),
        output_tokens: tokens(text.len() + size(calls)),
        estimated: true,
    }
}
