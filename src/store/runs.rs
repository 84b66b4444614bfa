//! Rows of runs: which replica works on which run, until when. Every write of a worker carries its fence; a
//! worker that lost its lease changes nothing. A writer of a run and its conversation locks the conversation
//! first, as a delete does, so that two writers never wait for each other.

mod claiming;
mod finishing;
pub mod listing;
mod open;

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

pub use self::claiming::{
    Claimable, FullShares, assert_held, claim, claimable, heartbeat, release, waiting,
};
pub use self::finishing::{RunResult, finish};
pub use self::open::{open, open_of_key, open_of_user};
use super::{Tx, messages};
use crate::domain::{
    error::{Error, Result, Thing},
    event::{Event, EventKind},
    ids::{AgentId, ConversationId, MessageId, ReplicaId, RunId, UserId},
    message::{Message, Part, Role},
    principal::Principal,
    run::{ClaimedRun, Run, RunKind, RunStart, RunStatus, Usage},
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
    /// The message that it answers.
    pub role: Role,
    pub parts: &'a [Part],
    pub for_model: bool,
    /// The title of a conversation that has none.
    pub title: Option<&'a str>,
}

/// A run that was written, with the message that it answers.
pub struct WrittenRun {
    /// A run that was waiting already, if the message joined it.
    pub run: Run,
    pub message: Message,
    pub event: Event,
    /// Present when this replica works on it.
    pub claimed: Option<ClaimedRun>,
    /// Runs that were open before it; `None` when the message joined one.
    pub open_before: Option<OpenRuns>,
}

/// How many runs are open: queued or under way.
#[derive(Clone, Copy, Debug)]
pub struct OpenRuns {
    pub of_user: i64,
    pub of_guests: i64,
    pub of_tenant: i64,
}

struct Row {
    id: Uuid,
    conversation_id: Uuid,
    agent: String,
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
            agent: AgentId::parse(&row.agent)
                .map_err(|reason| Error::Internal(anyhow::anyhow!(reason)))?,
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

/// Creates a run, or joins the turn that waits already, and adds the message that it answers. A turn is claimed at birth
/// unless another one of the conversation is under way; a command always is. Counts a new turn for the limits.
#[expect(
    clippy::too_many_lines,
    reason = "one statement instead of ten round trips"
)]
pub async fn create(tx: &mut Tx, new: &NewRun<'_>) -> Result<WrittenRun> {
    let (tenant, message_id) = (tx.tenant()?, MessageId::new());
    let row = sqlx::query!(
        r#"with waiting as (
             select id, ordinal, created_at from runs
             where tenant_id = $1 and conversation_id = $2 and status = 'queued' and kind = 'turn'
               and $5 = 'turn'
           ), busy as (
             select 1 from runs
             where tenant_id = $1 and conversation_id = $2 and status = 'running' and kind = 'turn'
               and $5 = 'turn'
           ), open as (
             select count(*) filter (where user_id = $6) as of_user,
                    count(*) filter (where user_id like 'guest:%') as of_guests, count(*) as of_tenant
             from runs where tenant_id = $1 and status in ('queued', 'running')
           ), counted as (
             update conversations
             set last_run = last_run + (not exists (select 1 from waiting))::int, last_seq = last_seq + 1,
                 last_event = last_event + 1, updated_at = now(),
                 title = case when title = '' then coalesce($16, '') else title end
             where tenant_id = $1 and id = $2
             returning last_run, last_seq, last_event, branch, external_key is not null as is_of_client,
                       titled_by = 'message' and external_key is null as may_be_titled
           ), fresh as (
             insert into runs (tenant_id, id, conversation_id, ordinal, agent, user_id, principal, kind, status,
                               lease_owner, lease_until, fence, attempt, started_at)
             select $1, $3, $2, last_run, $4, $6, $7::text::json, $5,
                    case when mine then 'running' else 'queued' end,
                    case when mine then $8 end,
                    case when mine then m.at + make_interval(secs => $9) end,
                    mine::int, mine::int,
                    case when mine then m.at end
             from counted, lateral (
               select $8::uuid is not null and not exists (select 1 from busy) as mine, statement_timestamp() as at
             ) m
             where not exists (select 1 from waiting)
             returning id, ordinal, fence, created_at
           ), run as (
             select id, ordinal, fence, created_at from fresh
             union all select id, ordinal, 0, created_at from waiting
           ), message as (
             insert into messages (tenant_id, id, conversation_id, seq, run_id, run_ordinal, role, parts, for_model,
                                   branch)
             select $1, $10, $2, last_seq, run.id, run.ordinal, $11, $12::text::json, $13, branch from counted, run
             returning created_at
           ), event as (
             insert into events (tenant_id, id, conversation_id, seq, kind, message_id)
             select $1, $14, $2, last_event, 'message', $10 from counted
           ), used as (
             insert into usage_additions (tenant_id, id, day, user_id, agent, runs)
             select $1, $15, (now() at time zone 'utc')::date, $6, $4, 1 from fresh where $5 = 'turn'
           )
           select run.id as "id!", run.ordinal as "ordinal!", run.fence as "fence!", run.created_at as "created_at!",
                  last_seq as "seq!", last_event as "event!", counted.branch as "branch!", is_of_client as "is_of_client!",
                  may_be_titled as "may_be_titled!", message.created_at as "said_at!", of_user as "of_user!", of_guests as "of_guests!",
                  of_tenant as "of_tenant!"
           from run, counted, message, open"#,
        tenant.0,
        new.conversation.0,
        new.id.0,
        new.agent.as_str(),
        new.kind.as_str(),
        new.principal.user.as_str(),
        serde_json::to_string(new.principal).map_err(Error::internal)?,
        new.worker.map(|(replica, _)| replica.0),
        new.worker.map_or(0.0, |(_, lease)| lease.as_secs_f64()),
        message_id.0,
        messages::role_name(new.role),
        serde_json::to_string(new.parts).map_err(Error::internal)?,
        new.for_model,
        Uuid::now_v7(),
        Uuid::now_v7(),
        new.title,
    )
    .fetch_one(tx.conn())
    .await?;
    let id = RunId(row.id);
    let message = Message {
        id: message_id,
        conversation_id: new.conversation,
        branch: row.branch,
        seq: row.seq,
        role: new.role,
        parts: new.parts.to_vec(),
        run_id: Some(id),
        created_at: row.said_at,
    };
    let is_mine = row.fence > 0;
    let start = RunStart {
        last_event: row.event,
        may_be_titled: row.may_be_titled,
        is_of_client: row.is_of_client,
        is_delegated: false,
        has_input: new.for_model,
        has_aside: new.role == Role::User && !new.for_model,
        only_message: (row.seq == 1 && new.for_model).then(|| message.clone()),
    };
    let open_before = (id == new.id).then_some(OpenRuns {
        of_user: row.of_user,
        of_guests: row.of_guests,
        of_tenant: row.of_tenant,
    });
    Ok(WrittenRun {
        open_before,
        run: Run {
            id,
            kind: new.kind,
            conversation_id: new.conversation,
            agent: new.agent.clone(),
            status: if is_mine {
                RunStatus::Running
            } else {
                RunStatus::Queued
            },
            error: None,
            steps: 0,
            usage: Usage::default(),
            created_at: row.created_at,
            finished_at: None,
        },
        event: Event {
            seq: row.event,
            kind: EventKind::Message(message.clone()),
        },
        message,
        claimed: is_mine.then(|| ClaimedRun {
            tenant,
            id,
            conversation: new.conversation,
            agent: new.agent.clone(),
            principal: new.principal.clone(),
            kind: new.kind,
            ordinal: row.ordinal,
            fence: row.fence,
            attempt: 1,
            start,
        }),
    })
}

/// Adds one model step and what it used.
pub async fn add_step(tx: &mut Tx, run: &ClaimedRun, usage: Usage) -> Result<()> {
    let held = sqlx::query_scalar!(
        r#"with conversation as (
             select 1 from conversations where tenant_id = $1 and id = $4 for no key update
           ), held as (
             update runs
             set steps = steps + 1, input_tokens = input_tokens + $5, output_tokens = output_tokens + $6,
                 usage_estimated = usage_estimated or $7
             from conversation where tenant_id = $1 and id = $2 and fence = $3 and status = 'running'
             returning user_id, agent
           ), used as (
             insert into usage_additions (tenant_id, id, day, user_id, agent, input_tokens, output_tokens)
             select $1, $8, (now() at time zone 'utc')::date, user_id, agent, $5, $6 from held
           )
           select true as "held!" from held"#,
        tx.tenant()?.0,
        run.id.0,
        run.fence,
        run.conversation.0,
        usage.input_tokens,
        usage.output_tokens,
        usage.estimated,
        Uuid::now_v7(),
    )
    .fetch_optional(tx.conn())
    .await?;
    held.map(drop).ok_or_else(|| lost(run))
}

/// A run of this user; another user's is not found.
pub async fn get(tx: &mut Tx, user: &UserId, id: RunId) -> Result<Run> {
    sqlx::query_as!(
        Row,
        "select id, conversation_id, agent, kind, status, error, steps, input_tokens, output_tokens, usage_estimated,
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

fn lost(run: &ClaimedRun) -> Error {
    Error::Conflict(format!("run {} is no longer held by this replica", run.id))
}
