//! Rows of the audit trail: only ever added. Content is a hash, never arguments or results. A call of a run is written in
//! the transaction that makes the call a row, before it is sent, and its outcome beside it afterwards ([`end`]). Calls
//! that have no row come in batches; everything else is written in the transaction of what it says ([`record`]).

mod lists;

use std::collections::HashSet;

use time::OffsetDateTime;
use uuid::Uuid;

pub use self::lists::{list, operators};
use super::Tx;
use domain::{
    audit::Fact,
    error::Result,
    ids::{AuditId, RunId, TenantId},
};

/// One line. What it does not concern is empty.
#[derive(Clone, Debug)]
pub struct AuditRow {
    pub tenant: TenantId,
    pub id: AuditId,
    pub at: OffsetDateTime,
    pub actor: String,
    /// What was done, as `tool.call`.
    pub action: &'static str,
    pub agent: String,
    pub run: Option<RunId>,
    pub server: String,
    pub tool: String,
    /// SHA-256 of the arguments as sent; of a refused call, as they were asked for.
    pub args_sha256: Vec<u8>,
    /// `succeeded`, `failed`, `denied`, `outcome_unknown`, `cancelled`.
    pub outcome: &'static str,
    /// More of it for people: a code, a reason, `self-approved`. Never arguments or results.
    pub detail: Option<String>,
}

impl AuditRow {
    /// What somebody did at a time, which succeeded; the rest is empty.
    pub fn new(tenant: TenantId, at: OffsetDateTime, actor: &str, action: &'static str) -> Self {
        Self {
            tenant,
            id: AuditId::new(),
            at,
            actor: actor.to_owned(),
            action,
            agent: String::new(),
            run: None,
            server: String::new(),
            tool: String::new(),
            args_sha256: Vec::new(),
            outcome: "succeeded",
            detail: None,
        }
    }
}

/// Adds lines of one tenant in one statement. What a tenant did is gone when the tenant is.
pub async fn insert(tx: &mut Tx, tenant: TenantId, rows: &[AuditRow]) -> Result<()> {
    let column = |text: fn(&AuditRow) -> &str| {
        rows.iter()
            .map(|row| text(row).to_owned())
            .collect::<Vec<String>>()
    };
    sqlx::query!(
        "insert into audit (tenant_id, id, at, actor, action, agent, run_id, server, tool, args_sha256, outcome, detail)
         select $1, id, at, actor, action, nullif(agent, ''), run_id, nullif(server, ''), nullif(tool, ''),
                nullif(args_sha256, ''), outcome, detail
         from unnest($2::uuid[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::text[],
                     $9::text[], $10::bytea[], $11::text[], $12::text[])
           r (id, at, actor, action, agent, run_id, server, tool, args_sha256, outcome, detail)
         where exists (select 1 from tenants where id = $1)",
        tenant.0,
        &rows.iter().map(|row| row.id.0).collect::<Vec<_>>(),
        &rows.iter().map(|row| row.at).collect::<Vec<_>>(),
        &column(|row| &row.actor),
        &column(|row| row.action),
        &column(|row| &row.agent),
        &rows.iter().map(|row| row.run.map(|run| run.0)).collect::<Vec<Option<Uuid>>>() as &[Option<Uuid>],
        &column(|row| &row.server),
        &column(|row| &row.tool),
        &rows.iter().map(|row| row.args_sha256.clone()).collect::<Vec<_>>(),
        &column(|row| row.outcome),
        &rows.iter().map(|row| row.detail.clone()).collect::<Vec<_>>() as &[Option<String>],
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Notes how a call ended whose line was written before it was sent.
pub async fn end(tx: &mut Tx, line: AuditId, outcome: &str) -> Result<()> {
    sqlx::query!(
        "insert into audit_outcomes (tenant_id, id, outcome)
         select tenant_id, id, $3 from audit where tenant_id = $1 and id = $2 on conflict do nothing",
        tx.tenant()?.0,
        line.0,
        outcome,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The same for many lines of the transaction's tenant.
pub async fn end_many(tx: &mut Tx, ended: &[(AuditId, &'static str)]) -> Result<()> {
    let lines: Vec<Uuid> = ended.iter().map(|(line, _)| line.0).collect();
    let outcomes: Vec<String> = ended
        .iter()
        .map(|(_, outcome)| (*outcome).to_owned())
        .collect();
    sqlx::query!(
        "insert into audit_outcomes (tenant_id, id, outcome)
         select $1, a.id, e.outcome
         from unnest($2::uuid[], $3::text[]) e (id, outcome) join audit a on a.tenant_id = $1 and a.id = e.id
         on conflict do nothing",
        tx.tenant()?.0,
        &lines,
        &outcomes,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Which of these lines are written.
pub async fn written(tx: &mut Tx, lines: &[AuditId]) -> Result<HashSet<AuditId>> {
    let ids: Vec<Uuid> = lines.iter().map(|line| line.0).collect();
    let found = sqlx::query_scalar!(
        r#"select id as "id: AuditId" from audit where tenant_id = $1 and id = any($2)"#,
        tx.tenant()?.0,
        &ids,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(found.into_iter().collect())
}

/// Records what this transaction does, with the time of the database.
pub async fn record(tx: &mut Tx, tenant: TenantId, fact: &Fact<'_>) -> Result<()> {
    sqlx::query!(
        "insert into audit (tenant_id, id, at, actor, action, agent, server, outcome, detail)
         values ($1, $2, now(), $3, $4, $5, $6, 'succeeded', $7)",
        tenant.0,
        AuditId::new().0,
        fact.actor,
        fact.action,
        fact.agent,
        fact.server,
        fact.detail,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The same for what concerns no single tenant; wants [`super::Db::system`].
pub async fn record_for_operator(
    tx: &mut Tx,
    actor: &str,
    action: &'static str,
    detail: &str,
) -> Result<()> {
    sqlx::query!(
        "insert into operator_audit (id, actor, action, detail) values ($1, $2, $3, $4)",
        AuditId::new().0,
        actor,
        action,
        detail,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
