//! Entry points for the fuzzers (`fuzz/`) and tests only: they read what servers send as the transports do.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, GetExtensions, ListToolsRequest, RequestId,
};
use serde_json::value::RawValue;

use super::{
    error::Failure,
    interceptor::{Interceptor, PendingRequest},
    outcome, sse,
};

/// The events of a stream that comes in these pieces, written out; the last one says how it ended.
pub async fn events(pieces: Vec<Vec<u8>>) -> Vec<String> {
    let body = stream::iter(pieces.into_iter().map(|piece| Ok(Bytes::from(piece))));
    let events = sse::events(body, Arc::default(), None, None);
    events
        .map(|event| format!("{:?}", event.map_err(|error| error.to_string())))
        .collect()
        .await
}

/// Reads one line while a request with the id 1 waits: what it says to that request, and whether it is a message for
/// somebody else.
pub fn line(text: &str) -> (Option<Box<RawValue>>, bool) {
    let (interceptor, pending) = (Interceptor::default(), Arc::new(PendingRequest::default()));
    let mut request = ClientRequest::ListToolsRequest(ListToolsRequest::default());
    request.extensions_mut().insert(pending.clone());
    interceptor.outgoing(&ClientJsonRpcMessage::request(
        request,
        RequestId::Number(1),
    ));
    let message = interceptor.message(text);
    (pending.take().and_then(Result::ok), message.is_some())
}

/// Reads a body of JSON as the answer to a call: the words for the model.
pub fn body(bytes: &[u8]) -> Option<String> {
    let answer = Interceptor::default().answer_in(bytes, &RequestId::Number(1))?;
    outcome::read(answer.ok()?, false)
        .ok()
        .map(|outcome| outcome.text)
}

/// Whether a body, as the answer to a call with the id 1, says that the call was not carried out.
pub fn refuses(bytes: &[u8]) -> bool {
    let answer = Interceptor::default().answer_in(bytes, &RequestId::Number(1));
    matches!(answer, Some(Err(Failure::Refused { .. })))
}
