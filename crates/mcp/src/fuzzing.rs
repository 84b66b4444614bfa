//! Entry points for the fuzzers (`fuzz/`) and tests. They read messages of servers exactly as the transports do.

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

/// The events of a stream that comes in these chunks, in debug format. The last one may be the error that ended it.
pub async fn events(pieces: Vec<Vec<u8>>) -> Vec<String> {
    let body = stream::iter(pieces.into_iter().map(|piece| Ok(Bytes::from(piece))));
    let events = sse::events(body, Arc::default(), None, None);
    events
        .map(|event| format!("{:?}", event.map_err(|error| error.to_string())))
        .collect()
        .await
}

/// Reads one line while a request with the id 1 waits. Returns the result for that request, and whether the line is a
/// message for rmcp.
pub fn line(text: &str) -> (Option<Box<RawValue>>, bool) {
    let (interceptor, pending) = (Interceptor::default(), Arc::new(PendingRequest::default()));
    let mut request = ClientRequest::ListToolsRequest(ListToolsRequest::default());
    request.extensions_mut().insert(pending.clone());
    interceptor.register_outgoing(&ClientJsonRpcMessage::request(
        request,
        RequestId::Number(1),
    ));
    let message = interceptor.read_message(text);
    (
        pending.take_answer().and_then(Result::ok),
        message.is_some(),
    )
}

/// Reads a JSON body as the answer to a call; the text for the model.
pub fn body(bytes: &[u8]) -> Option<String> {
    let answer = Interceptor::default().answer_in(bytes, &RequestId::Number(1))?;
    outcome::read(answer.ok()?, false)
        .ok()
        .map(|outcome| outcome.text)
}

/// Whether a body, as the answer to a call with the id 1, certainly refuses the call.
pub fn refuses(bytes: &[u8]) -> bool {
    let answer = Interceptor::default().answer_in(bytes, &RequestId::Number(1));
    matches!(answer, Some(Err(Failure::Refused { .. })))
}
