//! What is an answer in JSON-RPC, and what it says of the request that it answers.

use std::borrow::Cow;

use rmcp::model::{NumberOrString, RequestId};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Interceptor, object};
use crate::error::Failure;
use domain::encoding::replace_lone_surrogates;

#[derive(Deserialize)]
pub(super) struct Envelope<'a> {
    #[serde(borrow, default)]
    pub(super) jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ErrorObject<'a> {
    code: i64,
    #[serde(borrow, default)]
    message: Option<Cow<'a, str>>,
}

impl Interceptor {
    /// The answer to a request of ours in a body of JSON; `None` when the body is no such answer.
    pub(crate) fn answer_in(
        &self,
        body: &[u8],
        request: &RequestId,
    ) -> Option<Result<Box<RawValue>, Failure>> {
        let text = String::from_utf8_lossy(body);
        let text = replace_lone_surrogates(&text);
        let envelope = object::<Envelope>(&text).ok()?;
        let is_ours = match (envelope.id, request) {
            (Some(id), NumberOrString::Number(ours)) => number(id) == Some(*ours),
            // The server could not tell which request it answers.
            (None, _) => envelope.error.is_some(),
            _ => false,
        };
        let is_answer = is_ours && envelope.method.is_none() && envelope.is_jsonrpc();
        is_answer.then(|| self.answer_of(&envelope))
    }

    /// What a message says of the request that it answers. An error says that the request was not carried out only if
    /// it is an error of JSON-RPC, with a code.
    pub(super) fn answer_of(&self, envelope: &Envelope) -> Result<Box<RawValue>, Failure> {
        let unreadable = || {
            Err(Failure::Lost(
                "the answer of the server is not a JSON-RPC answer".to_owned(),
            ))
        };
        if !envelope.is_jsonrpc() {
            return unreadable();
        }
        match (envelope.result, envelope.error) {
            (Some(result), None) => Ok(result.to_owned()),
            (None, Some(error)) => Err(self.error_of(error)),
            _ => unreadable(),
        }
    }

    fn error_of(&self, error: &RawValue) -> Failure {
        let Ok(ErrorObject { code, message }) = object(error.get()) else {
            return Failure::Lost(format!(
                "the server answered with an error that has no JSON-RPC code: {}",
                self.excerpt(error.get())
            ));
        };
        let message = message.filter(|message| !message.trim().is_empty());
        let message = message.map_or_else(
            || format!("the server answered with error {code} and no words"),
            |message| self.excerpt(&message),
        );
        Failure::Refused {
            code: Some(code),
            message,
        }
    }
}

impl Envelope<'_> {
    fn is_jsonrpc(&self) -> bool {
        self.jsonrpc.as_deref() == Some("2.0")
    }
}

/// An id of ours: a number, or the same as text, which some servers make of it.
pub(super) fn number(id: &RawValue) -> Option<i64> {
    id.get().trim_matches('"').parse().ok()
}
