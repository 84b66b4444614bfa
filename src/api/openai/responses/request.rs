//! Requests for responses, and their input: texts, images and results of tools as one question. Parameters without a
//! meaning here are ignored, as in chat completions.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::wire::{item_run, run_id};
use crate::{
    api::{
        openai::{
            content::{content, files, role},
            request::{check_question, is_any, read_format, refuse_forced, stops, tokens},
            schema,
        },
        problem::Problem,
    },
    app::{
        accounts::Caller,
        chat::transcript::{ClientQuestion, QuestionPlace, Transcript},
    },
};
use domain::{
    answer_format::AnswerFormat,
    error::ErrorCode,
    ids::{ConversationId, RunId},
    message::Role,
    request_key::RequestKey,
    response::ResponseSettings,
};

/// Sampling parameters are accepted and ignored: the agent's pack decides them. So are `tools` and
/// `prompt`; the header `x-ignored-parameters` of the answer names them.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = ResponseRequest)]
pub(in crate::api) struct NewResponse {
    /// The agent's id.
    pub model: String,
    /// What the user says, or a list of items: messages, results of tools, references to earlier items.
    #[schema(schema_with = schema::input)]
    input: Value,
    /// Like a message of the role `system` before the input.
    instructions: Option<String>,
    /// Continue after this response.
    #[schema(pattern = "^resp_[0-9a-f]{32}$")]
    previous_response_id: Option<String>,
    stream: Option<bool>,
    /// `false`: the response can be neither read nor continued by its id.
    store: Option<bool>,
    /// At most 16 texts, repeated with the response.
    metadata: Option<BTreeMap<String, String>>,
    /// The answer ends after about as many tokens.
    #[schema(value_type = Option<u64>)]
    max_output_tokens: Option<Value>,
    /// Not OpenAI's: a text, or several, before which the answer ends.
    #[schema(schema_with = schema::texts)]
    stop: Option<Value>,
    /// Do not wait: read the response later.
    background: Option<bool>,
    /// Ignored: the agent's own tools run on the server.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Value>,
    /// May not force a call of a client's tool.
    #[schema(schema_with = schema::word_or_object)]
    tool_choice: Option<Value>,
    /// Its `format` is the form of the answer: `text`, `json_object` or `json_schema`. It is checked here, whatever the model
    /// can do.
    #[schema(value_type = Option<Object>)]
    text: Option<Value>,
    /// Instead of `previous_response_id`: go on in this conversation. Its id, or an object with its `id`.
    #[schema(schema_with = schema::word_or_object)]
    conversation: Option<Value>,
    /// Ignored.
    #[schema(value_type = Option<Object>)]
    prompt: Option<Value>,
}

/// The field with the format of the answer.
pub(super) const FORMAT: &str = "text.format";
/// The most pairs of `metadata`, and the most characters of a name and of a text.
const MAX_METADATA: usize = 16;
const MAX_METADATA_NAME: usize = 64;
const MAX_METADATA_TEXT: usize = 512;

/// The question of a request, and the settings that the response repeats.
pub(in crate::api) struct Question {
    pub question: ClientQuestion,
    pub settings: ResponseSettings,
}

impl NewResponse {
    pub fn stream(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    pub fn is_in_background(&self) -> bool {
        self.background.unwrap_or(false)
    }

    pub fn is_stored(&self) -> bool {
        self.store.unwrap_or(true)
    }

    /// Refuses parameters that cannot be met.
    pub fn check(&self, is_frontend: bool) -> Result<(), Problem> {
        let metadata = self.metadata.iter().flatten();
        let is_long = |(key, value): (&String, &String)| {
            key.chars().count() > MAX_METADATA_NAME || value.chars().count() > MAX_METADATA_TEXT
        };
        if metadata.clone().count() > MAX_METADATA || metadata.clone().any(is_long) {
            let reason = format!(
                "must have at most {MAX_METADATA} pairs, names of {MAX_METADATA_NAME} characters and texts of {MAX_METADATA_TEXT}"
            );
            return Err(Problem::invalid("metadata", reason));
        }
        let holds_nul = |text: &String| text.contains('\0');
        if metadata.flat_map(|(k, v)| [k, v]).any(holds_nul) {
            return Err(Problem::invalid(
                "metadata",
                "must not contain the character U+0000",
            ));
        }
        if self.background == Some(true) && !self.is_stored() {
            let reason = "a response that is not stored cannot be read later; leave `store` out";
            return Err(Problem::unfit(ErrorCode::Unsupported, "background", reason));
        }
        if !is_frontend && is_any(self.tools.as_ref()) {
            refuse_forced("tool_choice", self.tool_choice.as_ref())?;
        }
        Ok(())
    }

    /// The format of the answer; `None` for free text.
    fn format(&self) -> Result<Option<AnswerFormat>, Problem> {
        let format = self.text.as_ref().map(|text| &text["format"]);
        read_format(FORMAT, format, None)
    }

    /// The conversation that the request continues.
    fn conversation(&self) -> Result<Option<ConversationId>, Problem> {
        let Some(conversation) = self.conversation.as_ref().filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        if self.previous_response_id.is_some() {
            let reason = "cannot be given beside `previous_response_id`; leave one of them out";
            return Err(Problem::unfit(
                ErrorCode::Unsupported,
                "conversation",
                reason,
            ));
        }
        let id = conversation
            .as_str()
            .or_else(|| conversation["id"].as_str());
        let id = id.and_then(|id| id.parse().ok());
        id.map(Some).ok_or_else(|| {
            let reason = "is not the id of a conversation; POST /v1/conversations makes one";
            Problem::invalid("conversation", reason)
        })
    }

    /// Reads the input as a question: the new messages, and the answer or the conversation that they continue.
    pub fn question(&self, caller: &Caller, key: RequestKey) -> Result<Question, Problem> {
        let mut input = self.read_input()?;
        let previous = self.previous_response_id.as_deref().map(|id| {
            let reason = "is not the id of a response";
            run_id(id).ok_or_else(|| Problem::invalid("previous_response_id", reason))
        });
        let previous = previous.transpose()?;
        let given = self
            .instructions
            .iter()
            .filter(|text| !text.trim().is_empty());
        let given: Vec<_> = given.cloned().collect();
        input.instructions.splice(0..0, given.clone());
        let settings = self.settings(previous, &input.instructions)?;
        let place = match (self.conversation()?, previous.or(input.after)) {
            (Some(id), _) => {
                input.transcript.retain(|(role, _)| *role != Role::System);
                QuestionPlace::Conversation {
                    id,
                    instructions: settings.instructions.clone(),
                }
            }
            (None, Some(run)) => {
                input.transcript.retain(|(role, _)| *role != Role::System);
                QuestionPlace::After {
                    run,
                    instructions: settings.instructions.clone(),
                }
            }
            (None, None) => {
                let given = given.into_iter().map(|text| (Role::System, text));
                input.transcript.splice(0..0, given);
                QuestionPlace::Transcript
            }
        };
        check_question("input", "input", &input.transcript)?;
        let question = ClientQuestion {
            agent: self.model.clone(),
            chat: caller.conversation_key.clone(),
            transcript: input.transcript,
            files: self.files(),
            format: settings.format.clone(),
            key,
            place,
            is_resumable: false,
            response: self.is_stored().then(|| settings.clone()),
            responses: Vec::new(),
        };
        Ok(Question { question, settings })
    }

    /// The images and text files in the last item.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let last = self.input.as_array().and_then(|items| items.last());
        last.map(|item| files(&item["content"])).unwrap_or_default()
    }

    fn settings(
        &self,
        previous: Option<RunId>,
        instructions: &[String],
    ) -> Result<ResponseSettings, Problem> {
        let instructions = instructions.join("\n\n").replace('\0', "");
        Ok(ResponseSettings {
            previous,
            instructions: Some(instructions).filter(|text| !text.is_empty()),
            metadata: self.metadata.clone().unwrap_or_default(),
            max_output_tokens: self.max_output_tokens.as_ref().and_then(tokens),
            stop: stops(self.stop.as_ref()),
            background: self.is_in_background(),
            format: self.format()?,
        })
    }

    /// The names of the given parameters that have no effect here, although a client may expect an effect.
    pub fn ignored(&self) -> Vec<&'static str> {
        let is_given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        let ignored = [
            ("tools", is_any(self.tools.as_ref())),
            ("prompt", is_given(&self.prompt)),
        ];
        let ignored = ignored.into_iter().filter(|(_, is_ignored)| *is_ignored);
        ignored.map(|(name, _)| name).collect()
    }

    fn read_input(&self) -> Result<Input, Problem> {
        let items = match &self.input {
            Value::String(text) => {
                return Ok(Input {
                    transcript: vec![(Role::User, text.clone())],
                    ..Input::default()
                });
            }
            Value::Array(items) => items,
            _ => {
                return Err(Problem::unfit(
                    ErrorCode::WrongType,
                    "input",
                    "must be text or a list of items",
                ));
            }
        };
        let mut input = Input::default();
        for (at, item) in items.iter().enumerate() {
            input.add(&format!("input[{at}]"), item)?;
        }
        Ok(input)
    }
}

#[derive(Default)]
struct Input {
    transcript: Transcript,
    /// The messages of the role `system`, wherever they stand.
    instructions: Vec<String>,
    /// The last answer that the input refers to. The items before it are known.
    after: Option<RunId>,
}

impl Input {
    fn add(&mut self, field: &str, item: &Value) -> Result<(), Problem> {
        match (item["type"].as_str(), item["role"].as_str()) {
            (None | Some("message"), Some(name)) => {
                let text = content(&format!("{field}.content"), item.get("content"))?;
                self.add_message(role(field, name)?, text);
            }
            (Some("item_reference") | None, None) if item["id"].is_string() => {
                let id = item["id"].as_str().unwrap_or_default();
                if let Some(run) = item_run(id) {
                    self.after = Some(run);
                    self.transcript.clear();
                }
            }
            (Some("function_call_output" | "custom_tool_call_output"), _) => {
                let text = content(&format!("{field}.output"), item.get("output"))?;
                self.add_message(Role::Tool, text);
            }
            (Some("message"), None) => {
                return Err(Problem::unfit(
                    ErrorCode::MissingField,
                    format!("{field}.role"),
                    "is missing",
                ));
            }
            (None, None) => {
                return Err(Problem::unfit(
                    ErrorCode::MissingField,
                    format!("{field}.type"),
                    "is missing",
                ));
            }
            // Calls and reasoning are ignored: their results are in the messages.
            (Some(_), _) => {}
        }
        Ok(())
    }

    /// Adds a message. A client may send one answer as several items, which are one message here.
    fn add_message(&mut self, role: Role, text: String) {
        if role == Role::System {
            self.instructions.push(text.clone());
        }
        match self.transcript.last_mut() {
            Some((Role::Assistant, answer)) if role == Role::Assistant => {
                answer.push_str("\n\n");
                answer.push_str(&text);
            }
            _ => self.transcript.push((role, text)),
        }
    }
}
