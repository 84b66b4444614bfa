//! Counts and deletes old rows in batches. A batch is one transaction, and takes only rows that no other transaction
//! has locked. Ids are UUIDv7, so that rows after the cutoff are not read at all.

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{
    audit::id_after,
    error::Result,
    ids::{ConversationId, TenantId, UserId},
};

/// The largest number of conversations that one transaction deletes.
const CONVERSATIONS: i64 = 100;
/// The largest number of rows that one statement deletes, so that it takes much less than the time limit of statements.
const ROWS: i64 = 2_000;

/// The result of deleting a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    pub rows: u64,
    /// The next batch has ids before this one. `None` after the last batch.
    pub before: Option<Uuid>,
}

/// A query for conversations that were not used since a time, with the conversations below them. A conversation does
/// not count while a run of it is open or a call of it waits for approval.
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

/// A query for runs that ended before a time, in trees that have ended. A run does not count while a call of its
/// conversation waits for approval.
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

/// Counts the conversations to delete: of guests, or of users.
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

/// Deletes conversations, the newest first, so that a session is deleted before the one that started it.
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
    Ok(to_batch(&ids, CONVERSATIONS))
}

/// Deletes at most 100 conversations of a user in any state. Returns their ids.
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

/// Deletes conversations that are locked. Events, messages and runs are deleted first, in statements that are short
/// enough.
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

/// Counts the runs to delete.
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

/// Deletes runs. Their messages stay, without a run.
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
    Ok(to_batch(&ids, ROWS / 4))
}

/// Deletes a batch of keys of requests from before `cutoff`. Returns how many.
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

/// Deletes a batch of sums of limits that count nothing any more. Returns how many. A call that looks at one meanwhile
/// waits, and begins it anew.
pub async fn purge_limit_sums(tx: &mut Tx) -> Result<u64> {
    let deleted = sqlx::query!(
        "delete from limit_sums
         where tenant_id = $1 and id in (
           select id from limit_sums
           where tenant_id = $1 and coalesce(over_at, looked_at + interval '366 days') < statement_timestamp()
           limit $2 for update skip locked)",
        tx.tenant()?.0,
        ROWS,
    );
    Ok(deleted.execute(tx.conn()).await?.rows_affected())
}

/// Deletes a batch of attachments from before `cutoff` that no message names. Returns how many.
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

/// The batch of these ids, in the order of the query.
fn to_batch(ids: &[Uuid], limit: i64) -> Batch {
    let full = i64::try_from(ids.len()).is_ok_and(|count| count == limit);
    Batch {
        rows: ids.len() as u64,
        before: ids.last().copied().filter(|_| full),
    }
}

/// Counts the closed approvals whose arguments are to be erased.
pub async fn count_arguments(tx: &mut Tx, cutoff: OffsetDateTime) -> Result<i64> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!" from approvals
           where tenant_id = $1 and length(sealed) > 7 and changed_at < $2
             and state not in ('pending', 'approved', 'executing')"#,
        tx.tenant()?.0,
        cutoff,
    );
    Ok(count.fetch_one(tx.conn()).await?)
}

/// Erases the arguments of closed approvals, the answers of the servers, and the claims of the requesters. The bytes
/// of the sealed arguments that name the key stay.
pub async fn purge_arguments(tx: &mut Tx, cutoff: OffsetDateTime) -> Result<Batch> {
    let ids = sqlx::query_scalar!(
        "update approvals
         set sealed = substr(sealed, 1, 7), evidence = null,
             principal = erased_principal(tenant_id, requester)
         where tenant_id = $1 and id in (
           select id from approvals
           where tenant_id = $1 and length(sealed) > 7 and changed_at < $2
             and state not in ('pending', 'approved', 'executing')
           order by id limit $3 for update skip locked)
         returning id",
        tx.tenant()?.0,
        cutoff,
        ROWS,
    );
    let ids = ids.fetch_all(tx.conn()).await?;
    sqlx::query!(
        "update approval_results set result = null where tenant_id = $1 and id = any($2)",
        tx.tenant()?.0,
        &ids,
    )
    .execute(tx.conn())
    .await?;
    Ok(to_batch(&ids, ROWS))
}

/// Counts the kept calls to delete.
pub async fn count_kept_calls(tx: &mut Tx, cutoff: OffsetDateTime) -> Result<i64> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!" from kept_calls where tenant_id = $1 and at < $2"#,
        tx.tenant()?.0,
        cutoff,
    );
    Ok(count.fetch_one(tx.conn()).await?)
}

/// Deletes kept calls.
pub async fn purge_kept_calls(tx: &mut Tx, cutoff: OffsetDateTime) -> Result<Batch> {
    let ids = sqlx::query_scalar!(
        "delete from kept_calls where tenant_id = $1 and id in (
           select id from kept_calls where tenant_id = $1 and at < $2 order by id limit $3 for update skip locked)
         returning id",
        tx.tenant()?.0,
        cutoff,
        ROWS,
    );
    let ids = ids.fetch_all(tx.conn()).await?;
    Ok(to_batch(&ids, ROWS))
}

/// Counts the lines of the audit trail to delete.
pub async fn count_audit(tx: &mut Tx, cutoff: OffsetDateTime) -> Result<i64> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!" from audit where tenant_id = $1 and id < $2 and at < $3"#,
        tx.tenant()?.0,
        id_after(cutoff),
        cutoff,
    );
    Ok(count.fetch_one(tx.conn()).await?)
}

/// Deletes lines of the audit trail, the oldest first. Needs [`Db::retention`](super::Db::retention): its role sees no line
/// that is younger than the days of [`set_audit_days`].
pub async fn purge_audit(tx: &mut Tx, cutoff: OffsetDateTime) -> Result<Batch> {
    let deleted = sqlx::query!(
        "delete from audit where tenant_id = $1 and id in (
           select id from audit where tenant_id = $1 and id < $2 and at < $3 order by id limit $4)",
        tx.tenant()?.0,
        id_after(cutoff),
        cutoff,
        ROWS,
    )
    .execute(tx.conn())
    .await?;
    let rows = deleted.rows_affected();
    let more = rows == ROWS.cast_unsigned();
    Ok(Batch {
        rows,
        before: more.then(Uuid::max),
    })
}

/// Sets after how many days lines of a tenant's trail may be deleted. Returns whether the value is new. Needs the
/// system role.
pub async fn set_audit_days(tx: &mut Tx, tenant: TenantId, days: Option<i32>) -> Result<bool> {
    let changed = sqlx::query!(
        "update tenants set audit_days = $2 where id = $1 and audit_days is distinct from $2",
        tenant.0,
        days,
    )
    .execute(tx.conn())
    .await?;
    Ok(changed.rows_affected() == 1)
}
