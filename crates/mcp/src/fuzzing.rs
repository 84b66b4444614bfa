//! Entry points for the fuzzers (`fuzz/`) and tests. They read messages of servers exactly as the transports do.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use serde_json::value::RawValue;
use tokio::sync::broadcast;

use super::{
    Key, answer,
    error::Failure,
    outbox, outcome,
    peer::{Peer, Transport},
    redaction::Redactor,
    request::OpenRequest,
    sse::Events,
};
use domain::{ids::ServerId, owner::SharedKey};

/// The events of a stream that comes in these chunks, in debug format. The last one may be the error that ended it.
pub async fn events(pieces: Vec<Vec<u8>>) -> Vec<String> {
    let body = stream::iter(pieces.into_iter().map(|piece| Ok(Bytes::from(piece))));
    let (mut events, mut all) = (Events::new(body), Vec::new());
    while let Some(event) = events.next().await {
        all.push(format!("{:?}", event.map_err(|error| error.to_string())));
    }
    all
}

/// Reads one line while a request with the id 1 waits; the result for that request. It is called in a
/// runtime.
pub fn line(text: &str) -> Option<Box<RawValue>> {
    let (outbox, _receiver) = outbox::new();
    let key = Key::Shared(SharedKey {
        tenant: None,
        digest: [0; 32],
    });
    let server = ServerId::parse("fuzzing").ok()?;
    let redactor = Arc::<Redactor>::default();
    let (transport, changes) = (Transport::Outbox(outbox), broadcast::channel(1).0);
    let peer = Arc::new(Peer::new(transport, redactor, key, server, changes));
    let open = Arc::<OpenRequest>::default();
    peer.open_for_fuzzing(1, &open);
    peer.take_message(text, None);
    open.take_answer().and_then(Result::ok)
}

/// Reads a JSON body as the answer to a call; the text for the model.
pub fn body(bytes: &[u8]) -> Option<String> {
    let answer = answer::read_body(bytes, 1, false, &Redactor::default())?;
    outcome::read(answer.ok()?, false)
        .ok()
        .map(|outcome| outcome.text)
}

/// Whether a body, as the answer to a call with the id 1, certainly refuses the call.
pub fn refuses(bytes: &[u8]) -> bool {
    let answer = answer::read_body(bytes, 1, false, &Redactor::default());
    matches!(answer, Some(Err(Failure::Refused { .. })))
}
