//! Conversations that a frontend finds by a key of its own, and what the frontend was told of them.

use super::{super::Tx, row_of};
use crate::domain::{
    error::Result,
    ids::{AgentId, ConversationId, UserId},
    run::Conversation,
};

/// A conversation that a frontend finds by a key.
pub struct KeyedConversation {
    pub conversation: Conversation,
    /// The last event that the frontend received.
    pub told_event: i64,
    pub is_new: bool,
}

/// The newest conversation with this key of the frontend, or a new one with this title when there is none. A
/// conversation in which a turn of the user is running is skipped: the running turn's answer belongs to its
/// key. Locks the counters of the conversation.
pub async fn find_or_insert(
    tx: &mut Tx,
    user: &UserId,
    agent: &AgentId,
    title: &str,
    key: &str,
) -> Result<KeyedConversation> {
    let row = sqlx::query!(
        r#"with known as (
             select id, agent, title, parent_session, last_event, archived_at, pinned_at, branch, created_at,
                    updated_at, coalesce(told_event, last_event) as told_event
             from conversations c where tenant_id = $1 and user_id = $2 and agent = $3 and external_key = $4
               and not exists (
                 select 1 from runs r
                 join messages m on m.tenant_id = r.tenant_id and m.run_id = r.id and m.role = 'user'
                 where r.tenant_id = $1 and r.conversation_id = c.id and r.status in ('queued', 'running')
                   and r.kind = 'turn')
             order by id desc limit 1 for update
           ), new as (
             insert into conversations (tenant_id, id, agent, user_id, title, external_key, titled_by)
             select $1, $5, $3, $2, $6, $4, case when $6 = '' then 'message' else 'user' end
             where not exists (select from known)
             returning id, agent, title, parent_session, last_event, archived_at, pinned_at, branch, created_at,
                       updated_at, last_event as told_event
           )
           select id as "id!", agent as "agent!", title as "title!", parent_session, last_event as "last_event!",
                  archived_at is not null as "archived!", pinned_at is not null as "pinned!", branch as "branch!",
                  created_at as "created_at!", updated_at as "updated_at!", told_event as "told_event!",
                  is_new as "is_new!"
           from (select *, false as is_new from known union all select *, true from new) found"#,
        tx.tenant()?.0,
        user.as_str(),
        agent.as_str(),
        key,
        ConversationId::new().0,
        title,
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(KeyedConversation {
        conversation: row_of!(row).try_into()?,
        told_event: row.told_event,
        is_new: row.is_new,
    })
}

/// The last event that the client of a conversation was told of.
pub async fn told_event(tx: &mut Tx, id: ConversationId) -> Result<i64> {
    let told = sqlx::query_scalar!(
        r#"select coalesce(told_event, last_event) as "told!" from conversations
           where tenant_id = $1 and id = $2"#,
        tx.tenant()?.0,
        id.0,
    );
    Ok(told.fetch_one(tx.conn()).await?)
}

/// Sets the key by which a frontend finds a conversation next time, and the last event that the frontend
/// received.
pub async fn set_external_key(
    tx: &mut Tx,
    id: ConversationId,
    key: &str,
    told_event: i64,
) -> Result<()> {
    sqlx::query!(
        "update conversations set external_key = $2, told_event = $4 where tenant_id = $3 and id = $1",
        id.0,
        key,
        tx.tenant()?.0,
        told_event,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
