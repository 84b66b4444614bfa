//! Rows of API keys. A row has the hash of a key, never the key. At most two keys of one name are live; the unique
//! index on (tenant, name, slot) guarantees it.

use serde_json::{Map, Value};
use sqlx::types::Json;
use time::OffsetDateTime;

use super::Tx;
use domain::{
    account::{ApiKey, ChatSettings, FrontendHeaders, KeyKind, SourceName, UserSource},
    error::{Error, ErrorCode, Result},
    ids::{ApiKeyId, TenantId},
    principal::Scopes,
};

struct Row {
    tenant_id: TenantId,
    id: ApiKeyId,
    name: String,
    prefix: String,
    hash: Vec<u8>,
    scopes: Vec<String>,
    kind: String,
    claims: Json<Map<String, Value>>,
    frontend: Option<Json<FrontendHeaders>>,
    keep_running: bool,
    tool_calls: String,
    created_at: OffsetDateTime,
    expires_at: Option<OffsetDateTime>,
    revoked_at: Option<OffsetDateTime>,
    user_prefix: Option<String>,
    trust_email: Option<bool>,
}

/// A query for whole rows, by the SQL after the tables.
macro_rules! rows {
    ($after:literal $(, $value:expr)* $(,)?) => {
        sqlx::query_as!(
            Row,
            r#"select k.tenant_id as "tenant_id: _", k.id as "id: _", k.name, k.prefix, k.hash, k.scopes, k.kind,
                      k.claims as "claims: Json<Map<String, Value>>", k.frontend as "frontend: Json<FrontendHeaders>",
                      k.keep_running, k.tool_calls, k.created_at, k.expires_at, k.revoked_at,
                      s.prefix as "user_prefix?", s.trust_email as "trust_email?"
               from api_keys k left join user_sources s
                 on s.tenant_id = k.tenant_id and s.kind = 'frontend' and s.name = k.name and k.kind = 'frontend' "# + $after
            $(, $value)*
        )
    };
}

impl TryFrom<Row> for ApiKey {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        let broken = |why: String| Error::internal(anyhow::anyhow!("API key {}: {why}", row.id));
        let speaker = match (row.kind.as_str(), row.frontend) {
            ("service", None) => KeyKind::Service(row.claims.0),
            ("frontend", Some(headers)) => KeyKind::Frontend(headers.0),
            ("guest", None) => KeyKind::Guest,
            (kind, _) => {
                return Err(broken(format!(
                    "kind {kind:?} is unknown or lacks its settings"
                )));
            }
        };
        let prefix = row.user_prefix.unwrap_or_else(|| match &speaker {
            // Without a source, an older release has written the key.
            KeyKind::Frontend(_) => SourceName::Frontend(&row.name).prefix(),
            KeyKind::Service(_) | KeyKind::Guest => String::new(),
        });
        let source = UserSource {
            prefix,
            trust_email: row.trust_email.unwrap_or_default(),
        };
        Ok(Self {
            id: row.id,
            tenant: row.tenant_id,
            name: row.name,
            prefix: row.prefix,
            scopes: Scopes::parse(&row.scopes).map_err(broken)?,
            speaker,
            source,
            chat: ChatSettings {
                keep_running: row.keep_running,
                // A later release may have written a word that this one does not know.
                tool_calls: row.tool_calls.parse().unwrap_or_default(),
            },
            created_at: row.created_at,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
        })
    }
}

/// Adds a key in a slot of its name. `Conflict` if a live key has that slot.
pub async fn insert(tx: &mut Tx, key: &ApiKey, hash: &[u8; 32], slot: i16) -> Result<()> {
    let scopes: Vec<String> = key.scopes.names().into_iter().map(str::to_owned).collect();
    let (claims, frontend) = match &key.speaker {
        KeyKind::Service(claims) => (claims.clone(), None),
        KeyKind::Frontend(headers) => (Map::new(), Some(Json(headers))),
        KeyKind::Guest => (Map::new(), None),
    };
    let added = sqlx::query!(
        "
        insert into api_keys
          (tenant_id, id, name, prefix, hash, scopes, slot, kind, claims, frontend, created_at, expires_at,
           keep_running, tool_calls)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
        on conflict (tenant_id, name, slot) where revoked_at is null and kind <> 'guest' do nothing
        ",
        key.tenant.0,
        key.id.0,
        key.name,
        key.prefix,
        hash,
        &scopes,
        slot,
        key.speaker.kind(),
        Json(claims) as _,
        frontend as _,
        key.created_at,
        key.expires_at,
        key.chat.keep_running,
        key.chat.tool_calls.into_str(),
    )
    .execute(tx.conn())
    .await?;
    if added.rows_affected() == 0 {
        return Err(Error::conflict(
            ErrorCode::DuplicateName,
            format!(
                "there is a live key {:?} already; rotate or revoke it",
                key.name
            ),
        ));
    }
    Ok(())
}

/// The key with a prefix, and the hash of the whole key. Needs the system role.
pub async fn find_by_prefix(tx: &mut Tx, prefix: &str) -> Result<Option<(ApiKey, Vec<u8>)>> {
    let row = rows!("where k.prefix = $1", prefix)
        .fetch_optional(tx.conn())
        .await?;
    row.map(|mut row| {
        let hash = std::mem::take(&mut row.hash);
        Ok((row.try_into()?, hash))
    })
    .transpose()
}

/// The keys of a tenant by name, without those of guests. If `name` is given, only the keys with this name.
pub async fn list(tx: &mut Tx, tenant: TenantId, name: Option<&str>) -> Result<Vec<ApiKey>> {
    let rows = rows!(
        "where k.tenant_id = $1 and k.kind <> 'guest' and ($2::text is null or k.name = $2) order by k.name, k.id",
        tenant.0,
        name,
    )
    .fetch_all(tx.conn())
    .await?;
    rows.into_iter().map(TryInto::try_into).collect()
}

/// At most `limit` keys of a tenant, without those of guests, the newest first, before `before`.
pub async fn list_page(
    tx: &mut Tx,
    tenant: TenantId,
    before: Option<ApiKeyId>,
    limit: i64,
) -> Result<Vec<ApiKey>> {
    let rows = rows!(
        "where k.tenant_id = $1 and k.kind <> 'guest' and ($2::uuid is null or k.id < $2) order by k.id desc limit $3",
        tenant.0,
        before.map(|id| id.0),
        limit,
    )
    .fetch_all(tx.conn())
    .await?;
    rows.into_iter().map(TryInto::try_into).collect()
}

/// One key. `None` for the key of a guest.
pub async fn get(tx: &mut Tx, tenant: TenantId, id: ApiKeyId) -> Result<Option<ApiKey>> {
    let row = rows!(
        "where k.tenant_id = $1 and k.id = $2 and k.kind <> 'guest'",
        tenant.0,
        id.0
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// The slot of a live key.
pub async fn get_slot(tx: &mut Tx, tenant: TenantId, id: ApiKeyId) -> Result<i16> {
    let slot = sqlx::query_scalar!(
        "select slot from api_keys where tenant_id = $1 and id = $2",
        tenant.0,
        id.0
    );
    Ok(slot.fetch_one(tx.conn()).await?)
}

/// Revokes one key. `false` if it is revoked already, is the key of a guest, or does not exist.
pub async fn revoke_one(
    tx: &mut Tx,
    tenant: TenantId,
    id: ApiKeyId,
    now: OffsetDateTime,
) -> Result<bool> {
    let done = sqlx::query!(
        "
        update api_keys
        set revoked_at = $3
        where tenant_id = $1 and id = $2 and kind <> 'guest' and revoked_at is null
        ",
        tenant.0,
        id.0,
        now,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Revokes the key of a guest.
pub async fn revoke_guest(
    tx: &mut Tx,
    tenant: TenantId,
    id: ApiKeyId,
    now: OffsetDateTime,
) -> Result<()> {
    sqlx::query!(
        "
        update api_keys
        set revoked_at = $3
        where tenant_id = $1 and id = $2 and kind = 'guest' and revoked_at is null
        ",
        tenant.0,
        id.0,
        now,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Frees the slots of expired keys of a name: they count as revoked since their expiry.
pub async fn retire(tx: &mut Tx, tenant: TenantId, name: &str, now: OffsetDateTime) -> Result<()> {
    sqlx::query!(
        "
        update api_keys
        set revoked_at = expires_at
        where tenant_id = $1 and name = $2 and revoked_at is null and expires_at <= $3
        ",
        tenant.0,
        name,
        now,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Lets a key expire at a time, unless it expires earlier.
pub async fn expire(tx: &mut Tx, tenant: TenantId, id: ApiKeyId, at: OffsetDateTime) -> Result<()> {
    sqlx::query!(
        "update api_keys set expires_at = least(expires_at, $3) where tenant_id = $1 and id = $2",
        tenant.0,
        id.0,
        at,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Revokes the keys with this name or prefix. Returns how many were not revoked yet.
pub async fn revoke(
    tx: &mut Tx,
    tenant: TenantId,
    name_or_prefix: &str,
    now: OffsetDateTime,
) -> Result<u64> {
    let revoked = sqlx::query!(
        "
        update api_keys
        set revoked_at = $3
        where tenant_id = $1 and (name = $2 or prefix = $2) and revoked_at is null
        ",
        tenant.0,
        name_or_prefix,
        now,
    )
    .execute(tx.conn())
    .await?;
    Ok(revoked.rows_affected())
}

/// Deletes the expired keys of guests. Returns how many guests are left.
pub async fn prune_guests(tx: &mut Tx, tenant: TenantId, now: OffsetDateTime) -> Result<i64> {
    sqlx::query!(
        "delete from api_keys where tenant_id = $1 and kind = 'guest' and expires_at <= $2",
        tenant.0,
        now,
    )
    .execute(tx.conn())
    .await?;
    let left = sqlx::query_scalar!(
        r#"select count(*) as "count!" from api_keys where tenant_id = $1 and kind = 'guest'"#,
        tenant.0,
    );
    Ok(left.fetch_one(tx.conn()).await?)
}
