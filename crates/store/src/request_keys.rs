//! Rows of requests that clients may send again. A row is written in the transaction that begins the work of its
//! request.

use time::OffsetDateTime;
use uuid::Uuid;

use super::{Tx, client_chats::ChatAnswer};
use domain::{
    error::Result,
    ids::{ConversationId, MessageId, ReplicaId, RunId, UserId},
    request_key::{KeyedRun, REFUSED_SECONDS, REMEMBERED_HOURS, RequestKey, RequestServer},
    run::RunStatus,
};

/// Counts a repetition of a request. Returns what the earlier request with this key began, and the digest of that
/// request. `None` if there is none within `within_seconds`.
pub async fn repeat(
    tx: &mut Tx,
    user: &UserId,
    key: &str,
    within_seconds: f64,
) -> Result<Option<(KeyedRun, Vec<u8>)>> {
    let row = sqlx::query!(
        r#"update request_keys set repeats = repeats + 1
           where tenant_id = $1 and user_id = $2 and key = $3
             and created_at > now() - make_interval(secs => $4)
           returning digest, conversation_id as "conversation: ConversationId", run_id as "run: RunId",
                     message_id as "message: MessageId", repeats"#,
        tx.tenant()?.0,
        user.as_str(),
        key,
        within_seconds,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| {
        let begun = KeyedRun {
            conversation: row.conversation,
            run: row.run,
            message: row.message,
            repeats: row.repeats,
        };
        (begun, row.digest)
    }))
}

/// The run that an equal request began.
pub struct EqualRun {
    pub conversation: ConversationId,
    pub run: RunId,
    pub status: RunStatus,
    /// Whether an equal request must not begin a second run: this one failed after it had called tools, or its client
    /// was left without the answer, within the last [`REFUSED_SECONDS`]. A client counts as left also when the
    /// replica with its connection has not renewed its record.
    pub is_left: bool,
    /// Whether it began after the other request had arrived.
    pub is_newer: bool,
    /// Whether it was stopped, and its client saw where.
    pub is_stopped: bool,
    /// The time until which another replica has the client's connection.
    pub served_elsewhere_until: Option<OffsetDateTime>,
}

/// Finds the run that an equal request began. A client that sees where its turn was stopped may ask again.
pub async fn find_equal_run(
    tx: &mut Tx,
    user: &UserId,
    key: &RequestKey,
    replica: ReplicaId,
) -> Result<Option<EqualRun>> {
    let earlier = sqlx::query_as!(
        EqualRun,
        r#"select k.conversation_id as "conversation: _", r.id as "run: _", r.status as "status: _",
                  coalesce(k.failed_at is not null and not (k.stopped and $5)
                           or k.served_by <> $6 and k.served_until < statement_timestamp(), false)
                  and (r.finished_at is null
                       or greatest(r.finished_at, k.failed_at, k.served_until) > now() - make_interval(secs => $4))
                    as "is_left!",
                  k.created_at > statement_timestamp() - make_interval(secs => $7) as "is_newer!",
                  k.failed_at is not null and k.stopped and $5 as "is_stopped!",
                  case when k.served_by <> $6 then k.served_until end as served_elsewhere_until
           from request_keys k join runs r on r.tenant_id = $1 and r.id = k.run_id
           where k.tenant_id = $1 and k.user_id = $2 and k.key = $3"#,
        tx.tenant()?.0,
        user.as_str(),
        key.key,
        f64::from(REFUSED_SECONDS),
        key.sees_stop,
        replica.0,
        key.arrived.elapsed().as_secs_f64(),
    );
    Ok(earlier.fetch_optional(tx.conn()).await?)
}

/// Records that a run has failed or was stopped, or that its client was left without an answer, so that an equal
/// request does not begin it again at once. `is_stopped` has no effect if the client had left before ([`mark_left`]).
pub async fn mark_failed(
    tx: &mut Tx,
    conversation: ConversationId,
    run: RunId,
    is_stopped: bool,
) -> Result<()> {
    sqlx::query!(
        "update request_keys
         set failed_at = now(), stopped = $4 and (failed_at is null or stopped), served_until = null
         where tenant_id = $1 and conversation_id = $2 and run_id = $3",
        tx.tenant()?.0,
        conversation.0,
        run.0,
        is_stopped,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Records that the client of a run left before it had the whole answer. `is_stopped` if the run is stopped because
/// of it.
pub async fn mark_left(
    tx: &mut Tx,
    conversation: ConversationId,
    run: RunId,
    is_stopped: bool,
) -> Result<()> {
    sqlx::query!(
        "update request_keys set failed_at = now(), stopped = $4
         where tenant_id = $1 and conversation_id = $2 and run_id = $3 and failed_at is null",
        tx.tenant()?.0,
        conversation.0,
        run.0,
        is_stopped,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Records that the client of a run has its answer, or will be told that the run failed. `clears_failure` also clears
/// the marks of [`mark_failed`] and [`mark_left`].
pub async fn mark_answered(
    tx: &mut Tx,
    conversation: ConversationId,
    run: RunId,
    clears_failure: bool,
) -> Result<()> {
    sqlx::query!(
        "update request_keys
         set served_until = null, failed_at = case when not $4 then failed_at end, stopped = stopped and not $4
         where tenant_id = $1 and conversation_id = $2 and run_id = $3
           and (served_until is not null or $4 and failed_at is not null)",
        tx.tenant()?.0,
        conversation.0,
        run.0,
        clears_failure,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Records that this replica still has the connection of a run's client.
pub async fn mark_served(
    tx: &mut Tx,
    conversation: ConversationId,
    run: RunId,
    server: RequestServer,
) -> Result<()> {
    sqlx::query!(
        "update request_keys set served_until = statement_timestamp() + make_interval(secs => $5)
         where tenant_id = $1 and conversation_id = $2 and run_id = $3 and served_by = $4 and served_until is not null",
        tx.tenant()?.0,
        conversation.0,
        run.0,
        server.replica.0,
        server.lease.as_secs_f64(),
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Counts how often a client came back to a run: by sending its request again, or by the id of its chat.
pub async fn count_repeats(tx: &mut Tx, run: RunId) -> Result<i32> {
    let repeats = sqlx::query_scalar!(
        r#"select coalesce(sum(repeats), 0)::int as "repeats!" from (
             select k.repeats from request_keys k join runs r
               on r.tenant_id = $1 and r.id = k.run_id and r.conversation_id = k.conversation_id
             where k.tenant_id = $1 and r.id = $2
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

/// Records what a request began and, in the same statement, the place of its answer in a chat. `false` if a request
/// with the same key came first, or an equal one that this one does not replace ([`find_equal_run`]).
pub async fn insert(
    tx: &mut Tx,
    user: &UserId,
    key: &RequestKey,
    begun: KeyedRun,
    answer: Option<ChatAnswer<'_>>,
) -> Result<bool> {
    let (tenant, id, user) = (tx.tenant()?.0, Uuid::now_v7(), user.as_str());
    // `excluded.created_at` is the time now. Citus allows no clock function here.
    macro_rules! insert_key {
        ($before:literal $(, $value:expr)*) => {
            sqlx::query!(
                $before
                    + " insert into request_keys (tenant_id, id, user_id, key, digest, conversation_id, run_id, message_id,
                                                  served_by, served_until)
                        values ($1, $2, $3, $4, $5, $6, $7, $8, $12, now() + make_interval(secs => $13))
                        on conflict (tenant_id, user_id, key) do update
                        set id = excluded.id, digest = excluded.digest, conversation_id = excluded.conversation_id,
                            run_id = excluded.run_id, message_id = excluded.message_id, repeats = 0,
                            created_at = excluded.created_at, failed_at = null, stopped = false,
                            served_by = excluded.served_by, served_until = excluded.served_until
                        where $9 and request_keys.run_id is not distinct from $11
                           or excluded.created_at - request_keys.created_at > make_interval(hours => $10)",
                tenant, id, user, key.key, &key.digest, begun.conversation.0, begun.run.map(|run| run.0),
                begun.message.map(|message| message.0), key.takes_over(), REMEMBERED_HOURS,
                key.replaced.map(|run| run.0), key.server.map(|server| server.replica.0),
                key.server.map(|server| server.lease.as_secs_f64()) $(, $value)*
            )
        };
    }
    let inserted = match answer {
        None => insert_key!("").execute(tx.conn()).await?,
        Some(answer) => {
            insert_key!(
                "with answer as (
                   insert into client_chats (tenant_id, id, user_id, chat, conversation_id, run_id, first_event,
                                             updated_at)
                   values ($1, $2, $3, $14, $15, $16, $17, now())
                   on conflict (tenant_id, user_id, chat) do update
                   set conversation_id = excluded.conversation_id, run_id = excluded.run_id,
                       first_event = excluded.first_event, repeats = 0, updated_at = excluded.updated_at
                 )",
                answer.chat,
                answer.conversation.0,
                answer.run.0,
                answer.first_event
            )
            .execute(tx.conn())
            .await?
        }
    };
    Ok(inserted.rows_affected() == 1)
}
