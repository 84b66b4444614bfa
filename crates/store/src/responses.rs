//! Rows of responses: answers that a client can read again and continue, by the id of their run.

use sqlx::types::Json;

use super::{Tx, conversations, runs};
use domain::{
    error::{Error, Result},
    ids::{AgentId, ConversationId, RunId, UserId},
    response::{ResponseSettings, StoredResponse},
    run::{Conversation, RunStatus},
};

/// Records a response. Its answer begins after the event `first_event` of the conversation.
pub async fn insert(
    tx: &mut Tx,
    conversation: ConversationId,
    run: RunId,
    first_event: i64,
    settings: &ResponseSettings,
) -> Result<()> {
    sqlx::query!(
        "insert into responses (tenant_id, id, conversation_id, first_event, settings)
         values ($1, $2, $3, $4, $5::text::json)
         on conflict (tenant_id, id) do nothing",
        tx.tenant()?.0,
        run.0,
        conversation.0,
        first_event,
        serde_json::to_string(settings).map_err(Error::internal)?,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// A response of this user.
pub async fn get(tx: &mut Tx, user: &UserId, id: RunId) -> Result<Option<StoredResponse>> {
    let row = sqlx::query!(
        r#"select r.agent as "agent: AgentId", p.conversation_id as "conversation_id: ConversationId", p.first_event, p.settings as "settings: Json<ResponseSettings>"
           from responses p join runs r on r.tenant_id = p.tenant_id and r.id = p.id
           where p.tenant_id = $1 and p.id = $2 and r.user_id = $3"#,
        tx.tenant()?.0,
        id.0,
        user.as_str(),
    )
    .fetch_optional(tx.conn())
    .await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(StoredResponse {
        agent: row.agent,
        conversation: row.conversation_id,
        run: runs::get(tx, user, id).await?,
        first_event: row.first_event,
        settings: row.settings.0,
    }))
}

/// A response that is to be continued.
pub struct AnsweredPlace {
    /// The conversation, which is locked.
    pub conversation: Conversation,
    /// The last event that the client received.
    pub delivered_event: i64,
    pub status: RunStatus,
    /// Whether the user has sent a message after it.
    pub is_followed: bool,
    pub instructions: Option<String>,
}

/// Locks the conversation of a response of this user.
pub async fn lock_conversation(
    tx: &mut Tx,
    user: &UserId,
    id: RunId,
) -> Result<Option<AnsweredPlace>> {
    let Some(stored) = get(tx, user, id).await? else {
        return Ok(None);
    };
    let conversation = conversations::get(tx, user, stored.conversation, true).await?;
    let row = sqlx::query!(
        r#"select prev.status as "status: RunStatus",
                  exists (
                    select 1 from runs r
                    join messages m on m.tenant_id = r.tenant_id and m.run_id = r.id and m.role = 'user'
                    where r.tenant_id = $1 and r.conversation_id = $2 and r.ordinal > prev.ordinal
                      and r.kind = 'turn') as "is_followed!"
           from runs prev where prev.tenant_id = $1 and prev.id = $3"#,
        tx.tenant()?.0,
        stored.conversation.0,
        id.0,
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(Some(AnsweredPlace {
        conversation,
        delivered_event: conversations::keyed::get_delivered_event(tx, stored.conversation).await?,
        status: row.status,
        is_followed: row.is_followed,
        instructions: stored.settings.instructions,
    }))
}

/// Deletes a response of this user. `false` if there is none.
pub async fn delete(tx: &mut Tx, user: &UserId, id: RunId) -> Result<bool> {
    let deleted = sqlx::query!(
        "delete from responses p using runs r
         where p.tenant_id = $1 and p.id = $2 and r.tenant_id = $1 and r.id = $2 and r.user_id = $3",
        tx.tenant()?.0,
        id.0,
        user.as_str(),
    )
    .execute(tx.conn())
    .await?;
    Ok(deleted.rows_affected() == 1)
}
