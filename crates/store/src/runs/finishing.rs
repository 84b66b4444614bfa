//! Writes the end of a run in one statement: its state, its last messages, and the events that announce them.

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use super::{super::Tx, lost};
use crate::messages::NewMessage;
use domain::{
    error::{Error, Result},
    event::{Event, EventKind},
    ids::{MessageId, RunId},
    message::Message,
    run::{ClaimedRun, RunStatus, Usage},
};

/// How a run ends.
pub struct RunResult<'a> {
    pub status: RunStatus,
    pub error: Option<&'a str>,
    /// The time until the model may be asked again, if the run failed because the model did not answer.
    pub retry_after: Option<Duration>,
    /// The tokens that its last step used, if they are not counted yet.
    pub usage: Option<Usage>,
    /// The last messages, the oldest first.
    pub final_messages: Vec<NewMessage<'a>>,
}

/// A run that has ended.
pub struct FinishedRun {
    /// The events of its last messages, then the event of its end.
    pub events: Vec<Event>,
    /// Whether it belongs to a tree of runs.
    pub in_tree: bool,
    /// The queued turn of the conversation.
    pub next: Option<RunId>,
}

/// The last messages as the columns of a query.
#[derive(Default)]
struct Columns {
    ids: Vec<Uuid>,
    event_ids: Vec<Uuid>,
    roles: Vec<String>,
    parts: Vec<String>,
    for_model: Vec<bool>,
}

/// The numbers of the first message and its event, and other values that the statement returns.
struct Row {
    seq: i64,
    event: i64,
    branch: i32,
    at: OffsetDateTime,
    in_tree: bool,
    next: Option<RunId>,
}

/// Ends a run. `Conflict` if its lease was lost.
pub async fn finish(tx: &mut Tx, run: &ClaimedRun, result: &RunResult<'_>) -> Result<FinishedRun> {
    let columns = Columns::from_messages(&result.final_messages)?;
    let row = write(tx, run, result, &columns)
        .await?
        .ok_or_else(|| lost(run))?;
    let end = EventKind::Run {
        run_id: run.id,
        status: result.status,
        error: result.error.map(str::to_owned),
    };
    let messages = result
        .final_messages
        .iter()
        .zip(&columns.ids)
        .zip(row.seq..);
    let announced = messages.map(|((new, id), seq)| {
        EventKind::Message(Message {
            id: MessageId(*id),
            conversation_id: run.conversation,
            branch: row.branch,
            seq,
            role: new.role,
            parts: new.parts.to_vec(),
            run_id: Some(run.id),
            created_at: row.at,
        })
    });
    Ok(FinishedRun {
        events: (row.event..)
            .zip(announced.chain([end]))
            .map(|(seq, kind)| Event { seq, kind })
            .collect(),
        in_tree: row.in_tree,
        next: row.next,
    })
}

/// The statement that writes the run, its last messages, and their events.
macro_rules! write_end {
    ($($value:expr,)*) => {
        sqlx::query_as!(
            Row,
            r#"with conversation as (
             select 1 from conversations where tenant_id = $1 and id = $4 for no key update
           ), ended as (
             update runs
             set status = $5, error = $6, finished_at = now(), lease_owner = null, lease_until = null,
                 token_hashes = '{}', steps = steps + $7, input_tokens = input_tokens + $8,
                 output_tokens = output_tokens + $9, usage_estimated = usage_estimated or $10,
                 cached_input_tokens = cached_input_tokens + $21,
                 retry_at = now() + make_interval(secs => $20)
             from conversation where tenant_id = $1 and id = $2 and fence = $3 and status = 'running'
             returning user_id, agent, root_run is not null as in_tree
           ), used as (
             insert into usage_additions (tenant_id, id, day, user_id, agent, input_tokens, output_tokens,
                                          cached_input_tokens)
             select $1, $11, (now() at time zone 'utc')::date, user_id, agent, $8, $9, $21 from ended where $7 > 0
             returning 1
           ), counted as (
             update conversations c
             set last_seq = c.last_seq + $12, last_event = c.last_event + $12 + 1, updated_at = now()
             from ended where c.tenant_id = $1 and c.id = $4
             returning c.last_seq - $12 + 1 as seq, c.last_event - $12 as event, c.branch, in_tree
           ), said as (
             select * from unnest($13::uuid[], $14::uuid[], $15::text[], $16::text[], $17::bool[])
               with ordinality said (id, event_id, role, parts, for_model, position)
           ), message as (
             insert into messages (tenant_id, id, conversation_id, seq, run_id, run_ordinal, role, parts, for_model,
                                   branch)
             select $1, id, $4, seq + position - 1, $2, $18, role, parts::json, for_model, branch
             from counted, said returning 1
           ), announced as (
             insert into events (tenant_id, id, conversation_id, seq, kind, message_id, run_id, run_status, run_error)
             select $1, event_id, $4, event + position - 1, 'message', id, null::uuid, null, null from counted, said
             union all
             select $1, $19, $4, event + $12, 'run', null, $2, $5, $6 from counted
             returning 1
           )
           select seq as "seq!", event as "event!", branch as "branch!", in_tree as "in_tree!", now() as "at!",
                  (select id from runs
                   where tenant_id = $1 and conversation_id = $4 and status = 'queued' and kind = 'turn') as "next: _"
           from counted"#,
            $($value,)*
        )
    };
}

async fn write(
    tx: &mut Tx,
    run: &ClaimedRun,
    result: &RunResult<'_>,
    last: &Columns,
) -> Result<Option<Row>> {
    let (steps, used) = (
        i32::from(result.usage.is_some()),
        result.usage.unwrap_or_default(),
    );
    let row = write_end!(
        tx.tenant()?.0,
        run.id.0,
        run.fence,
        run.conversation.0,
        result.status.into_str(),
        result.error,
        steps,
        used.input_tokens,
        used.output_tokens,
        used.estimated,
        Uuid::now_v7(),
        i64::try_from(result.final_messages.len()).unwrap_or(i64::MAX),
        &last.ids,
        &last.event_ids,
        &last.roles,
        &last.parts,
        &last.for_model,
        run.ordinal,
        Uuid::now_v7(),
        result.retry_after.map(|after| after.as_secs_f64()),
        used.cached_input_tokens,
    );
    Ok(row.fetch_optional(tx.conn()).await?)
}

impl Columns {
    fn from_messages(messages: &[NewMessage<'_>]) -> Result<Self> {
        let mut columns = Self::default();
        for new in messages {
            columns.ids.push(MessageId::new().0);
            columns.event_ids.push(Uuid::now_v7());
            columns.roles.push(new.role.into_str().to_owned());
            let parts = serde_json::to_string(new.parts).map_err(Error::internal)?;
            columns.parts.push(parts);
            columns.for_model.push(new.for_model);
        }
        Ok(columns)
    }
}
