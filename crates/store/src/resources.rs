//! Rows of links to resources, from the tool results of a conversation.

use uuid::Uuid;

use super::Tx;
use domain::{
    error::Result,
    ids::{ConversationId, TenantId},
    resource::{Link, ResourceLink},
};

/// The largest number of links of one conversation. Later links are not stored.
const MAX_RESOURCES: i64 = 500;

/// Stores the links of a tool result.
pub async fn insert(
    tx: &mut Tx,
    tenant: TenantId,
    conversation: ConversationId,
    server: &str,
    tool: &str,
    links: &[ResourceLink],
) -> Result<()> {
    for link in links {
        sqlx::query!(
            "insert into resource_links (tenant_id, id, conversation_id, server, tool, uri, name, mime_type)
             select c.tenant_id, $2, c.id, $4, $5, $6, $7, $8 from conversations c
             where c.tenant_id = $1 and c.id = $3
               and (select count(*) from resource_links where tenant_id = $1 and conversation_id = $3) < $9
             on conflict (tenant_id, conversation_id, server, uri) do update
             set tool = excluded.tool, name = excluded.name, mime_type = excluded.mime_type,
                 created_at = excluded.created_at",
            tenant.0,
            Uuid::now_v7(),
            conversation.0,
            server,
            tool,
            link.uri,
            link.name,
            link.mime_type,
            MAX_RESOURCES,
        )
        .execute(tx.conn())
        .await?;
    }
    Ok(())
}

/// The links of a conversation, the newest first. If `uri` is given, only those to this address.
pub async fn list(
    tx: &mut Tx,
    conversation: ConversationId,
    uri: Option<&str>,
) -> Result<Vec<Link>> {
    let rows = sqlx::query!(
        "select server, tool, uri, name, mime_type from resource_links
         where tenant_id = $3 and conversation_id = $1 and ($2::text is null or uri = $2)
         order by created_at desc, id desc",
        conversation.0,
        uri,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    let links = rows.into_iter().map(|row| Link {
        server: row.server,
        tool: row.tool,
        linked: ResourceLink {
            uri: row.uri,
            name: row.name,
            mime_type: row.mime_type,
        },
    });
    Ok(links.collect())
}
