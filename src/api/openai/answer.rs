//! The answer of a run as a chat completion, whole or as a stream of chunks.

use axum::response::{Response, sse::Event};
use futures_util::{StreamExt, stream};

use super::{
    side::ending,
    wire::{Completion, CompletionInfo, Delta},
};
use crate::api::{
    events,
    problem::Problem,
    turn::{AnswerPart, Piece, Turn},
};

/// The whole answer.
pub(super) async fn complete(mut turn: Turn, head: CompletionInfo) -> Result<Completion, Problem> {
    let finished = turn.complete().await?;
    let said = std::mem::take(&mut turn.sent);
    Ok(head.completion(said, finished.usage, finished.reason))
}

/// The answer as chunks. An error after the start is a chunk of its own and ends the stream without
/// `[DONE]`, as clients expect.
pub(super) fn stream(turn: Turn, head: CompletionInfo, with_usage: bool) -> Response {
    let first = data(&head.chunk(Delta::role(), None));
    let rest = turn.into_parts().flat_map(move |part| {
        let chunks = match part {
            Ok(AnswerPart::Piece(Piece::Text(text))) => {
                vec![data(&head.chunk(Delta::content(&text), None))]
            }
            Ok(AnswerPart::Piece(_)) => Vec::new(),
            Ok(AnswerPart::AnswerEnd(finished)) => {
                ending(&head, finished.reason, with_usage.then_some(finished.usage))
            }
            Err(problem) => vec![data(&problem.openai())],
        };
        stream::iter(chunks)
    });
    events::answer(stream::iter([first]).chain(rest))
}

pub(super) fn data(chunk: &impl serde::Serialize) -> Event {
    Event::default()
        .json_data(chunk)
        .expect("chunks are plain data that can be written")
}
