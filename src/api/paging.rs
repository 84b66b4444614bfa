//! Pages of a list. A handler asks for one item more than its page has ([`split_page`]), so it knows whether another
//! page follows. `next` of the answer is the `cursor` of the request for that page.

use super::problem::Problem;

/// The items of a page when the request does not say.
pub(super) fn default_limit() -> i64 {
    50
}

/// Checks the number of items that a request asks for, from 1 to `most`.
pub(super) fn check_limit(limit: i64, most: i64) -> Result<i64, Problem> {
    if (1..=most).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::invalid(
        "limit",
        format!("must be from 1 to {most}"),
    ))
}

/// Splits off the item that was read beyond the page. Returns the page, and the cursor of its last item if another page
/// follows.
pub(super) fn split_page<T, C>(
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
