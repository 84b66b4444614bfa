//! A call that goes on when its user has answered.

use std::sync::Arc;

use super::{AdmittedCall, AnsweredCall, make};
use crate::{
    app::{
        App,
        tools::gate::{
            Call, connect, denied, refused,
            send::{Permit, counted_result},
            unknown,
        },
    },
    domain::{
        message::{CallStatus, ToolResult},
        policy::{Decision, decide},
    },
};

/// Goes on with a call whose user has answered. Everything that was true when it was made is checked again.
pub async fn resume(app: &Arc<App>, call: &Call<'_>, answered: AnsweredCall) -> ToolResult {
    let crate::app::tools::gate::CallTarget::Pair { server, tool } = call.target else {
        return denied(app, call, unknown(app, call));
    };
    let Some((spec, named)) = call.toolbox.by_pair(server, tool) else {
        return denied(app, call, unknown(app, call));
    };
    let allowed = match decide(spec, call.toolbox.access(), &named.tool.name) {
        Decision::Allow(allowed) => allowed,
        Decision::Deny(_) => return denied(app, call, unknown(app, call)),
        Decision::Approve(_) => {
            let reason =
                "not executed: this call needs approval by now; make it again if the user wants it";
            return denied(app, call, reason.to_owned());
        }
    };
    let destination = match connect(app, call, spec).await {
        Ok(destination) => destination,
        Err(reason) => return denied(app, call, reason),
    };
    if destination.credential() != answered.credential {
        let reason = "not executed: the user's credential has changed since the server asked; make the call again";
        return denied(app, call, reason.to_owned());
    }
    let AnsweredCall {
        arguments,
        answer,
        rounds,
        ..
    } = answered;
    let permit = Permit::allowed(call.caller(app), &allowed, destination, &arguments, None);
    let permit = match permit.await {
        Ok(permit) => permit,
        Err(error) => return refused(call, format!("not executed: {error}")),
    };
    let ready = AdmittedCall {
        permit,
        tool: &named.tool.name,
        arguments,
        rounds,
    };
    make(app, call, ready, Some(answer)).await
}

pub(super) fn awaiting_input(call: &Call<'_>) -> ToolResult {
    let text = "not finished: the server wants to know something from the user first, and they are being asked in the \
                chat";
    let advice = "do not retry and do not answer for them. You will be told the outcome.";
    ToolResult {
        advice: Some(advice.to_owned()),
        ..counted_result(call.call_id, CallStatus::AwaitingInput, text.to_owned())
    }
}
