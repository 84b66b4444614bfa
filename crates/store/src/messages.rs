//! Rows of messages and of the durable events that announce them. Both get their numbers from the row of the
//! conversation, under its lock, so that a listener never misses an event that commits late.

use sqlx::types::Json;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Tx, usage};
use domain::{
    approval::Note,
    error::{Error, Missing, Result},
    event::{Event, EventKind},
    ids::{ApprovalId, ConversationId, MessageId, RunId, TenantId, UserId},
    message::{Message, MessageRange, Part, Role},
    run::{ClaimedRun, Conversation, RunStatus},
};

/// A message to add.
pub struct NewMessage<'a> {
    /// The run of the message. A greeting or an imported message has none.
    pub run: Option<RunId>,
    /// The number of that run in its conversation, which orders the messages for a model. 0 without a run.
    pub run_ordinal: i64,
    pub role: Role,
    pub parts: &'a [Part],
    /// Whether a model reads the message. `false` for greetings, commands and their answers.
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
    fn into_message(self, conversation_id: ConversationId) -> Message {
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
             returning 1
           ), stored as (
             insert into usage_additions (tenant_id, id, day, user_id, agent, bytes)
             select $1, $9, (now() at time zone 'utc')::date, user_id, agent, octet_length($7::text) + 256
             from counted returning 1
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
    .ok_or_else(|| Error::NotFound(Missing::Conversation(conversation)))?;
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

/// The messages that a model may read of a conversation up to the end of a run: the last `most`, the oldest first.
pub async fn list_until_run(
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

/// A page of messages.
#[derive(Clone, Copy)]
pub struct MessagePage {
    /// The number of the last message of the page before.
    pub after: Option<i64>,
    /// The oldest first, instead of the newest.
    pub oldest_first: bool,
    pub limit: i64,
}

/// A page of the transcript: the messages of the user and the assistant that a model knows, up to the question that
/// `run` answers, or without a run all of the active branch.
pub async fn list_transcript(
    tx: &mut Tx,
    conversation: ConversationId,
    run: Option<RunId>,
    page: MessagePage,
) -> Result<Vec<Message>> {
    let rows = sqlx::query_as!(
        Row,
        r#"with recursive asked as (
             select seq, branch from messages
             where tenant_id = $1 and conversation_id = $2 and run_id = $3 and role = 'user'
             order by seq desc limit 1
           ), path (branch, upto) as (
             select case when $3::uuid is null then (
                      select branch from conversations where tenant_id = $1 and id = $2
                    ) else (select branch from asked) end, 9223372036854775807
             union all
             select b.parent, b.from_seq from path
             join branches b on b.tenant_id = $1 and b.conversation_id = $2 and b.number = path.branch
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
        page.after,
        page.oldest_first,
        page.limit,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| row.into_message(conversation))
        .collect())
}

/// The number of the event that announced the first message of a run.
pub async fn get_opening_event(
    tx: &mut Tx,
    conversation: ConversationId,
    run: RunId,
) -> Result<i64> {
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

/// One message of a conversation. `NotFound` if there is none.
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
    row.map(|row| row.into_message(conversation))
        .ok_or_else(|| Error::NotFound(Missing::Conversation(conversation)))
}

/// At most `limit` messages of all branches after a number, the oldest first.
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
        .map(|row| row.into_message(conversation))
        .collect())
}

/// At most `limit` messages of a branch, or of the active branch if none is given. Messages after a number come oldest
/// first, messages before a number newest first.
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
                r#"with recursive path (branch, upto) as (
                     select coalesce($5, (select branch from conversations where tenant_id = $1 and id = $2)),
                            9223372036854775807
                     union all
                     select b.parent, b.from_seq from path
                     join branches b on b.tenant_id = $1 and b.conversation_id = $2 and b.number = path.branch
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
                r#"with recursive path (branch, upto) as (
                     select coalesce($5, (select branch from conversations where tenant_id = $1 and id = $2)),
                            9223372036854775807
                     union all
                     select b.parent, b.from_seq from path
                     join branches b on b.tenant_id = $1 and b.conversation_id = $2 and b.number = path.branch
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
        .map(|row| row.into_message(conversation))
        .collect())
}

/// The newest note about a request for approval in its conversation.
pub async fn find_approval_note(
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

/// The messages that a model reads for a run: all of this run, and the last `window` messages before it, the oldest
/// first. They are ordered by run and then by number, so that a message that arrived during an earlier run comes
/// after that run.
pub async fn list_model_input(
    tx: &mut Tx,
    run: &ClaimedRun,
    window: usize,
) -> Result<Vec<Message>> {
    let rows = sqlx::query_as!(
        Row,
        r#"with recursive path (branch, upto) as (
             select (select branch from conversations where tenant_id = $4 and id = $1), 9223372036854775807
             union all
             select b.parent, b.from_seq from path
             join branches b on b.tenant_id = $4 and b.conversation_id = $1 and b.number = path.branch
           )
           select id as "id!: _", branch as "branch!", seq as "seq!", role as "role!: _", parts as "parts!: _",
                  run_id as "run_id: _", created_at as "created_at!"
           from (
             select * from messages
             where tenant_id = $4 and conversation_id = $1 and for_model and run_ordinal = $2
             union all (
               select * from messages m
               where tenant_id = $4 and conversation_id = $1 and for_model and run_ordinal < $2
                 and exists (select 1 from path where path.branch = m.branch and m.seq < path.upto)
               order by run_ordinal desc, seq desc limit $3)
           ) shown
           order by run_ordinal, seq"#,
        run.conversation.0,
        run.ordinal,
        i64::try_from(window).unwrap_or(i64::MAX),
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| row.into_message(run.conversation))
        .collect())
}

/// The messages of a run and the message that it answers, the oldest first.
pub async fn list_of_run(
    tx: &mut Tx,
    conversation: ConversationId,
    run: RunId,
) -> Result<Vec<Message>> {
    let rows = sqlx::query_as!(
        Row,
        r#"select id as "id: _", branch, seq, role as "role: _", parts as "parts: _", run_id as "run_id: _", created_at
           from messages where tenant_id = $3 and conversation_id = $1 and run_id = $2 order by seq"#,
        conversation.0,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| row.into_message(conversation))
        .collect())
}

/// What a stored message takes beside its parts.
const ROW_BYTES: usize = 256;

/// What messages that a client brings along take, as it counts in the usage of their user.
pub fn measure_import(messages: &[(Role, String)]) -> usize {
    let sizes = messages.iter().map(|(_, parts)| parts.len() + ROW_BYTES);
    sizes.sum()
}

/// Adds the messages of a transcript that a client brings along, in their order, each with its parts as JSON, and adds
/// them to the usage of the user. Locks the conversation until the end of `tx`.
pub async fn import(
    tx: &mut Tx,
    user: &UserId,
    conversation: &Conversation,
    messages: &[(Role, String)],
) -> Result<()> {
    let ids: Vec<Uuid> = messages.iter().map(|_| Uuid::now_v7()).collect();
    let events: Vec<Uuid> = messages.iter().map(|_| Uuid::now_v7()).collect();
    let roles: Vec<String> = messages
        .iter()
        .map(|(role, _)| role.into_str().to_owned())
        .collect();
    let parts: Vec<String> = messages.iter().map(|(_, parts)| parts.clone()).collect();
    let bytes = i64::try_from(measure_import(messages)).map_err(Error::internal)?;
    usage::add_stored(tx, user, &conversation.agent, bytes).await?;
    let conversation = conversation.id;
    let tenant = tx.tenant()?.0;
    let counted = sqlx::query!(
        r#"update conversations set last_seq = last_seq + $3, last_event = last_event + $3
           where tenant_id = $1 and id = $2
           returning last_seq - $3 as "seq!", last_event - $3 as "event!", last_run"#,
        tenant,
        conversation.0,
        i64::try_from(messages.len()).map_err(Error::internal)?,
    );
    let counted = counted.fetch_one(tx.conn()).await?;
    sqlx::query!(
        "insert into messages (tenant_id, id, conversation_id, seq, run_ordinal, role, parts, for_model)
         select $1, id, $2, $3::bigint + place, $7, role, parts::json, true
         from unnest($4::uuid[], $5::text[], $6::text[]) with ordinality as given (id, role, parts, place)
         on conflict (tenant_id, id) do nothing",
        tenant,
        conversation.0,
        counted.seq,
        &ids,
        &roles,
        &parts,
        counted.last_run,
    )
    .execute(tx.conn())
    .await?;
    sqlx::query!(
        "insert into events (tenant_id, id, conversation_id, seq, kind, message_id)
         select $1, id, $2, $3::bigint + place, 'message', message
         from unnest($4::uuid[], $5::uuid[]) with ordinality as given (id, message, place)
         on conflict (tenant_id, id) do nothing",
        tenant,
        conversation.0,
        counted.event,
        &events,
        &ids,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Adds the event for a change of a run's state that its worker did not make.
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
             returning 1
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

/// At most `limit` durable events after the number `after`, the oldest first.
pub async fn list_events(
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
                        .into_message(conversation),
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
