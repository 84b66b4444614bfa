//! The result of a tool call as MCP writes it.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    api::mcp::era::Era,
    app::tools::approvals::{client_calls::ClientCall, time_of},
    domain::message::{CallStatus, ToolResult},
};

/// What the server answered, or our words in its place.
pub(super) fn of_result(result: ToolResult) -> String {
    match result.raw {
        Some(raw) => String::from(Box::<str>::from(raw)),
        None => text_result(
            &result.for_model(),
            result.status != CallStatus::Succeeded,
            &json!({ "chatelaine/status": result.status.as_str() }),
        ),
    }
}

/// A call that somebody else has, or had, to consent to.
pub(in crate::api::mcp) fn of_consent(call: ClientCall) -> String {
    let ClientCall { view, result } = call;
    if let Some(raw) = result {
        return String::from(Box::<str>::from(raw));
    }
    let text = if view.finished_at.is_some() {
        format!("not executed, and the request is over: {}", view.text)
    } else {
        format!(
            "not executed yet: this call waits for approval {} by {} until {}. {} Make the same call with the same \
             arguments again to get its outcome; it is not made twice.",
            view.code,
            view.approvers.join(" or "),
            time_of(view.expires_at),
            view.link,
        )
    };
    let about = json!({ "chatelaine/approval": {
        "id": view.id,
        "code": view.code,
        "state": view.state,
        "approvers": view.approvers,
        "expiresAt": time_of(view.expires_at),
        "link": view.link,
    }});
    // Not a success: a client takes that for a result with the tool's own structure.
    text_result(&text, true, &about)
}

fn text_result(text: &str, is_error: bool, meta: &Value) -> String {
    json!({
        "content": [{ "type": "text", "text": text }],
        "isError": is_error,
        "_meta": meta,
    })
    .to_string()
}

/// From 2026-07-28 on each result says of which type it is.
pub(in crate::api::mcp) fn with_result_type(result: String, era: Era) -> String {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Typed {
        #[serde(default)]
        result_type: Option<serde::de::IgnoredAny>,
    }
    let has_type =
        || serde_json::from_str::<Typed>(&result).is_ok_and(|typed| typed.result_type.is_some());
    if !era.is_modern() || (result.contains("resultType") && has_type()) {
        return result;
    }
    let Some(rest) = result.trim_start().strip_prefix('{') else {
        return result;
    };
    let comma = if rest.trim_start().starts_with('}') {
        ""
    } else {
        ","
    };
    format!(r#"{{"resultType":"complete"{comma}{rest}"#)
}
