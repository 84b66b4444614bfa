//! AG-UI 1.0: an agent's answer as the events of that protocol.
//!
//! A call that waits for consent is an interrupt. The next request resumes it: `cancelled` takes the approval request
//! back, `resolved` leaves it to its approvers. A client that leaves has some seconds to send its run again;
//! then the run is stopped.

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
    answer_text::{AnswerStyle, Limiter, Piece, render_unread},
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
    tools::approvals,
};
use domain::{error::Error, message::Role};

/// Run an agent in a thread, and stream what happens as AG-UI events. A second request with the same `runId` gets the
/// run of the first.
#[utoipa::path(post, path = "/v1/agui/{agent}", tag = "agui", params(("agent" = String, Path)),
    request_body = RunInput, responses((status = 200, body = AguiEvent, content_type = "text/event-stream")))]
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
    for interrupt in input.cancelled() {
        cancel(&state.app, &caller, interrupt).await?;
    }
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
    for interrupt in input.cancelled() {
        cancel(app, caller, interrupt).await?;
    }
    let mut waiting = Vec::new();
    for interrupt in input.resolved() {
        let approval = approvals::find(app, principal, interrupt).await?;
        if approval.state.is_open() {
            let view = approvals::get(app, principal, interrupt).await?;
            waiting.push(Interrupt::new(&approval, view.text));
        }
    }
    let unread = transcript::unread(app, principal, &input.chat()).await?;
    let conversation = unread.conversation;
    let (pieces, last_sent) = render_unread(unread);
    for piece in &pieces {
        match (piece, shown.last_mut()) {
            (Piece::Break, Some((Role::Assistant, answer))) => answer.push_str("\n\n"),
            (Piece::Text(text), Some((Role::Assistant, answer))) => {
                answer.push_str("\n\n");
                answer.push_str(text);
            }
            (Piece::Text(text), _) => shown.push((Role::Assistant, text.clone())),
            _ => {}
        }
    }
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

/// Takes an approval request back. One that was decided meanwhile stays as it is, and the answer shows that.
async fn cancel(app: &Arc<App>, caller: &Caller, interrupt: &str) -> Result<(), Problem> {
    let approval = approvals::find(app, caller.principal(), interrupt).await?;
    match approvals::cancel(app, caller.principal(), approval.id).await {
        Ok(_) | Err(Error::Conflict(..)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
