//! The routes for unchanged OpenAI clients: models and chat completions. The id of an agent is the name of the model.
//!
//! Tools run on the server, so an answer never has `tool_calls` for the client to execute. A run stops when its client
//! leaves, unless the settings of its key say otherwise. Once a run has begun, an error has `x-should-retry: false`,
//! because a client that repeats the request would ask twice. Once the run has called a tool, its failure has a status
//! after which no client repeats the request.

mod completion;
mod content;
mod request;
pub(super) mod responses;
mod schema;
mod side;

pub(super) use self::{
    content::{content, files},
    request::check_question,
    schema::content as text_or_parts,
};

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use http::{HeaderMap, HeaderName, HeaderValue};

use self::{
    completion::{Completion, CompletionInfo, Model, ModelList},
    request::ChatRequest,
};
use super::{
    ApiState,
    answer_text::AnswerStyle,
    extract::{Caller, Path},
    limits::{self, RequestPermit},
    once::mark_replayed,
    problem::Problem,
    request_key::AlwaysKeyed,
    turn::{AnswerOptions, OnDisconnect, Turn},
};
use crate::app::{
    self, App,
    chat::{
        completions,
        transcript::{ClientQuestion, QuestionPlace, Transcript},
    },
};
use domain::{account::ShownCalls, answer_format::AnswerFormat, error::ErrorCode};

/// The agents that the caller may talk to, as models.
///
/// In the shape of OpenAI's list of models.
#[utoipa::path(get, path = "/v1/models", operation_id = "listModels", tag = "openai",
    responses((status = 200, body = ModelList)))]
pub(super) async fn models(
    State(app): State<Arc<App>>,
    caller: Caller,
) -> Result<axum::Json<ModelList>, Problem> {
    let agents = app::servers::agents::list(&app, caller.principal()).await?;
    Ok(axum::Json(ModelList::new(
        agents.into_iter().map(Model::from).collect(),
    )))
}

/// One agent, as a model.
///
/// An agent that the caller may not talk to is not found.
#[utoipa::path(get, path = "/v1/models/{model}", operation_id = "getModel", tag = "openai",
    params(("model" = String, Path)),
    responses((status = 200, body = Model), (status = 404, description = "model_not_found")))]
pub(super) async fn model(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(model): Path<String>,
) -> Result<axum::Json<Model>, Problem> {
    let agent = app::servers::agents::get(&app, caller.principal(), &model)
        .await
        .map_err(|error| no_model(error.into(), &model))?;
    Ok(axum::Json(Model::from(agent)))
}

/// Say something, with all that was said before, and wait for the answer or stream it.
///
/// Tools run here and are never sent to the client. The transcript finds the conversation again when it repeats
/// the last answer. The request of a frontend for a title, for tags or for suggestions is one plain call of the
/// model.
#[utoipa::path(post, path = "/v1/chat/completions", operation_id = "createChatCompletion", tag = "openai",
    request_body = ChatRequest,
    responses((status = 200, body = Completion),
        (status = 400, description = "unsupported, turn_failed_after_call, answer_pending"),
        (status = 404, description = "model_not_found"),
        (status = 409, description = "conversation_busy, run_cancelled"), (status = 422, description = "answer_not_in_format"),
        (status = 502, description = "run_failed"),
        (status = 503, description = "stopping")))]
pub(super) async fn chat(
    State(state): State<ApiState>,
    caller: Caller,
    Extension(permit): Extension<RequestPermit>,
    headers: HeaderMap,
    AlwaysKeyed(request, mut key): AlwaysKeyed<ChatRequest>,
) -> Result<Response, Problem> {
    request.check_tools(caller.0.is_frontend)?;
    let format = request.format()?;
    let transcript = request.transcript()?;
    let open = state.limits.open_stream(caller.principal())?;
    if side::is_side_request(&headers, &transcript) {
        return answer_side_request(&state, &caller, &request, &transcript, format, permit, open)
            .await;
    }
    key.sees_stop = request.stream();
    let question = ClientQuestion {
        agent: request.model.clone(),
        chat: caller.0.conversation_key.clone(),
        transcript,
        files: request.files(),
        format,
        key,
        place: QuestionPlace::Transcript,
        is_resumable: false,
        response: None,
        responses: Vec::new(),
    };
    let is_formatted = question.format.is_some();
    let options = AnswerOptions {
        style: AnswerStyle::Text(if is_formatted {
            ShownCalls::None
        } else {
            caller.0.chat.tool_calls
        }),
        limiter: request.limiter(),
        on_disconnect: OnDisconnect::for_caller(&caller.0),
        is_streamed: request.stream(),
        is_formatted,
        open,
    };
    let turn = Turn::begin(&state.app, caller.principal(), question, options).await;
    let mut turn = turn.map_err(|problem| no_model(problem, &request.model))?;
    permit.release();
    let is_replayed = turn.is_replayed();
    let (conversation, run) = (turn.conversation().to_string(), turn.run().id.to_string());
    let head = CompletionInfo::new(turn.run(), &request.model);
    let mut response = if request.stream() {
        completion::stream(turn, head, request.include_usage())
    } else {
        let delivery = turn.delivery();
        Box::pin(delivery.send(completion::complete(turn, head))).await?
    };
    add_headers(&mut response, conversation, run, &request.ignored());
    if is_replayed {
        mark_replayed(&mut response);
    }
    Ok(response)
}

/// Adds headers that name the conversation, the run and the parameters without an effect.
pub(super) fn add_headers(
    response: &mut Response,
    conversation: String,
    run: String,
    ignored: &[&str],
) {
    let about = [
        ("x-conversation-id", conversation),
        ("x-run-id", run),
        ("x-ignored-parameters", ignored.join(", ")),
    ];
    for (name, value) in about.into_iter().filter(|(_, value)| !value.is_empty()) {
        let value = HeaderValue::from_str(&value).expect("ids and names are header values");
        response
            .headers_mut()
            .insert(HeaderName::from_static(name), value);
    }
}

/// Answers a side request with one call of the model.
async fn answer_side_request(
    state: &ApiState,
    caller: &Caller,
    request: &ChatRequest,
    transcript: &Transcript,
    format: Option<AnswerFormat>,
    permit: RequestPermit,
    open: limits::Stream,
) -> Result<Response, Problem> {
    let (app, model) = (&state.app, request.model.as_str());
    let principal = caller.principal();
    let max_tokens = request.max_tokens();
    let pieces = completions::complete(app, principal, model, transcript, max_tokens, format).await;
    let pieces = pieces.map_err(|error| no_model(error.into(), model))?;
    permit.release();
    let head = CompletionInfo::plain(model, app.clock.now());
    if request.stream() {
        return Ok(side::stream(pieces, head, request.include_usage(), open));
    }
    side::complete(pieces, head).await
}

/// Words the problem of an unknown agent as OpenAI does.
fn no_model(mut problem: Problem, model: &str) -> Problem {
    if problem.is_unknown_agent {
        problem.detail = format!("model {model:?} was not found");
        (problem.code, problem.field) = (ErrorCode::ModelNotFound, Some("model".to_owned()));
        problem.is_sentence = true;
    }
    problem
}
