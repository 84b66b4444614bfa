//! Conversations of clients that send the whole transcript each time (any OpenAI client). A digest of what
//! the client has shown so far finds our conversation again, with the tool calls that the client never
//! saw. A transcript that was edited or regenerated matches nothing and becomes a conversation of its own.

mod digest;
mod place;

use std::sync::Arc;

use serde_json::value::to_raw_value;

pub use self::place::QuestionPlace;
use self::{
    digest::{digest, key_of, without_calls},
    place::locate,
};
use super::{
    attachments,
    conversations::{self, ConversationStream, PostedMessage, UnwrittenMessage},
    prompt_answers::{AnswerCandidate, match_pending_prompt},
};
use crate::app::{App, runs::repeats, servers::agents};
use crate::{
    domain::{
        answer_format::AnswerFormat,
        error::{Error, ErrorCode, Result},
        event::Event,
        ids::{ConversationId, RunId},
        message::Role,
        pack::{Pack, Provider},
        principal::Principal,
        request_key::{KeyedRun, RequestKey},
        response::ResponseSettings,
        run::Run,
    },
    mcp::schemas,
    store::{self, Tx, client_chats::ChatAnswer, runs::ToldAnswer},
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
