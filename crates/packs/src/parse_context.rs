//! A document while it is read: where values come from and where problems go.
//!
//! Reading never stops at the first problem. It also remembers which variables were used, for
//! the version of the pack, and where literal secrets stand, so that no excerpt shows them.

mod problems;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::{self, Path},
};

pub(super) use self::problems::ProblemPlace;
use super::{
    redact,
    report::{Problem, Severity},
    yaml::{self, Comment, Node, Parsed, SyntaxError},
};
use domain::{
    config::Environment,
    template::{Missing, Template},
};

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
        let hides_fields = faults.iter().any(|fault| fault.hides_fields);
        for fault in faults {
            let (message, hint) = say(&fault).unwrap_or((fault.message, fault.hint));
            let place = ProblemPlace {
                source,
                at: fault.at,
                path: &fault.path,
            };
            let mut problem = self.problem(Severity::Error, place, message, hint);
            if syntax_only {
                // Without a tree it is not known which values are secret.
                problem.excerpt = self.key_of_line(source, fault.at);
                self.unreadable.borrow_mut().insert(source);
            }
            self.keep(source, problem);
        }
        root.filter(|_| !hides_fields)
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

    /// The value of a variable of the environment, the folder of the pack aside.
    pub(super) fn environment(&self, name: &str) -> Option<&str> {
        self.env.get(name)
    }

    /// The issuers that the operator trusts with a claim that people choose elsewhere.
    pub(super) fn trusted_issuers(&self, claim: &str) -> Vec<String> {
        let issuers = self.env.trusted_issuers(claim);
        let used = (format!("issuers trusted with {claim}"), issuers.join(" "));
        self.used.borrow_mut().extend([used]);
        issuers
    }

    /// The value of a variable that a pack relies on without naming it; absent when it is not set or empty.
    pub(super) fn default_variable(&self, name: &str) -> Option<String> {
        let value = self
            .env
            .get(name)
            .filter(|value| !value.trim().is_empty())?;
        let used = (name.to_owned(), value.to_owned());
        self.used.borrow_mut().extend([used]);
        Some(value.to_owned())
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
}
