//! A document while it is read: where values come from and where problems go.
//!
//! Reading never stops at the first problem. It also remembers which variables were used, for
//! the version of the pack, and where literal secrets stand, so that no excerpt shows them.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::{self, Path},
};

use super::{
    redact,
    report::{Excerpt, Position, Problem, Severity},
    yaml::{self, Comment, Node, Parsed, SyntaxError},
};
use crate::domain::{
    config::Environment,
    template::{Missing, Template},
};

/// Characters of a line that are shown.
const WIDTH: usize = 160;
/// The one variable that there always is.
const WORKSPACE_FOLDER: &str = "workspaceFolder";

/// Variables that are not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnsetPolicy {
    /// A problem that names them.
    Refused,
    /// No problem: the text counts as given and is not checked. Such a pack cannot be loaded.
    Allowed,
}

/// One text, and how problems name it.
pub(super) struct Source<'a> {
    pub file: String,
    pub text: &'a str,
}

pub(super) struct ParseContext<'a> {
    /// More than one where the pack is written in several files.
    sources: Vec<Source<'a>>,
    env: &'a Environment,
    unset: UnsetPolicy,
    /// The value of `${workspaceFolder}`: the folder of the pack, unless there is a variable of that name.
    folder: Option<String>,
    /// Whether problems may quote the document. `MCP_SERVERS_CONFIG` is there to hold secrets.
    quotable: bool,
    /// Each with the text it is about.
    problems: RefCell<Vec<(usize, Problem)>>,
    used: RefCell<BTreeMap<String, String>>,
    masked: RefCell<Vec<(usize, Range<usize>)>>,
    /// Texts without a tree, of which only keys are shown.
    unreadable: RefCell<BTreeSet<usize>>,
    comments: RefCell<Vec<Comment>>,
}

impl<'a> ParseContext<'a> {
    pub(super) fn new(file: &str, text: &'a str, env: &'a Environment, unset: UnsetPolicy) -> Self {
        Self::of(
            vec![Source {
                file: file.to_owned(),
                text,
            }],
            env,
            unset,
        )
    }

    /// Reads several texts.
    pub(super) fn of(
        mut sources: Vec<Source<'a>>,
        env: &'a Environment,
        unset: UnsetPolicy,
    ) -> Self {
        for source in &mut sources {
            source.text = source.text.strip_prefix('\u{feff}').unwrap_or(source.text);
        }
        Self {
            sources,
            env,
            unset,
            folder: None,
            quotable: true,
            problems: RefCell::default(),
            used: RefCell::default(),
            masked: RefCell::default(),
            unreadable: RefCell::default(),
            comments: RefCell::default(),
        }
    }

    /// Reads a file that this one names.
    pub(super) fn for_file<'b>(&self, file: &str, text: &'b str) -> ParseContext<'b>
    where
        'a: 'b,
    {
        ParseContext {
            folder: self.folder.clone(),
            ..ParseContext::new(file, text, self.env, self.unset)
        }
    }

    /// For a pack in this folder.
    #[must_use]
    pub(super) fn in_folder(mut self, folder: &Path) -> Self {
        self.folder = path::absolute(folder)
            .ok()
            .and_then(|path| Some(path.to_str()?.to_owned()));
        self
    }

    #[must_use]
    pub(super) fn without_excerpts(mut self) -> Self {
        self.quotable = false;
        self
    }

    /// The tree of the document; problems of the text are kept.
    pub(super) fn parse(&self) -> Option<Node> {
        self.parse_source(0, |_| None)
    }

    /// The same for one of several texts. `say` has other words for a problem, and a hint, if a format wants those.
    pub(super) fn parse_source(
        &self,
        source: usize,
        say: impl Fn(&SyntaxError) -> Option<(String, &'static str)>,
    ) -> Option<Node> {
        let text = self.sources[source].text;
        let Parsed {
            root,
            faults,
            comments,
            dropped,
        } = yaml::parse(text, source);
        self.comments.borrow_mut().extend(comments);
        let dropped = dropped
            .iter()
            .map(|(path, node)| (node, redact::is_below_secret_key(path)));
        for (node, all) in root.iter().map(|root| (root, false)).chain(dropped) {
            for span in redact::secret_spans(node, text, all) {
                self.mask(source, span);
            }
        }
        let syntax_only = root.is_none();
        for fault in faults {
            let (message, hint) = say(&fault).unwrap_or((fault.message, fault.hint));
            let mut problem =
                self.problem(Severity::Error, source, fault.at, fault.path, message, hint);
            if syntax_only {
                // Without a tree it is not known which values are secret.
                problem.excerpt = self.key_of_line(source, fault.at);
                self.unreadable.borrow_mut().insert(source);
            }
            self.keep(source, problem);
        }
        root
    }

    pub(super) fn report(
        &self,
        severity: Severity,
        source: usize,
        at: Position,
        path: &str,
        message: String,
        hint: &str,
    ) {
        let problem = self.problem(severity, source, at, path.to_owned(), message, hint);
        self.keep(source, problem);
    }

    fn keep(&self, source: usize, problem: Problem) {
        self.problems.borrow_mut().push((source, problem));
    }

    /// Whether something was found that refuses the pack.
    pub(super) fn is_refused(&self) -> bool {
        self.problems
            .borrow()
            .iter()
            .any(|(_, problem)| problem.severity == Severity::Error)
    }

    /// What a variable stands for.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let folder = || self.folder.as_deref().filter(|_| name == WORKSPACE_FOLDER);
        self.env.get(name).or_else(folder)
    }

    /// Whether a variable is missing, and that is a problem.
    pub(super) fn is_unset(&self, name: &str) -> bool {
        self.unset == UnsetPolicy::Refused && self.variable(name).is_none()
    }

    /// The names of the texts.
    pub(super) fn files(&self) -> Vec<String> {
        self.sources
            .iter()
            .map(|source| source.file.clone())
            .collect()
    }

    pub(super) fn comments(&self) -> Vec<Comment> {
        self.comments.borrow().clone()
    }

    /// The text with its variables. `Ok(None)`: a variable is not set, and that is allowed.
    pub(super) fn resolve(&self, template: &Template) -> Result<Option<String>, Missing> {
        let mut used = self.used.borrow_mut();
        for reference in template.references() {
            if let Some(value) = self.variable(&reference.key) {
                used.insert(reference.key.clone(), value.to_owned());
            }
        }
        match (
            template.resolve(|reference| self.variable(&reference.key)),
            self.unset,
        ) {
            (Ok(text), _) => Ok(Some(text)),
            (Err(_), UnsetPolicy::Allowed) => Ok(None),
            (Err(missing), UnsetPolicy::Refused) => Err(missing),
        }
    }

    /// Keeps every literal of a tree out of excerpts.
    pub(super) fn mask_all(&self, node: &Node) {
        let text = self.sources[node.source].text;
        for span in redact::secret_spans(node, text, true) {
            self.mask(node.source, span);
        }
    }

    /// Keeps these bytes out of excerpts.
    pub(super) fn mask(&self, source: usize, span: Range<usize>) {
        self.masked.borrow_mut().push((source, span));
    }

    /// The problems, with excerpts, and the variables that were used with their values.
    pub(super) fn finish(self) -> (Vec<Problem>, BTreeMap<String, String>) {
        let mut problems = self.problems.take();
        if self.quotable {
            for (source, problem) in &mut problems {
                let readable = !self.unreadable.borrow().contains(source);
                if let (Some(at), None, true) = (problem.at, &problem.excerpt, readable) {
                    problem.excerpt = self.excerpt(*source, at);
                }
            }
        }
        (
            problems.into_iter().map(|(_, problem)| problem).collect(),
            self.used.take(),
        )
    }

    fn problem(
        &self,
        severity: Severity,
        source: usize,
        at: Position,
        path: String,
        message: String,
        hint: &str,
    ) -> Problem {
        let hint = (!hint.is_empty()).then(|| hint.to_owned());
        let file = self.sources[source].file.clone();
        Problem {
            severity,
            file,
            at: Some(at),
            path,
            message,
            hint,
            excerpt: None,
        }
    }

    /// The bytes of a line, without its end.
    fn line(text: &str, number: usize) -> Option<Range<usize>> {
        let start = match number.checked_sub(2) {
            None => 0,
            Some(nth) => text.match_indices('\n').nth(nth)?.0 + 1,
        };
        let line = text[start..].lines().next()?;
        Some(start..start + line.len())
    }

    /// A line with what is masked as `••••`.
    fn excerpt(&self, source: usize, place: Position) -> Option<Excerpt> {
        let text = self.sources[source].text;
        let line = Self::line(text, place.line)?;
        let target = text[line.clone()]
            .char_indices()
            .nth(place.column - 1)
            .map_or(line.end, |(at, _)| line.start + at);
        let mut mark = None;
        let of_text = |(of, span): &(usize, Range<usize>)| (*of == source).then(|| span.clone());
        let mut masked: Vec<_> = self.masked.borrow().iter().filter_map(of_text).collect();
        masked.sort_by_key(|span| span.start);
        let mut shown = String::new();
        let mut at = line.start;
        for span in masked {
            let (start, end) = (span.start.max(at), span.end.min(line.end));
            if start < end {
                if mark.is_none() && target < end {
                    mark =
                        Some(shown.chars().count() + text[at..target.min(start)].chars().count());
                }
                shown.push_str(&text[at..start]);
                shown.push_str("••••");
                at = end;
            }
        }
        let mark = mark.unwrap_or_else(|| shown.chars().count() + text[at..target].chars().count());
        shown.push_str(&text[at..line.end]);
        Some(clipped(shown.trim_end(), mark))
    }

    /// The key of a line, and nothing else of it.
    fn key_of_line(&self, source: usize, place: Position) -> Option<Excerpt> {
        if !self.quotable {
            return None;
        }
        let text = self.sources[source].text;
        let text = redact::key_of_line(&text[Self::line(text, place.line)?])?;
        Some(Excerpt {
            mark: place.column.min(text.chars().count() + 1),
            text,
        })
    }
}

/// A line, and of a long one what is around a character, counted from 0.
fn clipped(line: &str, mark: usize) -> Excerpt {
    let count = line.chars().count();
    if count <= WIDTH {
        return Excerpt {
            text: line.to_owned(),
            mark: mark + 1,
        };
    }
    let from = mark.saturating_sub(WIDTH / 2).min(count - WIDTH);
    let [head, tail] = [from > 0, from + WIDTH < count].map(|cut| if cut { "…" } else { "" });
    let part: String = line.chars().skip(from).take(WIDTH).collect();
    let mark = mark - from + head.chars().count() + 1;
    Excerpt {
        text: format!("{head}{part}{tail}"),
        mark,
    }
}
