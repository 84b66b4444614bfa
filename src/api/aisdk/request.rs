//! The requests of `useChat`.

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value, json, value::RawValue};

use crate::{
    api::{
        openai::{check_question, content, files},
        problem::Problem,
    },
    app::{
        chat::transcript::{ClientQuestion, QuestionPlace, Transcript},
        tools::approvals::{self, InterruptResponse},
    },
};
use domain::{canonical, message::Role, request_key::RequestKey};

/// The body of the default transport. What a frontend adds to it is ignored, but for `agent`.
#[derive(Deserialize, utoipa::ToSchema)]
pub(in crate::api) struct UiChatRequest {
    /// The id that the client gave the chat.
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    id: String,
    /// The agent's id; may be left out when there is only one.
    agent: Option<String>,
    /// The whole chat. The last message is the user's, or the answer whose calls the user has just confirmed or declined.
    #[schema(min_items = 1)]
    messages: Option<Vec<UiMessage>>,
    /// Instead: only what is new in the chat.
    message: Option<UiMessage>,
}

#[derive(Deserialize, utoipa::ToSchema)]
struct UiMessage {
    #[schema(value_type = Option<String>)]
    id: Option<Value>,
    #[schema(value_type = UiRole, inline)]
    role: String,
    /// Text and files; other parts are the program's own and are ignored.
    #[serde(default, deserialize_with = "read_parts")]
    #[schema(value_type = Vec<Object>)]
    parts: Vec<Value>,
}

/// Reads the parts of a message. Of members that stand twice one would be lost, and with it an answer to a request.
fn read_parts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Value>, D::Error> {
    let parts = Vec::<Box<RawValue>>::deserialize(deserializer)?;
    let read = |part: Box<RawValue>| {
        let value: Value = serde_json::from_str(part.get()).map_err(D::Error::custom)?;
        match value["approval"]["id"].as_str() {
            Some(id) if canonical::ambiguity(part.get()).is_some() => {
                Err(D::Error::custom(approvals::answered_twice(id)))
            }
            _ => Ok(value),
        }
    };
    parts.into_iter().map(read).collect()
}

/// Who speaks in a message.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "read by the derive only")]
enum UiRole {
    System,
    User,
    Assistant,
}

impl UiChatRequest {
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether the message has an id. Then another message never has an equal body.
    pub fn names_message(&self) -> bool {
        let messages = self.messages.as_deref().unwrap_or_default();
        let last = self.message.as_ref().or(messages.last());
        last.is_some_and(|message| message.id.as_ref().is_some_and(Value::is_string))
    }

    pub fn agent(&self) -> Option<&str> {
        self.agent.as_deref()
    }

    pub fn question(
        self,
        agent: String,
        chat: String,
        key: RequestKey,
    ) -> Result<ClientQuestion, Problem> {
        let (field, messages, place) = match (self.messages, self.message) {
            (Some(messages), None) => ("messages", messages, QuestionPlace::Transcript),
            (None, Some(message)) => ("message", vec![message], QuestionPlace::Chat),
            _ => {
                let reason = "must hold exactly one of `messages` and `message`";
                return Err(Problem::invalid("body", reason));
            }
        };
        let files = messages.last().map(UiMessage::files);
        let transcript = read_all(field, &messages)?;
        check_question(field, field, &transcript)?;
        Ok(ClientQuestion {
            agent,
            chat: Some(chat),
            transcript,
            files: files.unwrap_or_default(),
            format: None,
            key,
            place,
            is_resumable: true,
            response: None,
            responses: Vec::new(),
        })
    }
}

/// What the user has answered to the calls that the last message asks them to confirm.
pub struct ApprovalResponses {
    /// The client's id of the message.
    pub message: Option<String>,
    pub answers: Vec<InterruptResponse>,
    pub transcript: Transcript,
}

impl UiChatRequest {
    /// The answers of the user, when the request brings these and no question.
    pub fn approval_responses(&self) -> Result<Option<ApprovalResponses>, Problem> {
        let (field, messages) = match (&self.messages, &self.message) {
            (Some(messages), None) => ("messages", messages.as_slice()),
            (None, Some(message)) => ("message", std::slice::from_ref(message)),
            _ => return Ok(None),
        };
        let last = messages.last().filter(|last| last.role == "assistant");
        let answers = last
            .map(UiMessage::answers)
            .transpose()?
            .unwrap_or_default();
        if answers.is_empty() {
            return Ok(None);
        }
        Ok(Some(ApprovalResponses {
            message: last.and_then(|last| Some(last.id.as_ref()?.as_str()?.to_owned())),
            answers,
            transcript: read_all(field, messages)?,
        }))
    }
}

fn read_all(field: &str, messages: &[UiMessage]) -> Result<Transcript, Problem> {
    let messages = messages.iter().enumerate();
    let transcript = messages.map(|(at, message)| message.read(&format!("{field}[{at}]")));
    transcript.collect()
}

impl UiMessage {
    /// The answers to requests for consent among the parts, which are tools in the state `approval-responded`.
    fn answers(&self) -> Result<Vec<InterruptResponse>, Problem> {
        let mut answers = Vec::new();
        for part in &self.parts {
            let Some(Value::Object(approval)) = part.get("approval") else {
                continue;
            };
            let Some(interrupt) = approval.get("id").and_then(Value::as_str) else {
                continue;
            };
            // The rest is what the SDK says of the request itself.
            let is_answer =
                |name: &str| ["approved", "reason"].contains(&name.to_lowercase().as_str());
            let given = approval.iter().filter(|(name, _)| is_answer(name));
            let given: Map<_, _> = given
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            if part["state"] == "approval-responded"
                && let Some(answer) = approvals::read_answer(interrupt, &given.into())?
            {
                let interrupt = interrupt.to_owned();
                answers.push(InterruptResponse { interrupt, answer });
            }
        }
        Ok(answers)
    }

    /// The images and text files of the message.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        files(&self.parts.iter().filter_map(part_of).collect())
    }

    fn read(&self, field: &str) -> Result<(Role, String), Problem> {
        let role = match self.role.as_str() {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "system" => Role::System,
            other => {
                let reason = format!("{other:?} is not one of `system`, `user`, `assistant`");
                return Err(Problem::invalid(format!("{field}.role"), reason));
            }
        };
        let texts = self.parts.iter().enumerate().filter_map(|(at, part)| {
            let part = part_of(part)?;
            Some(content(
                &format!("{field}.parts[{at}]"),
                Some(&json!([part])),
            ))
        });
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        // The texts of an answer are paragraphs.
        let separator = if role == Role::Assistant {
            "\n\n"
        } else {
            "\n"
        };
        Ok((role, texts.join(separator)))
    }
}

/// A part in the format of chat completions.
fn part_of(part: &Value) -> Option<Value> {
    match part["type"].as_str() {
        Some("text") => Some(part.clone()),
        Some("file") => {
            let media = part["mediaType"].as_str().unwrap_or_default();
            Some(if media.starts_with("image/") {
                json!({ "type": "image_url", "image_url": { "url": part["url"] } })
            } else {
                json!({ "type": "file", "filename": part["filename"], "file_data": part["url"] })
            })
        }
        _ => None,
    }
}
