//! What a listener of a conversation is told. Durable events are rows with a number and are replayed
//! after `Last-Event-ID`; the others exist only for those who listen at that moment.

use serde::Serialize;

use super::{
    ids::RunId,
    message::{CallStatus, Message, Role},
    run::RunStatus,
};

/// A durable event: `seq` counts from 1 within the conversation and is the SSE id.
#[derive(Clone, Debug)]
pub struct Event {
    pub seq: i64,
    pub kind: EventKind,
}

/// What happened. [`EventKind::name`] says which one it is.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum EventKind {
    /// A message was added.
    Message(Message),
    /// A run changed its state.
    Run {
        run_id: RunId,
        status: RunStatus,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

/// Why a stream ends. Its last event says so, so that a client knows whether to come back, and with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StreamEnd {
    /// The token has expired: come back with a new one.
    TokenExpired,
    /// The user signed out or was blocked, or the key, the issuer or the tenant is no longer taken.
    SignedOut,
    /// A stream lasts half an hour: come back.
    LifetimeOver,
    /// The replica stops: come back, another one answers.
    Stopping,
    /// What was listened to is gone.
    Deleted,
    /// An error of the service, which its log tells: come back.
    Failed,
}

/// What is gone when nobody listens. [`Transient::name`] says which one it is.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum Transient {
    /// A piece of the assistant's text.
    Delta { run_id: RunId, text: String },
    /// The text streamed so far in this step is void: the step starts again.
    Reset { run_id: RunId },
    /// A call is on its way.
    ToolStarted {
        run_id: RunId,
        call_id: String,
        server: String,
        tool: String,
    },
    /// The server says how far it is.
    ToolProgress {
        run_id: RunId,
        call_id: String,
        progress: f64,
        total: Option<f64>,
        message: Option<String>,
    },
    /// A call is over. It names its tool, since a listener may have come after its start; not one that nobody knows.
    ToolFinished {
        run_id: RunId,
        call_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        server: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tool: Option<String>,
        status: CallStatus,
    },
    /// The model has made a title of the conversation.
    Title { run_id: RunId, title: String },
    /// A server takes part in the run.
    ServerStarted {
        run_id: RunId,
        server: String,
        /// As packs write it, such as `streamable-http`.
        transport: &'static str,
        /// Tools that the user may call.
        tools: usize,
    },
    /// A server does not take part, or tools that its pack lists are not there; its other tools are.
    ServerUnavailable {
        run_id: RunId,
        server: String,
        reason: String,
        missing_tools: Vec<String>,
    },
}

impl Event {
    /// The run whose worker wrote it.
    pub fn worker(&self) -> Option<RunId> {
        match &self.kind {
            EventKind::Message(message) => match message.role {
                Role::Assistant | Role::Tool => message.run_id,
                Role::User | Role::System => None,
            },
            EventKind::Run { run_id, .. } => Some(*run_id),
        }
    }
}

impl EventKind {
    /// The SSE `event:` name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Message(_) => "message",
            Self::Run { .. } => "run",
        }
    }
}

impl Transient {
    /// The run that says it.
    pub fn run(&self) -> RunId {
        match self {
            Self::Delta { run_id, .. }
            | Self::Reset { run_id }
            | Self::ToolStarted { run_id, .. }
            | Self::ToolProgress { run_id, .. }
            | Self::ToolFinished { run_id, .. }
            | Self::Title { run_id, .. }
            | Self::ServerStarted { run_id, .. }
            | Self::ServerUnavailable { run_id, .. } => *run_id,
        }
    }

    /// The SSE `event:` name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Delta { .. } => "delta",
            Self::Reset { .. } => "reset",
            Self::ToolStarted { .. } => "tool_started",
            Self::ToolProgress { .. } => "tool_progress",
            Self::ToolFinished { .. } => "tool_finished",
            Self::Title { .. } => "title",
            Self::ServerStarted { .. } => "server_started",
            Self::ServerUnavailable { .. } => "server_unavailable",
        }
    }
}
