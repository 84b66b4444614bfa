//! Leases of runs: a replica claims a run, prolongs the lease and releases it. Users and tenants take turns.

use std::time::Duration;

use sqlx::types::Json;

use super::lost;
use crate::Tx;
use domain::{
    answer_format::AnswerFormat,
    error::Result,
    ids::{AgentId, ConversationId, ReplicaId, RunId, TenantId},
    principal::{FairShareKey, Principal},
    run::{ClaimedRun, RunKind, RunStart},
    trace_context::TraceContext,
};

/// The users and tenants that have reached the largest number of runs at once in this process. All guests of a tenant
/// count as one user.
#[derive(Default)]
pub struct FullShares {
    pub users: Vec<FairShareKey>,
    pub tenants: Vec<TenantId>,
}

/// A run that no replica works on.
pub struct Claimable {
    pub id: RunId,
    /// The share of the slots that the run would take.
    pub share: FairShareKey,
}

/// Finds runs that no replica works on: queued turns of conversations without a running turn, queued commands, and
/// runs whose lease has ended. Tenants take turns, the users of a tenant take turns, and the runs of a user come
/// oldest first. Users and tenants in `full` are left out. Needs the system role; reads only the owners of the runs.
pub async fn list_claimable(tx: &mut Tx, limit: i64, full: &FullShares) -> Result<Vec<Claimable>> {
    let tenants: Vec<_> = full.tenants.iter().map(|tenant| tenant.0).collect();
    let (of, users): (Vec<_>, Vec<_>) = full
        .users
        .iter()
        .map(|share| (share.tenant.0, share.user.clone()))
        .unzip();
    let rows = sqlx::query!(
        r#"with free as (
             select r.tenant_id, r.id, r.created_at,
                    case when r.user_id like 'guest:%' then 'guest:' else r.user_id end as sharer
             from runs r
             where not r.tenant_id = any ($2)
               and (r.status = 'running' and r.lease_until < statement_timestamp()
                    or r.status = 'queued' and (r.kind = 'command' or not exists (
                      select 1 from runs b
                      where b.tenant_id = r.tenant_id and b.conversation_id = r.conversation_id
                        and b.status = 'running' and b.kind = 'turn')))
           ), of_user as (
             select f.tenant_id, f.id, f.created_at, f.sharer,
                    row_number() over (partition by f.tenant_id, f.sharer order by f.created_at, f.id) as turn
             from free f
             where not exists (
               select 1 from unnest($3::uuid[], $4::text[]) taken (tenant_id, sharer)
               where taken.tenant_id = f.tenant_id and taken.sharer = f.sharer)
           ), of_tenant as (
             select o.tenant_id, o.id, o.created_at, o.sharer,
                    row_number() over (partition by o.tenant_id order by o.turn, o.created_at, o.id) as turn
             from of_user o
           )
           select t.tenant_id as "tenant_id!: TenantId", t.id as "id!: RunId", t.sharer as "sharer!"
           from of_tenant t order by t.turn, t.created_at, t.id limit $1"#,
        limit,
        &tenants,
        &of,
        &users,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Claimable {
            id: row.id,
            share: FairShareKey {
                tenant: row.tenant_id,
                user: row.sharer,
            },
        })
        .collect())
}

/// The queued turn of a conversation, if there is one.
pub async fn find_waiting(tx: &mut Tx, conversation: ConversationId) -> Result<Option<RunId>> {
    let id = sqlx::query_scalar!(
        r#"select id as "id: RunId" from runs
           where tenant_id = $2 and conversation_id = $1 and status = 'queued' and kind = 'turn'"#,
        conversation.0,
        tx.tenant()?.0,
    );
    Ok(id.fetch_optional(tx.conn()).await?)
}

/// Claims a run. `None` if it is not free any more. The new fence stops the writes of an earlier worker. Also returns
/// whether the run is to be cancelled.
pub async fn claim(
    tx: &mut Tx,
    tenant: TenantId,
    id: RunId,
    replica: ReplicaId,
    lease: Duration,
) -> Result<Option<(ClaimedRun, bool)>> {
    // Every writer that changes which run is running locks the conversation first, so that a message never joins a
    // queued run while that run starts to read.
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
           set status = 'running', lease_owner = $2, lease_until = clock.until,
               fence = fence + 1, attempt = attempt + 1, started_at = coalesce(started_at, clock.at)
           from (
               select statement_timestamp() as at, statement_timestamp() + make_interval(secs => $3) as until
               offset 0) clock
           where r.tenant_id = $4 and id = (
               select id from runs
               where tenant_id = $4 and id = $1
                 and (status = 'queued' or status = 'running' and lease_until < statement_timestamp())
               for update skip locked)
             and (r.status = 'running' or r.kind = 'command' or not exists (
               select 1 from runs b
               where b.tenant_id = $4 and b.conversation_id = r.conversation_id and b.status = 'running'
                 and b.kind = 'turn'))
           returning conversation_id as "conversation_id: ConversationId", agent as "agent: AgentId",
                     principal as "principal: Json<Principal>", kind as "kind: RunKind", ordinal, fence, attempt,
                     cancel_requested, request_id, trace as "trace: Json<TraceContext>""#,
        id.0,
        replica.0,
        lease.as_secs_f64(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    let Some(row) = row else { return Ok(None) };
    let start = read_start(tx, id).await?;
    let run = ClaimedRun {
        start,
        tenant,
        id,
        conversation: row.conversation_id,
        agent: row.agent,
        principal: row.principal.0,
        kind: row.kind,
        ordinal: row.ordinal,
        fence: row.fence,
        attempt: row.attempt,
        request: row.request_id,
        trace: row.trace.map(|trace| trace.0),
    };
    Ok(Some((run, row.cancel_requested)))
}

/// The facts with which the worker of a claimed run begins.
async fn read_start(tx: &mut Tx, id: RunId) -> Result<RunStart> {
    let row = sqlx::query!(
        r#"select c.last_event, c.external_key is not null as "is_of_client!",
                  c.titled_by = 'message' and c.external_key is null as "may_be_titled!",
                  r.params is not null or r.parent_run is not null as "is_delegated!",
                  r.answer_format as "answer_format: Json<AnswerFormat>",
                  coalesce(m.input, false) as "has_input!", coalesce(m.to_prepare, false) as "needs_preparation!"
           from runs r
           join conversations c on c.tenant_id = r.tenant_id and c.id = r.conversation_id
           left join lateral (
             select bool_or(for_model) as input, bool_or(role = 'user' and not for_model) as to_prepare
             from messages where tenant_id = $1 and run_id = r.id
           ) m on true
           where r.tenant_id = $1 and r.id = $2"#,
        tx.tenant()?.0,
        id.0,
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(RunStart {
        last_event: row.last_event,
        may_be_titled: row.may_be_titled,
        is_of_client: row.is_of_client,
        is_delegated: row.is_delegated,
        has_input: row.has_input,
        needs_preparation: row.needs_preparation,
        format: row.answer_format.map(|format| format.0),
        only_message: None,
    })
}

/// Prolongs the lease. Returns whether the run is to be cancelled. `Conflict` if the lease was lost.
pub async fn heartbeat(tx: &mut Tx, run: &ClaimedRun, lease: Duration) -> Result<bool> {
    sqlx::query_scalar!(
        "update runs set lease_until = statement_timestamp() + make_interval(secs => $3)
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

/// Locks the run for a write of its worker. Returns whether the run is to stop, because it is to be cancelled or an
/// equal request has replaced it. `Conflict` if the lease was lost.
pub async fn assert_held(tx: &mut Tx, run: &ClaimedRun) -> Result<bool> {
    sqlx::query_scalar!(
        r#"with conversation as (
           select 1 from conversations where tenant_id = $4 and id = $3 for no key update
         )
         select r.cancel_requested or r.superseded as "is_stopped!" from runs r, conversation
         where r.tenant_id = $4 and r.id = $1 and r.fence = $2 and r.status = 'running' for update of r"#,
        run.id.0,
        run.fence,
        run.conversation.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?
    .ok_or_else(|| lost(run))
}

/// Releases a run at shutdown, so that the next replica does not wait until the lease ends.
pub async fn release(tx: &mut Tx, run: &ClaimedRun) -> Result<()> {
    sqlx::query!(
        "update runs set lease_until = statement_timestamp()
         where tenant_id = $3 and id = $1 and fence = $2 and status = 'running'",
        run.id.0,
        run.fence,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
