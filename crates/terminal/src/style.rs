//! The look of text at a terminal: colours, and lines that end between words. Between pipes text is not changed.

use std::io::{self, IsTerminal as _};

use unicode_width::UnicodeWidthChar as _;

/// The attributes of a character, which are added up.
pub const BOLD: u8 = 1;
pub const ITALIC: u8 = 2;
pub const UNDERLINED: u8 = 4;
pub const CODE: u8 = 8;
pub const DIM: u8 = 16;
pub const STRUCK: u8 = 32;
pub const GREEN: u8 = 64;
pub const RED: u8 = 128;

/// The numbers of the attributes in ECMA-48 (SGR).
const CODES: [(u8, &str); 8] = [
    (BOLD, "1"),
    (ITALIC, "3"),
    (UNDERLINED, "4"),
    (CODE, "36"),
    (DIM, "2"),
    (STRUCK, "9"),
    (GREEN, "32"),
    (RED, "31"),
];

/// The width of a terminal that does not report it.
const DEFAULT_WIDTH: usize = 80;

#[derive(Clone, Copy, Debug)]
pub struct Style {
    is_terminal: bool,
    has_colours: bool,
    /// The width of the terminal; `None`: its current width.
    width: Option<usize>,
}

impl Style {
    /// The style of standard output.
    pub fn detect(no_color: bool) -> Self {
        let is_terminal = io::stdout().is_terminal();
        Self {
            is_terminal,
            has_colours: is_terminal && !no_color,
            width: None,
        }
    }

    /// The style of a terminal with colours and this width.
    pub fn of_width(width: usize) -> Self {
        Self {
            is_terminal: true,
            has_colours: true,
            width: Some(width),
        }
    }

    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// The columns of a line. The last one stays free, because terminals differ in how a full line ends.
    pub fn columns(&self) -> usize {
        let width = self.width.unwrap_or_else(|| {
            let size = terminal_size::terminal_size_of(io::stdout());
            size.map_or(DEFAULT_WIDTH, |(width, _)| usize::from(width.0))
        });
        width.max(20) - 1
    }

    pub fn rows() -> usize {
        let size = terminal_size::terminal_size_of(io::stdout());
        size.map_or(24, |(_, height)| usize::from(height.0))
    }

    /// The text with attributes, where there are colours.
    pub fn paint(&self, attributes: u8, text: &str) -> String {
        let mut painted = String::new();
        let characters: Vec<_> = text.chars().map(|c| (c, attributes)).collect();
        self.write(&characters, &mut painted);
        painted
    }

    /// Writes characters with their attributes, and resets the attributes at the end.
    pub fn write(&self, characters: &[(char, u8)], out: &mut String) {
        let mut now = 0;
        for (c, attributes) in characters {
            if *attributes != now && self.has_colours {
                out.push_str("\u{1b}[0");
                for (attribute, code) in CODES {
                    if attributes & attribute != 0 {
                        out.push(';');
                        out.push_str(code);
                    }
                }
                out.push('m');
                now = *attributes;
            }
            out.push(*c);
        }
        if now != 0 {
            out.push_str("\u{1b}[0m");
        }
    }

    /// Breaks text into lines that fit the terminal. Each continued line keeps the indentation of its first one.
    pub fn wrap(&self, text: &str) -> String {
        if !self.is_terminal {
            return text.to_owned();
        }
        let lines = text.split('\n').flat_map(|line| {
            let indentation: Vec<_> = line.chars().take_while(|c| *c == ' ').collect();
            let indent = indentation.len().min(self.columns() / 2);
            let words: Vec<_> = line
                .trim_start_matches(' ')
                .chars()
                .map(|c| (c, 0))
                .collect();
            let lines = wrap(&words, self.columns() - indent);
            lines.into_iter().map(move |line| {
                let line: String = line.iter().map(|(c, _)| *c).collect();
                format!("{}{line}", " ".repeat(indent))
            })
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// Breaks a line between words; a word that is wider than a line is cut.
pub fn wrap(line: &[(char, u8)], columns: usize) -> Vec<Vec<(char, u8)>> {
    let (mut lines, mut current, mut used) = (Vec::new(), Vec::new(), 0);
    for word in line.split_inclusive(|(c, _)| *c == ' ') {
        let needed = width(word.strip_suffix(&[(' ', 0)]).unwrap_or(word));
        if used > 0 && used + needed > columns {
            lines.push(std::mem::take(&mut current));
            used = 0;
        }
        for (c, attributes) in word {
            let wide = c.width().unwrap_or_default();
            if used + wide > columns && *c != ' ' {
                lines.push(std::mem::take(&mut current));
                used = 0;
            }
            current.push((*c, *attributes));
            used += wide;
        }
    }
    lines.push(current);
    for line in &mut lines {
        while line.last().is_some_and(|(c, _)| *c == ' ') {
            line.pop();
        }
    }
    lines
}

pub fn width(characters: &[(char, u8)]) -> usize {
    let widths = characters
        .iter()
        .map(|(c, _)| c.width().unwrap_or_default());
    widths.sum()
}
