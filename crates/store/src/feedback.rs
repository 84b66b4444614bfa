//! Rows of feedback: a user's rating of a message, one row for each message.

use uuid::Uuid;

use super::Tx;
use domain::{
    error::Result,
    ids::{ConversationId, MessageId},
    message::Feedback,
};

/// Stores the feedback on a message, in place of earlier feedback.
pub async fn put(
    tx: &mut Tx,
    conversation: ConversationId,
    message: MessageId,
    feedback: &Feedback,
) -> Result<()> {
    sqlx::query!(
        "insert into feedback (tenant_id, id, conversation_id, message_id, rating, comment, created_at)
         values ($1, $2, $3, $4, $5, $6, now())
         on conflict (tenant_id, message_id) do update
         set rating = excluded.rating, comment = excluded.comment, created_at = excluded.created_at",
        tx.tenant()?.0,
        Uuid::now_v7(),
        conversation.0,
        message.0,
        feedback.rating.into_str(),
        feedback.comment,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The feedback on a message, if there is any.
pub async fn get(
    tx: &mut Tx,
    conversation: ConversationId,
    message: MessageId,
) -> Result<Option<Feedback>> {
    let feedback = sqlx::query_as!(
        Feedback,
        r#"select rating as "rating: _", comment from feedback
           where tenant_id = $1 and conversation_id = $2 and message_id = $3"#,
        tx.tenant()?.0,
        conversation.0,
        message.0,
    );
    Ok(feedback.fetch_optional(tx.conn()).await?)
}

pub async fn delete(tx: &mut Tx, conversation: ConversationId, message: MessageId) -> Result<()> {
    sqlx::query!(
        "delete from feedback where tenant_id = $1 and conversation_id = $2 and message_id = $3",
        tx.tenant()?.0,
        conversation.0,
        message.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
