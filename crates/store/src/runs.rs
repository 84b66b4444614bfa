//! Rows of runs. A replica works on a run until its lease ends. Every write of a worker carries its fence, so that a
//! worker that lost its lease changes nothing. A writer of a run and its conversation locks the conversation first,
//! as a delete does, so that two writers never wait for each other.

mod claiming;
mod creation;
mod finishing;

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

pub use self::{
    claiming::{
        Claimable, FullShares, assert_held, claim, find_waiting, heartbeat, list_claimable, release,
    },
    creation::{NewRun, OpenRuns, WrittenRun, create},
    finishing::{RunResult, finish},
};
use super::Tx;
use domain::{
    error::{Error, ErrorCode, Missing, Result},
    ids::{AgentId, ApiKeyId, ConversationId, RunId, UserId},
    run::{ClaimedRun, Run, RunKind, RunStatus, Usage},
};

struct Row {
    id: RunId,
    conversation_id: ConversationId,
    agent: AgentId,
    kind: RunKind,
    status: RunStatus,
    error: Option<String>,
    steps: i32,
    input_tokens: i64,
    cached_input_tokens: i64,
    output_tokens: i64,
    usage_estimated: bool,
    created_at: OffsetDateTime,
    finished_at: Option<OffsetDateTime>,
}

impl From<Row> for Run {
    fn from(row: Row) -> Self {
        Self {
            id: row.id,
            kind: row.kind,
            conversation_id: row.conversation_id,
            agent: row.agent,
            status: row.status,
            error: row.error,
            steps: row.steps,
            usage: Usage {
                input_tokens: row.input_tokens,
                cached_input_tokens: row.cached_input_tokens,
                output_tokens: row.output_tokens,
                estimated: row.usage_estimated,
            },
            created_at: row.created_at,
            finished_at: row.finished_at,
        }
    }
}

/// A query for runs: the SQL before and after the columns, and its values.
macro_rules! runs {
    ($before:literal, $after:literal $(, $value:expr)* $(,)?) => {
        sqlx::query_as!(
            $crate::runs::Row,
            $before
                + r#" id as "id: _", conversation_id as "conversation_id: _", agent as "agent: _", kind as "kind: _",
                      status as "status: _", error, steps, input_tokens, cached_input_tokens, output_tokens,
                      usage_estimated, created_at, finished_at "#
                + $after
            $(, $value)*
        )
    };
}

/// Adds one model step and the tokens that it used. Returns whether an equal request has replaced the run (see
/// [`supersede`]). `Conflict` if the lease was lost.
pub async fn add_step(tx: &mut Tx, run: &ClaimedRun, usage: Usage) -> Result<bool> {
    let superseded = sqlx::query_scalar!(
        r#"with conversation as (
             select 1 from conversations where tenant_id = $1 and id = $4 for no key update
           ), held as (
             update runs
             set steps = steps + 1, input_tokens = input_tokens + $5, output_tokens = output_tokens + $6,
                 usage_estimated = usage_estimated or $7, cached_input_tokens = cached_input_tokens + $9
             from conversation where tenant_id = $1 and id = $2 and fence = $3 and status = 'running'
             returning user_id, agent, superseded
           ), used as (
             insert into usage_additions (tenant_id, id, day, user_id, agent, input_tokens, output_tokens,
                                          cached_input_tokens)
             select $1, $8, (now() at time zone 'utc')::date, user_id, agent, $5, $6, $9 from held
             returning 1
           )
           select superseded from held"#,
        tx.tenant()?.0,
        run.id.0,
        run.fence,
        run.conversation.0,
        usage.input_tokens,
        usage.output_tokens,
        usage.estimated,
        Uuid::now_v7(),
        usage.cached_input_tokens,
    )
    .fetch_optional(tx.conn())
    .await?;
    superseded.ok_or_else(|| lost(run))
}

/// Records that an equal request replaces a run, in the transaction that begins the new run. From then on the worker
/// of the old run writes no call; calls that it wrote before can be read in this transaction. Returns the
/// conversation of the old run, or `None` if that run has ended.
pub async fn supersede(tx: &mut Tx, id: RunId) -> Result<Option<ConversationId>> {
    let conversation = sqlx::query_scalar!(
        r#"with conversation as (
           select 1 from conversations
           where tenant_id = $1 and id = (select conversation_id from runs where tenant_id = $1 and id = $2)
           for no key update
         )
         update runs set superseded = true
         from conversation where tenant_id = $1 and id = $2 and status in ('queued', 'running')
         returning conversation_id as "conversation_id: ConversationId""#,
        tx.tenant()?.0,
        id.0,
    );
    Ok(conversation.fetch_optional(tx.conn()).await?)
}

/// A run of this user. `NotFound` for a run of another user.
pub async fn get(tx: &mut Tx, user: &UserId, id: RunId) -> Result<Run> {
    runs!(
        "select",
        "from runs where tenant_id = $3 and id = $1 and user_id = $2",
        id.0,
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?
    .map(Run::from)
    .ok_or_else(|| Error::NotFound(Missing::Run(id)))
}

/// The time until the model may be asked again, for a run that failed because the model did not answer. `None` for any
/// other run.
pub async fn get_retry_after(tx: &mut Tx, id: RunId) -> Result<Option<Duration>> {
    let seconds = sqlx::query_scalar!(
        r#"select greatest(extract(epoch from retry_at - now()), 0)::float8 as seconds
           from runs where tenant_id = $1 and id = $2 and retry_at is not null"#,
        tx.tenant()?.0,
        id.0,
    );
    let seconds = seconds.fetch_optional(tx.conn()).await?.flatten();
    Ok(seconds.map(Duration::from_secs_f64))
}

/// An answer that was delivered to a client that sends whole transcripts.
pub struct DeliveredAnswer<'a> {
    pub conversation: ConversationId,
    /// The key by which the client finds the conversation next time.
    pub key: &'a str,
    /// The last event that the client received.
    pub event: i64,
    /// If given, the delivery is recorded only while this is the last event of the conversation.
    pub only_if_last: Option<i64>,
}

/// Records the delivery of an answer, and reads the run of this user that answered.
pub async fn record_delivery(
    tx: &mut Tx,
    user: &UserId,
    id: RunId,
    delivered: &DeliveredAnswer<'_>,
) -> Result<Run> {
    runs!(
        "with told as (
           update conversations
           set external_key = case when external_key is not null then $5 end, told_event = $6
           where tenant_id = $3 and id = $4 and ($7::bigint is null or last_event = $7)
         )
         select",
        "from runs where tenant_id = $3 and id = $1 and user_id = $2",
        id.0,
        user.as_str(),
        tx.tenant()?.0,
        delivered.conversation.0,
        delivered.key,
        delivered.event,
        delivered.only_if_last,
    )
    .fetch_optional(tx.conn())
    .await?
    .map(Run::from)
    .ok_or_else(|| Error::NotFound(Missing::Run(id)))
}

/// Asks the worker of a run to stop. Returns `true` if the run was queued and is cancelled at once. `Conflict` if it
/// has ended.
pub async fn request_cancel(tx: &mut Tx, user: &UserId, id: RunId) -> Result<bool> {
    let row = sqlx::query!(
        r#"with conversation as (
             select statement_timestamp() as at from conversations
             where tenant_id = $3 and id = (select conversation_id from runs where tenant_id = $3 and id = $1)
             for no key update
           )
           update runs
           set cancel_requested = true,
               status = case when status = 'queued' then 'cancelled' else status end,
               finished_at = case when status = 'queued' then conversation.at else finished_at end
           from conversation where tenant_id = $3 and id = $1 and user_id = $2
             and status in ('queued', 'running')
           returning status as "status: RunStatus""#,
        id.0,
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    match row {
        Some(row) => Ok(row.status == RunStatus::Cancelled),
        None => {
            let run = get(tx, user, id).await?;
            Err(Error::conflict(
                ErrorCode::RunOver,
                format!("run {id} is already {}", run.status.into_str()),
            ))
        }
    }
}

fn lost(run: &ClaimedRun) -> Error {
    Error::conflict(
        ErrorCode::Conflict,
        format!("run {} is no longer held by this replica", run.id),
    )
}

/// Which runs to list.
#[derive(Clone, Copy)]
pub struct RunFilter {
    pub conversation: Option<ConversationId>,
    pub status: Option<RunStatus>,
    /// The last run of the page before.
    pub cursor: Option<RunId>,
    pub limit: i64,
}

/// The user's runs, the newest first.
pub async fn list(tx: &mut Tx, user: &UserId, filter: RunFilter) -> Result<Vec<Run>> {
    let rows = runs!(
        "select",
        "from runs
         where tenant_id = $1 and user_id = $2 and ($3::uuid is null or conversation_id = $3)
           and ($4::text is null or status = $4) and ($5::uuid is null or id < $5)
         order by id desc limit $6",
        tx.tenant()?.0,
        user.as_str(),
        filter.conversation.map(|id| id.0),
        filter.status.map(<&str>::from),
        filter.cursor.map(|id| id.0),
        filter.limit,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows.into_iter().map(Into::into).collect())
}

/// The open runs of a user, in all conversations.
pub async fn list_open_of_user(tx: &mut Tx, user: &UserId) -> Result<Vec<RunId>> {
    let ids = sqlx::query_scalar!(
        r#"select id as "id: RunId" from runs
           where tenant_id = $2 and user_id = $1 and status in ('queued', 'running')"#,
        user.as_str(),
        tx.tenant()?.0,
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// The open runs that were begun with an API key, and their users.
pub async fn list_open_of_key(tx: &mut Tx, key: ApiKeyId) -> Result<Vec<(RunId, UserId)>> {
    let rows = sqlx::query!(
        r#"select id as "id: RunId", user_id as "user_id: UserId" from runs
           where tenant_id = $1 and principal->>'key' = $2 and status in ('queued', 'running')"#,
        tx.tenant()?.0,
        key.to_string(),
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    Ok(rows.into_iter().map(|row| (row.id, row.user_id)).collect())
}

/// The open runs of the tenant, and their users.
pub async fn list_open(tx: &mut Tx) -> Result<Vec<(RunId, UserId)>> {
    let rows = sqlx::query!(
        r#"select id as "id: RunId", user_id as "user_id: UserId" from runs
           where tenant_id = $1 and status in ('queued', 'running')"#,
        tx.tenant()?.0,
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    Ok(rows.into_iter().map(|row| (row.id, row.user_id)).collect())
}
