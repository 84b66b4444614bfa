//! OpenAI's Responses API. A response is a run, and its id is the run's. `previous_response_id` names the conversation.
//!
//! A response that is read again is encoded from the rows of its run by the same encoder. So it is the same each time
//! that it is read, on every replica.

mod encoder;
pub(in crate::api) mod items;
mod request;
mod wire;

use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};
use futures_util::{Stream, StreamExt};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;

use self::{
    encoder::{AnswerInfo, Encoder},
    request::{FORMAT, NewResponse, Question},
    wire::{Deleted, ItemList, ResponseEvent, ResponseObject, message_id, response_id, run_id},
};
use super::{add_headers, no_model, side};
use crate::{
    api::{
        ApiState,
        answer_text::{AnswerStyle, Limiter},
        extract::{Caller, Path, Query},
        limits::{self, RequestPermit},
        once::mark_replayed,
        paging::check_limit,
        problem::Problem,
        request_key::AlwaysKeyed,
        turn::{AnswerOptions, AnswerPart, OnDisconnect, Turn},
    },
    app::{
        self, App, accounts,
        chat::{
            completions,
            conversations::FORMAT_FIELD,
            responses::{self, InputRange},
            transcript::QuestionPlace,
        },
        runs::OpenRequests,
    },
};
use domain::{
    account::ShownCalls,
    error::{Error, ErrorCode},
    ids::RunId,
    response::ResponseSettings,
};

/// Say something, alone or after an earlier response, and wait for the answer or stream it.
///
/// `previous_response_id` or `conversation` says what it continues. With `background`, the answer is read later.
/// What fails in a stream is `response.failed`.
#[utoipa::path(post, path = "/v1/responses", operation_id = "createResponse", tag = "openai",
    request_body = NewResponse,
    responses((status = 200, content((ResponseObject = "application/json"), (ResponseEvent = "text/event-stream"))),
        (status = 400, description = "unsupported, turn_failed_after_call, answer_pending"),
        (status = 404, description = "model_not_found, previous_response_not_found"),
        (status = 409, description = "conversation_busy, run_cancelled"), (status = 422, description = "answer_not_in_format"),
        (status = 502, description = "run_failed"),
        (status = 503, description = "stopping")))]
pub(in crate::api) async fn create(
    State(state): State<ApiState>,
    caller: Caller,
    Extension(permit): Extension<RequestPermit>,
    headers: HeaderMap,
    AlwaysKeyed(request, mut key): AlwaysKeyed<NewResponse>,
) -> Result<Response, Problem> {
    request.check(caller.0.is_frontend)?;
    // A client reads a response in the background later.
    key.sees_stop = request.stream() || request.is_in_background();
    let Question { question, settings } = request.question(&caller.0, key)?;
    let open = state.limits.open_stream(caller.principal())?;
    if side::is_side_request(&headers, &question.transcript) {
        let asked = Question { question, settings };
        return answer_side_request(&state, &caller, &request, asked, permit, open).await;
    }
    let mut options = options(&caller.0, &settings, open);
    options.is_streamed = request.stream();
    if settings.background {
        options.on_disconnect = OnDisconnect::Ignore;
    }
    let in_conversation = matches!(question.place, QuestionPlace::Conversation { .. });
    let turn = Turn::begin(&state.app, caller.principal(), question, options).await;
    let mut turn = turn.map_err(|problem| {
        let field = match settings.previous {
            _ if in_conversation => "conversation",
            Some(_) => "previous_response_id",
            None => "input",
        };
        word_problem(no_model(problem, &request.model), field)
    })?;
    permit.release();
    let (conversation, run) = (turn.conversation().to_string(), turn.run().id.to_string());
    let info = AnswerInfo {
        run: turn.run().clone(),
        model: request.model.clone(),
        is_stored: request.is_stored(),
        settings,
    };
    let is_replayed = turn.is_replayed();
    let is_background = info.settings.background;
    let encoder = Encoder::new(info);
    let mut response = if request.stream() {
        encoder.stream(turn.into_parts(), None)
    } else if is_background {
        let begun = encoder.begun();
        // A task reads the answer to its end, and so records which part of it the client has received.
        state
            .app
            .tasks
            .spawn(async move { turn.complete().await.err() });
        axum::Json(begun).into_response()
    } else {
        turn.expect_retry();
        let delivery = turn.delivery();
        delivery
            .send(Box::pin(complete(encoder, turn.into_parts())))
            .await?
    };
    add_headers(&mut response, conversation, run, &request.ignored());
    if is_replayed {
        mark_replayed(&mut response);
    }
    Ok(response)
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct ResponseQuery {
    /// The events of the response from its beginning, and those to come.
    #[serde(default)]
    stream: bool,
    /// With `stream`: only the events with a higher `sequence_number`.
    starting_after: Option<u64>,
}

/// A response as it is now.
///
/// With `stream` it comes as the events that its creation streamed, from the beginning or after one of them.
#[utoipa::path(get, path = "/v1/responses/{id}", operation_id = "getResponse", tag = "openai",
    params(("id" = String, Path), ResponseQuery),
    responses((status = 200, content((ResponseObject = "application/json"), (ResponseEvent = "text/event-stream")))))]
pub(in crate::api) async fn get(
    State(state): State<ApiState>,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<ResponseQuery>,
    Extension(permit): Extension<RequestPermit>,
) -> Result<Response, Problem> {
    if query.starting_after.is_some() && !query.stream {
        let reason = "needs `stream=true`";
        return Err(Problem::invalid("starting_after", reason));
    }
    let (encoder, turn) = reopen(&state, &caller, &id, query.stream).await?;
    permit.release();
    if query.stream {
        return Ok(encoder.stream(turn.into_parts(), query.starting_after));
    }
    if !turn.run().status.is_final() {
        return Ok(axum::Json(encoder.begun()).into_response());
    }
    Ok(axum::Json(encoder.read(turn.into_parts()).await?).into_response())
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct InputQuery {
    /// The id of the last item of the page before.
    after: Option<String>,
    /// 1 to 100.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 100, default = 20)]
    limit: i64,
    /// `desc`: the newest first, as without it.
    #[param(inline)]
    order: Option<InputOrder>,
}

fn default_limit() -> i64 {
    20
}

impl InputQuery {
    /// How many items a page has, and which are read: one more, which says whether there are more.
    fn range(&self) -> Result<(i64, InputRange), Problem> {
        let limit = check_limit(self.limit, 100)?;
        let after = self.after.as_deref().map(|after| {
            let reason = "is not the id of an item";
            message_id(after).ok_or_else(|| Problem::invalid("after", reason))
        });
        let range = InputRange {
            after: after.transpose()?,
            oldest_first: self.order == Some(InputOrder::Asc),
            limit: limit + 1,
        };
        Ok((limit, range))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum InputOrder {
    Asc,
    Desc,
}

/// What a response answers: the messages of its conversation up to the question.
///
/// The newest come first unless `order` says otherwise.
#[utoipa::path(get, path = "/v1/responses/{id}/input_items", operation_id = "listInputItems", tag = "openai",
    params(("id" = String, Path), InputQuery),
    responses((status = 200, body = ItemList), (status = 400, description = "unknown_reference")))]
pub(in crate::api) async fn input_items(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<InputQuery>,
) -> Result<axum::Json<ItemList>, Problem> {
    let (limit, range) = query.range()?;
    let found = responses::list_input(&app, caller.principal(), named_run(&id)?, range).await;
    let found = found.map_err(|error| no_response(error, &id))?;
    Ok(axum::Json(ItemList::of_page(found, limit)))
}

/// Forget a response: it can be neither read nor continued.
///
/// Its conversation stays.
#[utoipa::path(delete, path = "/v1/responses/{id}", operation_id = "deleteResponse", tag = "openai",
    params(("id" = String, Path)), responses((status = 200, body = Deleted)))]
pub(in crate::api) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<axum::Json<Deleted>, Problem> {
    let run = named_run(&id)?;
    let deleted = responses::delete(&app, caller.principal(), run).await;
    deleted.map_err(|error| no_response(error, &id))?;
    Ok(axum::Json(Deleted::new(response_id(run))))
}

/// Stop a response that is under way.
///
/// What it has sent to a tool stays done. One that is over cannot be stopped.
#[utoipa::path(post, path = "/v1/responses/{id}/cancel", operation_id = "cancelResponse", tag = "openai",
    params(("id" = String, Path)),
    responses((status = 200, body = ResponseObject), (status = 409, description = "run_over")))]
pub(in crate::api) async fn cancel(
    State(state): State<ApiState>,
    caller: Caller,
    Path(id): Path<String>,
    Extension(permit): Extension<RequestPermit>,
) -> Result<axum::Json<ResponseObject>, Problem> {
    let (encoder, turn) = reopen(&state, &caller, &id, false).await?;
    let run = turn.run().id;
    app::runs::cancel(&state.app, caller.principal(), run, OpenRequests::Withdraw).await?;
    permit.release();
    Ok(axum::Json(encoder.read(turn.into_parts()).await?))
}

/// Opens the answer of a stored response from its beginning.
async fn reopen(
    state: &ApiState,
    caller: &Caller,
    id: &str,
    is_streamed: bool,
) -> Result<(Encoder, Turn), Problem> {
    let open = state.limits.open_stream(caller.principal())?;
    let reopened = responses::reopen(&state.app, caller.principal(), named_run(id)?).await;
    let (posted, agent, settings) = reopened.map_err(|error| no_response(error, id))?;
    let mut options = options(&caller.0, &settings, open);
    options.on_disconnect = OnDisconnect::Ignore;
    options.is_streamed = is_streamed;
    let encoder = Encoder::new(AnswerInfo {
        run: posted.run.clone(),
        model: agent.to_string(),
        is_stored: true,
        settings,
    });
    let turn = Turn::listen_to(&state.app, caller.principal(), posted, options);
    Ok((encoder, turn))
}

fn named_run(id: &str) -> Result<RunId, Problem> {
    run_id(id).ok_or_else(|| Problem::not_found(response_name(id)))
}

fn no_response(error: Error, id: &str) -> Problem {
    match error {
        Error::NotFound(_) => Problem::not_found(response_name(id)),
        error => error.into(),
    }
}

fn response_name(id: &str) -> String {
    let id: String = id.chars().take(64).collect();
    format!("response {id:?}")
}

/// The options of an answer, by the settings of the response and the caller's key.
fn options(
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
        on_disconnect: OnDisconnect::for_caller(caller),
        is_streamed: false,
        is_formatted: settings.format.is_some(),
        open,
    }
}

/// Waits for the whole response. An answer that fails is a problem.
async fn complete(
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

/// Answers a side request with one call of the model.
async fn answer_side_request(
    state: &ApiState,
    caller: &Caller,
    request: &NewResponse,
    Question { question, settings }: Question,
    permit: RequestPermit,
    open: limits::Stream,
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

/// Words two problems of a new response as OpenAI does: the earlier response does not exist, or the answer cannot have
/// the format.
fn word_problem(mut problem: Problem, field: &str) -> Problem {
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
