//! The result of a call, as the audit trail and the model see it.

use super::{MAX_RAW, Permit};
use crate::{
    app::tools::toolset::not_available,
    domain::{
        error::Result,
        message::{CallStatus, ToolResult},
        server::ServerSpec,
        texts::{self, Key},
        tool::ToolOutcome,
    },
    mcp::CallError,
};

impl Permit<'_> {
    /// The result of a call that was tried, with its audit line.
    pub(in crate::app::tools::gate) fn into_result(
        self,
        call_id: &str,
        answer: Result<ToolOutcome, CallError>,
    ) -> ToolResult {
        let result = match answer {
            Ok(outcome) => {
                let status = if outcome.is_error {
                    CallStatus::Failed
                } else {
                    CallStatus::Succeeded
                };
                // Some readers of this text cannot handle a NUL.
                let mut text = outcome.text.replace('\0', "\u{fffd}");
                if outcome.is_error && text.trim().is_empty() {
                    let language = self.caller.principal.locale.as_deref();
                    let texts = texts::in_language(language.unwrap_or("en"));
                    text = texts.render(Key::ToolErrorWithoutWords, &[]);
                }
                ToolResult {
                    // What is not stored may be of any size that the connection lets through.
                    raw: Some(outcome.raw)
                        .filter(|raw| self.caller.run.is_none() || raw.get().len() <= MAX_RAW),
                    ..counted_result(call_id, status, text)
                }
            }
            Err(error) => without_answer(call_id, self.server, &error),
        };
        self.end(result.status);
        result
    }
}

/// The result of a call that brought no answer, for the model and the user.
fn without_answer(call_id: &str, server: &ServerSpec, error: &CallError) -> ToolResult {
    let unknown = "it may or may not have been done. Do not repeat it; check first";
    let (status, text) = match error {
        CallError::NotSent(reason) => (
            CallStatus::Failed,
            format!(
                "failed, nothing was sent: {}: {reason}",
                not_available(server.id.as_str(), None)
            ),
        ),
        CallError::ScopeRequired(_) => {
            let server = &server.id;
            let how = format!("the user can allow them with /connect {server}");
            let text =
                format!("failed, the call was not made: {error}; {how}, then it can be made again");
            (CallStatus::Failed, text)
        }
        CallError::Refused { .. } | CallError::Unauthorized | CallError::Forbidden => {
            (CallStatus::Failed, format!("failed: {error}"))
        }
        CallError::Cancelled { sent: false } => (CallStatus::Cancelled, error.to_string()),
        CallError::TimedOut(_) | CallError::OutcomeUnknown(_) | CallError::Cancelled { .. } => (
            CallStatus::OutcomeUnknown,
            format!("outcome unknown: {error}; {unknown}"),
        ),
    };
    counted_result(call_id, status, text)
}

/// A result in our words, counted in the metrics.
pub(in crate::app::tools::gate) fn counted_result(
    call_id: &str,
    status: CallStatus,
    text: String,
) -> ToolResult {
    metrics::counter!("chatelaine_tool_calls_total", "outcome" => status.as_str()).increment(1);
    ToolResult {
        call_id: call_id.to_owned(),
        status,
        text,
        raw: None,
        advice: None,
        approval: None,
        took_ms: None,
    }
}
