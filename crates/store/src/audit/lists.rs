//! Lists of audit lines, of a tenant and of the operator.

use time::OffsetDateTime;
use uuid::Uuid;

use crate::Tx;
use domain::{
    audit::{Filter, Line, OperatorLine},
    error::Result,
    ids::{AuditId, RunId, TenantId},
};

struct Row {
    pub(super) id: Uuid,
    pub(super) at: OffsetDateTime,
    pub(super) actor: String,
    pub(super) action: String,
    pub(super) agent: Option<String>,
    pub(super) run_id: Option<Uuid>,
    pub(super) server: Option<String>,
    pub(super) tool: Option<String>,
    pub(super) args_sha256: Option<String>,
    pub(super) outcome: String,
    pub(super) detail: Option<String>,
}

impl From<Row> for Line {
    fn from(row: Row) -> Self {
        let Row {
            at,
            actor,
            action,
            agent,
            server,
            tool,
            args_sha256,
            outcome,
            detail,
            ..
        } = row;
        let (id, run_id) = (AuditId(row.id), row.run_id.map(RunId));
        Self {
            id,
            at,
            actor,
            action,
            agent,
            run_id,
            server,
            tool,
            args_sha256,
            outcome,
            detail,
        }
    }
}

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
    let rows = sqlx::query_as!(
        Row,
        r#"
        select a.id, at, actor, action, agent, run_id, server, tool, encode(args_sha256, 'hex') as args_sha256,
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
        filter.action.as_deref().filter(|action| !action.ends_with('.')),
        filter.action.as_deref().filter(|action| action.ends_with('.')),
        filter.server,
        filter.tool,
        filter.run.map(|run| run.0),
        filter.outcome,
        filter.args_sha256,
        limit,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows.into_iter().map(Into::into).collect())
}

/// The newest lines of the operator's trail since a time; wants [`crate::Db::system`].
pub async fn operators(
    tx: &mut Tx,
    since: Option<OffsetDateTime>,
    limit: i64,
) -> Result<Vec<OperatorLine>> {
    let rows = sqlx::query!(
        "
        select id, at, actor, action, detail from operator_audit
        where $1::timestamptz is null or at >= $1
        order by id desc
        limit $2
        ",
        since,
        limit,
    )
    .fetch_all(tx.conn())
    .await?;
    let line = |id, at, actor, action, detail| OperatorLine {
        id: AuditId(id),
        at,
        actor,
        action,
        detail,
    };
    Ok(rows
        .into_iter()
        .map(|row| line(row.id, row.at, row.actor, row.action, row.detail))
        .collect())
}
