//! The errors of JSON-RPC and of MCP, and those of this service as one of them.

use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json, value::RawValue};

use crate::{
    api::{mcp::json_response, problem::Problem},
    domain::error::{Error, Thing},
};

const PARSE_ERROR: i64 = -32700;

const INVALID_REQUEST: i64 = -32600;

const METHOD_NOT_FOUND: i64 = -32601;

const INVALID_PARAMS: i64 = -32602;

const INTERNAL_ERROR: i64 = -32603;

/// From 2026-07-28 on.
const HEADER_MISMATCH: i64 = -32020;

const MISSING_CAPABILITY: i64 = -32021;

const UNSUPPORTED_VERSION: i64 = -32022;

/// Why a request is not answered with a result.
#[derive(Debug)]
pub(in crate::api::mcp) enum Failure {
    Rpc(RpcError),
    /// What keeps any request from being answered.
    Http(Problem),
    /// The client has cancelled the request, and then hears no more of it.
    Cancelled,
}

/// An error of JSON-RPC.
#[derive(Debug)]
pub(in crate::api::mcp) struct RpcError {
    code: i64,
    pub(super) message: String,
    data: Option<Value>,
    /// The HTTP status from 2026-07-28 on.
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

    /// The whole answer.
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
            Error::NotFound(Thing::Agent(_)) => Self::Http(error.into()),
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
    /// Where the status of HTTP is sent already, or is that of several answers.
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
