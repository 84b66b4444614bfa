//! Lines in, text out.

use std::io::{self, BufRead as _, Write as _};

use rustyline::{DefaultEditor, error::ReadlineError};
use tokio::sync::mpsc;

use super::client::News;

/// The lines that a person types, or that a script pipes in. Reading happens in a thread of its own and
/// only when a line is wanted, so that the prompt never stands in an answer.
pub struct Lines {
    wanted: std::sync::mpsc::Sender<()>,
    lines: mpsc::UnboundedReceiver<io::Result<String>>,
}

impl Lines {
    pub fn start(interactive: bool) -> Self {
        let (wanted, asks) = std::sync::mpsc::channel();
        let (sender, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            let mut editor = if interactive { DefaultEditor::new().ok() } else { None };
            while asks.recv().is_ok() {
                let line = match &mut editor {
                    Some(editor) => edit(editor),
                    None => piped(),
                };
                let Some(line) = line.transpose() else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { wanted, lines }
    }

    /// The next line; `None` at the end of the input.
    pub async fn next(&mut self) -> io::Result<Option<String>> {
        if self.wanted.send(()).is_err() {
            return Ok(None);
        }
        self.lines.recv().await.transpose()
    }
}

fn edit(editor: &mut DefaultEditor) -> io::Result<Option<String>> {
    loop {
        match editor.readline("› ") {
            Ok(line) => {
                let _ = editor.add_history_entry(&line);
                return Ok(Some(line));
            }
            Err(ReadlineError::Eof) => return Ok(None),
            // Ctrl-C at the prompt clears the line.
            Err(ReadlineError::Interrupted) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

fn piped() -> io::Result<Option<String>> {
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line)?;
    Ok((read > 0).then_some(line))
}

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
            News::Message { role, run: of, text } if of == run && role != "user" => self.message(role, text),
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
