//! The end of a skill's run: what its tool said, or a failure that says why. Nothing else is tried in its place, least
//! of all a model.

use super::Ending;
use crate::domain::{
    message::{CallStatus, Part, ToolCall, ToolResult},
    skill,
};

/// Whether these are the calls of a skill's run.
pub(super) fn is_one<'a>(calls: impl IntoIterator<Item = &'a ToolCall>) -> bool {
    calls.into_iter().any(|call| skill::of_call(call).is_some())
}

/// How the run ends with the result of its call; `more` is to be told besides.
pub(super) fn ending(result: Option<&ToolResult>, cancelled: bool, more: Vec<Part>) -> Ending {
    let Some(result) = result else {
        return Ending::failed("its call has no result; run it again");
    };
    let text = skill::said(result).text;
    match result.status {
        CallStatus::Succeeded | CallStatus::AwaitingApproval => {
            Ending::succeeded().telling(with(text, more))
        }
        CallStatus::Cancelled => Ending::cancelled().telling(with(text, more)),
        CallStatus::OutcomeUnknown if cancelled => Ending::cancelled().telling(with(text, more)),
        _ if more.is_empty() => Ending::failed(text),
        _ => Ending::failed(text).telling(more),
    }
}

fn with(text: String, more: Vec<Part>) -> Vec<Part> {
    std::iter::once(Part::text(text)).chain(more).collect()
}
