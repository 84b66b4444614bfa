//! Pages of a list: which part is asked for, and where the next page begins.

use super::MessagesQuery;
use crate::{api::problem::Problem, domain::message::MessageRange};

impl MessagesQuery {
    pub(super) fn range(&self) -> Result<MessageRange, Problem> {
        let (name, seq, range) = match (self.before, self.after, self.cursor) {
            (None, None, None) => return Ok(MessageRange::Before(i64::MAX)),
            (Some(seq), None, None) => ("before", seq, MessageRange::Before(seq)),
            (None, Some(seq), None) => ("after", seq, MessageRange::After(seq)),
            (None, None, Some(seq)) => ("cursor", seq, MessageRange::Before(seq)),
            _ => {
                let why = "must hold at most one of `before`, `after` and `cursor`";
                return Err(Problem::invalid("query", why));
            }
        };
        if seq < 0 {
            return Err(Problem::invalid(name, "must not be negative"));
        }
        Ok(range)
    }
}

pub(in crate::api) fn page(limit: i64) -> Result<i64, Problem> {
    if (1..=100).contains(&limit) {
        Ok(limit)
    } else {
        Err(Problem::invalid("limit", "must be from 1 to 100"))
    }
}

/// One item more than the page was asked for, to know whether another page follows.
pub(in crate::api) fn split_page<T, C>(
    mut items: Vec<T>,
    limit: i64,
    cursor: impl Fn(&T) -> C,
) -> (Vec<T>, Option<C>) {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(cursor);
    (items, next)
}
