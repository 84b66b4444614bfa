//! The messages of clients and the answers to them, in JSON-RPC ([`domain::jsonrpc`]).

use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{RpcRequest, json_response, revision::Meta};
use crate::api::problem::Problem;
use domain::{
    error::{Error, Missing},
    jsonrpc::{
        self, HEADER_MISMATCH, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND,
        MISSING_CAPABILITY, Message, PARSE_ERROR, UNSUPPORTED_VERSION,
    },
    server::Lifecycle,
};

/// The body of a request: one message or a batch.
pub(super) enum Shape<'a> {
    One(Message<'a>),
    Batch(Vec<&'a RawValue>),
}

pub(super) fn read(body: &[u8]) -> Result<Shape<'_>, RpcError> {
    let text = std::str::from_utf8(body).map_err(|_| RpcError::parse("the body is not UTF-8"))?;
    if text.trim_start().starts_with('[') {
        let messages = serde_json::from_str(text);
        return messages
            .map(Shape::Batch)
            .map_err(|error| RpcError::parse(error.to_string()));
    }
    read_one(text).map(Shape::One)
}

pub(super) fn read_one(text: &str) -> Result<Message<'_>, RpcError> {
    let message: Message = serde_json::from_str(text).map_err(|error| {
        if error.is_data() {
            RpcError::invalid_request(
                "a message is an object with `jsonrpc`, `method` and `params`",
            )
        } else {
            RpcError::parse(error.to_string())
        }
    })?;
    if !message.is_jsonrpc() {
        return Err(RpcError::invalid_request("`jsonrpc` must be \"2.0\""));
    }
    if message.method.is_none() && !message.is_response() {
        return Err(RpcError::invalid_request("the message has no `method`"));
    }
    if message.id.is_some_and(|id| !jsonrpc::is_id(id)) {
        return Err(RpcError::invalid_request(
            "`id` must be a string or a whole number",
        ));
    }
    if params_of(&message).is_none() {
        return Err(RpcError::invalid_request("`params` must be an object"));
    }
    Ok(message)
}

/// The parameters of a message as text; `None` when they are not an object.
pub(super) fn params_of<'a>(message: &Message<'a>) -> Option<&'a str> {
    match message.params.map(RawValue::get) {
        None => Some("{}"),
        Some(text) => text.starts_with('{').then_some(text),
    }
}

/// The request in a message that has this id.
pub(super) fn request_of<'m, 'a: 'm>(
    message: &'m Message<'a>,
    id: &'a RawValue,
    lifecycle: Lifecycle,
    meta: Meta<'a>,
    accepts_stream: bool,
) -> RpcRequest<'m> {
    RpcRequest {
        id,
        method: message.method.as_deref().unwrap_or_default(),
        params: params_of(message).unwrap_or("{}"),
        meta,
        lifecycle,
        accepts_stream,
    }
}

/// The id of the request that a notification cancels.
pub(super) fn cancelled_request(message: &Message<'_>) -> Option<Box<RawValue>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Cancelled {
        request_id: Box<RawValue>,
    }
    let cancelled: Cancelled = serde_json::from_str(params_of(message)?).ok()?;
    Some(cancelled.request_id)
}

/// Reads the parameters of a method.
pub(super) fn params<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, RpcError> {
    serde_json::from_str(text).map_err(|error| RpcError::invalid_params(error.to_string()))
}

/// Why a request is not answered with a result.
#[derive(Debug)]
pub(super) enum Failure {
    Rpc(RpcError),
    /// An error that HTTP answers, such as too many requests.
    Http(Problem),
    /// The client has cancelled the request and gets no answer.
    Cancelled,
}

/// An error of JSON-RPC.
#[derive(Debug)]
pub(super) struct RpcError {
    code: i64,
    pub(super) message: String,
    data: Option<Value>,
    /// The HTTP status in revision 2026-07-28. Earlier ones answer 200.
    pub status: StatusCode,
}

impl RpcError {
    fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
            status: StatusCode::OK,
        }
    }

    fn bad_request(code: i64, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            ..Self::new(code, message)
        }
    }

    pub fn parse(why: impl Into<String>) -> Self {
        Self::bad_request(PARSE_ERROR, why)
    }

    pub fn invalid_request(why: impl Into<String>) -> Self {
        Self::bad_request(INVALID_REQUEST, why)
    }

    pub fn invalid_params(why: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, why)
    }

    pub fn method_not_found(method: &str) -> Self {
        let method: String = method.chars().take(64).collect();
        Self {
            status: StatusCode::NOT_FOUND,
            ..Self::new(METHOD_NOT_FOUND, format!("there is no method {method:?}"))
        }
    }

    /// The required members of `_meta` are missing.
    pub fn missing_meta(why: impl Into<String>) -> Self {
        Self::bad_request(INVALID_PARAMS, why)
    }

    pub fn header_mismatch(why: impl Into<String>) -> Self {
        Self::bad_request(HEADER_MISMATCH, why)
    }

    pub fn unsupported_version(requested: &str, supported: &[&str]) -> Self {
        let requested: String = requested.chars().take(64).collect();
        let why = format!("protocol version {requested:?} is not supported");
        Self::bad_request(UNSUPPORTED_VERSION, why)
            .with_data(json!({ "supported": supported, "requested": requested }))
    }

    /// `required` is an object of client capabilities.
    pub fn missing_capability(required: &Value) -> Self {
        let why = "the client has not declared a capability that this request needs";
        Self::bad_request(MISSING_CAPABILITY, why)
            .with_data(json!({ "requiredCapabilities": required }))
    }

    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// Writes the error as the answer to a request.
    pub fn json(&self, id: Option<&RawValue>) -> String {
        jsonrpc::write_error(id, self.code, &self.message, self.data.as_ref())
    }

    pub fn response(&self, id: Option<&RawValue>, status: StatusCode) -> Response {
        json_response(status, self.json(id))
    }
}

impl From<RpcError> for Failure {
    fn from(error: RpcError) -> Self {
        Self::Rpc(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::NotFound(Missing::Agent(_)) => Self::Http(error.into()),
            Error::NotFound(_) | Error::Invalid { .. } | Error::Conflict(..) => {
                Self::Rpc(RpcError::invalid_params(error.to_string()))
            }
            error => Self::Http(error.into()),
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Http(problem)
    }
}

impl Failure {
    /// Makes an error of JSON-RPC, for answers whose HTTP status was sent already or stands for several answers.
    pub fn into_rpc(self) -> RpcError {
        match self {
            Self::Rpc(error) => error,
            Self::Cancelled => RpcError::new(INTERNAL_ERROR, "the request was cancelled"),
            Self::Http(problem) => {
                if let Some(cause) = &problem.cause {
                    tracing::error!(error = format!("{cause:#}"), "request failed");
                }
                let status = problem.status.as_u16();
                RpcError::new(INTERNAL_ERROR, problem.detail)
                    .with_data(json!({ "code": problem.code, "status": status }))
            }
        }
    }
}
