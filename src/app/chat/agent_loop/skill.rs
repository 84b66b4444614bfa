//! The end of a skill's run: the result of its tool, or a failure with its reason. There is no fallback;
//! above all, no model is asked.

use super::Ending;
use crate::domain::{
    hidden::one_line,
    message::{CallStatus, Part, ToolCall, ToolResult},
    skill,
};

/// Whether this is the call of a skill.
pub(super) fn is_one(call: &ToolCall) -> bool {
    skill::of_call(call).is_some()
}

/// Characters of a tool's own words about its failure, as the reason of the run's.
const MAX_REASON: usize = 1000;

/// How the run ends with the result of its call; `more` is to be told besides.
pub(super) fn ending(
    call: &ToolCall,
    result: Option<&ToolResult>,
    cancelled: bool,
    more: Vec<Part>,
) -> Ending {
    let Some(result) = result else {
        return Ending::failed("its call has no result; run it again");
    };
    let text = skill::result_text(result).text;
    let told = |text: String, more: Vec<Part>| -> Vec<Part> {
        let said = Part::result(call, result.status, text);
        std::iter::once(said).chain(more).collect()
    };
    match result.status {
        CallStatus::Succeeded | CallStatus::AwaitingApproval => {
            Ending::succeeded().with_notices(told(text, more))
        }
        CallStatus::Cancelled => Ending::cancelled().with_notices(told(text, more)),
        CallStatus::OutcomeUnknown if cancelled => {
            Ending::cancelled().with_notices(told(text, more))
        }
        _ if more.is_empty() => Ending::failed(one_line(&text, MAX_REASON)),
        _ => Ending::failed(one_line(&text, MAX_REASON)).with_notices(more),
    }
}
