//! What OpenAI clients send. They send much that means nothing here, so unknown fields are ignored, and so is what
//! cannot be done: a header of the answer names it. Only a forced call of a client's own tool is refused.

use serde::Deserialize;
use serde_json::Value;

use super::{
    content::{content, files, role},
    format, schema,
};
use crate::{
    api::{
        extract::{MAX_TEXT, readable},
        problem::Problem,
        turn::Limiter,
    },
    app::chat::transcript::Transcript,
    domain::{answer_format::AnswerFormat, error::ErrorCode, message::Role},
};

/// `stop` texts that are looked for.
const MOST_STOPS: usize = 16;

/// Sampling parameters are accepted and ignored: the agent's pack decides them. So are `tools`, `functions` and
/// `n`; the header `x-ignored-parameters` of the answer names them.
#[derive(Deserialize, utoipa::ToSchema)]
pub(in crate::api) struct ChatRequest {
    /// The agent's id.
    pub model: String,
    #[schema(min_items = 1)]
    messages: Vec<ChatMessage>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// A text, or several, before which the answer ends.
    #[schema(schema_with = schema::texts)]
    stop: Option<Value>,
    /// The answer ends after about as many tokens.
    #[schema(value_type = Option<u64>)]
    max_tokens: Option<Value>,
    /// The same.
    #[schema(value_type = Option<u64>)]
    max_completion_tokens: Option<Value>,
    /// There is one answer.
    #[schema(value_type = Option<u64>)]
    n: Option<Value>,
    /// Ignored: the agent's own tools run on the server.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Value>,
    /// Ignored likewise.
    #[schema(value_type = Option<Vec<Object>>)]
    functions: Option<Value>,
    /// May not force a call of a client's tool.
    #[schema(schema_with = schema::word_or_object)]
    tool_choice: Option<Value>,
    #[schema(schema_with = schema::word_or_object)]
    function_call: Option<Value>,
    /// `text`, `json_object` or `json_schema`: the form of the answer. It is checked here, whatever the model can do.
    #[schema(value_type = Option<Object>)]
    response_format: Option<Value>,
}

#[derive(Deserialize, utoipa::ToSchema)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Deserialize, utoipa::ToSchema)]
struct ChatMessage {
    #[schema(value_type = ChatRole, inline)]
    role: String,
    /// Text, or a list of parts. A part that is no text is named in the text that the agent reads.
    #[schema(schema_with = schema::content)]
    content: Option<Value>,
}

/// Who speaks in a message.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "read by the derive only")]
enum ChatRole {
    System,
    Developer,
    User,
    Assistant,
    Tool,
    /// An older name of `tool`.
    Function,
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
        let messages = self.messages.iter().enumerate().map(|(at, message)| {
            let field = format!("messages[{at}]");
            Ok((
                role(&field, &message.role)?,
                content(&format!("{field}.content"), message.content.as_ref())?,
            ))
        });
        let transcript = messages.collect::<Result<Transcript, Problem>>()?;
        let last = transcript.len().saturating_sub(1);
        check_question(
            "messages",
            &format!("messages[{last}].content"),
            &transcript,
        )?;
        Ok(transcript)
    }

    /// The images and text files in the last message.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let last = self.messages.last().and_then(|last| last.content.as_ref());
        last.map(files).unwrap_or_default()
    }

    /// The form of the answer; `None` for free text.
    pub fn format(&self) -> Result<Option<AnswerFormat>, Problem> {
        let format = self.response_format.as_ref();
        format::read("response_format", format, Some("json_schema"))
    }

    /// Where the answer is to end.
    pub fn limiter(&self) -> Limiter {
        Limiter::new(stops(self.stop.as_ref()), self.max_tokens())
    }

    pub fn max_tokens(&self) -> Option<u64> {
        let given = [&self.max_completion_tokens, &self.max_tokens];
        given.into_iter().flatten().filter_map(tokens).min()
    }

    /// Refuses a call that the client forces and that cannot be made. A frontend's users did not choose its tools.
    pub fn check_tools(&self, is_frontend: bool) -> Result<(), Problem> {
        let forced = [
            ("tool_choice", &self.tool_choice, &self.tools),
            ("function_call", &self.function_call, &self.functions),
        ];
        for (field, choice, tools) in forced {
            if !is_frontend && is_any(tools.as_ref()) {
                refuse_forced(field, choice.as_ref())?;
            }
        }
        Ok(())
    }

    /// The parameters that change nothing here although a client may expect it.
    pub fn ignored(&self) -> Vec<&'static str> {
        let one = |n: &Value| n.is_null() || n == 1;
        let ignored = [
            ("tools", is_any(self.tools.as_ref())),
            ("functions", is_any(self.functions.as_ref())),
            ("n", self.n.as_ref().is_some_and(|n| !one(n))),
        ];
        let ignored = ignored.into_iter().filter(|(_, is_ignored)| *is_ignored);
        ignored.map(|(name, _)| name).collect()
    }
}

/// Refuses a transcript that does not end with something the user says.
pub(in crate::api) fn check_question(
    all: &str,
    last: &str,
    transcript: &Transcript,
) -> Result<(), Problem> {
    match transcript.last() {
        Some((Role::User, text)) => readable(last, text, MAX_TEXT),
        _ => {
            let reason = "the last message must be one of the role `user`";
            Err(Problem::invalid(all, reason))
        }
    }
}

/// The texts before which an answer ends: one, or a list.
pub(super) fn stops(stop: Option<&Value>) -> Vec<String> {
    let stops = match stop {
        Some(Value::Array(stops)) => stops.iter().collect(),
        stop => Vec::from_iter(stop),
    };
    let texts = stops.into_iter().filter_map(Value::as_str);
    let texts = texts.filter(|stop| !stop.is_empty());
    texts.map(str::to_owned).take(MOST_STOPS).collect()
}

/// A limit of tokens; what is none limits nothing.
pub(super) fn tokens(limit: &Value) -> Option<u64> {
    limit.as_u64().filter(|tokens| *tokens > 0)
}

/// Refuses to call a tool of the client.
pub(super) fn refuse_forced(field: &str, choice: Option<&Value>) -> Result<(), Problem> {
    if !is_forced(choice) {
        return Ok(());
    }
    let reason = "a tool of the client cannot be called, because the agent's own tools run on the server; leave \
                  this out";
    Err(Problem::unfit(ErrorCode::Unsupported, field, reason))
}

pub(super) fn is_any(tools: Option<&Value>) -> bool {
    tools
        .and_then(Value::as_array)
        .is_some_and(|tools| !tools.is_empty())
}

fn is_forced(choice: Option<&Value>) -> bool {
    match choice {
        Some(Value::String(choice)) => choice == "required",
        Some(Value::Object(choice)) => choice.get("mode").is_none_or(|mode| mode == "required"),
        _ => false,
    }
}
