//! Rows of the words of conversations, and of the messages that are not among them yet. The words say where to look for
//! what somebody searches; what is found is read from the messages ([`super::conversations::search`]).

use std::time::Duration;

use sqlx::query;
use uuid::Uuid;

use super::Tx;
use domain::{
    error::Result,
    ids::{ConversationId, TenantId, UserId},
};

/// Bytes of messages after which another stretch begins. A message counts 4,000 more than it has, so that a stretch has
/// at most 50, and 20 for each number since the last one, so that the positions of its words are small enough for a
/// `tsvector`. So is their sum.
const STRETCH: i64 = 200_000;

/// The tenants with messages whose words are not indexed yet. Needs the system role.
pub async fn list_tenants_to_index(tx: &mut Tx) -> Result<Vec<TenantId>> {
    let ids = sqlx::query_scalar!(
        r#"select distinct tenant_id as "id: TenantId" from unindexed_messages"#
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// Indexes the words of at most `limit` conversations after `after` that something was said in longer than `age` ago,
/// with all that was said since. Returns the last of them, or `None` if there are no more.
pub async fn index(
    tx: &mut Tx,
    age: Duration,
    after: Option<(UserId, ConversationId)>,
    limit: i64,
) -> Result<Option<(UserId, ConversationId)>> {
    let tenant = tx.tenant()?.0;
    let (user, conversation) = after
        .map_or((String::new(), Uuid::nil()), |(user, conversation)| {
            (user.as_str().to_owned(), conversation.0)
        });
    let due = query!(
        "select distinct user_id, id from unindexed_messages
         where tenant_id = $1 and (user_id, id) > ($2, $3)
           and created_at < statement_timestamp() - make_interval(secs => $4)
         order by user_id, id limit $5",
        tenant,
        user,
        conversation,
        age.as_secs_f64(),
        limit,
    );
    let due = due.fetch_all(tx.conn()).await?;
    // First, so that a title which is changed meanwhile waits for this transaction, and is then noted anew.
    let taken = query!(
        r#"with taken as (
             delete from unindexed_messages m
             using unnest($2::text[], $3::uuid[]) as due (user_id, id)
             where m.tenant_id = $1 and m.user_id = due.user_id and m.id = due.id
             returning m.id, m.seq
           )
           select id as "id!", max(seq) as "upto!" from taken group by id"#,
        tenant,
        &due.iter()
            .map(|row| row.user_id.clone())
            .collect::<Vec<_>>(),
        &due.iter().map(|row| row.id).collect::<Vec<_>>(),
    );
    let taken = taken.fetch_all(tx.conn()).await?;
    query!(
        "with said as (
           select c.id, words_of($1, c.user_id) as prefix, m.seq, m.words,
                  (sum(m.size) over (partition by c.id order by m.seq) + m.seq * 20) / $4::bigint as stretch
           from unnest($2::uuid[], $3::bigint[]) as taken (id, upto)
           join conversations c on c.tenant_id = $1 and c.id = taken.id,
           lateral (
             select seq, message_words(parts) as words, least(octet_length(parts::text), 200000) + 4000 as size
             from messages
             where tenant_id = $1 and conversation_id = c.id and role in ('user', 'assistant') and seq <= taken.upto
               and seq > coalesce((select max(last_seq) from conversation_words
                                   where tenant_id = $1 and id = c.id), 0)
             union all
             select taken.upto, to_tsvector('pg_catalog.simple', c.title), 0
           ) m
         ), numbered as (
           select id, stretch, prefix, words, seq,
                  min(seq) over stretch as first_seq, max(seq) over stretch as last_seq
           from said window stretch as (partition by id, stretch)
         ), spoken as (
           select id, first_seq, last_seq, prefix || word as word, string_agg((seq - first_seq + 1)::text, ',') as positions
           -- the empty word stands for all that the user said
           from numbered, unnest(tsvector_to_array(words) || ''::text) word
           where octet_length(word) < 2000 -- with the prefix it would be too long
           group by id, first_seq, last_seq, prefix || word
         ), written as (
           insert into conversation_words (tenant_id, id, first_seq, last_seq, words)
           select $1, id, first_seq, last_seq, string_agg(
             '''' || replace(replace(word, '\', '\\'), '''', '''''') || ''':' || positions, ' ')::tsvector
           from spoken group by id, first_seq, last_seq
           on conflict (tenant_id, id, last_seq) do update
           set words = conversation_words.words || excluded.words
           returning 1
         )
         select count(*) from written",
        tenant,
        &taken.iter().map(|row| row.id).collect::<Vec<_>>(),
        &taken.iter().map(|row| row.upto).collect::<Vec<_>>(),
        STRETCH,
    )
    .fetch_one(tx.conn())
    .await?;
    let last = due.into_iter().next_back();
    Ok(last.map(|row| (UserId(row.user_id.into()), ConversationId(row.id))))
}
