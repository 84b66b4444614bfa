//! Idempotency of requests that create something (an API key, a webhook, a tenant) and may be sent again. The first
//! request with an idempotency key creates it, and its answer is kept for a day. It is sealed, because some answers
//! hold a secret. Later requests with the same key get the same answer.

use std::time::Duration;

use uuid::Uuid;

use super::keys::{OpenError, contexts};
use crate::app::App;
use domain::{
    error::{Error, Result},
    ids::{TenantId, UserId},
    request_key::RequestKey,
    secret::Secret,
};
use store::request_answers::EarlierAnswer;

/// A request without an answer after this time has failed.
const LONGEST_WORK: Duration = Duration::from_secs(60);

/// Whose idempotency keys a request's key is compared with.
#[derive(Clone, Debug)]
pub enum RequestOwner {
    User(TenantId, UserId),
    Operator,
}

/// Who answers a request: the request itself, or an earlier one with the same key.
pub enum RequestClaim {
    /// This request: it is the first with its key.
    First(Uuid),
    /// An earlier request, with this answer.
    Answered(Secret),
    /// An earlier request, which is still being answered.
    InProgress,
    /// An earlier request, whose answer was not kept.
    Unknown,
    /// No request: an earlier one with this key had another method, path or body.
    Different,
}

/// Claims the right to answer a request, or finds the answer of an earlier one.
pub async fn claim(app: &App, owner: &RequestOwner, key: &RequestKey) -> Result<RequestClaim> {
    let (id, earlier) = match owner {
        RequestOwner::User(tenant, user) => {
            let mut tx = app.db.tenant(*tenant).await?;
            let id = store::request_answers::claim(&mut tx, user, key).await?;
            let earlier = store::request_answers::get_earlier(&mut tx, user, &key.key).await?;
            tx.commit().await?;
            (id, earlier)
        }
        RequestOwner::Operator => {
            let mut tx = app.db.system().await?;
            let id = store::request_answers::claim_for_operator(&mut tx, key).await?;
            let earlier =
                store::request_answers::get_earlier_of_operator(&mut tx, &key.key).await?;
            tx.commit().await?;
            (id, earlier)
        }
    };
    match (id, earlier) {
        (Some(id), _) => Ok(RequestClaim::First(id)),
        // The first request failed between the two queries.
        (None, None) => Err(Error::Repeated),
        (None, Some(earlier)) => open_answer(app, owner, key, earlier).await,
    }
}

async fn open_answer(
    app: &App,
    owner: &RequestOwner,
    key: &RequestKey,
    earlier: EarlierAnswer,
) -> Result<RequestClaim> {
    if earlier.digest != key.digest {
        return Ok(RequestClaim::Different);
    }
    let Some(kept) = earlier.answer else {
        return Ok(if earlier.age < LONGEST_WORK {
            RequestClaim::InProgress
        } else {
            RequestClaim::Unknown
        });
    };
    let opened = match owner {
        RequestOwner::User(tenant, user) => {
            let context = contexts::of_answer(*tenant, user, earlier.id);
            match app.keys.open(*tenant, &context, &kept).await {
                Ok(answer) => Some(answer),
                Err(OpenError::Unopenable(_)) => None,
                Err(OpenError::Failed(error)) => return Err(error),
            }
        }
        RequestOwner::Operator => String::from_utf8(kept).ok().map(Secret::new),
    };
    Ok(opened.map_or(RequestClaim::Unknown, RequestClaim::Answered))
}

/// Keeps the answer of a request. Without a key ring nothing is kept.
pub async fn keep(app: &App, owner: &RequestOwner, id: Uuid, answer: &Secret) -> Result<()> {
    match owner {
        RequestOwner::User(tenant, user) => {
            if !app.keys.has_ring() {
                return Ok(());
            }
            let context = contexts::of_answer(*tenant, user, id);
            let sealed = app.keys.seal(*tenant, &context, answer).await?;
            let mut tx = app.db.tenant(*tenant).await?;
            store::request_answers::keep(&mut tx, id, &sealed).await?;
            tx.commit().await
        }
        RequestOwner::Operator => {
            let mut tx = app.db.system().await?;
            let answer = answer.expose().as_bytes();
            store::request_answers::keep_for_operator(&mut tx, id, answer).await?;
            tx.commit().await
        }
    }
}

/// Forgets a request that created nothing, so that it may be sent again.
pub async fn forget(app: &App, owner: &RequestOwner, id: Uuid) -> Result<()> {
    let mut tx = match owner {
        RequestOwner::User(tenant, _) => app.db.tenant(*tenant).await?,
        RequestOwner::Operator => app.db.system().await?,
    };
    match owner {
        RequestOwner::User(..) => store::request_answers::forget(&mut tx, id).await?,
        RequestOwner::Operator => store::request_answers::forget_for_operator(&mut tx, id).await?,
    }
    tx.commit().await
}
