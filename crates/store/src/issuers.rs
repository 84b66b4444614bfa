//! Rows of issuers. A pair of issuer and audience belongs to one tenant, so that a token identifies its tenant.

use std::collections::HashMap;

use super::Tx;
use domain::{
    account::{Issuer, IssuerKeys, SourceName, UserSource},
    error::{Error, ErrorCode, Result},
    ids::{IssuerId, TenantId},
};

struct Row {
    tenant_id: TenantId,
    id: IssuerId,
    issuer: String,
    audience: String,
    algorithm: String,
    jwks_url: Option<String>,
    public_key: Option<String>,
    secret_env: Option<String>,
    prefix: Option<String>,
    trust_email: Option<bool>,
    of_tenant: Option<bool>,
}

/// A query for whole rows, by the SQL after the tables.
macro_rules! rows {
    ($after:literal, $value:expr) => {
        sqlx::query_as!(
            Row,
            r#"select i.tenant_id as "tenant_id: _", i.id as "id: _", i.issuer, i.audience, i.algorithm, i.jwks_url,
                      i.public_key, i.secret_env, i.of_tenant, s.prefix as "prefix?",
                      s.trust_email as "trust_email?"
               from issuers i left join user_sources s
                 on s.tenant_id = i.tenant_id and s.kind = 'issuer' and s.name = i.issuer "# + $after,
            $value
        )
    };
}

impl TryFrom<Row> for Issuer {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        let keys = match (row.jwks_url, row.public_key, row.secret_env) {
            (Some(url), None, None) => IssuerKeys::Jwks(url),
            (None, Some(pem), None) => IssuerKeys::PublicKey(pem),
            (None, None, Some(name)) => IssuerKeys::SecretEnv(name),
            _ => {
                return Err(Error::internal(anyhow::anyhow!(
                    "issuer {} has not exactly one source of keys",
                    row.id
                )));
            }
        };
        let Row {
            issuer,
            audience,
            algorithm,
            ..
        } = row;
        // Without a source, an older release has written the issuer.
        let prefix = row
            .prefix
            .unwrap_or_else(|| SourceName::Issuer(&issuer).prefix());
        let source = UserSource {
            prefix,
            trust_email: row.trust_email.unwrap_or_default(),
        };
        Ok(Self {
            id: row.id,
            tenant: row.tenant_id,
            issuer,
            audience,
            algorithm,
            keys,
            source,
            of_tenant: row.of_tenant,
        })
    }
}

/// Adds an issuer, or replaces the keys of the tenant's issuer with the same audience, which keeps its id. Returns
/// whether the issuer is new. `Conflict` if another tenant has the same issuer and audience.
pub async fn put(tx: &mut Tx, issuer: &mut Issuer) -> Result<bool> {
    let keys = issuer.keys.clone();
    let (jwks_url, public_key, secret_env) = match &keys {
        IssuerKeys::Jwks(url) => (Some(url), None, None),
        IssuerKeys::PublicKey(pem) => (None, Some(pem), None),
        IssuerKeys::SecretEnv(name) => (None, None, Some(name)),
    };
    let before = sqlx::query_scalar!(
        r#"delete from issuers where tenant_id = $1 and issuer = $2 and audience = $3
           returning id as "id: IssuerId""#,
        issuer.tenant.0,
        issuer.issuer,
        issuer.audience,
    )
    .fetch_optional(tx.conn())
    .await?;
    if let Some(id) = before {
        issuer.id = id;
    }
    let added = sqlx::query!(
        "
        insert into issuers
          (tenant_id, id, issuer, audience, algorithm, jwks_url, public_key, secret_env, of_tenant)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        on conflict (issuer, audience) do nothing
        ",
        issuer.tenant.0,
        issuer.id.0,
        issuer.issuer,
        issuer.audience,
        issuer.algorithm,
        jwks_url,
        public_key,
        secret_env,
        issuer.of_tenant,
    )
    .execute(tx.conn())
    .await?;
    if added.rows_affected() == 0 {
        let own = list(tx, issuer.tenant).await?;
        if own
            .iter()
            .any(|own| own.issuer == issuer.issuer && own.audience == issuer.audience)
        {
            return Err(Error::conflict(
                ErrorCode::Conflict,
                "this issuer was added at this moment; look at the list",
            ));
        }
        return Err(Error::conflict(
            ErrorCode::IssuerNotAllowed,
            format!(
                "issuer {:?} with audience {:?} belongs to another tenant; choose another audience",
                issuer.issuer, issuer.audience
            ),
        ));
    }
    Ok(before.is_none())
}

/// Deletes one row. Returns its issuer and audience.
pub async fn take(tx: &mut Tx, tenant: TenantId, id: IssuerId) -> Result<Option<(String, String)>> {
    let row = sqlx::query!(
        "delete from issuers where tenant_id = $1 and id = $2 returning issuer, audience",
        tenant.0,
        id.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| (row.issuer, row.audience)))
}

/// At most 100 rows with this issuer, of all tenants. Needs the system role.
pub async fn list_by_issuer(tx: &mut Tx, issuer: &str) -> Result<Vec<Issuer>> {
    let rows = rows!("where i.issuer = $1 order by i.id limit 100", issuer)
        .fetch_all(tx.conn())
        .await?;
    rows.into_iter().map(TryInto::try_into).collect()
}

/// The first issuers of all tenants. Needs the system role.
pub async fn list_first(tx: &mut Tx, most: i64) -> Result<Vec<Issuer>> {
    let rows = rows!("order by i.issuer, i.id limit $1", most)
        .fetch_all(tx.conn())
        .await?;
    rows.into_iter().map(TryInto::try_into).collect()
}

/// The issuers of the transaction's tenant.
pub async fn list(tx: &mut Tx, tenant: TenantId) -> Result<Vec<Issuer>> {
    let rows = rows!(
        "where i.tenant_id = $1 order by i.issuer, i.audience",
        tenant.0
    )
    .fetch_all(tx.conn())
    .await?;
    rows.into_iter().map(TryInto::try_into).collect()
}

/// Deletes an issuer with all its audiences, or with one of them. Returns the number of deleted rows.
pub async fn delete(
    tx: &mut Tx,
    tenant: TenantId,
    issuer: &str,
    audience: Option<&str>,
) -> Result<u64> {
    let deleted = sqlx::query!(
        "
        delete from issuers
        where tenant_id = $1 and issuer = $2 and ($3::text is null or audience = $3)
        ",
        tenant.0,
        issuer,
        audience,
    )
    .execute(tx.conn())
    .await?;
    Ok(deleted.rows_affected())
}

/// A hash of the rows of each of these issuers, to notice changes. Needs the system role.
pub async fn list_stamps(tx: &mut Tx, issuers: &[String]) -> Result<HashMap<String, String>> {
    let rows = sqlx::query!(
        r#"select i.issuer, md5(string_agg(i::text || coalesce(s::text, ''), ',' order by i.id)) as "stamp!"
           from issuers i left join user_sources s
             on s.tenant_id = i.tenant_id and s.kind = 'issuer' and s.name = i.issuer
           where i.issuer = any($1) group by i.issuer"#,
        issuers
    )
    .fetch_all(tx.conn())
    .await?;
    let stamps = rows.into_iter().map(|row| (row.issuer, row.stamp));
    Ok(stamps.collect())
}
