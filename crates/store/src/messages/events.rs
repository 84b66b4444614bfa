//! Rows of the durable events of a conversation.

use sqlx::types::Json;
use uuid::Uuid;

use super::Row;
use crate::Tx;
use domain::{
    error::{Error, Result},
    event::{Event, EventKind},
    ids::{ConversationId, MessageId, RunId},
    message::{Part, Role},
    run::RunStatus,
};

/// Adds the event that a run changed its state outside its worker.
pub async fn append_run_event(
    tx: &mut Tx,
    conversation: ConversationId,
    run: RunId,
    status: RunStatus,
    error: Option<&str>,
) -> Result<Event> {
    let seq = sqlx::query_scalar!(
        r#"with counted as (
             update conversations set last_event = last_event + 1, updated_at = now()
             where tenant_id = $1 and id = $2 returning last_event
           ), event as (
             insert into events (tenant_id, id, conversation_id, seq, kind, run_id, run_status, run_error)
             select $1, $3, $2, last_event, 'run', $4, $5, $6 from counted
           )
           select last_event as "seq!" from counted"#,
        tx.tenant()?.0,
        conversation.0,
        Uuid::now_v7(),
        run.0,
        status.into_str(),
        error,
    )
    .fetch_one(tx.conn())
    .await?;
    let kind = EventKind::Run {
        run_id: run,
        status,
        error: error.map(str::to_owned),
    };
    Ok(Event { seq, kind })
}

/// Durable events after `after`, oldest first, at most `limit`.
pub async fn events(
    tx: &mut Tx,
    conversation: ConversationId,
    after: i64,
    limit: i64,
) -> Result<Vec<Event>> {
    let rows = sqlx::query!(
        r#"select e.seq, e.run_id as "event_run: RunId", e.run_status as "run_status: RunStatus", e.run_error,
                  m.id as "message_id?: MessageId", m.branch as "branch?", m.seq as "message_seq?",
                  m.role as "role?: Role", m.parts as "parts?: Json<Vec<Part>>", m.run_id as "message_run: RunId",
                  m.created_at as "created_at?"
           from events e left join messages m on m.tenant_id = e.tenant_id and m.id = e.message_id
           where e.tenant_id = $4 and e.conversation_id = $1 and e.seq > $2 order by e.seq limit $3"#,
        conversation.0,
        after,
        limit,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    let broken = || Error::Internal(anyhow::anyhow!("event without a subject"));
    rows.into_iter()
        .map(|row| {
            let kind = match (
                row.message_id,
                row.message_seq,
                row.role,
                row.parts,
                row.created_at,
            ) {
                (Some(id), Some(seq), Some(role), Some(parts), Some(created_at)) => {
                    EventKind::Message(
                        Row {
                            id,
                            branch: row.branch.unwrap_or_default(),
                            seq,
                            role,
                            parts,
                            run_id: row.message_run,
                            created_at,
                        }
                        .message(conversation),
                    )
                }
                _ => EventKind::Run {
                    run_id: row.event_run.ok_or_else(broken)?,
                    status: row.run_status.ok_or_else(broken)?,
                    error: row.run_error,
                },
            };
            Ok(Event { seq: row.seq, kind })
        })
        .collect()
}
