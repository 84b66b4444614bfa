//! The events of the text of an answer.

use super::Encoder;
use crate::api::openai::responses::wire::{
    ContentPart, DeltaEvent, ItemEvent, OutputItem, OutputMessage, PartEvent, ResponseEvent,
    TextEvent, item_id,
};

impl Encoder {
    pub(super) fn add_text(&mut self, text: &str) -> Vec<ResponseEvent> {
        let mut events = Vec::new();
        if !self.is_open {
            events = self.open();
        }
        let output_index = self.items.len() - 1;
        let Some(OutputItem::Message(message)) = self.items.last_mut() else {
            return events;
        };
        if let Some(part) = message.content.first_mut() {
            part.text.push_str(text);
        }
        let item_id = message.id.clone();
        self.held.push_str(text);
        while let Some(end) = end_of_first(&self.held) {
            let rest = self.held.split_off(end);
            let delta = std::mem::replace(&mut self.held, rest);
            events.push(self.delta(item_id.clone(), output_index, delta));
        }
        events
    }

    fn delta(&mut self, item_id: String, output_index: usize, delta: String) -> ResponseEvent {
        ResponseEvent::TextDelta(DeltaEvent {
            sequence_number: self.next(),
            item_id,
            output_index,
            content_index: 0,
            delta,
            logprobs: [],
        })
    }

    /// Sends what is left of the open message.
    pub(super) fn flush(&mut self) -> Vec<ResponseEvent> {
        let (held, output_index) = (std::mem::take(&mut self.held), self.items.len());
        match self.items.last() {
            Some(OutputItem::Message(message)) if !held.is_empty() => {
                let item_id = message.id.clone();
                vec![self.delta(item_id, output_index - 1, held)]
            }
            _ => Vec::new(),
        }
    }

    /// Begins a message.
    fn open(&mut self) -> Vec<ResponseEvent> {
        let output_index = self.items.len();
        let mut message = OutputMessage {
            id: item_id("msg", self.info.run.id, output_index),
            status: "in_progress",
            role: "assistant",
            content: Vec::new(),
        };
        let added = ResponseEvent::ItemAdded(ItemEvent {
            sequence_number: self.next(),
            output_index,
            item: OutputItem::Message(message.clone()),
        });
        let part = ContentPart::text(String::new());
        let part_added = ResponseEvent::PartAdded(PartEvent {
            sequence_number: self.next(),
            item_id: message.id.clone(),
            output_index,
            content_index: 0,
            part: part.clone(),
        });
        message.content.push(part);
        self.items.push(OutputItem::Message(message));
        self.is_open = true;
        vec![added, part_added]
    }

    /// Ends the open message, if one is.
    pub(super) fn close(&mut self) -> Vec<ResponseEvent> {
        if !self.is_open {
            return Vec::new();
        }
        let mut events = self.flush();
        let Some(message) = self.finish_message("completed") else {
            return events;
        };
        let output_index = self.items.len() - 1;
        let (content_index, item_id) = (0, message.id.clone());
        let part = message.content[content_index].clone();
        events.extend([
            ResponseEvent::TextDone(TextEvent {
                sequence_number: self.next(),
                item_id: item_id.clone(),
                output_index,
                content_index,
                text: part.text.clone(),
                logprobs: [],
            }),
            ResponseEvent::PartDone(PartEvent {
                sequence_number: self.next(),
                item_id,
                output_index,
                content_index,
                part,
            }),
            ResponseEvent::ItemDone(ItemEvent {
                sequence_number: self.next(),
                output_index,
                item: OutputItem::Message(message),
            }),
        ]);
        events
    }

    pub(super) fn finish_message(&mut self, status: &'static str) -> Option<OutputMessage> {
        (self.is_open, self.is_reset) = (false, false);
        match self.items.last_mut() {
            Some(OutputItem::Message(message)) => {
                message.status = status;
                Some(message.clone())
            }
            _ => None,
        }
    }
}

/// Characters of the longest piece of a text.
const MAX_PIECE: usize = 16;

/// Where the first piece of a text ends: after a word and the blanks behind it, or after as many characters as a piece may
/// have. `None` while more text may belong to it. A text is cut in the same way whatever pieces it came in, so the same
/// number names the same event however often a response is read.
fn end_of_first(text: &str) -> Option<usize> {
    let mut blank = false;
    for (count, (at, c)) in text.char_indices().enumerate() {
        if count == MAX_PIECE || (blank && !c.is_whitespace()) {
            return Some(at);
        }
        blank = c.is_whitespace();
    }
    None
}
