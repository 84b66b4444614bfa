//! Conversations: open, read, say something, listen. A message opens a run; the run is worked on in this process if it
//! has a place for it.

mod listening;
mod listing;

use serde::Serialize;

pub use self::{
    listening::{ConversationEvent, ConversationStream, listen},
    listing::{
        ConversationFilter, FoundMessage, ListedConversation, MessageSelection, change, list,
        messages,
    },
};
use super::{
    attachments,
    elicitations::ElicitationAnswer,
    prompt_answers::{AnswerCandidate, PromptAnswer, match_pending_prompt},
};
pub use crate::app::runs::delete_conversation as delete;
use crate::app::{
    App,
    accounts::usage,
    runs::{
        creation::{self, CreatedRun, RunPlacement, RunRequest},
        repeats,
    },
    servers::agents,
};
use crate::{
    domain::{
        answer_format::AnswerFormat,
        attachment::Attachment,
        error::{Error, ErrorCode, Result, Thing},
        event::Event,
        ids::{AttachmentId, ConversationId, RunId, TenantId},
        message::{Message, Part, Role},
        pack::Pack,
        principal::Principal,
        prompt,
        request_key::{KeyedRun, RequestKey},
        run::{Conversation, Run, RunKind},
    },
    store::{self, Tx, hints::Hint, messages::NewMessage},
};

/// What a new conversation counts as stored.
const ROW_BYTES: u16 = 1024;
/// What the form of an answer is called in an error.
pub const FORMAT_FIELD: &str = "response_format";
/// Characters of one message.
pub const MAX_MESSAGE: usize = 32_768;

/// The number of a posted message in its conversation, and the run that answers it.
#[derive(Debug, Serialize)]
pub struct PostedMessage {
    pub message: Message,
    pub run: Run,
}

/// What a user says.
#[derive(Clone, Copy)]
pub struct MessageInput<'a> {
    /// May be empty beside attachments.
    pub text: &'a str,
    pub attachments: &'a [AttachmentId],
    /// The prompt's field that it answers.
    pub field: Option<&'a str>,
}

/// Opens a conversation; the pack's welcome, if it has one, is its first message.
pub async fn create(
    app: &App,
    principal: &Principal,
    agent: &str,
    title: Option<String>,
    key: Option<&RequestKey>,
) -> Result<Conversation> {
    let pack = agents::pack(app, principal, agent).await?;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let title = title
        .map(|title| Conversation::title_from(&title))
        .unwrap_or_default();
    usage::require_space(app, &mut tx, principal, ROW_BYTES.into()).await?;
    let conversation = open(&mut tx, principal, &pack, &title, None).await?;
    store::usage::add_stored(&mut tx, &principal.user, pack.id(), ROW_BYTES.into()).await?;
    if let Some(text) = greeting(&pack, principal) {
        let greeting = NewMessage {
            run: None,
            run_ordinal: 0,
            role: Role::System,
            parts: &[Part::text(text)],
            for_model: false,
        };
        store::messages::append(&mut tx, principal.tenant, conversation.id, greeting).await?;
    }
    let conversation =
        store::conversations::get(&mut tx, &principal.user, conversation.id, false).await?;
    let begun = KeyedRun {
        conversation: conversation.id,
        run: None,
        message: None,
        repeats: 0,
    };
    repeats::remember(&mut tx, principal, key, begun).await?;
    tx.commit().await?;
    Ok(conversation)
}

/// The row of a new conversation.
pub(in crate::app) async fn open(
    tx: &mut Tx,
    principal: &Principal,
    pack: &Pack,
    title: &str,
    external_key: Option<&str>,
) -> Result<Conversation> {
    store::conversations::insert(tx, &principal.user, pack.id(), title, external_key).await
}

/// The pack's welcome in the user's language. `{userName}` is replaced once, literally.
fn greeting(pack: &Pack, principal: &Principal) -> Option<String> {
    let welcome = &pack.flows.welcome;
    if !welcome.enabled {
        return None;
    }
    let in_language = |language: &crate::domain::pack::Language| match welcome.template_key.as_str()
    {
        "greetingMessage" => language.greeting_message.clone(),
        key => language.strings.get(key).cloned(),
    };
    let text = in_language(pack.language(principal.locale.as_deref()))
        .or_else(|| in_language(pack.language(None)))?;
    Some(text.replace("{userName}", &principal.display_name()))
}

pub async fn get(app: &App, principal: &Principal, id: ConversationId) -> Result<Conversation> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::conversations::get(&mut tx, &principal.user, id, false).await
}

/// Says something. A text that starts with `/` is a command and is answered without the model, unless it names a
/// prompt of a server (`/<server>:<prompt>`): what that comes to is said to the model. A text
/// that comes while a turn is under way waits for the next one, together with others that wait.
/// What answers a question that a run waits for is said in that run, which goes on with it.
/// With `field` it answers the prompt for that field and nothing else; `Conflict` when nobody asks for it now.
pub async fn post(
    app: &App,
    principal: &Principal,
    id: ConversationId,
    said: MessageInput<'_>,
    key: Option<&RequestKey>,
) -> Result<PostedMessage> {
    let (text, field) = (
        checked_beside(said.text, said.attachments.len())?,
        said.field,
    );
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = store::conversations::get(&mut tx, &principal.user, id, false).await?;
    let attachments = attachments::named(&mut tx, id, said.attachments).await?;
    let may_answer = attachments.is_empty()
        && (field.is_some() || store::conversations::awaits_answer(&mut tx, id).await?);
    drop(tx);
    let pack = agents::pack(app, principal, conversation.agent.as_str()).await?;
    let mut answer = None;
    if may_answer {
        let matching = AnswerCandidate {
            principal,
            pack: &pack,
            conversation: id,
            text: &text,
            field,
        };
        answer = match_pending_prompt(app, &matching).await?;
    }
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = store::conversations::get(&mut tx, &principal.user, id, true).await?;
    let message = UnwrittenMessage {
        conversation: &conversation,
        text: &text,
        attachments: &attachments,
        answer: answer.as_ref(),
        format: None,
    };
    let said = append_user_message(app, &mut tx, principal, message).await?;
    let begun = KeyedRun {
        conversation: id,
        run: Some(said.posted.run.id),
        message: Some(said.posted.message.id),
        repeats: 0,
    };
    repeats::remember(&mut tx, principal, key, begun).await?;
    tx.commit().await?;
    Ok(said.publish(app, principal))
}

/// What an earlier request has posted; its run as it is now.
pub async fn posted(app: &App, principal: &Principal, begun: KeyedRun) -> Result<PostedMessage> {
    let (Some(run), Some(message)) = (begun.run, begun.message) else {
        return Err(Error::NotFound(Thing::Conversation(begun.conversation)));
    };
    let mut tx = app.db.tenant(principal.tenant).await?;
    Ok(PostedMessage {
        message: store::messages::get(&mut tx, begun.conversation, message).await?,
        run: store::runs::get(&mut tx, &principal.user, run).await?,
    })
}

/// A text that can be a message.
pub(in crate::app) fn checked(text: &str) -> Result<String> {
    // A NUL cannot be typed, and many programs cannot handle it.
    let text = text.replace('\0', "");
    if text.trim().is_empty() {
        return Err(Error::invalid("text", "is empty; say something"));
    }
    if text.chars().count() > MAX_MESSAGE {
        return Err(Error::unfit(
            ErrorCode::TooLong,
            "text",
            format!("is longer than {MAX_MESSAGE} characters; send less at once"),
        ));
    }
    Ok(text)
}

/// A text that may be empty, because there is something beside it.
pub(in crate::app) fn checked_beside(text: &str, attachments: usize) -> Result<String> {
    if attachments > 0 && text.trim().is_empty() {
        return Ok(String::new());
    }
    checked(text)
}

/// A message and its run, written but not yet committed.
pub(in crate::app) struct PendingPost {
    posted: PostedMessage,
    unpublished: PendingEvents,
}

enum PendingEvents {
    Run(Box<CreatedRun>),
    /// An answer went to a run that is at work already.
    Events(Vec<Event>),
}

impl PendingPost {
    pub(in crate::app) fn posted(&self) -> &PostedMessage {
        &self.posted
    }

    /// After the commit: tells the listeners and starts the run.
    pub(in crate::app) fn publish(self, app: &App, principal: &Principal) -> PostedMessage {
        match self.unpublished {
            PendingEvents::Run(created) => created.publish(app),
            PendingEvents::Events(events) => {
                for event in events {
                    app.announce(principal.tenant, self.posted.message.conversation_id, event);
                }
            }
        }
        self.posted
    }
}

/// A message of a user that is not written yet.
pub(in crate::app) struct UnwrittenMessage<'a> {
    /// It is locked.
    pub conversation: &'a Conversation,
    pub text: &'a str,
    pub attachments: &'a [Attachment],
    /// What the text answers, if it answers a prompt.
    pub answer: Option<&'a PromptAnswer>,
    /// The form that what follows must have.
    pub format: Option<&'a AnswerFormat>,
}

/// Writes a user's message and the run that answers it. Of an answer to a question only what may be shown is
/// written.
pub(in crate::app) async fn append_user_message(
    app: &App,
    tx: &mut Tx,
    principal: &Principal,
    message: UnwrittenMessage<'_>,
) -> Result<PendingPost> {
    let UnwrittenMessage {
        conversation,
        text,
        attachments,
        answer,
        format,
    } = message;
    if format.is_some() && answer.is_some() {
        return Err(not_formed("this answers a question of the program"));
    }
    if let Some((answer, run)) = answer.and_then(PromptAnswer::waiting_run) {
        return append_to_waiting_run(tx, principal, conversation.id, answer, run).await;
    }
    let text = answer.map_or(text, PromptAnswer::shown);
    // A prompt opens a turn, with what it comes to instead of what was said.
    let is_plain = !attachments.is_empty();
    let names_prompt = !is_plain && answer.is_none() && prompt::command(text).is_some();
    let command = !is_plain && text.trim_start().starts_with('/') && !names_prompt;
    let kind = match answer {
        Some(answer) => answer.run_kind(),
        None if command => RunKind::Command,
        None => RunKind::Turn,
    };
    if format.is_some() && kind == RunKind::Command {
        return Err(not_formed("this is a command"));
    }
    usage::require_space(app, tx, principal, text.len()).await?;
    if kind == RunKind::Turn {
        usage::admit(app, tx, principal).await?;
    }
    let mut parts = Vec::new();
    if !text.is_empty() {
        parts.push(Part::text(text));
    }
    if !attachments.is_empty() {
        store::attachments::mark_named(tx, conversation.id, attachments).await?;
    }
    parts.extend(attachments.iter().cloned().map(Part::Attachment));
    let first = attachments.first().map(|one| one.name.as_str());
    let title = Conversation::title_from(first.filter(|_| text.is_empty()).unwrap_or(text));
    let request = RunRequest {
        id: RunId::new(),
        conversation,
        principal,
        kind,
        place: RunPlacement::Alone,
        role: Role::User,
        parts: &parts,
        for_model: kind == RunKind::Turn && !names_prompt && answer.is_none(),
        title: (kind == RunKind::Turn).then_some(title.as_str()),
        format,
    };
    let created = creation::create(app, tx, &request).await?;
    if let Some(answer) = answer {
        answer.attach_to_run(tx, created.run.id).await?;
    }
    Ok(PendingPost {
        posted: PostedMessage {
            message: created.message.clone(),
            run: created.run.clone(),
        },
        unpublished: PendingEvents::Run(Box::new(created)),
    })
}

/// What the program itself answers has no other form than text.
fn not_formed(why: &str) -> Error {
    let reason =
        format!("cannot be held, because {why}, which is answered with text; leave it out");
    Error::unfit(ErrorCode::Unsupported, FORMAT_FIELD, reason)
}

/// Writes an answer into the run that waits for it, and what is asked next. The conversation is locked.
async fn append_to_waiting_run(
    tx: &mut Tx,
    principal: &Principal,
    conversation: ConversationId,
    answer: &ElicitationAnswer,
    run: RunId,
) -> Result<PendingPost> {
    answer.attach_to_run(tx, run).await?;
    let message = |role, parts| NewMessage {
        run: Some(run),
        run_ordinal: 0,
        role,
        parts,
        for_model: false,
    };
    let said = [Part::text(answer.shown.clone())];
    let said = message(Role::User, &said);
    let (said, event) = store::messages::append(tx, principal.tenant, conversation, said).await?;
    let mut events = vec![event];
    if !answer.next.is_empty() {
        let next = message(Role::System, &answer.next);
        let (_, event) = store::messages::append(tx, principal.tenant, conversation, next).await?;
        events.push(event);
    }
    let run = store::runs::get(tx, &principal.user, run).await?;
    Ok(PendingPost {
        posted: PostedMessage { message: said, run },
        unpublished: PendingEvents::Events(events),
    })
}

impl App {
    /// Notifies the listeners here and on the other replicas. Call it after the commit.
    pub(crate) fn announce(&self, tenant: TenantId, conversation: ConversationId, event: Event) {
        self.live.durable(tenant, conversation, event);
        let _ = self.hints.send(Hint::Conversation {
            tenant,
            conversation,
        });
    }
}
