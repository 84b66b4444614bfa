//! The end of a skill's run: the result of its tool, or a failure with its reason. There is no fallback;
//! above all, no model is asked.

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
    let text = skill::result_text(result).text;
    match result.status {
        CallStatus::Succeeded | CallStatus::AwaitingApproval => {
            Ending::succeeded().with_notices(with(text, more))
        }
        CallStatus::Cancelled => Ending::cancelled().with_notices(with(text, more)),
        CallStatus::OutcomeUnknown if cancelled => {
            Ending::cancelled().with_notices(with(text, more))
        }
        _ if more.is_empty() => Ending::failed(text),
        _ => Ending::failed(text).with_notices(more),
    }
}

fn with(text: String, more: Vec<Part>) -> Vec<Part> {
    std::iter::once(Part::text(text)).chain(more).collect()
}
