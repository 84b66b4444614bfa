//! Tickets for event streams. A browser's `EventSource` cannot send a credential, so a client gets a ticket with its
//! credential and sends it in the URL. A ticket opens one stream, once, within a minute, and nothing else.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use uuid::Uuid;

use super::newest_claims;
use crate::app::App;
use domain::{
    error::{Error, Result},
    ids::TenantId,
    principal::Principal,
    secret::Secret,
    session::{ActKind, PastAct},
};

/// How long a ticket may be used.
const LIFE: Duration = Duration::from_secs(60);
const PREFIX: &str = "cst";

/// Makes a ticket for the principal and returns it with its end.
pub async fn create(app: &App, principal: &Principal) -> Result<(Secret, OffsetDateTime)> {
    let random = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
    let ticket = format!("{PREFIX}.{}.{random}", principal.tenant.0.simple());
    let mut tx = app.db.tenant(principal.tenant).await?;
    let expires_at = store::tickets::insert(&mut tx, &hash(&ticket), principal, LIFE).await?;
    tx.commit().await?;
    Ok((Secret::new(ticket), expires_at))
}

/// Uses up a ticket and returns the principal who asked for it, with their newest claims.
pub async fn redeem(app: &App, ticket: &str) -> Result<Principal> {
    let refused = || {
        let detail = "this ticket is no good any more; ask for another with POST /v1/events/ticket";
        Error::Unauthenticated(detail.to_owned())
    };
    let mut parts = ticket.split('.');
    let (prefix, tenant) = (parts.next(), parts.next().unwrap_or_default());
    let tenant = Uuid::try_parse(tenant).map_err(|_| refused())?;
    if prefix != Some(PREFIX) {
        return Err(refused());
    }
    let mut tx = app.db.tenant(TenantId(tenant)).await?;
    let taken = store::tickets::take(&mut tx, &hash(ticket)).await?;
    tx.commit().await?;
    let principal = taken.ok_or_else(refused)?;
    let tenant = app.accounts.tenant(principal.tenant).await?;
    tenant.require_active()?;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let act = PastAct {
        who: &principal,
        at: tx.now().await?,
        kind: ActKind::Request,
    };
    newest_claims::current(&mut tx, act)
        .await?
        .map_err(|_| refused())
}

fn hash(ticket: &str) -> [u8; 32] {
    Sha256::digest(ticket).into()
}
