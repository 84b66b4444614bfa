//! Rows of discovered tools, so that a replica that starts while a server is down still knows its tools.

use std::{sync::Arc, time::Duration};

use sqlx::types::Json;
use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{
    error::{Error, Result},
    ids::{AgentId, CredentialId, ServerId, TenantId},
    owner::CatalogOwner,
    prompt::ServerPrompt,
    tool::{CacheHints, CacheScope, Catalog, Tool},
};

/// Stores the catalog of a server as its owner sees it, in place of an older one.
pub async fn put(
    tx: &mut Tx,
    tenant: TenantId,
    agent: &AgentId,
    owner: CatalogOwner,
    catalog: &Catalog,
) -> Result<()> {
    sqlx::query!(
        "insert into catalogs (tenant_id, id, agent, server, scope, version, tools, prompts, dropped, fetched_at, ttl_ms,
                               cache_scope)
         values ($1, $2, $3, $4, $5, $6, $7::text::json, $8::text::json, $9::text::json, $10, $11, $12)
         on conflict (tenant_id, agent, server, scope) do update
         set version = excluded.version, tools = excluded.tools, prompts = excluded.prompts, dropped = excluded.dropped,
             fetched_at = excluded.fetched_at, ttl_ms = excluded.ttl_ms, cache_scope = excluded.cache_scope
         where catalogs.fetched_at <= excluded.fetched_at",
        tenant.0,
        Uuid::now_v7(),
        agent.as_str(),
        catalog.server.as_str(),
        owner.to_string(),
        catalog.version,
        to_json_text(&catalog.tools)?,
        to_json_text(&catalog.prompts)?,
        to_json_text(&catalog.dropped)?,
        catalog.fetched_at,
        catalog.cache.ttl.map(|ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)),
        catalog.cache.scope.map(<&str>::from),
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The same of a server whose connection serves all tenants. `agent`: the pack that names it.
pub async fn put_of_all(tx: &mut Tx, agent: &AgentId, catalog: &Catalog) -> Result<()> {
    sqlx::query!(
        "insert into catalogs_of_all (agent, server, version, tools, prompts, dropped, fetched_at, ttl_ms, cache_scope)
         values ($1, $2, $3, $4::text::json, $5::text::json, $6::text::json, $7, $8, $9)
         on conflict (agent, server) do update
         set version = excluded.version, tools = excluded.tools, prompts = excluded.prompts, dropped = excluded.dropped,
             fetched_at = excluded.fetched_at, ttl_ms = excluded.ttl_ms, cache_scope = excluded.cache_scope
         where catalogs_of_all.fetched_at <= excluded.fetched_at",
        agent.as_str(),
        catalog.server.as_str(),
        catalog.version,
        to_json_text(&catalog.tools)?,
        to_json_text(&catalog.prompts)?,
        to_json_text(&catalog.dropped)?,
        catalog.fetched_at,
        catalog.cache.ttl.map(|ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)),
        catalog.cache.scope.map(<&str>::from),
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The stored catalog of such a server.
pub async fn get_of_all(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
) -> Result<Option<Catalog>> {
    let row = sqlx::query_as!(
        Row,
        r#"select server as "server: _", '' as "scope!", version, tools as "tools: Json<Vec<Arc<Tool>>>",
                  prompts as "prompts: Json<Vec<Arc<ServerPrompt>>>", dropped as "dropped: Json<Vec<String>>", fetched_at,
                  ttl_ms, cache_scope
           from catalogs_of_all where agent = $1 and server = $2"#,
        agent.as_str(),
        server.as_str(),
    )
    .fetch_optional(tx.conn())
    .await?;
    let catalog = row.map(<(Catalog, CatalogOwner)>::try_from).transpose()?;
    Ok(catalog.map(|(catalog, _)| catalog))
}

/// JSON as text. Postgres would parse a parameter of a JSON type, and the schema of a server may contain numbers and
/// escapes that Postgres cannot read.
fn to_json_text(json: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(json).map_err(Error::internal)
}

struct Row {
    server: ServerId,
    scope: String,
    version: String,
    tools: Json<Vec<Arc<Tool>>>,
    prompts: Json<Vec<Arc<ServerPrompt>>>,
    dropped: Json<Vec<String>>,
    fetched_at: OffsetDateTime,
    ttl_ms: Option<i64>,
    cache_scope: Option<String>,
}

impl TryFrom<Row> for (Catalog, CatalogOwner) {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        let owner = row.scope.parse().map_err(Error::internal)?;
        let ttl = row.ttl_ms.and_then(|ttl| u64::try_from(ttl).ok());
        // The column allows only two words. If there is another one, the list must not become shared.
        let scope = row
            .cache_scope
            .map(|scope| scope.parse().unwrap_or(CacheScope::Private));
        let catalog = Catalog {
            server: row.server,
            tools: row.tools.0,
            prompts: row.prompts.0,
            dropped: row.dropped.0,
            fetched_at: row.fetched_at,
            cache: CacheHints {
                ttl: ttl.map(Duration::from_millis),
                scope,
            },
            version: row.version,
        };
        Ok((catalog, owner))
    }
}

/// The stored ones of these catalogs, each with its owner.
pub async fn list(
    tx: &mut Tx,
    agent: &AgentId,
    wanted: &[(ServerId, CatalogOwner)],
) -> Result<Vec<(Catalog, CatalogOwner)>> {
    let (servers, owners): (Vec<String>, Vec<String>) = wanted
        .iter()
        .map(|(server, owner)| (server.to_string(), owner.to_string()))
        .unzip();
    let rows = sqlx::query_as!(
        Row,
        r#"select server as "server: _", scope, version, tools as "tools: Json<Vec<Arc<Tool>>>",
                  prompts as "prompts: Json<Vec<Arc<ServerPrompt>>>", dropped as "dropped: Json<Vec<String>>", fetched_at,
                  ttl_ms, cache_scope
           from catalogs where tenant_id = $4 and agent = $1
             and (server, scope) in (select * from unnest($2::text[], $3::text[]))"#,
        agent.as_str(),
        &servers,
        &owners,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    rows.into_iter().map(TryInto::try_into).collect()
}

/// Deletes the catalog of a server as one credential sees it.
pub async fn delete(
    tx: &mut Tx,
    agent: &AgentId,
    server: &ServerId,
    credential: CredentialId,
) -> Result<()> {
    sqlx::query!(
        "delete from catalogs
         where tenant_id = $4 and agent = $1 and server = $2 and scope = $3 and scope <> ''",
        agent.as_str(),
        server.as_str(),
        CatalogOwner::Credential(credential).to_string(),
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
