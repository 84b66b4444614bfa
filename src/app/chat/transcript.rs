//! Conversations of clients that send the whole transcript each time (any OpenAI client). A digest of what
//! the client has shown so far finds our conversation again, with the tool calls that the client never
//! saw. A transcript that was edited or regenerated matches nothing and becomes a conversation of its own.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{
    conversations::{self, Listening, Posted},
    prompt_answers::{Matching, match_pending_prompt},
};
use crate::app::{App, servers::agents};
use crate::{
    domain::{
        error::{Error, Result},
        ids::{ConversationId, RunId},
        message::{Part, Role},
        pack::Pack,
        principal::Principal,
        run::{Conversation, Run},
    },
    store::{self, Tx, messages::NewMessage},
};

/// A transcript as a client sends it, oldest first.
pub type Transcript = Vec<(Role, String)>;

/// Posts the last message of a transcript where it belongs, and listens for the answer.
/// `chat`: the frontend's own id of the chat, when it names one.
pub async fn resume(
    app: &Arc<App>,
    principal: &Principal,
    agent: &str,
    chat: Option<&str>,
    mut transcript: Transcript,
) -> Result<(Conversation, Posted, Listening)> {
    let Some((Role::User, text)) = transcript.pop() else {
        return Err(Error::invalid(
            "messages",
            "the last message must be one of the user",
        ));
    };
    let text = conversations::checked(&text)?;
    let pack = agents::pack(app, principal, agent).await?;
    let key = key(chat, &transcript);
    let place = (&*pack, key.as_str(), &transcript);
    let (mut tx, mut conversation) = locate(app, principal, place).await?;
    let mut answer = None;
    if store::conversations::awaits_answer(&mut tx, conversation.id).await? {
        // Matching an answer takes transactions of its own. The conversation is not a new one, which awaits nothing.
        drop(tx);
        let matching = Matching {
            principal,
            pack: &pack,
            conversation: conversation.id,
            text: &text,
            field: None,
        };
        answer = match_pending_prompt(app, &matching).await?;
        (tx, conversation) = locate(app, principal, place).await?;
    }
    let post = conversations::say(
        app,
        &mut tx,
        principal,
        &conversation,
        &text,
        answer.as_ref(),
    )
    .await?;
    // Before the commit, so that nothing is announced that this listener does not hear.
    let listening = Listening::new(app, principal, conversation.id, conversation.last_event);
    tx.commit().await?;
    let posted = post.publish(app, principal);
    Ok((conversation, posted, listening))
}

/// The conversation that a key belongs to, locked; a new one with what was said before when there is none.
async fn locate(
    app: &App,
    principal: &Principal,
    (pack, key, transcript): (&Pack, &str, &Transcript),
) -> Result<(Tx, Conversation)> {
    let (tenant, user) = (principal.tenant, &principal.user);
    let mut tx = app.db.tenant(tenant).await?;
    let known = store::conversations::by_external_key(&mut tx, user, pack.id(), key).await?;
    if let Some(conversation) = known {
        return Ok((tx, conversation));
    }
    let mut conversation = conversations::open(&mut tx, principal, pack, "", Some(key)).await?;
    conversation.last_event += import(&mut tx, principal, conversation.id, transcript).await?;
    Ok((tx, conversation))
}

/// Remembers what the client shows now, its answer included, so that its next request finds the conversation. The run as
/// it ended.
pub async fn answered(
    app: &App,
    principal: &Principal,
    (conversation, run): (ConversationId, RunId),
    chat: Option<&str>,
    transcript: &Transcript,
) -> Result<Run> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::conversations::set_external_key(&mut tx, conversation, &key(chat, transcript)).await?;
    let run = store::runs::get(&mut tx, &principal.user, run).await?;
    tx.commit().await?;
    Ok(run)
}

/// SHA-256 over the chat id and every message, in hex. Space around a message does not count: clients trim.
fn key(chat: Option<&str>, transcript: &Transcript) -> String {
    let mut digest = Sha256::new();
    let mut add = |text: &str| {
        digest.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(text);
    };
    add(chat.unwrap_or_default());
    if transcript.is_empty() && chat.is_none() {
        // Every new chat begins like this one; they must not meet.
        add(&uuid::Uuid::now_v7().to_string());
    }
    for (role, text) in transcript {
        add(match role {
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            Role::System => "system",
        });
        add(text.trim());
    }
    hex::encode(digest.finalize())
}

/// Takes over what the client says was said before; how many messages. Nothing of it was checked by us: it is the
/// user's word.
async fn import(
    tx: &mut Tx,
    principal: &Principal,
    id: ConversationId,
    transcript: &Transcript,
) -> Result<i64> {
    let mut imported = 0;
    for (role, text) in transcript
        .iter()
        .filter(|(_, text)| !text.trim().is_empty())
    {
        let (role, text) = match role {
            Role::Assistant => (Role::Assistant, text.clone()),
            Role::System => (Role::User, format!("[Instructions of the client]\n{text}")),
            Role::User | Role::Tool => (Role::User, text.clone()),
        };
        let parts = [Part::text(text.replace('\0', ""))];
        let message = NewMessage {
            run: None,
            run_ordinal: 0,
            role,
            parts: &parts,
            for_model: true,
        };
        store::messages::append(tx, principal.tenant, id, message).await?;
        imported += 1;
    }
    Ok(imported)
}
