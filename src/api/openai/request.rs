//! Requests for chat completions, and the fields that they share with responses. Clients send many parameters without a
//! meaning here. These are ignored, and a header of the answer names those of which a client may expect an effect. Only
//! a forced call of a client's own tool is refused.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    content::{content, files, role},
    schema,
};
use crate::{
    api::{
        answer_text::Limiter,
        extract::{MAX_TEXT, check_text},
        problem::Problem,
    },
    app::chat::transcript::Transcript,
};
use domain::{
    answer_format::{AnswerFormat, AnswerSchema},
    error::ErrorCode,
    message::Role,
};

/// The most `stop` texts of a request.
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
    /// The newer name of `max_tokens`.
    #[schema(value_type = Option<u64>)]
    max_completion_tokens: Option<Value>,
    /// There is one answer.
    #[schema(value_type = Option<u64>)]
    n: Option<Value>,
    /// Ignored: the agent's own tools run on the server.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Value>,
    /// The older name of `tools`, ignored too.
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

    /// Reads the messages as text. The last one must be the user's and is the question.
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

    /// The format of the answer; `None` for free text.
    pub fn format(&self) -> Result<Option<AnswerFormat>, Problem> {
        let format = self.response_format.as_ref();
        read_format("response_format", format, Some("json_schema"))
    }

    /// The limits at which the answer ends.
    pub fn limiter(&self) -> Limiter {
        Limiter::new(stops(self.stop.as_ref()), self.max_tokens())
    }

    pub fn max_tokens(&self) -> Option<u64> {
        let given = [&self.max_completion_tokens, &self.max_tokens];
        given.into_iter().flatten().filter_map(tokens).min()
    }

    /// Refuses a forced call of the client's own tools. The tools of a frontend are ignored: its users did not choose them.
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

    /// The names of the given parameters that have no effect here, although a client may expect an effect.
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

/// Checks that a transcript ends with a message of the user.
pub(in crate::api) fn check_question(
    all: &str,
    last: &str,
    transcript: &Transcript,
) -> Result<(), Problem> {
    match transcript.last() {
        Some((Role::User, text)) => check_text(last, text, MAX_TEXT),
        _ => {
            let reason = "the last message must be one of the role `user`";
            Err(Problem::invalid(all, reason))
        }
    }
}

/// Reads the texts before which an answer ends: one, or a list.
pub(super) fn stops(stop: Option<&Value>) -> Vec<String> {
    let stops = match stop {
        Some(Value::Array(stops)) => stops.iter().collect(),
        stop => Vec::from_iter(stop),
    };
    let texts = stops.into_iter().filter_map(Value::as_str);
    let texts = texts.filter(|stop| !stop.is_empty());
    texts.map(str::to_owned).take(MOST_STOPS).collect()
}

/// Reads a limit of tokens; `None` for a value that is no limit.
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

/// The most characters of the name of a schema.
const MAX_NAME: usize = 64;

/// Reads the form of an answer: `response_format` of chat completions, `text.format` of responses; `None` is free text.
/// Chat completions have the schema in the member `inner` of the format; responses have it in the format itself.
pub(super) fn read_format(
    field: &str,
    format: Option<&Value>,
    inner: Option<&str>,
) -> Result<Option<AnswerFormat>, Problem> {
    let Some(format) = format.filter(|format| !format.is_null()) else {
        return Ok(None);
    };
    let Some(kind) = format["type"].as_str() else {
        let field = format!("{field}.type");
        return Err(Problem::unfit(ErrorCode::MissingField, field, "is missing"));
    };
    match kind {
        "text" => Ok(None),
        "json_object" => Ok(Some(AnswerFormat::JsonObject)),
        "json_schema" => {
            let (about, field) = match inner {
                Some(inner) => (&format[inner], format!("{field}.{inner}")),
                None => (format, field.to_owned()),
            };
            Ok(Some(AnswerFormat::JsonSchema(read_schema(about, &field)?)))
        }
        other => {
            let reason = format!("must be `text`, `json_object` or `json_schema`, not {other:?}");
            let field = format!("{field}.type");
            Err(Problem::unfit(ErrorCode::Unsupported, field, reason))
        }
    }
}

fn read_schema(about: &Value, field: &str) -> Result<AnswerSchema, Problem> {
    let missing = |name: &str| {
        let field = format!("{field}.{name}");
        Problem::unfit(ErrorCode::MissingField, field, "is missing")
    };
    let name = about["name"].as_str().ok_or_else(|| missing("name"))?;
    let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_fit) {
        let reason = format!("must be 1 to {MAX_NAME} letters, digits, `_` or `-`");
        return Err(Problem::invalid(format!("{field}.name"), reason));
    }
    let schema = Some(&about["schema"]).filter(|schema| schema.is_object());
    Ok(AnswerSchema {
        name: name.to_owned(),
        description: about["description"].as_str().map(str::to_owned),
        schema: schema.ok_or_else(|| missing("schema"))?.clone(),
        strict: about["strict"].as_bool(),
    })
}

/// Writes the format of a response, which the response repeats.
pub(super) fn write_format(format: Option<&AnswerFormat>) -> Value {
    match format {
        None => json!({ "type": "text" }),
        Some(AnswerFormat::JsonObject) => json!({ "type": "json_object" }),
        Some(AnswerFormat::JsonSchema(schema)) => json!({
            "type": "json_schema", "name": schema.name, "description": schema.description, "schema": schema.schema,
            "strict": schema.strict,
        }),
    }
}
