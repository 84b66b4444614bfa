//! Lines in, from a person or from a pipe.

use std::{
    borrow::Cow,
    io::{self, BufRead as _},
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
