//! Lists of audit lines, of a tenant and of the operator.

use time::OffsetDateTime;

use crate::Tx;
use domain::{
    audit::{Filter, Line, OperatorLine},
    error::Result,
    ids::{AuditId, TenantId},
};

/// The tenant's lines that pass a filter, newest first, those before `before` only.
pub async fn list(
    tx: &mut Tx,
    tenant: TenantId,
    filter: &Filter,
    before: Option<AuditId>,
    limit: i64,
) -> Result<Vec<Line>> {
    // One plan for all filters would read the whole trail for each filter.
    sqlx::query("set local plan_cache_mode = force_custom_plan")
        .execute(tx.conn())
        .await?;
    let (first, last) = filter.ids();
    let last = before.map_or(last, |before| before.0.min(last));
    let lines = sqlx::query_as!(
        Line,
        r#"
        select a.id as "id: _", at, actor, action, agent, run_id as "run_id: _", server, tool, encode(args_sha256, 'hex') as args_sha256,
               coalesce(o.outcome, a.outcome) as "outcome!", detail
        from audit a
        left join audit_outcomes o on o.tenant_id = $1 and o.id = a.id
        where a.tenant_id = $1 and a.id >= $2 and a.id < $3
          and ($4::timestamptz is null or at >= $4) and ($5::timestamptz is null or at < $5)
          and ($6::text is null or actor = $6)
          and ($7::text is null or action = $7) and ($8::text is null or starts_with(action, $8))
          -- what lets the index of all that is not a call serve
          and ($8::text is null or $8 = 'tool.' or action <> 'tool.call')
          and ($9::text is null or server = $9) and ($10::text is null or tool = $10)
          and ($11::uuid is null or run_id = $11) and ($12::text is null or coalesce(o.outcome, a.outcome) = $12)
          and ($13::bytea is null or args_sha256 = $13)
        order by a.id desc
        limit $14
        "#,
        tenant.0,
        first,
        last,
        filter.since,
        filter.until,
        filter.actor,
        filter
            .action
            .as_deref()
            .filter(|action| !action.ends_with('.')),
        filter
            .action
            .as_deref()
            .filter(|action| action.ends_with('.')),
        filter.server,
        filter.tool,
        filter.run.map(|run| run.0),
        filter.outcome,
        filter.args_sha256,
        limit,
    );
    Ok(lines.fetch_all(tx.conn()).await?)
}

/// The newest lines of the operator's trail since a time; wants [`crate::Db::system`].
pub async fn operators(
    tx: &mut Tx,
    since: Option<OffsetDateTime>,
    limit: i64,
) -> Result<Vec<OperatorLine>> {
    let lines = sqlx::query_as!(
        OperatorLine,
        r#"
        select id as "id: _", at, actor, action, detail from operator_audit
        where $1::timestamptz is null or at >= $1
        order by id desc
        limit $2
        "#,
        since,
        limit,
    );
    Ok(lines.fetch_all(tx.conn()).await?)
}
