//! AG-UI 1.0: an agent's answer as the events of that protocol.
//!
//! A call that waits for consent is an interrupt. The next request resumes it: `cancelled` takes the request back,
//! `resolved` leaves it to its approvers, or confirms or declines what the user is asked to confirm. A client that leaves
//! has some seconds to send its run again; then the run is stopped.

mod encoder;
mod request;

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};

use self::{
    encoder::{AguiEvent, Encoder, Interrupt},
    request::RunInput,
};
use super::{
    ApiState,
    answer_text::{AnswerStyle, Limiter, add_to_transcript, render_unread},
    extract::{Caller, Path},
    limits::RequestPermit,
    openai::add_headers,
    problem::Problem,
    request_key::Keyed,
    turn::{AnswerOptions, OnDisconnect, Turn},
};
use crate::app::{
    App,
    chat::transcript::{self, Transcript},
    tools::approvals::{self, InterruptAnswer, InterruptResponse},
};
use domain::approval::Kind;

/// Run an agent in a thread, and stream what happens as AG-UI events.
///
/// A second request with the same `runId` gets the run of the first. A request that only answers interrupts begins
/// no run. What fails after the stream has begun is `RUN_ERROR` in it.
#[utoipa::path(post, path = "/v1/agui/{agent}", operation_id = "runAgent", tag = "agui",
    params(("agent" = String, Path)), request_body = RunInput,
    responses((status = 200, body = AguiEvent, content_type = "text/event-stream"),
        (status = 400, description = "unsupported, unknown_reference, turn_failed_after_call, answer_pending"),
        (status = 409,
            description = "conversation_busy, run_cancelled, already_decided, already_voted, approval_revoked, \
            arguments_changed, question_closed"),
        (status = 429, description = "too_many_streams, too_many_runs, quota_exceeded"),
        (status = 502, description = "run_failed"), (status = 503, description = "stopping")))]
pub(super) async fn run(
    State(state): State<ApiState>,
    caller: Caller,
    Path(agent): Path<String>,
    Extension(permit): Extension<RequestPermit>,
    Keyed(input, key): Keyed<RunInput>,
) -> Result<Response, Problem> {
    let ignored = input.ignored();
    let transcript = input.transcript()?;
    if input.only_resumes(&transcript) {
        return resume(&state.app, &caller, &input, transcript).await;
    }
    let question = input.question(agent, transcript, key)?;
    let options = AnswerOptions {
        style: AnswerStyle::Typed,
        limiter: Limiter::default(),
        on_disconnect: match OnDisconnect::for_caller(&caller.0) {
            OnDisconnect::Stop => OnDisconnect::StopLater,
            other => other,
        },
        is_streamed: true,
        is_formatted: false,
        open: state.limits.open_stream(caller.principal())?,
    };
    let turn = Turn::begin(&state.app, caller.principal(), question, options).await?;
    permit.release();
    let (conversation, run) = (turn.conversation(), turn.run().id);
    let encoder = Encoder::new(input.thread(), input.run(), conversation, Some(run));
    let mut response = encoder.stream(turn.into_resumable_parts());
    add_headers(
        &mut response,
        conversation.to_string(),
        run.to_string(),
        &ignored,
    );
    Ok(response)
}

/// Answers a request that only resumes: handles its interrupts, and sends the events since the last run. A call that still
/// waits is an interrupt again.
async fn resume(
    app: &Arc<App>,
    caller: &Caller,
    input: &RunInput,
    mut shown: Transcript,
) -> Result<Response, Problem> {
    let principal = caller.principal();
    let answers = input.answers()?;
    let asked = transcript::find_conversation(app, principal, &input.chat()).await?;
    let answered = approvals::answer_interrupts(app, principal, asked, &answers).await?;
    let is_decided = |response: &InterruptResponse| {
        matches!(
            response.answer,
            InterruptAnswer::Confirm | InterruptAnswer::Decline
        )
    };
    let mut waiting = Vec::new();
    for (approval, response) in answered.iter().zip(&answers) {
        let approval = match response.answer {
            InterruptAnswer::Cancel => continue,
            InterruptAnswer::Confirm => &approvals::await_end(app, principal, approval.id).await?,
            _ => approval,
        };
        if approval.state.is_open() {
            let view = approvals::get(app, principal, &approval.id.to_string()).await?;
            let message = match view.kind {
                Kind::Approval => view.text,
                Kind::Confirmation => view.text_with_arguments(),
            };
            waiting.push(Interrupt::new(approval, message));
        }
    }
    let unread = if answers.iter().any(is_decided) {
        transcript::await_reports(app, principal, &input.chat()).await?
    } else {
        transcript::unread(app, principal, &input.chat()).await?
    };
    let conversation = unread.conversation;
    let (pieces, last_sent) = render_unread(unread);
    add_to_transcript(&mut shown, &pieces);
    if let Some(last_sent) = last_sent {
        let chat = input.chat();
        transcript::record_delivered_events(app, principal, conversation, &chat, &shown, last_sent)
            .await?;
    }
    let encoder = Encoder::new(input.thread(), input.run(), conversation, None);
    let mut response = encoder.answer_resume(pieces, waiting);
    add_headers(
        &mut response,
        conversation.to_string(),
        String::new(),
        &input.ignored(),
    );
    Ok(response)
}
