//! The newest verified claims of people, and whether what they asked for is still theirs.

use std::sync::Arc;

use serde_json::{Map, Value};
use sqlx::types::Json;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::Tx;
use domain::{
    error::{Error, Result},
    ids::UserId,
    lookalike::skeleton,
    principal::{KEY_USER, Principal},
    session::{PastAct, SessionEnd, SignOut},
};

/// What [`put`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimsWritten {
    /// None were kept before.
    First,
    /// Others were kept before.
    Changed,
    /// The same are kept, or newer ones.
    Kept,
}

/// Keeps somebody's claims if none are newer. Claims that did not change are written again after five minutes.
pub async fn put(
    tx: &mut Tx,
    principal: &Principal,
    issued_at: Option<OffsetDateTime>,
) -> Result<ClaimsWritten> {
    let claims = serde_json::to_string(&*principal.claims).map_err(Error::internal)?;
    let row = sqlx::query!(
        "with old as (
           select claims::text as claims from users where tenant_id = $1 and user_id = $3
         ), put as (
           insert into users (tenant_id, id, user_id, claims, locale, claims_at, changed_at, id_look, name_look)
           values ($1, $2, $3, $4::text::json, $5, least($6, statement_timestamp()), statement_timestamp(), $7, $8)
           on conflict (tenant_id, user_id) do update
           set claims = excluded.claims, locale = excluded.locale, claims_at = excluded.claims_at,
               id_look = excluded.id_look, name_look = excluded.name_look,
               changed_at = case when users.claims::text <> excluded.claims::text then excluded.changed_at
                                 else users.changed_at end
           where users.claims_at <= excluded.claims_at
             and (users.claims::text <> excluded.claims::text or users.locale is distinct from excluded.locale
                  or excluded.claims_at - users.claims_at > interval '5 minutes')
           returning claims::text as claims
         )
         select (select claims from old) as old, (select claims from put) as new",
        principal.tenant.0,
        Uuid::now_v7(),
        principal.user.as_str(),
        claims,
        principal.locale,
        issued_at,
        skeleton(principal.user.as_str()),
        skeleton(&principal.display_name()),
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(match (row.old, row.new) {
        (None, Some(_)) => ClaimsWritten::First,
        (Some(old), Some(new)) if old != new => ClaimsWritten::Changed,
        _ => ClaimsWritten::Kept,
    })
}

/// Whether the id or the name of somebody else of the tenant is read as this one's.
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

/// Whether the tokens of the last people who came with one had this claim; `None` when nobody did.
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

/// People as their newest claims have them, and programs as the claims of their live key do. Those of whom none are kept
/// are not among them.
pub async fn newest(tx: &mut Tx, users: &[UserId]) -> Result<Vec<Principal>> {
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
    });
    Ok(people.collect())
}

/// Of each act, why it does not count any more: its doer was signed out or blocked since, or whoever vouched for them does
/// so no longer.
pub async fn session_ends(tx: &mut Tx, acts: &[PastAct<'_>]) -> Result<Vec<Option<SessionEnd>>> {
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
