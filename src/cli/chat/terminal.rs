//! Text out: what is heard, in an order that can be read. An answer that is being streamed is never cut by
//! something else, and what was streamed is not said again as a whole.

use super::news::News;

#[derive(Default)]
pub struct Screen {
    /// What is to be written.
    out: String,
    /// The run whose answer is on the last line.
    streaming: Option<String>,
    /// What has to wait for the end of that line.
    later: String,
    /// Deltas were missed: the next message is said whole.
    gap: bool,
    /// The number of the last message that was shown.
    seen: i64,
}

impl Screen {
    /// Messages up to this one were shown as history.
    pub fn saw(&mut self, seq: i64) {
        self.seen = self.seen.max(seq);
    }

    /// Another conversation; its messages are counted from one.
    pub fn turn(&mut self) {
        self.end_line();
        (self.seen, self.gap) = (0, false);
    }

    pub fn show(&mut self, news: &News) {
        match news {
            News::Delta { .. } if self.gap => {}
            News::Delta { run, text } => {
                if self.streaming.as_ref() != Some(run) {
                    self.end_line();
                    self.streaming = Some(run.clone());
                    self.out.push_str("‹ ");
                }
                push(&mut self.out, text);
            }
            News::Reset => self.interrupt("  (interrupted; starting again)"),
            News::ToolStarted { server, tool } => self.say(&format!("  ⚙ {server} {tool}")),
            News::ToolProgress { text } if !text.is_empty() => self.say(&format!("  … {text}")),
            News::ToolFinished { status } if status != "succeeded" => {
                self.say(&format!("  ⚙ {status}"));
            }
            News::Message {
                seq,
                role,
                run,
                text,
                ..
            } if *seq > self.seen => {
                self.seen = *seq;
                self.message(role, run, text);
            }
            News::Ended { run } if self.streaming.as_ref() == Some(run) => self.end_line(),
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
            self.say(&format!("‹ {text}"));
        }
    }

    /// Says something on lines of its own, after the line that is being streamed.
    pub fn say(&mut self, text: &str) {
        let to = if self.streaming.is_some() {
            &mut self.later
        } else {
            &mut self.out
        };
        push(to, text);
        to.push('\n');
    }

    /// Some of what was said was not heard.
    pub fn missed(&mut self) {
        self.gap = true;
        if self.streaming.is_some() {
            self.interrupt("  (interrupted)");
        }
    }

    fn interrupt(&mut self, why: &str) {
        self.end_line();
        self.say(why);
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

/// Names and texts come from strangers: what would steer the terminal is left out.
fn push(to: &mut String, text: &str) {
    to.extend(
        text.chars()
            .filter(|c| !c.is_control() || matches!(c, '\n' | '\t')),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(seq: i64, role: &str, run: &str, text: &str) -> News {
        let (role, run, text) = (role.to_owned(), run.to_owned(), text.to_owned());
        News::Message {
            seq,
            role,
            run,
            text,
            secret: false,
            waits: false,
        }
    }

    fn delta(text: &str) -> News {
        News::Delta {
            run: "a".to_owned(),
            text: text.to_owned(),
        }
    }

    fn shown(screen: &mut Screen, news: &[News]) -> String {
        for news in news {
            screen.show(news);
        }
        screen.take()
    }

    #[test]
    fn a_streamed_answer_is_not_repeated_and_not_cut() {
        let mut screen = Screen::default();
        let other = message(1, "system", "b", "Meanwhile.");
        assert_eq!(
            shown(&mut screen, &[delta("So "), other, delta("it ended.")]),
            "‹ So it ended."
        );
        assert_eq!(
            shown(&mut screen, &[message(2, "assistant", "a", "So it ended.")]),
            "\n‹ Meanwhile.\n"
        );
    }

    #[test]
    fn above_a_prompt_only_whole_lines_are_written() {
        let mut screen = Screen::default();
        screen.show(&delta("one\ntwo"));
        assert_eq!(
            (screen.take_lines(), screen.take_lines()),
            ("‹ one\n".to_owned(), String::new())
        );
        screen.show(&message(1, "assistant", "a", "one\ntwo"));
        assert_eq!(screen.take_lines(), "two\n");
    }

    #[test]
    fn after_a_gap_the_whole_message_is_said() {
        let mut screen = Screen::default();
        assert_eq!(shown(&mut screen, &[delta("So ")]), "‹ So ");
        screen.missed();
        let rest = [
            delta("ended."),
            message(1, "assistant", "a", "So it ended."),
        ];
        assert_eq!(
            shown(&mut screen, &rest),
            "\n  (interrupted)\n‹ So it ended.\n"
        );
    }

    #[test]
    fn history_is_not_said_again_and_nothing_steers_the_terminal() {
        let mut screen = Screen::default();
        screen.saw(1);
        let messages = [
            message(1, "system", "", "Old."),
            message(2, "system", "", "New\u{1b}[2J."),
        ];
        assert_eq!(shown(&mut screen, &messages), "‹ New[2J.\n");
    }
}
