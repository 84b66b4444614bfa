//! The end of a skill's run: the result of its tool, or a failure with its reason. There is no fallback;
//! above all, no model is asked.

use super::Ending;
use crate::domain::{
    hidden::one_line,
    message::{CallStatus, ToolCall, ToolResult},
    skill,
};

/// Whether this is the call of a skill.
pub(super) fn is_one(call: &ToolCall) -> bool {
    skill::of_call(call).is_some()
}

/// Characters of a tool's own words about its failure, as the reason of the run's.
const MAX_REASON: usize = 1000;

/// How the run ends with the result of its call.
pub(super) fn ending(result: Option<&ToolResult>, is_cancelled: bool) -> Ending {
    let Some(result) = result else {
        return Ending::failed("its call has no result; run it again");
    };
    match result.status {
        CallStatus::Succeeded | CallStatus::AwaitingApproval => Ending::succeeded(),
        CallStatus::Cancelled => Ending::cancelled(),
        CallStatus::OutcomeUnknown if is_cancelled => Ending::cancelled(),
        _ => Ending::failed(one_line(&result.text, MAX_REASON)),
    }
}
