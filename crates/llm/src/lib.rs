//! One step of a model: messages and tools in, a stream of deltas out.
//!
//! The message rows of the store stay the source of truth; a provider's own view of a conversation is made from
//! them for each step and thrown away. Each provider has one file, and its JSON is known nowhere else.
//!
//! Invariants: a stream ends with exactly one [`Delta::Done`] or one error, and a reply that the provider did
//! not end is never `Done`. A request is not repeated after the first text of its answer has been emitted. No
//! key, prompt or raw body is in an error or a log line. Dropping the stream cancels the request.

use std::{sync::Arc, time::Duration};

use futures_util::Stream;
use serde_json::value::RawValue;

use domain::{
    answer_format::AnswerFormat,
    ids::{TenantId, UserId},
    pack::{Llm, Provider},
    run::Usage,
};

mod answer_format;
mod anthropic;
mod breaker;
mod error;
mod gemini;
mod history;
mod ollama;
mod openai;
mod provider;
mod reply;
mod schema;
mod step;
mod transport;

pub use error::ModelError;

/// What is unlike its server's schema in what a model is told of a tool's arguments, in words.
pub fn schema_changes(llm: &Llm, schema: &RawValue) -> Vec<String> {
    if llm.provider == Provider::None {
        return Vec::new();
    }
    let repaired = schema::for_endpoint(schema, schema::Dialect::of(llm));
    repaired.changes.into_iter().collect()
}

/// The input of one step of the model.
#[derive(Clone, Debug, Default)]
pub struct StepRequest {
    /// Whose step it is: an endpoint that fails for one tenant is not left alone for the others.
    pub tenant: Option<TenantId>,
    /// Whose question it is: a question on which an endpoint is silent is no outage of the endpoint.
    pub user: Option<UserId>,
    pub system: String,
    /// Oldest first. A result may come anywhere after its call. A result without a call is left out, and a
    /// call without a result gets an error as its result. So a trimmed history is always legal.
    pub history: Vec<Turn>,
    /// Only tools that this principal may use. The names are those of `domain::names`.
    pub tools: Vec<ToolDef>,
    /// The form of the answer. Its provider is told of it in its own way, if it has one; a provider may leave it out.
    pub format: Option<AnswerFormat>,
}

impl StepRequest {
    /// Bytes of the request, about.
    fn size(&self) -> usize {
        self.fixed_size() + self.history.iter().map(history::size).sum::<usize>()
    }

    /// Bytes of what a request has beside its history, about.
    fn fixed_size(&self) -> usize {
        let tools = self
            .tools
            .iter()
            .map(|tool| tool.name.len() + tool.description.len() + tool.schema.get().len());
        self.system.len() + tools.sum::<usize>()
    }
}

#[derive(Clone, Debug)]
pub enum Turn {
    User(String),
    /// An image of the user, which belongs to the text before it. It is left out when the model refuses it.
    Image {
        media_type: String,
        data: Arc<[u8]>,
    },
    /// Text may be empty when there are calls.
    Assistant {
        text: String,
        calls: Vec<ModelCall>,
    },
    ToolResult {
        call_id: String,
        name: String,
        text: String,
        is_error: bool,
    },
    /// An image in the result before it. It is left out when the model refuses it.
    ToolImage {
        media_type: String,
        data: Arc<[u8]>,
    },
}

#[derive(Clone, Debug)]
pub struct ToolDef {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments, serialised once by the catalog.
    pub schema: Arc<RawValue>,
}

/// A call as the model requested it. It is not checked: the model may have invented the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCall {
    /// Unique in the reply and in the history before it. The program makes an id when the provider's id is
    /// missing, too short to be unique, or already used.
    pub call_id: String,
    pub name: String,
    /// The text the model wrote, possibly not JSON.
    pub arguments: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// A piece of the answer; never empty.
    Text(String),
    /// The provider ended its reply. Always the last item.
    Done(Reply),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// All text deltas, joined.
    pub text: String,
    /// In the order in which the model made them. Empty when the answer was filtered. After [`Stop::Length`]
    /// the last call may be cut; then its arguments are not valid JSON.
    pub calls: Vec<ModelCall>,
    pub stop: Stop,
    pub usage: Usage,
}

/// Why the model stopped. None of these is an error of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    End,
    ToolCalls,
    /// The answer reached the token limit.
    Length,
    /// The provider withheld (the rest of) the answer.
    ContentFilter,
    /// A reason that this program does not know. The answer is complete.
    Other(String),
}

/// Bounds of a step. The defaults are for production; tests make them small.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From sending the request to the first byte of the answer's head, connecting included.
    pub first_byte: Duration,
    /// Between two chunks of the answer.
    pub idle: Duration,
    /// The whole step, waits and repetitions included.
    pub step: Duration,
    /// Bytes of one answer.
    pub max_body: usize,
    /// Bytes of text and arguments in one answer. Several copies of them are kept while listeners read.
    pub max_reply: usize,
    /// Bytes of a request: results of tools are shortened before it is longer. An endpoint that takes less is remembered.
    pub max_request: usize,
    /// Bytes without a line end.
    pub max_line: usize,
    /// Requests in one step, the first included.
    pub attempts: u32,
    /// Wait before the second request; doubles with each further one, with jitter.
    pub backoff: Duration,
    /// The longest `Retry-After` of a provider that a step waits for.
    pub max_retry_after: Duration,
    /// After this many failures to connect in a row, no request is sent to an endpoint for `breaker_pause`. Requests that
    /// got no byte of an answer count as one failure for each user.
    pub breaker_failures: u32,
    pub breaker_pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            first_byte: Duration::from_secs(60),
            idle: Duration::from_secs(60),
            step: Duration::from_secs(600),
            max_body: 16 << 20,
            max_reply: 2 << 20,
            // About 100,000 tokens.
            max_request: 400_000,
            max_line: 1 << 20,
            attempts: 3,
            backoff: Duration::from_millis(500),
            max_retry_after: Duration::from_secs(30),
            breaker_failures: 5,
            breaker_pause: Duration::from_secs(15),
        }
    }
}

/// The client for the models of all packs: one HTTP client and the state of each endpoint. Cheap to clone.
#[derive(Clone)]
pub struct Models(Arc<step::StepContext>);

impl Models {
    /// `client` is egress's client for endpoints that the operator named: no proxy, no redirects, no decompression.
    pub fn new(client: reqwest::Client) -> Self {
        Self::with_limits(client, Limits::default())
    }

    pub fn with_limits(client: reqwest::Client, limits: Limits) -> Self {
        Self(Arc::new(step::StepContext::new(client, limits)))
    }

    /// Asks the model for its next turn. Nothing is sent until the stream is polled. When no word comes from its endpoint,
    /// those of `llm.fallback` are asked in turn.
    pub fn step(
        &self,
        llm: &Llm,
        request: StepRequest,
    ) -> impl Stream<Item = Result<Delta, ModelError>> + Send + Unpin + use<> {
        step::stream(Arc::clone(&self.0), llm.clone(), request)
    }
}
