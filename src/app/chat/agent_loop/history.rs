//! What the model is told of the conversation so far: the last messages, never a call without its result
//! or a result without its call. Read from rows once; from there on the worker adds what it writes itself.

use std::{collections::HashMap, sync::Arc};

use super::RunWorker;
use crate::{
    app::{
        chat::{attachments, resources, tool_search},
        tools::toolset::Toolbox,
    },
    domain::{
        error::Result,
        ids::{AttachmentId, RunId},
        message::{CallStatus, Message, Part, Role, ToolResult},
        resource::Link,
    },
    llm::{ModelCall, ToolDef, Turn},
    store,
};

/// What the model may read of a conversation.
pub(super) struct ModelTranscript {
    pub messages: Vec<Message>,
    links: Vec<Link>,
    /// Contents of the images in the messages.
    images: Images,
}

type Images = HashMap<AttachmentId, Arc<[u8]>>;

/// Images that a model is shown at once: the newest ones.
const MOST_IMAGES: usize = 8;

impl ModelTranscript {
    /// Of a new conversation.
    pub fn beginning(message: Message) -> Self {
        Self {
            messages: vec![message],
            links: Vec::new(),
            images: Images::new(),
        }
    }
}

impl RunWorker {
    /// What the model reads in its next step, and the tools that it is offered.
    pub(super) async fn read_transcript(
        &self,
        window: usize,
        toolbox: &Toolbox,
    ) -> Result<(Vec<Turn>, Vec<ToolDef>)> {
        let known = self.transcript().take();
        let mut transcript = match known {
            Some(known) => known,
            None => {
                let mut tx = self.app.db.tenant(self.run.tenant).await?;
                ModelTranscript {
                    messages: store::messages::for_model(&mut tx, &self.run, window).await?,
                    links: store::resources::list(&mut tx, self.run.conversation, None).await?,
                    images: Images::new(),
                }
            }
        };
        self.load_images(&mut transcript).await?;
        let history = turns(&transcript, window, self.run.id);
        let most = self.app.config.tools_per_request;
        let mut tools = tool_search::offered(toolbox, &transcript.messages, most)?;
        let has_file = has_text_file(&transcript.messages);
        tools.extend(resources::definition(toolbox, &transcript.links, has_file)?);
        *self.transcript() = Some(transcript);
        Ok((history, tools))
    }

    /// Reads the images that the model is to be shown and that were not read yet.
    async fn load_images(&self, transcript: &mut ModelTranscript) -> Result<()> {
        let files = transcript.messages.iter().flat_map(attachments::of);
        let images = files.filter(|file| file.is_image()).map(|file| file.id);
        let images: Vec<_> = images.collect();
        let newest = &images[images.len().saturating_sub(MOST_IMAGES)..];
        let missing = newest
            .iter()
            .filter(|id| !transcript.images.contains_key(id));
        let missing: Vec<_> = missing.copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        let read = store::attachments::contents(&mut tx, self.run.conversation, &missing).await?;
        let read = read.into_iter().map(|(id, data)| (id, data.into()));
        transcript.images.extend(read);
        Ok(())
    }
}

/// The last `window` messages as the model reads them, beginning with what a user said; what the current
/// run has written is always among them.
fn turns(transcript: &ModelTranscript, window: usize, run: RunId) -> Vec<Turn> {
    let (messages, images) = (&transcript.messages, &transcript.images);
    let current = messages
        .iter()
        .position(|message| message.run_id == Some(run))
        .unwrap_or(messages.len());
    let wanted = messages.len().saturating_sub(window).min(current);
    let start =
        (wanted..=current).find(|at| messages.get(*at).is_some_and(|m| m.role == Role::User));
    let shown = &messages[start.unwrap_or(current)..];
    let mut results: HashMap<&str, &ToolResult> = HashMap::new();
    for part in shown.iter().flat_map(|message| &message.parts) {
        if let Part::ToolResult(result) = part {
            results.insert(&result.call_id, result);
        }
    }
    shown
        .iter()
        .flat_map(|message| turns_of(message, &results, images))
        .collect()
}

fn turns_of(message: &Message, results: &HashMap<&str, &ToolResult>, images: &Images) -> Vec<Turn> {
    match message.role {
        Role::User => said_and_shown(message, images),
        Role::Assistant => with_results(message, results),
        // Results stand behind their calls, whatever order they came in.
        Role::Tool => Vec::new(),
        // The program's words are for people, but for the outcome of a call that had to wait.
        Role::System => message.parts.iter().filter_map(outcome_of).collect(),
    }
}

fn has_text_file(messages: &[Message]) -> bool {
    let mut files = messages.iter().flat_map(attachments::of);
    files.any(|file| !file.is_image())
}

/// What the user said, with the name of each attachment, and the images.
fn said_and_shown(message: &Message, images: &Images) -> Vec<Turn> {
    let texts = message.parts.iter().map(|part| match part {
        Part::Attachment(attachment) => attachment.for_model(),
        part => part.plain(),
    });
    let said = Turn::User(texts.collect::<Vec<_>>().join("\n"));
    let shown = attachments::of(message).filter_map(|file| {
        let data = images.get(&file.id)?.clone();
        let media_type = file.media_type.clone();
        Some(Turn::Image { media_type, data })
    });
    std::iter::once(said).chain(shown).collect()
}

fn outcome_of(part: &Part) -> Option<Turn> {
    match part {
        Part::Approval(note) => Some(Turn::User(note.for_model())),
        Part::AgentCallback(callback) => Some(Turn::User(callback.for_model())),
        Part::CallOutcome(outcome) => Some(Turn::User(outcome.for_model())),
        _ => None,
    }
}

/// A result for the model. Not every provider has a place that says that it is an error; where the words are the
/// server's own, nothing else says so.
fn text_of(result: &ToolResult) -> String {
    if result.status == CallStatus::Failed && result.raw.is_some() {
        format!("failed: {}", result.text)
    } else {
        result.for_model()
    }
}

/// What the assistant said and called, then each result in the order of the calls.
fn with_results(message: &Message, results: &HashMap<&str, &ToolResult>) -> Vec<Turn> {
    let mut calls = Vec::new();
    let mut answers = Vec::new();
    for part in &message.parts {
        let Part::ToolCall(call) = part else { continue };
        calls.push(ModelCall {
            call_id: call.call_id.clone(),
            name: call.name.clone(),
            arguments: match call.arguments.get() {
                // Not JSON when the model sent it. Providers want an object back, and the result says what was wrong.
                text if text.starts_with('{') => text.to_owned(),
                _ => "{}".to_owned(),
            },
        });
        let result = results.get(call.call_id.as_str());
        answers.push(Turn::ToolResult {
            call_id: call.call_id.clone(),
            name: call.name.clone(),
            text: result.map_or_else(|| "outcome unknown".to_owned(), |result| text_of(result)),
            is_error: result.is_none_or(|result| result.status != CallStatus::Succeeded),
        });
    }
    let said = Turn::Assistant {
        text: message.plain(),
        calls,
    };
    std::iter::once(said).chain(answers).collect()
}
