//! Characters that nobody sees, that show a text in another order than it is read, or that steer a terminal. In the
//! words of a server or of a person they can deceive a reader, pass for a line of the program, or tell a model what no
//! person notices.
//!
//! What others wrote and people read passes through one of these functions: [`remove_hidden`] for a text of several
//! lines, [`one_line`] where one line is meant, [`clean_name`] for what somebody is called, [`escape_hidden`] where
//! nothing may be left out, [`escape_unclear`] where nothing may pass for anything else, [`fence`] where a text is shown
//! as Markdown.

use std::fmt::Write as _;

use super::lookalike::skeleton;

/// The combining marks that one letter of a name keeps: Vietnamese needs two, and more cover the lines above.
const MARKS: usize = 2;
/// Characters of a name that are shown.
const NAME: usize = 64;
/// The words of a name that is no sentence.
const WORDS: usize = 4;

/// Bytes of the longest control string (a title, a link) that is removed whole.
const CONTROL_STRING: usize = 4096;

/// Joiners and the like are no such characters: scripts and emoji need them.
pub(crate) fn is_hidden(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

fn joins(c: char) -> bool {
    matches!(c, '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}')
}

/// The first character of a text that is unseen, or that breaks or turns its line. In a name that stands for itself
/// joiners are such characters, too.
pub fn first_hidden(text: &str) -> Option<char> {
    let is_unseen =
        |c: char| is_hidden(c) || joins(c) || c.is_control() || breaks_line(c) || c == '\u{2800}';
    text.chars().find(|c| is_unseen(*c))
}

/// Whether it ends a line for some readers.
pub fn breaks_line(c: char) -> bool {
    matches!(
        c,
        '\n' | '\u{b}' | '\u{c}' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// The text without hidden characters and without what steers a terminal. Each of its lines ends with `\n`.
pub fn remove_hidden(text: &str) -> String {
    let is_plain =
        |c: char| matches!(c, '\n' | '\t') || !(c.is_control() || breaks_line(c) || is_hidden(c));
    if text.chars().all(is_plain) {
        return text.to_owned();
    }
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\r' => {
                rest = rest.strip_prefix('\n').unwrap_or(rest);
                clean.push('\n');
            }
            c if breaks_line(c) => clean.push('\n'),
            '\u{1b}' => {
                rest = match rest.as_bytes().first() {
                    Some(b'[') => skip_parameters(&rest[1..]),
                    Some(b']' | b'P' | b'X' | b'^' | b'_') => skip_string(&rest[1..]),
                    _ => rest,
                }
            }
            '\u{9b}' => rest = skip_parameters(rest),
            '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => rest = skip_string(rest),
            c if is_plain(c) => clean.push(c),
            _ => {}
        }
    }
    clean
}

/// What stands behind the parameters of a control sequence and the letter that ends it (ECMA-48).
fn skip_parameters(text: &str) -> &str {
    let end = text.trim_start_matches(|c| matches!(c, ' '..='?'));
    match end.as_bytes().first() {
        Some(b'@'..=b'~') => &end[1..],
        _ => text,
    }
}

/// What stands behind a control string. One that does not end takes nothing along.
fn skip_string(text: &str) -> &str {
    let near = &text[..text.floor_char_boundary(CONTROL_STRING)];
    let ends = ["\u{7}", "\u{1b}\\", "\u{9c}"].into_iter();
    let end = ends.filter_map(|end| near.find(end).map(|at| at + end.len()));
    end.min().map_or(text, |end| &text[end..])
}

/// The text in one line of at most so many characters, without hidden ones.
pub fn one_line(text: &str, most: usize) -> String {
    let clean = remove_hidden(text);
    let words: Vec<_> = clean.split_whitespace().collect();
    shorten(words.join(" "), most)
}

fn shorten(text: String, most: usize) -> String {
    if text.chars().nth(most).is_none() {
        return text;
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// What somebody is called, by a word that they or their frontend chose: one line of at most 64 characters, in which
/// nothing can pass for the program's own words. What reads like a sentence stands in quotation marks. A mark at the beginning of the program's lines, a code with its colon,
/// JSON and Markdown need characters that no name needs. `None` when nothing is left.
pub fn clean_name(text: &str) -> Option<String> {
    let line = one_line(text, text.len());
    let mut in_a_row = 0;
    let is_kept = |c: &char| {
        in_a_row = if is_combining(*c) { in_a_row + 1 } else { 0 };
        !joins(*c) && in_a_row <= MARKS
    };
    let chars: Vec<char> = line.chars().filter(is_kept).collect();
    let mut name = String::with_capacity(line.len());
    for (at, c) in chars.iter().enumerate() {
        // Ids have colons in the middle: `key:payroll`. An address has a slash behind its colon.
        let ends_word = *c == ':'
            && chars
                .get(at + 1)
                .is_none_or(|next| matches!(next, ' ' | '/'));
        name.push(if ends_word || marks(*c) { ' ' } else { *c });
    }
    let words: Vec<_> = name.split_whitespace().collect();
    let is_sentence = words.len() > WORDS || words.iter().any(|word| ends_clause(word));
    let name = shorten(words.join(" "), if is_sentence { NAME - 2 } else { NAME });
    let name = Some(name).filter(|name| name.contains(char::is_alphanumeric))?;
    Some(if is_sentence {
        format!("“{name}”")
    } else {
        name
    })
}

/// Marks that stand on the letter before them, however many there are.
fn is_combining(c: char) -> bool {
    matches!(c,
        '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}')
}

/// Whether a word ends as one within a sentence; initials and `Jr.` do not.
fn ends_clause(word: &str) -> bool {
    word.chars().count() > 3 && word.ends_with([',', ';', '.', '!', '?', ')'])
}

/// Characters of marks, pictures, JSON and Markdown.
fn marks(c: char) -> bool {
    matches!(c,
        '"' | '“' | '”' | '*' | '<' | '>' | '[' | '\\' | ']' | '`' | '{' | '}' | '~'
        | '\u{2190}'..='\u{2bff}' | '\u{e000}'..='\u{f8ff}' | '\u{fe19}' | '\u{ff1a}'
        | '\u{1f000}'..='\u{1faff}' | '\u{f0000}'..='\u{10ffff}')
}

/// A text in which every character that nobody sees stands as `\u202e`. JSON stays the same JSON.
pub fn escape_hidden(text: &str) -> String {
    let is_seen = |c: char| {
        matches!(c, '\n' | '\t') || !(c.is_control() || breaks_line(c) || is_hidden(c) || joins(c))
    };
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_seen(c) {
            escaped.push(c);
        } else {
            push_escape(&mut escaped, c);
        }
    }
    escaped
}

fn push_escape(to: &mut String, c: char) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        let _ = write!(to, "\\u{unit:04x}");
    }
}

/// JSON without white space for a person who decides about it: the same JSON, in which nothing passes for anything
/// else. Besides what [`escape_hidden`] escapes, these stand as `\u0430`: a blank that is not U+0020, or that a reader
/// cannot count at the end of a line, and a letter that looks like one of ASCII in a word where that deceives.
pub fn escape_unclear(json: &str) -> String {
    let chars: Vec<char> = json.chars().collect();
    let mut escaped = String::with_capacity(json.len());
    let mut at = 0_usize;
    for word in chars.chunk_by(|one, next| one.is_alphanumeric() && next.is_alphanumeric()) {
        let deceives = word.iter().any(char::is_ascii_alphanumeric)
            || word.len() > 1 && word.iter().all(|c| looks_ascii(*c));
        for c in word.iter().copied() {
            let before = at.checked_sub(1).and_then(|at| chars.get(at).copied());
            let after = chars.get(at + 1).copied();
            at += 1;
            let is_edge = |near: Option<char>| near.is_none_or(|near| matches!(near, ' ' | '"'));
            let is_clear = match c {
                ' ' => !is_edge(before) && !is_edge(after),
                '\u{2800}' => false,
                '\u{300}'..='\u{36f}' => !before.is_some_and(|before| before.is_ascii()),
                c => {
                    let is_unseen = c.is_control() || c.is_whitespace() || is_hidden(c) || joins(c);
                    !(is_unseen || deceives && looks_ascii(c))
                }
            };
            if is_clear {
                escaped.push(c);
            } else {
                push_escape(&mut escaped, c);
            }
        }
    }
    escaped
}

/// A letter or digit outside the Latin blocks that is read as one of ASCII.
fn looks_ascii(c: char) -> bool {
    c > '\u{24f}' && c.is_alphanumeric() && skeleton(c.encode_utf8(&mut [0; 4])).is_ascii()
}

/// The text of a server as a block of Markdown that nothing inside can end, in which no picture is loaded and no escape
/// sequence works. `language` may be empty.
pub fn fence(language: &str, text: &str) -> String {
    let text = remove_hidden(text);
    let runs = text.split(|c| c != '`').map(str::len);
    let fence = "`".repeat(runs.max().unwrap_or_default().max(2) + 1);
    format!("{fence}{language}\n{}\n{fence}", text.trim_end())
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

/// Who speaks at the beginning of a line that pretends to be the program's.
const SPEAKERS: [&str; 8] = [
    "system",
    "program",
    "chatelaine",
    "admin",
    "administrator",
    "assistant",
    "developer",
    "approval",
];

/// A text of a server in which each line that begins like one of the program's own (a mark, `SYSTEM:`) stands as a
/// quotation.
pub fn quote_imitations(text: &str) -> String {
    let quoted = text.split('\n').map(|line| {
        if imitates(line) {
            format!("> {}", line.trim_start())
        } else {
            line.to_owned()
        }
    });
    quoted.collect::<Vec<_>>().join("\n")
}

fn imitates(line: &str) -> bool {
    let line = fold(line);
    let line = line.trim_start();
    // A quotation is none, whatever it quotes.
    if line.starts_with('>') {
        return false;
    }
    let begin = |c: char| !c.is_alphanumeric() && !is_mark(c);
    let text = line.trim_start_matches(begin);
    if text.starts_with(is_mark) {
        return true;
    }
    let looks = |text: &str| skeleton(&text.to_lowercase()).to_lowercase();
    let (word, rest) = text.split_at(
        text.find(|c: char| !c.is_alphanumeric())
            .unwrap_or(text.len()),
    );
    let speaks = SPEAKERS.iter().any(|speaker| looks(speaker) == looks(word));
    let is_framed = line.starts_with(['[', '<', '(']) && rest.starts_with([']', '>', ')']);
    let has_colon = rest
        .trim_start_matches([' ', ']', '>', ')', '*', '_', '`'])
        .starts_with(':');
    (speaks && (is_framed || has_colon)) || looks(text).starts_with(&looks("from the program"))
}

/// Pictures with which the program begins its notices, and those that look like them.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{2190}'..='\u{2bff}' | '\u{1f000}'..='\u{1faff}')
}
