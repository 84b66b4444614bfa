//! Problems of packs, with everything that their author needs to fix them: file, line, column, path, the problem, and
//! what to write instead.
//!
//! A problem shows only text of the pack. It never shows the value of a variable, or a literal that may be secret.

use std::fmt;

use serde::Serialize;

use super::summary::PackSummary;

/// All problems of the packs, in the order of files and lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// How many packs were read.
    pub packs: usize,
    pub problems: Vec<Problem>,
    /// Summaries of the packs that have no error.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub understood: Vec<PackSummary>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub severity: Severity,
    /// The path of a file or folder as the caller gave it, or `MCP_SERVERS_CONFIG`.
    pub file: String,
    /// Absent if the problem is about a whole file or folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Position>,
    /// The path of the field, such as `mcp.servers[2].toolAccess.default`. Empty for the whole document.
    pub path: String,
    pub message: String,
    /// How to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<Excerpt>,
}

/// The line of the source, with secrets masked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Excerpt {
    pub text: String,
    /// The character of `text` where the problem is, from 1. It differs from the column, because a mask is shorter or
    /// longer than the text it replaces.
    pub mark: usize,
}

/// A place in a file. Both numbers count from 1; the column counts characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The pack does not load.
    Error,
    /// The pack loads, so that an upgrade does not stop a start, but cannot mean what it says: `check` fails.
    #[serde(rename = "error")]
    Fault,
    /// The pack loads, but does not do what its author seems to intend.
    Warning,
}

impl Report {
    pub fn errors(&self) -> usize {
        self.problems
            .iter()
            .filter(|problem| problem.severity != Severity::Warning)
            .count()
    }

    pub fn warnings(&self) -> usize {
        self.problems.len() - self.errors()
    }

    /// Whether every pack loads. Warnings do not count.
    pub fn is_ok(&self) -> bool {
        let mut problems = self.problems.iter();
        problems.all(|problem| problem.severity != Severity::Error)
    }

    /// Adds problems, each one once: the servers of `MCP_SERVERS_CONFIG` are read again for every pack.
    pub(super) fn add(&mut self, problems: impl IntoIterator<Item = Problem>) {
        for problem in problems {
            if !self.problems.contains(&problem) {
                self.problems.push(problem);
            }
        }
    }

    pub(super) fn sort(&mut self) {
        self.problems
            .sort_by(|a, b| (&a.file, a.at).cmp(&(&b.file, b.at)));
    }
}

impl Problem {
    /// A problem of a whole file or folder.
    pub(super) fn of_file(
        severity: Severity,
        file: impl Into<String>,
        message: String,
        hint: &str,
    ) -> Self {
        let hint = (!hint.is_empty()).then(|| hint.to_owned());
        Self {
            severity,
            file: file.into(),
            at: None,
            path: String::new(),
            message,
            hint,
            excerpt: None,
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error | Self::Fault => "error",
            Self::Warning => "warning",
        })
    }
}

/// `file:12:7: error: path: message; hint`, and the line of the source below it with a mark.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file)?;
        if let Some(at) = self.at {
            write!(f, "{}:{}:", at.line, at.column)?;
        }
        write!(f, " {}: ", self.severity)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        if let (Some(at), Some(excerpt)) = (self.at, &self.excerpt) {
            let number = at.line.to_string();
            write!(f, "\n  {number} | {}", excerpt.text)?;
            write!(
                f,
                "\n  {:width$} | {:indent$}^",
                "",
                "",
                width = number.len(),
                indent = excerpt.mark - 1
            )?;
        }
        Ok(())
    }
}

/// Every problem, then a summary line.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            writeln!(f, "{problem}")?;
        }
        let count = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
        let [packs, errors, warnings] = [
            count(self.packs, "pack"),
            count(self.errors(), "error"),
            count(self.warnings(), "warning"),
        ];
        write!(f, "{packs}: {errors}, {warnings}")
    }
}

/// Packs that do not load, with everything that is wrong with them.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the packs do not load\n{0}")]
pub struct LoadError(pub Report);
