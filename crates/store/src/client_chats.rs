//! Rows of chats that clients name themselves: the conversation of each chat, and the run that answers last.

use super::{Tx, conversations};
use domain::{
    error::Result,
    ids::{ConversationId, RunId, UserId},
    run::Conversation,
};

/// The place of an answer in a chat that its client names.
#[derive(Clone, Copy, Debug)]
pub struct ChatAnswer<'a> {
    pub chat: &'a str,
    pub conversation: ConversationId,
    pub run: RunId,
    /// The answer begins after this event.
    pub first_event: i64,
}

/// Records the place of an answer in a chat. [`super::request_keys::insert`] does so together with a key.
pub async fn put(tx: &mut Tx, user: &UserId, answer: ChatAnswer<'_>) -> Result<()> {
    sqlx::query!(
        "insert into client_chats (tenant_id, id, user_id, chat, conversation_id, run_id, first_event, updated_at)
         values ($1, $2, $3, $4, $5, $6, $7, now())
         on conflict (tenant_id, user_id, chat) do update
         set conversation_id = excluded.conversation_id, run_id = excluded.run_id,
             first_event = excluded.first_event, repeats = 0, updated_at = excluded.updated_at",
        tx.tenant()?.0,
        uuid::Uuid::now_v7(),
        user.as_str(),
        answer.chat,
        answer.conversation.0,
        answer.run.0,
        answer.first_event,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Locks the conversation of a chat. Returns it with the last event that the client received.
pub async fn lock_conversation(
    tx: &mut Tx,
    user: &UserId,
    chat: &str,
) -> Result<Option<(Conversation, i64)>> {
    let found = sqlx::query_scalar!(
        r#"select conversation_id as "id: ConversationId" from client_chats
           where tenant_id = $1 and user_id = $2 and chat = $3"#,
        tx.tenant()?.0,
        user.as_str(),
        chat,
    )
    .fetch_optional(tx.conn())
    .await?;
    let Some(id) = found else {
        return Ok(None);
    };
    let conversation = conversations::get(tx, user, id, true).await?;
    let delivered = conversations::keyed::get_delivered_event(tx, id).await?;
    Ok(Some((conversation, delivered)))
}

/// An answer whose run has not ended.
pub struct OpenAnswer {
    pub conversation: ConversationId,
    pub run: RunId,
    pub first_event: i64,
    /// How often the client has asked for it again.
    pub repeats: i32,
}

/// Finds the answer in a chat whose run has not ended, and counts that the client asked for it again.
pub async fn resume(tx: &mut Tx, user: &UserId, chat: &str) -> Result<Option<OpenAnswer>> {
    let answer = sqlx::query_as!(
        OpenAnswer,
        r#"update client_chats c set repeats = repeats + 1
         where tenant_id = $1 and user_id = $2 and chat = $3
           and exists (select 1 from runs r
                       where r.tenant_id = $1 and r.id = c.run_id and r.status in ('queued', 'running'))
         returning conversation_id as "conversation: _", run_id as "run: _", first_event, repeats"#,
        tx.tenant()?.0,
        user.as_str(),
        chat,
    );
    Ok(answer.fetch_optional(tx.conn()).await?)
}
