//! Writes new runs.

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use crate::Tx;
use domain::{
    answer_format::AnswerFormat,
    error::{Error, Result},
    event::{Event, EventKind},
    ids::{AgentId, ConversationId, MessageId, ReplicaId, RunId, TenantId},
    message::{Message, Part, Role},
    principal::Principal,
    run::{ClaimedRun, Run, RunKind, RunStart, RunStatus, Usage},
    trace_context::TraceContext,
};

/// A run to create. The caller has locked the conversation.
pub struct NewRun<'a> {
    /// The id of the run, unless its message joins a queued run.
    pub id: RunId,
    pub conversation: ConversationId,
    pub agent: &'a AgentId,
    pub principal: &'a Principal,
    pub kind: RunKind,
    /// The replica that starts the run at once, with its lease. Absent if the run waits in the queue.
    pub worker: Option<(ReplicaId, Duration)>,
    /// The role of the message that the run answers.
    pub role: Role,
    pub parts: &'a [Part],
    pub for_model: bool,
    /// A title for the conversation, used if it has none, or if it has a command as its title and this is none.
    pub title: Option<&'a str>,
    /// The form that the answer must have. If the message joins a queued run, this form replaces the form of that run.
    pub format: Option<&'a AnswerFormat>,
    /// The id of the HTTP request that makes the run.
    pub request: Option<&'a str>,
    /// The span in which it is made, if there are traces.
    pub trace: Option<&'a TraceContext>,
}

/// A run that was written, with the message that it answers.
pub struct WrittenRun {
    /// The new run, or the queued run that the message joined.
    pub run: Run,
    pub message: Message,
    pub event: Event,
    /// Present if this replica works on the run.
    pub claimed: Option<ClaimedRun>,
    /// The runs that were open before. `None` if the message joined one.
    pub open_before: Option<OpenRuns>,
}

/// The numbers of open runs: queued or running.
#[derive(Clone, Copy, Debug)]
pub struct OpenRuns {
    pub of_user: i64,
    pub of_guests: i64,
    pub of_tenant: i64,
}

struct Row {
    id: RunId,
    ordinal: i64,
    fence: i64,
    created_at: OffsetDateTime,
    seq: i64,
    event: i64,
    branch: i32,
    is_of_client: bool,
    may_be_titled: bool,
    said_at: OffsetDateTime,
    of_user: i64,
    of_guests: i64,
    of_tenant: i64,
}

/// One statement instead of ten round trips. It claims the new run for the replica `$8` unless another turn is
/// running, and joins a queued turn.
macro_rules! write_run {
    ($($value:expr,)*) => {
        sqlx::query_as!(
            Row,
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
                 title = case when title = '' or titled_by = 'message' and $5 = 'turn' and title like '/%'
                              then coalesce($16, title) else title end
             where tenant_id = $1 and id = $2
             returning last_run, last_seq, last_event, branch, external_key is not null as is_of_client,
                       titled_by = 'message' and external_key is null as may_be_titled
           ), fresh as (
             insert into runs (tenant_id, id, conversation_id, ordinal, agent, user_id, principal, kind, status,
                               lease_owner, lease_until, fence, attempt, started_at, answer_format, request_id,
                               trace)
             select $1, $3, $2, last_run, $4, $6, $7::text::json, $5,
                    case when mine then 'running' else 'queued' end,
                    case when mine then $8 end,
                    case when mine then m.at + make_interval(secs => $9) end,
                    mine::int, mine::int,
                    case when mine then m.at end, $17::text::json, $18, $19::text::json
             from counted, open, -- so that it is counted before, where the tables are sharded
             lateral (
               select $8::uuid is not null and not exists (select 1 from busy) as mine, statement_timestamp() as at
               offset 0 -- asked once, not once for each column
             ) m
             where not exists (select 1 from waiting)
             returning id, ordinal, fence, created_at
           ), run as (
             select id, ordinal, fence, created_at from fresh
             union all select id, ordinal, 0, created_at from waiting
           ), formed as (
             update runs set answer_format = $17::text::json
             where tenant_id = $1 and id in (select id from waiting) and $17::text is not null
           ), message as (
             insert into messages (tenant_id, id, conversation_id, seq, run_id, run_ordinal, role, parts, for_model,
                                   branch)
             select $1, $10, $2, last_seq, run.id, run.ordinal, $11, $12::text::json, $13, branch from counted, run
             returning created_at
           ), event as (
             insert into events (tenant_id, id, conversation_id, seq, kind, message_id)
             select $1, $14, $2, last_event, 'message', $10 from counted
             returning 1
           ), used as (
             insert into usage_additions (tenant_id, id, day, user_id, agent, runs, bytes)
             select $1, $15, (now() at time zone 'utc')::date, $6, $4,
                    (select count(*) from fresh where $5 = 'turn'), octet_length($12::text) + 256
             from counted returning 1
           )
           select run.id as "id!: _", run.ordinal as "ordinal!", run.fence as "fence!", run.created_at as "created_at!",
                  last_seq as "seq!", last_event as "event!", counted.branch as "branch!", is_of_client as "is_of_client!",
                  may_be_titled as "may_be_titled!", message.created_at as "said_at!", of_user as "of_user!", of_guests as "of_guests!",
                  of_tenant as "of_tenant!"
           from run, counted, message, open"#,
            $($value,)*
        )
    };
}

/// Creates a run, or joins a queued turn, and adds the message that the run answers. With a `worker`, a command is
/// claimed at once, and a turn unless another turn of the conversation is running. A new turn counts for the limits.
pub async fn create(tx: &mut Tx, new: &NewRun<'_>) -> Result<WrittenRun> {
    let (tenant, message_id) = (tx.tenant()?, MessageId::new());
    let row = write_run!(
        tenant.0,
        new.conversation.0,
        new.id.0,
        new.agent.as_str(),
        new.kind.into_str(),
        new.principal.user.as_str(),
        serde_json::to_string(new.principal).map_err(Error::internal)?,
        new.worker.map(|(replica, _)| replica.0),
        new.worker.map_or(0.0, |(_, lease)| lease.as_secs_f64()),
        message_id.0,
        new.role.into_str(),
        serde_json::to_string(new.parts).map_err(Error::internal)?,
        new.for_model,
        Uuid::now_v7(),
        Uuid::now_v7(),
        new.title,
        new.format
            .map(serde_json::to_string)
            .transpose()
            .map_err(Error::internal)?,
        new.request,
        new.trace
            .map(serde_json::to_string)
            .transpose()
            .map_err(Error::internal)?,
    )
    .fetch_one(tx.conn())
    .await?;
    let message = Message {
        id: message_id,
        conversation_id: new.conversation,
        branch: row.branch,
        seq: row.seq,
        role: new.role,
        parts: new.parts.to_vec(),
        run_id: Some(row.id),
        created_at: row.said_at,
    };
    Ok(WrittenRun {
        open_before: (row.id == new.id).then_some(OpenRuns {
            of_user: row.of_user,
            of_guests: row.of_guests,
            of_tenant: row.of_tenant,
        }),
        run: row.to_run(new),
        event: Event {
            seq: row.event,
            kind: EventKind::Message(message.clone()),
        },
        claimed: row.to_claimed_run(tenant, new, &message),
        message,
    })
}

impl Row {
    /// Whether the replica that wrote the run works on it.
    fn is_claimed(&self) -> bool {
        self.fence > 0
    }

    fn to_run(&self, new: &NewRun<'_>) -> Run {
        Run {
            id: self.id,
            kind: new.kind,
            conversation_id: new.conversation,
            agent: new.agent.clone(),
            status: if self.is_claimed() {
                RunStatus::Running
            } else {
                RunStatus::Queued
            },
            error: None,
            steps: 0,
            usage: Usage::default(),
            created_at: self.created_at,
            finished_at: None,
        }
    }

    fn to_claimed_run(
        &self,
        tenant: TenantId,
        new: &NewRun<'_>,
        message: &Message,
    ) -> Option<ClaimedRun> {
        let start = RunStart {
            last_event: self.event,
            may_be_titled: self.may_be_titled,
            is_of_client: self.is_of_client,
            is_delegated: false,
            has_input: new.for_model,
            needs_preparation: new.role == Role::User && !new.for_model,
            format: new.format.cloned(),
            only_message: (self.seq == 1 && new.for_model).then(|| message.clone()),
        };
        self.is_claimed().then(|| ClaimedRun {
            tenant,
            id: self.id,
            conversation: new.conversation,
            agent: new.agent.clone(),
            principal: new.principal.clone(),
            kind: new.kind,
            ordinal: self.ordinal,
            fence: self.fence,
            attempt: 1,
            request: new.request.map(str::to_owned),
            trace: new.trace.cloned(),
            start,
        })
    }
}
