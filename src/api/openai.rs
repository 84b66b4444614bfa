//! The door for unchanged OpenAI clients: an agent's id is the model.
//!
//! Tools run here and are never streamed as `tool_calls` to execute. A run goes on when its client leaves:
//! what it sent to a tool cannot be taken back, and its answer is kept in the conversation. Once a run has
//! begun, an error says `x-should-retry: false`, because a client that sends the request again would ask
//! twice.

mod answer;
mod request;
mod shown;
mod wire;

use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderName, HeaderValue};

use self::{
    answer::Turn,
    request::ChatRequest,
    wire::{Completion, Model, ModelList},
};
use super::{
    Door,
    extract::{Caller, Json, Path},
    limits::Place,
    problem::Problem,
};
use crate::{
    app::{self, App},
    domain::error::{Error, Thing},
};

/// The agents I may talk to, as models.
#[utoipa::path(get, path = "/v1/models", tag = "openai", responses((status = 200, body = ModelList)))]
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
#[utoipa::path(get, path = "/v1/models/{model}", tag = "openai", params(("model" = String, Path)),
    responses((status = 200, body = Model)))]
pub(super) async fn model(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(model): Path<String>,
) -> Result<axum::Json<Model>, Problem> {
    let agent = app::servers::agents::get(&app, caller.principal(), &model)
        .await
        .map_err(no_model(&model))?;
    Ok(axum::Json(Model::from(agent)))
}

/// Say something, with all that was said before, and wait for the answer or stream it.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "openai", request_body = ChatRequest,
    responses((status = 200, body = Completion)))]
pub(super) async fn chat(
    State(door): State<Door>,
    caller: Caller,
    Extension(place): Extension<Place>,
    Json(request): Json<ChatRequest>,
) -> Result<Response, Problem> {
    let transcript = request.transcript()?;
    let open = door.limits.open_stream(caller.principal())?;
    let turn = Turn::begin(&door.app, &caller.0, &request.model, transcript, open).await;
    let turn = turn.map_err(no_model(&request.model))?;
    place.leave();
    let (conversation, run) = (turn.conversation().to_string(), turn.run().to_string());
    let mut response = if request.stream() {
        turn.stream(request.include_usage())
    } else {
        axum::Json(turn.complete().await.map_err(Problem::begun)?).into_response()
    };
    for (name, id) in [("x-conversation-id", conversation), ("x-run-id", run)] {
        let id = HeaderValue::from_str(&id).expect("a UUID is a header value");
        response
            .headers_mut()
            .insert(HeaderName::from_static(name), id);
    }
    Ok(response)
}

/// An unknown agent, in the words that OpenAI clients know.
fn no_model(model: &str) -> impl Fn(Error) -> Problem {
    move |error| match error {
        Error::NotFound(Thing::Agent(_)) => {
            let mut problem = Problem::not_found(format!("model {model:?}"));
            (problem.code, problem.field) = ("model_not_found", Some("model".to_owned()));
            problem
        }
        error => error.into(),
    }
}
