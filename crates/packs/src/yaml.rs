//! Parses YAML text into a tree in which every node knows its place.
//!
//! A scalar stays text; the reader of a field decides what it means. A text is one document whose keys are texts,
//! without repeated keys, custom tags and merge keys. Size and depth are bounded, also after aliases are expanded, so
//! that no file can use up the memory of the process.

use std::{borrow::Cow, collections::HashMap, ops::Range};

use granit_parser::{
    ErrorKind, Event, Parser, Placement, ScalarStyle, ScanError, Span, StrInput, Tag,
};

use super::report::Position;

/// The largest number of nodes in one document, with those that aliases repeat.
const MAX_NODES: usize = 50_000;
/// The largest depth of lists and maps in each other.
const MAX_DEPTH: usize = 64;
/// The message of the error for a text without a document.
pub(super) const EMPTY: &str = "the file is empty";
/// The hint of that error, for native packs.
pub(super) const START: &str = "a pack starts with `metadata: { id: … }`";

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub at: Position,
    /// The bytes of the node in its source.
    pub span: Range<usize>,
    /// The number of its source in the context.
    pub source: usize,
    pub origin: Origin,
    /// A comment to write above the node.
    pub note: Option<String>,
    pub value: Value,
}

/// Where a node comes from.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// The author wrote it.
    Written,
    /// Made from a node of another format. The text is the path of that node.
    Translated(String),
    /// Written in no file. The text says where the value comes from.
    Generated(&'static str),
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    /// `plain` if it has no quotes, so that it may be a number, a boolean or null.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Clone, Debug)]
pub(super) struct Key {
    pub text: String,
    pub at: Position,
}

/// A problem of the text itself.
#[derive(Debug)]
pub(super) struct SyntaxError {
    pub at: Position,
    pub path: String,
    pub message: String,
    pub hint: &'static str,
    /// Present if the problem is a repeated key.
    pub twice: Option<Box<DuplicateKey>>,
    /// Whether the tree may lack fields because of it. Then the document is not read.
    pub hides_fields: bool,
}

/// A repeated key, and both values if they are scalars.
#[derive(Debug)]
pub(super) struct DuplicateKey {
    pub key: String,
    pub values: [Option<String>; 2],
}

/// A comment, without its `#`.
#[derive(Clone, Debug)]
pub(super) struct Comment {
    pub source: usize,
    pub line: usize,
    pub text: String,
    /// Whether it follows a value on the same line.
    pub beside: bool,
}

/// The result of parsing a text.
pub(super) struct Parsed {
    pub root: Option<Node>,
    pub errors: Vec<SyntaxError>,
    pub comments: Vec<Comment>,
    /// Values that the tree lacks because of an error, with their paths.
    pub dropped: Vec<(String, Node)>,
}

/// Parses one document. Errors do not always prevent a tree: every repeated key is an error beside the tree. Without
/// a tree there is at least one error.
pub(super) fn parse(text: &str, source: usize) -> Parsed {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut options = granit_parser::Options::default();
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    let parser = Parser::new_from_str_with_options(text, options);
    let (errors, comments, dropped) = Default::default();
    let mut builder = Builder {
        parser,
        source,
        anchors: HashMap::new(),
        nodes: 0,
        errors,
        comments,
        dropped,
    };
    let root = match builder.build_document() {
        Ok(root) => Some(root),
        Err(error) => {
            builder.errors.push(error);
            None
        }
    };
    Parsed {
        root,
        errors: builder.errors,
        comments: builder.comments,
        dropped: builder.dropped,
    }
}

/// Joins a path and a key to `parent.key`, or to `parent["key"]` if the key has other characters than a name.
pub(super) fn join_path(parent: &str, key: &str) -> String {
    let plain = !key.is_empty()
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    match (plain, parent.is_empty()) {
        (true, true) => key.to_owned(),
        (true, false) => format!("{parent}.{key}"),
        (false, _) => format!("{parent}[{key:?}]"),
    }
}

type SpannedEvent<'t> = (Event<'t>, Span);

/// Builds the tree from the events of the YAML parser.
struct Builder<'t> {
    parser: Parser<'t, StrInput<'t>>,
    source: usize,
    /// The node of each anchor, with the number of nodes in it.
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
    errors: Vec<SyntaxError>,
    comments: Vec<Comment>,
    dropped: Vec<(String, Node)>,
}

impl<'t> Builder<'t> {
    /// The next event that is no comment. Comments are kept.
    fn next_event(&mut self) -> Result<SpannedEvent<'t>, SyntaxError> {
        loop {
            match self.next_event_or_comment()? {
                (Event::Comment(text, placement), span) => self.comments.push(Comment {
                    source: self.source,
                    line: position_of(&span).line,
                    text: text.into_owned(),
                    beside: placement == Placement::Right,
                }),
                next => return Ok(next),
            }
        }
    }

    fn next_event_or_comment(&mut self) -> Result<SpannedEvent<'t>, SyntaxError> {
        match self.parser.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(syntax_error(&error)),
            None => Err(new_error(
                Position { line: 1, column: 1 },
                "",
                "the document ends too early",
                "",
            )),
        }
    }

    fn build_document(&mut self) -> Result<Node, SyntaxError> {
        self.next_event()?; // the start of the stream
        let (event, span) = self.next_event()?;
        if matches!(event, Event::StreamEnd) {
            return Err(new_error(position_of(&span), "", EMPTY, START));
        }
        let first = self.next_event()?;
        let root = self.build_node(first, "")?;
        self.next_event()?; // the end of the document
        match self.next_event()? {
            (Event::StreamEnd, _) => Ok(root),
            (_, span) => Err(new_error(
                position_of(&span),
                "",
                "a second document starts here",
                "write one document a file, without `---`",
            )),
        }
    }

    fn build_node(
        &mut self,
        (event, span): SpannedEvent<'t>,
        path: &str,
    ) -> Result<Node, SyntaxError> {
        let at = position_of(&span);
        self.add_to_count(1, at, path)?;
        let before = self.nodes;
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (build_scalar(text, style, tag, at, path)?, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                refuse_tag(tag, at, path)?;
                (self.build_list(path)?, anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                refuse_tag(tag, at, path)?;
                (self.build_map(path)?, anchor)
            }
            Event::Alias(id) => return self.build_alias(id, at, path),
            _ => return Err(new_error(at, path, "a value is missing here", "")),
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

    fn build_alias(&mut self, id: usize, at: Position, path: &str) -> Result<Node, SyntaxError> {
        let Some((_, size)) = self.anchors.get(&id) else {
            return Err(new_error(
                at,
                path,
                "this alias is part of what it stands for",
                "write the value itself",
            ));
        };
        let size = *size;
        self.add_to_count(size, at, path)?;
        Ok(self.anchors[&id].0.clone())
    }

    /// Counts nodes, and refuses the document if it has too many.
    fn add_to_count(&mut self, nodes: usize, at: Position, path: &str) -> Result<(), SyntaxError> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes <= MAX_NODES {
            return Ok(());
        }
        let message = format!(
            "the document holds more than {MAX_NODES} values, counting what aliases repeat"
        );
        Err(SyntaxError {
            hint: "make it smaller",
            ..new_error(at, path, &message, "")
        })
    }

    fn build_list(&mut self, path: &str) -> Result<Value, SyntaxError> {
        let mut items = Vec::new();
        loop {
            match self.next_event()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                next => {
                    let item = self.build_node(next, &format!("{path}[{}]", items.len()))?;
                    items.push(item);
                }
            }
        }
    }

    fn build_map(&mut self, path: &str) -> Result<Value, SyntaxError> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        loop {
            let (event, span) = self.next_event()?;
            let at = position_of(&span);
            let text = match event {
                Event::MappingEnd => return Ok(Value::Map(entries)),
                Event::Scalar(text, ..) => text.into_owned(),
                _ => return Err(new_error(at, path, "a key must be text", "")),
            };
            let inner = join_path(path, &text);
            let next = self.next_event()?;
            let value = self.build_node(next, &inner)?;
            if text == "<<" {
                let hint = "write the fields out, or use an alias for a whole value";
                let error = new_error(at, path, "merge keys (`<<`) are not supported", hint);
                self.errors.push(SyntaxError {
                    hides_fields: true,
                    ..error
                });
                self.dropped.push((inner, value));
            } else if let Some((first, old)) = entries.iter().find(|(key, _)| key.text == text) {
                let message = format!(
                    "duplicate key {text:?}; the first one is on line {}",
                    first.at.line
                );
                let error = new_error(at, path, &message, "remove one of them");
                let values = [old, &value].map(|node| node.scalar_text().map(str::to_owned));
                self.errors.push(SyntaxError {
                    twice: Some(Box::new(DuplicateKey { key: text, values })),
                    ..error
                });
                self.dropped.push((inner, value));
            } else {
                entries.push((Key { text, at }, value));
            }
        }
    }
}

fn build_scalar(
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
        refuse_tag(tag, at, path)?;
    }
    Ok(Value::Scalar {
        text: text.into_owned(),
        plain: style == ScalarStyle::Plain && !forced,
    })
}

fn refuse_tag(tag: Option<Cow<'_, Tag>>, at: Position, path: &str) -> Result<(), SyntaxError> {
    let Some(tag) = tag else { return Ok(()) };
    let message = format!("the tag `{}` is not supported", tag.original());
    Err(new_error(at, path, &message, "remove it"))
}

fn position_of(span: &Span) -> Position {
    Position {
        line: span.start.line().max(1),
        column: span.start.col() + 1,
    }
}

fn new_error(at: Position, path: &str, message: &str, hint: &'static str) -> SyntaxError {
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
