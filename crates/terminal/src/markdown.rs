//! Renders Markdown as lines for a terminal. It also renders a text that is still growing: more text mostly changes
//! only the end of the lines.

use pulldown_cmark::{Alignment, Event, Options, Parser, Tag, TagEnd};

use super::style::{BOLD, CODE, DIM, ITALIC, STRUCK, Style, UNDERLINED, width, wrap};

/// Renders a text, without a line break at its end.
pub fn render(text: &str, style: &Style) -> String {
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut page = Page {
        style,
        out: String::new(),
        line: Vec::new(),
        attributes: 0,
        prefixes: Vec::new(),
        lists: Vec::new(),
        table: None,
        links: Vec::new(),
        is_code: false,
        gap: false,
    };
    for event in Parser::new_ext(text, options) {
        page.add(event);
    }
    page.end_line();
    page.out.truncate(page.out.trim_end_matches('\n').len());
    page.out
}

struct Page<'s> {
    style: &'s Style,
    out: String,
    /// The characters of the current block.
    line: Vec<(char, u8)>,
    attributes: u8,
    prefixes: Vec<Prefix>,
    /// The next number of each open list; `None` for a list with bullets.
    lists: Vec<Option<u64>>,
    table: Option<Table>,
    /// The beginning of each open link in `line`, and its address.
    links: Vec<(usize, String)>,
    is_code: bool,
    /// Whether an empty line precedes the next block.
    gap: bool,
}

/// The beginning of the lines of a block.
struct Prefix {
    first: Option<String>,
    rest: String,
}

struct Table {
    alignments: Vec<Alignment>,
    rows: Vec<Vec<Vec<(char, u8)>>>,
}

impl Page<'_> {
    fn add(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) if self.is_code => self.code(&text),
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => self.text(&text, 0),
            Event::Code(text) => self.text(&text, CODE),
            Event::SoftBreak | Event::HardBreak if self.table.is_none() => self.end_line(),
            Event::Rule => {
                self.begin_block();
                let columns = self.style.columns().min(40);
                self.text(&"─".repeat(columns), DIM);
                self.end_block();
            }
            Event::TaskListMarker(done) => self.text(if done { "☑ " } else { "☐ " }, 0),
            _ => {}
        }
    }

    fn text(&mut self, text: &str, attributes: u8) {
        let attributes = self.attributes | attributes;
        for (at, part) in text.split('\n').enumerate() {
            if at > 0 {
                self.end_line();
            }
            self.line.extend(part.chars().map(|c| (c, attributes)));
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph => self.begin_block(),
            Tag::Heading { .. } => {
                self.begin_block();
                self.attributes |= BOLD | UNDERLINED;
            }
            Tag::CodeBlock(_) => {
                self.begin_block();
                self.is_code = true;
                self.prefixes.push(Prefix::new("  "));
            }
            Tag::BlockQuote(_) => {
                self.begin_block();
                self.prefixes.push(Prefix::new("│ "));
            }
            Tag::List(first) => {
                self.end_line();
                if self.lists.is_empty() {
                    self.begin_block();
                }
                self.lists.push(first);
            }
            Tag::Item => self.start_item(),
            Tag::Table(alignments) => {
                self.begin_block();
                let rows = Vec::new();
                self.table = Some(Table { alignments, rows });
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.rows.push(Vec::new());
                }
            }
            Tag::Emphasis => self.attributes |= ITALIC,
            Tag::Strong => self.attributes |= BOLD,
            Tag::Strikethrough => self.attributes |= STRUCK,
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.links.push((self.line.len(), dest_url.into_string()));
                self.attributes |= UNDERLINED;
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.end_block(),
            TagEnd::Heading(_) => {
                self.attributes &= !(BOLD | UNDERLINED);
                self.end_block();
            }
            TagEnd::CodeBlock => {
                self.is_code = false;
                self.prefixes.pop();
                self.gap = true;
            }
            TagEnd::BlockQuote(_) => {
                self.end_line();
                self.prefixes.pop();
                self.gap = true;
            }
            TagEnd::List(_) => {
                self.lists.pop();
                self.gap = self.lists.is_empty();
            }
            TagEnd::Item => {
                self.end_line();
                self.prefixes.pop();
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.line);
                if let Some(row) = self.table.as_mut().and_then(|table| table.rows.last_mut()) {
                    row.push(cell);
                }
            }
            TagEnd::Table => self.end_table(),
            TagEnd::Emphasis => self.attributes &= !ITALIC,
            TagEnd::Strong => self.attributes &= !BOLD,
            TagEnd::Strikethrough => self.attributes &= !STRUCK,
            TagEnd::Link | TagEnd::Image => self.end_link(),
            _ => {}
        }
    }

    fn start_item(&mut self) {
        self.end_line();
        // A loose list has a gap between its items.
        self.begin_block();
        let mark = match self.lists.last_mut() {
            Some(Some(number)) => {
                *number += 1;
                format!("{}. ", *number - 1)
            }
            _ => "• ".to_owned(),
        };
        self.prefixes.push(Prefix {
            rest: " ".repeat(mark.chars().count()),
            first: Some(mark),
        });
    }

    /// Writes the address of a link after its text, unless they are equal.
    fn end_link(&mut self) {
        self.attributes &= !UNDERLINED;
        let Some((at, address)) = self.links.pop() else {
            return;
        };
        let text = self.line.get(at..).unwrap_or_default();
        let text: String = text.iter().map(|(c, _)| *c).collect();
        if text != address && !address.is_empty() {
            self.text(&format!(" ({address})"), DIM);
        }
    }

    fn begin_block(&mut self) {
        self.end_line();
        if std::mem::take(&mut self.gap) && !self.out.is_empty() {
            let rest: String = self
                .prefixes
                .iter()
                .map(|prefix| prefix.rest.as_str())
                .collect();
            self.out.push_str(rest.trim_end());
            self.out.push('\n');
        }
    }

    fn end_block(&mut self) {
        self.end_line();
        self.gap = true;
    }

    /// Writes the current block over as many lines as it needs.
    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return;
        }
        let indent: usize = self
            .prefixes
            .iter()
            .map(|prefix| prefix.rest.chars().count())
            .sum();
        let columns = self.style.columns().saturating_sub(indent).max(10);
        for line in wrap(&line, columns) {
            self.write(&line);
        }
    }

    fn code(&mut self, text: &str) {
        let indent: usize = self
            .prefixes
            .iter()
            .map(|prefix| prefix.rest.chars().count())
            .sum();
        let columns = self.style.columns().saturating_sub(indent).max(10);
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            let line: Vec<_> = line.chars().map(|c| (c, CODE)).collect();
            // Code keeps its blanks. Only a line that is wider than the terminal is cut.
            for piece in cut(&line, columns) {
                self.write(piece);
            }
        }
    }

    fn write(&mut self, line: &[(char, u8)]) {
        let mut prefixed = Vec::new();
        for prefix in &mut self.prefixes {
            let mark = prefix.first.take();
            let mark = mark.as_deref().unwrap_or(&prefix.rest);
            prefixed.extend(mark.chars().map(|c| (c, if c == ' ' { 0 } else { DIM })));
        }
        prefixed.extend_from_slice(line);
        self.style.write(&prefixed, &mut self.out);
        self.out.push('\n');
    }

    fn end_table(&mut self) {
        let Some(Table { alignments, rows }) = self.table.take() else {
            return;
        };
        let wide = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| width(cell)).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..alignments.len()).map(wide).collect();
        for (at, row) in rows.iter().enumerate() {
            let mut line = Vec::new();
            for (column, (most, alignment)) in widths.iter().zip(&alignments).enumerate() {
                let empty = Vec::new();
                let cell = row.get(column).unwrap_or(&empty);
                let spare = most - width(cell).min(*most);
                let before = match alignment {
                    Alignment::Right => spare,
                    Alignment::Center => spare / 2,
                    _ => 0,
                };
                let attribute = if at == 0 { BOLD } else { 0 };
                line.extend(std::iter::repeat_n((' ', 0), before));
                line.extend(cell.iter().map(|(c, a)| (*c, a | attribute)));
                line.extend(std::iter::repeat_n((' ', 0), spare - before + 2));
            }
            while line.last().is_some_and(|(c, _)| *c == ' ') {
                line.pop();
            }
            for piece in cut(&line, self.style.columns()) {
                self.write(piece);
            }
        }
        self.gap = true;
    }
}

impl Prefix {
    fn new(text: &str) -> Self {
        Self {
            first: None,
            rest: text.to_owned(),
        }
    }
}

/// Cuts a line into pieces of at most this number of columns. An empty line is one empty piece.
fn cut(line: &[(char, u8)], columns: usize) -> Vec<&[(char, u8)]> {
    let (mut pieces, mut from, mut used) = (Vec::new(), 0, 0);
    for at in 0..line.len() {
        let wide = width(&line[at..=at]);
        if used + wide > columns {
            pieces.push(&line[from..at]);
            (from, used) = (at, 0);
        }
        used += wide;
    }
    pieces.push(&line[from..]);
    pieces
}
