//! Characters that nobody sees, or that show a text in another order than it is read. In a server's text they can
//! deceive a person, or tell a model what no person notices.

use std::fmt::Write as _;

/// Joiners and the like are no such characters: scripts and emoji need them.
fn is_hidden(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

fn joins(c: char) -> bool {
    matches!(c, '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}')
}

/// The first character of a text that is unseen, or that breaks or turns its line. In a name that stands for itself
/// joiners are such characters, too.
pub fn first_hidden(text: &str) -> Option<char> {
    let is_unseen = |c: char| {
        is_hidden(c)
            || joins(c)
            || c.is_control()
            || matches!(
                c,
                '\u{2028}' | '\u{2029}' | '\u{2800}' | '\u{fff9}'..='\u{fffb}'
            )
    };
    text.chars().find(|c| is_unseen(*c))
}

/// The text without them.
pub fn remove_hidden(text: &str) -> String {
    text.chars().filter(|c| !is_hidden(*c)).collect()
}

/// JSON in which they stand as `\u202e`, which is the same JSON.
pub fn escape_hidden(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if !is_hidden(c) {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped
}

/// The letters that a reader takes a text for: nothing unseen, and ASCII for its wide forms.
pub fn fold(text: &str) -> String {
    let seen = text.chars().filter(|c| !is_hidden(*c) && !joins(*c));
    let narrow = |c: char| match c {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(c) - 0xfee0).unwrap_or(c),
        c => c,
    };
    seen.map(narrow).collect()
}
