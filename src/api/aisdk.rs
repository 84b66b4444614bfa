//! The AI SDK's UI message stream, for `useChat` with its default transport.
//!
//! A client that leaves has some seconds to come back by the id of its chat (`GET …/stream`); then its run is stopped.

mod encoder;
mod request;

use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode};
use uuid::Uuid;

use self::{
    encoder::{Encoder, UiChunk},
    request::{ApprovalResponses, UiChatRequest},
};
use super::{
    ApiState,
    agents::only_agent,
    answer_text::{AnswerStyle, Limiter, add_to_transcript, render_unread},
    extract::{Caller, Path},
    limits::{self, RequestPermit},
    openai::add_headers,
    problem::Problem,
    request_key::AlwaysKeyed,
    turn::{AnswerOptions, OnDisconnect, Turn},
};
use crate::app::{
    App,
    chat::transcript,
    tools::{approvals, skills::outcome},
};
use domain::ids::RunId;

/// The header with the version of the protocol.
const VERSION: (&str, &str) = ("x-vercel-ai-ui-message-stream", "v1");
/// The prefix of this protocol's chats.
const CHATS: &str = "ui:";
/// The most characters of a chat's id.
const MAX_CHAT: usize = 200;

/// Say something in a chat, and stream the answer as UI messages of the AI SDK.
///
/// The chat's `id` names the conversation, which the first message begins. The same message again gets the answer
/// of the first. What fails after the stream has begun is an error part of it.
#[utoipa::path(post, path = "/v1/ui/chat", operation_id = "sendChatMessage", tag = "ui",
    request_body = UiChatRequest,
    responses((status = 200, body = UiChunk, content_type = "text/event-stream"),
        (status = 400, description = "unsupported, unknown_reference, turn_failed_after_call, answer_pending"),
        (status = 409,
            description = "conversation_busy, run_cancelled, already_decided, already_voted, approval_revoked, \
            arguments_changed, question_closed"),
        (status = 429, description = "too_many_streams, too_many_runs, quota_exceeded"),
        (status = 502, description = "run_failed"), (status = 503, description = "stopping")))]
pub(super) async fn chat(
    State(state): State<ApiState>,
    caller: Caller,
    Extension(permit): Extension<RequestPermit>,
    AlwaysKeyed(request, mut key): AlwaysKeyed<UiChatRequest>,
) -> Result<Response, Problem> {
    let chat = chat_key(request.id())?;
    let agent = match request.agent() {
        Some(agent) => agent.to_owned(),
        None => only_agent(&state.app, caller.principal()).await?,
    };
    if let Some(responses) = request.approval_responses()? {
        return answer_responses(&state.app, &caller, &chat, responses).await;
    }
    key.sees_stop = true;
    key.names_message = request.names_message();
    let question = request.question(agent, chat, key)?;
    let options = options(&caller, state.limits.open_stream(caller.principal())?);
    let turn = Turn::begin(&state.app, caller.principal(), question, options).await?;
    permit.release();
    Ok(stream(turn))
}

/// Handles the user's answers to the calls that they are asked to confirm, and answers with what came of the calls and
/// with the events since the last answer.
async fn answer_responses(
    app: &Arc<App>,
    caller: &Caller,
    chat: &str,
    responses: ApprovalResponses,
) -> Result<Response, Problem> {
    let principal = caller.principal();
    let ApprovalResponses {
        message,
        answers,
        mut transcript,
    } = responses;
    let conversation = transcript::find_conversation(app, principal, chat).await?;
    let answered = approvals::answer_interrupts(app, principal, conversation, &answers).await?;
    let mut outcomes = Vec::new();
    for approval in answered {
        let ended = approvals::await_end(app, principal, approval.id).await?;
        let outcome = outcome::of_request(app, principal, ended.id).await?;
        outcomes.push((ended.call_id, outcome));
    }
    let unread = transcript::await_reports(app, principal, chat).await?;
    let conversation = unread.conversation;
    let (pieces, last_sent) = render_unread(unread);
    add_to_transcript(&mut transcript, &pieces);
    if let Some(last_sent) = last_sent {
        transcript::record_delivered_events(
            app,
            principal,
            conversation,
            chat,
            &transcript,
            last_sent,
        )
        .await?;
    }
    let run = RunId(Uuid::nil());
    let response = Encoder::new(conversation, run).answer_responses(message, outcomes, pieces);
    Ok(with_headers(
        response,
        conversation.to_string(),
        String::new(),
    ))
}

/// The answer that a chat waits for, from its beginning.
///
/// 204 when there is none, so that a page that is loaded again may always ask.
#[utoipa::path(get, path = "/v1/ui/chat/{id}/stream", operation_id = "resumeChatStream", tag = "ui",
    params(("id" = String, Path)),
    responses((status = 200, body = UiChunk, content_type = "text/event-stream"), (status = 204),
        (status = 429, description = "too_many_streams")))]
pub(super) async fn resume(
    State(state): State<ApiState>,
    caller: Caller,
    Path(id): Path<String>,
    Extension(permit): Extension<RequestPermit>,
) -> Result<Response, Problem> {
    let options = options(&caller, state.limits.open_stream(caller.principal())?);
    let chat = chat_key(&id)?;
    let turn = Turn::rejoin(&state.app, caller.principal(), &chat, options).await?;
    permit.release();
    Ok(turn.map_or_else(|| StatusCode::NO_CONTENT.into_response(), stream))
}

fn options(caller: &Caller, open: limits::Stream) -> AnswerOptions {
    AnswerOptions {
        style: AnswerStyle::Typed,
        limiter: Limiter::default(),
        on_disconnect: match OnDisconnect::for_caller(&caller.0) {
            OnDisconnect::Stop => OnDisconnect::StopLater,
            other => other,
        },
        is_streamed: true,
        is_formatted: false,
        open,
    }
}

fn chat_key(id: &str) -> Result<String, Problem> {
    super::extract::check_text("id", id, MAX_CHAT)?;
    Ok(format!("{CHATS}{id}"))
}

fn stream(turn: Turn) -> Response {
    let (conversation, run) = (turn.conversation().to_string(), turn.run().id.to_string());
    let encoder = Encoder::new(turn.conversation(), turn.run().id);
    let response = encoder.stream(turn.into_resumable_parts());
    with_headers(response, conversation, run)
}

fn with_headers(mut response: Response, conversation: String, run: String) -> Response {
    let (name, version) = VERSION;
    response
        .headers_mut()
        .insert(name, HeaderValue::from_static(version));
    add_headers(&mut response, conversation, run, &[]);
    response
}
