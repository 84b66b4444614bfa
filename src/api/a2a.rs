//! Agents for other agents: A2A over JSON-RPC, in the current version (1.0) with the types of the protocol's own
//! crate, and in 0.3, whose spelling [`legacy`] translates. A message that names a skill is one call of its tool; any
//! other is a turn of the agent.
//!
//! A context is a conversation and a task is a run. Each belongs to the user who began it; for any other user
//! it does not exist. What a caller may not do at all (no credential, too many requests, an agent that is not
//! theirs) is answered in HTTP, everything else in JSON-RPC.

mod card;
mod legacy;
mod send;
mod task;

use std::{collections::HashMap, convert::Infallible, sync::Arc};

use a2a::{
    A2AError, BAD_REQUEST_TYPE, CancelTaskRequest, FieldViolation, GetTaskRequest, JsonRpcId,
    JsonRpcRequest, JsonRpcResponse, SVC_PARAM_VERSION, TypedDetail, methods,
};
use axum::{
    Extension,
    extract::{FromRequest, Request, State},
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

use super::{
    ApiState,
    extract::{Caller, Json, MaybeAuthenticated, Path},
    limits::RequestPermit,
    problem::Problem,
};
use crate::app::{self, App};
use domain::{
    error::{Error, ErrorCode},
    json,
    principal::Principal,
};

/// What an agent is and can do, for other agents.
///
/// Without a credential the card tells what guests may do, of an agent that takes guests. With one, it tells what
/// the caller may do.
#[utoipa::path(get, path = "/a2a/{agent}/.well-known/agent-card.json", operation_id = "getAgentCard", tag = "a2a",
    security((), ("bearer" = [])), params(("agent" = String, Path)), responses((status = 200, body = Object)))]
pub(super) async fn card(
    State(app): State<Arc<App>>,
    MaybeAuthenticated(caller): MaybeAuthenticated,
    Path(agent): Path<String>,
) -> Result<axum::Json<Value>, Problem> {
    Ok(axum::Json(
        card::agent_card(
            &app,
            caller.as_ref().map(|caller| &caller.principal),
            &agent,
        )
        .await?,
    ))
}

/// What all agents here are and can do, in one card.
///
/// Their skills are called `agent/skill`. What the caller may not use is left out.
#[utoipa::path(get, path = "/.well-known/agent-card.json", operation_id = "getCardOfAllAgents", tag = "a2a",
    security((), ("bearer" = [])), responses((status = 200, body = Object)))]
pub(super) async fn card_of_all(
    State(app): State<Arc<App>>,
    MaybeAuthenticated(caller): MaybeAuthenticated,
) -> Result<axum::Json<Value>, Problem> {
    Ok(axum::Json(
        card::combined_card(&app, caller.as_ref().map(|caller| &caller.principal)).await?,
    ))
}

/// The card of all agents, beside the agents.
///
/// Clients look for a card here whose address of an agent has no slash at its end.
#[utoipa::path(get, path = "/a2a/.well-known/agent-card.json", operation_id = "getCardBesideAgents", tag = "a2a",
    security((), ("bearer" = [])), responses((status = 200, body = Object)))]
pub(super) async fn card_beside_agents(
    app: State<Arc<App>>,
    caller: MaybeAuthenticated,
) -> Result<axum::Json<Value>, Problem> {
    card_of_all(app, caller).await
}

/// Call an agent by A2A (JSON-RPC).
///
/// The methods are `SendMessage`, `GetTask`, `CancelTask`, `GetExtendedAgentCard`, and their names of version 0.3.
/// `metadata.skillId` names a skill, which is then called without a model. A refusal is an error of JSON-RPC with
/// the status 200.
#[utoipa::path(post, path = "/a2a/{agent}", operation_id = "callAgent", tag = "a2a", request_body = Object,
    params(("agent" = String, Path), ("A2A-Version" = Option<String>, Header)),
    responses((status = 200, body = Object)))]
pub(super) async fn call(
    State(state): State<ApiState>,
    caller: Caller,
    Extension(permit): Extension<RequestPermit>,
    Path(agent): Path<String>,
    sent: SentRequest,
) -> Result<Response, Problem> {
    app::servers::agents::get(&state.app, caller.principal(), &agent).await?;
    let agent = Some(agent.as_str());
    respond(
        A2aRequest {
            state: &state,
            principal: caller.principal(),
            permit: &permit,
            agent,
        },
        sent,
    )
    .await
}

/// Call any agent here by A2A.
///
/// As for one agent, except that `metadata.skillId` is `agent/skill`.
#[utoipa::path(post, path = "/a2a", operation_id = "callAnyAgent", tag = "a2a", request_body = Object,
    params(("A2A-Version" = Option<String>, Header)), responses((status = 200, body = Object)))]
pub(super) async fn call_any(
    State(state): State<ApiState>,
    caller: Caller,
    Extension(permit): Extension<RequestPermit>,
    sent: SentRequest,
) -> Result<Response, Problem> {
    respond(
        A2aRequest {
            state: &state,
            principal: caller.principal(),
            permit: &permit,
            agent: None,
        },
        sent,
    )
    .await
}

/// A request's caller and agent. `agent` is `None` for the address of all agents.
#[derive(Clone, Copy)]
struct A2aRequest<'a> {
    state: &'a ApiState,
    principal: &'a Principal,
    permit: &'a RequestPermit,
    agent: Option<&'a str>,
}

/// The headers and the body of a request. A bad body is answered in JSON-RPC, so it is no rejection here.
pub(super) struct SentRequest {
    /// The value of the version header; empty without one.
    version: String,
    body: Result<Box<RawValue>, Problem>,
}

impl FromRequest<ApiState> for SentRequest {
    type Rejection = Infallible;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Infallible> {
        let version = request.headers().get(SVC_PARAM_VERSION);
        let version = version.map(|value| value.to_str().unwrap_or("?").trim().to_owned());
        let body = Json::from_request(request, state).await;
        Ok(Self {
            version: version.unwrap_or_default(),
            body: body.map(|Json(body)| body),
        })
    }
}

/// The version of the protocol that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProtocolVersion {
    Current,
    Legacy,
}

async fn respond(a2a_request: A2aRequest<'_>, sent: SentRequest) -> Result<Response, Problem> {
    let body = match sent.body {
        Ok(body) => body,
        Err(problem) if problem.code == ErrorCode::MalformedJson => {
            return Ok(refusal(
                JsonRpcId::Null,
                &A2AError::parse_error(problem.detail),
            ));
        }
        // A list is read only to be refused.
        Err(problem) if problem.field.as_deref() == Some("body") => return Ok(not_an_object()),
        Err(problem) => return Err(problem),
    };
    let request = match read_request(&body) {
        Ok(request) if request.jsonrpc == "2.0" => request,
        Ok(request) => {
            return Ok(refusal(
                request.id,
                &A2AError::invalid_request("jsonrpc must be \"2.0\""),
            ));
        }
        Err(_) if !body.get().starts_with('{') => return Ok(not_an_object()),
        Err(error) => {
            return Ok(refusal(id_of(&body), &A2AError::invalid_request(error)));
        }
    };
    let JsonRpcRequest {
        id, method, params, ..
    } = request;
    let outcome = match read_version(&sent.version, &method) {
        Ok(version) => {
            a2a_request
                .dispatch(version, &method, params.unwrap_or(Value::Null))
                .await
        }
        Err(error) => Err(RequestError::A2a(error)),
    };
    match outcome {
        Ok(result) => {
            let answer = serde_json::to_value(JsonRpcResponse::success(id, result));
            Ok(axum::Json(json::Json::from(&answer.map_err(Error::internal)?)).into_response())
        }
        Err(RequestError::A2a(error)) => Ok(refusal(id, &error)),
        Err(RequestError::Http(problem)) => Err(problem),
    }
}

/// Parses a request. Its numbers keep all their digits.
fn read_request(body: &RawValue) -> Result<JsonRpcRequest, String> {
    let body = json::read_value(body.get())?;
    serde_json::from_value(body).map_err(|error| error.to_string())
}

fn refusal(id: JsonRpcId, error: &A2AError) -> Response {
    axum::Json(JsonRpcResponse::error(id, error.to_jsonrpc_error())).into_response()
}

/// The id of a request, even where the rest is not a valid request.
fn id_of(body: &RawValue) -> JsonRpcId {
    let id = json::read_value(body.get())
        .ok()
        .and_then(|body| body.get("id").cloned());
    id.and_then(|id| serde_json::from_value(id).ok())
        .unwrap_or(JsonRpcId::Null)
}

/// Reads the version of a request from the name of its method. A version header must agree with it.
fn read_version(version: &str, method: &str) -> Result<ProtocolVersion, A2AError> {
    let named = if methods::is_valid(method) {
        Some(ProtocolVersion::Current)
    } else {
        legacy::version_of(method)
    };
    let asked = match version.split('.').take(2).collect::<Vec<_>>()[..] {
        [""] => named,
        ["1", "0"] => Some(ProtocolVersion::Current),
        ["0", "3"] => Some(ProtocolVersion::Legacy),
        _ => {
            return Err(A2AError::version_not_supported(
                &version.chars().take(32).collect::<String>(),
            ));
        }
    };
    let unknown = || A2AError::method_not_found(&method.chars().take(64).collect::<String>());
    named
        .filter(|named| Some(*named) == asked)
        .ok_or_else(unknown)
}

impl A2aRequest<'_> {
    async fn dispatch(
        self,
        version: ProtocolVersion,
        method: &str,
        params: Value,
    ) -> Result<Value, RequestError> {
        let sent = method;
        let (method, params) = match version {
            ProtocolVersion::Current => (method, params),
            ProtocolVersion::Legacy => (
                legacy::current_method(method),
                legacy::current_params(params),
            ),
        };
        let task = match method {
            methods::SEND_MESSAGE => self.send(read(params)?).await?,
            methods::GET_TASK => self.get_task(&read::<GetTaskRequest>(params)?.id).await?,
            methods::CANCEL_TASK => self.cancel(&read::<CancelTaskRequest>(params)?.id).await?,
            methods::GET_EXTENDED_AGENT_CARD => return self.card().await,
            methods::CREATE_PUSH_CONFIG
            | methods::GET_PUSH_CONFIG
            | methods::LIST_PUSH_CONFIGS
            | methods::DELETE_PUSH_CONFIG => {
                return Err(A2AError::push_notification_not_supported().into());
            }
            _ => {
                let why = format!("{sent} is not supported; send a message and ask for its task");
                return Err(A2AError::unsupported_operation(why).into());
            }
        };
        let task = to_json(&task)?;
        Ok(match (version, method) {
            (ProtocolVersion::Legacy, _) => legacy::legacy_task(task),
            (ProtocolVersion::Current, methods::SEND_MESSAGE) => {
                serde_json::json!({ "task": task })
            }
            (ProtocolVersion::Current, _) => task,
        })
    }

    async fn card(self) -> Result<Value, RequestError> {
        let app: &Arc<App> = &self.state.app;
        Ok(match self.agent {
            Some(agent) => card::agent_card(app, Some(self.principal), agent).await?,
            None => card::combined_card(app, Some(self.principal)).await?,
        })
    }
}

fn not_an_object() -> Response {
    let why = "send one JSON-RPC request, which is an object; batches are not supported";
    refusal(JsonRpcId::Null, &A2AError::invalid_request(why))
}

/// Reads the parameters of a method.
fn read<T: DeserializeOwned>(params: Value) -> Result<T, RequestError> {
    serde_path_to_error::deserialize(params).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { "params" } else { &path };
        invalid(path, &error.into_inner().to_string())
    })
}

/// Why a request of A2A failed: an error of the protocol if it has one for the case, else a problem in HTTP.
enum RequestError {
    /// An error of the protocol.
    A2a(A2AError),
    Http(Problem),
}

impl From<A2AError> for RequestError {
    fn from(error: A2AError) -> Self {
        Self::A2a(error)
    }
}

impl From<Problem> for RequestError {
    fn from(problem: Problem) -> Self {
        Self::Http(problem)
    }
}

impl From<Error> for RequestError {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid { field, reason, .. } => invalid(&field, &reason.into_text()),
            Error::Conflict(_, why) => Self::A2a(A2AError::unsupported_operation(why)),
            other => Self::Http(other.into()),
        }
    }
}

/// The error for a parameter that cannot be used.
fn invalid(field: &str, reason: &str) -> RequestError {
    let violation = FieldViolation {
        field: field.to_owned(),
        description: reason.to_owned(),
    };
    let violations = serde_json::to_value([violation]).unwrap_or_default();
    let detail = TypedDetail::new(
        BAD_REQUEST_TYPE,
        HashMap::from([("fieldViolations".to_owned(), violations)]),
    );
    RequestError::A2a(
        A2AError::invalid_params(format!("{field}: {reason}")).with_details(vec![detail]),
    )
}

/// Writes a value as JSON.
fn to_json(what: &impl Serialize) -> Result<Value, RequestError> {
    serde_json::to_value(what).map_err(|error| RequestError::Http(Error::internal(error).into()))
}
