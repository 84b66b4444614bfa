//! An answer on the screen, which grows with each piece.

use super::{markdown, style::Style};

/// An answer that is being streamed.
pub struct Answer {
    pub run: String,
    pub text: String,
    /// The rendered text that was written.
    pub shown: String,
    /// Whether the cursor is at the end of the written text, so that its lines can be written again.
    pub is_last: bool,
}

impl Answer {
    pub fn new(run: &str) -> Self {
        Self {
            run: run.to_owned(),
            text: String::new(),
            shown: String::new(),
            is_last: true,
        }
    }

    /// Writes the rendered text. Lines that are on the screen already are written again only if they have changed.
    pub fn write(&mut self, text: &str, out: &mut String) {
        if let Some(rest) = text.strip_prefix(self.shown.as_str()) {
            out.push_str(rest);
        } else {
            let both = self
                .shown
                .split_inclusive('\n')
                .zip(text.split_inclusive('\n'));
            let same: usize = both
                .take_while(|(old, new)| old == new)
                .map(|(old, _)| old.len())
                .sum();
            let rows = self.shown[same..].matches('\n').count();
            if self.is_last && rows < Style::rows() {
                out.push('\r');
                if rows > 0 {
                    out.push_str(&format!("\u{1b}[{rows}A"));
                }
                out.push_str("\u{1b}[J");
            } else if !self.shown.ends_with('\n') {
                out.push('\n');
            }
            out.push_str(&text[same..]);
        }
        text.clone_into(&mut self.shown);
    }
}

/// Renders an answer. Between pipes its Markdown is not rendered.
pub fn answer_text(text: &str, style: &Style) -> String {
    if style.is_terminal() {
        markdown::render(&clean(text), style)
    } else {
        format!("‹ {}", clean(text))
    }
}

pub fn clean(text: &str) -> String {
    let mut clean = String::new();
    push(&mut clean, text);
    clean
}

/// Appends a text without its control characters, because names and texts come from other users and servers.
pub fn push(to: &mut String, text: &str) {
    to.extend(
        text.chars()
            .filter(|c| !c.is_control() || matches!(c, '\n' | '\t')),
    );
}
