//! The problems of one file: how they are recorded, and the lines that a report shows.

use std::{collections::BTreeMap, ops::Range};

use super::ParseContext;
use crate::{
    redact,
    report::{Excerpt, Position, Problem, Severity},
};

/// Characters of a line that are shown.
const WIDTH: usize = 160;

/// Where a problem is: the file by its number, the position in it, and the path of the field.
#[derive(Clone, Copy)]
pub(crate) struct ProblemPlace<'p> {
    pub source: usize,
    pub at: Position,
    pub path: &'p str,
}

impl ProblemPlace<'_> {
    /// The beginning of a file.
    pub(crate) fn start_of(source: usize) -> Self {
        Self {
            source,
            at: Position { line: 1, column: 1 },
            path: "",
        }
    }
}

impl ParseContext<'_> {
    pub(crate) fn report(
        &self,
        severity: Severity,
        place: ProblemPlace,
        message: String,
        hint: &str,
    ) {
        let problem = self.problem(severity, place, message, hint);
        self.keep(place.source, problem);
    }

    pub(super) fn keep(&self, source: usize, problem: Problem) {
        self.problems.borrow_mut().push((source, problem));
    }

    /// The problems, with excerpts, and the variables that were used with their values.
    pub(crate) fn finish(self) -> (Vec<Problem>, BTreeMap<String, String>) {
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

    pub(super) fn problem(
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
    pub(super) fn excerpt(&self, source: usize, place: Position) -> Option<Excerpt> {
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
    pub(super) fn key_of_line(&self, source: usize, place: Position) -> Option<Excerpt> {
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
