//! Rows of attachments. They belong to a conversation and are deleted with it.

use uuid::Uuid;

use super::Tx;
use domain::{
    attachment::Attachment,
    error::Result,
    ids::{AttachmentId, ConversationId},
};

/// The largest number of attachments of one conversation.
const MAX_ATTACHMENTS: i64 = 200;

/// Adds an attachment. `false` if the conversation has too many.
pub async fn insert(
    tx: &mut Tx,
    conversation: ConversationId,
    attachment: &Attachment,
    data: &[u8],
) -> Result<bool> {
    let inserted = sqlx::query_scalar!(
        "insert into attachments as added (tenant_id, id, conversation_id, name, media_type, size, data, named)
         select tenant_id, $2, id, $4, $5, $6, $7, false from conversations
         where tenant_id = $1 and id = $3 and (select count(*) from attachments where tenant_id = $1 and conversation_id = $3) < $8
         returning added.id",
        tx.tenant()?.0,
        attachment.id.0,
        conversation.0,
        attachment.name,
        attachment.media_type,
        attachment.size,
        data,
        MAX_ATTACHMENTS,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(inserted.is_some())
}

/// The attachments of a conversation with these ids, in the order of the ids.
pub async fn list(
    tx: &mut Tx,
    conversation: ConversationId,
    ids: &[AttachmentId],
) -> Result<Vec<Attachment>> {
    let wanted: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    let found = sqlx::query_as!(
        Attachment,
        r#"select id as "id: _", name, media_type, size from attachments
           where tenant_id = $1 and conversation_id = $2 and id = any($3)
           order by array_position($3, id)"#,
        tx.tenant()?.0,
        conversation.0,
        &wanted,
    );
    Ok(found.fetch_all(tx.conn()).await?)
}

/// Records that a message names these attachments. An attachment that no message names is deleted after an hour.
pub async fn mark_named(
    tx: &mut Tx,
    conversation: ConversationId,
    attachments: &[Attachment],
) -> Result<()> {
    let ids: Vec<Uuid> = attachments
        .iter()
        .map(|attachment| attachment.id.0)
        .collect();
    sqlx::query!(
        "update attachments set named = true
         where tenant_id = $1 and conversation_id = $2 and id = any($3) and not named",
        tx.tenant()?.0,
        conversation.0,
        &ids,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The contents of attachments of a conversation.
pub async fn list_contents(
    tx: &mut Tx,
    conversation: ConversationId,
    ids: &[AttachmentId],
) -> Result<Vec<(AttachmentId, Vec<u8>)>> {
    let wanted: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    let rows = sqlx::query!(
        r#"select id as "id: AttachmentId", data from attachments
           where tenant_id = $1 and conversation_id = $2 and id = any($3)"#,
        tx.tenant()?.0,
        conversation.0,
        &wanted,
    )
    .fetch_all(tx.conn())
    .await?;
    let contents = rows.into_iter().map(|row| (row.id, row.data));
    Ok(contents.collect())
}
