//! JSON-RPC on the wire: reads the messages of clients, and writes results, notifications and errors. Parameters and
//! results stay raw JSON.

use std::borrow::Cow;

use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::{Value, json, value::RawValue};

use super::{RpcRequest, json_response, revision::Meta};
use crate::api::problem::Problem;
use domain::{
    error::{Error, Missing},
    server::Lifecycle,
};

/// One message of a client.
#[derive(Deserialize)]
pub(super) struct Message<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "read_present")]
    pub id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub params: Option<&'a RawValue>,
    #[serde(default)]
    result: Option<IgnoredAny>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

/// Reads a member that is present, also when it is `null`; serde would read `null` as absent.
fn read_present<'de: 'a, 'a, D: Deserializer<'de>>(
    json: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(json).map(Some)
}

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
    if message.jsonrpc.as_deref() != Some("2.0") {
        return Err(RpcError::invalid_request("`jsonrpc` must be \"2.0\""));
    }
    if message.method.is_none() && !message.is_response() {
        return Err(RpcError::invalid_request("the message has no `method`"));
    }
    if message.id.is_some_and(|id| !is_id(id)) {
        return Err(RpcError::invalid_request(
            "`id` must be a string or a whole number",
        ));
    }
    if message.params().is_none() {
        return Err(RpcError::invalid_request("`params` must be an object"));
    }
    Ok(message)
}

fn is_id(id: &RawValue) -> bool {
    let text = id.get();
    text.starts_with('"') || text.parse::<i64>().is_ok()
}

impl<'a> Message<'a> {
    /// Whether the message is the response to a request.
    pub fn is_response(&self) -> bool {
        self.method.is_none() && (self.result.is_some() || self.error.is_some())
    }

    /// The parameters as text; `None` when they are not an object.
    pub fn params(&self) -> Option<&'a str> {
        match self.params.map(RawValue::get) {
            None => Some("{}"),
            Some(text) => text.starts_with('{').then_some(text),
        }
    }

    pub fn request<'m>(
        &'m self,
        id: &'a RawValue,
        lifecycle: Lifecycle,
        meta: Meta<'a>,
        accepts_stream: bool,
    ) -> RpcRequest<'m>
    where
        'a: 'm,
    {
        RpcRequest {
            id,
            method: self.method.as_deref().unwrap_or_default(),
            params: self.params().unwrap_or("{}"),
            meta,
            lifecycle,
            accepts_stream,
        }
    }

    /// The id of the request that a notification cancels.
    pub fn cancelled_request(&self) -> Option<Box<RawValue>> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Cancelled {
            request_id: Box<RawValue>,
        }
        let cancelled: Cancelled = serde_json::from_str(self.params()?).ok()?;
        Some(cancelled.request_id)
    }
}

/// Reads the parameters of a method.
pub(super) fn params<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, RpcError> {
    serde_json::from_str(text).map_err(|error| RpcError::invalid_params(error.to_string()))
}

/// Writes the answer to a request. `result` is a JSON object.
pub(super) fn result_json(id: &RawValue, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, id.get())
}

/// Writes a notification. `params` is a JSON object.
pub(super) fn notification_json(method: &str, params: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}

const PARSE_ERROR: i64 = -32700;

const INVALID_REQUEST: i64 = -32600;

const METHOD_NOT_FOUND: i64 = -32601;

const INVALID_PARAMS: i64 = -32602;

const INTERNAL_ERROR: i64 = -32603;

/// The codes that revision 2026-07-28 adds.
const HEADER_MISMATCH: i64 = -32020;

const MISSING_CAPABILITY: i64 = -32021;

const UNSUPPORTED_VERSION: i64 = -32022;

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
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        let id = id.map_or("null", RawValue::get);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
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
