//! Conversations of clients that send the whole transcript each time (any OpenAI client). A digest of what
//! the client has shown so far finds our conversation again, with the tool calls that the client never
//! saw. A transcript that was edited or regenerated matches nothing and becomes a conversation of its own.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::app::chat::conversations::{self, Listening, Posted};
use crate::app::{App, servers::agents};
use crate::{
    domain::{
        error::{Error, Result},
        ids::ConversationId,
        message::{Part, Role},
        principal::Principal,
        run::Conversation,
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
    let mut tx = app.db.tenant(principal.tenant).await?;
    let key = key(chat, &transcript);
    let known =
        store::conversations::by_external_key(&mut tx, &principal.user, pack.id(), &key).await?;
    drop(tx);
    let caught = match &known {
        Some(known) => conversations::catch(app, principal, &pack, known.id, &text, None).await?,
        None => None,
    };
    let mut tx = app.db.tenant(principal.tenant).await?;
    let known =
        store::conversations::by_external_key(&mut tx, &principal.user, pack.id(), &key).await?;
    let conversation = match known {
        Some(conversation) => conversation,
        None => {
            let conversation =
                conversations::open(&mut tx, principal, &pack, "", Some(&key)).await?;
            import(&mut tx, principal, conversation.id, &transcript).await?;
            store::conversations::get(&mut tx, &principal.user, conversation.id, true).await?
        }
    };
    let said = conversations::say(
        app,
        &mut tx,
        principal,
        &conversation,
        &text,
        caught.as_ref(),
    )
    .await?;
    tx.commit().await?;
    let listening = conversations::listen(
        app,
        principal,
        conversation.id,
        Some(conversation.last_event),
    )
    .await?;
    let posted = said.publish(app, principal);
    Ok((conversation, posted, listening))
}

/// Remembers what the client shows now, its answer included, so that its next request finds the
/// conversation.
pub async fn answered(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    chat: Option<&str>,
    transcript: &Transcript,
) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::conversations::set_external_key(&mut tx, conversation, &key(chat, transcript)).await?;
    tx.commit().await
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

/// Takes over what the client says was said before. Nothing of it was checked by us: it is the user's word.
async fn import(
    tx: &mut Tx,
    principal: &Principal,
    id: ConversationId,
    transcript: &Transcript,
) -> Result<()> {
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
    }
    Ok(())
}
