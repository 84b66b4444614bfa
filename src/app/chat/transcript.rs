//! Conversations of clients that send the whole transcript with each question, as any OpenAI client does. A digest of
//! the transcript finds the conversation again, with the tool calls that the client has never seen. A transcript that
//! was edited or regenerated matches no conversation and becomes a conversation of its own.
//!
//! White space around a message does not count for the digest, because clients trim it. The tool calls that an answer
//! shows do not count either, because some clients do not send them back.
//!
//! Many chats begin alike: with the same system message, instructions or examples. Only an answer of the agent tells
//! them apart, so a conversation gets a digest only from a transcript that ends with an answer.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use serde_json::value::to_raw_value;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    attachments, branches,
    conversations::{self, ConversationStream, PostedMessage, UnwrittenMessage},
    prompt_answers::{AnswerCandidate, match_pending_prompt},
};
use crate::{
    app::{
        App,
        accounts::usage,
        platform::polls::POLL,
        runs::repeats,
        servers::{agents, credentials},
        tools::approvals::{self, InterruptResponse, PreparedAnswers, WrittenAnswers, notices},
    },
    live::LiveEvent,
};
use domain::{
    answer_format::AnswerFormat,
    command::ConsentCommand,
    error::{Error, ErrorCode, Missing, Result},
    event::{Event, EventKind},
    ids::{AgentId, ConversationId, RunId},
    message::{CALL_BOX, CALL_BOX_END, CALL_LINE, Part, Role},
    pack::{Pack, Provider},
    principal::Principal,
    request_key::{KeyedRun, RequestKey},
    response::ResponseSettings,
    run::{Conversation, Run},
    scrub::Scrubber,
};
use mcp::schemas;
use store::{
    Tx,
    client_chats::ChatAnswer,
    conversations::keyed::{NO_KEY, take_or_insert},
    responses::AnsweredPlace,
    runs::DeliveredAnswer,
};

/// A transcript as a client sends it, oldest first.
pub type Transcript = Vec<(Role, String)>;

/// The most messages of a transcript that are imported into a new conversation: the last ones. A model reads fewer.
const MOST_IMPORTED: usize = 200;
/// The most events that a client gets at once.
const MOST_UNREAD: i64 = 200;

/// A question that a client asks with its transcript.
#[derive(Clone)]
pub struct ClientQuestion {
    pub agent: String,
    /// The frontend's own id of the chat, if it has one.
    pub chat: Option<String>,
    /// The transcript. Its last message is the question.
    pub transcript: Transcript,
    /// The images and text files of the last message, each with its name.
    pub files: Vec<(String, Vec<u8>)>,
    /// The format that the answer must have, if it is not free text.
    pub format: Option<AnswerFormat>,
    /// The key that a request has when it is sent again.
    pub key: RequestKey,
    pub place: QuestionPlace,
    /// Whether the client may come back to the answer by the id of the chat.
    pub is_resumable: bool,
    /// Set when the answer can be read again by the id of the run.
    pub response: Option<ResponseSettings>,
    /// The client's answers to calls that wait in its chat. They are kept with the question, or not at all.
    pub responses: Vec<InterruptResponse>,
}

/// A question that was posted.
pub struct PostedQuestion {
    pub conversation: ConversationId,
    pub run: Run,
    /// Begins with the events since the client's last turn.
    pub listening: ConversationStream,
}

/// Finds the conversation of a transcript, posts its last message there as a new question, and listens for the answer.
pub async fn ask(
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
    let text = conversations::clean_message_text(&text)?;
    let pack = agents::pack(app, principal, &question.agent).await?;
    if let Some(format) = &question.format {
        check_format(&pack, format).await?;
    }
    // An answer with a format is nothing but the answer, and a command about requests shows them itself.
    let command = ConsentCommand::read(&text);
    if let (Some(_), [response, ..]) = (&command, &*question.responses) {
        return Err(approvals::answered_twice(&response.interrupt));
    }
    let reader = if question.format.is_none() && command.is_none() {
        notices::reader(app, principal).await?
    } else {
        None
    };
    let answers = prepare_responses(app, principal, question).await?;
    let mut located = locate(app, principal, &pack, question, &transcript, &answers).await?;
    let earlier = &located.found.conversation;
    let mut answer = None;
    // A prompt is an event, so a conversation without events has no open prompt.
    if question.files.is_empty()
        && earlier.last_event > 0
        && store::conversations::awaits_answer(&mut located.tx, earlier.id).await?
    {
        // The transaction ends here, because matching an answer needs transactions of its own.
        let conversation = earlier.id;
        drop(located.tx);
        let candidate = AnswerCandidate {
            principal,
            pack: &pack,
            conversation,
            text: &text,
            field: None,
        };
        answer = match_pending_prompt(app, &candidate).await?;
        located = locate(app, principal, &pack, question, &transcript, &answers).await?;
    }
    let LocatedQuestion {
        mut tx,
        answers,
        found,
    } = located;
    let FoundConversation {
        mut conversation,
        delivered,
    } = found;
    if let Some(reader) = &reader
        && notices::append_untold(app, &mut tx, reader, conversation.id).await?
    {
        conversation.last_event += 1;
    }
    let mut attachments = Vec::new();
    for (name, data) in &question.files {
        attachments
            .push(attachments::insert(app, &mut tx, principal, &conversation, name, data).await?);
    }
    let message = UnwrittenMessage {
        conversation: &conversation,
        text: &text,
        attachments: &attachments,
        answer: answer.as_ref(),
        format: question.format.as_ref(),
    };
    let post = conversations::append_user_message(app, &mut tx, principal, message).await?;
    remember_question(
        app,
        &mut tx,
        principal,
        question,
        (post.posted(), delivered),
    )
    .await?;
    // Listen before the commit, so that no announcement is missed.
    let listening = ConversationStream::new(app, principal, conversation.id, delivered)
        .with_rows(delivered < conversation.last_event);
    tx.commit().await?;
    answers.publish(app);
    Ok(PostedQuestion {
        conversation: conversation.id,
        run: post.publish(app, principal).run,
        listening,
    })
}

/// Prepares the client's answers to calls that wait in its chat.
async fn prepare_responses(
    app: &Arc<App>,
    principal: &Principal,
    question: &ClientQuestion,
) -> Result<PreparedAnswers> {
    let chat = question.chat.as_ref();
    let conversation = match chat.filter(|_| !question.responses.is_empty()) {
        Some(chat) => find_conversation(app, principal, chat).await?,
        None => None,
    };
    approvals::prepare_answers(app, principal, conversation, &question.responses).await
}

/// Refuses a format that no answer of the agent can have.
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

/// Stores the ways in which the client may find the question again: its key, its response, its chat.
async fn remember_question(
    app: &App,
    tx: &mut Tx,
    principal: &Principal,
    question: &ClientQuestion,
    (posted, delivered): (&PostedMessage, i64),
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
        first_event: delivered,
    });
    repeats::remember_answer(tx, principal, Some(&question.key), begun, answer).await?;
    if let Some(settings) = &question.response {
        // Instructions may be as long as a history.
        let bytes = serde_json::to_string(settings)
            .map_err(Error::internal)?
            .len();
        usage::require_space(app, tx, principal, bytes).await?;
        let agent = AgentId::parse(&question.agent).map_err(|why| Error::invalid("model", why))?;
        let counted = i64::try_from(bytes).map_err(Error::internal)?;
        store::usage::add_stored(tx, &principal.user, &agent, counted).await?;
        store::responses::insert(tx, run.conversation_id, run.id, delivered, settings).await?;
    }
    Ok(())
}

/// Listens to the answer of a run that an earlier request began: to the events after a number, or from the run's first
/// message on.
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
        None => store::messages::get_opening_event(&mut tx, conversation, run).await? - 1,
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

/// Listens from its beginning to the answer for which the client of a chat waits. Also returns how often the client has
/// come back to it. `None` when the answer has ended.
pub async fn resume_stream(
    app: &Arc<App>,
    principal: &Principal,
    chat: &str,
) -> Result<Option<(PostedQuestion, i32)>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let open = store::client_chats::resume(&mut tx, &principal.user, chat).await?;
    let Some(open) = open else { return Ok(None) };
    tx.commit().await?;
    let (conversation, after) = (open.conversation, Some(open.first_event));
    let posted = reopen_stream(app, principal, conversation, open.run, after).await?;
    Ok(Some((posted, open.repeats)))
}

/// The events of a chat since its client's last turn.
pub struct UnreadEvents {
    pub conversation: ConversationId,
    pub events: Vec<Event>,
}

/// Reads the events that the client of a chat has not got yet; only the first ones when there are many.
pub async fn unread(app: &App, principal: &Principal, chat: &str) -> Result<UnreadEvents> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let found = store::client_chats::lock_conversation(&mut tx, &principal.user, chat).await?;
    let (conversation, delivered) = found.ok_or_else(|| Error::not_found("this thread"))?;
    let events =
        store::messages::list_events(&mut tx, conversation.id, delivered, MOST_UNREAD).await?;
    Ok(UnreadEvents {
        conversation: conversation.id,
        events,
    })
}

/// The conversation of a client's chat, if it has begun.
pub async fn find_conversation(
    app: &App,
    principal: &Principal,
    chat: &str,
) -> Result<Option<ConversationId>> {
    match unread(app, principal, chat).await {
        Ok(unread) => Ok(Some(unread.conversation)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl UnreadEvents {
    /// The event that began the first report whose run has not ended.
    pub fn first_open_report(&self) -> Option<i64> {
        let mut open = HashMap::new();
        for event in &self.events {
            match &event.kind {
                EventKind::Message(message) if message.role == Role::System => {
                    let is_outcome = |part: &Part| {
                        matches!(
                            part,
                            Part::Approval(_) | Part::AgentCallback(_) | Part::CallOutcome(_)
                        )
                    };
                    if let Some(run) = message
                        .run_id
                        .filter(|_| message.parts.iter().any(is_outcome))
                    {
                        open.entry(run).or_insert(event.seq);
                    }
                }
                EventKind::Run { run_id, status, .. } if status.is_final() => {
                    open.remove(run_id);
                }
                _ => {}
            }
        }
        open.into_values().min()
    }
}

/// Like [`unread`], after the runs that report an outcome have ended, but no later than the settings say that an answer
/// waits for a run.
pub async fn await_reports(app: &App, principal: &Principal, chat: &str) -> Result<UnreadEvents> {
    let conversation = unread(app, principal, chat).await?.conversation;
    // Listen before the read that counts, so that no event is missed in between.
    let mut listener = app.live.listen(principal.tenant, conversation);
    let until = Instant::now() + app.config.run_wait;
    loop {
        let unread = unread(app, principal, chat).await?;
        if unread.first_open_report().is_none() {
            return Ok(unread);
        }
        let next_durable =
            async { while let LiveEvent::Transient { .. } = listener.next().await {} };
        tokio::select! {
            () = next_durable => {}
            () = sleep(POLL) => {}
            () = sleep_until(until) => return Ok(unread),
            () = app.shutdown.cancelled() => return Ok(unread),
        }
    }
}

/// Records that the client of a chat shows this transcript, and has got the events up to number `delivered`.
pub async fn record_delivered_events(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    chat: &str,
    transcript: &Transcript,
    delivered: i64,
) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let key = key_of(Some(chat), transcript);
    store::conversations::keyed::set_external_key(&mut tx, conversation, &key, delivered).await?;
    tx.commit().await
}

/// The events that a client has got with an answer.
#[derive(Clone, Copy)]
pub struct DeliveredEvents {
    /// The last event that the client has got.
    pub event: i64,
    /// The last event of the conversation when the answer ended.
    pub last: i64,
    /// Whether the client asked for an old answer: then the conversation may have gone on since.
    pub is_late: bool,
    pub arrival: Arrival,
    /// Whether the client wanted only the beginning of the answer.
    pub is_cut: bool,
}

/// How much of its answer a client has when the answer ends.
#[derive(Clone, Copy)]
pub enum Arrival {
    /// All of it: the client read the answer as it came, or needs no connection to find it.
    Complete,
    /// All of it, although the client had left before, or the run was stopped.
    CompleteAgain,
    /// Nothing yet: the answer is sent as a whole from now on, and [`repeats::arrive`] records that it was read.
    Pending,
}

/// Records the transcript that the client shows now, including the answer, so that its next request finds the
/// conversation. Returns the run as it ended.
pub async fn record_answer(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    run: RunId,
    question: &ClientQuestion,
    delivered: DeliveredEvents,
) -> Result<Run> {
    // A crash of Postgres within a second may lose this record. The client's next message then begins a new
    // conversation with the transcript, as after an edit.
    let mut tx = app.db.tenant_unflushed(principal.tenant).await?;
    let key = question.place.key_of_answer(question, run);
    let answer = DeliveredAnswer {
        conversation,
        key: &key,
        event: delivered.event,
        only_if_last: delivered.is_late.then_some(delivered.last),
    };
    if !matches!(delivered.arrival, Arrival::Pending) {
        let is_back = matches!(delivered.arrival, Arrival::CompleteAgain);
        store::request_keys::mark_answered(&mut tx, conversation, run, is_back).await?;
    }
    if delivered.is_cut {
        store::approvals::forget_shown(&mut tx, run).await?;
    }
    let run = store::runs::record_delivery(&mut tx, &principal.user, run, &answer).await?;
    tx.commit().await?;
    Ok(run)
}

/// How the conversation of a question is found, and which part of it the transcript is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum QuestionPlace {
    /// By the transcript, which is the whole conversation.
    #[default]
    Transcript,
    /// By the run of an answer. The transcript holds the messages after that answer.
    After {
        run: RunId,
        /// The instructions for this answer. They may be those of the answer before.
        instructions: Option<String>,
    },
    /// By the client's id of the chat. The transcript holds the new messages.
    Chat,
    /// By the id of the conversation. The transcript holds the new messages.
    Conversation {
        id: ConversationId,
        instructions: Option<String>,
    },
}

impl QuestionPlace {
    /// The key by which the next question finds the conversation, once `run` has answered this question.
    fn key_of_answer(&self, question: &ClientQuestion, run: RunId) -> String {
        match self {
            Self::Transcript => key_of(question.chat.as_deref(), &question.transcript),
            // The client's transcript is longer than this question's, so no digest of this one could match it.
            Self::After { .. } | Self::Chat | Self::Conversation { .. } => format!("run:{run}"),
        }
    }
}

/// The conversation that was found or begun for a question.
struct FoundConversation {
    conversation: Conversation,
    /// The number of the last event that the client has got.
    delivered: i64,
}

/// The conversation of a question, locked in the transaction of the question.
struct LocatedQuestion {
    tx: Tx,
    /// The client's answers to calls that wait.
    answers: WrittenAnswers,
    found: FoundConversation,
}

/// Begins the transaction of a question: writes the client's answers to calls that wait, because requests are locked before
/// conversations, and finds and locks the conversation of the question. If there is none, begins one with the messages
/// before the question, which are `earlier`.
async fn locate(
    app: &Arc<App>,
    principal: &Principal,
    pack: &Pack,
    question: &ClientQuestion,
    earlier: &Transcript,
    answers: &PreparedAnswers,
) -> Result<LocatedQuestion> {
    // The stored message masks a secret that the user typed earlier, but the client's transcript still has the secret.
    let secrets = if earlier.is_empty() {
        Scrubber::default()
    } else {
        credentials::scrubber(app, principal, pack).await?
    };
    let messages = parts_of(earlier, &secrets);
    let mut tx = app.db.tenant(principal.tenant).await?;
    let answers = answers.write(app, &mut tx).await?;
    let found = match &question.place {
        QuestionPlace::Transcript => {
            let key = digest(question.chat.as_deref(), earlier);
            // A program's key may speak for many people, whose transcripts may be equal. So under such a key, only a
            // conversation is found that holds no more than its client shows: no results of tools, for example. A chat
            // with an id of its own is not shared.
            let only_shown = principal.names_nobody() && question.chat.is_none();
            let (user, agent) = (&principal.user, pack.id());
            let found = take_or_insert(&mut tx, user, agent, &key, only_shown).await?;
            if found.is_new {
                fill_new(app, &mut tx, principal, found.conversation, messages).await?
            } else {
                FoundConversation {
                    conversation: found.conversation,
                    delivered: found.delivered_event,
                }
            }
        }
        QuestionPlace::After { run, instructions } => {
            let instructions = instructions.as_ref();
            let place = (*run, instructions);
            continue_after(app, &mut tx, principal, pack, place, messages).await?
        }
        QuestionPlace::Conversation { id, instructions } => {
            let instructions = instructions.as_ref();
            let place = (*id, instructions);
            continue_in(app, &mut tx, principal, pack, place, messages).await?
        }
        QuestionPlace::Chat => {
            let chat = question.chat.as_deref().unwrap_or_default();
            let known =
                store::client_chats::lock_conversation(&mut tx, &principal.user, chat).await?;
            let known = known.filter(|(conversation, _)| conversation.agent == *pack.id());
            match known {
                Some((mut conversation, delivered)) => {
                    import(app, &mut tx, principal, &mut conversation, messages).await?;
                    FoundConversation {
                        conversation,
                        delivered,
                    }
                }
                None => begin(app, &mut tx, principal, pack, messages).await?,
            }
        }
    };
    Ok(LocatedQuestion { tx, answers, found })
}

/// Begins a new conversation with earlier messages.
async fn begin(
    app: &App,
    tx: &mut Tx,
    principal: &Principal,
    pack: &Pack,
    messages: Vec<(Role, Vec<Part>)>,
) -> Result<FoundConversation> {
    let conversation = conversations::insert(tx, principal, pack, "", Some(NO_KEY)).await?;
    fill_new(app, tx, principal, conversation, messages).await
}

/// Imports earlier messages into a new conversation. The client knows all of them.
async fn fill_new(
    app: &App,
    tx: &mut Tx,
    principal: &Principal,
    mut conversation: Conversation,
    messages: Vec<(Role, Vec<Part>)>,
) -> Result<FoundConversation> {
    import(app, tx, principal, &mut conversation, messages).await?;
    Ok(FoundConversation {
        delivered: conversation.last_event,
        conversation,
    })
}

/// Continues the conversation of an answer with new messages. If the conversation went on after that answer, begins a
/// new one with all messages up to the answer.
async fn continue_after(
    app: &App,
    tx: &mut Tx,
    principal: &Principal,
    pack: &Pack,
    (run, wanted): (RunId, Option<&String>),
    mut new: Vec<(Role, Vec<Part>)>,
) -> Result<FoundConversation> {
    let place = store::responses::lock_conversation(tx, &principal.user, run).await?;
    let AnsweredPlace {
        mut conversation,
        delivered_event,
        status,
        is_followed,
        instructions,
    } = place.ok_or_else(|| Error::not_found(Missing::Run(run)))?;
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
    // Instructions hold for one response. They are written only if they differ from those of the response before.
    if let Some(wanted) = wanted.filter(|wanted| instructions.as_ref() != Some(*wanted)) {
        new.insert(0, (Role::User, vec![instruction(wanted)]));
    }
    if !is_followed {
        import(app, tx, principal, &mut conversation, new).await?;
        return Ok(FoundConversation {
            conversation,
            delivered: delivered_event,
        });
    }
    let mut messages =
        store::messages::list_until_run(tx, conversation.id, run, MOST_IMPORTED).await?;
    messages.extend(new);
    begin(app, tx, principal, pack, messages).await
}

/// Continues a conversation of the user with new messages, whichever client began it.
async fn continue_in(
    app: &App,
    tx: &mut Tx,
    principal: &Principal,
    pack: &Pack,
    (id, instructions): (ConversationId, Option<&String>),
    mut new: Vec<(Role, Vec<Part>)>,
) -> Result<FoundConversation> {
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
    let delivered = store::conversations::keyed::get_delivered_event(tx, id).await?;
    import(app, tx, principal, &mut conversation, new).await?;
    Ok(FoundConversation {
        conversation,
        delivered,
    })
}

fn instruction(text: &str) -> Part {
    Part::text(format!("[Instructions of the client]\n{text}").replace('\0', ""))
}

/// A transcript as messages, without the user's secrets. The program cannot verify the messages: they are what the
/// client claims.
fn parts_of(transcript: &Transcript, secrets: &Scrubber) -> Vec<(Role, Vec<Part>)> {
    let messages = transcript.iter().filter_map(|(role, text)| {
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
    messages.collect()
}

/// Imports the last of the earlier messages. They count like any message that is stored, whoever has written them.
async fn import(
    app: &App,
    tx: &mut Tx,
    principal: &Principal,
    conversation: &mut Conversation,
    mut messages: Vec<(Role, Vec<Part>)>,
) -> Result<()> {
    messages.drain(..messages.len().saturating_sub(MOST_IMPORTED));
    if messages.is_empty() {
        return Ok(());
    }
    let written = messages.iter().map(|(role, parts)| {
        let parts = serde_json::to_string(parts).map_err(Error::internal)?;
        Ok((*role, parts))
    });
    let written: Vec<(Role, String)> = written.collect::<Result<_>>()?;
    let bytes = store::messages::measure_import(&written);
    usage::require_space(app, tx, principal, bytes).await?;
    store::messages::import(tx, &principal.user, conversation, &written).await?;
    conversation.last_event += i64::try_from(written.len()).map_err(Error::internal)?;
    Ok(())
}

/// The key of a conversation whose client shows this transcript: none unless the transcript ends with an answer.
fn key_of(chat: Option<&str>, transcript: &Transcript) -> String {
    match transcript.last() {
        Some((Role::Assistant, answer)) if !without_calls(answer).trim().is_empty() => {
            digest(chat, transcript)
        }
        _ => NO_KEY.to_owned(),
    }
}

/// The digest that identifies a transcript: SHA-256 over the id of the chat and every message, in hex.
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

/// A text without the tool calls that the program has written into it.
fn without_calls(text: &str) -> Cow<'_, str> {
    if !text.contains(CALL_BOX) && !text.contains(CALL_LINE) {
        return Cow::Borrowed(text);
    }
    let (mut rest, mut kept) = (text, String::new());
    while let Some((before, after)) = rest.split_once(CALL_BOX) {
        kept.push_str(before);
        rest = after.split_once(CALL_BOX_END).map_or("", |(_, rest)| rest);
    }
    kept.push_str(rest);
    let lines = kept.lines().filter(|line| !line.starts_with(CALL_LINE));
    Cow::Owned(paragraphs(lines))
}

/// The paragraphs of a text, with one blank line between two.
fn paragraphs<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<_> = lines.map(str::trim_end).collect();
    let paragraphs = lines.split(|line| line.is_empty());
    let paragraphs = paragraphs.filter(|lines| !lines.is_empty());
    let paragraphs: Vec<_> = paragraphs.map(|lines| lines.join("\n")).collect();
    paragraphs.join("\n\n")
}
