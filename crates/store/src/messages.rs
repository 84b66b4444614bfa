//! Rows of messages and of the durable events that announce them. Both get their numbers from the row of
//! the conversation, under its lock, so that a listener never misses one that commits late.

mod events;
mod import;
mod transcript;

use sqlx::types::Json;
use time::OffsetDateTime;
use uuid::Uuid;

pub use self::{
    events::{append_run_event, events},
    import::import,
    transcript::{for_model, of_run},
};
use super::Tx;
use domain::{
    approval::Note,
    error::{Error, Result, Thing},
    event::{Event, EventKind},
    ids::{ApprovalId, ConversationId, MessageId, RunId, TenantId},
    message::{Message, MessageRange, Part, Role},
};

/// A message to add.
pub struct NewMessage<'a> {
    /// The run it belongs to; a greeting or an imported transcript has none.
    pub run: Option<RunId>,
    /// Position of that run; orders the transcript that a model reads. 0 without a run.
    pub run_ordinal: i64,
    pub role: Role,
    pub parts: &'a [Part],
    /// `false` keeps it from the model: greetings, commands and their answers.
    pub for_model: bool,
}

struct Row {
    id: MessageId,
    branch: i32,
    seq: i64,
    role: Role,
    parts: Json<Vec<Part>>,
    run_id: Option<RunId>,
    created_at: OffsetDateTime,
}

impl Row {
    fn message(self, conversation_id: ConversationId) -> Message {
        Message {
            id: self.id,
            conversation_id,
            branch: self.branch,
            seq: self.seq,
            role: self.role,
            parts: self.parts.0,
            run_id: self.run_id,
            created_at: self.created_at,
        }
    }
}

/// Adds a message and the event that announces it. Locks the conversation until the end of `tx`.
pub async fn append(
    tx: &mut Tx,
    tenant: TenantId,
    conversation: ConversationId,
    new: NewMessage<'_>,
) -> Result<(Message, Event)> {
    let id = MessageId::new();
    let parts = serde_json::to_string(new.parts).map_err(Error::internal)?;
    let row = sqlx::query!(
        r#"with counted as (
             update conversations
             set last_seq = last_seq + 1, last_event = last_event + 1, updated_at = now()
             where tenant_id = $1 and id = $2
             returning last_seq, last_event, branch, user_id, agent
           ), message as (
             insert into messages (tenant_id, id, conversation_id, seq, run_id, run_ordinal, role, parts, for_model,
                                   branch)
             select $1, $3, $2, last_seq, $4, $5, $6, $7::text::json, $8, branch from counted
             returning created_at
           ), event as (
             insert into events (tenant_id, id, conversation_id, seq, kind, message_id)
             select $1, $9, $2, last_event, 'message', $3 from counted
           ), stored as (
             insert into usage_additions (tenant_id, id, day, user_id, agent, bytes)
             select $1, $9, (now() at time zone 'utc')::date, user_id, agent, octet_length($7::text) + 256
             from counted
           )
           select last_seq as "seq!", last_event as "event!", branch as "branch!", created_at as "created_at!"
           from counted, message"#,
        tenant.0,
        conversation.0,
        id.0,
        new.run.map(|run| run.0),
        new.run_ordinal,
        new.role.into_str(),
        parts,
        new.for_model,
        Uuid::now_v7(),
    )
    .fetch_optional(tx.conn())
    .await?
    .ok_or_else(|| Error::NotFound(Thing::Conversation(conversation)))?;
    let message = Message {
        id,
        conversation_id: conversation,
        branch: row.branch,
        seq: row.seq,
        role: new.role,
        parts: new.parts.to_vec(),
        run_id: new.run,
        created_at: row.created_at,
    };
    let event = Event {
        seq: row.event,
        kind: EventKind::Message(message.clone()),
    };
    Ok((message, event))
}

/// What a model may read of a conversation up to the end of a run: the last `most` messages, oldest first.
pub async fn until(
    tx: &mut Tx,
    conversation: ConversationId,
    run: RunId,
    most: usize,
) -> Result<Vec<(Role, Vec<Part>)>> {
    let rows = sqlx::query!(
        r#"select m.role as "role: Role", m.parts as "parts: Json<Vec<Part>>" from messages m
           where m.tenant_id = $1 and m.conversation_id = $2 and m.for_model
             and m.run_ordinal <= (select ordinal from runs where tenant_id = $1 and id = $3)
           order by m.run_ordinal desc, m.seq desc limit $4"#,
        tx.tenant()?.0,
        conversation.0,
        run.0,
        i64::try_from(most).unwrap_or(i64::MAX),
    )
    .fetch_all(tx.conn())
    .await?;
    let said = rows.into_iter().rev();
    Ok(said.map(|row| (row.role, row.parts.0)).collect())
}

/// What was said in a conversation, of which the model knows: up to the question that a run answers, or without one all of
/// the active branch. After the message with a number, or from one end.
pub async fn said(
    tx: &mut Tx,
    conversation: ConversationId,
    run: Option<RunId>,
    (after, oldest_first, limit): (Option<i64>, bool, i64),
) -> Result<Vec<Message>> {
    let rows = sqlx::query_as!(
        Row,
        r#"with asked as (
             select seq, branch from messages
             where tenant_id = $1 and conversation_id = $2 and run_id = $3 and role = 'user'
             order by seq desc limit 1
           ), path as materialized (
             select branch, upto from branch_path($1, $2, case when $3::uuid is null then (
               select branch from conversations where tenant_id = $1 and id = $2
             ) else (select branch from asked) end)
           )
           select id as "id: _", branch, seq, role as "role: _", parts as "parts: _", run_id as "run_id: _", created_at
           from messages m
           where tenant_id = $1 and conversation_id = $2 and role in ('user', 'assistant')
             and (for_model or run_id = $3) and ($3 is null or seq <= (select seq from asked))
             and exists (select 1 from path where path.branch = m.branch and m.seq < path.upto)
             and ($4::bigint is null or case when $5 then seq > $4 else seq < $4 end)
           order by case when $5 then seq else -seq end limit $6"#,
        tx.tenant()?.0,
        conversation.0,
        run.map(|run| run.0),
        after,
        oldest_first,
        limit,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| row.message(conversation))
        .collect())
}

/// Number of the event that announced the first message of a run.
pub async fn opening_event(tx: &mut Tx, conversation: ConversationId, run: RunId) -> Result<i64> {
    let event = sqlx::query_scalar!(
        "select min(e.seq) from events e
         join messages m on m.tenant_id = e.tenant_id and m.id = e.message_id
         where e.tenant_id = $1 and e.conversation_id = $2 and m.run_id = $3",
        tx.tenant()?.0,
        conversation.0,
        run.0,
    );
    Ok(event.fetch_one(tx.conn()).await?.unwrap_or_default())
}

/// One message of a conversation.
pub async fn get(tx: &mut Tx, conversation: ConversationId, id: MessageId) -> Result<Message> {
    let row = sqlx::query_as!(
        Row,
        r#"select id as "id: _", branch, seq, role as "role: _", parts as "parts: _", run_id as "run_id: _", created_at
           from messages where tenant_id = $3 and conversation_id = $1 and id = $2"#,
        conversation.0,
        id.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(|row| row.message(conversation))
        .ok_or_else(|| Error::NotFound(Thing::Conversation(conversation)))
}

/// At most `limit` messages after a number, whichever branch they are on; the oldest first.
pub async fn list_all_branches(
    tx: &mut Tx,
    conversation: ConversationId,
    after: i64,
    limit: i64,
) -> Result<Vec<Message>> {
    let rows = sqlx::query_as!(
        Row,
        r#"select id as "id: _", branch, seq, role as "role: _", parts as "parts: _", run_id as "run_id: _", created_at
           from messages where tenant_id = $1 and conversation_id = $2 and seq > $3
           order by seq limit $4"#,
        tx.tenant()?.0,
        conversation.0,
        after,
        limit,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| row.message(conversation))
        .collect())
}

/// At most `limit` messages of a branch, absent: the active one: those after a number, the oldest first, or those before
/// one, the newest first.
pub async fn list(
    tx: &mut Tx,
    conversation: ConversationId,
    branch: Option<i32>,
    range: MessageRange,
    limit: i64,
) -> Result<Vec<Message>> {
    let tenant = tx.tenant()?.0;
    let rows = match range {
        MessageRange::After(seq) => {
            sqlx::query_as!(
                Row,
                r#"with path as materialized (
                     select branch, upto from branch_path($1, $2, coalesce($5, (
                       select branch from conversations where tenant_id = $1 and id = $2)))
                   )
                   select id as "id: _", branch, seq, role as "role: _", parts as "parts: _", run_id as "run_id: _", created_at
                   from messages m where tenant_id = $1 and conversation_id = $2 and seq > $3
                     and exists (select 1 from path where path.branch = m.branch and m.seq < path.upto)
                   order by seq limit $4"#,
                tenant,
                conversation.0,
                seq,
                limit,
                branch,
            )
            .fetch_all(tx.conn())
            .await?
        }
        MessageRange::Before(seq) => {
            sqlx::query_as!(
                Row,
                r#"with path as materialized (
                     select branch, upto from branch_path($1, $2, coalesce($5, (
                       select branch from conversations where tenant_id = $1 and id = $2)))
                   )
                   select id as "id: _", branch, seq, role as "role: _", parts as "parts: _", run_id as "run_id: _", created_at
                   from messages m where tenant_id = $1 and conversation_id = $2 and seq < $3
                     and exists (select 1 from path where path.branch = m.branch and m.seq < path.upto)
                   order by seq desc limit $4"#,
                tenant,
                conversation.0,
                seq,
                limit,
                branch,
            )
            .fetch_all(tx.conn())
            .await?
        }
    };
    Ok(rows
        .into_iter()
        .map(|row| row.message(conversation))
        .collect())
}

/// The state of a request for consent in the latest note about it in its conversation.
pub async fn approval_note(
    tx: &mut Tx,
    conversation: ConversationId,
    approval: ApprovalId,
) -> Result<Option<Box<Note>>> {
    let rows = sqlx::query_scalar!(
        r#"select parts as "parts: Json<Vec<Part>>" from messages
           where tenant_id = $3 and conversation_id = $1 and role = 'system'
             and position($2 in parts::text) > 0
           order by seq desc limit 8"#,
        conversation.0,
        approval.to_string(),
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    let notes = rows
        .into_iter()
        .flat_map(|parts| parts.0)
        .filter_map(|part| match part {
            Part::Approval(note) if note.id == approval => Some(note),
            _ => None,
        });
    Ok(notes.into_iter().next())
}
