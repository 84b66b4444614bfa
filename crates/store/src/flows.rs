//! Rows of configuration flows: one for each conversation, with a time after which it is ignored. The values that the
//! user enters are sealed.

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{
    error::{Error, Result},
    flow::{Flow, Step},
    ids::{AgentId, ConversationId, RunId, TenantId, UserId},
};

struct Row {
    id: Uuid,
    conversation_id: ConversationId,
    user_id: UserId,
    locale: Option<String>,
    agent: AgentId,
    step: String,
    server: Option<String>,
    field: i32,
    secret: bool,
    entered: Option<Vec<u8>>,
    answer: Option<Vec<u8>>,
    answer_run: Option<RunId>,
    code_hash: Option<Vec<u8>>,
    tries: i32,
    expires_at: OffsetDateTime,
}

impl TryFrom<Row> for Flow {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        let step = Step::parse(&row.step, row.field)
            .ok_or_else(|| Error::Internal(anyhow::anyhow!("flow {}: unknown step", row.id)))?;
        Ok(Self {
            id: row.id,
            conversation: row.conversation_id,
            user: row.user_id,
            locale: row.locale,
            agent: row.agent,
            step,
            server: row.server,
            secret: row.secret,
            entered: row.entered,
            answer: row.answer,
            answer_run: row.answer_run,
            code_hash: row.code_hash,
            tries: row.tries,
            expires_at: row.expires_at,
        })
    }
}

/// A query for flows, by a condition and its values.
macro_rules! flow {
    ($condition:literal $(, $value:expr)* $(,)?) => {
        sqlx::query_as!(
            Row,
            r#"select id, conversation_id as "conversation_id: _", user_id as "user_id: _", locale, agent as "agent: _",
                      step, server, field, secret, entered, answer, answer_run as "answer_run: _", code_hash, tries,
                      expires_at
               from flows where "#
                + $condition
            $(, $value)*
        )
    };
}

/// Begins a flow in a conversation, in place of an earlier one.
pub async fn begin(
    tx: &mut Tx,
    tenant: TenantId,
    flow: &Flow,
    link_hash: Option<&[u8]>,
    life: Duration,
) -> Result<()> {
    sqlx::query!(
        "insert into flows (tenant_id, id, conversation_id, user_id, locale, agent, step, server, field, secret,
                            link_hash, expires_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, now() + make_interval(secs => $12))
         on conflict (tenant_id, conversation_id) do update
         set id = excluded.id, user_id = excluded.user_id, locale = excluded.locale, agent = excluded.agent,
             step = excluded.step, server = excluded.server, field = excluded.field, secret = excluded.secret,
             entered = null, answer = null, answer_run = null, link_hash = excluded.link_hash, code_hash = null,
             tries = 0, expires_at = excluded.expires_at",
        tenant.0,
        flow.id,
        flow.conversation.0,
        flow.user.as_str(),
        flow.locale,
        flow.agent.as_str(),
        flow.step.name(),
        flow.server,
        flow.step.field(),
        flow.secret,
        link_hash,
        life.as_secs_f64(),
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The flow of a conversation, also one that has expired.
pub async fn get(tx: &mut Tx, conversation: ConversationId) -> Result<Option<Flow>> {
    let row = flow!(
        "tenant_id = $2 and conversation_id = $1",
        conversation.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// Stores an answer for the run that reads it. `false` if the flow has another step by now, or another run is about
/// to read an answer: each answer is checked, and each wrong code counted, before the next answer.
pub async fn answer(tx: &mut Tx, seen: &Flow, run: RunId, answer: &[u8]) -> Result<bool> {
    let done = sqlx::query!(
        "update flows f set answer = $4, answer_run = $5
         where tenant_id = $6 and id = $1 and step = $2 and field = $3
           and not exists (select 1 from runs r
                           where r.tenant_id = $6 and r.id = f.answer_run and r.status in ('queued', 'running'))",
        seen.id,
        seen.step.name(),
        seen.step.field(),
        answer,
        run.0,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Goes on to a step of the same flow with the values entered so far. Deletes the answer, which was read.
pub async fn proceed(tx: &mut Tx, flow: &Flow, life: Duration) -> Result<()> {
    sqlx::query!(
        "update flows
         set step = $2, server = $3, field = $4, secret = $5, entered = $6, tries = $7, answer = null,
             answer_run = null, expires_at = now() + make_interval(secs => $8)
         where tenant_id = $9 and id = $1",
        flow.id,
        flow.step.name(),
        flow.server,
        flow.step.field(),
        flow.secret,
        flow.entered.as_deref(),
        flow.tries,
        life.as_secs_f64(),
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Stores the values of the page, or the sign-in that was offered beside a field. The link then works no more, and
/// the user must enter the code in the conversation. `false` if the link was used before.
pub async fn accept_page(tx: &mut Tx, id: Uuid, entered: &[u8], code_hash: &[u8]) -> Result<bool> {
    let done = sqlx::query!(
        "update flows set step = 'confirm', entered = $2, code_hash = $3, link_hash = null
         where tenant_id = $4 and id = $1 and step in ('page', 'field') and expires_at > now()",
        id,
        entered,
        code_hash,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The tenant and id of the flow with a link. Needs the system role.
pub async fn find_by_link(tx: &mut Tx, link_hash: &[u8]) -> Result<Option<(TenantId, Uuid)>> {
    let row = sqlx::query!(
        r#"select tenant_id as "tenant_id: TenantId", id from flows where link_hash = $1"#,
        link_hash
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| (row.tenant_id, row.id)))
}

/// A flow by its id.
pub async fn get_by_id(tx: &mut Tx, id: Uuid) -> Result<Option<Flow>> {
    let row = flow!("tenant_id = $2 and id = $1", id, tx.tenant()?.0,)
        .fetch_optional(tx.conn())
        .await?;
    row.map(TryInto::try_into).transpose()
}

/// Whether a user is configuring a server of an agent. If `conversation` is given, only in that conversation.
pub async fn is_open(
    tx: &mut Tx,
    user: &UserId,
    agent: &AgentId,
    conversation: Option<ConversationId>,
) -> Result<bool> {
    let open = sqlx::query_scalar!(
        r#"select exists (
             select 1 from flows
             where tenant_id = $4 and user_id = $1 and agent = $2
               and ($3::uuid is null or conversation_id = $3) and expires_at > now()
           ) as "open!""#,
        user.as_str(),
        agent.as_str(),
        conversation.map(|id| id.0),
        tx.tenant()?.0,
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(open)
}

/// The tenants with flows that expired at least this long ago. Needs the system role.
pub async fn list_tenants_with_old(tx: &mut Tx, age: Duration) -> Result<Vec<TenantId>> {
    let ids = sqlx::query_scalar!(
        r#"select distinct tenant_id as "id: TenantId" from flows
           where expires_at < now() - make_interval(secs => $1)"#,
        age.as_secs_f64(),
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// Deletes the tenant's flows that expired at least this long ago, with the values in them.
pub async fn delete_old(tx: &mut Tx, age: Duration) -> Result<()> {
    sqlx::query!(
        "delete from flows where tenant_id = $2 and expires_at < now() - make_interval(secs => $1)",
        age.as_secs_f64(),
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Ends the flow of a conversation. `false` if there is none.
pub async fn end(tx: &mut Tx, conversation: ConversationId) -> Result<bool> {
    let done = sqlx::query!(
        "delete from flows where tenant_id = $2 and conversation_id = $1",
        conversation.0,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Counts a wrong code. The flow expires at the same time as before.
pub async fn count_wrong_code(tx: &mut Tx, id: Uuid) -> Result<()> {
    sqlx::query!(
        "update flows set tries = tries + 1, answer = null, answer_run = null
         where tenant_id = $2 and id = $1",
        id,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
