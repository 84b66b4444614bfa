//! Rows of what vouches for users. A row is made with the first issuer or key of its name and never removed.

use uuid::Uuid;

use super::Tx;
use domain::{
    account::{SourceName, SourceSettings, UserSource},
    error::{Error, Result},
    ids::TenantId,
};

/// Notes a source of the transaction's tenant, or changes what is said of it. The first one of a tenant has users without
/// a prefix; each other has its own, unless the settings name another whose users it shares. With its own name it has
/// users of its own again.
pub async fn put(
    tx: &mut Tx,
    source: SourceName<'_>,
    settings: &SourceSettings,
) -> Result<UserSource> {
    let tenant = tx.tenant()?;
    let shared = match &settings.shares_users_with {
        Some(name) if name == source.name() => own_prefix(tx, source).await?,
        Some(name) => Some(prefix_of(tx, tenant, name).await?),
        None => None,
    };
    if settings.trust_email == Some(false) {
        distrust_addresses(tx, source).await?;
    }
    if shared.is_none() {
        // Of two first ones that come at once, the index lets one be it.
        sqlx::query!(
            "insert into user_sources (tenant_id, id, kind, name, prefix, is_first)
             select $1, $4, $2, $3, '', true where not exists (select from user_sources where tenant_id = $1)
             on conflict do nothing",
            tenant.0,
            source.kind(),
            source.name(),
            Uuid::now_v7(),
        )
        .execute(tx.conn())
        .await?;
    }
    let row = sqlx::query!(
        "insert into user_sources as known (tenant_id, id, kind, name, prefix, trust_email)
         values ($1, $7, $2, $3, coalesce($4, $5), coalesce($6, false))
         on conflict (tenant_id, kind, name) do update
         set prefix = coalesce($4, known.prefix), trust_email = coalesce($6, known.trust_email)
         returning prefix, trust_email",
        tenant.0,
        source.kind(),
        source.name(),
        shared,
        source.prefix(),
        settings.trust_email,
        Uuid::now_v7(),
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(UserSource {
        prefix: row.prefix,
        trust_email: row.trust_email,
    })
}

/// The prefix of a source that shares nobody's users; absent: the source is new.
async fn own_prefix(tx: &mut Tx, source: SourceName<'_>) -> Result<Option<String>> {
    let is_first = sqlx::query_scalar!(
        "select is_first from user_sources where tenant_id = $1 and kind = $2 and name = $3",
        tx.tenant()?.0,
        source.kind(),
        source.name(),
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(is_first.map(|is_first| {
        if is_first {
            String::new()
        } else {
            source.prefix()
        }
    }))
}

/// What was kept of the users of a trusted source says of their addresses that they are verified. Until the users come
/// back, nobody knows. Another source may share the users, and keeps what it has verified: an issuer's claims name it. A
/// frontend's name no issuer, and are not told from those of another frontend that shares the users.
async fn distrust_addresses(tx: &mut Tx, source: SourceName<'_>) -> Result<()> {
    sqlx::query!(
        "update users u set claims = (u.claims::jsonb - 'email_verified')::json
         from user_sources s
         where u.tenant_id = $1 and s.tenant_id = $1 and s.kind = $2 and s.name = $3 and s.trust_email
           and starts_with(u.user_id, s.prefix) and u.claims::jsonb ? 'email_verified'
           and case s.kind when 'issuer' then u.claims::jsonb->>'iss' = s.name else not u.claims::jsonb ? 'iss' end",
        tx.tenant()?.0,
        source.kind(),
        source.name(),
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The prefix of the source with this name.
async fn prefix_of(tx: &mut Tx, tenant: TenantId, name: &str) -> Result<String> {
    let found = sqlx::query_scalar!(
        "select distinct prefix from user_sources where tenant_id = $1 and name = $2",
        tenant.0,
        name,
    )
    .fetch_all(tx.conn())
    .await?;
    match <[String; 1]>::try_from(found) {
        Ok([prefix]) => Ok(prefix),
        Err(found) if found.is_empty() => Err(Error::invalid(
            "shares_users_with",
            format!("{name:?} is neither an issuer nor the key of a frontend of this tenant"),
        )),
        Err(_) => Err(Error::invalid(
            "shares_users_with",
            format!("{name:?} names an issuer and a key, which have different users"),
        )),
    }
}
