//! What is old enough to be deleted, counted and deleted in batches. A batch is one transaction, which takes only rows that
//! nobody else holds. Ids are UUIDv7, so that what was made after the cutoff is not read at all.

mod audit;

use time::OffsetDateTime;
use uuid::Uuid;

pub use self::audit::{count_arguments, count_audit, purge_arguments, purge_audit, set_audit_days};
use super::Tx;
use domain::{
    audit::id_after,
    error::Result,
    ids::{ConversationId, UserId},
};

/// Conversations deleted in one transaction.
const CONVERSATIONS: i64 = 100;
/// Rows deleted by one statement, which ends in much less than the time limit of statements.
const ROWS: i64 = 2_000;

/// A batch that was deleted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    pub rows: u64,
    /// The next batch is of ids before this one; `None` after the last batch.
    pub before: Option<Uuid>,
}

/// Conversations that nobody used since a time, with those that their runs have started. One is kept as long as a run of
/// it is open or a call of it waits for approval.
macro_rules! old_conversations {
    ($select:literal, $limit:literal $(, $value:expr)*) => {
        sqlx::query_scalar!(
            $select + " from conversations c
             where c.tenant_id = $1 and c.id < $2 and c.updated_at < $3 and starts_with(c.user_id, 'guest:') = $4
               and not exists (
                 with recursive tree as (
                   select c.id
                   union all
                   select b.id from conversations b join tree on b.tenant_id = $1 and b.parent_session = tree.id
                 )
                 select 1 from tree
                 where exists (select 1 from conversations u
                               where u.tenant_id = $1 and u.id = tree.id and u.updated_at >= $3)
                    or exists (select 1 from runs r
                               where r.tenant_id = $1 and r.conversation_id = tree.id
                                 and r.status in ('queued', 'running'))
                    or exists (select 1 from approvals a
                               where a.tenant_id = $1 and a.conversation_id = tree.id
                                 and a.state in ('pending', 'approved', 'executing')))" + $limit
            $(, $value)*
        )
    };
}

/// Runs that ended before a time, of trees that have ended. One is kept as long as a call of its conversation waits for
/// approval.
macro_rules! old_runs {
    ($select:literal, $limit:literal $(, $value:expr)*) => {
        sqlx::query_scalar!(
            $select + " from runs r
             where r.tenant_id = $1 and r.id < $2 and r.finished_at < $3
               and r.status not in ('queued', 'running') and not r.has_scope and not r.awaits_callback
               and not exists (select 1 from runs o
                               where o.tenant_id = $1 and o.root_run = coalesce(r.root_run, r.id)
                                 and (o.status in ('queued', 'running') or o.awaits_callback))
               and not exists (select 1 from approvals a
                               where a.tenant_id = $1 and a.conversation_id = r.conversation_id
                                 and a.state in ('pending', 'approved', 'executing'))" + $limit
            $(, $value)*
        )
    };
}

/// Conversations to delete: of guests, or of users.
pub async fn count_conversations(
    tx: &mut Tx,
    of_guests: bool,
    cutoff: OffsetDateTime,
) -> Result<i64> {
    let count = old_conversations!(
        r#"select count(*) as "count!""#,
        "",
        tx.tenant()?.0,
        id_after(cutoff),
        cutoff,
        of_guests
    );
    Ok(count.fetch_one(tx.conn()).await?)
}

/// Deletes conversations, the newest first: a session goes before the one that started it.
pub async fn purge_conversations(
    tx: &mut Tx,
    of_guests: bool,
    cutoff: OffsetDateTime,
    before: Option<Uuid>,
) -> Result<Batch> {
    let ids = old_conversations!(
        "select c.id",
        " order by c.id desc limit $5 for update of c skip locked",
        tx.tenant()?.0,
        before.unwrap_or_else(|| id_after(cutoff)),
        cutoff,
        of_guests,
        CONVERSATIONS
    );
    let ids = ids.fetch_all(tx.conn()).await?;
    delete_conversations(tx, &ids).await?;
    Ok(batch(&ids, CONVERSATIONS))
}

/// Deletes some conversations of a user, whatever their state; those that were deleted.
pub async fn delete_of_user(tx: &mut Tx, user: &UserId) -> Result<Vec<ConversationId>> {
    let ids = sqlx::query_scalar!(
        "select id from conversations where tenant_id = $1 and user_id = $2 order by id desc limit $3 for update",
        tx.tenant()?.0,
        user.as_str(),
        CONVERSATIONS,
    )
    .fetch_all(tx.conn())
    .await?;
    delete_conversations(tx, &ids).await?;
    Ok(ids.into_iter().map(ConversationId).collect())
}

/// Deletes conversations that are locked. What there is many of goes first, in statements that are short enough.
async fn delete_conversations(tx: &mut Tx, ids: &[Uuid]) -> Result<()> {
    let tenant = tx.tenant()?.0;
    loop {
        let events = sqlx::query!(
            "delete from events where tenant_id = $1 and id in (
               select id from events where tenant_id = $1 and conversation_id = any($2) limit $3)",
            tenant,
            ids,
            ROWS,
        );
        let messages = sqlx::query!(
            "delete from messages where tenant_id = $1 and id in (
               select id from messages where tenant_id = $1 and conversation_id = any($2) limit $3)",
            tenant,
            ids,
            ROWS,
        );
        let runs = sqlx::query!(
            "delete from runs where tenant_id = $1 and id in (
               select r.id from runs r where r.tenant_id = $1 and r.conversation_id = any($2)
                 and not exists (select 1 from messages m where m.tenant_id = $1 and m.run_id = r.id) limit $3)",
            tenant,
            ids,
            ROWS,
        );
        let mut deleted = events.execute(tx.conn()).await?.rows_affected();
        deleted += messages.execute(tx.conn()).await?.rows_affected();
        deleted += runs.execute(tx.conn()).await?.rows_affected();
        if deleted == 0 {
            break;
        }
    }
    sqlx::query!(
        "delete from conversations where tenant_id = $1 and id = any($2)",
        tenant,
        ids,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Runs to delete.
pub async fn count_runs(tx: &mut Tx, cutoff: OffsetDateTime) -> Result<i64> {
    let count = old_runs!(
        r#"select count(*) as "count!""#,
        "",
        tx.tenant()?.0,
        id_after(cutoff),
        cutoff
    );
    Ok(count.fetch_one(tx.conn()).await?)
}

/// Deletes runs. Their messages stay, and no longer name a run.
pub async fn purge_runs(
    tx: &mut Tx,
    cutoff: OffsetDateTime,
    before: Option<Uuid>,
) -> Result<Batch> {
    let tenant = tx.tenant()?.0;
    let ids = old_runs!(
        "select r.id",
        " order by r.id desc limit $4 for update of r skip locked",
        tenant,
        before.unwrap_or_else(|| id_after(cutoff)),
        cutoff,
        ROWS / 4
    );
    let ids = ids.fetch_all(tx.conn()).await?;
    sqlx::query!(
        "update messages set run_id = null where tenant_id = $1 and run_id = any($2)",
        tenant,
        &ids,
    )
    .execute(tx.conn())
    .await?;
    sqlx::query!(
        "delete from runs where tenant_id = $1 and id = any($2)",
        tenant,
        &ids
    )
    .execute(tx.conn())
    .await?;
    Ok(batch(&ids, ROWS / 4))
}

/// Deletes a batch of the keys of requests that are older than `cutoff`; how many it deleted.
pub async fn purge_request_keys(tx: &mut Tx, cutoff: OffsetDateTime) -> Result<u64> {
    let deleted = sqlx::query!(
        "delete from request_keys
         where tenant_id = $1 and id in (
           select id from request_keys
           where tenant_id = $1 and id < $2 and created_at < $3
           limit $4 for update skip locked)",
        tx.tenant()?.0,
        id_after(cutoff),
        cutoff,
        ROWS,
    );
    Ok(deleted.execute(tx.conn()).await?.rows_affected())
}

/// Deletes a batch of attachments that were sent before `cutoff` and that no message names.
pub async fn purge_unnamed_attachments(tx: &mut Tx, cutoff: OffsetDateTime) -> Result<u64> {
    let deleted = sqlx::query!(
        "delete from attachments
         where tenant_id = $1 and not named and id in (
           select id from attachments
           where tenant_id = $1 and not named and id < $2
           limit $3 for update skip locked)",
        tx.tenant()?.0,
        id_after(cutoff),
        ROWS,
    );
    Ok(deleted.execute(tx.conn()).await?.rows_affected())
}

/// A batch of these ids, in the order of the query.
fn batch(ids: &[Uuid], limit: i64) -> Batch {
    let full = i64::try_from(ids.len()).is_ok_and(|count| count == limit);
    Batch {
        rows: ids.len() as u64,
        before: ids.last().copied().filter(|_| full),
    }
}
