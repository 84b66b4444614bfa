//! The newest verified claims of people, and whether what they asked for is still theirs.

use std::sync::Arc;

use serde_json::{Map, Value};
use sqlx::types::Json;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    domain::{
        error::{Error, Result},
        ids::UserId,
        principal::Principal,
        session::{SessionEnd, SignOut},
    },
    store::Tx,
};

/// Keeps somebody's claims if none are newer. Claims that did not change are written again after five minutes. Whether
/// others were kept before.
pub async fn put(
    tx: &mut Tx,
    principal: &Principal,
    issued_at: Option<OffsetDateTime>,
) -> Result<bool> {
    let claims = serde_json::to_string(&*principal.claims).map_err(Error::internal)?;
    let row = sqlx::query!(
        "with old as (
           select claims::text as claims from users where tenant_id = $1 and user_id = $3
         ), put as (
           insert into users (tenant_id, id, user_id, claims, locale, claims_at)
           values ($1, $2, $3, $4::text::json, $5, least($6, statement_timestamp()))
           on conflict (tenant_id, user_id) do update
           set claims = excluded.claims, locale = excluded.locale, claims_at = excluded.claims_at
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
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(row.old.is_some() && row.new.is_some() && row.new != row.old)
}

/// People as their newest claims have them. Those of whom none are kept are not among them.
pub async fn newest(tx: &mut Tx, users: &[UserId]) -> Result<Vec<Principal>> {
    let tenant = tx.tenant()?;
    let users: Vec<String> = users.iter().map(UserId::to_string).collect();
    let rows = sqlx::query!(
        r#"select user_id, claims as "claims: Json<Map<String, Value>>", locale from users
           where tenant_id = $1 and user_id = any($2)"#,
        tenant.0,
        &users,
    )
    .fetch_all(tx.conn())
    .await?;
    let people = rows.into_iter().map(|row| Principal {
        tenant,
        user: UserId(row.user_id.into()),
        claims: Arc::new(row.claims.0),
        locale: row.locale,
        authenticated: true,
        key: None,
    });
    Ok(people.collect())
}

/// Why what a principal asked for is not theirs any more: they were signed out since, or whoever vouched for them does
/// so no longer.
pub async fn session_end(tx: &mut Tx, principal: &Principal) -> Result<Option<SessionEnd>> {
    let row = sqlx::query!(
        r#"select s.issued_until as "issued_until?", s.expires_until as "expires_until?",
                  ($3::uuid is not null and k.id is null
                   or k.revoked_at is not null and k.revoked_at < coalesce(k.expires_at, 'infinity')) as "is_key_revoked!",
                  ($4::text is null or exists (select from issuers i where i.tenant_id = $1 and i.issuer = $4)) as "is_trusted!"
           from (select $2::text as user_id) who
           left join sign_outs s on s.tenant_id = $1 and s.user_id = who.user_id
           left join api_keys k on k.tenant_id = $1 and k.id = $3"#,
        principal.tenant.0,
        principal.user.as_str(),
        principal.key.map(|key| key.0),
        principal.issuer(),
    )
    .fetch_one(tx.conn())
    .await?;
    let sign_out = row.issued_until.zip(row.expires_until);
    let sign_out = sign_out.map(|(issued_until, expires_until)| SignOut {
        issued_until,
        expires_until,
    });
    Ok(if row.is_key_revoked {
        Some(SessionEnd::KeyRevoked)
    } else if !row.is_trusted {
        Some(SessionEnd::IssuerRemoved)
    } else {
        let by_token = principal.issuer().is_some();
        sign_out
            .filter(|sign_out| by_token && sign_out.ends(&principal.claims))
            .map(|_| SessionEnd::SignedOut)
    })
}
