//! What OpenAI clients send. They send much that means nothing here, so unknown fields are ignored; what
//! would change the answer and cannot be done is refused by name.

use serde::Deserialize;
use serde_json::Value;

use crate::{
    api::{
        extract::{MAX_TEXT, readable},
        problem::Problem,
    },
    app::chat::transcript::Transcript,
    domain::message::Role,
};

/// Sampling parameters are accepted and ignored: the agent's pack decides them.
#[derive(Deserialize, utoipa::ToSchema)]
pub(in crate::api) struct ChatRequest {
    /// The agent's id.
    pub model: String,
    messages: Vec<ChatMessage>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// Only 1.
    n: Option<i64>,
    /// Must be empty: tools run here.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Value>,
    /// Must be empty.
    #[schema(value_type = Option<Vec<Object>>)]
    functions: Option<Value>,
    #[schema(value_type = Option<Object>)]
    tool_choice: Option<Value>,
    response_format: Option<ResponseFormat>,
}

#[derive(Deserialize, utoipa::ToSchema)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Deserialize, utoipa::ToSchema)]
struct ResponseFormat {
    /// Only `text`.
    r#type: String,
}

#[derive(Deserialize, utoipa::ToSchema)]
struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    role: String,
    /// Text, or a list of parts of the type `text`.
    #[schema(value_type = Option<Object>)]
    content: Option<Value>,
}

impl ChatRequest {
    pub fn stream(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    pub fn include_usage(&self) -> bool {
        self.stream_options
            .as_ref()
            .and_then(|options| options.include_usage)
            .unwrap_or(false)
    }

    /// The messages as text; the last one is the user's and is what is asked now.
    pub fn transcript(&self) -> Result<Transcript, Problem> {
        self.refuse()?;
        let messages = self.messages.iter().enumerate().map(|(at, message)| {
            let field = format!("messages[{at}]");
            Ok((
                role(&field, &message.role)?,
                content(&field, message.content.as_ref())?,
            ))
        });
        let transcript = messages.collect::<Result<Transcript, Problem>>()?;
        let last = transcript.len().saturating_sub(1);
        match transcript.last() {
            Some((Role::User, text)) => {
                readable(&format!("messages[{last}].content"), text, MAX_TEXT)?;
            }
            _ => {
                return Err(Problem::invalid(
                    "messages",
                    "the last message must be one of the role `user`",
                ));
            }
        }
        Ok(transcript)
    }

    fn refuse(&self) -> Result<(), Problem> {
        if self.n.is_some_and(|n| n != 1) {
            return Err(Problem::invalid(
                "n",
                "only 1 answer can be given; leave `n` out",
            ));
        }
        let unused = self.tool_choice.as_ref().and_then(Value::as_str) == Some("none");
        for (field, tools) in [("tools", &self.tools), ("functions", &self.functions)] {
            let none =
                matches!(tools, None | Some(Value::Null)) || tools.as_ref().is_some_and(is_empty);
            if !none && !unused {
                let reason = "the agent's own tools run on the server and a client's cannot be called; leave this out";
                return Err(Problem::invalid(field, reason));
            }
        }
        if self
            .response_format
            .as_ref()
            .is_some_and(|format| format.r#type != "text")
        {
            return Err(Problem::invalid(
                "response_format",
                "only `text` can be promised; leave this out",
            ));
        }
        Ok(())
    }
}

fn is_empty(list: &Value) -> bool {
    list.as_array().is_some_and(Vec::is_empty)
}

fn role(field: &str, role: &str) -> Result<Role, Problem> {
    match role {
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "system" | "developer" => Ok(Role::System),
        "tool" | "function" => Ok(Role::Tool),
        other => {
            let reason = format!(
                "{other:?} is not one of `system`, `developer`, `user`, `assistant`, `tool`"
            );
            Err(Problem::invalid(format!("{field}.role"), reason))
        }
    }
}

/// Text as it is; of parts, the texts in their order. Nothing is nothing: an assistant's message that only
/// called tools has no content.
fn content(field: &str, content: Option<&Value>) -> Result<String, Problem> {
    let field = format!("{field}.content");
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts = parts
                .iter()
                .enumerate()
                .map(|(at, part)| text(&format!("{field}[{at}]"), part));
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        Some(_) => Err(Problem::invalid(field, "must be text or a list of parts")),
    }
}

fn text<'a>(field: &str, part: &'a Value) -> Result<&'a str, Problem> {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    match (
        kind,
        part.get("text").and_then(Value::as_str),
        part.get("refusal").and_then(Value::as_str),
    ) {
        ("text" | "input_text" | "output_text", Some(text), _) | ("refusal", _, Some(text)) => {
            Ok(text)
        }
        ("text", None, _) => Err(Problem::invalid(
            format!("{field}.text"),
            "is missing or not text",
        )),
        ("", ..) => Err(Problem::invalid(
            format!("{field}.type"),
            "is missing; only parts of the type `text` are read",
        )),
        (other, ..) => {
            let reason =
                format!("parts of the type {other:?} cannot be read by this agent; send text");
            Err(Problem::invalid(format!("{field}.type"), reason))
        }
    }
}
