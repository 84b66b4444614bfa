//! Feedback of a user on a message of their conversation.

use crate::app::App;
use domain::{
    error::{Error, Result},
    ids::{ConversationId, MessageId},
    message::Feedback,
    principal::Principal,
};
use store::Tx;

/// Stores feedback on a message, in place of earlier feedback.
pub async fn put(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    message: MessageId,
    feedback: &Feedback,
) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    require_message(&mut tx, principal, conversation, message).await?;
    store::feedback::put(&mut tx, conversation, message, feedback).await?;
    tx.commit().await
}

pub async fn get(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    message: MessageId,
) -> Result<Feedback> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    require_message(&mut tx, principal, conversation, message).await?;
    let feedback = store::feedback::get(&mut tx, conversation, message).await?;
    feedback.ok_or_else(|| Error::not_found("feedback on this message"))
}

pub async fn delete(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    message: MessageId,
) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    require_message(&mut tx, principal, conversation, message).await?;
    store::feedback::delete(&mut tx, conversation, message).await?;
    tx.commit().await
}

/// `NotFound` unless the message stands in a conversation of the principal.
async fn require_message(
    tx: &mut Tx,
    principal: &Principal,
    conversation: ConversationId,
    message: MessageId,
) -> Result<()> {
    store::conversations::get(tx, &principal.user, conversation, false).await?;
    match store::messages::get(tx, conversation, message).await {
        Err(Error::NotFound(_)) => Err(Error::not_found(format!("message {message}"))),
        found => found.map(drop),
    }
}
