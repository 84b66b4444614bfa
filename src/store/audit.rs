//! Rows of the audit trail: only ever added, in batches. Content is a hash, never arguments or results.

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use crate::domain::{
    error::Result,
    ids::{AuditId, RunId, TenantId},
};

/// One line.
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
    /// More of it for people: a code, a reason. Never arguments or results.
    pub detail: Option<String>,
}

/// Adds lines of one tenant in one statement. What a tenant did is gone when the tenant is.
pub async fn insert(tx: &mut Tx, tenant: TenantId, rows: &[AuditRow]) -> Result<()> {
    let column = |text: fn(&AuditRow) -> &str| rows.iter().map(|row| text(row).to_owned()).collect::<Vec<String>>();
    sqlx::query!(
        "insert into audit (tenant_id, id, at, actor, action, agent, run_id, server, tool, args_sha256, outcome,
                            detail)
         select $1, * from unnest($2::uuid[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::uuid[],
                                  $8::text[], $9::text[], $10::bytea[], $11::text[], $12::text[])
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
