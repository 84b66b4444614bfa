//! Rows of runs: who works on what, until when. Every write of a worker carries its fence; a worker that
//! lost its lease changes nothing.
//!
//! Whoever writes to a run and to its conversation locks the conversation first, as a delete does, so that
//! two of them never wait for each other.

use std::time::Duration;

use sqlx::types::Json;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Tx, usage};
use crate::domain::{
    error::{Error, Result, Thing},
    ids::{AgentId, ConversationId, ReplicaId, RunId, TenantId, UserId},
    principal::Principal,
    run::{ClaimedRun, Run, RunKind, RunStatus, Usage},
};

/// A run to create. The conversation is locked by the caller.
pub struct NewRun<'a> {
    /// Taken when a run is created and no other one joined.
    pub id: RunId,
    pub conversation: ConversationId,
    pub agent: &'a AgentId,
    pub principal: &'a Principal,
    pub kind: RunKind,
    /// The replica that starts it at once; absent: it waits in the queue.
    pub worker: Option<(ReplicaId, Duration)>,
}

/// What became of a new run.
pub enum Enqueued {
    /// This replica works on it.
    Claimed(ClaimedRun),
    /// It waits, or the message joined a run that waits already.
    Queued { id: RunId, ordinal: i64 },
}

struct Row {
    id: Uuid,
    conversation_id: Uuid,
    kind: String,
    status: String,
    error: Option<String>,
    steps: i32,
    input_tokens: i64,
    output_tokens: i64,
    usage_estimated: bool,
    created_at: OffsetDateTime,
    finished_at: Option<OffsetDateTime>,
}

impl TryFrom<Row> for Run {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        Ok(Self {
            id: RunId(row.id),
            kind: parse_kind(&row.kind),
            conversation_id: ConversationId(row.conversation_id),
            status: RunStatus::parse(&row.status)
                .ok_or_else(|| Error::Internal(anyhow::anyhow!("unknown run status")))?,
            error: row.error,
            steps: row.steps,
            usage: Usage {
                input_tokens: row.input_tokens,
                output_tokens: row.output_tokens,
                estimated: row.usage_estimated,
            },
            created_at: row.created_at,
            finished_at: row.finished_at,
        })
    }
}

fn parse_kind(kind: &str) -> RunKind {
    if kind == RunKind::Command.as_str() {
        RunKind::Command
    } else {
        RunKind::Turn
    }
}

/// Creates a run, or joins the turn that waits already. A turn is claimed at birth unless another one of
/// the conversation is under way; a command always is.
pub async fn enqueue(tx: &mut Tx, tenant: TenantId, new: &NewRun<'_>) -> Result<Enqueued> {
    let id = new.id;
    let row = sqlx::query!(
        r#"with waiting as (
             select id, ordinal from runs
             where tenant_id = $1 and conversation_id = $2 and status = 'queued' and kind = 'turn'
               and $5 = 'turn'
           ), busy as (
             select 1 from runs
             where tenant_id = $1 and conversation_id = $2 and status = 'running' and kind = 'turn'
               and $5 = 'turn'
           ), counted as (
             update conversations set last_run = last_run + 1
             where tenant_id = $1 and id = $2 and not exists (select 1 from waiting) returning last_run
           ), fresh as (
             insert into runs (tenant_id, id, conversation_id, ordinal, agent, user_id, principal, kind, status,
                               lease_owner, lease_until, fence, attempt, started_at)
             select $1, $3, $2, last_run, $4, $6, $7::text::json, $5,
                    case when mine then 'running' else 'queued' end,
                    case when mine then $8 end,
                    case when mine then clock_timestamp() + make_interval(secs => $9) end,
                    mine::int, mine::int,
                    case when mine then now() end
             from counted, lateral (select $8::uuid is not null and not exists (select 1 from busy) as mine) m
             returning id, ordinal, fence
           )
           select id as "id!", ordinal as "ordinal!", fence as "fence!" from fresh
           union all select id, ordinal, 0 from waiting"#,
        tenant.0,
        new.conversation.0,
        id.0,
        new.agent.as_str(),
        new.kind.as_str(),
        new.principal.user.as_str(),
        serde_json::to_string(new.principal).map_err(Error::internal)?,
        new.worker.map(|(replica, _)| replica.0),
        new.worker.map_or(0.0, |(_, lease)| lease.as_secs_f64()),
    )
    .fetch_one(tx.conn())
    .await?;
    if row.id == id.0 && new.kind == RunKind::Turn {
        usage::add_run(tx, tenant, new.principal, new.agent).await?;
    }
    if row.fence == 0 {
        return Ok(Enqueued::Queued {
            id: RunId(row.id),
            ordinal: row.ordinal,
        });
    }
    Ok(Enqueued::Claimed(ClaimedRun {
        tenant,
        id,
        conversation: new.conversation,
        agent: new.agent.clone(),
        principal: new.principal.clone(),
        kind: new.kind,
        ordinal: row.ordinal,
        fence: row.fence,
        attempt: 1,
    }))
}

/// Runs that nobody works on: queued with nothing under way before them, or with a lease that has ended.
/// Needs the system role; learns whose they are and nothing else.
pub async fn claimable(tx: &mut Tx, limit: i64) -> Result<Vec<(TenantId, RunId)>> {
    let rows = sqlx::query!(
        "select r.tenant_id, r.id from runs r
         where r.status = 'running' and r.lease_until < clock_timestamp()
            or r.status = 'queued' and (r.kind = 'command' or not exists (
                 select 1 from runs b
                 where b.tenant_id = r.tenant_id and b.conversation_id = r.conversation_id
                   and b.status = 'running' and b.kind = 'turn'))
         order by r.created_at limit $1",
        limit,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (TenantId(row.tenant_id), RunId(row.id)))
        .collect())
}

/// The turn that waits in a conversation, if one does.
pub async fn waiting(tx: &mut Tx, conversation: ConversationId) -> Result<Option<RunId>> {
    let id = sqlx::query_scalar!(
        "select id from runs
         where tenant_id = $2 and conversation_id = $1 and status = 'queued' and kind = 'turn'",
        conversation.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(id.map(RunId))
}

/// Takes a run, if it is still free. The new fence shuts out whoever held it before. Also whether somebody has asked to
/// cancel it.
pub async fn claim(
    tx: &mut Tx,
    tenant: TenantId,
    id: RunId,
    replica: ReplicaId,
    lease: Duration,
) -> Result<Option<(ClaimedRun, bool)>> {
    // Taken first by everyone who changes which run is under way, so that a message never joins a queued
    // run in the moment in which that run starts to read.
    sqlx::query!(
        "select 1 as one from conversations
         where tenant_id = $2 and id = (select conversation_id from runs where tenant_id = $2 and id = $1)
         for update",
        id.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    let row = sqlx::query!(
        r#"update runs r
           set status = 'running', lease_owner = $2, lease_until = clock_timestamp() + make_interval(secs => $3),
               fence = fence + 1, attempt = attempt + 1, started_at = coalesce(started_at, now())
           where r.tenant_id = $4 and id = (
               select id from runs
               where tenant_id = $4 and id = $1
                 and (status = 'queued' or status = 'running' and lease_until < clock_timestamp())
               for update skip locked)
             and (r.status = 'running' or r.kind = 'command' or not exists (
               select 1 from runs b
               where b.tenant_id = $4 and b.conversation_id = r.conversation_id and b.status = 'running'
                 and b.kind = 'turn'))
           returning conversation_id, agent, principal as "principal: Json<Principal>", kind, ordinal, fence, attempt,
                     cancel_requested"#,
        id.0,
        replica.0,
        lease.as_secs_f64(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    let Some(row) = row else { return Ok(None) };
    let run = ClaimedRun {
        tenant,
        id,
        conversation: ConversationId(row.conversation_id),
        agent: AgentId::parse(&row.agent)
            .map_err(|reason| Error::Internal(anyhow::anyhow!(reason)))?,
        principal: row.principal.0,
        kind: parse_kind(&row.kind),
        ordinal: row.ordinal,
        fence: row.fence,
        attempt: row.attempt,
    };
    Ok(Some((run, row.cancel_requested)))
}

/// Prolongs the lease. `Conflict` when it was lost; otherwise whether somebody asked to cancel.
pub async fn heartbeat(tx: &mut Tx, run: &ClaimedRun, lease: Duration) -> Result<bool> {
    sqlx::query_scalar!(
        "update runs set lease_until = clock_timestamp() + make_interval(secs => $3)
         where tenant_id = $4 and id = $1 and fence = $2 and status = 'running' returning cancel_requested",
        run.id.0,
        run.fence,
        lease.as_secs_f64(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?
    .ok_or_else(|| lost(run))
}

/// Locks the run for a write of its worker, and says whether somebody has asked it to stop; `Conflict` when the lease
/// was lost.
pub async fn assert_held(tx: &mut Tx, run: &ClaimedRun) -> Result<bool> {
    sqlx::query_scalar!(
        "with conversation as (
           select 1 from conversations where tenant_id = $4 and id = $3 for no key update
         )
         select r.cancel_requested from runs r, conversation
         where r.tenant_id = $4 and r.id = $1 and r.fence = $2 and r.status = 'running' for update of r",
        run.id.0,
        run.fence,
        run.conversation.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?
    .ok_or_else(|| lost(run))
}

/// Adds one model step and what it used.
pub async fn add_step(tx: &mut Tx, run: &ClaimedRun, usage: Usage) -> Result<()> {
    let done = sqlx::query!(
        "with conversation as (
           select 1 from conversations where tenant_id = $7 and id = $6 for no key update
         )
         update runs
         set steps = steps + 1, input_tokens = input_tokens + $3, output_tokens = output_tokens + $4,
             usage_estimated = usage_estimated or $5
         from conversation where tenant_id = $7 and id = $1 and fence = $2 and status = 'running'",
        run.id.0,
        run.fence,
        usage.input_tokens,
        usage.output_tokens,
        usage.estimated,
        run.conversation.0,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    if done.rows_affected() == 0 {
        return Err(lost(run));
    }
    usage::add_tokens(tx, run, usage).await
}

/// Ends a run. `Conflict` when the lease was lost.
pub async fn finish(
    tx: &mut Tx,
    run: &ClaimedRun,
    status: RunStatus,
    error: Option<&str>,
) -> Result<()> {
    let done = sqlx::query!(
        "with conversation as (
           select 1 from conversations where tenant_id = $6 and id = $5 for no key update
         )
         update runs
         set status = $3, error = $4, finished_at = now(), lease_owner = null, lease_until = null, token_hashes = '{}'
         from conversation where tenant_id = $6 and id = $1 and fence = $2 and status = 'running'",
        run.id.0,
        run.fence,
        status.as_str(),
        error,
        run.conversation.0,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    if done.rows_affected() == 0 {
        Err(lost(run))
    } else {
        Ok(())
    }
}

/// Gives a run back at shutdown, so that whoever is up next need not wait for the lease to end.
pub async fn release(tx: &mut Tx, run: &ClaimedRun) -> Result<()> {
    sqlx::query!(
        "update runs set lease_until = clock_timestamp()
         where tenant_id = $3 and id = $1 and fence = $2 and status = 'running'",
        run.id.0,
        run.fence,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// A run of this user; anybody else's is not found.
pub async fn get(tx: &mut Tx, user: &UserId, id: RunId) -> Result<Run> {
    sqlx::query_as!(
        Row,
        "select id, conversation_id, kind, status, error, steps, input_tokens, output_tokens, usage_estimated,
                created_at, finished_at
         from runs where tenant_id = $3 and id = $1 and user_id = $2",
        id.0,
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?
    .ok_or_else(|| Error::NotFound(Thing::Run(id)))?
    .try_into()
}

/// Asks the worker of a run to stop. A queued run is cancelled on the spot (returns true).
pub async fn request_cancel(tx: &mut Tx, user: &UserId, id: RunId) -> Result<bool> {
    let row = sqlx::query!(
        r#"with conversation as (
             select 1 from conversations
             where tenant_id = $3 and id = (select conversation_id from runs where tenant_id = $3 and id = $1)
             for no key update
           )
           update runs
           set cancel_requested = true,
               status = case when status = 'queued' then 'cancelled' else status end,
               finished_at = case when status = 'queued' then now() else finished_at end
           from conversation where tenant_id = $3 and id = $1 and user_id = $2
             and status in ('queued', 'running')
           returning status"#,
        id.0,
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    match row {
        Some(row) => Ok(row.status == "cancelled"),
        None => {
            let run = get(tx, user, id).await?;
            Err(Error::Conflict(format!(
                "run {id} is already {}",
                run.status.as_str()
            )))
        }
    }
}

/// What a user has open, in every conversation.
pub async fn open_of_user(tx: &mut Tx, user: &UserId) -> Result<Vec<RunId>> {
    let ids = sqlx::query_scalar!(
        "select id from runs where tenant_id = $2 and user_id = $1 and status in ('queued', 'running')",
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(ids.into_iter().map(RunId).collect())
}

/// What anybody of the tenant has open.
pub async fn open(tx: &mut Tx) -> Result<Vec<(RunId, UserId)>> {
    let rows = sqlx::query!(
        "select id, user_id from runs where tenant_id = $1 and status in ('queued', 'running')",
        tx.tenant()?.0,
    );
    let rows = rows.fetch_all(tx.conn()).await?;
    Ok(rows
        .into_iter()
        .map(|row| (RunId(row.id), UserId(row.user_id.into())))
        .collect())
}

fn lost(run: &ClaimedRun) -> Error {
    Error::Conflict(format!("run {} is no longer held by this replica", run.id))
}
