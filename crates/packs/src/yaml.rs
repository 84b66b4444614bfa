//! YAML text → a tree in which every node knows its place.
//!
//! Scalars stay text; the reader of a field decides what they mean. Allowed is one document with text keys,
//! without repeated keys, custom tags and merge keys. Size and depth are bounded, also after aliases are
//! expanded, so that no file can take the process down.

mod building;

use std::{collections::HashMap, ops::Range};

use granit_parser::Parser;

use self::building::{Builder, MAX_DEPTH};
use super::report::Position;

/// The fault of a text without a document.
pub(super) const EMPTY: &str = "the file is empty";
/// What a native pack starts with.
pub(super) const START: &str = "a pack starts with `metadata: { id: … }`";

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub at: Position,
    /// Bytes of the source.
    pub span: Range<usize>,
    /// Which of the texts of a context it is in.
    pub source: usize,
    pub origin: Origin,
    /// What to say about it where it is written out.
    pub note: Option<String>,
    pub value: Value,
}

/// Where a node comes from.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// It stands in the text like this.
    Written,
    /// `NodeBuilder` of what stands there, under this path.
    Translated(String),
    /// Generated; the text names the source.
    Generated(&'static str),
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    /// `plain`: without quotes, so it may be a number, a boolean or nothing.
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
    /// The key that is there twice.
    pub twice: Option<Box<DuplicateKey>>,
    /// Fields may be missing because of it, so nothing else is said of the document.
    pub hides_fields: bool,
}

/// A key that is there twice, with both values where they are single ones.
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
    /// Whether something stands before it on its line.
    pub beside: bool,
}

/// What a text holds.
pub(super) struct Parsed {
    pub root: Option<Node>,
    pub faults: Vec<SyntaxError>,
    pub comments: Vec<Comment>,
    /// Values that are not in the tree, with the paths of their keys.
    pub dropped: Vec<(String, Node)>,
}

/// Reads one document. A tree may come with faults (every duplicate key is reported); without a tree
/// there is at least one.
pub(super) fn parse(text: &str, source: usize) -> Parsed {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut options = granit_parser::Options::default();
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    let parser = Parser::new_from_str_with_options(text, options);
    let (faults, comments, dropped) = Default::default();
    let mut builder = Builder {
        parser,
        source,
        anchors: HashMap::new(),
        nodes: 0,
        faults,
        comments,
        dropped,
    };
    let root = match builder.document() {
        Ok(root) => Some(root),
        Err(fault) => {
            builder.faults.push(fault);
            None
        }
    };
    Parsed {
        root,
        faults: builder.faults,
        comments: builder.comments,
        dropped: builder.dropped,
    }
}

/// `parent.key`, with brackets around a key that would not read well.
pub(super) fn join(parent: &str, key: &str) -> String {
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
