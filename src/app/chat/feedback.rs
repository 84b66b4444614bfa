//! What a user thinks of a message of their conversation.

use crate::{
    app::App,
    domain::{
        error::{Error, Result},
        ids::{ConversationId, MessageId},
        message::Feedback,
        principal::Principal,
    },
    store::{self, Tx},
};

/// Keeps feedback on a message, in place of what was said of it before.
pub async fn put(
    app: &App,
    principal: &Principal,
    place: (ConversationId, MessageId),
    feedback: &Feedback,
) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    find(&mut tx, principal, place).await?;
    store::feedback::put(&mut tx, place.0, place.1, feedback).await?;
    tx.commit().await
}

pub async fn get(
    app: &App,
    principal: &Principal,
    place: (ConversationId, MessageId),
) -> Result<Feedback> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    find(&mut tx, principal, place).await?;
    let feedback = store::feedback::get(&mut tx, place.0, place.1).await?;
    feedback.ok_or_else(|| Error::not_found("feedback on this message"))
}

pub async fn delete(
    app: &App,
    principal: &Principal,
    place: (ConversationId, MessageId),
) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    find(&mut tx, principal, place).await?;
    store::feedback::delete(&mut tx, place.0, place.1).await?;
    tx.commit().await
}

/// A message of the principal's conversation must be there.
async fn find(
    tx: &mut Tx,
    principal: &Principal,
    (conversation, message): (ConversationId, MessageId),
) -> Result<()> {
    store::conversations::get(tx, &principal.user, conversation, false).await?;
    match store::messages::get(tx, conversation, message).await {
        Err(Error::NotFound(_)) => Err(Error::not_found(format!("message {message}"))),
        found => found.map(drop),
    }
}
