//! Renders events as text in a readable order. Other text never cuts a streamed answer, and a message that
//! was streamed is not printed again.

use super::event::ConversationEvent;

#[derive(Default)]
pub struct Renderer {
    /// What is to be written.
    out: String,
    /// The run whose answer is on the last line.
    streaming: Option<String>,
    /// Text that waits for the end of that line.
    later: String,
    /// Deltas were missed, so the next message is printed in full.
    gap: bool,
    /// The number of the last message that was shown.
    seen: i64,
}

impl Renderer {
    /// Messages up to this one were shown as history.
    pub fn mark_shown(&mut self, seq: i64) {
        self.seen = self.seen.max(seq);
    }

    /// Another conversation; its messages are counted from one.
    pub fn switch_conversation(&mut self) {
        self.end_line();
        (self.seen, self.gap) = (0, false);
    }

    pub fn show(&mut self, event: &ConversationEvent) {
        match event {
            ConversationEvent::Delta { .. } if self.gap => {}
            ConversationEvent::Delta { run, text } => {
                if self.streaming.as_ref() != Some(run) {
                    self.end_line();
                    self.streaming = Some(run.clone());
                    self.out.push_str("‹ ");
                }
                push(&mut self.out, text);
            }
            ConversationEvent::Reset => self.interrupt("  (interrupted; starting again)"),
            ConversationEvent::ToolStarted { server, tool } => {
                self.print_line(&format!("  ⚙ {server} {tool}"));
            }
            ConversationEvent::ToolProgress { text } if !text.is_empty() => {
                self.print_line(&format!("  … {text}"));
            }
            ConversationEvent::ToolFinished { status } if status != "succeeded" => {
                self.print_line(&format!("  ⚙ {status}"));
            }
            ConversationEvent::Message {
                seq,
                role,
                run,
                text,
                ..
            } if *seq > self.seen => {
                self.seen = *seq;
                self.message(role, run, text);
            }
            ConversationEvent::Ended { run } if self.streaming.as_ref() == Some(run) => {
                self.end_line();
            }
            _ => {}
        }
    }

    fn message(&mut self, role: &str, run: &str, text: &str) {
        if role == "assistant" {
            self.gap = false;
            // What was streamed already is not said twice.
            if self.streaming.as_deref() == Some(run) {
                return self.end_line();
            }
        }
        if !matches!(role, "tool" | "user") && !text.is_empty() {
            self.print_line(&format!("‹ {text}"));
        }
    }

    /// Says something on lines of its own, after the line that is being streamed.
    pub fn print_line(&mut self, text: &str) {
        let to = if self.streaming.is_some() {
            &mut self.later
        } else {
            &mut self.out
        };
        push(to, text);
        to.push('\n');
    }

    /// Notes that deltas were missed.
    pub fn missed(&mut self) {
        self.gap = true;
        if self.streaming.is_some() {
            self.interrupt("  (interrupted)");
        }
    }

    fn interrupt(&mut self, why: &str) {
        self.end_line();
        self.print_line(why);
    }

    /// Whether the last line is still being written.
    pub fn is_streaming(&self) -> bool {
        self.streaming.is_some()
    }

    fn end_line(&mut self) {
        if self.streaming.take().is_some() {
            self.out.push('\n');
            self.out.push_str(&std::mem::take(&mut self.later));
        }
    }

    /// What is to be written now.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }

    /// The same, without a line that is not whole yet.
    pub fn take_lines(&mut self) -> String {
        let whole = self.out.rfind('\n').map_or(0, |end| end + 1);
        let rest = self.out.split_off(whole);
        std::mem::replace(&mut self.out, rest)
    }
}

/// Appends a text without control characters, because names and texts come from other users and servers.
fn push(to: &mut String, text: &str) {
    to.extend(
        text.chars()
            .filter(|c| !c.is_control() || matches!(c, '\n' | '\t')),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(seq: i64, role: &str, run: &str, text: &str) -> ConversationEvent {
        let (role, run, text) = (role.to_owned(), run.to_owned(), text.to_owned());
        ConversationEvent::Message {
            seq,
            role,
            run,
            text,
            secret: false,
            waits: false,
        }
    }

    fn delta(text: &str) -> ConversationEvent {
        ConversationEvent::Delta {
            run: "a".to_owned(),
            text: text.to_owned(),
        }
    }

    fn shown(renderer: &mut Renderer, event: &[ConversationEvent]) -> String {
        for event in event {
            renderer.show(event);
        }
        renderer.take()
    }

    #[test]
    fn a_streamed_answer_is_not_repeated_and_not_cut() {
        let mut renderer = Renderer::default();
        let other = message(1, "system", "b", "Meanwhile.");
        assert_eq!(
            shown(&mut renderer, &[delta("So "), other, delta("it ended.")]),
            "‹ So it ended."
        );
        assert_eq!(
            shown(
                &mut renderer,
                &[message(2, "assistant", "a", "So it ended.")]
            ),
            "\n‹ Meanwhile.\n"
        );
    }

    #[test]
    fn above_a_prompt_only_whole_lines_are_written() {
        let mut renderer = Renderer::default();
        renderer.show(&delta("one\ntwo"));
        assert_eq!(
            (renderer.take_lines(), renderer.take_lines()),
            ("‹ one\n".to_owned(), String::new())
        );
        renderer.show(&message(1, "assistant", "a", "one\ntwo"));
        assert_eq!(renderer.take_lines(), "two\n");
    }

    #[test]
    fn after_a_gap_the_whole_message_is_said() {
        let mut renderer = Renderer::default();
        assert_eq!(shown(&mut renderer, &[delta("So ")]), "‹ So ");
        renderer.missed();
        let rest = [
            delta("ended."),
            message(1, "assistant", "a", "So it ended."),
        ];
        assert_eq!(
            shown(&mut renderer, &rest),
            "\n  (interrupted)\n‹ So it ended.\n"
        );
    }

    #[test]
    fn history_is_not_said_again_and_nothing_steers_the_terminal() {
        let mut renderer = Renderer::default();
        renderer.mark_shown(1);
        let messages = [
            message(1, "system", "", "Old."),
            message(2, "system", "", "New\u{1b}[2J."),
        ];
        assert_eq!(shown(&mut renderer, &messages), "‹ New[2J.\n");
    }
}
