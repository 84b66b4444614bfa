//! One step of a model: messages and tools in, a stream of deltas out.
//!
//! The message rows of the store stay the source of truth: each step builds the provider's request from them anew. Each
//! provider has one file, and its JSON is known nowhere else.
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
mod probe;
mod provider;
mod refusal;
mod reply;
mod schema;
mod step;
mod transport;

pub use error::ModelError;
pub use probe::{Probe, probe};

/// How the schema of a tool that this model gets differs from the server's own, one short text for each difference.
pub fn schema_changes(llm: &Llm, schema: &RawValue) -> Vec<String> {
    if llm.provider == Provider::None {
        return Vec::new();
    }
    let repaired = schema::for_endpoint(schema, schema::Dialect::for_model(llm));
    repaired.changes.into_iter().collect()
}

/// The input of one step of the model.
#[derive(Clone, Debug, Default)]
pub struct StepRequest {
    /// The tenant of the step. Circuit breakers are separate for each tenant.
    pub tenant: Option<TenantId>,
    /// The user of the step. Requests of one user alone never open a circuit breaker by their silence.
    pub user: Option<UserId>,
    pub system: String,
    /// Oldest first. A result may come anywhere after its call. A result without a call is left out, and a
    /// call without a result gets an error as its result. So a history can be cut anywhere.
    pub history: Vec<Turn>,
    /// Only tools that this principal may use. The names are those of `domain::names`.
    pub tools: Vec<ToolDef>,
    /// The format of the answer, sent in the provider's own form if there is one. A provider may ignore it.
    pub format: Option<AnswerFormat>,
    /// The one who asks is told of a model that is busy, and asks again. So one attempt is made: with those of the client
    /// they would multiply.
    pub is_repeated_by_client: bool,
}

impl StepRequest {
    /// The approximate size of the request in bytes.
    fn size(&self) -> usize {
        self.fixed_size() + self.history.iter().map(history::size).sum::<usize>()
    }

    /// The approximate size in bytes of everything but the history.
    fn fixed_size(&self) -> usize {
        let tools = self
            .tools
            .iter()
            .map(|tool| tool.name.len() + tool.description.len() + tool.schema.get().len());
        self.system.len() + tools.sum::<usize>()
    }
}

/// An entry of the history.
#[derive(Clone, Debug)]
pub enum Turn {
    User(String),
    /// An image from the user; it belongs to the text before it. It is left out when the model refuses it.
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
    /// An image of the result before it. It is left out when the model refuses it.
    ToolImage {
        media_type: String,
        data: Arc<[u8]>,
    },
}

/// A tool that the model may call.
#[derive(Clone, Debug)]
pub struct ToolDef {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments, serialised once by the catalog.
    pub schema: Arc<RawValue>,
}

/// A call as the model wrote it. Nothing is checked: the model may have invented the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCall {
    /// Unique in the reply and in the history before it. The program makes an id when the provider's id is
    /// missing, too short to be unique, or already used.
    pub call_id: String,
    pub name: String,
    /// The text the model wrote, possibly not JSON.
    pub arguments: String,
}

/// An item of the stream of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// A piece of the answer; never empty.
    Text(String),
    /// The provider ended its reply. Always the last item.
    Done(Reply),
}

/// A whole reply of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// All text deltas, joined.
    pub text: String,
    /// In the model's order. Empty when the answer was filtered. After [`Stop::Length`] the arguments of the last call may
    /// be cut, so that they are not valid JSON.
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
    /// The provider withheld the answer or the rest of it.
    ContentFilter,
    /// A reason that this program does not know. The answer is complete.
    Other(String),
}

/// Bounds of a step. The defaults are for production; tests make them small.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The time from connecting to the first byte of the response headers.
    pub first_byte: Duration,
    /// The time between two chunks of the answer.
    pub idle: Duration,
    /// The time of the whole step, with its waits and repetitions.
    pub step: Duration,
    /// The most bytes of one response.
    pub max_body: usize,
    /// The most bytes of text and arguments in one answer. Several copies of them are held while listeners read.
    pub max_reply: usize,
    /// The most bytes of a request; the results of tools are shortened to meet it. An endpoint that takes less is remembered.
    pub max_request: usize,
    /// The most bytes of one line of a stream.
    pub max_line: usize,
    /// The most requests of one step to one endpoint.
    pub attempts: u32,
    /// The wait before the second request. It doubles with each further one, and has jitter.
    pub backoff: Duration,
    /// The longest `Retry-After` of a provider that a step waits for.
    pub max_retry_after: Duration,
    /// After this many failures in a row, no request is sent to the endpoint for `breaker_pause`. Each failed connection
    /// counts; requests without any answer count once for each user.
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
    /// `client` must use no proxy, follow no redirect and decompress nothing, as `egress::operator_client` does.
    pub fn new(client: reqwest::Client) -> Self {
        Self::with_limits(client, Limits::default())
    }

    pub fn with_limits(client: reqwest::Client, limits: Limits) -> Self {
        Self(Arc::new(step::StepContext::new(client, limits)))
    }

    /// How many endpoints, each of one tenant, failed several times in a row and have not answered since: requests to them
    /// are paused.
    pub fn paused(&self) -> usize {
        self.0.paused()
    }

    /// Asks the model for its next turn. Nothing is sent until the stream is polled. If the endpoint fails before the first
    /// text of an answer, those of `llm.fallback` are asked in turn.
    pub fn step(
        &self,
        llm: &Llm,
        request: StepRequest,
    ) -> impl Stream<Item = Result<Delta, ModelError>> + Send + Unpin + use<> {
        step::stream(Arc::clone(&self.0), llm.clone(), request)
    }
}
