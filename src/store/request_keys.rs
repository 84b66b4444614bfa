//! Rows of requests that clients may send again, each written together with the work that it began.

use uuid::Uuid;

use super::Tx;
use crate::domain::{
    error::Result,
    ids::{ConversationId, MessageId, RunId, UserId},
    request_key::{KeyedRun, REMEMBERED_HOURS, RequestKey},
};

/// [`REMEMBERED_HOURS`] in milliseconds.
const REMEMBERED_MILLIS: u128 = REMEMBERED_HOURS.unsigned_abs() as u128 * 3_600_000;
/// Old records that one request deletes at most.
const FORGOTTEN_AT_ONCE: i64 = 10;

/// What an earlier request with this key began, and the digest of that request. Counts the repetition.
pub async fn repeat(
    tx: &mut Tx,
    user: &UserId,
    key: &str,
    within_seconds: f64,
) -> Result<Option<(KeyedRun, Vec<u8>)>> {
    let row = sqlx::query!(
        "update request_keys set repeats = repeats + 1
         where tenant_id = $1 and user_id = $2 and key = $3
           and created_at > now() - make_interval(secs => $4)
         returning digest, conversation_id, run_id, message_id, repeats",
        tx.tenant()?.0,
        user.as_str(),
        key,
        within_seconds,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| {
        let begun = KeyedRun {
            conversation: ConversationId(row.conversation_id),
            run: row.run_id.map(RunId),
            message: row.message_id.map(MessageId),
            repeats: row.repeats,
        };
        (begun, row.digest)
    }))
}

/// Whether a request with this key is remembered.
pub async fn is_known(tx: &mut Tx, user: &UserId, key: &str) -> Result<bool> {
    let known = sqlx::query_scalar!(
        r#"select exists(select from request_keys
                         where tenant_id = $1 and user_id = $2 and key = $3
                           and created_at > now() - make_interval(hours => $4)) as "known!""#,
        tx.tenant()?.0,
        user.as_str(),
        key,
        REMEMBERED_HOURS,
    );
    Ok(known.fetch_one(tx.conn()).await?)
}

/// How often a client came back to a run: by sending its request again, or by the id of its chat.
pub async fn repeats(tx: &mut Tx, run: RunId) -> Result<i32> {
    let repeats = sqlx::query_scalar!(
        r#"select coalesce(sum(repeats), 0)::int as "repeats!" from (
             select repeats from request_keys where tenant_id = $1 and run_id = $2
             union all
             select c.repeats from client_chats c join runs r
               on r.tenant_id = $1 and r.id = c.run_id and r.conversation_id = c.conversation_id
             where c.tenant_id = $1 and r.id = $2
           ) of_run"#,
        tx.tenant()?.0,
        run.0,
    );
    Ok(repeats.fetch_one(tx.conn()).await?)
}

/// Records what a request began; `false` when a request with the same key came first. Deletes some of the tenant's
/// records that are older than a day: ids begin with their time. `excluded.created_at` is now: Citus takes no clock in
/// this place.
pub async fn insert(tx: &mut Tx, user: &UserId, key: &RequestKey, begun: KeyedRun) -> Result<bool> {
    let id = Uuid::now_v7();
    let forgotten_before = Uuid::from_u128(id.as_u128().saturating_sub(REMEMBERED_MILLIS << 80));
    let inserted = sqlx::query!(
        "with old as (
           delete from request_keys
           where tenant_id = $1 and id in (
             select id from request_keys
             where tenant_id = $1 and id < $11 and created_at < now() - make_interval(hours => $10)
               and (user_id, key) <> ($3, $4)
             limit $12 for update skip locked)
         )
         insert into request_keys (tenant_id, id, user_id, key, digest, conversation_id, run_id, message_id)
         values ($1, $2, $3, $4, $5, $6, $7, $8)
         on conflict (tenant_id, user_id, key) do update
         set id = excluded.id, digest = excluded.digest, conversation_id = excluded.conversation_id,
             run_id = excluded.run_id, message_id = excluded.message_id, repeats = 0, created_at = excluded.created_at
         where $9 or excluded.created_at - request_keys.created_at > make_interval(hours => $10)",
        tx.tenant()?.0,
        id,
        user.as_str(),
        key.key,
        &key.digest,
        begun.conversation.0,
        begun.run.map(|run| run.0),
        begun.message.map(|message| message.0),
        key.replaces(),
        REMEMBERED_HOURS,
        forgotten_before,
        FORGOTTEN_AT_ONCE,
    )
    .execute(tx.conn())
    .await?;
    Ok(inserted.rows_affected() == 1)
}
