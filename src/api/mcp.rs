//! The toolset of a principal as an MCP server, over streamable HTTP. One address serves both lifecycles of the
//! protocol: the revisions up to 2025-11-25 (without a session), and 2026-07-28. No state is kept between requests, so
//! any replica can answer the next one.
//!
//! What a caller may not do at all (no credential, too many requests, an agent that is not theirs) is answered in HTTP,
//! everything else in JSON-RPC. The JSON-RPC is written here and not by an SDK, because results of servers pass through
//! as raw JSON, which an SDK would parse and write again.
//!
//! This file has the routes, the dispatch of methods and the handshake; `call` has `tools/call` and tasks, `lists`
//! tools and prompts, `changes` the streams of notifications, `revision` revisions and headers, `message` JSON-RPC.

pub(super) mod access;
mod call;
mod changes;
mod lists;
mod message;
mod revision;

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde_json::{json, value::RawValue};

use self::{
    access::McpCaller,
    message::{Failure, RpcError, Shape},
    revision::Meta,
};
use super::{
    ApiState, body::read_json_body, extract::Path, limits::RequestPermit, problem::Problem,
};
use crate::app::tools::client_tools::{self, ClientTools};
use domain::{
    error::ErrorCode,
    jsonrpc::{self, Message},
    principal::Principal,
    server::Lifecycle,
};

/// The most requests of one batch. Only revision 2025-03-26 has batches.
const MAX_BATCH: usize = 32;

/// Call the caller's tools at an agent by MCP: one JSON-RPC message.
///
/// A request is answered with JSON, or with an event stream when the client wants to know of progress; a
/// notification with 202.
#[utoipa::path(post, path = "/mcp/{agent}", operation_id = "callMcp", tag = "mcp", request_body = Object,
    params(("agent" = String, Path), ("MCP-Protocol-Version" = Option<String>, Header),
    ("Mcp-Method" = Option<String>, Header), ("Mcp-Name" = Option<String>, Header)),
    responses((status = 200, body = Object), (status = 202), (status = 403, description = "origin_not_allowed"),
        (status = 406, description = "not_acceptable")))]
pub(super) async fn post(
    State(state): State<ApiState>,
    McpCaller(caller): McpCaller,
    Extension(permit): Extension<RequestPermit>,
    Path(agent): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let headers = request.headers().clone();
    access::check_origin(&state.app.config, &headers)?;
    access::check_accepts(&headers, "application/json")?;
    let body = read_json_body(request, &state).await?;
    let tools = client_tools::load(&state.app, &caller.principal, &agent).await?;
    let client = Client {
        state,
        principal: caller.principal,
        tools: Arc::new(tools),
        permit,
    };
    Ok(client.answer(&headers, body).await)
}

/// Listen for changes of the caller's tools and prompts, as revisions up to 2025-11-25 do.
///
/// Clients of 2026-07-28 send `subscriptions/listen` instead.
#[utoipa::path(get, path = "/mcp/{agent}", operation_id = "listenToMcp", tag = "mcp",
    params(("agent" = String, Path), ("MCP-Protocol-Version" = Option<String>, Header)),
    responses((status = 200, body = String, content_type = "text/event-stream"),
        (status = 403, description = "origin_not_allowed"), (status = 406, description = "not_acceptable"),
        (status = 429, description = "too_many_streams")))]
pub(super) async fn listen(
    State(state): State<ApiState>,
    McpCaller(caller): McpCaller,
    Extension(permit): Extension<RequestPermit>,
    Path(agent): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    access::check_origin(&state.app.config, &headers)?;
    access::check_accepts(&headers, "text/event-stream")?;
    if revision::read_lifecycle_of_stream(&headers)? == Lifecycle::Stateless {
        let detail = "this revision has no such stream; send `subscriptions/listen`";
        let status = StatusCode::METHOD_NOT_ALLOWED;
        return Err(Problem::new(status, ErrorCode::MethodNotAllowed, detail));
    }
    let tools = client_tools::load(&state.app, &caller.principal, &agent).await?;
    let client = Client {
        state,
        principal: caller.principal,
        tools: Arc::new(tools),
        permit,
    };
    client.listen_for_all()
}

/// A caller, and the tools that they have at an agent.
#[derive(Clone)]
struct Client {
    state: ApiState,
    principal: Principal,
    tools: Arc<ClientTools>,
    permit: RequestPermit,
}

/// One request of a client.
struct RpcRequest<'a> {
    id: &'a RawValue,
    method: &'a str,
    params: &'a str,
    meta: Meta<'a>,
    lifecycle: Lifecycle,
    /// Whether the client accepts an event stream as the answer.
    accepts_stream: bool,
}

impl Client {
    async fn answer(&self, headers: &HeaderMap, body: Bytes) -> Response {
        let shape = match message::read(&body) {
            Ok(shape) => shape,
            Err(error) => return error.response(None, StatusCode::BAD_REQUEST),
        };
        match shape {
            Shape::One(message) => self.answer_one(headers, &message).await,
            Shape::Batch(_) if !revision::takes_batches(headers) => {
                let why = "batches are no part of this revision; send one message";
                RpcError::invalid_request(why).response(None, StatusCode::BAD_REQUEST)
            }
            Shape::Batch(messages) if messages.is_empty() || messages.len() > MAX_BATCH => {
                let why = format!("a batch has 1 to {MAX_BATCH} messages");
                RpcError::invalid_request(why).response(None, StatusCode::BAD_REQUEST)
            }
            Shape::Batch(messages) => self.answer_batch(headers, messages).await,
        }
    }

    /// Answers the messages of a batch one after the other. None of them is answered with a stream.
    async fn answer_batch(&self, headers: &HeaderMap, messages: Vec<&RawValue>) -> Response {
        let mut answers = Vec::new();
        for message in messages {
            let message = match message::read_one(message.get()) {
                Ok(message) => message,
                Err(error) => {
                    answers.push(error.json(None));
                    continue;
                }
            };
            let Some(id) = message.id else {
                self.take_notification(&message);
                continue;
            };
            // Each message counts as a request.
            let counted = self.state.limits.count(&self.principal);
            let answer = match (counted, revision::read_lifecycle(headers, &message)) {
                (Err(problem), _) => Err(Failure::Http(problem)),
                _ if message.method.as_deref() == Some("initialize") => {
                    Err(RpcError::invalid_request("a handshake is no part of a batch").into())
                }
                (_, Err(error)) => Err(error.into()),
                (Ok(_), Ok((lifecycle, meta))) => {
                    let request = message::request_of(&message, id, lifecycle, meta, false);
                    self.dispatch(&request).await
                }
            };
            answers.push(match answer {
                Ok(result) => jsonrpc::write_result(id, &result),
                Err(Failure::Cancelled) => continue,
                Err(failure) => failure.into_rpc().json(Some(id)),
            });
        }
        if answers.is_empty() {
            return StatusCode::ACCEPTED.into_response();
        }
        json_response(StatusCode::OK, format!("[{}]", answers.join(",")))
    }

    async fn answer_one(&self, headers: &HeaderMap, message: &Message<'_>) -> Response {
        let Some(id) = message.id else {
            return match revision::check_notification(headers) {
                Ok(()) => {
                    self.take_notification(message);
                    StatusCode::ACCEPTED.into_response()
                }
                Err(error) => error.response(None, StatusCode::BAD_REQUEST),
            };
        };
        if message.is_response() {
            // The service sends its clients no requests, so it waits for no response.
            return StatusCode::ACCEPTED.into_response();
        }
        let (lifecycle, meta) = match revision::read_lifecycle(headers, message) {
            Ok(found) => found,
            Err(error) => {
                let status = error.status;
                return error.response(Some(id), status);
            }
        };
        let accepts_stream = access::accepts(headers, "text/event-stream");
        let request = message::request_of(message, id, lifecycle, meta, accepts_stream);
        let answered = match request.method {
            "tools/call" => match self.check_param_headers(headers, &request) {
                Ok(()) => self.call(&request).await,
                Err(error) => Err(error),
            },
            "subscriptions/listen" if lifecycle == Lifecycle::Stateless => self.subscribe(&request),
            _ => self
                .dispatch(&request)
                .await
                .map(|result| json_response(StatusCode::OK, jsonrpc::write_result(id, &result))),
        };
        match answered {
            Ok(response) => response,
            Err(Failure::Http(problem)) => problem.into_response(),
            Err(Failure::Cancelled) => StatusCode::ACCEPTED.into_response(),
            Err(Failure::Rpc(error)) => {
                let status = if lifecycle == Lifecycle::Stateless {
                    error.status
                } else {
                    StatusCode::OK
                };
                error.response(Some(id), status)
            }
        }
    }

    /// Handles a notification of the client. Only the cancellation of a request has an effect.
    fn take_notification(&self, message: &Message<'_>) {
        if message.method.as_deref() != Some("notifications/cancelled") {
            return;
        }
        if let Some(id) = message::cancelled_request(message) {
            let agent = self.tools.toolset.agent();
            client_tools::cancel(&self.state.app, &self.principal, agent, id.get());
        }
    }

    /// Answers a request without a stream. Returns the result as JSON.
    async fn dispatch(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        match (request.method, request.lifecycle) {
            ("initialize", Lifecycle::Handshake) => self.initialize(request),
            ("ping", Lifecycle::Handshake) => Ok("{}".to_owned()),
            ("server/discover", Lifecycle::Stateless) => Ok(self.discover()),
            ("tools/list", _) => self.list_tools(request),
            ("tools/call", _) => self.call_at_once(request).await,
            ("prompts/list", _) => self.list_prompts(request),
            ("prompts/get", _) => self.get_prompt(request).await,
            ("completion/complete", _) => self.complete(request).await,
            ("tasks/get", Lifecycle::Stateless) => self.get_task(request).await,
            ("tasks/cancel", Lifecycle::Stateless) => self.cancel_task(request).await,
            ("tasks/update", Lifecycle::Stateless) => self.update_task(request).await,
            (method, _) => Err(RpcError::method_not_found(method).into()),
        }
    }
}

fn json_response(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

impl Client {
    fn initialize(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        let version = revision::negotiate(request.params)?;
        let mut result = json!({
            "protocolVersion": version,
            "capabilities": {
                "tools": { "listChanged": true },
                "prompts": { "listChanged": true },
                "completions": {},
            },
            "serverInfo": self.server_info(),
        });
        if let Some(text) = self.instructions() {
            result["instructions"] = text.into();
        }
        Ok(result.to_string())
    }

    fn discover(&self) -> String {
        let mut result = json!({
            "resultType": "complete",
            "supportedVersions": revision::SUPPORTED,
            "capabilities": {
                "tools": { "listChanged": true },
                "prompts": { "listChanged": true },
                "completions": {},
                "extensions": { call::TASKS_EXTENSION: {} },
            },
            "ttlMs": revision::TTL_MS,
            "cacheScope": "private",
            "_meta": { "io.modelcontextprotocol/serverInfo": self.server_info() },
        });
        if let Some(text) = self.instructions() {
            result["instructions"] = text.into();
        }
        result.to_string()
    }

    fn server_info(&self) -> serde_json::Value {
        let metadata = &self.tools.pack.metadata;
        json!({
            "name": metadata.id,
            "title": metadata.display_name,
            "version": env!("CARGO_PKG_VERSION"),
        })
    }

    fn instructions(&self) -> Option<&str> {
        let text = self.tools.pack.metadata.description.trim();
        (!text.is_empty()).then_some(text)
    }
}
