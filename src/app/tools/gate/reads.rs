//! Reads from a server besides calls: its prompts, their completions, and resources that a result linked to. They use
//! the connection of calls and the audit trail of calls, and the toolset decides whether the user may read.

use std::sync::Arc;

use serde_json::{Map, Value, value::RawValue};

use super::{
    log_internal, no_destination, not_connected, not_executed,
    send::{CallContext, Destination, Permit, resolve_destination},
};
use crate::app::{App, tools::toolset::Toolset};
use domain::{
    ids::RunId,
    message::CallStatus,
    principal::Principal,
    prompt::{PromptOutcome, ServerPrompt},
    resource::Resource,
    server::ServerSpec,
};
use mcp::CallError;

/// The user and the run that a read is for.
#[derive(Clone, Copy)]
pub struct ReadContext<'a> {
    pub principal: &'a Principal,
    pub toolset: &'a Toolset,
    pub run: Option<RunId>,
}

/// Gets a prompt with its arguments filled in; the error is a sentence for the user.
pub async fn prompt(
    app: &Arc<App>,
    context: &ReadContext<'_>,
    spec: &Arc<ServerSpec>,
    prompt: &ServerPrompt,
    arguments: &Map<String, Value>,
) -> Result<PromptOutcome, String> {
    let (caller, destination) = find_destination(app, context, spec).await?;
    let permit = Permit::offered(
        caller,
        context.toolset,
        spec,
        prompt,
        destination,
        arguments,
    )
    .await
    .map_err(|error| not_executed(&error))?;
    let answer = permit.prompt(&prompt.name, arguments).await;
    end(permit, answer)
}

/// The server's completions for an argument of a prompt; `None` when the server offers none.
pub async fn completion(
    app: &Arc<App>,
    context: &ReadContext<'_>,
    spec: &Arc<ServerSpec>,
    prompt: &ServerPrompt,
    argument: &str,
    value: &str,
) -> Result<Option<Box<RawValue>>, String> {
    let (caller, destination) = find_destination(app, context, spec).await?;
    let given = Map::from_iter([(argument.to_owned(), Value::from(value))]);
    let permit = Permit::offered(caller, context.toolset, spec, prompt, destination, &given)
        .await
        .map_err(|error| not_executed(&error))?;
    let answer = permit.complete(&prompt.name, argument, value).await;
    let is_refused = matches!(answer, Err(CallError::Refused { .. }));
    match end(permit, answer) {
        Err(_) if is_refused => Ok(None),
        answer => answer.map(Some),
    }
}

/// Reads a resource that a result of `tool` linked to; the error is a sentence for the user.
pub async fn resource(
    app: &Arc<App>,
    context: &ReadContext<'_>,
    spec: &Arc<ServerSpec>,
    tool: &str,
    uri: &str,
) -> Result<Resource, String> {
    let (caller, destination) = find_destination(app, context, spec).await?;
    let permit = Permit::linked(caller, context.toolset, spec, tool, destination, uri)
        .await
        .map_err(|error| {
            log_internal(&error);
            format!("not read: {error}")
        })?;
    let answer = permit.resource(uri).await;
    end(permit, answer)
}

/// The connection of a read, and who reads; or why there is none.
async fn find_destination<'a>(
    app: &'a Arc<App>,
    context: &ReadContext<'a>,
    spec: &Arc<ServerSpec>,
) -> Result<(CallContext<'a>, Destination), String> {
    let caller = CallContext {
        app,
        principal: context.principal,
        agent: context.toolset.agent(),
        run: context.run,
        line: None,
        is_recorded: false,
    };
    match resolve_destination(&caller, spec).await {
        Ok(Some(destination)) => Ok((caller, destination)),
        Ok(None) => Err(not_connected(spec)),
        Err(error) => Err(no_destination(context.toolset, context.principal, &error)),
    }
}

/// Completes the audit line. Returns an error as a sentence.
fn end<T>(permit: Permit<'_>, answer: Result<T, CallError>) -> Result<T, String> {
    permit.end(if answer.is_ok() {
        CallStatus::Succeeded
    } else {
        CallStatus::Failed
    });
    answer.map_err(|error| match error {
        // A read changes nothing, so its outcome is never unknown.
        CallError::TimedOut(time_limit) => {
            format!("no answer within {} s", time_limit.as_secs_f32())
        }
        CallError::OutcomeUnknown(reason) => reason,
        error => error.to_string(),
    })
}
