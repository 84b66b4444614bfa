//! The messages of JSON-RPC 2.0, whose parameters and results stay raw JSON: they are scanned once and copied once, and
//! numbers keep their digits.

use std::{borrow::Cow, fmt::Display};

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json, value::RawValue};

pub const PARSE_ERROR: i64 = -32700;
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;
pub const INTERNAL_ERROR: i64 = -32603;
/// The codes that revision 2026-07-28 of MCP adds.
pub const HEADER_MISMATCH: i64 = -32020;
pub const MISSING_CAPABILITY: i64 = -32021;
pub const UNSUPPORTED_VERSION: i64 = -32022;

/// One message: a request, a notification or a response.
#[derive(Deserialize)]
pub struct Message<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<Cow<'a, str>>,
    /// Present also when it is `null`; see [`Message::known_id`].
    #[serde(borrow, default, deserialize_with = "read_present")]
    pub id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub error: Option<&'a RawValue>,
}

/// The error in a response.
#[derive(Deserialize)]
pub struct ErrorObject<'a> {
    pub code: i64,
    #[serde(borrow, default)]
    pub message: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub data: Option<&'a RawValue>,
}

/// Reads a member that is present, also when it is `null`; serde would read `null` as absent.
fn read_present<'de: 'a, 'a, D: Deserializer<'de>>(
    json: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(json).map(Some)
}

impl<'a> Message<'a> {
    pub fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        object(text)
    }

    /// Whether it says that it is JSON-RPC 2.0.
    pub fn is_jsonrpc(&self) -> bool {
        self.jsonrpc.as_deref() == Some("2.0")
    }

    /// Whether it is the response to a request.
    pub fn is_response(&self) -> bool {
        self.method.is_none() && (self.result.is_some() || self.error.is_some())
    }

    /// The id, unless it is `null`: the sender of an error could not read the id then.
    pub fn known_id(&self) -> Option<&'a RawValue> {
        self.id.filter(|id| id.get() != "null")
    }
}

/// Parses a JSON object. `serde_json` alone would also accept an array for a struct.
pub fn object<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T, serde_json::Error> {
    if json.trim_ascii_start().starts_with('{') {
        return serde_json::from_str(json);
    }
    Err(serde::de::Error::custom("it is not an object"))
}

/// Whether JSON can be the id of a request: a text or a whole number.
pub fn is_id(id: &RawValue) -> bool {
    id.get().starts_with('"') || id.get().parse::<i64>().is_ok()
}

/// Writes the answer to a request. `result` is a JSON object.
pub fn write_result(id: &RawValue, result: impl Display) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, id.get())
}

/// Writes an error as the answer to a request.
pub fn write_error(
    id: Option<&RawValue>,
    code: i64,
    message: &str,
    data: Option<&Value>,
) -> String {
    let mut error = json!({ "code": code, "message": message });
    if let Some(data) = data {
        error["data"] = data.clone();
    }
    let id = id.map_or("null", RawValue::get);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
}

/// Writes a notification. `params` is a JSON object.
pub fn write_notification(method: &str, params: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}
