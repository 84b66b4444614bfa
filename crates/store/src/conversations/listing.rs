//! Lists, searches and changes the conversations of a user.

use sqlx::types::Json;

use super::{conversation_of, conversations};
use crate::Tx;
use domain::{
    error::{Error, Missing, Result},
    ids::{AgentId, ConversationId, UserId},
    message::Part,
    run::{Conversation, ConversationChange},
};

/// Which conversations to list.
#[derive(Clone, Copy)]
pub struct ListFilter<'a> {
    pub agent: Option<&'a AgentId>,
    /// Whether to list the conversations that runs have started, too.
    pub children: bool,
    pub archived: bool,
    /// If given, only the pinned conversations, or only the others.
    pub pinned: Option<bool>,
    /// The last conversation of the page before.
    pub cursor: Option<ConversationId>,
    pub limit: i64,
}

/// The user's conversations: pinned ones first, then the newest.
pub async fn list(tx: &mut Tx, user: &UserId, filter: ListFilter<'_>) -> Result<Vec<Conversation>> {
    let listed = conversations!(
        "select",
        "from conversations
           where tenant_id = $1 and user_id = $2 and ($3::text is null or agent = $3)
             and ($4 or parent_session is null) and (archived_at is not null) = $5
             and ($6::bool is null or (pinned_at is not null) = $6)
             and ($7::uuid is null or (pinned_at is not null, id) < (coalesce(
               (select pinned_at is not null from conversations where tenant_id = $1 and id = $7), false), $7))
           order by (pinned_at is not null) desc, id desc limit $8",
        tx.tenant()?.0,
        user.as_str(),
        filter.agent.map(AgentId::as_str),
        filter.children,
        filter.archived,
        filter.pinned,
        filter.cursor.map(|id| id.0),
        filter.limit,
    );
    Ok(listed.fetch_all(tx.conn()).await?)
}

/// The newest message of a conversation that has all the words.
pub struct SearchHit {
    pub seq: i64,
    pub parts: Vec<Part>,
}

/// Finds the user's conversations that have all the words, in the title or in one message. The words may be of any
/// language, and the last one may be the beginning of a word.
pub async fn search(
    tx: &mut Tx,
    user: &UserId,
    filter: ListFilter<'_>,
    words: &str,
) -> Result<Vec<(Conversation, Option<SearchHit>)>> {
    let rows = sqlx::query!(
        r#"with words as (
             select websearch_to_tsquery('pg_catalog.simple', $9) as complete
           ), wanted as materialized (
             select case when numnode(complete) = 0 then complete else (complete::text || ':*')::tsquery end as query
             from words
           ), hits as (
             select distinct on (m.conversation_id) m.conversation_id, m.seq, m.parts
             from messages m
             join conversations c on c.tenant_id = m.tenant_id and c.id = m.conversation_id
             where m.tenant_id = $1 and c.user_id = $2 and m.role in ('user', 'assistant')
               and message_words(m.parts) @@ (select query from wanted)
             order by m.conversation_id, m.seq desc
           )
           select id as "id: ConversationId", agent as "agent: AgentId", title,
                  parent_session as "parent_id: ConversationId", last_event, archived_at is not null as "archived!",
                  pinned_at is not null as "pinned!", branch, created_at, updated_at,
                  hits.seq as "seq?", hits.parts as "parts?: Json<Vec<Part>>"
           from conversations left join hits on hits.conversation_id = id
           where tenant_id = $1 and user_id = $2 and ($3::text is null or agent = $3)
             and ($4 or parent_session is null) and (archived_at is not null) = $5
             and ($6::bool is null or (pinned_at is not null) = $6)
             and ($7::uuid is null or (pinned_at is not null, id) < (coalesce(
               (select pinned_at is not null from conversations where tenant_id = $1 and id = $7), false), $7))
             and (hits.seq is not null
                  or to_tsvector('pg_catalog.simple', title) @@ (select query from wanted))
           order by (pinned_at is not null) desc, id desc limit $8"#,
        tx.tenant()?.0,
        user.as_str(),
        filter.agent.map(AgentId::as_str),
        filter.children,
        filter.archived,
        filter.pinned,
        filter.cursor.map(|id| id.0),
        filter.limit,
        words,
    )
    .fetch_all(tx.conn())
    .await?;
    let found = rows.into_iter().map(|row| {
        let hit = row.seq.zip(row.parts).map(|(seq, parts)| SearchHit {
            seq,
            parts: parts.0,
        });
        (conversation_of!(row), hit)
    });
    Ok(found.collect())
}

/// Changes a conversation of the user. A model never replaces a title that is set here.
pub async fn change(
    tx: &mut Tx,
    user: &UserId,
    id: ConversationId,
    change: ConversationChange<'_>,
) -> Result<Conversation> {
    let changed = conversations!(
        "update conversations
           set title = coalesce($4, title), titled_by = case when $4::text is null then titled_by else 'user' end,
               archived_at = case when coalesce($5, archived_at is not null) then coalesce(archived_at, clock.at) end,
               pinned_at = case when coalesce($6, pinned_at is not null) then coalesce(pinned_at, clock.at) end
           from (select statement_timestamp() as at) clock
           where tenant_id = $1 and id = $2 and user_id = $3
           returning",
        "",
        tx.tenant()?.0,
        id.0,
        user.as_str(),
        change.title,
        change.archived,
        change.pinned,
    );
    let changed = changed.fetch_optional(tx.conn()).await?;
    changed.ok_or_else(|| Error::NotFound(Missing::Conversation(id)))
}
