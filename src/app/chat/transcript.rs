//! Conversations of clients that send the whole transcript each time (any OpenAI client). A digest of what
//! the client has shown so far finds our conversation again, with the tool calls that the client never
//! saw. A transcript that was edited or regenerated matches nothing and becomes a conversation of its own.
//!
//! The digest that identifies a transcript. White space around a message does not count, because clients
//! trim it. The tool calls that an answer shows do not count either: some clients leave them out of what
//! they send back.
//!
//! Many chats begin alike: with a system message, with instructions, with examples. Only an answer of ours tells them
//! apart, so a conversation gets the digest of a transcript that ends with one, and never another digest.

use std::{borrow::Cow, sync::Arc};

use serde_json::value::to_raw_value;
use sha2::{Digest, Sha256};

use super::{
    attachments, branches,
    conversations::{self, ConversationStream, PostedMessage, UnwrittenMessage},
    prompt_answers::{AnswerCandidate, match_pending_prompt},
};
use crate::{
    app::{
        App,
        runs::repeats,
        servers::{agents, credentials},
    },
    domain::{
        answer_format::AnswerFormat,
        error::{Error, ErrorCode, Result, Thing},
        event::Event,
        ids::{ConversationId, RunId},
        message::{CALL_BOX, CALL_BOX_END, CALL_LINE, Part, Role},
        pack::{Pack, Provider},
        principal::Principal,
        request_key::{KeyedRun, RequestKey},
        response::ResponseSettings,
        run::{Conversation, Run},
        scrub::Scrubber,
    },
    mcp::schemas,
    store::{
        self, Tx,
        client_chats::ChatAnswer,
        conversations::keyed::{NO_KEY, find_or_insert},
        responses::AnsweredPlace,
        runs::ToldAnswer,
    },
};

/// A transcript as a client sends it, oldest first.
pub type Transcript = Vec<(Role, String)>;

/// Messages that are taken over from a transcript: the last ones. A model reads fewer.
const MOST_IMPORTED: usize = 200;
/// Events that a client is told of at once.
const MOST_UNREAD: i64 = 200;

/// What a client asks.
#[derive(Clone)]
pub struct ClientQuestion {
    pub agent: String,
    /// The frontend's own id of the chat, when it names one.
    pub chat: Option<String>,
    /// Ends with what is asked.
    pub transcript: Transcript,
    /// The images and text files in its last message: what to call each, and its content.
    pub files: Vec<(String, Vec<u8>)>,
    /// The form that the answer must have, if it is not free text.
    pub format: Option<AnswerFormat>,
    /// By what the request is known when it is sent again.
    pub key: RequestKey,
    pub place: QuestionPlace,
    /// The client may come back to the answer by the id of the chat.
    pub is_resumable: bool,
    /// The answer can be read again by the run's id.
    pub response: Option<ResponseSettings>,
}

/// A question that was posted.
pub struct PostedQuestion {
    pub conversation: ConversationId,
    pub run: Run,
    /// Begins with what happened since the client's last turn.
    pub listening: ConversationStream,
}

/// Posts the last message of a transcript where it belongs, and listens for the answer.
pub async fn resume(
    app: &Arc<App>,
    principal: &Principal,
    question: &ClientQuestion,
) -> Result<PostedQuestion> {
    let mut transcript = question.transcript.clone();
    let Some((Role::User, text)) = transcript.pop() else {
        return Err(Error::invalid(
            "messages",
            "the last message must be one of the user",
        ));
    };
    let text = conversations::checked(&text)?;
    let pack = agents::pack(app, principal, &question.agent).await?;
    if let Some(format) = &question.format {
        check_format(&pack, format).await?;
    }
    let (mut tx, mut conversation, mut told) =
        locate(app, principal, &pack, question, &transcript).await?;
    let mut answer = None;
    // A prompt is an event: a conversation without events awaits nothing.
    if question.files.is_empty()
        && conversation.last_event > 0
        && store::conversations::awaits_answer(&mut tx, conversation.id).await?
    {
        // Matching an answer takes transactions of its own.
        drop(tx);
        let matching = AnswerCandidate {
            principal,
            pack: &pack,
            conversation: conversation.id,
            text: &text,
            field: None,
        };
        answer = match_pending_prompt(app, &matching).await?;
        (tx, conversation, told) = locate(app, principal, &pack, question, &transcript).await?;
    }
    let mut attachments = Vec::new();
    for (name, data) in &question.files {
        attachments
            .push(attachments::keep(app, &mut tx, principal, &conversation, name, data).await?);
    }
    let message = UnwrittenMessage {
        conversation: &conversation,
        text: &text,
        attachments: &attachments,
        answer: answer.as_ref(),
        format: question.format.as_ref(),
    };
    let post = conversations::append_user_message(app, &mut tx, principal, message).await?;
    remember(&mut tx, principal, question, post.posted(), told).await?;
    // Before the commit, so that nothing is announced that this listener does not hear.
    let listening = ConversationStream::new(app, principal, conversation.id, told)
        .reading_rows(told < conversation.last_event);
    tx.commit().await?;
    Ok(PostedQuestion {
        conversation: conversation.id,
        run: post.publish(app, principal).run,
        listening,
    })
}

/// Refuses a form that no answer of the agent can have.
async fn check_format(pack: &Pack, format: &AnswerFormat) -> Result<()> {
    if pack.llm.provider == Provider::None {
        let reason =
            "cannot be held, because this agent has no model and answers with text; leave it out";
        return Err(Error::unfit(
            ErrorCode::Unsupported,
            conversations::FORMAT_FIELD,
            reason,
        ));
    }
    let Some(schema) = format.schema() else {
        return Ok(());
    };
    let raw = to_raw_value(schema).map_err(Error::internal)?;
    let compiled = schemas::compile_format(raw).await;
    compiled.map(drop).map_err(|why| {
        let reason = format!("has a schema that cannot be used: {why}");
        Error::invalid(conversations::FORMAT_FIELD, reason)
    })
}

/// Writes by what the client may find the question again: its key, its response, its chat.
async fn remember(
    tx: &mut Tx,
    principal: &Principal,
    question: &ClientQuestion,
    posted: &PostedMessage,
    told: i64,
) -> Result<()> {
    let run = &posted.run;
    let begun = KeyedRun {
        conversation: run.conversation_id,
        run: Some(run.id),
        message: Some(posted.message.id),
        repeats: 0,
    };
    let chat = question.chat.as_deref().filter(|_| question.is_resumable);
    let answer = chat.map(|chat| ChatAnswer {
        chat,
        conversation: run.conversation_id,
        run: run.id,
        first_event: told,
    });
    repeats::remember_answer(tx, principal, Some(&question.key), begun, answer).await?;
    if let Some(settings) = &question.response {
        let answer = (run.conversation_id, run.id);
        store::responses::insert(tx, answer, told, settings).await?;
    }
    Ok(())
}

/// Listens to the answer of a run that an earlier request began: after an event, or from the run's first message on.
pub async fn reopen_stream(
    app: &Arc<App>,
    principal: &Principal,
    conversation: ConversationId,
    run: RunId,
    after: Option<i64>,
) -> Result<PostedQuestion> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let after = match after {
        Some(after) => after,
        None => store::messages::opening_event(&mut tx, conversation, run).await? - 1,
    };
    let run = store::runs::get(&mut tx, &principal.user, run).await?;
    drop(tx);
    let listening = conversations::listen(app, principal, conversation, Some(after)).await?;
    Ok(PostedQuestion {
        conversation,
        run,
        listening,
    })
}

/// Listens to the answer that a chat of a client is waiting for, from its beginning; also how often the client came
/// back to it. `None` when it has ended.
pub async fn resume_stream(
    app: &Arc<App>,
    principal: &Principal,
    chat: &str,
) -> Result<Option<(PostedQuestion, i32)>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let open = store::client_chats::come_back(&mut tx, &principal.user, chat).await?;
    let Some(open) = open else { return Ok(None) };
    tx.commit().await?;
    let (place, after) = (open.conversation, Some(open.first_event));
    let posted = reopen_stream(app, principal, place, open.run, after).await?;
    Ok(Some((posted, open.repeats)))
}

/// What happened in a chat since its client's last turn.
pub struct UnreadEvents {
    pub conversation: ConversationId,
    pub events: Vec<Event>,
}

/// The events that the client of a chat has not been told of, the first ones when there are many.
pub async fn unread(app: &App, principal: &Principal, chat: &str) -> Result<UnreadEvents> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let place = store::client_chats::place(&mut tx, &principal.user, chat).await?;
    let (conversation, told) = place.ok_or_else(|| Error::not_found("this thread"))?;
    let events = store::messages::events(&mut tx, conversation.id, told, MOST_UNREAD).await?;
    Ok(UnreadEvents {
        conversation: conversation.id,
        events,
    })
}

/// Remembers what the client of a chat shows now: its transcript, and events up to `told`.
pub async fn record_unread(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    (chat, transcript): (&str, &Transcript),
    told: i64,
) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let key = key_of(Some(chat), transcript);
    store::conversations::keyed::set_external_key(&mut tx, conversation, &key, told).await?;
    tx.commit().await
}

/// What a client was told of.
#[derive(Clone, Copy)]
pub struct DeliveredEvents {
    /// The last event.
    pub event: i64,
    /// The last event of the conversation when the answer ended.
    pub last: i64,
    /// The answer is an old one, and the conversation may have gone on since.
    pub is_late: bool,
    pub arrival: Arrival,
    /// The client wanted no more than the beginning of the answer.
    pub is_cut: bool,
}

/// What a client has of its answer when the answer ends.
#[derive(Clone, Copy)]
pub enum Arrival {
    /// All of it: it read the answer as it came, or needs no connection to find it.
    Complete,
    /// All of it, although the client had left before, or the run was stopped.
    CompleteAgain,
    /// Nothing yet: the answer is sent as a whole from now on, and [`repeats::arrive`] records that it was read.
    Pending,
}

/// Remembers what the client shows now, its answer included, so that its next request finds the conversation. The run
/// as it ended.
pub async fn record_answer(
    app: &App,
    principal: &Principal,
    (conversation, run): (ConversationId, RunId),
    question: &ClientQuestion,
    told: DeliveredEvents,
) -> Result<Run> {
    // A crash of Postgres within a second may forget what the client was told. The client's next message then begins a
    // conversation that takes the transcript over, as after an edit.
    let mut tx = app.db.tenant_unflushed(principal.tenant).await?;
    let key = question.place.key_of_answer(question, run);
    let DeliveredEvents {
        arrival, is_cut, ..
    } = told;
    let told = ToldAnswer {
        conversation,
        key: &key,
        event: told.event,
        only_if_last: told.is_late.then_some(told.last),
    };
    if !matches!(arrival, Arrival::Pending) {
        let is_back = matches!(arrival, Arrival::CompleteAgain);
        store::request_keys::mark_answered(&mut tx, conversation, run, is_back).await?;
    }
    if is_cut {
        store::approvals::forget_shown(&mut tx, run).await?;
    }
    let run = store::runs::record_told(&mut tx, &principal.user, run, &told).await?;
    tx.commit().await?;
    Ok(run)
}

/// By what the conversation of a question is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum QuestionPlace {
    /// The transcript is all that was said.
    #[default]
    Transcript,
    /// The transcript is what is new after the answer of a run.
    After {
        run: RunId,
        /// Held for that answer, too, or are new.
        instructions: Option<String>,
    },
    /// The transcript is what is new in the chat that the client names.
    Chat,
    /// The transcript is what is new in a conversation.
    Conversation {
        id: ConversationId,
        instructions: Option<String>,
    },
}

impl QuestionPlace {
    /// The key by which the next question finds the conversation when this one was answered by `run`.
    fn key_of_answer(&self, question: &ClientQuestion, run: RunId) -> String {
        match self {
            Self::Transcript => key_of(question.chat.as_deref(), &question.transcript),
            // The client shows more than this question has, so no transcript of it can be matched.
            Self::After { .. } | Self::Chat | Self::Conversation { .. } => format!("run:{run}"),
        }
    }
}

/// The conversation of a question, locked, and the last event that its client was told of; a new conversation with what
/// was said before when there is none. `earlier` is the transcript before what is asked.
async fn locate(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    question: &ClientQuestion,
    earlier: &Transcript,
) -> Result<(Tx, Conversation, i64)> {
    // A secret that the user typed earlier is masked on our side only, and the client shows it again.
    let secrets = if earlier.is_empty() {
        Scrubber::default()
    } else {
        credentials::scrubber(app, principal, pack).await?
    };
    let said = parts_of(earlier, &secrets);
    let mut tx = app.db.tenant(principal.tenant).await?;
    let (conversation, told) = match &question.place {
        QuestionPlace::Transcript => {
            let key = digest(question.chat.as_deref(), earlier);
            // A program's key may speak for many people. One of them is shown nothing that another one's chat holds and
            // does not show, such as results of tools. A chat that has an id of its own is one chat.
            let only_shown = principal.names_nobody() && question.chat.is_none();
            let (user, agent) = (&principal.user, pack.id());
            let found = find_or_insert(&mut tx, user, agent, &key, only_shown).await?;
            if found.is_new {
                take_over(&mut tx, found.conversation, said).await?
            } else {
                (found.conversation, found.told_event)
            }
        }
        QuestionPlace::After { run, instructions } => {
            let new = (instructions.as_ref(), said);
            follow(&mut tx, principal, pack, *run, new).await?
        }
        QuestionPlace::Conversation { id, instructions } => {
            let new = (instructions.as_ref(), said);
            go_on(&mut tx, principal, pack, *id, new).await?
        }
        QuestionPlace::Chat => {
            let chat = question.chat.as_deref().unwrap_or_default();
            let known = store::client_chats::place(&mut tx, &principal.user, chat).await?;
            let known = known.filter(|(conversation, _)| conversation.agent == *pack.id());
            match known {
                Some((mut conversation, told)) => {
                    conversation.last_event += import(&mut tx, conversation.id, said).await?;
                    (conversation, told)
                }
                None => begin(&mut tx, principal, pack, said).await?,
            }
        }
    };
    Ok((tx, conversation, told))
}

/// A new conversation with what was said before.
async fn begin(
    tx: &mut Tx,
    principal: &Principal,
    pack: &Pack,
    said: Vec<(Role, Vec<Part>)>,
) -> Result<(Conversation, i64)> {
    let conversation = conversations::open(tx, principal, pack, "", Some(NO_KEY)).await?;
    take_over(tx, conversation, said).await
}

/// Puts what was said before into a new conversation. Its client knows all of that.
async fn take_over(
    tx: &mut Tx,
    mut conversation: Conversation,
    said: Vec<(Role, Vec<Part>)>,
) -> Result<(Conversation, i64)> {
    conversation.last_event += import(tx, conversation.id, said).await?;
    let told = conversation.last_event;
    Ok((conversation, told))
}

/// The conversation of an answer. When it went on after that answer, a new one with all that was said until then.
async fn follow(
    tx: &mut Tx,
    principal: &Principal,
    pack: &Pack,
    run: RunId,
    (wanted, mut new): (Option<&String>, Vec<(Role, Vec<Part>)>),
) -> Result<(Conversation, i64)> {
    let place = store::responses::place(tx, &principal.user, run).await?;
    let AnsweredPlace {
        mut conversation,
        told,
        status,
        is_followed,
        instructions,
    } = place.ok_or_else(|| Error::not_found(Thing::Run(run)))?;
    if conversation.agent != *pack.id() {
        let reason = format!(
            "was answered by {:?}; use this as `model`",
            conversation.agent.as_str()
        );
        return Err(Error::invalid("previous_response_id", reason));
    }
    if !status.is_final() {
        let detail = "the previous response is not complete; wait for its end or cancel it";
        return Err(Error::conflict(
            ErrorCode::ConversationBusy,
            detail.to_owned(),
        ));
    }
    // Instructions hold for one response, and are said again only when they are others.
    if let Some(wanted) = wanted.filter(|wanted| instructions.as_ref() != Some(*wanted)) {
        new.insert(0, (Role::User, vec![instruction(wanted)]));
    }
    if !is_followed {
        conversation.last_event += import(tx, conversation.id, new).await?;
        return Ok((conversation, told));
    }
    let mut said = store::messages::until(tx, conversation.id, run, MOST_IMPORTED).await?;
    said.extend(new);
    begin(tx, principal, pack, said).await
}

/// A conversation of the user, whoever began it, with what is new.
async fn go_on(
    tx: &mut Tx,
    principal: &Principal,
    pack: &Pack,
    id: ConversationId,
    (instructions, mut new): (Option<&String>, Vec<(Role, Vec<Part>)>),
) -> Result<(Conversation, i64)> {
    let mut conversation = branches::lock_idle(tx, principal, id).await?;
    if conversation.agent != *pack.id() {
        let reason = format!(
            "belongs to {:?}; use this as `model`",
            conversation.agent.as_str()
        );
        return Err(Error::invalid("conversation", reason));
    }
    if let Some(text) = instructions {
        new.insert(0, (Role::User, vec![instruction(text)]));
    }
    let told = store::conversations::keyed::told_event(tx, id).await?;
    conversation.last_event += import(tx, id, new).await?;
    Ok((conversation, told))
}

fn instruction(text: &str) -> Part {
    Part::text(format!("[Instructions of the client]\n{text}").replace('\0', ""))
}

/// A transcript as messages, without the user's secrets. They are not verified: they are what the user claims.
fn parts_of(transcript: &Transcript, secrets: &Scrubber) -> Vec<(Role, Vec<Part>)> {
    let said = transcript.iter().filter_map(|(role, text)| {
        let clean = secrets.text(text);
        let text = clean.as_ref().unwrap_or(text);
        let (role, part) = match role {
            Role::Assistant => {
                let text = without_calls(text);
                (Role::Assistant, Part::text(text.replace('\0', "")))
            }
            Role::System => (Role::User, instruction(text)),
            Role::User | Role::Tool => (Role::User, Part::text(text.replace('\0', ""))),
        };
        (!text.trim().is_empty()).then(|| (role, vec![part]))
    });
    said.collect()
}

/// Imports earlier messages; returns how many.
async fn import(tx: &mut Tx, id: ConversationId, mut said: Vec<(Role, Vec<Part>)>) -> Result<i64> {
    said.drain(..said.len().saturating_sub(MOST_IMPORTED));
    if said.is_empty() {
        return Ok(0);
    }
    store::messages::import(tx, id, &said).await?;
    i64::try_from(said.len()).map_err(Error::internal)
}

/// The key of a conversation whose client shows this transcript: none unless it ends with an answer.
fn key_of(chat: Option<&str>, transcript: &Transcript) -> String {
    match transcript.last() {
        Some((Role::Assistant, answer)) if !without_calls(answer).trim().is_empty() => {
            digest(chat, transcript)
        }
        _ => NO_KEY.to_owned(),
    }
}

/// SHA-256 over the chat id and every message, in hex.
fn digest(chat: Option<&str>, transcript: &Transcript) -> String {
    let mut digest = Sha256::new();
    let mut add = |text: &str| {
        digest.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(text);
    };
    add(chat.unwrap_or_default());
    for (role, text) in transcript {
        add(match role {
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            Role::System => "system",
        });
        match role {
            Role::Assistant => add(paragraphs(without_calls(text).lines()).trim()),
            _ => add(text.trim()),
        }
    }
    hex::encode(digest.finalize())
}

/// A text without the tool calls that the program has shown in it.
fn without_calls(text: &str) -> Cow<'_, str> {
    if !text.contains(CALL_BOX) && !text.contains(CALL_LINE) {
        return Cow::Borrowed(text);
    }
    let (mut rest, mut said) = (text, String::new());
    while let Some((before, after)) = rest.split_once(CALL_BOX) {
        said.push_str(before);
        rest = after.split_once(CALL_BOX_END).map_or("", |(_, rest)| rest);
    }
    said.push_str(rest);
    let lines = said.lines().filter(|line| !line.starts_with(CALL_LINE));
    Cow::Owned(paragraphs(lines))
}

/// The paragraphs, a blank line apart.
fn paragraphs<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<_> = lines.map(str::trim_end).collect();
    let paragraphs = lines.split(|line| line.is_empty());
    let paragraphs = paragraphs.filter(|lines| !lines.is_empty());
    let paragraphs: Vec<_> = paragraphs.map(|lines| lines.join("\n")).collect();
    paragraphs.join("\n\n")
}
