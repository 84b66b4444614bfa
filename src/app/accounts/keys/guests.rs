//! Keys of guests, which a tenant's frontend gets without a sign-in.

use std::time::Duration;

use time::OffsetDateTime;

use super::{NewKey, issue};
use crate::{
    domain::{
        account::{ChatSettings, KeyKind, SourceSettings},
        clock::Clock,
        error::{Error, Result},
        ids::TenantId,
        principal::{Scope, Scopes},
        secret::Secret,
    },
    store::{self, Db},
};

const GUEST_LIFE: time::Duration = time::Duration::hours(24);

/// Guests of a tenant at a time.
const MAX_GUESTS: i64 = 10_000;

/// Makes a key for one guest, where the tenant accepts guests. It has no line in the audit trail: the
/// caller is unknown, and a stranger may ask as often as they like.
pub(in crate::app::accounts) async fn create_guest(
    db: &Db,
    clock: &Clock,
    tenant: TenantId,
) -> Result<(Secret, OffsetDateTime)> {
    let now = clock.now();
    let mut tx = db.tenant(tenant).await?;
    if store::api_keys::prune_guests(&mut tx, tenant, now).await? >= MAX_GUESTS {
        return Err(Error::Busy {
            reason: "too many guests; try again later".to_owned(),
            retry_after: Duration::from_secs(600),
        });
    }
    let expiry = now + GUEST_LIFE;
    let new = NewKey {
        name: "guest".to_owned(),
        scopes: Scopes::of([Scope::Chat]),
        speaker: KeyKind::Guest,
        source: SourceSettings::default(),
        chat: ChatSettings::default(),
        expires_at: Some(expiry),
    };
    let (issued, hash) = issue(tenant, new, now);
    store::api_keys::insert(&mut tx, &issued.key, &hash, 0).await?;
    tx.commit().await?;
    Ok((issued.secret, expiry))
}

/// The tenant of this name, if it takes guests now.
pub(in crate::app::accounts) async fn tenant_for_guests(db: &Db, name: &str) -> Result<TenantId> {
    let mut tx = db.system().await?;
    let tenant = store::tenants::by_name(&mut tx, name).await?;
    let open = tenant.filter(|tenant| tenant.guests && tenant.suspended_at.is_none());
    let closed = || Error::not_found(format!("tenant {name:?} that takes guests"));
    Ok(open.ok_or_else(closed)?.id)
}
