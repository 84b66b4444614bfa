//! A new response: its options, its answer, and the requests that frontends send beside a chat.

use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use http::StatusCode;

use super::{
    encoder::Encoder,
    info::AnswerInfo,
    request::{FORMAT, NewResponse, Question},
    wire::ResponseObject,
};
use crate::{
    api::{
        ApiState,
        extract::Caller,
        limits::{self, RequestPermit},
        openai::{no_model, side},
        problem::Problem,
        turn::{AnswerOptions, AnswerPart, AnswerStyle, Limiter, OnDisconnect},
    },
    app::{
        accounts,
        chat::{completions, conversations::FORMAT_FIELD},
    },
    domain::{
        account::ShownCalls,
        error::{Error, ErrorCode},
        response::ResponseSettings,
    },
};

pub(super) fn options(
    caller: &accounts::Caller,
    settings: &ResponseSettings,
    open: limits::Stream,
) -> AnswerOptions {
    AnswerOptions {
        style: match caller.chat.tool_calls {
            ShownCalls::Details => AnswerStyle::Typed,
            _ if settings.format.is_some() => AnswerStyle::Text(ShownCalls::None),
            shown => AnswerStyle::Text(shown),
        },
        limiter: Limiter::new(settings.stop.clone(), settings.max_output_tokens),
        on_disconnect: OnDisconnect::of(caller),
        is_streamed: false,
        is_formatted: settings.format.is_some(),
        open,
    }
}

/// The whole response of an answer that succeeds.
pub(super) async fn complete(
    mut encoder: Encoder,
    parts: impl Stream<Item = Result<AnswerPart, Problem>>,
) -> Result<ResponseObject, Problem> {
    let mut parts = std::pin::pin!(parts);
    while let Some(part) = parts.next().await {
        match part? {
            AnswerPart::Piece(piece) => _ = encoder.add(piece),
            AnswerPart::AnswerEnd(end) => return Ok(encoder.end(Ok(end))),
        }
    }
    Err(Error::Unavailable("the answer broke off; try again".to_owned()).into())
}

pub(super) async fn answer_side_request(
    state: &ApiState,
    caller: &Caller,
    request: &NewResponse,
    Question { question, settings }: Question,
    (permit, open): (RequestPermit, limits::Stream),
) -> Result<Response, Problem> {
    let (app, principal) = (&state.app, caller.principal());
    let (model, transcript) = (request.model.as_str(), &question.transcript);
    let most = settings.max_output_tokens;
    let format = question.format.clone();
    let pieces = completions::complete(app, principal, model, transcript, most, format).await;
    let pieces = pieces.map_err(|error| no_model(error.into(), model))?;
    permit.release();
    let encoder = Encoder::new(AnswerInfo::plain(model, app.clock.now()));
    let parts = side::parts(pieces, open);
    if request.stream() {
        return Ok(encoder.stream(parts, None));
    }
    let answer = complete(encoder, parts).await?;
    Ok(axum::Json(answer).into_response())
}

/// A problem of a new response in the words that OpenAI clients know: what is to be continued and is not there, and a form
/// of the answer that cannot be held.
pub(super) fn named(mut problem: Problem, field: &str) -> Problem {
    if problem.field.as_deref() == Some(FORMAT_FIELD) {
        problem.field = Some(FORMAT.to_owned());
    }
    if field == "conversation" {
        return problem;
    }
    if problem.status == StatusCode::NOT_FOUND && !problem.is_unknown_agent {
        problem.status = StatusCode::BAD_REQUEST;
        problem.code = ErrorCode::PreviousResponseNotFound;
        problem.detail = String::from(
            "there is no such response, or it was not stored; send the whole conversation as `input`",
        );
        problem.field = Some(field.to_owned());
    }
    problem
}
