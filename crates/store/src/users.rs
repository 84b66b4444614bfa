//! Users, as far as their rows tell of them. Whoever came with a token or by a frontend, has a conversation, a credential,
//! a request for approval or some usage, or has voted, has been seen, even if the conversation is gone.

mod newest;

use sqlx::types::Json;
use time::OffsetDateTime;

pub use self::newest::{ClaimsWritten, has_been_claimed, has_lookalike, newest, put, session_ends};
use super::Tx;
use domain::{
    account::{SeenUser, UserCredential},
    error::Result,
    ids::UserId,
};

struct Row {
    id: String,
    last_seen: Option<OffsetDateTime>,
    conversations: i64,
    credentials: Json<Vec<UserCredential>>,
    open_approvals: i64,
    runs_today: i64,
    tokens_today: i64,
    tool_calls_today: i64,
    blocked_at: Option<OffsetDateTime>,
    blocked_by: Option<String>,
}

impl From<Row> for SeenUser {
    fn from(row: Row) -> Self {
        let Row {
            id,
            last_seen,
            conversations,
            credentials,
            open_approvals,
            blocked_at,
            blocked_by,
            ..
        } = row;
        let (runs_today, tokens_today, tool_calls_today) =
            (row.runs_today, row.tokens_today, row.tool_calls_today);
        let credentials = credentials.0;
        Self {
            id,
            last_seen,
            conversations,
            credentials,
            open_approvals,
            runs_today,
            tokens_today,
            tool_calls_today,
            blocked_at,
            blocked_by,
        }
    }
}

/// Users by id, whose id starts with `prefix`, those after `after` only.
pub async fn list(
    tx: &mut Tx,
    prefix: &str,
    after: Option<&str>,
    limit: i64,
) -> Result<Vec<SeenUser>> {
    let ids = sqlx::query_scalar!(
        r#"select user_id as "id!" from (
             (select distinct user_id from conversations
              where tenant_id = $4 and starts_with(user_id, $1) and ($2::text is null or user_id > $2)
              order by user_id limit $3)
             union (select distinct user_id from credentials
              where tenant_id = $4 and starts_with(user_id, $1) and ($2::text is null or user_id > $2)
              order by user_id limit $3)
             union (select distinct user_id from usage
              where tenant_id = $4 and starts_with(user_id, $1) and ($2::text is null or user_id > $2)
              order by user_id limit $3)
             union (select distinct requester from approvals
              where tenant_id = $4 and starts_with(requester, $1) and ($2::text is null or requester > $2)
              order by requester limit $3)
             union (select distinct approver from approval_votes
              where tenant_id = $4 and starts_with(approver, $1) and ($2::text is null or approver > $2)
              order by approver limit $3)
             union (select user_id from users
              where tenant_id = $4 and starts_with(user_id, $1) and ($2::text is null or user_id > $2)
              order by user_id limit $3)
             union (select user_id from sign_outs
              where tenant_id = $4 and starts_with(user_id, $1) and ($2::text is null or user_id > $2)
                and blocked_at is not null
              order by user_id limit $3)
           ) seen order by user_id limit $3"#,
        prefix,
        after,
        limit,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    list_by_ids(tx, &ids).await
}

/// One of them.
pub async fn get(tx: &mut Tx, user: &UserId) -> Result<Option<SeenUser>> {
    let seen = sqlx::query_scalar!(
        r#"select exists (select from conversations where tenant_id = $2 and user_id = $1)
                  or exists (select from credentials where tenant_id = $2 and user_id = $1)
                  or exists (select from usage where tenant_id = $2 and user_id = $1)
                  or exists (select from approvals where tenant_id = $2 and requester = $1)
                  or exists (select from approval_votes where tenant_id = $2 and approver = $1)
                  or exists (select from users where tenant_id = $2 and user_id = $1)
                  or exists (select from sign_outs
                             where tenant_id = $2 and user_id = $1 and blocked_at is not null) as "seen!""#,
        user.as_str(),
        tx.tenant()?.0,
    )
    .fetch_one(tx.conn())
    .await?;
    if !seen {
        return Ok(None);
    }
    Ok(list_by_ids(tx, &[user.to_string()]).await?.pop())
}

async fn list_by_ids(tx: &mut Tx, ids: &[String]) -> Result<Vec<SeenUser>> {
    let rows = sqlx::query_as!(
        Row,
        r#"select u.id as "id!", talk.conversations as "conversations!", own.credentials as "credentials!: Json<Vec<UserCredential>>",
                  asked.open as "open_approvals!", used.runs as "runs_today!", used.tokens as "tokens_today!",
                  called.tool_calls as "tool_calls_today!",
                  greatest(talk.last, own.last, asked.last, used.last, did.last, known.last) as last_seen,
                  b.blocked_at as "blocked_at?", b.blocked_by as "blocked_by?"
           from unnest($1::text[]) with ordinality u (id, place)
           left join sign_outs b on b.tenant_id = $2 and b.user_id = u.id,
           lateral (select count(*) as conversations, max(updated_at) as last from conversations
                    where tenant_id = $2 and user_id = u.id) talk,
           lateral (select coalesce(json_agg(json_build_object('agent', agent, 'server', server, 'state', state,
                      'sign_in', case when issuer is not null then json_build_object(
                        'issuer', issuer, 'scopes', coalesce(string_to_array(nullif(scopes, ''), ' '), '{}'),
                        'since', coalesce(signed_in_at, updated_at)) end)
                                             order by agent, server), '[]') as credentials, max(updated_at) as last
                    from credentials where tenant_id = $2 and user_id = u.id) own,
           lateral (select count(*) filter (where state in ('pending', 'approved', 'executing')) as open,
                           max(created_at) as last
                    from approvals where tenant_id = $2 and requester = u.id) asked,
           lateral (select coalesce(sum(runs) filter (where day = (now() at time zone 'utc')::date), 0)::bigint as runs,
                           coalesce(sum(input_tokens + output_tokens)
                                    filter (where day = (now() at time zone 'utc')::date), 0)::bigint as tokens,
                           max(day)::timestamp at time zone 'utc' as last
                    from (select day, runs, input_tokens, output_tokens
                          from usage where tenant_id = $2 and user_id = u.id
                          union all
                          select day, runs, input_tokens, output_tokens
                          from usage_additions where tenant_id = $2 and user_id = u.id) counted) used,
           lateral (select count(*) as tool_calls from audit
                    where tenant_id = $2 and actor = u.id and action = 'tool.call'
                      and at >= ((now() at time zone 'utc')::date)::timestamp at time zone 'utc') called,
           lateral (select max(at) as last from (
             select at from audit where tenant_id = $2 and actor = u.id order by id desc limit 1) a) did,
           lateral (select max(claims_at) as last from users where tenant_id = $2 and user_id = u.id) known
           order by u.place"#,
        ids,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows.into_iter().map(Into::into).collect())
}
