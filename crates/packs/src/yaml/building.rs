//! Builds the tree from the events of the YAML parser, and limits its size.

use std::{borrow::Cow, collections::HashMap};

use granit_parser::{
    ErrorKind, Event, Parser, Placement, ScalarStyle, ScanError, Span, StrInput, Tag,
};

use super::{Comment, DuplicateKey, EMPTY, Key, Node, Origin, START, SyntaxError, Value, join};
use crate::report::Position;

/// Nodes of one document, those that aliases repeat included.
const MAX_NODES: usize = 50_000;

pub(super) const MAX_DEPTH: usize = 64;

type Next<'t> = (Event<'t>, Span);

pub(super) struct Builder<'t> {
    pub(super) parser: Parser<'t, StrInput<'t>>,
    pub(super) source: usize,
    /// Anchor → its node and how many nodes it is made of.
    pub(super) anchors: HashMap<usize, (Node, usize)>,
    pub(super) nodes: usize,
    pub(super) faults: Vec<SyntaxError>,
    pub(super) comments: Vec<Comment>,
    pub(super) dropped: Vec<(String, Node)>,
}

impl<'t> Builder<'t> {
    fn next(&mut self) -> Result<Next<'t>, SyntaxError> {
        loop {
            match self.event()? {
                (Event::Comment(text, placement), span) => self.comments.push(Comment {
                    source: self.source,
                    line: place(&span).line,
                    text: text.into_owned(),
                    beside: placement == Placement::Right,
                }),
                next => return Ok(next),
            }
        }
    }

    fn event(&mut self) -> Result<Next<'t>, SyntaxError> {
        match self.parser.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(syntax_error(&error)),
            None => Err(fault(
                Position { line: 1, column: 1 },
                "",
                "the document ends too early",
                "",
            )),
        }
    }

    pub(super) fn document(&mut self) -> Result<Node, SyntaxError> {
        self.next()?; // the start of the stream
        let (event, span) = self.next()?;
        if matches!(event, Event::StreamEnd) {
            return Err(fault(place(&span), "", EMPTY, START));
        }
        let first = self.next()?;
        let root = self.node(first, "")?;
        self.next()?; // the end of the document
        match self.next()? {
            (Event::StreamEnd, _) => Ok(root),
            (_, span) => Err(fault(
                place(&span),
                "",
                "a second document starts here",
                "write one document a file, without `---`",
            )),
        }
    }

    fn node(&mut self, (event, span): Next<'t>, path: &str) -> Result<Node, SyntaxError> {
        let at = place(&span);
        self.count(1, at, path)?;
        let before = self.nodes;
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (scalar(text, style, tag, at, path)?, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                no_tag(tag, at, path)?;
                (self.list(path)?, anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                no_tag(tag, at, path)?;
                (self.map(path)?, anchor)
            }
            Event::Alias(id) => return self.alias(id, at, path),
            _ => return Err(fault(at, path, "a value is missing here", "")),
        };
        let span = span.byte_range().unwrap_or_default();
        let node = Node {
            at,
            span,
            source: self.source,
            origin: Origin::Written,
            note: None,
            value,
        };
        if anchor != 0 {
            self.anchors
                .insert(anchor, (node.clone(), self.nodes - before + 1));
        }
        Ok(node)
    }

    fn alias(&mut self, id: usize, at: Position, path: &str) -> Result<Node, SyntaxError> {
        let Some((_, size)) = self.anchors.get(&id) else {
            return Err(fault(
                at,
                path,
                "this alias is part of what it stands for",
                "write the value itself",
            ));
        };
        let size = *size;
        self.count(size, at, path)?;
        Ok(self.anchors[&id].0.clone())
    }

    fn count(&mut self, nodes: usize, at: Position, path: &str) -> Result<(), SyntaxError> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes <= MAX_NODES {
            return Ok(());
        }
        let message = format!(
            "the document holds more than {MAX_NODES} values, counting what aliases repeat"
        );
        Err(SyntaxError {
            hint: "make it smaller",
            ..fault(at, path, &message, "")
        })
    }

    fn list(&mut self, path: &str) -> Result<Value, SyntaxError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                next => {
                    let item = self.node(next, &format!("{path}[{}]", items.len()))?;
                    items.push(item);
                }
            }
        }
    }

    fn map(&mut self, path: &str) -> Result<Value, SyntaxError> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            let at = place(&span);
            let text = match event {
                Event::MappingEnd => return Ok(Value::Map(entries)),
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err(fault(at, path, "a key must be text", "")),
            };
            let inner = join(path, &text);
            let next = self.next()?;
            let value = self.node(next, &inner)?;
            if text == "<<" {
                let hint = "write the fields out, or use an alias for a whole value";
                let fault = fault(at, path, "merge keys (`<<`) are not supported", hint);
                self.faults.push(SyntaxError {
                    hides_fields: true,
                    ..fault
                });
                self.dropped.push((inner, value));
            } else if let Some((first, old)) = entries.iter().find(|(key, _)| key.text == text) {
                let message = format!(
                    "duplicate key {text:?}; the first one is on line {}",
                    first.at.line
                );
                let fault = fault(at, path, &message, "remove one of them");
                let values = [old, &value].map(|node| node.scalar_text().map(str::to_owned));
                self.faults.push(SyntaxError {
                    twice: Some(Box::new(DuplicateKey { key: text, values })),
                    ..fault
                });
                self.dropped.push((inner, value));
            } else {
                entries.push((Key { text, at }, value));
            }
        }
    }
}

fn scalar(
    text: Cow<'_, str>,
    style: ScalarStyle,
    tag: Option<Cow<'_, Tag>>,
    at: Position,
    path: &str,
) -> Result<Value, SyntaxError> {
    let forced = tag
        .as_ref()
        .is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
    if !forced {
        no_tag(tag, at, path)?;
    }
    Ok(Value::Scalar {
        text: text.into_owned(),
        plain: style == ScalarStyle::Plain && !forced,
    })
}

fn no_tag(tag: Option<Cow<'_, Tag>>, at: Position, path: &str) -> Result<(), SyntaxError> {
    let Some(tag) = tag else { return Ok(()) };
    let message = format!("the tag `{}` is not supported", tag.original());
    Err(fault(at, path, &message, "remove it"))
}

fn place(span: &Span) -> Position {
    Position {
        line: span.start.line().max(1),
        column: span.start.col() + 1,
    }
}

pub(super) fn fault(at: Position, path: &str, message: &str, hint: &'static str) -> SyntaxError {
    SyntaxError {
        at,
        path: path.to_owned(),
        message: message.to_owned(),
        hint,
        twice: None,
        hides_fields: false,
    }
}

fn syntax_error(error: &ScanError) -> SyntaxError {
    let mark = error.marker();
    let quote = matches!(
        error.kind(),
        ErrorKind::InvalidQuotedScalarIndent | ErrorKind::UnclosedQuotedScalar
    );
    let hint = if quote {
        "close the quote that is open here"
    } else {
        ""
    };
    SyntaxError {
        at: Position {
            line: mark.line().max(1),
            column: mark.col() + 1,
        },
        path: String::new(),
        message: format!("invalid YAML: {}", error.info()),
        hint,
        twice: None,
        hides_fields: false,
    }
}
