//! Rows of API keys: a hash, never the key. At most two of one name are live, held by the unique index on
//! (tenant, name, slot).

mod revocation;

use serde_json::{Map, Value};
use sqlx::types::Json;
use time::OffsetDateTime;

pub use self::revocation::{expire, prune_guests, retire, revoke, revoke_guest, revoke_one};
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

/// A query that answers whole rows.
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
            // A release that knows no sources has written the key.
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
                // A later release may know more.
                tool_calls: row.tool_calls.parse().unwrap_or_default(),
            },
            created_at: row.created_at,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
        })
    }
}

/// Adds a key in a slot of its name; a live key in that slot is a conflict.
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

/// The key with a prefix and the hash of the whole; wants [`super::Db::system`].
pub async fn by_prefix(tx: &mut Tx, prefix: &str) -> Result<Option<(ApiKey, Vec<u8>)>> {
    let row = rows!("where k.prefix = $1", prefix)
        .fetch_optional(tx.conn())
        .await?;
    row.map(|mut row| {
        let hash = std::mem::take(&mut row.hash);
        Ok((row.try_into()?, hash))
    })
    .transpose()
}

/// The keys of a tenant, guests left out, oldest first; only those of one name when it is given.
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

/// The keys of a tenant, guests left out, newest first, those before `before` only.
pub async fn page(
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

/// One key, unless it is a guest's.
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
pub async fn slot(tx: &mut Tx, tenant: TenantId, id: ApiKeyId) -> Result<i16> {
    let slot = sqlx::query_scalar!(
        "select slot from api_keys where tenant_id = $1 and id = $2",
        tenant.0,
        id.0
    );
    Ok(slot.fetch_one(tx.conn()).await?)
}
