//! Finds conversations by the key of a frontend, and records the last event that the frontend received.
//!
//! A conversation has a key only while its last message is an answer that the client received. A question removes the
//! key, and its answer sets the next one. So a conversation whose last question failed or was stopped is never found.

use super::{super::Tx, conversation_of};
use domain::{
    error::Result,
    ids::{AgentId, ConversationId, UserId},
    run::Conversation,
};

/// A conversation that a frontend finds by a key.
pub struct KeyedConversation {
    pub conversation: Conversation,
    /// The last event that the frontend received.
    pub delivered_event: i64,
    pub is_new: bool,
}

/// The key of a conversation that no frontend can find.
pub const NO_KEY: &str = "unanswered";

/// Finds the one conversation with this key of the frontend and removes its key. Creates a conversation if there is
/// none or more than one. A conversation does not count if its user has sent a message that the client has not
/// received: the client then shows another end. With `only_shown`, one with parts that a transcript does not show,
/// such as results of tools and images, does not count either. Locks the row of the conversation.
pub async fn take_or_insert(
    tx: &mut Tx,
    user: &UserId,
    agent: &AgentId,
    key: &str,
    only_shown: bool,
) -> Result<KeyedConversation> {
    let row = sqlx::query!(
        r#"with fits as (
             select id from conversations c
             where tenant_id = $1 and user_id = $2 and agent = $3 and external_key = $4 and told_event is not null
               and not exists (
                 select 1 from events e
                 join messages m on m.tenant_id = $1 and m.id = e.message_id and m.role = 'user'
                 join runs r on r.tenant_id = $1 and r.id = m.run_id and r.kind = 'turn'
                 where e.tenant_id = $1 and e.conversation_id = c.id and e.seq > c.told_event)
               and not ($6 and exists (
                 select 1 from messages m, json_array_elements(m.parts) part
                 where m.tenant_id = $1 and m.conversation_id = c.id
                   and part ->> 'type' not in ('text', 'notice', 'choices', 'prompt')))
             limit 2
           ), known as (
             update conversations set external_key = $7
             where tenant_id = $1 and external_key = $4 and id in (select id from fits)
               and (select count(*) from fits) = 1
             returning id, agent, title, parent_session, last_event, archived_at, pinned_at, branch, created_at,
                       updated_at, coalesce(told_event, last_event) as told_event
           ), new as (
             insert into conversations (tenant_id, id, agent, user_id, title, external_key, titled_by)
             select $1, $5, $3, $2, '', $7, 'message'
             where not exists (select from known)
             returning id, agent, title, parent_session, last_event, archived_at, pinned_at, branch, created_at,
                       updated_at, last_event as told_event
           )
           select id as "id!: ConversationId", agent as "agent!: AgentId", title as "title!",
                  parent_session as "parent_id: ConversationId", last_event as "last_event!",
                  archived_at is not null as "archived!", pinned_at is not null as "pinned!", branch as "branch!",
                  created_at as "created_at!", updated_at as "updated_at!", told_event as "told_event!",
                  is_new as "is_new!"
           from (select *, false as is_new from known union all select *, true from new) found"#,
        tx.tenant()?.0,
        user.as_str(),
        agent.as_str(),
        key,
        ConversationId::new().0,
        only_shown,
        NO_KEY,
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(KeyedConversation {
        conversation: conversation_of!(row),
        delivered_event: row.told_event,
        is_new: row.is_new,
    })
}

/// Finds a user's conversation that the program itself keeps under a name, such as the one for links. Creates one
/// with this title if there is none.
pub async fn find_or_insert(
    tx: &mut Tx,
    user: &UserId,
    agent: &AgentId,
    title: &str,
    name: &str,
) -> Result<ConversationId> {
    let id = sqlx::query_scalar!(
        r#"with known as (
             select id from conversations
             where tenant_id = $1 and user_id = $2 and agent = $3 and external_key = $4
             order by id desc limit 1
           ), new as (
             insert into conversations (tenant_id, id, agent, user_id, title, external_key, titled_by)
             select $1, $5, $3, $2, $6, $4, 'user' where not exists (select from known)
             returning id
           )
           select id as "id!: ConversationId" from (select id from known union all select id from new) found"#,
        tx.tenant()?.0,
        user.as_str(),
        agent.as_str(),
        name,
        ConversationId::new().0,
        title,
    );
    Ok(id.fetch_one(tx.conn()).await?)
}

/// The last event that the client of a conversation received.
pub async fn get_delivered_event(tx: &mut Tx, id: ConversationId) -> Result<i64> {
    let told = sqlx::query_scalar!(
        r#"select coalesce(told_event, last_event) as "told!" from conversations
           where tenant_id = $1 and id = $2"#,
        tx.tenant()?.0,
        id.0,
    );
    Ok(told.fetch_one(tx.conn()).await?)
}

/// Sets the key by which the frontend finds a conversation next time, and the last event that the frontend received.
pub async fn set_external_key(
    tx: &mut Tx,
    id: ConversationId,
    key: &str,
    delivered_event: i64,
) -> Result<()> {
    sqlx::query!(
        "update conversations set external_key = $2, told_event = $4 where tenant_id = $3 and id = $1",
        id.0,
        key,
        tx.tenant()?.0,
        delivered_event,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
