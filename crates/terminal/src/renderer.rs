//! Renders events as text in a readable order. Other text never cuts a streamed answer, and a message that
//! was streamed is not printed again.
//!
//! At a terminal an answer is Markdown, which is rendered anew with each piece; only lines that have changed are
//! written again. Each tool call is one line.

use super::{
    answer::{Answer, answer_text, clean, push},
    event::ConversationEvent,
    local_time,
    style::{DIM, GREEN, RED, Style},
};

pub struct Renderer {
    style: Style,
    /// The text that is to be written.
    out: String,
    /// The answer that is on the last lines.
    streaming: Option<Answer>,
    /// The text that is written after that answer.
    later: String,
    /// The ids and names of the calls that are under way.
    calls: Vec<(String, String)>,
    /// Whether deltas were missed, so that the next message is printed in full.
    gap: bool,
    /// The number of the last message that was shown.
    seen: i64,
    /// The run that the person has stopped.
    stopped: Option<String>,
}

impl Renderer {
    pub fn new(style: Style) -> Self {
        Self {
            style,
            out: String::new(),
            streaming: None,
            later: String::new(),
            calls: Vec::new(),
            gap: false,
            seen: 0,
            stopped: None,
        }
    }

    /// Notes that the messages up to this number were shown as history.
    pub fn mark_shown(&mut self, seq: i64) {
        self.seen = self.seen.max(seq);
    }

    /// Switches to another conversation, whose messages are counted from one.
    pub fn switch_conversation(&mut self) {
        self.end_answer();
        self.calls.clear();
        (self.seen, self.gap) = (0, false);
    }

    pub fn show(&mut self, event: &ConversationEvent) {
        match event {
            ConversationEvent::Delta { .. } if self.gap => {}
            ConversationEvent::Delta { run, .. } if self.was_stopped(run) => {}
            ConversationEvent::Message { role, run, .. }
                if role == "assistant" && self.was_stopped(run) => {}
            ConversationEvent::Delta { run, text } => self.stream(run, text),
            ConversationEvent::Reset => self.interrupt("  (interrupted; starting again)"),
            ConversationEvent::ToolStarted { call, server, tool } => {
                self.calls.push((call.clone(), format!("{server} {tool}")));
                if !self.style.is_terminal() {
                    self.print_line(&format!("  ⚙ {server} {tool}"));
                }
            }
            ConversationEvent::ToolProgress { text } if !text.is_empty() => {
                self.print_line(&format!("  … {text}"));
            }
            ConversationEvent::ToolFinished {
                call,
                server,
                tool,
                status,
            } => {
                self.calls.retain(|(id, _)| id != call);
                self.finish_call(&format!("{server} {tool}"), status);
            }
            ConversationEvent::Message {
                seq,
                role,
                run,
                text,
                ..
            } if *seq > self.seen => {
                self.seen = *seq;
                self.show_message(role, run, text);
            }
            ConversationEvent::Ended { run, .. } if self.is_streaming_of(run) => self.end_answer(),
            _ => {}
        }
    }

    fn stream(&mut self, run: &str, text: &str) {
        if !self.is_streaming_of(run) {
            self.end_answer();
            self.streaming = Some(Answer::new(run));
        }
        if let Some(answer) = &mut self.streaming {
            push(&mut answer.text, text);
        }
    }

    fn was_stopped(&self, run: &str) -> bool {
        self.stopped.as_deref() == Some(run)
    }

    fn is_streaming_of(&self, run: &str) -> bool {
        let answer = self.streaming.as_ref();
        answer.is_some_and(|answer| answer.run == run)
    }

    fn finish_call(&mut self, name: &str, status: &str) {
        let succeeded = status == "succeeded";
        if !self.style.is_terminal() {
            if !succeeded {
                self.print_line(&format!("  ⚙ {status}"));
            }
            return;
        }
        let (colour, mark, end) = if succeeded {
            (GREEN, "✓", String::new())
        } else {
            (RED, "✗", format!(": {}", status.replace('_', " ")))
        };
        let name = self.style.paint(DIM, &clean(&format!("{name}{end}")));
        let line = format!("  {} {name}\n", self.style.paint(colour, mark));
        self.output().push_str(&line);
    }

    fn show_message(&mut self, role: &str, run: &str, text: &str) {
        if role == "assistant" {
            self.gap = false;
            // A message that was streamed is not printed again.
            if self.is_streaming_of(run) {
                return self.end_answer();
            }
        }
        if matches!(role, "tool" | "user") || text.is_empty() {
            return;
        }
        let text = match role {
            "assistant" => answer_text(text, &self.style),
            _ => format!("‹ {}", local_time::in_text(text)),
        };
        if role == "assistant" && self.style.is_terminal() {
            let output = self.output();
            output.push_str(&text);
            output.push('\n');
        } else {
            self.print_line(&text);
        }
    }

    /// Prints text on lines of its own, after the answer that is being streamed.
    pub fn print_line(&mut self, text: &str) {
        let text = self.style.wrap(&clean(text));
        let output = self.output();
        output.push_str(&text);
        output.push('\n');
    }

    fn output(&mut self) -> &mut String {
        if self.streaming.is_some() {
            &mut self.later
        } else {
            &mut self.out
        }
    }

    /// Notes that deltas were missed.
    pub fn missed(&mut self) {
        self.gap = true;
        if self.streaming.is_some() {
            self.interrupt("  (interrupted)");
        }
    }

    fn interrupt(&mut self, why: &str) {
        self.end_answer();
        self.print_line(why);
    }

    /// Whether the last line is still being written.
    pub fn is_streaming(&self) -> bool {
        self.streaming.is_some()
    }

    /// The tool that is being called, if there is one.
    pub fn current_call(&self) -> Option<&str> {
        self.calls.last().map(|(_, name)| name.as_str())
    }

    /// Ends the answer of a run with a line. Later pieces of it are not shown.
    pub fn stop_answer(&mut self, run: &str, why: &str) {
        self.end_answer();
        self.print_line(why);
        self.stopped = Some(run.to_owned());
        self.calls.clear();
    }

    fn end_answer(&mut self) {
        if let Some(mut answer) = self.streaming.take() {
            let whole = answer_text(&answer.text, &self.style);
            answer.write(&whole, &mut self.out);
            self.out.push('\n');
            self.out.push_str(&std::mem::take(&mut self.later));
        }
    }

    /// Takes the text that is to be written now.
    pub fn take(&mut self) -> String {
        if let Some(answer) = &mut self.streaming {
            let text = answer_text(&answer.text, &self.style);
            answer.write(&text, &mut self.out);
        }
        std::mem::take(&mut self.out)
    }

    /// Like [`Renderer::take`], but without an incomplete line, because a prompt is below.
    pub fn take_lines(&mut self) -> String {
        if let Some(answer) = &mut self.streaming {
            let whole = answer.text.rfind('\n').unwrap_or_default();
            let text = answer_text(&answer.text[..whole], &self.style) + "\n";
            if whole > 0 && text.starts_with(&answer.shown) {
                answer.write(&text, &mut self.out);
            }
            answer.is_last = false;
        }
        std::mem::take(&mut self.out)
    }
}
