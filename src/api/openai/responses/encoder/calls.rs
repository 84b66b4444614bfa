//! The events of the tool calls of an answer and of their results.

use super::Encoder;
use crate::{
    api::openai::responses::wire::{
        ArgumentsDeltaEvent, ArgumentsEvent, CallEvent, ItemEvent, McpCall, OutputItem,
        ResponseEvent, item_id,
    },
    domain::message::{CallStatus, ToolCall, ToolResult},
};

impl Encoder {
    pub(super) fn add_call(&mut self, call: &ToolCall) -> Vec<ResponseEvent> {
        let output_index = self.items.len();
        self.calls.insert(call.call_id.clone(), output_index);
        let mut item = McpCall {
            id: item_id("mcp", self.info.run.id, output_index),
            status: "in_progress",
            approval_request_id: None,
            arguments: String::new(),
            error: None,
            name: call.tool.as_ref().unwrap_or(&call.name).clone(),
            output: None,
            server_label: call.server.clone().unwrap_or_default(),
        };
        let (item_id, arguments) = (item.id.clone(), call.arguments.get().to_owned());
        let events = vec![
            ResponseEvent::ItemAdded(ItemEvent {
                sequence_number: self.next(),
                output_index,
                item: OutputItem::McpCall(item.clone()),
            }),
            ResponseEvent::CallStarted(CallEvent {
                sequence_number: self.next(),
                item_id: item_id.clone(),
                output_index,
            }),
            ResponseEvent::ArgumentsDelta(ArgumentsDeltaEvent {
                sequence_number: self.next(),
                item_id: item_id.clone(),
                output_index,
                delta: arguments.clone(),
            }),
            ResponseEvent::ArgumentsDone(ArgumentsEvent {
                sequence_number: self.next(),
                item_id,
                output_index,
                arguments: arguments.clone(),
            }),
        ];
        item.arguments = arguments;
        self.items.push(OutputItem::McpCall(item));
        events
    }

    pub(super) fn add_result(
        &mut self,
        call: &ToolCall,
        result: &ToolResult,
    ) -> Vec<ResponseEvent> {
        let Some(output_index) = self.calls.remove(&call.call_id) else {
            return Vec::new();
        };
        let Some(OutputItem::McpCall(item)) = self.items.get_mut(output_index) else {
            return Vec::new();
        };
        let text = Some(result.text.clone());
        (item.status, item.output, item.error) = match result.status {
            CallStatus::Succeeded => ("completed", text, None),
            CallStatus::AwaitingApproval
            | CallStatus::AwaitingInput
            | CallStatus::OutcomeUnknown => ("incomplete", text, None),
            CallStatus::Failed | CallStatus::Denied | CallStatus::Cancelled => {
                ("failed", None, text)
            }
        };
        let item = item.clone();
        let ended = match item.status {
            "failed" => ResponseEvent::CallFailed,
            _ => ResponseEvent::CallCompleted,
        };
        vec![
            ended(CallEvent {
                sequence_number: self.next(),
                item_id: item.id.clone(),
                output_index,
            }),
            ResponseEvent::ItemDone(ItemEvent {
                sequence_number: self.next(),
                output_index,
                item: OutputItem::McpCall(item),
            }),
        ]
    }
}
