//! One pack while it is read: where its values come from, and where its problems go.
//!
//! Reading never stops at the first problem. The context also remembers which variables were used, for the version of
//! the pack, and where literal secrets stand, so that no excerpt shows them.

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
use domain::{
    config::Environment,
    policy::Vars,
    template::{Missing, Template},
};

/// The name of the variable that every pack has.
const WORKSPACE_FOLDER: &str = "workspaceFolder";
/// The largest number of characters in an excerpt.
const WIDTH: usize = 160;

/// What happens if a variable is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnsetPolicy {
    /// It is an error.
    Refused,
    /// It is no problem: its text is not checked. A pack that is read so cannot be loaded.
    Allowed,
}

/// One text, and the name of its file in problems.
pub(super) struct Source<'a> {
    pub file: String,
    pub text: &'a str,
}

/// Where a problem is: the number of the source, the position in it, and the path of the field.
#[derive(Clone, Copy)]
pub(super) struct ProblemPlace<'p> {
    pub source: usize,
    pub at: Position,
    pub path: &'p str,
}

impl ProblemPlace<'_> {
    /// The beginning of a source.
    pub(super) fn start_of(source: usize) -> Self {
        Self {
            source,
            at: Position { line: 1, column: 1 },
            path: "",
        }
    }
}

/// Everything that the readers of one pack share.
pub(super) struct ParseContext<'a> {
    /// The texts of the pack. A format may have several files.
    sources: Vec<Source<'a>>,
    env: &'a Environment,
    unset: UnsetPolicy,
    /// The folder of the pack, which is the value of `${workspaceFolder}` unless the environment has such a variable.
    folder: Option<String>,
    /// Whether problems may quote the document. They must not quote `MCP_SERVERS_CONFIG`, which holds secrets.
    may_quote: bool,
    /// The problems, each with the number of its source.
    problems: RefCell<Vec<(usize, Problem)>>,
    /// The variables that were used, with their values.
    used: RefCell<BTreeMap<String, String>>,
    /// The bytes that no excerpt shows, each with the number of its source.
    masked: RefCell<Vec<(usize, Range<usize>)>>,
    /// The sources that are not valid YAML. Excerpts show only keys of them.
    unreadable: RefCell<BTreeSet<usize>>,
    comments: RefCell<Vec<Comment>>,
    /// What conditions may name as `vars`, if that is known.
    vars: RefCell<Option<Vars>>,
}

impl<'a> ParseContext<'a> {
    pub(super) fn new(file: &str, text: &'a str, env: &'a Environment, unset: UnsetPolicy) -> Self {
        Self::for_sources(
            vec![Source {
                file: file.to_owned(),
                text,
            }],
            env,
            unset,
        )
    }

    /// A context for a pack of several files.
    pub(super) fn for_sources(
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
            may_quote: true,
            problems: RefCell::default(),
            used: RefCell::default(),
            masked: RefCell::default(),
            unreadable: RefCell::default(),
            comments: RefCell::default(),
            vars: RefCell::default(),
        }
    }

    /// The values that conditions may name as `vars`, for the rules that are read from now on.
    pub(super) fn set_vars(&self, vars: Vars) {
        *self.vars.borrow_mut() = Some(vars);
    }

    pub(super) fn vars(&self) -> Option<Vars> {
        self.vars.borrow().clone()
    }

    /// A context for a file that this pack names.
    pub(super) fn for_file<'b>(&self, file: &str, text: &'b str) -> ParseContext<'b>
    where
        'a: 'b,
    {
        ParseContext {
            folder: self.folder.clone(),
            vars: self.vars.clone(),
            ..ParseContext::new(file, text, self.env, self.unset)
        }
    }

    /// Sets the folder of the pack.
    #[must_use]
    pub(super) fn in_folder(mut self, folder: &Path) -> Self {
        self.folder = path::absolute(folder)
            .ok()
            .and_then(|path| Some(path.to_str()?.to_owned()));
        self
    }

    /// Problems will not quote the document.
    #[must_use]
    pub(super) fn without_excerpts(mut self) -> Self {
        self.may_quote = false;
        self
    }

    /// The tree of the first source. Problems of the text are recorded.
    pub(super) fn parse(&self) -> Option<Node> {
        self.parse_source(0, |_| None)
    }

    /// Like [`Self::parse`], for one of several sources. `translate` may give another message and hint for a problem,
    /// in the words of a format.
    pub(super) fn parse_source(
        &self,
        source: usize,
        translate: impl Fn(&SyntaxError) -> Option<(String, &'static str)>,
    ) -> Option<Node> {
        let text = self.sources[source].text;
        let Parsed {
            root,
            errors,
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
        let hides_fields = errors.iter().any(|error| error.hides_fields);
        for error in errors {
            let (message, hint) = translate(&error).unwrap_or((error.message, error.hint));
            let place = ProblemPlace {
                source,
                at: error.at,
                path: &error.path,
            };
            let mut problem = self.build_problem(Severity::Error, place, message, hint);
            if syntax_only {
                // Without a tree it is not known which values are secret.
                problem.excerpt = self.key_of_line(source, error.at);
                self.unreadable.borrow_mut().insert(source);
            }
            self.push_problem(source, problem);
        }
        root.filter(|_| !hides_fields)
    }

    /// Whether there is an error, so that the pack does not load.
    pub(super) fn is_refused(&self) -> bool {
        self.problems
            .borrow()
            .iter()
            .any(|(_, problem)| problem.severity == Severity::Error)
    }

    /// The value of a variable.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let folder = || self.folder.as_deref().filter(|_| name == WORKSPACE_FOLDER);
        self.env.get(name).or_else(folder)
    }

    /// The value of a variable of the environment. `${workspaceFolder}` is not one.
    pub(super) fn environment(&self, name: &str) -> Option<&str> {
        self.env.get(name)
    }

    /// The issuers that the operator trusts with a claim whose value people can choose at other issuers.
    pub(super) fn trusted_issuers(&self, claim: &str) -> Vec<String> {
        let issuers = self.env.trusted_issuers(claim);
        let used = (format!("issuers trusted with {claim}"), issuers.join(" "));
        self.used.borrow_mut().extend([used]);
        issuers
    }

    /// The value of a variable that a pack uses without naming it. Absent if the variable is not set or empty.
    pub(super) fn default_variable(&self, name: &str) -> Option<String> {
        let value = self
            .env
            .get(name)
            .filter(|value| !value.trim().is_empty())?;
        let used = (name.to_owned(), value.to_owned());
        self.used.borrow_mut().extend([used]);
        Some(value.to_owned())
    }

    /// Whether a variable is not set, if that is an error. One that is the service's own is another error.
    pub(super) fn is_unset(&self, name: &str) -> bool {
        self.unset == UnsetPolicy::Refused
            && self.variable(name).is_none()
            && self.why_withheld(name).is_none()
    }

    /// Why a variable is not handed to a pack, and what to do: it has a secret of the service itself.
    pub(super) fn why_withheld(&self, name: &str) -> Option<(String, String)> {
        self.env.why_withheld(name)
    }

    /// Why a text is no value of a pack, and what to do. `what` names the text.
    pub(super) fn refuse_own_value(&self, what: &str, text: &str) -> Option<(String, String)> {
        self.env.refuse_own_secret(what, text)
    }

    /// The names of the sources.
    pub(super) fn files(&self) -> Vec<String> {
        self.sources
            .iter()
            .map(|source| source.file.clone())
            .collect()
    }

    pub(super) fn comments(&self) -> Vec<Comment> {
        self.comments.borrow().clone()
    }

    /// Fills the variables of a text in. `Ok(None)` if one is not set and that is allowed.
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

    /// Keeps all literals of a tree out of excerpts.
    pub(super) fn mask_all(&self, node: &Node) {
        let text = self.sources[node.source].text;
        for span in redact::secret_spans(node, text, true) {
            self.mask(node.source, span);
        }
    }

    /// Keeps these bytes of a source out of excerpts.
    pub(super) fn mask(&self, source: usize, span: Range<usize>) {
        self.masked.borrow_mut().push((source, span));
    }

    /// Records a problem.
    pub(super) fn report(
        &self,
        severity: Severity,
        place: ProblemPlace,
        message: String,
        hint: &str,
    ) {
        let problem = self.build_problem(severity, place, message, hint);
        self.push_problem(place.source, problem);
    }

    fn push_problem(&self, source: usize, problem: Problem) {
        self.problems.borrow_mut().push((source, problem));
    }

    /// Ends the reading. Returns the problems with their excerpts, and the used variables with their values.
    pub(super) fn finish(self) -> (Vec<Problem>, BTreeMap<String, String>) {
        let mut problems = self.problems.take();
        if self.may_quote {
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

    fn build_problem(
        &self,
        severity: Severity,
        place: ProblemPlace,
        message: String,
        hint: &str,
    ) -> Problem {
        Problem {
            severity,
            file: self.sources[place.source].file.clone(),
            at: Some(place.at),
            path: place.path.to_owned(),
            message,
            hint: (!hint.is_empty()).then(|| hint.to_owned()),
            excerpt: None,
        }
    }

    /// The bytes of a line, without its line break. `number` counts from 1.
    fn find_line(text: &str, number: usize) -> Option<Range<usize>> {
        let start = match number.checked_sub(2) {
            None => 0,
            Some(nth) => text.match_indices('\n').nth(nth)?.0 + 1,
        };
        let line = text[start..].lines().next()?;
        Some(start..start + line.len())
    }

    /// A line in which `••••` replaces each masked part.
    fn excerpt(&self, source: usize, place: Position) -> Option<Excerpt> {
        let text = self.sources[source].text;
        let line = Self::find_line(text, place.line)?;
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
        Some(clip(shown.trim_end(), mark))
    }

    /// Only the key of a line.
    fn key_of_line(&self, source: usize, place: Position) -> Option<Excerpt> {
        if !self.may_quote {
            return None;
        }
        let text = self.sources[source].text;
        let text = redact::key_of_line(&text[Self::find_line(text, place.line)?])?;
        Some(Excerpt {
            mark: place.column.min(text.chars().count() + 1),
            text,
        })
    }
}

/// Shortens a long line to the part around the character `mark`, which counts from 0.
fn clip(line: &str, mark: usize) -> Excerpt {
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
