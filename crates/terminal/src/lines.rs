//! Reads lines from a terminal or from a pipe, and prints text above a line that is being typed.

use std::{
    borrow::Cow,
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    mem,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use rustyline::{
    CompletionType, Config, Context, Editor, ExternalPrinter as _, Helper, Prompt,
    completion::Completer,
    error::ReadlineError,
    highlight::{CmdKind, Highlighter},
    hint::Hinter,
    history::FileHistory,
    validate::Validator,
};
use tokio::sync::{Notify, mpsc};

use super::completion::Words;

/// Moves the cursor up and down again, which makes the editor write the prompt anew.
const REPAINT: &str = "\u{1b}[A\n";
/// Ends bracketed paste and clears the line.
const LEAVE: &str = "\u{1b}[?2004l\r\u{1b}[K";

/// The lines that a person types, or that a script pipes in. A thread of its own reads them, and only when a line is
/// wanted, so that the prompt never stands in the middle of an answer.
pub struct Lines {
    /// Asks the thread for a line; `true` asks for a secret.
    requests: std::sync::mpsc::Sender<bool>,
    input: mpsc::UnboundedReceiver<io::Result<String>>,
    /// The request for the line that is being typed: whether it is a secret.
    requested: Option<bool>,
    /// Prints above the line that is being typed. Printing may have to wait for the line, so it has a thread of its
    /// own.
    above: Option<std::sync::mpsc::Sender<String>>,
    /// Text that is printed when the secret that is being typed has ended.
    postponed: String,
    prompts: Arc<Prompts>,
    interrupted: Arc<Notify>,
    /// The terminal's mode before the start.
    before: Option<Termios>,
}

impl Lines {
    /// `prompts` are indexed by the number of waiting approvals and are all of the same width. `history` is the file
    /// with the lines of earlier starts.
    pub fn start(
        interactive: bool,
        prompts: Vec<String>,
        words: Words,
        history: Option<PathBuf>,
    ) -> Self {
        let (requests, received) = std::sync::mpsc::channel();
        let (sender, input) = mpsc::unbounded_channel();
        let prompts = Arc::new(Prompts {
            texts: prompts,
            at: AtomicUsize::new(0),
        });
        let interrupted = Arc::new(Notify::new());
        let before = if interactive {
            disable_line_editing()
        } else {
            None
        };
        let mut editor = if interactive {
            make_editor(history.as_deref(), words)
        } else {
            None
        };
        let above = editor.as_mut().and_then(start_printer);
        let (shown, interrupts) = (prompts.clone(), interrupted.clone());
        std::thread::spawn(move || {
            while let Ok(secret) = received.recv() {
                let line = match &mut editor {
                    Some(editor) => {
                        let line = edit_line(editor, secret, &shown, &interrupts);
                        if let Some(file) = &history
                            && !secret
                        {
                            // A history that cannot be kept is no reason to stop.
                            let _ = editor.append_history(file);
                        }
                        line
                    }
                    None => read_piped_line(),
                };
                let Some(line) = line.transpose() else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            requests,
            input,
            requested: None,
            above,
            postponed: String::new(),
            prompts,
            interrupted,
            before,
        }
    }

    /// Reads the next line; `None` at the end of the input. A secret is not shown while it is typed, and not kept in
    /// the history. The future may be dropped and made again: the line that is being typed stays.
    pub async fn next(&mut self, secret: bool) -> io::Result<Option<String>> {
        if self.requested.is_none() {
            if self.requests.send(secret).is_err() {
                return Ok(None);
            }
            self.requested = Some(secret);
        }
        let line = self.input.recv().await;
        self.requested = None;
        if !self.postponed.is_empty() {
            let postponed = mem::take(&mut self.postponed);
            self.print(postponed);
        }
        line.transpose()
    }

    /// Waits for Ctrl-C while a line is being typed. The editor clears the line.
    pub fn interrupted(&self) -> impl Future<Output = ()> + use<> {
        let interrupted = self.interrupted.clone();
        async move { interrupted.notified().await }
    }

    /// Whether the terminal shows a prompt.
    pub fn is_prompting(&self) -> bool {
        self.requested.is_some() && self.before.is_some()
    }

    /// Prints text. It comes above a line that is being typed, and after a secret. While a prompt is shown, the text
    /// must end with a line feed.
    pub fn print(&mut self, text: String) {
        match (self.requested, &self.above) {
            (Some(true), _) if self.before.is_some() => self.postponed.push_str(&text),
            // An error means that the thread is gone because the terminal is.
            (Some(_), Some(above)) => drop(above.send(text)),
            _ => write(&text),
        }
    }

    /// Shows in the prompt how many approvals wait for the user.
    pub fn count(&mut self, waiting: usize) {
        let at = waiting.min(self.prompts.texts.len() - 1);
        if self.prompts.at.swap(at, Ordering::Relaxed) != at
            && self.requested == Some(false)
            && let Some(above) = &self.above
        {
            let _ = above.send(REPAINT.to_owned());
        }
    }
}

/// Turns the terminal's own line editing off, so that keys typed between two lines reach the editor as they were typed,
/// above all Ctrl-D, which the terminal would swallow. Ctrl-C remains a signal. Returns the mode before.
fn disable_line_editing() -> Option<Termios> {
    let before = tcgetattr(io::stdin()).ok()?;
    let mut mode = before.clone();
    mode.local_flags
        .remove(LocalFlags::ICANON | LocalFlags::ECHO);
    tcsetattr(io::stdin(), SetArg::TCSANOW, &mode).ok()?;
    Some(before)
}

/// Restores the terminal, also when the user leaves in the middle of a line.
impl Drop for Lines {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && tcsetattr(io::stdin(), SetArg::TCSANOW, before).is_ok()
            && self.requested.is_some()
            && io::stdout().is_terminal()
        {
            write(LEAVE);
        }
    }
}

fn write(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Starts the thread that prints above a line; `None` where standard output is no terminal.
fn start_printer(
    editor: &mut Editor<LineHelper, FileHistory>,
) -> Option<std::sync::mpsc::Sender<String>> {
    let mut printer = editor.create_external_printer().ok()?;
    let (sender, texts) = std::sync::mpsc::channel();
    std::thread::spawn(move || texts.into_iter().try_for_each(|text| printer.print(text)));
    Some(sender)
}

struct Prompts {
    texts: Vec<String>,
    at: AtomicUsize,
}

impl Prompt for Prompts {
    fn raw(&self) -> &str {
        &self.texts[self.at.load(Ordering::Relaxed)]
    }
}

fn edit_line(
    editor: &mut Editor<LineHelper, FileHistory>,
    secret: bool,
    prompts: &Prompts,
    interrupted: &Notify,
) -> io::Result<Option<String>> {
    if let Some(helper) = editor.helper_mut() {
        helper.is_secret = secret;
    }
    loop {
        let line = if secret {
            editor.readline("🔑 ")
        } else {
            editor.readline(prompts)
        };
        match line {
            Ok(line) => {
                if !secret {
                    let _ = editor.add_history_entry(&line);
                }
                return Ok(Some(line));
            }
            Err(ReadlineError::Eof) => return Ok(None),
            // Ctrl-C at the prompt clears the line.
            Err(ReadlineError::Interrupted) => interrupted.notify_waiters(),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// Makes an editor that completes words and knows the lines of earlier starts.
fn make_editor(history: Option<&Path>, words: Words) -> Option<Editor<LineHelper, FileHistory>> {
    let config = Config::builder()
        .completion_type(CompletionType::List)
        .history_ignore_space(true)
        .build();
    let mut editor = Editor::with_config(config).ok()?;
    let is_secret = false;
    editor.set_helper(Some(LineHelper { words, is_secret }));
    if let Some(file) = history {
        if let Some(folder) = file.parent() {
            let _ = std::fs::create_dir_all(folder);
        }
        // The file does not exist at the first start.
        let _ = editor.load_history(file);
    }
    Some(editor)
}

/// Completes words. It shows dots for a secret and completes nothing in it.
struct LineHelper {
    words: Words,
    is_secret: bool,
}

impl Helper for LineHelper {}
impl Validator for LineHelper {}

impl Completer for LineHelper {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        if self.is_secret {
            return Ok((at, Vec::new()));
        }
        Ok(self.words.complete(&line[..at]))
    }
}

impl Hinter for LineHelper {
    type Hint = String;
}

impl Highlighter for LineHelper {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        if self.is_secret {
            Cow::Owned("•".repeat(line.chars().count()))
        } else {
            Cow::Borrowed(line)
        }
    }

    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        self.is_secret
    }
}

fn read_piped_line() -> io::Result<Option<String>> {
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line)?;
    Ok((read > 0).then_some(line))
}
