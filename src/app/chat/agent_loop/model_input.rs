//! The input of the model in one step: a system prompt, the last messages of the conversation, and the tools.
//!
//! The system prompt is the pack's prompt in the user's language, and a list of the tools by server. The messages never
//! hold a call without its result or a result without its call. They are read from rows once; after that the worker
//! adds the messages that it writes itself.
//!
//! A provider caches the beginning of a request. So the parts that may change from step to step stand at the end, and
//! old messages and images are left out many at a time.

use std::{collections::HashMap, fmt::Write as _, sync::Arc};

use serde_json::value::RawValue;

use super::{RunWorker, calls};
use crate::app::{
    chat::{attachments, resources, tool_search},
    tools::toolset::Toolset,
};
use domain::{
    attachment::{self, Image},
    connection::DownCause,
    error::Result,
    ids::{AttachmentId, RunId},
    message::{CallStatus, Message, Part, Role, ToolResult},
    pack::Pack,
    policy::{Offer, offer},
    principal::Principal,
    resource::Link,
};
use llm::{ModelCall, ToolDef, Turn};

/// The messages of a conversation that the model may read.
pub(super) struct ModelTranscript {
    pub messages: Vec<Message>,
    links: Vec<Link>,
    /// Contents of the images in the messages.
    images: Images,
}

#[derive(Default)]
struct Images {
    /// Images that the user attached.
    attached: HashMap<AttachmentId, Arc<[u8]>>,
    /// Images that tools returned, by the id of the call.
    returned: HashMap<String, Vec<Image>>,
}

/// The most images that the model is shown: the newest ones.
const MOST_IMAGES: usize = 8;
/// The number of old images that are left out at once. Until as many new ones have come, the beginning of the request
/// stays the same and the provider can use its cache.
const IMAGES_CUT: usize = 4;
/// Old messages are left out a quarter of the window at once, for the same reason.
const WINDOW_CUTS: usize = 4;
/// The most tools that the system prompt lists by name. The request always contains all of them.
const LISTED: usize = 200;

impl ModelTranscript {
    /// The transcript of a new conversation.
    pub fn of_first_message(message: Message) -> Self {
        Self {
            messages: vec![message],
            links: Vec::new(),
            images: Images::default(),
        }
    }
}

impl RunWorker {
    /// The messages that the model reads in its next step, and the tools that it is offered.
    pub(super) async fn read_transcript(
        &self,
        window: usize,
        toolset: &Toolset,
    ) -> Result<(Vec<Turn>, Vec<ToolDef>)> {
        let known = self.transcript().take();
        let mut transcript = match known {
            Some(known) => known,
            None => {
                let mut tx = self.app.db.tenant(self.run.tenant).await?;
                ModelTranscript {
                    messages: store::messages::list_model_input(&mut tx, &self.run, window).await?,
                    links: store::resources::list(&mut tx, self.run.conversation, None).await?,
                    images: Images::default(),
                }
            }
        };
        self.load_images(&mut transcript).await?;
        let history = last_turns(&transcript, window, self.run.id);
        let has_file = has_text_file(&transcript.messages);
        let reader = resources::definition(toolset, &transcript.links, has_file)?;
        let most = self.app.config.tools_per_request - usize::from(reader.is_some());
        let mut tools = tool_search::tools_to_offer(toolset, &transcript.messages, most)?;
        tools.extend(reader);
        *self.transcript() = Some(transcript);
        Ok((history, tools))
    }

    /// Reads the images that the model will be shown and that are not in memory yet.
    async fn load_images(&self, transcript: &mut ModelTranscript) -> Result<()> {
        let results = transcript.messages.iter().flat_map(calls::results_of);
        for result in results {
            let returned = &mut transcript.images.returned;
            if let Some(raw) = &result.raw
                && !returned.contains_key(&result.call_id)
            {
                returned.insert(result.call_id.clone(), attachment::images_in(raw));
            }
        }
        let files = transcript.messages.iter().flat_map(attachments::list);
        let images = files.filter(|file| file.is_image()).map(|file| file.id);
        let images: Vec<_> = images.collect();
        let newest = &images[hidden_images(images.len())..];
        let missing = newest
            .iter()
            .filter(|id| !transcript.images.attached.contains_key(id));
        let missing: Vec<_> = missing.copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        let read =
            store::attachments::list_contents(&mut tx, self.run.conversation, &missing).await?;
        let read = read.into_iter().map(|(id, data)| (id, data.into()));
        transcript.images.attached.extend(read);
        Ok(())
    }
}

/// The last messages as the model reads them. They begin with a message of the user and contain all messages of the
/// current run.
fn last_turns(transcript: &ModelTranscript, window: usize, run: RunId) -> Vec<Turn> {
    let messages = &transcript.messages;
    let current = messages
        .iter()
        .position(|message| message.run_id == Some(run))
        .unwrap_or(messages.len());
    let start = (first_shown(messages, window).min(current)..=current)
        .find(|at| messages.get(*at).is_some_and(|m| m.role == Role::User));
    let shown = &messages[start.unwrap_or(current)..];
    let mut results: HashMap<&str, &ToolResult> = HashMap::new();
    for result in shown.iter().flat_map(calls::results_of) {
        results.insert(&result.call_id, result);
    }
    let mut writer = TurnWriter {
        results,
        images: &transcript.images,
        hidden_images: 0,
    };
    let mut turns: Vec<Turn> = shown
        .iter()
        .flat_map(|message| writer.turns_of(message))
        .collect();
    let is_image = |turn: &Turn| matches!(turn, Turn::Image { .. } | Turn::ToolImage { .. });
    let images = turns.iter().filter(|turn| is_image(turn)).count();
    writer.hidden_images = hidden_images(images);
    turns.retain(|turn| !is_image(turn) || writer.shows_next_image());
    turns
}

/// The index of the first of the last `window` messages, or of a later one, because a quarter of the window is left out
/// at once. The cut depends on the numbers of the messages alone, so that each run cuts at the same message.
fn first_shown(messages: &[Message], window: usize) -> usize {
    let wanted = messages.len().saturating_sub(window);
    let Some(first) = messages.get(wanted).filter(|_| wanted > 0) else {
        return wanted;
    };
    let step = i64::try_from(window / WINDOW_CUTS)
        .unwrap_or(i64::MAX)
        .max(1);
    let cut = first.seq.div_euclid(step) * step;
    let cut = if cut < first.seq { cut + step } else { cut };
    let later = messages[wanted..]
        .iter()
        .position(|message| message.seq >= cut);
    later.map_or(messages.len(), |later| wanted + later)
}

/// How many of `count` images are too old to be shown.
fn hidden_images(count: usize) -> usize {
    count
        .saturating_sub(MOST_IMAGES)
        .next_multiple_of(IMAGES_CUT)
        .min(count)
}

/// Writes messages as the model reads them.
struct TurnWriter<'a> {
    results: HashMap<&'a str, &'a ToolResult>,
    images: &'a Images,
    /// How many of the next images are too old to be shown.
    hidden_images: usize,
}

impl TurnWriter<'_> {
    fn turns_of(&self, message: &Message) -> Vec<Turn> {
        match message.role {
            Role::User => self.turns_of_user(message),
            Role::Assistant => self.turns_of_assistant(message),
            // A result stands behind its call, in whatever order the results came.
            Role::Tool => Vec::new(),
            // Messages of the program are for people, except for the outcome of a call that had to wait.
            Role::System => message.parts.iter().flat_map(turns_of_outcome).collect(),
        }
    }

    fn shows_next_image(&mut self) -> bool {
        let is_shown = self.hidden_images == 0;
        self.hidden_images = self.hidden_images.saturating_sub(1);
        is_shown
    }

    /// The user's text with the name of each attachment, and then the images.
    fn turns_of_user(&self, message: &Message) -> Vec<Turn> {
        let texts = message.parts.iter().map(|part| match part {
            Part::Attachment(attachment) => attachment.for_model(),
            part => part.plain(),
        });
        let text = Turn::User(texts.collect::<Vec<_>>().join("\n"));
        let images = attachments::list(message).filter_map(|file| {
            let data = self.images.attached.get(&file.id)?.clone();
            let media_type = file.media_type.clone();
            Some(Turn::Image { media_type, data })
        });
        std::iter::once(text).chain(images).collect()
    }

    /// The assistant's text and calls, then each result in the order of the calls, with its images.
    fn turns_of_assistant(&self, message: &Message) -> Vec<Turn> {
        let mut calls = Vec::new();
        let mut results = Vec::new();
        for part in &message.parts {
            let Part::ToolCall(call) = part else { continue };
            calls.push(ModelCall {
                call_id: call.call_id.clone(),
                name: call.name.clone(),
                arguments: match call.arguments.get() {
                    // The model sent no JSON object. Providers accept only an object, and the result says what was
                    // wrong.
                    text if text.starts_with('{') => text.to_owned(),
                    _ => "{}".to_owned(),
                },
            });
            let result = self.results.get(call.call_id.as_str());
            results.push(Turn::ToolResult {
                call_id: call.call_id.clone(),
                name: call.name.clone(),
                text: result.map_or_else(|| "outcome unknown".to_owned(), |result| text_of(result)),
                is_error: result.is_none_or(|result| result.status != CallStatus::Succeeded),
            });
            let images = self.images.returned.get(&call.call_id);
            results.extend(images.into_iter().flatten().map(|image| Turn::ToolImage {
                media_type: image.media_type.to_owned(),
                data: image.data.clone(),
            }));
        }
        let reply = Turn::Assistant {
            text: message.plain(),
            calls,
        };
        std::iter::once(reply).chain(results).collect()
    }
}

fn has_text_file(messages: &[Message]) -> bool {
    let mut files = messages.iter().flat_map(attachments::list);
    files.any(|file| !file.is_image())
}

fn turns_of_outcome(part: &Part) -> Vec<Turn> {
    match part {
        Part::Approval(note) => with_images(note.for_model(), note.raw.as_deref()),
        Part::AgentCallback(callback) => vec![Turn::User(callback.for_model())],
        Part::CallOutcome(outcome) => with_images(outcome.for_model(), outcome.raw.as_deref()),
        _ => Vec::new(),
    }
}

/// The text of an outcome, then the images in the server's own result.
fn with_images(text: String, raw: Option<&RawValue>) -> Vec<Turn> {
    let images = raw.map(attachment::images_in).into_iter().flatten();
    let images = images.map(|image| Turn::Image {
        media_type: image.media_type.to_owned(),
        data: image.data,
    });
    std::iter::once(Turn::User(text)).chain(images).collect()
}

/// The text of a result for the model. Some providers have no field that marks an error, so the text of a server's own
/// error is marked here.
fn text_of(result: &ToolResult) -> String {
    if result.status == CallStatus::Failed && result.raw.is_some() {
        format!("failed: {}", result.text)
    } else {
        result.for_model()
    }
}

/// The system prompt of one step.
pub(super) fn system_prompt(
    pack: &Pack,
    principal: &Principal,
    toolset: &Toolset,
    most_tools: usize,
) -> String {
    let language = pack.language(principal.locale.as_deref());
    let default = pack.language(None);
    let mut prompt = String::new();
    for text in [
        language
            .system_prompt
            .as_ref()
            .or(default.system_prompt.as_ref()),
        pack.llm.agent_prompt.as_ref(),
    ] {
        if let Some(text) = text.filter(|text| !text.trim().is_empty()) {
            prompt.push_str(text.trim());
            prompt.push_str("\n\n");
        }
    }
    describe_tools(&mut prompt, toolset);
    if tool_search::is_needed(toolset, most_tools) {
        let _ = write!(
            prompt,
            " Not all tools are in this request: find others with `{}` before you call them.",
            tool_search::TOOL
        );
    }
    prompt
}

/// A note on the user's servers whose tools are not known at the moment. `down` says why a server cannot be reached.
pub(super) fn note_of_unavailable_servers(
    toolset: &Toolset,
    down: impl Fn(&str) -> Option<DownCause>,
) -> Option<String> {
    let mut awaited = Vec::new();
    let mut broken = Vec::new();
    for server in toolset.awaited() {
        match down(server) {
            Some(cause) => broken.push(format!("{server} ({})", cause.sentence())),
            None => awaited.push(server),
        }
    }
    let mut sentences = Vec::new();
    if !broken.is_empty() {
        sentences.push(format!(
            "These servers belong to you and cannot be used now: {}. If asked, say so.",
            broken.join(", ")
        ));
    }
    if !awaited.is_empty() {
        sentences.push(format!(
            "These servers belong to you, and which tools they have is not known yet: {}. If asked, say that they are \
             being connected.",
            awaited.join(", ")
        ));
    }
    (!sentences.is_empty()).then(|| format!("[Note of the service: {}]", sentences.join(" ")))
}

/// Adds the note of the first step to the user's question, and the note of this step at the end if it is another one.
pub(super) fn add_note(history: &mut Vec<Turn>, first: Option<&str>, now: Option<&str>) {
    let mut turns = history.iter_mut().rev();
    let question = turns.find_map(|turn| match turn {
        Turn::User(text) => Some(text),
        _ => None,
    });
    if let (Some(question), Some(first)) = (question, first) {
        *question = format!("{question}\n\n{first}");
    }
    let Some(now) = now.filter(|now| Some(*now) != first) else {
        return;
    };
    match history.last_mut() {
        Some(Turn::User(text) | Turn::ToolResult { text, .. }) => {
            *text = format!("{text}\n\n{now}");
        }
        _ => history.push(Turn::User(now.to_owned())),
    }
}

/// Adds the list of tools, so that the model can answer "What tools can I use?".
fn describe_tools(prompt: &mut String, toolset: &Toolset) {
    if toolset.is_empty() {
        if toolset.awaited().next().is_none() {
            prompt.push_str("You have no tools for this user. If asked, say so.");
        }
        return;
    }
    prompt.push_str(
        "Tools of this user, by server. If the user asks what tools they can use, list exactly these, by server.\n",
    );
    let mut server = "";
    for (spec, named) in toolset.iter().take(LISTED) {
        if spec.id.as_str() != server {
            server = spec.id.as_str();
            let _ = write!(prompt, "\n{server}:");
        }
        let approval = match offer(spec, toolset.access(), &named.tool.name) {
            Offer::Approve { policy, always } => match (policy.is_confirmation(), always) {
                (false, true) => " (needs approval)",
                (false, false) => " (may need approval)",
                (true, true) => " (the user confirms each call)",
                (true, false) => " (the user may have to confirm a call)",
            },
            Offer::Call | Offer::Deny(_) => "",
        };
        let _ = write!(prompt, " {}{approval},", named.shown);
    }
    if prompt.ends_with(',') {
        prompt.pop();
    }
    if toolset.len() > LISTED {
        let _ = write!(prompt, ", and {} more", toolset.len() - LISTED);
    }
    prompt.push_str("\n\nNever claim to have done something that no tool result confirms.");
}
