//! Conversations of clients that send the whole transcript each time (any OpenAI client). A digest of what
//! the client has shown so far finds our conversation again, with the tool calls that the client never
//! saw. A transcript that was edited or regenerated matches nothing and becomes a conversation of its own.

mod digest;

use std::sync::Arc;

use self::digest::{digest, without_calls};
use super::{
    attachments,
    conversations::{self, ConversationStream, PostedMessage},
    prompt_answers::{AnswerCandidate, match_pending_prompt},
};
use crate::app::{App, runs::repeats, servers::agents};
use crate::{
    domain::{
        error::{Error, Result},
        ids::{ConversationId, RunId},
        message::{Part, Role},
        pack::Pack,
        principal::Principal,
        request_key::{KeyedRun, RequestKey},
        run::{Conversation, Run},
    },
    store::{self, Tx},
};

/// A transcript as a client sends it, oldest first.
pub type Transcript = Vec<(Role, String)>;

/// Messages that are taken over from a transcript: the last ones. A model reads fewer.
const MOST_IMPORTED: usize = 200;

/// What a client asks.
#[derive(Clone)]
pub struct ClientQuestion {
    pub agent: String,
    /// The frontend's own id of the chat, when it names one.
    pub chat: Option<String>,
    pub transcript: Transcript,
    /// The images in its last message: what to call each, and its content.
    pub images: Vec<(String, Vec<u8>)>,
    /// The request may be sent again.
    pub key: Option<RequestKey>,
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
    let key = digest(question.chat.as_deref(), &transcript);
    let place = (&*pack, key.as_str(), &transcript);
    let (mut tx, mut conversation, mut told) = locate(app, principal, place).await?;
    let mut answer = None;
    if store::conversations::awaits_answer(&mut tx, conversation.id).await? {
        // Matching an answer takes transactions of its own. The conversation is not a new one, which awaits nothing.
        drop(tx);
        let matching = AnswerCandidate {
            principal,
            pack: &pack,
            conversation: conversation.id,
            text: &text,
            field: None,
        };
        answer = match_pending_prompt(app, &matching).await?;
        (tx, conversation, told) = locate(app, principal, place).await?;
    }
    let mut attachments = Vec::new();
    for (name, data) in &question.images {
        attachments.push(attachments::keep(&mut tx, conversation.id, name, data).await?);
    }
    let post = conversations::append_user_message(
        app,
        &mut tx,
        principal,
        &conversation,
        (&text, &attachments),
        answer.as_ref(),
    )
    .await?;
    let PostedMessage { message, run } = post.posted();
    let begun = KeyedRun {
        conversation: conversation.id,
        run: Some(run.id),
        message: Some(message.id),
        repeats: 0,
    };
    repeats::remember(&mut tx, principal, question.key.as_ref(), begun).await?;
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

/// Listens to the answer of a run that an earlier request began, from its first message on.
pub async fn reopen_stream(
    app: &Arc<App>,
    principal: &Principal,
    conversation: ConversationId,
    run: RunId,
) -> Result<PostedQuestion> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let opening = store::messages::opening_event(&mut tx, conversation, run).await?;
    let run = store::runs::get(&mut tx, &principal.user, run).await?;
    drop(tx);
    let listening = conversations::listen(app, principal, conversation, Some(opening - 1)).await?;
    Ok(PostedQuestion {
        conversation,
        run,
        listening,
    })
}

/// The conversation that a key belongs to, locked, and the last event that its client was told of; a new conversation
/// with what was said before when there is none.
async fn locate(
    app: &App,
    principal: &Principal,
    (pack, key, transcript): (&Pack, &str, &Transcript),
) -> Result<(Tx, Conversation, i64)> {
    let (tenant, user) = (principal.tenant, &principal.user);
    let mut tx = app.db.tenant(tenant).await?;
    let known = store::conversations::by_external_key(&mut tx, user, pack.id(), key).await?;
    if let Some((conversation, told)) = known {
        return Ok((tx, conversation, told));
    }
    let mut conversation = conversations::open(&mut tx, principal, pack, "", Some(key)).await?;
    conversation.last_event += import(&mut tx, conversation.id, transcript).await?;
    let told = conversation.last_event;
    Ok((tx, conversation, told))
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
    let mut tx = app.db.tenant(principal.tenant).await?;
    let key = digest(question.chat.as_deref(), &question.transcript);
    let only_if_last = told.is_late.then_some(told.last);
    store::conversations::set_external_key(&mut tx, conversation, &key, told.event, only_if_last)
        .await?;
    let run = store::runs::get(&mut tx, &principal.user, run).await?;
    tx.commit().await?;
    Ok(run)
}

/// Imports the earlier messages of the client's transcript; returns how many. They are not verified: they
/// are what the user claims.
async fn import(tx: &mut Tx, id: ConversationId, transcript: &Transcript) -> Result<i64> {
    let said = transcript.iter().filter_map(|(role, text)| {
        let (role, text) = match role {
            Role::Assistant => (Role::Assistant, without_calls(text).into_owned()),
            Role::System => (Role::User, format!("[Instructions of the client]\n{text}")),
            Role::User | Role::Tool => (Role::User, text.clone()),
        };
        let parts = vec![Part::text(text.replace('\0', ""))];
        (!text.trim().is_empty()).then_some((role, parts))
    });
    let mut said: Vec<_> = said.collect();
    said.drain(..said.len().saturating_sub(MOST_IMPORTED));
    if said.is_empty() {
        return Ok(0);
    }
    store::messages::import(tx, id, &said).await?;
    i64::try_from(said.len()).map_err(Error::internal)
}
