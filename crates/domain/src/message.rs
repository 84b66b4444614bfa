//! A message is a list of typed parts; each part has a plain-text rendering, so that a frontend that
//! knows nothing of parts can still be used.

mod call;
mod wire;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;

pub use self::call::{CallOutcome, CallStatus, Refusal, ToolCall, ToolResult};
use super::{
    approval,
    attachment::Attachment,
    error::ErrorCode,
    hidden::fence,
    ids::{ConversationId, MessageId, RunId},
    server::FieldKind,
};

/// One message of a conversation. `seq` counts from 1 within the conversation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Message {
    pub id: MessageId,
    pub conversation_id: ConversationId,
    /// The branch that it was said in; 0 is the first one.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub branch: i32,
    pub seq: i64,
    pub role: Role,
    pub parts: Vec<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// Which messages of a conversation to list.
#[derive(Clone, Copy, Debug)]
pub enum MessageRange {
    /// Those with a higher number, the oldest first.
    After(i64),
    /// Those with a lower number, the newest first.
    Before(i64),
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type))]
#[cfg_attr(feature = "sqlx", sqlx(type_name = "text", rename_all = "snake_case"))]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Role {
    User,
    Assistant,
    /// Results of the assistant's tool calls.
    Tool,
    /// The program itself: greetings, answers to commands, notices, results of calls that the user typed. The model
    /// reads only the outcomes among them: of a call that had to wait, and of a run that a run started.
    System,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    Text {
        text: String,
        /// Whose words these are when neither the program nor the author of the message wrote them.
        // Earlier releases wrote such a text beside the result of a call that its user typed.
        #[serde(skip_serializing_if = "Option::is_none")]
        source: Option<Box<TextSource>>,
    },
    /// An image or a text file of the user.
    Attachment(Attachment),
    /// The model wants a tool to be called.
    ToolCall(ToolCall),
    /// What became of a call.
    ToolResult(ToolResult),
    /// The program tells the person something: `code` is stable, `text` is for reading.
    Notice { code: String, text: String },
    /// What came of a call that waited for the user's input.
    CallOutcome(Box<CallOutcome>),
    /// What a prompt of a server came to: the server's text, which opens a turn as if the user had said it.
    ServerPrompt(ServerText),
    /// A call waits for somebody's consent, or what came of it.
    Approval(Box<approval::Note>),
    /// A session that an agent started has ended.
    AgentCallback(super::orchestrator::Callback),
    /// The program lets the person choose; a number, a value or a label answers it.
    Choices { text: String, choices: Vec<Choice> },
    /// The program asks the person for a value. The next text of the conversation answers it, `/cancel` does not.
    Prompt(Prompt),
}

/// What a user thinks of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Feedback {
    pub rating: Rating,
    /// At most 2000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 2000, pattern = r"\S")
    )]
    pub comment: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type))]
#[cfg_attr(feature = "sqlx", sqlx(type_name = "text", rename_all = "snake_case"))]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Rating {
    Up,
    Down,
}

/// How a tool call is shown in the text of an answer: a line, or an element that Open WebUI draws as a box.
pub const CALL_LINE: &str = "> 🔧 ";
pub const CALL_BOX: &str = "<details type=\"tool_calls\"";
pub const CALL_BOX_END: &str = "</details>";

/// The tool that a text comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TextSource {
    pub server: String,
    pub tool: String,
}

/// A text that a server wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerText {
    pub server: String,
    pub prompt: String,
    pub text: String,
}

/// One thing to choose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Choice {
    pub value: String,
    pub label: String,
}

impl Choice {
    /// The choice without a button: its label, and its command if the label does not name it.
    pub fn plain(&self) -> String {
        if self.value.starts_with('/') && !self.label.contains(&self.value) {
            format!("{} – {}", self.label, self.value)
        } else {
            self.label.clone()
        }
    }
}

/// A question for a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Prompt {
    /// Everything that a person needs to read, in their language.
    pub text: String,
    /// The field's name.
    pub field: String,
    /// What the field is called where it is filled in, in the language of the person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What the answer is: `text`, `secret`, `url`, `boolean` or `select`. (`type` says that this part is a prompt.)
    #[serde(rename = "input")]
    pub kind: FieldKind,
    /// What is typed must not be shown, and is not kept in the conversation.
    pub secret: bool,
    /// Where to answer instead of here: for frontends that keep what is typed. With `asking`, an address to open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<Choice>,
    /// A server or a command asks, not this program; an address in `url` is the server's then, for the user alone to open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asking: Option<Box<Asking>>,
    /// In a history: nobody waits for the answer any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
}

/// Which server or command asks the user something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Asking {
    pub server: String,
    pub tool: String,
    /// What the server says of the field: type, title, limits. For frontends that draw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub schema: Option<Value>,
    /// The run that asks waits for the answer, which becomes a message of that run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub live: bool,
    /// The command of the user that lacks this argument: then no server asks, and the answer goes on with the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

impl Part {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text {
            text: text.into(),
            source: None,
        }
    }

    /// What kind of failure the run has ended with, where the part tells why it failed.
    pub fn failure(&self) -> Option<ErrorCode> {
        let Self::Notice { code, .. } = self else {
            return None;
        };
        let kinds = [ErrorCode::RunFailed, ErrorCode::AnswerNotInFormat];
        kinds.into_iter().find(|kind| kind.as_str() == code)
    }

    /// What came of a call as a text: the words of its server, unless the program did not make the call.
    pub fn result(call: &ToolCall, status: CallStatus, text: String) -> Self {
        let is_ours = match status {
            CallStatus::Denied
            | CallStatus::AwaitingApproval
            | CallStatus::AwaitingInput
            | CallStatus::Cancelled => true,
            CallStatus::Succeeded | CallStatus::Failed | CallStatus::OutcomeUnknown => false,
        };
        let source = call.server.clone().zip(call.tool.clone());
        Self::Text {
            text,
            source: source
                .filter(|_| !is_ours)
                .map(|(server, tool)| Box::new(TextSource { server, tool })),
        }
    }

    /// The part as a frontend without typed parts shows it.
    pub fn plain(&self) -> String {
        match self {
            Self::Text {
                text,
                source: Some(source),
            } => format!("{} {}:\n{}", source.server, source.tool, fence("", text)),
            Self::Text { text, .. } | Self::Notice { text, .. } => text.clone(),
            Self::Choices { text, choices } => {
                let lines = choices
                    .iter()
                    .enumerate()
                    .map(|(at, choice)| format!("{}. {}", at + 1, choice.plain()));
                std::iter::once(text.clone())
                    .chain(lines)
                    .collect::<Vec<_>>()
                    .join("\n")
            }
            Self::Prompt(prompt) => match &prompt.url {
                Some(url) => format!("{}\n{url}", prompt.text),
                None => prompt.text.clone(),
            },
            Self::Attachment(attachment) => attachment.plain(),
            Self::ToolCall(call) => format!("[{} …]", call.name),
            Self::ToolResult(result) => result.text.clone(),
            Self::Approval(note) => note.text.clone(),
            Self::AgentCallback(callback) => callback.plain(),
            Self::CallOutcome(outcome) => outcome.text.clone(),
            Self::ServerPrompt(said) => format!(
                "[prompt {} of server {}]\n{}",
                said.prompt, said.server, said.text
            ),
        }
    }
}

/// Marks the prompts of a history that nobody may answer any more: all but those of the message that is `open`.
pub fn close_prompts(messages: Vec<&mut Message>, open: Option<MessageId>) {
    for message in messages {
        if Some(message.id) == open {
            continue;
        }
        for part in &mut message.parts {
            if let Part::Prompt(prompt) = part {
                prompt.closed = true;
            }
        }
    }
}

/// The tools that messages of a run have called, as `server.tool`: calls that were sent, may have been sent, or became a
/// request for consent.
pub fn called_tools(messages: &[Message]) -> Vec<String> {
    let parts = || messages.iter().flat_map(|message| &message.parts);
    let is_unsent = |id: &str| {
        parts().any(|part| match part {
            Part::ToolResult(result) => {
                result.call_id == id
                    && matches!(result.status, CallStatus::Denied | CallStatus::Cancelled)
            }
            _ => false,
        })
    };
    let mut called = Vec::new();
    for part in parts() {
        let (server, tool) = match part {
            Part::ToolCall(call) if !is_unsent(&call.call_id) => {
                (call.server.as_deref(), call.tool.as_deref())
            }
            Part::CallOutcome(outcome) => (Some(&*outcome.server), Some(&*outcome.tool)),
            _ => continue,
        };
        if let (Some(server), Some(tool)) = (server, tool) {
            let name = format!("{server}.{tool}");
            if !called.contains(&name) {
                called.push(name);
            }
        }
    }
    called
}

impl Message {
    /// The text of the message for people: what was said, without tool traffic.
    pub fn plain(&self) -> String {
        let said = self
            .parts
            .iter()
            .filter(|part| !matches!(part, Part::ToolCall(_) | Part::ToolResult(_)));
        said.map(Part::plain).collect::<Vec<_>>().join("\n")
    }
}
