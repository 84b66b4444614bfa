//! Conversations: a user begins one, posts messages, reads and lists them, and listens to events. A message creates a
//! run, and this process works on the run if it has a free slot.

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
use domain::{
    answer_format::AnswerFormat,
    attachment::Attachment,
    command::ConsentCommand,
    error::{Error, ErrorCode, Missing, Result},
    event::Event,
    ids::{AttachmentId, ConversationId, RunId, TenantId},
    message::{Message, Part, Role},
    pack::Pack,
    principal::Principal,
    prompt,
    request_key::{KeyedRun, RequestKey},
    run::{Conversation, Run, RunKind},
    texts::{self, Key},
};
use store::{Tx, hints::Hint, messages::NewMessage};

/// The stored bytes for which a new conversation counts.
const ROW_BYTES: u16 = 1024;
/// The name of the field with the format of an answer, for errors.
pub const FORMAT_FIELD: &str = "response_format";
/// Characters of one message.
pub const MAX_MESSAGE: usize = 32_768;

/// A message that was posted, and the run that answers it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Posted)]
pub struct PostedMessage {
    pub message: Message,
    pub run: Run,
}

/// A message that a user posts.
#[derive(Clone, Copy)]
pub struct MessageInput<'a> {
    /// May be empty beside attachments.
    pub text: &'a str,
    pub attachments: &'a [AttachmentId],
    /// The field of a prompt that the text answers.
    pub field: Option<&'a str>,
}

/// Begins a conversation. The pack's welcome, if it has one, is the first message.
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
    let conversation = insert(&mut tx, principal, &pack, &title, None).await?;
    store::usage::add_stored(&mut tx, &principal.user, pack.id(), ROW_BYTES.into()).await?;
    if let Some(text) = greeting(app, &pack, principal) {
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

/// Inserts the row of a new conversation.
pub(in crate::app) async fn insert(
    tx: &mut Tx,
    principal: &Principal,
    pack: &Pack,
    title: &str,
    external_key: Option<&str>,
) -> Result<Conversation> {
    store::conversations::insert(tx, &principal.user, pack.id(), title, external_key).await
}

/// What a new conversation begins with: the pack's welcome, and what the model is if it is the demo's.
fn greeting(app: &App, pack: &Pack, principal: &Principal) -> Option<String> {
    let notice =
        (app.config.demo_model).then(|| texts::of(pack, principal).render(Key::DemoModel, &[]));
    let texts = [welcome(pack, principal), notice].into_iter().flatten();
    texts.reduce(|welcome, notice| format!("{welcome}\n\n{notice}"))
}

/// The pack's welcome in the user's language. `{userName}` is replaced once, literally.
fn welcome(pack: &Pack, principal: &Principal) -> Option<String> {
    let welcome = &pack.flows.welcome;
    if !welcome.enabled {
        return None;
    }
    let in_language = |language: &domain::pack::Language| match welcome.template_key.as_str() {
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

/// Posts a message of a user.
///
/// - A text that starts with `/` is a command and is answered without the model. If it names a prompt of a server
///   (`/<server>:<prompt>`), the model gets the text of the prompt instead.
/// - A text that comes while a turn is under way waits for the next turn, together with other texts that wait.
/// - A text that answers a question for which a run waits is written in that run, which goes on with it.
/// - With `field`, the text answers the prompt for that field and nothing else. `Conflict` when no prompt asks for it.
pub async fn post(
    app: &App,
    principal: &Principal,
    id: ConversationId,
    input: MessageInput<'_>,
    key: Option<&RequestKey>,
) -> Result<PostedMessage> {
    let MessageInput {
        text,
        attachments,
        field,
    } = input;
    let text = if !attachments.is_empty() && text.trim().is_empty() {
        String::new()
    } else {
        clean_message_text(text)?
    };
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = store::conversations::get(&mut tx, &principal.user, id, false).await?;
    let attachments = attachments::find_named(&mut tx, id, attachments).await?;
    let may_answer = attachments.is_empty()
        && (field.is_some() || store::conversations::awaits_answer(&mut tx, id).await?);
    drop(tx);
    let pack = agents::pack(app, principal, conversation.agent.as_str()).await?;
    let mut answer = None;
    if may_answer {
        let candidate = AnswerCandidate {
            principal,
            pack: &pack,
            conversation: id,
            text: &text,
            field,
        };
        answer = match_pending_prompt(app, &candidate).await?;
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
    let pending = append_user_message(app, &mut tx, principal, message).await?;
    let begun = KeyedRun {
        conversation: id,
        run: Some(pending.posted.run.id),
        message: Some(pending.posted.message.id),
        repeats: 0,
    };
    repeats::remember(&mut tx, principal, key, begun).await?;
    tx.commit().await?;
    Ok(pending.publish(app, principal))
}

/// Reads the message that an earlier request has posted, and its run as it is now.
pub async fn load_posted(
    app: &App,
    principal: &Principal,
    begun: KeyedRun,
) -> Result<PostedMessage> {
    let (Some(run), Some(message)) = (begun.run, begun.message) else {
        return Err(Error::NotFound(Missing::Conversation(begun.conversation)));
    };
    let mut tx = app.db.tenant(principal.tenant).await?;
    Ok(PostedMessage {
        message: store::messages::get(&mut tx, begun.conversation, message).await?,
        run: store::runs::get(&mut tx, &principal.user, run).await?,
    })
}

/// Checks that a text can be a message. Returns it without NUL characters.
pub(super) fn clean_message_text(text: &str) -> Result<String> {
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

/// A message and its run, written but not yet committed.
pub(in crate::app) struct PendingPost {
    posted: PostedMessage,
    unpublished: PendingEvents,
}

enum PendingEvents {
    Run(Box<CreatedRun>),
    /// The message answers a run that is already at work.
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
    /// The caller holds its lock.
    pub conversation: &'a Conversation,
    pub text: &'a str,
    pub attachments: &'a [Attachment],
    /// The answer to a prompt that the text is, if it is one.
    pub answer: Option<&'a PromptAnswer>,
    /// The format that the agent's answer must have.
    pub format: Option<&'a AnswerFormat>,
}

/// Writes a user's message and the run that answers it. If the message answers a prompt, only the part that may be shown
/// is written.
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
        return Err(format_error("this answers a question of the program"));
    }
    if let Some((answer, run)) = answer.and_then(PromptAnswer::waiting_run) {
        return append_to_waiting_run(tx, principal, conversation.id, answer, run).await;
    }
    let text = answer.map_or(text, PromptAnswer::shown);
    // With attachments a text is no command. A server's prompt begins a turn, and its text stands in place of the command.
    let may_be_command = attachments.is_empty() && answer.is_none();
    let names_prompt = may_be_command && prompt::command(text).is_some();
    let is_command = may_be_command
        && !names_prompt
        && (text.trim_start().starts_with('/') || ConsentCommand::read(text).is_some());
    let kind = match answer {
        Some(answer) => answer.run_kind(),
        None if is_command => RunKind::Command,
        None => RunKind::Turn,
    };
    if format.is_some() && kind == RunKind::Command {
        return Err(format_error("this is a command"));
    }
    usage::require_space(app, tx, principal, text.len()).await?;
    if kind == RunKind::Turn {
        usage::require_run(app, tx, principal).await?;
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
        // What answers a question says nothing of the conversation.
        title: answer.is_none().then_some(title.as_str()),
        format,
        trace: None,
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

/// The error for a format that cannot be kept, because the program itself answers, and only with text.
fn format_error(why: &str) -> Error {
    let reason =
        format!("cannot be held, because {why}, which is answered with text; leave it out");
    Error::unfit(ErrorCode::Unsupported, FORMAT_FIELD, reason)
}

/// Writes an answer into the run that waits for it, and then the next question. The caller holds the lock of the
/// conversation.
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
    let shown = [Part::text(answer.shown.clone())];
    let shown = message(Role::User, &shown);
    let (posted, event) =
        store::messages::append(tx, principal.tenant, conversation, shown).await?;
    let mut events = vec![event];
    if !answer.next.is_empty() {
        let next = message(Role::System, &answer.next);
        let (_, event) = store::messages::append(tx, principal.tenant, conversation, next).await?;
        events.push(event);
    }
    let run = store::runs::get(tx, &principal.user, run).await?;
    Ok(PendingPost {
        posted: PostedMessage {
            message: posted,
            run,
        },
        unpublished: PendingEvents::Events(events),
    })
}

impl App {
    /// Tells the listeners of an event, here and on the other replicas. Call it after the commit.
    pub(crate) fn announce(&self, tenant: TenantId, conversation: ConversationId, event: Event) {
        self.live.durable(tenant, conversation, event);
        let _ = self.hints.send(Hint::Conversation {
            tenant,
            conversation,
        });
    }
}
