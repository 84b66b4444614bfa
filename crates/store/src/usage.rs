//! Rows of usage, by day (UTC), user and agent. A run only adds rows to `usage_additions`, so that two runs never
//! wait for each other. A little later these rows are added up into `usage`. Deleting a conversation does not reduce
//! the usage. The calls of tools are added by the lines of the audit trail, and stay when those are deleted.

use time::Date;

use super::Tx;
use domain::{
    error::Result,
    ids::{AgentId, TenantId, UserId},
    principal::GUEST_USER,
    run::Usage,
    usage::{DayLine, Line, Together, Used},
};

/// Locks the row of the tenant until the end of the transaction, so that two requests at once cannot both take the
/// last place of a limit.
pub async fn lock(tx: &mut Tx) -> Result<()> {
    let tenant = tx.tenant()?;
    sqlx::query!(
        r#"select 1 as "one!" from tenants where id = $1 for no key update"#,
        tenant.0,
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(())
}

/// The usage of today: of the user, and of the whole tenant.
pub async fn get_today(tx: &mut Tx, user: &UserId) -> Result<(Used, Used)> {
    let row = sqlx::query!(
        r#"with used as (
             select user_id, runs, input_tokens + output_tokens as tokens
             from usage where tenant_id = $2 and day = (now() at time zone 'utc')::date
             union all
             select user_id, runs, input_tokens + output_tokens
             from usage_additions where tenant_id = $2 and day = (now() at time zone 'utc')::date
           )
           select coalesce(sum(runs) filter (where user_id = $1), 0)::bigint as "user_runs!",
                  coalesce(sum(tokens) filter (where user_id = $1), 0)::bigint as "user_tokens!",
                  coalesce(sum(runs), 0)::bigint as "runs!",
                  coalesce(sum(tokens), 0)::bigint as "tokens!"
           from used"#,
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_one(tx.conn())
    .await?;
    let user = Used {
        runs: row.user_runs,
        tokens: row.user_tokens,
    };
    let tenant = Used {
        runs: row.runs,
        tokens: row.tokens,
    };
    Ok((user, tenant))
}

/// The bytes that were stored today: by the user, and by all users with whom the user shares a limit.
pub struct StoredToday {
    pub user: i64,
    pub together: i64,
}

/// The bytes that were stored today. `together` says which users share a limit: all of the tenant, or its guests.
pub async fn get_stored_today(
    tx: &mut Tx,
    user: &UserId,
    together: Together,
) -> Result<StoredToday> {
    let prefix = match together {
        Together::Nobody => None,
        Together::Guests => Some(GUEST_USER),
        Together::Tenant => Some(""),
    };
    sqlx::query_as!(
        StoredToday,
        r#"with stored as (
             select user_id, bytes from usage
             where tenant_id = $2 and day = (now() at time zone 'utc')::date
               and (user_id = $1 or starts_with(user_id, $3))
             union all
             select user_id, bytes from usage_additions
             where tenant_id = $2 and day = (now() at time zone 'utc')::date
               and (user_id = $1 or starts_with(user_id, $3))
           )
           select coalesce(sum(bytes) filter (where user_id = $1), 0)::bigint as "user!",
                  coalesce(sum(bytes), 0)::bigint as "together!"
           from stored"#,
        user.as_str(),
        tx.tenant()?.0,
        prefix,
    )
    .fetch_one(tx.conn())
    .await
    .map_err(Into::into)
}

/// Adds bytes that the user has stored. Bytes of messages are counted when the messages are written.
pub async fn add_stored(tx: &mut Tx, user: &UserId, agent: &AgentId, bytes: i64) -> Result<()> {
    sqlx::query!(
        "insert into usage_additions (tenant_id, id, day, user_id, agent, bytes)
         values ($1, $2, (now() at time zone 'utc')::date, $3, $4, $5)",
        tx.tenant()?.0,
        uuid::Uuid::now_v7(),
        user.as_str(),
        agent.as_str(),
        bytes,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Adds tokens that were used outside of runs.
pub async fn add(tx: &mut Tx, user: &UserId, agent: &AgentId, tokens: Usage) -> Result<()> {
    sqlx::query!(
        "insert into usage_additions (tenant_id, id, day, user_id, agent, input_tokens, output_tokens,
                                      cached_input_tokens)
         values ($1, $2, (now() at time zone 'utc')::date, $3, $4, $5, $6, $7)",
        tx.tenant()?.0,
        uuid::Uuid::now_v7(),
        user.as_str(),
        agent.as_str(),
        tokens.input_tokens,
        tokens.output_tokens,
        tokens.cached_input_tokens,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The tenants with rows to add up. Needs the system role.
pub async fn list_tenants_to_fold(tx: &mut Tx) -> Result<Vec<TenantId>> {
    let ids =
        sqlx::query_scalar!(r#"select distinct tenant_id as "id: TenantId" from usage_additions"#);
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// Adds at most `limit` rows of `usage_additions` up into the rows of their days. Returns how many rows of `usage` were
/// written. It takes two statements, because Citus cannot plan one that deletes from one table and adds to another.
pub async fn fold(tx: &mut Tx, limit: i64) -> Result<u64> {
    let tenant = tx.tenant()?.0;
    let sums = sqlx::query!(
        r#"with taken as (
             delete from usage_additions where tenant_id = $1 and id in (
               select id from usage_additions where tenant_id = $1 limit $2 for update skip locked)
             returning day, user_id, agent, runs, input_tokens, output_tokens, cached_input_tokens, bytes, tool_calls
           )
           select day as "day!", user_id as "user_id!", agent as "agent!", sum(runs)::bigint as "runs!",
                  sum(input_tokens)::bigint as "input!", sum(output_tokens)::bigint as "output!",
                  sum(cached_input_tokens)::bigint as "cached!", sum(bytes)::bigint as "bytes!",
                  sum(tool_calls)::bigint as "calls!"
           from taken group by day, user_id, agent order by day, user_id, agent"#,
        tenant,
        limit,
    )
    .fetch_all(tx.conn())
    .await?;
    sqlx::query!(
        "insert into usage (tenant_id, id, day, user_id, agent, runs, input_tokens, output_tokens, bytes,
                            cached_input_tokens, tool_calls)
         select $1, gen_random_uuid(), day, user_id, agent, runs, input, output, bytes, cached, calls
         from unnest($2::date[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
                     $9::bigint[], $10::bigint[])
           as sums (day, user_id, agent, runs, input, output, bytes, cached, calls)
         on conflict (tenant_id, day, user_id, agent) do update
         set runs = usage.runs + excluded.runs, input_tokens = usage.input_tokens + excluded.input_tokens,
             output_tokens = usage.output_tokens + excluded.output_tokens,
             cached_input_tokens = usage.cached_input_tokens + excluded.cached_input_tokens,
             bytes = usage.bytes + excluded.bytes, tool_calls = usage.tool_calls + excluded.tool_calls",
        tenant,
        &column(&sums, |sum| sum.day),
        &column(&sums, |sum| sum.user_id.clone()),
        &column(&sums, |sum| sum.agent.clone()),
        &column(&sums, |sum| sum.runs),
        &column(&sums, |sum| sum.input),
        &column(&sums, |sum| sum.output),
        &column(&sums, |sum| sum.bytes),
        &column(&sums, |sum| sum.cached),
        &column(&sums, |sum| sum.calls),
    )
    .execute(tx.conn())
    .await?;
    Ok(sums.len() as u64)
}

fn column<R, T>(rows: &[R], value: impl Fn(&R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

/// The usage by user and agent, from `since` on and before `until`. The user with the most tokens comes first.
pub async fn list(
    tx: &mut Tx,
    since: Option<Date>,
    until: Option<Date>,
    limit: i64,
) -> Result<Vec<Line>> {
    let rows = sqlx::query_as!(
        Line,
        r#"with used as (
             select user_id, agent, runs, input_tokens, output_tokens, cached_input_tokens, tool_calls from usage
             where tenant_id = $4 and ($1::date is null or day >= $1) and ($2::date is null or day < $2)
             union all
             select user_id, agent, runs, input_tokens, output_tokens, cached_input_tokens, tool_calls
             from usage_additions
             where tenant_id = $4 and ($1::date is null or day >= $1) and ($2::date is null or day < $2)
           )
           select user_id as "user!", agent as "agent!", sum(runs)::bigint as "runs!",
                  sum(tool_calls)::bigint as "tool_calls!", sum(input_tokens)::bigint as "input_tokens!",
                  sum(cached_input_tokens)::bigint as "cached_input_tokens!",
                  sum(output_tokens)::bigint as "output_tokens!"
           from used group by user_id, agent
           having sum(runs + tool_calls + input_tokens + output_tokens) > 0
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

/// The usage by day, from `since` on and before `until`, the oldest day first: of all users, or of one. Also lists days
/// without usage.
pub async fn list_by_day(
    tx: &mut Tx,
    user: Option<&UserId>,
    since: Date,
    until: Date,
) -> Result<Vec<DayLine>> {
    let rows = sqlx::query_as!(
        DayLine,
        r#"with used as (
             select day, runs, input_tokens, output_tokens, cached_input_tokens, tool_calls
             from usage where tenant_id = $3 and day >= $1 and day < $2 and ($4::text is null or user_id = $4)
             union all
             select day, runs, input_tokens, output_tokens, cached_input_tokens, tool_calls
             from usage_additions where tenant_id = $3 and day >= $1 and day < $2 and ($4::text is null or user_id = $4)
             union all
             select day::date, 0, 0, 0, 0, 0 from generate_series($1::date, $2::date - 1, interval '1 day') day
           )
           select day as "day!", sum(runs)::bigint as "runs!", sum(tool_calls)::bigint as "tool_calls!",
                  sum(input_tokens)::bigint as "input_tokens!",
                  sum(cached_input_tokens)::bigint as "cached_input_tokens!",
                  sum(output_tokens)::bigint as "output_tokens!"
           from used group by day order by day"#,
        since,
        until,
        tx.tenant()?.0,
        user.map(UserId::as_str),
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows)
}
