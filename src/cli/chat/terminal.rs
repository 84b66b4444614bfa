//! Lines in, text out.

use std::{
    borrow::Cow,
    io::{self, BufRead as _, Write as _},
};

use rustyline::{
    Editor, Helper,
    completion::Completer,
    error::ReadlineError,
    highlight::{CmdKind, Highlighter},
    hint::Hinter,
    history::FileHistory,
    validate::Validator,
};
use tokio::sync::mpsc;

use super::client::News;

/// The lines that a person types, or that a script pipes in. Reading happens in a thread of its own and
/// only when a line is wanted, so that the prompt never stands in an answer.
pub struct Lines {
    /// Whether the line is a secret.
    wanted: std::sync::mpsc::Sender<bool>,
    lines: mpsc::UnboundedReceiver<io::Result<String>>,
}

impl Lines {
    pub fn start(interactive: bool) -> Self {
        let (wanted, asks) = std::sync::mpsc::channel();
        let (sender, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            let mut editor = if interactive { Editor::<Mask, FileHistory>::new().ok() } else { None };
            while let Ok(secret) = asks.recv() {
                let line = match &mut editor {
                    Some(editor) => edit(editor, secret),
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

    /// The next line; `None` at the end of the input. A secret one is not shown while it is typed, and not
    /// remembered.
    pub async fn next(&mut self, secret: bool) -> io::Result<Option<String>> {
        if self.wanted.send(secret).is_err() {
            return Ok(None);
        }
        self.lines.recv().await.transpose()
    }
}

fn edit(editor: &mut Editor<Mask, FileHistory>, secret: bool) -> io::Result<Option<String>> {
    editor.set_helper(secret.then_some(Mask));
    loop {
        match editor.readline(if secret { "🔑 " } else { "› " }) {
            Ok(line) => {
                if !secret {
                    let _ = editor.add_history_entry(&line);
                }
                return Ok(Some(line));
            }
            Err(ReadlineError::Eof) => return Ok(None),
            // Ctrl-C at the prompt clears the line.
            Err(ReadlineError::Interrupted) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// Shows nothing of what is typed.
struct Mask;

impl Helper for Mask {}
impl Validator for Mask {}

impl Completer for Mask {
    type Candidate = String;
}

impl Hinter for Mask {
    type Hint = String;
}

impl Highlighter for Mask {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        Cow::Owned("•".repeat(line.chars().count()))
    }

    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        true
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
