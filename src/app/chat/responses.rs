//! OpenAI's responses: answers that a client can read again by the id of their run.

use std::sync::Arc;

use super::transcript::{self, PostedQuestion};
use crate::app::App;
use domain::{
    error::{Error, ErrorCode, Missing, Result},
    ids::{AgentId, ConversationId, MessageId, RunId},
    message::{Message, Role},
    principal::Principal,
    response::{ResponseSettings, StoredResponse},
};
use store::{Tx, messages::MessagePage};

/// Reads a response of the principal.
pub async fn get(app: &App, principal: &Principal, id: RunId) -> Result<StoredResponse> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let found = store::responses::get(&mut tx, &principal.user, id).await?;
    found.ok_or_else(|| Error::NotFound(Missing::Run(id)))
}

/// Listens to a response from its beginning.
pub async fn reopen(
    app: &Arc<App>,
    principal: &Principal,
    id: RunId,
) -> Result<(PostedQuestion, AgentId, ResponseSettings)> {
    let stored = get(app, principal, id).await?;
    let (place, after) = (stored.conversation, Some(stored.first_event));
    let posted = transcript::reopen_stream(app, principal, place, id, after).await?;
    Ok((posted, stored.agent, stored.settings))
}

/// Which messages to list.
#[derive(Clone, Copy)]
pub struct InputRange {
    /// The last message of the page before.
    pub after: Option<MessageId>,
    pub oldest_first: bool,
    pub limit: i64,
}

/// Lists a page of the messages before an answer, including the question.
pub async fn list_input(
    app: &App,
    principal: &Principal,
    id: RunId,
    range: InputRange,
) -> Result<Vec<Message>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let stored = store::responses::get(&mut tx, &principal.user, id).await?;
    let conversation = stored
        .ok_or_else(|| Error::NotFound(Missing::Run(id)))?
        .conversation;
    list_page(&mut tx, conversation, Some(id), range).await
}

/// Lists a page of the messages of the user and the agent in the active branch of a conversation.
pub async fn list_items(
    app: &App,
    principal: &Principal,
    id: ConversationId,
    range: InputRange,
) -> Result<Vec<Message>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::conversations::get(&mut tx, &principal.user, id, false).await?;
    list_page(&mut tx, id, None, range).await
}

async fn list_page(
    tx: &mut Tx,
    conversation: ConversationId,
    run: Option<RunId>,
    range: InputRange,
) -> Result<Vec<Message>> {
    let after = match range.after {
        None => None,
        Some(after) => {
            let found = store::messages::get(tx, conversation, after).await;
            let found = found.map_err(|error| match error {
                Error::NotFound(_) => Error::unfit(
                    ErrorCode::UnknownReference,
                    "after",
                    "is not the id of an item of this list",
                ),
                error => error,
            });
            Some(found?.seq)
        }
    };
    let page = MessagePage {
        after,
        oldest_first: range.oldest_first,
        limit: range.limit,
    };
    store::messages::list_transcript(tx, conversation, run, page).await
}

/// Reads a message of a conversation. `None` unless the user or the agent wrote it.
pub async fn find_item(
    app: &App,
    principal: &Principal,
    conversation: ConversationId,
    id: MessageId,
) -> Result<Option<Message>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::conversations::get(&mut tx, &principal.user, conversation, false).await?;
    match store::messages::get(&mut tx, conversation, id).await {
        Ok(message) if matches!(message.role, Role::User | Role::Assistant) => Ok(Some(message)),
        Ok(_) | Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes a response. Its conversation stays.
pub async fn delete(app: &App, principal: &Principal, id: RunId) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    if !store::responses::delete(&mut tx, &principal.user, id).await? {
        return Err(Error::NotFound(Missing::Run(id)));
    }
    tx.commit().await
}
