//! Schemas of conversations: messages, events, runs and the menu.

use serde_json::{Value, value::RawValue};
use time::OffsetDateTime;

use super::schemas;
use crate::{
    app::{
        chat::{conversations, menu as chat_menu},
        runs,
    },
    domain::{
        approval, attachment, event,
        ids::{AgentId, ApprovalId, AttachmentId, AuditId, ConversationId, MessageId, RunId},
        menu as domain_menu,
        menu::Action,
        message::{
            self, Asking, CallOutcome, CallStatus, Choice, Message, Part, Prompt, Role, ServerText,
            ToolCall, ToolResult,
        },
        orchestrator,
        run::{self, Run, RunKind, RunStatus, Usage},
        server::FieldKind,
    },
};

schemas! {
    /// What became of a message: where it stands and the run that answers it.
    struct Posted for conversations::PostedMessage {
        message: Message,
        run: Run,
    }

    /// An item as a frontend shows it.
    struct ItemView for chat_menu::ItemView {
        id: String,
        /// In the caller's language.
        label: String,
        action: Action,
        /// How many things wait behind it.
        badge: Option<i64>,
        /// What can be typed instead.
        command: &'static str,
    }

    /// What would be started.
    struct RunCheck for runs::starting::RunCheck {
        agent_name: String,
        /// What the model would read.
        message: String,
        /// The servers that the run would have, whether or not they can be reached now.
        servers: Vec<String>,
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
        ToolFinished {
            run_id: RunId,
            call_id: String,
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

    #[serde(rename_all = "kebab-case")]
    enum Action for domain_menu::Action {
        /// Says how to sign in.
        Authenticate,
        /// Ends the session and closes its connections.
        Logout,
        /// Starts the configuration of personal servers.
        McpConfig,
        /// Leaves that configuration.
        AbortConfig,
        /// Shows the requests that the user can decide about.
        PendingApprovals,
        /// Shows the user's own requests, to take one back.
        MyApprovalRequests,
    }

    /// One message of a conversation. `seq` counts from 1 within the conversation.
    struct Message for message::Message {
        id: MessageId,
        conversation_id: ConversationId,
        /// The branch that it was said in; 0 is the first one.
        branch: i32,
        seq: i64,
        role: Role,
        parts: Vec<Part>,
        run_id: Option<RunId>,
        created_at: OffsetDateTime,
    }

    /// Who speaks.
    #[serde(rename_all = "lowercase")]
    enum Role for message::Role {
        User,
        Assistant,
        /// Results of the assistant's tool calls.
        Tool,
        /// The program itself: greetings, answers to commands, notices. Not shown to the model.
        System,
    }

    #[serde(tag = "type", rename_all = "snake_case")]
    enum Part for message::Part {
        Text {
            text: String,
        },
        /// An image or a text file of the user.
        Attachment(attachment::Attachment),
        /// The model wants a tool to be called.
        ToolCall(ToolCall),
        /// What became of a call.
        ToolResult(ToolResult),
        /// The program tells the person something: `code` is stable, `text` is for reading.
        Notice {
            code: String,
            text: String,
        },
        /// What came of a call that waited for the user's input.
        CallOutcome(Box<CallOutcome>),
        /// What a prompt of a server came to: the server's text, which opens a turn as if the user had said it.
        ServerPrompt(ServerText),
        /// A call waits for somebody's consent, or what came of it.
        Approval(Box<approval::Note>),
        /// A session that an agent started has ended.
        AgentCallback(orchestrator::Callback),
        /// The program lets the person choose; a number, a value or a label answers it.
        Choices {
            text: String,
            choices: Vec<Choice>,
        },
        /// The program asks the person for a value. The next text of the conversation answers it, `/cancel` does not.
        Prompt(Prompt),
    }

    /// An image or a text file, without its content.
    struct Attachment for attachment::Attachment {
        id: AttachmentId,
        name: String,
        /// By its content.
        media_type: String,
        /// In bytes.
        size: i64,
    }

    /// What a user thinks of a message.
    #[serde(deny_unknown_fields)]
    struct Feedback for message::Feedback {
        rating: message::Rating,
        /// At most 2000 characters.
        comment: Option<String>,
    }

    #[serde(rename_all = "lowercase")]
    enum Rating for message::Rating {
        Up,
        Down,
    }

    /// A conversation with its messages.
    struct ConversationExport for crate::app::chat::export::ConversationExport {
        conversation: run::Conversation,
        /// Oldest first.
        messages: Vec<Message>,
    }

    /// A text that a server wrote.
    struct ServerText for message::ServerText {
        server: String,
        prompt: String,
        text: String,
    }

    /// One thing to choose.
    struct Choice for message::Choice {
        value: String,
        label: String,
    }

    /// A question for a value.
    struct Prompt for message::Prompt {
        /// Everything that a person needs to read, in their language.
        text: String,
        /// The field's name.
        field: String,
        /// What the answer is: `text`, `secret`, `url`, `boolean` or `select`. (`type` says that this part is a prompt.)
        #[serde(rename = "input")]
        kind: FieldKind,
        /// What is typed must not be shown, and is not kept in the conversation.
        secret: bool,
        /// Where to answer instead of here: for frontends that keep what is typed. With `asking`, an address to open.
        url: Option<String>,
        #[schema(required = false)]
        options: Vec<Choice>,
        /// A server asks, not this program; an address in `url` is the server's then, for the user alone to open.
        asking: Option<Asking>,
    }

    /// Which server asks the user something.
    struct Asking for message::Asking {
        server: String,
        tool: String,
        /// What the server says of the field: type, title, limits. For frontends that draw it.
        #[schema(value_type = Option<Object>)]
        schema: Option<Value>,
        /// The run that asks waits for the answer, which becomes a message of that run.
        #[schema(required = false)]
        live: bool,
    }

    /// A call as the model asked for it.
    struct ToolCall for message::ToolCall {
        /// Unique within the conversation.
        call_id: String,
        /// The name in the model's request (`bank__get_balances`).
        name: String,
        /// The server and tool behind the name; absent when the model made the name up.
        server: Option<String>,
        tool: Option<String>,
        /// The arguments, or the text that could not be parsed as JSON.
        arguments: Value,
        /// The line of the audit trail that is written before the call is sent.
        audit_id: Option<AuditId>,
    }

    struct ToolResult for message::ToolResult {
        call_id: String,
        status: CallStatus,
        /// What the model reads.
        text: String,
        /// The server's own result (`content`, `structuredContent`, `isError`), when there was one.
        #[schema(value_type = Option<Object>)]
        raw: Option<Box<RawValue>>,
        /// The request for consent that the call waits for.
        approval: Option<ApprovalId>,
        /// How many milliseconds the call took; absent when it was not made, or not by a run that could measure it.
        took_ms: Option<u64>,
    }

    /// What came of a call that waited for its user.
    struct CallOutcome for message::CallOutcome {
        /// Of the call that was answered with `awaiting_input`.
        call_id: String,
        server: String,
        tool: String,
        status: CallStatus,
        text: String,
        /// The server's own result, when there was one.
        #[schema(value_type = Option<Object>)]
        raw: Option<Box<RawValue>>,
    }

    /// How a tool call ended.
    #[serde(rename_all = "snake_case")]
    enum CallStatus for message::CallStatus {
        Succeeded,
        /// The tool ran and said that it failed, or the server refused the request.
        Failed,
        /// The gate refused; nothing was sent.
        Denied,
        /// Nothing was sent: somebody else has to consent first.
        AwaitingApproval,
        /// The server asks the user something first; the call is made again with the answer.
        AwaitingInput,
        /// Sent, and no answer came. Never repeated by the program.
        OutcomeUnknown,
        /// The person cancelled the run before it was sent.
        Cancelled,
    }

    /// A session that was started has ended.
    struct Callback for orchestrator::Callback {
        #[serde(rename = "session_id")]
        session: ConversationId,
        agent: String,
        /// `finished`, `failed` or `stopped`.
        status: String,
        /// What the agent said last, or why it failed.
        text: String,
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

    /// A chat between one user and one agent.
    struct Conversation for run::Conversation {
        id: ConversationId,
        #[schema(value_type = String)]
        agent: AgentId,
        title: String,
        /// The session whose run started this one.
        parent_id: Option<ConversationId>,
        /// Number of its last durable event, for `Last-Event-ID`.
        last_event: i64,
        /// Listed only when asked for.
        archived: bool,
        /// Listed before the others.
        pinned: bool,
        /// The branch that goes on; 0 is the first one.
        branch: i32,
        created_at: OffsetDateTime,
        updated_at: OffsetDateTime,
    }

    /// A version of a conversation, which begins where a message was edited or asked again.
    struct ConversationBranch for run::ConversationBranch {
        number: i32,
        /// The branch whose messages it has up to `from_seq`; the first branch has none.
        parent: Option<i32>,
        /// The number of the message in the parent that its own messages stand in place of, with all after it.
        from_seq: i64,
        created_at: OffsetDateTime,
        /// It is shown, and goes on.
        active: bool,
    }

    /// A conversation in a list.
    struct ListedConversation for conversations::ListedConversation {
        #[serde(flatten)]
        conversation: run::Conversation,
        /// Where a search found its words, unless it was in the title.
        found: Option<conversations::FoundMessage>,
    }

    /// A message with the words of a search.
    struct FoundMessage for conversations::FoundMessage {
        /// The number of the message.
        seq: i64,
        /// What stands around the first of the words.
        text: String,
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
