//! A document while it is read: where values come from and where problems go.
//!
//! Reading never stops at the first problem. The sheet also remembers which variables were used, for
//! the version of the pack, and where literal secrets stand, so that no excerpt shows them.

use std::{cell::RefCell, collections::BTreeMap, ops::Range};

use super::{
    report::{Excerpt, Place, Problem, Severity},
    yaml::{self, Fault, Node},
};
use crate::domain::{
    config::Environment,
    template::{Missing, Template},
};

/// Variables that are not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unset {
    /// A problem that names them.
    Refused,
    /// Left open: the text counts as given and is not judged. Nothing can be loaded that way.
    Allowed,
}

pub(super) struct Sheet<'a> {
    /// How problems name the document.
    file: String,
    text: &'a str,
    env: &'a Environment,
    unset: Unset,
    /// Whether problems may quote the document. `MCP_SERVERS_CONFIG` is there to hold secrets.
    quotable: bool,
    problems: RefCell<Vec<Problem>>,
    used: RefCell<BTreeMap<String, String>>,
    masked: RefCell<Vec<Range<usize>>>,
}

impl<'a> Sheet<'a> {
    pub(super) fn new(file: &str, text: &'a str, env: &'a Environment, unset: Unset) -> Self {
        Self {
            file: file.to_owned(),
            text: text.strip_prefix('\u{feff}').unwrap_or(text),
            env,
            unset,
            quotable: true,
            problems: RefCell::default(),
            used: RefCell::default(),
            masked: RefCell::default(),
        }
    }

    /// A sheet for a file that this one names.
    pub(super) fn beside<'b>(&self, file: &str, text: &'b str) -> Sheet<'b>
    where
        'a: 'b,
    {
        Sheet::new(file, text, self.env, self.unset)
    }

    #[must_use]
    pub(super) fn unquotable(mut self) -> Self {
        self.quotable = false;
        self
    }

    /// The tree of the document; problems of the text are kept.
    pub(super) fn parse(&self) -> Option<Node> {
        let (root, faults) = yaml::parse(self.text);
        let syntax_only = root.is_none();
        for Fault { at, path, message, hint } in faults {
            let mut problem = self.problem(Severity::Error, at, path, message, hint);
            if syntax_only {
                // Without a tree nobody knows which values are secret.
                problem.excerpt = self.key_of_line(at);
            }
            self.problems.borrow_mut().push(problem);
        }
        root
    }

    pub(super) fn report(&self, severity: Severity, at: Place, path: &str, message: String, hint: &str) {
        let problem = self.problem(severity, at, path.to_owned(), message, hint);
        self.problems.borrow_mut().push(problem);
    }

    /// The text with its variables. `Ok(None)`: a variable is not set, and that is allowed.
    pub(super) fn resolve(&self, template: &Template) -> Result<Option<String>, Missing> {
        let mut used = self.used.borrow_mut();
        for reference in template.references() {
            if let Some(value) = self.env.get(&reference.key) {
                used.insert(reference.key.clone(), value.to_owned());
            }
        }
        match (template.resolve(|reference| self.env.get(&reference.key)), self.unset) {
            (Ok(text), _) => Ok(Some(text)),
            (Err(_), Unset::Allowed) => Ok(None),
            (Err(missing), Unset::Refused) => Err(missing),
        }
    }

    /// Keeps these bytes out of excerpts.
    pub(super) fn mask(&self, span: Range<usize>) {
        self.masked.borrow_mut().push(span);
    }

    /// The problems, with excerpts, and the variables that were used with their values.
    pub(super) fn finish(self) -> (Vec<Problem>, BTreeMap<String, String>) {
        let mut problems = self.problems.take();
        if self.quotable {
            for problem in &mut problems {
                if let (Some(at), None) = (problem.at, &problem.excerpt) {
                    problem.excerpt = self.excerpt(at);
                }
            }
        }
        (problems, self.used.take())
    }

    fn problem(&self, severity: Severity, at: Place, path: String, message: String, hint: &str) -> Problem {
        let hint = (!hint.is_empty()).then(|| hint.to_owned());
        Problem { severity, file: self.file.clone(), at: Some(at), path, message, hint, excerpt: None }
    }

    /// The bytes of a line, without its end.
    fn line(&self, number: usize) -> Option<Range<usize>> {
        let start = match number.checked_sub(2) {
            None => 0,
            Some(nth) => self.text.match_indices('\n').nth(nth)?.0 + 1,
        };
        let line = self.text[start..].lines().next()?;
        Some(start..start + line.len())
    }

    /// A line with what is masked as `••••`.
    fn excerpt(&self, place: Place) -> Option<Excerpt> {
        let line = self.line(place.line)?;
        let target =
            self.text[line.clone()].char_indices().nth(place.column - 1).map_or(line.end, |(at, _)| line.start + at);
        let mut mark = None;
        let mut masked = self.masked.borrow().clone();
        masked.sort_by_key(|span| span.start);
        let mut shown = String::new();
        let mut at = line.start;
        for span in masked {
            let (start, end) = (span.start.max(at), span.end.min(line.end));
            if start < end {
                if mark.is_none() && target < end {
                    mark = Some(shown.chars().count() + self.text[at..target.min(start)].chars().count());
                }
                shown.push_str(&self.text[at..start]);
                shown.push_str("••••");
                at = end;
            }
        }
        let mark = mark.unwrap_or_else(|| shown.chars().count() + self.text[at..target].chars().count());
        shown.push_str(&self.text[at..line.end]);
        Some(Excerpt { text: shown.trim_end().to_owned(), mark: mark + 1 })
    }

    /// The line up to its first value.
    fn key_of_line(&self, place: Place) -> Option<Excerpt> {
        if !self.quotable {
            return None;
        }
        let line = &self.text[self.line(place.line)?];
        let text = line.split_once(": ").map_or_else(|| line.to_owned(), |(key, _)| format!("{key}: …"));
        Some(Excerpt { mark: place.column.min(text.chars().count() + 1), text })
    }
}
