//! Finds the conversations of a user by the words in them.

use sqlx::types::Json;
use uuid::Uuid;

use super::{conversation_of, listing::ListFilter};
use crate::Db;
use domain::{
    error::Result,
    ids::{AgentId, ConversationId, TenantId, UserId},
    message::Part,
    run::Conversation,
};

/// The newest message of a conversation that has all the words.
pub struct SearchHit {
    pub seq: i64,
    pub parts: Vec<Part>,
}

/// Finds the user's conversations that have all the words, in the title or in one message of the active branch. The
/// words may be of any language, and the last one may be the beginning of a word.
///
/// The index says which stretches of which conversations may answer, and their words, which messages. What was said in
/// the last minutes is not in the index, and is read itself. Conversations are then read in the order of the list until
/// the page is full.
pub async fn search(
    db: &Db,
    tenant: TenantId,
    user: &UserId,
    filter: ListFilter<'_>,
    words: &str,
) -> Result<Vec<(Conversation, Option<SearchHit>)>> {
    let (query, stretches) = find_stretches(db, tenant, user, words).await?;
    let mut tx = db.tenant(tenant).await?;
    let rows = sqlx::query!(
        r#"select id as "id!: ConversationId", agent as "agent!: AgentId", title as "title!",
                  parent_session as "parent_id: ConversationId", last_event as "last_event!",
                  archived_at is not null as "archived!", pinned as "pinned!", branch as "branch!",
                  created_at as "created_at!", updated_at as "updated_at!",
                  hit.seq as "seq?", hit.parts as "parts?: Json<Vec<Part>>"
           from (
             select c.*, c.pinned_at is not null as pinned, stretches.first_seq, stretches.last_seq as upto
             from (
               select id, min(first_seq) as first_seq, max(last_seq) as last_seq
               from (
                 select id, first_seq, last_seq
                 from unnest($10::uuid[], $11::bigint[], $12::bigint[]) s (id, first_seq, last_seq)
                 union all
                 select id, seq, seq from unindexed_messages where tenant_id = $1 and user_id = $2
               ) s group by id
             ) stretches
             join conversations c on c.tenant_id = $1 and c.id = stretches.id
             where c.user_id = $2 and ($3::text is null or c.agent = $3)
               and ($4 or c.parent_session is null) and (c.archived_at is not null) = $5
               and ($6::bool is null or (c.pinned_at is not null) = $6)
               and ($7::uuid is null or (c.pinned_at is not null, c.id) < (coalesce(
                 (select pinned_at is not null from conversations where tenant_id = $1 and id = $7), false), $7))
             order by pinned desc, c.id desc
             offset 0 -- in this order, so that no more is read than the page shows
           ) c
           left join lateral (
             select m.seq, m.parts
             from (
               select w.first_seq + position - 1 as seq
               from conversation_words w, positions_with(w.words, $13::text::tsquery) position
               where w.tenant_id = $1 and w.id = c.id and w.last_seq between c.first_seq and c.upto
               union all
               select seq from unindexed_messages where tenant_id = $1 and user_id = $2 and id = c.id
               order by seq desc
             ) may,
             lateral (
               select * from messages
               where tenant_id = $1 and conversation_id = c.id and seq = may.seq
               offset 0 -- one after the other, because to read the words of a message is what costs
             ) m
             where m.role in ('user', 'assistant') and message_words(m.parts) @@ (select typed_query($9))
               and (c.last_branch = 0 or exists (
                 with recursive path (branch, upto) as (
                   select c.branch, 9223372036854775807
                   union all
                   select b.parent, b.from_seq from path
                   join branches b on b.tenant_id = $1 and b.conversation_id = c.id and b.number = path.branch
                 )
                 select 1 from path where path.branch = m.branch and m.seq < path.upto))
             order by may.seq desc limit 1
           ) hit on true
           where hit.seq is not null or to_tsvector('pg_catalog.simple', c.title) @@ (select typed_query($9))
           order by pinned desc, id desc limit $8"#,
        tenant.0,
        user.as_str(),
        filter.agent.map(AgentId::as_str),
        filter.children,
        filter.archived,
        filter.pinned,
        filter.cursor.map(|id| id.0),
        filter.limit,
        words,
        &stretches.iter().map(|row| row.id).collect::<Vec<_>>(),
        &stretches.iter().map(|row| row.first_seq).collect::<Vec<_>>(),
        &stretches.iter().map(|row| row.last_seq).collect::<Vec<_>>(),
        query,
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

/// What of a conversation may have the words, as the index says.
struct Stretch {
    id: Uuid,
    first_seq: i64,
    last_seq: i64,
}

/// Finds the stretches that have the words, as the role whose policy compares words with the index. Returns the query
/// that they answer, too.
async fn find_stretches(
    db: &Db,
    tenant: TenantId,
    user: &UserId,
    words: &str,
) -> Result<(String, Vec<Stretch>)> {
    let mut tx = db.search(tenant).await?;
    let query = sqlx::query!(
        r#"select query as "query!", quote_literal(query) as "literal!"
           from (select coalesce(stretch_query($1, $2, typed_query($3))::text, '') as query) q"#,
        tenant.0,
        user.as_str(),
        words,
    );
    let query = query.fetch_one(tx.conn()).await?;
    tx.execute(&format!("set local app.words = {}", query.literal))
        .await?;
    let stretches = sqlx::query_as!(
        Stretch,
        r#"select id, min(first_seq) as "first_seq!", max(last_seq) as "last_seq!"
           from conversation_words where tenant_id = $1 group by id"#,
        tenant.0,
    );
    let stretches = stretches.fetch_all(tx.conn()).await?;
    tx.commit().await?;
    Ok((query.query, stretches))
}
