//! Rows of users, and their newest verified claims.
//!
//! The tenant has seen a user who came with a token or through a frontend, or has a conversation, a credential, a
//! request for approval, a vote or usage. A deleted conversation leaves its usage, so its user stays seen.

use std::sync::Arc;

use serde_json::{Map, Value};
use sqlx::types::Json;
use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{
    account::{SeenUser, UserCredential},
    error::{Error, Result},
    ids::UserId,
    lookalike::skeleton,
    principal::{Audience, KEY_USER, Principal},
    session::{PastAct, SessionEnd, SignOut},
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

/// At most `limit` users whose id starts with `prefix`, in the order of their ids, after `after`.
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

/// One user. `None` if the tenant has never seen the user.
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
                  used.calls as "tool_calls_today!",
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
                           coalesce(sum(tool_calls) filter (where day = (now() at time zone 'utc')::date), 0)::bigint
                             as calls,
                           max(day)::timestamp at time zone 'utc' as last
                    from (select day, runs, input_tokens, output_tokens, tool_calls
                          from usage where tenant_id = $2 and user_id = u.id
                          union all
                          select day, runs, input_tokens, output_tokens, tool_calls
                          from usage_additions where tenant_id = $2 and user_id = u.id) counted) used,
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

/// The result of [`put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimsWritten {
    /// The user had no claims before.
    First,
    /// The user had other claims before.
    Changed,
    /// The user already had the same claims, or newer ones.
    Kept,
}

/// Stores the claims of a user, unless there are newer ones. The same claims are written again after five minutes at
/// the earliest.
pub async fn put(
    tx: &mut Tx,
    principal: &Principal,
    issued_at: Option<OffsetDateTime>,
) -> Result<ClaimsWritten> {
    let claims = serde_json::to_string(&*principal.claims).map_err(Error::internal)?;
    // A statement of its own: where tables are sharded, a query beside a change may see what is changed.
    let old = sqlx::query_scalar!(
        r#"select claims::text as "claims!" from users where tenant_id = $1 and user_id = $2"#,
        principal.tenant.0,
        principal.user.as_str(),
    );
    let old = old.fetch_optional(tx.conn()).await?;
    let new = sqlx::query_scalar!(
        r#"insert into users (tenant_id, id, user_id, claims, locale, claims_at, changed_at, id_look, name_look)
           values ($1, $2, $3, $4::text::json, $5, least($6, statement_timestamp()), statement_timestamp(), $7, $8)
           on conflict (tenant_id, user_id) do update
           set claims = excluded.claims, locale = excluded.locale, claims_at = excluded.claims_at,
               id_look = excluded.id_look, name_look = excluded.name_look,
               changed_at = case when users.claims::text <> excluded.claims::text then excluded.changed_at
                                 else users.changed_at end
           where users.claims_at <= excluded.claims_at
             and (users.claims::text <> excluded.claims::text or users.locale is distinct from excluded.locale
                  or excluded.claims_at - users.claims_at > interval '5 minutes')
           returning claims::text as "claims!""#,
        principal.tenant.0,
        Uuid::now_v7(),
        principal.user.as_str(),
        claims,
        principal.locale,
        issued_at,
        skeleton(principal.user.as_str()),
        skeleton(&principal.display_name()),
    );
    let new = new.fetch_optional(tx.conn()).await?;
    Ok(match (old, new) {
        (None, Some(_)) => ClaimsWritten::First,
        (Some(old), Some(new)) if old != new => ClaimsWritten::Changed,
        _ => ClaimsWritten::Kept,
    })
}

/// Whether another user of the tenant has an id or a name that people can mistake for this user's.
pub async fn has_lookalike(tx: &mut Tx, principal: &Principal) -> Result<bool> {
    let found = sqlx::query_scalar!(
        r#"select exists (select from users where tenant_id = $1 and user_id <> $2
                          and (id_look = any($3) or name_look = any($3))) as "found!""#,
        tx.tenant()?.0,
        principal.user.as_str(),
        &[
            skeleton(principal.user.as_str()),
            skeleton(&principal.display_name())
        ],
    );
    Ok(found.fetch_one(tx.conn()).await?)
}

/// Whether the newest token of any of the last 1,000 users with a token had this claim. `None` if no user came with a
/// token.
pub async fn has_been_claimed(tx: &mut Tx, claim: &str) -> Result<Option<bool>> {
    let found = sqlx::query_scalar!(
        r#"select bool_or(claims ? $2) from (
             select claims::jsonb as claims from users
             where tenant_id = $1 and claims::jsonb ? 'iss' order by claims_at desc limit 1000
           ) newest"#,
        tx.tenant()?.0,
        claim,
    );
    Ok(found.fetch_one(tx.conn()).await?)
}

/// The principals of users: people with their newest claims, and programs with the claims of their live key. A user
/// without stored claims is left out.
pub async fn list_principals(tx: &mut Tx, users: &[UserId]) -> Result<Vec<Principal>> {
    let tenant = tx.tenant()?;
    let keys: Vec<String> = users
        .iter()
        .filter_map(|user| user.as_str().strip_prefix(KEY_USER).map(str::to_owned))
        .collect();
    let users: Vec<String> = users.iter().map(UserId::to_string).collect();
    let rows = sqlx::query!(
        r#"select user_id as "user!: UserId", claims as "claims!: Json<Map<String, Value>>", locale from users
           where tenant_id = $1 and user_id = any($2)
           union all
           (select distinct on (name) $4 || name, claims::json, null from api_keys
            where tenant_id = $1 and kind = 'service' and name = any($3) and revoked_at is null
              and (expires_at is null or expires_at > statement_timestamp())
            order by name, created_at desc)"#,
        tenant.0,
        &users,
        &keys,
        KEY_USER,
    )
    .fetch_all(tx.conn())
    .await?;
    let people = rows.into_iter().map(|row| Principal {
        tenant,
        user: row.user,
        claims: Arc::new(row.claims.0),
        locale: row.locale,
        authenticated: true,
        key: None,
        audience: Audience::default(),
    });
    Ok(people.collect())
}

/// Finds for each act why it does not count any more: its user was signed out or blocked since, the key was revoked,
/// or the issuer was removed. `None` for an act that counts.
pub async fn list_session_ends(
    tx: &mut Tx,
    acts: &[PastAct<'_>],
) -> Result<Vec<Option<SessionEnd>>> {
    let users: Vec<String> = acts.iter().map(|act| act.who.user.to_string()).collect();
    let keys: Vec<Option<Uuid>> = acts
        .iter()
        .map(|act| act.who.key.map(|key| key.0))
        .collect();
    let issuers: Vec<Option<String>> = acts
        .iter()
        .map(|act| act.who.issuer().map(str::to_owned))
        .collect();
    let rows = sqlx::query!(
        r#"select s.issued_until as "issued_until?", s.expires_until as "expires_until?", s.others_at as "others_at?",
                  (s.blocked_at is not null) as "is_blocked!",
                  (act.key_id is not null and k.id is null
                   or k.revoked_at is not null and k.revoked_at < coalesce(k.expires_at, 'infinity')) as "is_key_revoked!",
                  (act.issuer is null
                   or exists (select from issuers i where i.tenant_id = $1 and i.issuer = act.issuer)) as "is_trusted!"
           from unnest($2::text[], $3::uuid[], $4::text[]) with ordinality act (user_id, key_id, issuer, place)
           left join sign_outs s on s.tenant_id = $1 and s.user_id = act.user_id
           left join api_keys k on k.tenant_id = $1 and k.id = act.key_id
           order by act.place"#,
        tx.tenant()?.0,
        &users,
        &keys as &[Option<Uuid>],
        &issuers as &[Option<String>],
    )
    .fetch_all(tx.conn())
    .await?;
    let ends = acts.iter().zip(rows).map(|(act, row)| {
        if row.is_blocked {
            return Some(SessionEnd::Blocked);
        }
        if row.is_key_revoked {
            return Some(SessionEnd::KeyRevoked);
        }
        if !row.is_trusted {
            return Some(SessionEnd::IssuerRemoved);
        }
        let sign_out = row.issued_until.zip(row.expires_until);
        let sign_out = sign_out.map(|(issued_until, expires_until)| SignOut {
            issued_until,
            expires_until,
            others_at: row.others_at,
            is_blocked: row.is_blocked,
        });
        sign_out
            .filter(|sign_out| sign_out.ends_act(act))
            .map(|_| SessionEnd::SignedOut)
    });
    Ok(ends.collect())
}
