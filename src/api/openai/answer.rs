//! The answer of a run as a chat completion, whole or as a stream of chunks.

use axum::response::{Response, sse::Event};
use futures_util::{StreamExt, stream};

use super::{
    side::ending,
    turn::{AnswerPart, Turn},
    wire::{Completion, CompletionInfo, Delta},
};
use crate::api::{events, problem::Problem};

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
    let rest = stream::unfold(Some((turn, head)), move |state| async move {
        let (mut turn, head) = state?;
        let chunks = match turn.next().await {
            Ok(AnswerPart::Text(text)) => {
                let chunk = data(&head.chunk(Delta::content(&text), None));
                return Some((stream::iter(vec![chunk]), Some((turn, head))));
            }
            Ok(AnswerPart::AnswerEnd(finished)) => {
                ending(&head, finished.reason, with_usage.then_some(finished.usage))
            }
            Err(problem) => {
                if let Some(cause) = &problem.cause {
                    tracing::error!(error = format!("{cause:#}"), run = %turn.run().id, "a streamed answer broke");
                }
                vec![data(&problem.openai())]
            }
        };
        Some((stream::iter(chunks), None))
    });
    events::answer(stream::iter([first]).chain(rest.flatten()))
}

pub(super) fn data(chunk: &impl serde::Serialize) -> Event {
    Event::default()
        .json_data(chunk)
        .expect("chunks are plain data that can be written")
}
