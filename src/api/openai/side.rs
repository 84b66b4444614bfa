//! Side requests: a frontend asks for a title, for tags or for suggestions beside its chat. Each is one plain call of
//! the model, without tools and without a run.
//!
//! Open WebUI marks such a request with a header, if its connection is set up to send it. Otherwise the prompts that
//! frontends have for them are recognised by their beginning.

use axum::response::{IntoResponse, Response, sse::Event};
use futures_util::{Stream, StreamExt, stream};
use http::HeaderMap;

use super::completion::{CompletionInfo, Delta, data, last_chunks};
use crate::{
    api::{
        answer_text::Piece,
        events, limits,
        problem::Problem,
        turn::{AnswerEnd, AnswerPart},
    },
    app::chat::{completions::CompletionChunk, transcript::Transcript},
};
use domain::{
    error::{Error, Result},
    message::Role,
};

/// The header that Open WebUI sends if its connection has `{"X-OpenWebUI-Task": "{{TASK}}"}`.
const TASK_HEADER: &str = "x-openwebui-task";
/// The beginning of Open WebUI's prompts. Its text before a question about documents begins so too and is no side
/// request, so the words after this must be one of [`TASKS`].
const TASK: &str = "### Task:";
const TASKS: [&str; 7] = [
    "Generate a concise title",
    "Generate a concise, 3-5 word title",
    "Generate 1-3 broad tags",
    "Generate a detailed prompt for am image",
    "Predict 3-5 useful messages",
    "Suggest 3-5 relevant follow-up",
    "Analyze the chat history to determine the necessity",
];
const AUTOCOMPLETE: &str = "You are an autocompletion system.";
/// The prompts of LibreChat, and of Open WebUI without that beginning.
const PROMPTS: [&str; 5] = [
    "Analyze this conversation and provide:\n1. The detected language",
    "Provide a concise, 5-word-or-less title for the conversation",
    "Please generate a concise, 5-word-or-less title for the conversation",
    "Detect user language and write in the same language an extremely concise title",
    "Your task is to reflect the speaker's likely facial expression through a fitting emoji",
];

/// Whether a request is a side request of a frontend.
pub(super) fn is_side_request(headers: &HeaderMap, transcript: &Transcript) -> bool {
    let task = headers.get(TASK_HEADER).and_then(|task| task.to_str().ok());
    // A version of Open WebUI that does not know the placeholder sends it unchanged, or sends nothing.
    if task.is_some_and(|task| !task.trim().is_empty() && !task.contains("{{")) {
        return true;
    }
    let asked = transcript.last().into_iter();
    let system = transcript.first().into_iter();
    let system = system.filter(|(role, _)| *role == Role::System);
    asked.chain(system).any(|(_, text)| is_task(text.trim()))
}

fn is_task(text: &str) -> bool {
    let begins = |prompts: &[&str], text: &str| prompts.iter().any(|p| text.starts_with(p));
    match text.strip_prefix(TASK) {
        Some(task) => {
            let task = task.trim_start();
            begins(&TASKS, task) || task.starts_with(AUTOCOMPLETE)
        }
        None => begins(&PROMPTS, text),
    }
}

/// Waits for the whole answer of the model.
pub(super) async fn complete(
    mut pieces: impl Stream<Item = Result<CompletionChunk>> + Unpin,
    head: CompletionInfo,
) -> Result<Response, Problem> {
    let mut answer = String::new();
    while let Some(piece) = pieces.next().await {
        match piece? {
            CompletionChunk::Text(text) => answer.push_str(&text),
            CompletionChunk::Done { usage, is_cut } => {
                let completion = head.completion(answer, usage, reason(is_cut));
                return Ok(axum::Json(completion).into_response());
            }
        }
    }
    Err(Error::Unavailable("the model's answer broke off; try again".to_owned()).into())
}

/// The answer of the model as the parts of an answer, for an encoder.
pub(super) fn parts(
    pieces: impl Stream<Item = Result<CompletionChunk>> + Send + Unpin + 'static,
    open: limits::Stream,
) -> impl Stream<Item = Result<AnswerPart, Problem>> + Send {
    pieces.map(move |piece| {
        let _open = &open;
        Ok(match piece? {
            CompletionChunk::Text(text) => AnswerPart::Piece(Piece::Text(text)),
            CompletionChunk::Done { usage, is_cut } => AnswerPart::AnswerEnd(AnswerEnd {
                usage,
                finished_at: None,
                reason: reason(is_cut),
            }),
        })
    })
}

fn reason(is_cut: bool) -> &'static str {
    if is_cut { "length" } else { "stop" }
}

/// Streams the answer of the model as chunks.
pub(super) fn stream(
    pieces: impl Stream<Item = Result<CompletionChunk>> + Send + Unpin + 'static,
    head: CompletionInfo,
    with_usage: bool,
    open: limits::Stream,
) -> Response {
    let first = data(&head.chunk(Delta::role(), None));
    let chunks = pieces.flat_map(move |piece| {
        let _open = &open;
        stream::iter(chunks_of(&head, piece, with_usage))
    });
    events::answer(stream::iter([first]).chain(chunks))
}

fn chunks_of(
    head: &CompletionInfo,
    piece: Result<CompletionChunk>,
    with_usage: bool,
) -> Vec<Event> {
    match piece {
        Ok(CompletionChunk::Text(text)) => vec![data(&head.chunk(Delta::content(&text), None))],
        Ok(CompletionChunk::Done { usage, is_cut }) => {
            last_chunks(head, reason(is_cut), with_usage.then_some(usage))
        }
        Err(error) => vec![data(&Problem::from(error).openai())],
    }
}
