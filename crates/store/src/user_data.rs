//! The data of a user beside conversations and credentials: usage by day, and the deletion of the rest.

use serde::Serialize;

use super::Tx;
use domain::{error::Result, ids::UserId};

/// The usage of a user on one day (UTC) with one agent.
#[derive(Debug, Serialize)]
pub struct DayOfUsage {
    pub day: String,
    pub agent: String,
    pub runs: i64,
    pub input_tokens: i64,
    pub cached_input_tokens: i64,
    pub output_tokens: i64,
}

/// A user's usage, the newest day first.
pub async fn list_usage(tx: &mut Tx, user: &UserId) -> Result<Vec<DayOfUsage>> {
    let days = sqlx::query_as!(
        DayOfUsage,
        r#"with used as (
             select day, agent, runs, input_tokens, output_tokens, cached_input_tokens
             from usage where tenant_id = $1 and user_id = $2
             union all
             select day, agent, runs, input_tokens, output_tokens, cached_input_tokens from usage_additions
             where tenant_id = $1 and user_id = $2
           )
           select day::text as "day!", agent as "agent!", sum(runs)::bigint as "runs!",
                  sum(input_tokens)::bigint as "input_tokens!",
                  sum(cached_input_tokens)::bigint as "cached_input_tokens!", sum(output_tokens)::bigint as "output_tokens!"
           from used group by day, agent order by day desc, agent"#,
        tx.tenant()?.0,
        user.as_str(),
    );
    Ok(days.fetch_all(tx.conn()).await?)
}

/// Deletes a user's claims, and erases everything but the user's id from their requests for approval. `false` if an
/// approved call of the user is being made: its row stays as it is.
pub async fn delete(tx: &mut Tx, user: &UserId) -> Result<bool> {
    let tenant = tx.tenant()?.0;
    sqlx::query!(
        "delete from users where tenant_id = $1 and user_id = $2",
        tenant,
        user.as_str(),
    )
    .execute(tx.conn())
    .await?;
    sqlx::query!(
        "update approvals
         set sealed = substr(sealed, 1, 7), evidence = null, requester_name = null, trace = null, reason = case when decided_by = $2 then null else reason end,
             principal = erased_principal(tenant_id, requester)
         where tenant_id = $1 and requester = $2 and state <> 'executing'",
        tenant,
        user.as_str(),
    )
    .execute(tx.conn())
    .await?;
    sqlx::query!(
        "update approval_results set result = null
         where tenant_id = $1 and id in (select id from approvals where tenant_id = $1 and requester = $2)",
        tenant,
        user.as_str(),
    )
    .execute(tx.conn())
    .await?;
    sqlx::query!(
        "update approvals set by_name = null where tenant_id = $1 and decided_by = $2",
        tenant,
        user.as_str(),
    )
    .execute(tx.conn())
    .await?;
    sqlx::query!(
        "delete from request_answers where tenant_id = $1 and user_id = $2",
        tenant,
        user.as_str(),
    )
    .execute(tx.conn())
    .await?;
    sqlx::query!(
        "delete from kept_calls where tenant_id = $1 and user_id = $2",
        tenant,
        user.as_str(),
    )
    .execute(tx.conn())
    .await?;
    sqlx::query!(
        "delete from approval_notices where tenant_id = $1 and user_id = $2",
        tenant,
        user.as_str(),
    )
    .execute(tx.conn())
    .await?;
    sqlx::query!(
        "delete from unindexed_messages where tenant_id = $1 and user_id = $2",
        tenant,
        user.as_str(),
    )
    .execute(tx.conn())
    .await?;
    sqlx::query!(
        "update approval_votes set session = null where tenant_id = $1 and approver = $2",
        tenant,
        user.as_str(),
    )
    .execute(tx.conn())
    .await?;
    // Messages that are still to be sent are deleted after some days, like all messages.
    sqlx::query!(
        "delete from webhook_deliveries
         where tenant_id = $1 and next_attempt_at is null and payload->'requester'->>'user' = $2",
        tenant,
        user.as_str(),
    )
    .execute(tx.conn())
    .await?;
    let executing = sqlx::query_scalar!(
        r#"select exists (select 1 from approvals
                          where tenant_id = $1 and requester = $2 and state = 'executing') as "executing!""#,
        tenant,
        user.as_str(),
    );
    Ok(!executing.fetch_one(tx.conn()).await?)
}
