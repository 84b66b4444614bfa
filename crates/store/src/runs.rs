//! Rows of runs: which replica works on which run, until when. Every write of a worker carries its fence; a
//! worker that lost its lease changes nothing. A writer of a run and its conversation locks the conversation
//! first, as a delete does, so that two writers never wait for each other.

mod claiming;
mod creation;
mod finishing;
pub mod listing;
mod open;

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

pub use self::{
    claiming::{Claimable, FullShares, assert_held, claim, claimable, heartbeat, release, waiting},
    creation::{NewRun, OpenRuns, WrittenRun, create},
    finishing::{RunResult, finish},
    open::{open, open_of_key, open_of_user},
};
use super::Tx;
use domain::{
    error::{Error, ErrorCode, Result, Thing},
    ids::{AgentId, ConversationId, RunId, UserId},
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

/// A query for runs: what stands before the columns and behind them, and its values.
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
use runs;

/// Adds one model step and what it used. Whether an equal request takes the place of the run: see [`supersede`].
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

/// Records that an equal request takes the place of a run, in the transaction that begins the other run. Its worker writes
/// no call from then on; those that it wrote before can be read in this transaction. The conversation of the run, if the run
/// has not ended.
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

/// A run of this user; another user's is not found.
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
    .ok_or_else(|| Error::NotFound(Thing::Run(id)))
}

/// How long it takes until the model may be asked again whose silence has made a run fail; `None` when it failed
/// otherwise.
pub async fn retry_after(tx: &mut Tx, id: RunId) -> Result<Option<Duration>> {
    let seconds = sqlx::query_scalar!(
        r#"select greatest(extract(epoch from retry_at - now()), 0)::float8 as seconds
           from runs where tenant_id = $1 and id = $2 and retry_at is not null"#,
        tx.tenant()?.0,
        id.0,
    );
    let seconds = seconds.fetch_optional(tx.conn()).await?.flatten();
    Ok(seconds.map(Duration::from_secs_f64))
}

/// What a client that sends whole transcripts was told of a conversation.
pub struct ToldAnswer<'a> {
    pub conversation: ConversationId,
    /// By which its client finds the conversation next time.
    pub key: &'a str,
    /// The last event that the client received.
    pub event: i64,
    /// It counts only while this is the last event.
    pub only_if_last: Option<i64>,
}

/// Writes what a client was told, and reads the run of this user that answered.
pub async fn record_told(
    tx: &mut Tx,
    user: &UserId,
    id: RunId,
    told: &ToldAnswer<'_>,
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
        told.conversation.0,
        told.key,
        told.event,
        told.only_if_last,
    )
    .fetch_optional(tx.conn())
    .await?
    .map(Run::from)
    .ok_or_else(|| Error::NotFound(Thing::Run(id)))
}

/// Asks the worker of a run to stop. A queued run is cancelled on the spot (returns true).
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
