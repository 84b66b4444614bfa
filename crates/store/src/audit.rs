//! Rows of the audit trail. Rows are only added. A row has hashes of arguments, never arguments or results.
//!
//! The line of a call in a run is written in the transaction that stores the call, before the call is sent. Its
//! outcome is written beside it afterwards ([`record_outcome`]). Calls outside of runs are written in batches. Every
//! other line is written in the transaction that it describes ([`record`]).

use std::collections::HashSet;

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{
    audit::{Fact, Filter, Line, OperatorLine},
    error::Result,
    ids::{AuditId, RunId, TenantId},
};

/// One line. Fields that do not apply to it are empty.
#[derive(Clone, Debug)]
pub struct AuditRow {
    pub tenant: TenantId,
    pub id: AuditId,
    pub at: OffsetDateTime,
    pub actor: String,
    /// The name of the action, such as `tool.call`.
    pub action: &'static str,
    pub agent: String,
    pub run: Option<RunId>,
    pub server: String,
    pub tool: String,
    /// SHA-256 of the arguments as they were sent, or as a refused call had them.
    pub args_sha256: Vec<u8>,
    /// One of `succeeded`, `failed`, `denied`, `outcome_unknown`, `cancelled`.
    pub outcome: &'static str,
    /// A detail for people: a code, a reason, `self-approved`. Never arguments or results.
    pub detail: Option<String>,
}

impl AuditRow {
    /// A line for an action that succeeded. Its other fields are empty.
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

/// Adds lines of one tenant in one statement. Adds nothing if the tenant was deleted.
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
         where exists (select 1 from tenants where id = $1)
         on conflict (tenant_id, id) do nothing",
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

/// Records the outcome of a call whose line was written before the call was sent.
pub async fn record_outcome(tx: &mut Tx, line: AuditId, outcome: &str) -> Result<()> {
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

/// Like [`record_outcome`], for many lines.
pub async fn record_outcomes(tx: &mut Tx, ended: &[(AuditId, &'static str)]) -> Result<()> {
    let lines: Vec<Uuid> = ended.iter().map(|(line, _)| line.0).collect();
    let outcomes: Vec<String> = ended
        .iter()
        .map(|(_, outcome)| (*outcome).to_owned())
        .collect();
    sqlx::query!(
        "insert into audit_outcomes (tenant_id, id, outcome)
         select a.tenant_id, a.id, e.outcome
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

/// Finds which of these lines exist.
pub async fn list_written(tx: &mut Tx, lines: &[AuditId]) -> Result<HashSet<AuditId>> {
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

/// Adds a line for what this transaction does, with the time of the database.
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

/// Like [`record`], for an action of the operator that concerns no single tenant. Needs the system role.
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

/// At most `limit` lines of the tenant that match a filter, the newest first, before `before`.
pub async fn list(
    tx: &mut Tx,
    tenant: TenantId,
    filter: &Filter,
    before: Option<AuditId>,
    limit: i64,
) -> Result<Vec<Line>> {
    // A generic plan, which serves all filters, would read the whole trail for each of them.
    sqlx::query("set local plan_cache_mode = force_custom_plan")
        .execute(tx.conn())
        .await?;
    let (first, last) = filter.ids();
    let last = before.map_or(last, |before| before.0.min(last));
    let (prefix, action) = match filter.action.as_deref() {
        Some(action) if action.ends_with('.') => (Some(action), None),
        action => (None, action),
    };
    // Which lines to look at, and how each ended.
    macro_rules! list {
        ($from:literal) => {
            sqlx::query_as!(
                Line,
                r#"select a.id as "id: _", a.at, a.actor, a.action, a.agent, a.run_id as "run_id: _", a.server, a.tool,
                      encode(a.args_sha256, 'hex') as args_sha256, ended.outcome as "outcome!", a.detail "#
                + $from
                + r#" where a.tenant_id = $1 and a.id >= $2 and a.id < $3
                 and ($4::timestamptz is null or at >= $4) and ($5::timestamptz is null or at < $5)
                 and ($6::text is null or actor = $6)
                 and ($7::text is null or action = $7) and ($8::text is null or starts_with(action, $8))
                 -- what lets the index of all that is not a call serve
                 and ($8::text is null or $8 = 'tool.' or action <> 'tool.call')
                 and ($9::text is null or server = $9) and ($10::text is null or tool = $10)
                 and ($11::uuid is null or run_id = $11) and ($12::text is null or ended.outcome = $12)
                 and ($13::bytea is null or args_sha256 = $13)
               order by a.id desc
               limit $14"#,
                tenant.0,
                first,
                last,
                filter.since,
                filter.until,
                filter.actor,
                action,
                prefix,
                filter.server,
                filter.tool,
                filter.run.map(|run| run.0),
                filter.outcome,
                filter.args_sha256,
                limit,
            )
            .fetch_all(tx.conn())
            .await?
        };
    }
    Ok(match filter.outcome.as_deref() {
        None | Some("succeeded") => list!(
            "from audit a
             left join audit_outcomes o on o.tenant_id = $1 and o.id = a.id
             cross join lateral (select coalesce(o.outcome, a.outcome) as outcome) ended"
        ),
        // Rare outcomes have indexes, one for the lines that say themselves how they ended and one for those that
        // were written before. Lines without an outcome have a table.
        Some(_) => list!(
            "from (
               select o.id, o.outcome from audit_outcomes o
               where o.tenant_id = $1 and o.outcome = $12 and o.id >= $2 and o.id < $3
               union all
               select l.id, l.outcome from audit l
               where l.tenant_id = $1 and l.outcome = $12 and l.id >= $2 and l.id < $3
                 and l.outcome not in ('succeeded', 'outcome_unknown')
                 and not exists (select 1 from audit_outcomes o where o.tenant_id = $1 and o.id = l.id)
               union all
               select l.id, 'outcome_unknown' from audit_open_lines l
               where l.tenant_id = $1 and $12 = 'outcome_unknown' and l.id >= $2 and l.id < $3
             ) ended
             join audit a on a.tenant_id = $1 and a.id = ended.id"
        ),
    })
}

/// The newest lines of the operator's trail since a time. Needs the system role.
pub async fn list_of_operator(
    tx: &mut Tx,
    since: Option<OffsetDateTime>,
    limit: i64,
) -> Result<Vec<OperatorLine>> {
    let times = Filter {
        since,
        ..Filter::default()
    };
    let (first, _) = times.ids();
    let lines = sqlx::query_as!(
        OperatorLine,
        r#"
        select id as "id: _", at, actor, action, detail from operator_audit
        where id >= $3 and ($1::timestamptz is null or at >= $1)
        order by id desc
        limit $2
        "#,
        since,
        limit,
        first,
    );
    Ok(lines.fetch_all(tx.conn()).await?)
}
