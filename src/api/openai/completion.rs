//! Chat completions: the JSON of models and completions, and the answer of a run as one completion or as a stream of
//! chunks.

use axum::response::{Response, sse::Event};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use time::OffsetDateTime;

use crate::{
    api::{
        answer_text::Piece,
        events,
        problem::Problem,
        turn::{AnswerPart, Turn},
    },
    app::servers::agents::AgentView,
};
use domain::run::{Run, Usage};

#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct ModelList {
    object: &'static str,
    data: Vec<Model>,
}

impl ModelList {
    pub fn new(data: Vec<Model>) -> Self {
        Self {
            object: "list",
            data,
        }
    }
}

#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct Model {
    id: String,
    object: &'static str,
    /// Always 0: an agent is as old as its file.
    created: i64,
    owned_by: &'static str,
    /// Not OpenAI's; some frontends show it.
    name: String,
    description: String,
}

impl From<AgentView> for Model {
    fn from(agent: AgentView) -> Self {
        Self {
            id: agent.id,
            object: "model",
            created: 0,
            owned_by: "chatelaine",
            name: agent.display_name,
            description: agent.description,
        }
    }
}

/// A whole answer.
#[derive(Serialize, utoipa::ToSchema)]
pub(in crate::api) struct Completion {
    id: String,
    object: &'static str,
    created: i64,
    model: String,
    choices: [Choice; 1],
    usage: Tokens,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = CompletionChoice)]
struct Choice {
    index: u32,
    message: CompletionMessage,
    finish_reason: &'static str,
    logprobs: Option<()>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Said)]
struct CompletionMessage {
    role: &'static str,
    content: String,
    refusal: Option<String>,
}

/// The tokens of all steps of the run.
#[derive(Serialize, utoipa::ToSchema)]
#[expect(clippy::struct_field_names, reason = "OpenAI's names")]
pub(super) struct Tokens {
    prompt_tokens: i64,
    prompt_tokens_details: PromptTokens,
    completion_tokens: i64,
    total_tokens: i64,
}

#[derive(Serialize, utoipa::ToSchema)]
struct PromptTokens {
    /// Those that came from the provider's cache.
    cached_tokens: i64,
}

impl From<Usage> for Tokens {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.input_tokens,
            prompt_tokens_details: PromptTokens {
                cached_tokens: usage.cached_input_tokens,
            },
            completion_tokens: usage.output_tokens,
            total_tokens: usage.input_tokens + usage.output_tokens,
        }
    }
}

/// A piece of a streamed answer.
#[derive(Serialize)]
pub(super) struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: i64,
    model: &'a str,
    choices: Vec<ChunkChoice<'a>>,
    /// Null, except in the last chunk for a client that asked for it.
    usage: Option<Tokens>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: u32,
    delta: Delta<'a>,
    finish_reason: Option<&'static str>,
    logprobs: Option<()>,
}

impl<'a> Delta<'a> {
    /// The beginning of an answer.
    pub fn role() -> Self {
        Self {
            role: Some("assistant"),
            content: Some(""),
        }
    }

    /// A piece of the text of an answer.
    pub fn content(text: &'a str) -> Self {
        Self {
            role: None,
            content: Some(text),
        }
    }
}

#[derive(Default, Serialize)]
pub(super) struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
}

/// The values that all chunks of an answer have in common.
pub(super) struct CompletionInfo {
    id: String,
    created: i64,
    model: String,
}

impl CompletionInfo {
    pub fn new(run: &Run, model: &str) -> Self {
        let id = format!("chatcmpl-{}", run.id.0.simple());
        Self {
            id,
            created: run.created_at.unix_timestamp(),
            model: model.to_owned(),
        }
    }

    /// The values of an answer without a run.
    pub fn plain(model: &str, now: OffsetDateTime) -> Self {
        Self {
            id: format!("chatcmpl-{}", uuid::Uuid::now_v7().simple()),
            created: now.unix_timestamp(),
            model: model.to_owned(),
        }
    }

    pub fn completion(
        self,
        content: String,
        usage: Usage,
        finish_reason: &'static str,
    ) -> Completion {
        let message = CompletionMessage {
            role: "assistant",
            content,
            refusal: None,
        };
        Completion {
            id: self.id,
            object: "chat.completion",
            created: self.created,
            model: self.model,
            choices: [Choice {
                index: 0,
                message,
                finish_reason,
                logprobs: None,
            }],
            usage: usage.into(),
        }
    }

    /// A chunk with a piece of the answer, or its end.
    pub fn chunk<'a>(&'a self, delta: Delta<'a>, finish_reason: Option<&'static str>) -> Chunk<'a> {
        let choice = ChunkChoice {
            index: 0,
            delta,
            finish_reason,
            logprobs: None,
        };
        self.chunk_of(vec![choice], None)
    }

    /// The chunk with the usage, which a client can ask for.
    pub fn usage(&self, usage: Usage) -> Chunk<'_> {
        self.chunk_of(Vec::new(), Some(usage.into()))
    }

    fn chunk_of<'a>(&'a self, choices: Vec<ChunkChoice<'a>>, usage: Option<Tokens>) -> Chunk<'a> {
        Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            choices,
            usage,
        }
    }
}

/// Waits for the whole answer of a run.
pub(super) async fn complete(mut turn: Turn, head: CompletionInfo) -> Result<Completion, Problem> {
    let finished = turn.complete().await?;
    let text = std::mem::take(&mut turn.sent);
    Ok(head.completion(text, finished.usage, finished.reason))
}

/// Streams the answer of a run as chunks. An error after the start is a chunk of its own and ends the stream without
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
                last_chunks(&head, finished.reason, with_usage.then_some(finished.usage))
            }
            Err(problem) => vec![data(&problem.openai())],
        };
        stream::iter(chunks)
    });
    events::answer(stream::iter([first]).chain(rest))
}

/// Writes a chunk as an event.
pub(super) fn data(chunk: &impl serde::Serialize) -> Event {
    Event::default()
        .json_data(chunk)
        .expect("chunks are plain data that can be written")
}

/// The last chunks of an answer.
pub(super) fn last_chunks(
    head: &CompletionInfo,
    reason: &'static str,
    usage: Option<Usage>,
) -> Vec<Event> {
    let mut chunks = vec![data(&head.chunk(Delta::default(), Some(reason)))];
    chunks.extend(usage.map(|usage| data(&head.usage(usage))));
    chunks.push(Event::default().data("[DONE]"));
    chunks
}
