//! JSON-RPC as it is on the wire: messages of clients, results and errors. What is passed on stays raw JSON.

mod failure;

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::{Value, value::RawValue};

pub(super) use self::failure::{Failure, RpcError};
use super::{
    RpcRequest,
    era::{Era, Meta},
};

/// One message of a client.
#[derive(Deserialize)]
pub(super) struct Message<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
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

/// A member that is there, `null` included.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(json: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(json).map(Some)
}

/// What the body of a request holds.
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
    /// An answer to a request, which is no request itself.
    pub fn is_response(&self) -> bool {
        self.method.is_none() && (self.result.is_some() || self.error.is_some())
    }

    /// The text of the parameters, which are an object; `None` when they are something else.
    pub fn params(&self) -> Option<&'a str> {
        match self.params.map(RawValue::get) {
            None => Some("{}"),
            Some(text) => text.starts_with('{').then_some(text),
        }
    }

    pub fn request<'m>(
        &'m self,
        id: &'a RawValue,
        era: Era,
        meta: Meta<'a>,
        streams: bool,
    ) -> RpcRequest<'m>
    where
        'a: 'm,
    {
        RpcRequest {
            id,
            method: self.method.as_deref().unwrap_or_default(),
            params: self.params().unwrap_or("{}"),
            meta,
            era,
            streams,
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

/// The parameters of a method.
pub(super) fn params<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, RpcError> {
    serde_json::from_str(text).map_err(|error| RpcError::invalid_params(error.to_string()))
}

/// The answer to a request; `result` is a JSON object.
pub(super) fn result_json(id: &RawValue, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, id.get())
}

/// A notification; `params` is a JSON object.
pub(super) fn notification_json(method: &str, params: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}
