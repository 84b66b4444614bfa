//! Answers that can be read again by the id of their run: OpenAI's responses.

use std::sync::Arc;

use super::transcript::{self, PostedQuestion};
use crate::{
    app::App,
    domain::{
        error::{Error, Result, Thing},
        ids::{AgentId, RunId},
        principal::Principal,
        response::{ResponseSettings, StoredResponse},
    },
    store,
};

/// A response of the principal.
pub async fn get(app: &App, principal: &Principal, id: RunId) -> Result<StoredResponse> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let found = store::responses::get(&mut tx, &principal.user, id).await?;
    found.ok_or_else(|| Error::NotFound(Thing::Run(id)))
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

/// Forgets a response. Its conversation stays.
pub async fn delete(app: &App, principal: &Principal, id: RunId) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    if !store::responses::delete(&mut tx, &principal.user, id).await? {
        return Err(Error::NotFound(Thing::Run(id)));
    }
    tx.commit().await
}
