//! What is checked before a call: the tool exists, the arguments fit, the policy allows it.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::{Call, CallTarget, send::counted_result};
use crate::{
    app::{
        App,
        tools::toolset::{NamedTool, truncate_text},
    },
    domain::{
        canonical,
        json::Json,
        message::{CallStatus, ToolResult},
        policy::{Allowed, ApprovalPolicy, Decision, decide},
        server::ServerSpec,
    },
};

/// The maximum length in characters of an unknown name in a message.
const MAX_NAME: usize = 128;

/// A call that passed the gate's own checks.
pub(super) enum Admission<'a> {
    Now {
        arguments: Box<RawValue>,
        allowed: Allowed<'a>,
    },
    /// Somebody has to consent to it, with these arguments in their one spelling.
    Later {
        arguments: String,
        policy: &'a ApprovalPolicy,
    },
}

/// The gate's own checks, in order.
pub(super) async fn admit<'a>(
    app: &App,
    call: &Call<'_>,
    spec: &'a ServerSpec,
    named: &'a NamedTool,
) -> Result<Admission<'a>, String> {
    let decision = decide(spec, call.toolbox.access(), &named.tool.name);
    // Before anything is said about the arguments.
    if let Decision::Deny(_) = decision {
        return Err(unknown(app, call));
    }
    let arguments = call.arguments.as_ref().map_err(|_| {
        "not executed: the arguments are not valid JSON; send one JSON object that fits the tool's schema".to_owned()
    })?;
    if arguments.as_object().is_none() {
        return Err("not executed: the arguments must be one JSON object".to_owned());
    }
    let unfit = |problems| format!("not executed: the arguments do not fit the tool: {problems}");
    match decision {
        Decision::Approve(policy) => {
            if let Some(why) = call.ambiguity {
                return Err(format!(
                    "not executed: a call that needs approval must be clear beyond doubt, and {why}"
                ));
            }
            let defaulted = canonical::with_defaults(&named.tool.input_schema, arguments.clone());
            named.check(&defaulted).await.map_err(unfit)?;
            let arguments =
                canonical::text(&defaulted).map_err(|error| format!("not executed: {error}"))?;
            Ok(Admission::Later { arguments, policy })
        }
        Decision::Allow(allowed) => {
            named.check(arguments).await.map_err(unfit)?;
            let arguments = arguments.to_raw();
            Ok(Admission::Now { arguments, allowed })
        }
        Decision::Deny(_) => Err(unknown(app, call)),
    }
}

/// The same answer for a missing tool and for a tool that the principal may not see, unless the reason is
/// no secret.
pub(super) fn unknown(app: &App, call: &Call<'_>) -> String {
    let pair = match call.target {
        CallTarget::Name(name) => call
            .toolbox
            .pair_of(name)
            .map(|(server, tool)| (server.to_owned(), tool.to_owned())),
        CallTarget::Pair { server, tool } => Some((
            truncate_text(server, MAX_NAME),
            truncate_text(tool, MAX_NAME),
        )),
    };
    if let Some(obstacle) = pair.as_ref().and_then(|(server, tool)| {
        let (tenant, agent) = (call.principal.tenant, call.toolbox.agent());
        let cause = || app.connections.down_cause(tenant, agent, server);
        call.toolbox.obstacle(server, tool, cause)
    }) {
        return format!("not executed: {obstacle}");
    }
    match (&call.target, pair) {
        (CallTarget::Pair { .. }, Some((server, tool))) => {
            let name = format!("{server} {tool}");
            format!(
                "not executed: there is no tool {name:?} for you; /tools lists those that there are"
            )
        }
        (CallTarget::Name(name) | CallTarget::Pair { tool: name, .. }, _) => {
            let name = truncate_text(name, MAX_NAME);
            format!("not executed: there is no tool {name:?}; use one of the tools you were given")
        }
    }
}

pub(super) fn refused(call: &Call<'_>, text: String) -> ToolResult {
    counted_result(call.call_id, CallStatus::Denied, text)
}

/// Refuses a call and writes an audit line, also for a tool that the principal may not know of. When the
/// audit queue is full, the line is dropped: no call was made.
pub(super) fn denied(app: &Arc<App>, call: &Call<'_>, reason: String) -> ToolResult {
    if call.is_recorded {
        return refused(call, reason);
    }
    let (server, tool) = match &call.target {
        CallTarget::Name(name) => call.toolbox.pair_of(name).unwrap_or(("", name)),
        CallTarget::Pair { server, tool } => (*server, *tool),
    };
    // The text comes from a model or a user: it may be long and contain characters that Postgres cannot
    // store.
    let [server, tool] =
        [server, tool].map(|name| truncate_text(name, MAX_NAME).replace('\0', "\u{fffd}"));
    let arguments = call
        .arguments
        .as_ref()
        .map_or_else(|text| (*text).to_owned(), Json::to_string);
    let what = (server.as_str(), tool.as_str());
    let row = call
        .caller(app)
        .audit_row("tool.call", what, &arguments, CallStatus::Denied);
    app.audit.record(row);
    refused(call, reason)
}
