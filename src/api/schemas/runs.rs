//! Schemas of runs and of the events that they send.

use time::OffsetDateTime;

use super::schemas;
use crate::app::runs;
use domain::{
    event,
    ids::{AgentId, ConversationId, RunId},
    message::{CallStatus, Message},
    run::{self, Run, RunKind, RunStatus, Usage},
};

schemas! {
    /// What would be started.
    struct RunCheck for runs::starting::RunCheck {
        agent_name: String,
        /// What the model would read.
        message: String,
        /// The servers that the run would have, whether or not they can be reached now.
        servers: Vec<String>,
        /// Personal servers that it would have if its user had connected them.
        not_connected: Vec<String>,
    }

    /// A run with what came of it.
    struct RunView for runs::RunView {
        #[serde(flatten)]
        run: Run,
        /// The same as `conversation_id`.
        session_id: ConversationId,
        /// What the agent said last, once it has ended.
        result: Option<String>,
    }

    /// What happened.
    #[serde(untagged)]
    enum EventKind for event::EventKind {
        /// A message was added.
        Message(Message),
        /// A run changed its state.
        Run {
            run_id: RunId,
            status: RunStatus,
            error: Option<String>,
        },
    }

    /// What is gone when nobody listens.
    #[serde(untagged)]
    enum Transient for event::Transient {
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
            server: Option<String>,
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

    /// `queued → running → succeeded | failed | cancelled`. A run whose replica died is claimed again when
    /// its lease ends and goes on from the last durable step.
    #[serde(rename_all = "snake_case")]
    enum RunStatus for run::RunStatus {
        Queued,
        Running,
        Succeeded,
        Failed,
        Cancelled,
    }

    /// Whether a run asks the model.
    #[serde(rename_all = "snake_case")]
    enum RunKind for run::RunKind {
        Turn,
        /// A slash command: answered by the program.
        Command,
    }

    /// Tokens a model says it read and wrote. `estimated` when it did not say.
    struct Usage for run::Usage {
        input_tokens: i64,
        /// Those of the input that came from the provider's cache.
        cached_input_tokens: i64,
        output_tokens: i64,
        estimated: bool,
    }

    /// A run as the API shows it.
    struct Run for run::Run {
        id: RunId,
        kind: RunKind,
        conversation_id: ConversationId,
        #[schema(value_type = String)]
        agent: AgentId,
        status: RunStatus,
        /// Why it failed, for the user.
        error: Option<String>,
        steps: i32,
        usage: Usage,
        created_at: OffsetDateTime,
        finished_at: Option<OffsetDateTime>,
    }
}
