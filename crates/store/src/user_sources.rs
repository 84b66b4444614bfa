//! Rows of sources of users: issuers, and the keys of frontends. A row is added with the first issuer or key of its
//! name, and never deleted.

use uuid::Uuid;

use super::Tx;
use domain::{
    account::{SourceName, SourceSettings, UserSource},
    error::{Error, Result},
    ids::TenantId,
};

/// Adds a source of the transaction's tenant, or changes its settings. The ids of users of the first source of a
/// tenant have no prefix. Every other source has a prefix of its own, unless the settings name a source whose users
/// it shares. If they name the source itself, it has its own users again.
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
        // If two sources come first at once, the index allows only one of them.
        sqlx::query!(
            "insert into user_sources (tenant_id, id, kind, name, prefix, is_first)
             select id, $4, $2, $3, '', true from tenants
             where id = $1 and not exists (select from user_sources where tenant_id = $1)
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

/// The prefix of a source that shares no users. `None` if the source is new.
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

/// Deletes the claim `email_verified` of the users of a source that was trusted so far. Another source may share the
/// users: claims that name another issuer stay. The claims of frontends name no issuer, so they are deleted for all
/// frontends that share the users.
async fn distrust_addresses(tx: &mut Tx, source: SourceName<'_>) -> Result<()> {
    sqlx::query!(
        "update users u set claims = (u.claims::jsonb - 'email_verified')::json
         from user_sources s
         where u.tenant_id = $1 and s.tenant_id = $1 and s.kind = $2 and s.name = $3 and s.trust_email
           and starts_with(u.user_id, s.prefix) and u.claims::jsonb ? 'email_verified'
           and case when s.kind = 'issuer' then u.claims::jsonb->>'iss' = s.name else not u.claims::jsonb ? 'iss' end",
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
