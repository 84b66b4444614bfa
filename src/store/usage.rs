//! Rows of what was used, by day (UTC), user and agent. They outlive conversations: whoever deletes one has used it
//! all the same. Tool calls are counted with the lines of the audit trail.

use time::Date;

use super::Tx;
use crate::domain::{
    error::Result,
    ids::{AgentId, TenantId, UserId},
    principal::Principal,
    run::{ClaimedRun, Usage},
    usage::{Line, Used},
};

/// Counts a turn.
pub async fn add_run(
    tx: &mut Tx,
    tenant: TenantId,
    principal: &Principal,
    agent: &AgentId,
) -> Result<()> {
    add(tx, tenant, &principal.user, agent, 1, Usage::default()).await
}

/// Counts what a step of the model took.
pub async fn add_tokens(tx: &mut Tx, run: &ClaimedRun, usage: Usage) -> Result<()> {
    add(tx, run.tenant, &run.principal.user, &run.agent, 0, usage).await
}

async fn add(
    tx: &mut Tx,
    tenant: TenantId,
    user: &UserId,
    agent: &AgentId,
    runs: i64,
    usage: Usage,
) -> Result<()> {
    sqlx::query!(
        "insert into usage (tenant_id, id, day, user_id, agent, runs, input_tokens, output_tokens)
         values ($1, $2, (now() at time zone 'utc')::date, $3, $4, $5, $6, $7)
         on conflict (tenant_id, day, user_id, agent) do update
         set runs = usage.runs + excluded.runs, input_tokens = usage.input_tokens + excluded.input_tokens,
             output_tokens = usage.output_tokens + excluded.output_tokens",
        tenant.0,
        uuid::Uuid::now_v7(),
        user.as_str(),
        agent.as_str(),
        runs,
        usage.input_tokens,
        usage.output_tokens,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// What was used today: by the user, and by the whole tenant.
pub async fn today(tx: &mut Tx, user: &UserId) -> Result<(Used, Used)> {
    let row = sqlx::query!(
        r#"select coalesce(sum(runs) filter (where user_id = $1), 0)::bigint as "user_runs!",
                  coalesce(sum(input_tokens + output_tokens) filter (where user_id = $1), 0)::bigint as "user_tokens!",
                  coalesce(sum(runs), 0)::bigint as "runs!",
                  coalesce(sum(input_tokens + output_tokens), 0)::bigint as "tokens!"
           from usage where tenant_id = $2 and day = (now() at time zone 'utc')::date"#,
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_one(tx.conn())
    .await?;
    let user = Used {
        runs: row.user_runs,
        tokens: row.user_tokens,
    };
    Ok((
        user,
        Used {
            runs: row.runs,
            tokens: row.tokens,
        },
    ))
}

/// By user and agent, from a day on and before another one; whoever used the most tokens first.
pub async fn list(
    tx: &mut Tx,
    since: Option<Date>,
    until: Option<Date>,
    limit: i64,
) -> Result<Vec<Line>> {
    let rows = sqlx::query_as!(
        Line,
        r#"with used as (
             select user_id, agent, sum(runs)::bigint as runs, sum(input_tokens)::bigint as input_tokens,
                    sum(output_tokens)::bigint as output_tokens, 0::bigint as tool_calls
             from usage where tenant_id = $4 and ($1::date is null or day >= $1)
               and ($2::date is null or day < $2)
             group by user_id, agent
             union all
             select actor, agent, 0, 0, 0, count(*)
             from audit
             where tenant_id = $4 and action = 'tool.call' and agent is not null
               and ($1::date is null or at >= $1::date::timestamp at time zone 'utc')
               and ($2::date is null or at < $2::date::timestamp at time zone 'utc')
             group by actor, agent
           )
           select user_id as "user!", agent as "agent!", sum(runs)::bigint as "runs!",
                  sum(tool_calls)::bigint as "tool_calls!", sum(input_tokens)::bigint as "input_tokens!",
                  sum(output_tokens)::bigint as "output_tokens!"
           from used group by user_id, agent
           order by sum(input_tokens + output_tokens) desc, sum(runs) desc, user_id, agent limit $3"#,
        since,
        until,
        limit,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows)
}
