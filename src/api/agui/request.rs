//! The requests of AG-UI clients.

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use sha2::{Digest, Sha256};

use crate::{
    api::{
        extract::check_text,
        openai::{check_question, content, files, text_or_parts},
        problem::Problem,
    },
    app::{
        chat::transcript::{ClientQuestion, QuestionPlace, Transcript},
        tools::approvals::{self, InterruptAnswer, InterruptResponse},
    },
};
use domain::{
    canonical, clock,
    message::Role,
    request_key::{KeySource, RequestKey},
};

/// The prefix of this protocol's chats.
const CHATS: &str = "agui:";
/// The most characters of an id.
const MAX_ID: usize = 200;

/// The input of a run. `tools`, `context`, `state` and `forwardedProps` are ignored; the header
/// `x-ignored-parameters` of the answer names them.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) struct RunInput {
    /// The id that the client gave the thread.
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    thread_id: String,
    /// The id that the client gave the run.
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    run_id: String,
    /// The whole thread. The last message is the user's, but for a run that only answers interrupts.
    messages: Vec<AguiMessage>,
    /// Answers to the interrupts of the run before.
    #[serde(default)]
    resume: Vec<ResumeEntry>,
    /// Ignored: the agent's own tools run on the server.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Value>,
    #[schema(value_type = Option<Vec<Object>>)]
    context: Option<Value>,
    #[schema(value_type = Option<Object>)]
    state: Option<Value>,
    #[schema(value_type = Option<Object>)]
    forwarded_props: Option<Value>,
}

#[derive(Deserialize, utoipa::ToSchema)]
struct AguiMessage {
    #[schema(value_type = AguiRole, inline)]
    role: String,
    /// Text, or a list of parts.
    #[schema(schema_with = text_or_parts)]
    content: Option<Value>,
}

/// Who speaks in a message. Messages of other roles than the first four are the program's own and are ignored.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "read by the derive only")]
enum AguiRole {
    System,
    Developer,
    User,
    Assistant,
    Tool,
    Activity,
    Reasoning,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
struct ResumeEntry {
    /// The `id` of the interrupt. What the user is asked is confirmed only with all of it.
    interrupt_id: String,
    status: ResumeStatus,
    /// For a call that its own user is asked to confirm: `{"approved": true}` confirms it, `{"approved": false}` declines
    /// it.
    #[schema(value_type = Option<Object>)]
    payload: Option<Box<RawValue>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum ResumeStatus {
    /// Go on. A request for approval stays with its approvers.
    Resolved,
    /// Take the request back.
    Cancelled,
}

impl RunInput {
    pub fn thread(&self) -> &str {
        &self.thread_id
    }

    pub fn run(&self) -> &str {
        &self.run_id
    }

    /// The answers to interrupts.
    pub fn answers(&self) -> Result<Vec<InterruptResponse>, Problem> {
        let answers = self.resume.iter().map(|entry| {
            let payload = entry
                .payload
                .as_ref()
                .map_or("null", |payload| payload.get());
            if canonical::ambiguity(payload).is_some() {
                return Err(approvals::answered_twice(&entry.interrupt_id).into());
            }
            let payload: Value = serde_json::from_str(payload).unwrap_or_default();
            let answer = match entry.status {
                ResumeStatus::Cancelled => InterruptAnswer::Cancel,
                ResumeStatus::Resolved => approvals::read_answer(&entry.interrupt_id, &payload)?
                    .unwrap_or(InterruptAnswer::Continue),
            };
            Ok(InterruptResponse {
                interrupt: entry.interrupt_id.clone(),
                answer,
            })
        });
        answers.collect()
    }

    /// The key of the thread among the chats of clients.
    pub fn chat(&self) -> String {
        format!("{CHATS}{}", self.thread_id)
    }

    /// Whether the request answers interrupts and asks no question.
    pub fn only_resumes(&self, transcript: &Transcript) -> bool {
        let is_asked = transcript
            .last()
            .is_some_and(|(role, _)| *role == Role::User);
        !self.resume.is_empty() && !is_asked
    }

    /// The messages that the client shows.
    pub fn transcript(&self) -> Result<Transcript, Problem> {
        check_text("threadId", &self.thread_id, MAX_ID)?;
        check_text("runId", &self.run_id, MAX_ID)?;
        let mut transcript = Transcript::new();
        for (at, message) in self.messages.iter().enumerate() {
            let Some(message) = message.read(&format!("messages[{at}]"))? else {
                continue;
            };
            match (transcript.last_mut(), message) {
                // A client may send one answer as several messages. Here they are one message.
                (Some((Role::Assistant, answer)), (Role::Assistant, text)) => {
                    *answer = format!("{answer}\n\n{text}");
                }
                (_, message) => transcript.push(message),
            }
        }
        Ok(transcript)
    }

    pub fn question(
        &self,
        agent: String,
        transcript: Transcript,
        key: Option<RequestKey>,
    ) -> Result<ClientQuestion, Problem> {
        check_question("messages", "messages", &transcript)?;
        Ok(ClientQuestion {
            agent,
            chat: Some(self.chat()),
            transcript,
            files: self.files(),
            format: None,
            key: key.unwrap_or_else(|| self.key()),
            place: QuestionPlace::Transcript,
            is_resumable: true,
            response: None,
            responses: self.answers()?,
        })
    }

    /// The images and text files in the last message.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let last = self.messages.last().and_then(AguiMessage::parts);
        last.map(|parts| files(&parts)).unwrap_or_default()
    }

    /// The key of the request: a run is one request, however often it is sent.
    fn key(&self) -> RequestKey {
        let ids = json!([self.thread_id, self.run_id]).to_string();
        RequestKey {
            key: format!("agui:{}", hex::encode(Sha256::digest(&ids))),
            digest: Sha256::digest(ids).into(),
            origin: KeySource::Named,
            sees_stop: true,
            names_message: false,
            arrived: clock::instant(),
            replaced: None,
            server: None,
        }
    }

    /// The names of the given fields that have no effect here, although a client may expect an effect.
    pub fn ignored(&self) -> Vec<&'static str> {
        let fields = [
            ("tools", &self.tools),
            ("context", &self.context),
            ("state", &self.state),
            ("forwardedProps", &self.forwarded_props),
        ];
        let is_given = |value: &Value| match value {
            Value::Array(items) => !items.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            value => !value.is_null(),
        };
        let given = fields
            .into_iter()
            .filter(|(_, value)| value.as_ref().is_some_and(is_given));
        given.map(|(name, _)| name).collect()
    }
}

impl AguiMessage {
    /// The content in the format of chat completions.
    fn parts(&self) -> Option<Value> {
        match &self.content {
            Some(Value::Array(parts)) => Some(parts.iter().map(part_of).collect()),
            other => other.clone(),
        }
    }

    fn read(&self, field: &str) -> Result<Option<(Role, String)>, Problem> {
        let role = match self.role.as_str() {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "system" | "developer" => Role::System,
            "tool" | "activity" | "reasoning" => return Ok(None),
            other => {
                let reason = format!("{other:?} is not a role of AG-UI");
                return Err(Problem::invalid(format!("{field}.role"), reason));
            }
        };
        let text = content(&format!("{field}.content"), self.parts().as_ref())?;
        // A message that only calls tools has no text.
        let is_empty = role == Role::Assistant && text.trim().is_empty();
        Ok((!is_empty).then_some((role, text)))
    }
}

/// A part in the format of chat completions.
fn part_of(part: &Value) -> Value {
    let kind = part["type"].as_str().unwrap_or_default();
    let source = &part["source"];
    let url = match source["type"].as_str() {
        Some("data") => {
            let media = source["mimeType"].as_str().unwrap_or_default();
            let data = source["value"].as_str().unwrap_or_default();
            format!("data:{media};base64,{data}")
        }
        _ => source["value"].as_str().unwrap_or_default().to_owned(),
    };
    match kind {
        "image" => json!({ "type": "image_url", "image_url": { "url": url } }),
        "video" => json!({ "type": "video_url", "video_url": { "url": url } }),
        "audio" => json!({ "type": "input_audio" }),
        "document" => {
            json!({ "type": "file", "filename": part["metadata"]["filename"], "file_data": url })
        }
        // In earlier versions of the protocol one part stands for all kinds of files.
        "binary" => {
            let media = part["mimeType"].as_str().unwrap_or_default();
            let url = match part["data"].as_str() {
                Some(data) => format!("data:{media};base64,{data}"),
                None => part["url"].as_str().unwrap_or_default().to_owned(),
            };
            if media.starts_with("image/") {
                json!({ "type": "image_url", "image_url": { "url": url } })
            } else {
                json!({ "type": "file", "filename": part["filename"], "file_data": url })
            }
        }
        _ => part.clone(),
    }
}
