//! Schemas of messages: their parts, tool calls and feedback.

use serde_json::{Value, value::RawValue};
use time::OffsetDateTime;

use super::schemas;
use domain::{
    approval, attachment,
    ids::{ApprovalId, AttachmentId, AuditId, ConversationId, MessageId, RunId},
    message::{
        self, Asking, CallOutcome, CallStatus, Choice, Part, Prompt, Role, ServerText, TextSource,
        ToolCall, ToolResult,
    },
    orchestrator,
    server::FieldKind,
};

schemas! {
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
            /// Whose words these are when neither the program nor the author of the message wrote them.
            source: Option<Box<TextSource>>,
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
        #[schema(min_length = 1, max_length = 2000, pattern = r"\S")]
        comment: Option<String>,
    }

    #[serde(rename_all = "lowercase")]
    enum Rating for message::Rating {
        Up,
        Down,
    }

    /// The tool that a text comes from.
    struct TextSource for message::TextSource {
        server: String,
        tool: String,
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
        /// The arguments as they were written, or the text that could not be parsed as JSON. A number may have more
        /// digits than a double holds.
        #[schema(value_type = Value)]
        arguments: Box<RawValue>,
        /// The line of the audit trail that is written before the call is sent.
        audit_id: Option<AuditId>,
    }

    struct ToolResult for message::ToolResult {
        call_id: String,
        status: CallStatus,
        /// What came of the call.
        text: String,
        /// What the model is told to do now, which people need not read.
        advice: Option<String>,
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
}
