//! Text out.

use std::io::{self, Write as _};

use super::client::News;

/// Shows an answer as it comes.
#[derive(Default)]
pub struct Screen {
    /// What was streamed since the last whole message.
    streamed: String,
}

impl Screen {
    pub fn show(&mut self, news: &News, run: &str) {
        match news {
            News::Delta { run: of, text } if of == run => {
                if self.streamed.is_empty() {
                    write("‹ ");
                }
                write(text);
                self.streamed.push_str(text);
            }
            News::Reset { run: of } if of == run => {
                self.break_line();
                write("  (interrupted; starting again)\n");
            }
            News::ToolStarted { run: of, server, tool } if of == run => {
                self.break_line();
                write(&format!("  ⚙ {server} {tool}\n"));
            }
            News::ToolProgress { run: of, text } if of == run && !text.is_empty() => write(&format!("  … {text}\n")),
            News::ToolFinished { run: of, status } if of == run && status != "succeeded" => {
                write(&format!("  ⚙ {status}\n"));
            }
            News::Message { role, run: of, text, .. } if of == run && role != "user" => self.message(role, text),
            _ => {}
        }
    }

    /// A whole message. What was streamed already is not said twice.
    fn message(&mut self, role: &str, text: &str) {
        let shown = role == "assistant" && !self.streamed.is_empty();
        if shown {
            self.break_line();
        } else if !text.is_empty() && role != "tool" {
            write(&format!("‹ {text}\n"));
        }
    }

    /// Ends the line of a streamed answer. Why a run failed was said as a message.
    pub fn end(&mut self) {
        self.break_line();
    }

    fn break_line(&mut self) {
        if !self.streamed.is_empty() {
            write("\n");
            self.streamed.clear();
        }
    }
}

fn write(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
