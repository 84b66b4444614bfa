//! Rows of elicitations: questions of servers to a user. At most one in a conversation is open. The request and the
//! answer are sealed.

use std::time::Duration;

use uuid::Uuid;

use super::Tx;
use domain::{
    elicitation::{AnswerError, Elicitation, State},
    error::{Error, Result},
    ids::{AgentId, ConversationId, RunId, ServerId, TenantId, UserId},
};

/// How long an answer is kept that no run has read yet: its run may wait in a queue.
const ANSWERED_LIFE: Duration = Duration::from_secs(24 * 3600);

struct Row {
    id: Uuid,
    conversation_id: ConversationId,
    user_id: UserId,
    agent: AgentId,
    server: ServerId,
    tool: String,
    run_id: RunId,
    call_id: String,
    credential: String,
    for_model: bool,
    round: i32,
    state: State,
    step: i32,
    sealed: Vec<u8>,
    entered: Option<Vec<u8>>,
    fault: Option<String>,
    answer_run: Option<RunId>,
    live: bool,
}

impl TryFrom<Row> for Elicitation {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        let step = usize::try_from(row.step).map_err(|_| {
            Error::Internal(anyhow::anyhow!("elicitation {}: unknown step", row.id))
        })?;
        Ok(Self {
            id: row.id,
            conversation: row.conversation_id,
            user: row.user_id,
            agent: row.agent,
            server: row.server,
            tool: row.tool,
            run: row.run_id,
            call_id: row.call_id,
            credential: row.credential,
            for_model: row.for_model,
            round: row.round,
            state: row.state,
            step,
            request: row.sealed,
            entered: row.entered,
            fault: row.fault.and_then(|fault| fault.parse().ok()),
            answer_run: row.answer_run,
            live: row.live,
        })
    }
}

/// A query for whole rows: the SQL before and after the columns, and its values.
macro_rules! rows {
    ($before:literal, $after:literal $(, $value:expr)* $(,)?) => {
        sqlx::query_as!(
            Row,
            $before
                + r#" id, conversation_id as "conversation_id: _", user_id as "user_id: _", agent as "agent: _",
                      server as "server: _", tool, run_id as "run_id: _", call_id, credential, for_model, round,
                      state as "state: _", step, sealed, entered, fault, answer_run as "answer_run: _", live "#
                + $after
            $(, $value)*
        )
    };
}

/// Adds a question. `false` if another question of the conversation is open. The caller has locked the conversation.
pub async fn begin(
    tx: &mut Tx,
    tenant: TenantId,
    new: &Elicitation,
    life: Duration,
) -> Result<bool> {
    // An overdue question may not be deleted yet.
    sqlx::query!(
        "delete from elicitations
         where tenant_id = $2 and conversation_id = $1 and state = 'open' and expires_at < statement_timestamp()",
        new.conversation.0,
        tenant.0,
    )
    .execute(tx.conn())
    .await?;
    let done = sqlx::query!(
        "insert into elicitations (tenant_id, id, conversation_id, user_id, agent, server, tool, run_id, call_id,
                                   credential, for_model, round, sealed, expires_at, live)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, now() + make_interval(secs => $14), $15)
         on conflict (tenant_id, conversation_id) where state = 'open' do nothing",
        tenant.0,
        new.id,
        new.conversation.0,
        new.user.as_str(),
        new.agent.as_str(),
        new.server.as_str(),
        new.tool,
        new.run.0,
        new.call_id,
        new.credential,
        new.for_model,
        new.round,
        new.request,
        life.as_secs_f64(),
        new.live,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The open question of a conversation.
pub async fn get_open(tx: &mut Tx, conversation: ConversationId) -> Result<Option<Elicitation>> {
    let row = rows!(
        "select",
        "from elicitations where tenant_id = $2 and conversation_id = $1 and state = 'open'
           and expires_at > statement_timestamp()",
        conversation.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// The questions whose answers a run reads.
pub async fn list_answered(tx: &mut Tx, run: RunId) -> Result<Vec<Elicitation>> {
    let rows = rows!(
        "select",
        "from elicitations where tenant_id = $2 and answer_run = $1 order by id",
        run.0,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    rows.into_iter().map(TryInto::try_into).collect()
}

/// The change of a row by an answer.
pub struct NextStep<'a> {
    pub state: State,
    pub step: usize,
    pub entered: &'a [u8],
    pub fault: Option<AnswerError>,
    /// The run that goes on with the answer. `None` if the call that asked waits for the answer.
    pub run: Option<RunId>,
}

/// Stores an answer. `false` if the question was answered or ended meanwhile.
pub async fn answer(
    tx: &mut Tx,
    seen: &Elicitation,
    next: &NextStep<'_>,
    life: Duration,
) -> Result<bool> {
    let done = sqlx::query!(
        "update elicitations
         set state = $3, step = $4, entered = $5, fault = $6, answer_run = $7,
             expires_at = now() + make_interval(secs => $8)
         where tenant_id = $9 and id = $1 and state = 'open' and step = $2
           and expires_at > statement_timestamp()",
        seen.id,
        i32::try_from(seen.step).unwrap_or(i32::MAX),
        next.state.into_str(),
        i32::try_from(next.step).unwrap_or(i32::MAX),
        next.entered,
        next.fault.map(<&str>::from),
        next.run.map(|run| run.0),
        life.as_secs_f64(),
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Records that the call is about to be sent with the answer. `false` if it may have been sent before.
pub async fn mark_sent(tx: &mut Tx, id: Uuid) -> Result<bool> {
    let done = sqlx::query!(
        "update elicitations set state = 'sent' where tenant_id = $2 and id = $1 and state = 'answered'",
        id,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Deletes a question. `false` if there is none.
pub async fn end(tx: &mut Tx, id: Uuid) -> Result<bool> {
    let done = sqlx::query!(
        "delete from elicitations where tenant_id = $2 and id = $1",
        id,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Renews the lease of the call that waits for the answer. Returns the row, or `None` if it was deleted.
pub async fn renew_lease(tx: &mut Tx, id: Uuid, lease: Duration) -> Result<Option<Elicitation>> {
    let row = rows!(
        "update elicitations
         set expires_at = case when state = 'open' then clock.until else expires_at end
         from (select statement_timestamp() + make_interval(secs => $2) as until offset 0) clock
         where tenant_id = $3 and id = $1 returning",
        "",
        id,
        lease.as_secs_f64(),
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// Lets all questions of the tenant expire. Returns how many there were.
pub async fn expire_now(tx: &mut Tx) -> Result<u64> {
    let done = sqlx::query!(
        "update elicitations set expires_at = statement_timestamp()
         where tenant_id = $1 and expires_at > statement_timestamp()",
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected())
}

/// The tenants with overdue questions. Needs the system role.
pub async fn list_tenants_with_overdue(tx: &mut Tx) -> Result<Vec<TenantId>> {
    let ids = sqlx::query_scalar!(
        r#"select distinct tenant_id as "id: TenantId" from elicitations where expires_at < now()"#
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// Deletes the tenant's overdue questions, and old answers that no run has read. Returns the questions whose user
/// must be notified: those that were open, and those whose waiting call is gone.
pub async fn expire(tx: &mut Tx) -> Result<Vec<Elicitation>> {
    let rows = rows!(
        "delete from elicitations
         where tenant_id = $2
           and expires_at < now() - case when state = 'open' or live then interval '0' else make_interval(secs => $1) end
         returning",
        "",
        ANSWERED_LIFE.as_secs_f64(),
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    let expired: Result<Vec<Elicitation>> = rows.into_iter().map(TryInto::try_into).collect();
    let mut expired = expired?;
    expired.retain(|one| one.state == State::Open || one.live);
    Ok(expired)
}
