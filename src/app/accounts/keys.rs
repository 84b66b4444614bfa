//! API keys: `chk_<prefix>_<secret>`, 256 random bits of which only the hash is kept.
//!
//! A key speaks for itself, for the users of a frontend, or for one guest. Two keys of one name may be
//! live, so that a new one can take over before the old one ends.

mod callers;
mod checks;
mod guests;
mod rotation;

use sha2::{Digest, Sha256};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use self::checks::{check, check_claims};
pub(super) use self::guests::{create_guest, tenant_for_guests};
pub use self::rotation::{KeyRotation, rotate_key};
use super::{Accounts, EndedSessions};
use crate::{
    domain::{
        account::{ApiKey, ChatSettings, KeyKind, SourceName, SourceSettings, UserSource},
        audit::{self, Fact},
        clock::Clock,
        error::{Error, ErrorCode, Result},
        ids::{ApiKeyId, TenantId},
        principal::{Admin, Operator, Scopes},
        secret::Secret,
    },
    store::{self, Db, Tx},
};

/// What every key starts with.
pub(super) const MARK: &str = "chk_";
const PREFIX_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;

/// A key to be made.
pub struct NewKey {
    pub name: String,
    pub scopes: Scopes,
    /// Not a guest: those come from [`super::Accounts::create_guest`].
    pub speaker: KeyKind,
    /// Of a frontend.
    pub source: SourceSettings,
    pub chat: ChatSettings,
    pub expires_at: Option<OffsetDateTime>,
}

/// A new key. This is the only time that it can be seen.
#[derive(Debug)]
pub struct IssuedKey {
    pub key: ApiKey,
    pub secret: Secret,
}

impl Accounts {
    /// Makes a key of the admin's tenant. A live one of the same name is a conflict.
    pub async fn create_key(&self, admin: &Admin, new: NewKey) -> Result<IssuedKey> {
        if new
            .expires_at
            .is_some_and(|expiry| expiry <= self.shared.clock.now())
        {
            return Err(Error::invalid("expires_at", "is in the past"));
        }
        if let KeyKind::Service(claims) = &new.speaker {
            check_claims(claims)?;
        }
        create(&self.shared.db, &self.shared.clock, admin, new).await
    }

    /// The keys of the admin's tenant, without guests, the newest first, those before `before` only.
    pub async fn keys(
        &self,
        admin: &Admin,
        before: Option<ApiKeyId>,
        limit: i64,
    ) -> Result<Vec<ApiKey>> {
        let mut tx = self.shared.db.tenant(admin.tenant()).await?;
        store::api_keys::page(&mut tx, admin.tenant(), before, limit).await
    }

    /// Ends a key of the admin's tenant, on every replica within a second. One that was revoked before is a conflict that
    /// says when.
    pub async fn revoke_key(&self, admin: &Admin, id: ApiKeyId) -> Result<()> {
        let tenant = admin.tenant();
        let mut tx = self.shared.db.tenant(tenant).await?;
        let now = tx.now().await?;
        let revoked = store::api_keys::revoke_one(&mut tx, tenant, id, now).await?;
        let key = store::api_keys::get(&mut tx, tenant, id).await?;
        let key = key.ok_or_else(|| Error::not_found(format!("key {id}")))?;
        if !revoked {
            let at = key
                .revoked_at
                .and_then(|at| at.format(&Rfc3339).ok())
                .unwrap_or_default();
            return Err(Error::conflict(
                ErrorCode::AlreadyRevoked,
                format!(
                    "key {:?} ({}) is revoked already, since {at}",
                    key.name, key.prefix
                ),
            ));
        }
        let detail = described(&key);
        let fact = Fact::new(admin.user().as_str(), "key.revoked").detail(&detail);
        store::audit::record(&mut tx, tenant, &fact).await?;
        tx.commit().await
    }

    /// A key was revoked, here, on another replica or on the command line: it is refused from here on, and whoever
    /// listens by it is let go.
    pub async fn key_revoked(&self, tenant: TenantId, key: ApiKeyId) {
        self.shared.revoked_keys.insert(key, ()).await;
        // Nobody may be listening.
        let _ = self.shared.ended.send(EndedSessions::Key(tenant, key));
    }
}

/// Makes a key as the operator. A live one of the same name is a conflict: [`rotate_key`] replaces it.
pub async fn create_key(
    db: &Db,
    clock: &Clock,
    tenant: TenantId,
    new: NewKey,
) -> Result<IssuedKey> {
    create(
        db,
        clock,
        &Operator::at_the_database().admin_of(tenant),
        new,
    )
    .await
}

async fn create(db: &Db, clock: &Clock, admin: &Admin, new: NewKey) -> Result<IssuedKey> {
    check(&new)?;
    let (tenant, now) = (admin.tenant(), clock.now());
    let mut tx = db.tenant(tenant).await?;
    store::api_keys::retire(&mut tx, tenant, &new.name, now).await?;
    let live = store::api_keys::list(&mut tx, tenant, Some(&new.name)).await?;
    if live.iter().any(|key| key.is_live(now)) {
        return Err(Error::conflict(
            ErrorCode::DuplicateName,
            format!(
                "there is a live key {:?} already; rotate or revoke it",
                new.name
            ),
        ));
    }
    let settings = new.source.clone();
    let (mut issued, hash) = issue(tenant, new, now);
    issued.key.source = source_of(&mut tx, &issued.key, &settings).await?;
    store::api_keys::insert(&mut tx, &issued.key, &hash, 0).await?;
    let detail = described(&issued.key);
    store::audit::record(
        &mut tx,
        tenant,
        &Fact::new(admin.user().as_str(), "key.created").detail(&detail),
    )
    .await?;
    tx.commit().await?;
    Ok(issued)
}

/// How the users of a key are known, if it is a frontend's.
async fn source_of(tx: &mut Tx, key: &ApiKey, settings: &SourceSettings) -> Result<UserSource> {
    match key.speaker {
        KeyKind::Frontend(_) => {
            store::user_sources::put(tx, SourceName::Frontend(&key.name), settings).await
        }
        KeyKind::Service(_) | KeyKind::Guest if *settings == SourceSettings::default() => {
            Ok(UserSource::default())
        }
        KeyKind::Service(_) | KeyKind::Guest => Err(Error::invalid(
            "frontend",
            "only the key of a frontend speaks for users",
        )),
    }
}

/// A key as the audit trail shows it: its name, its public prefix, and its scopes.
fn described(key: &ApiKey) -> String {
    format!(
        "{} ({}): {}, {}{}",
        key.name,
        key.prefix,
        key.speaker.kind(),
        key.scopes.names().join(" "),
        key.source
    )
}

/// The keys of a tenant, without guests.
pub async fn list_keys(db: &Db, tenant: TenantId) -> Result<Vec<ApiKey>> {
    let mut tx = db.tenant(tenant).await?;
    store::api_keys::list(&mut tx, tenant, None).await
}

/// Ends a key by its prefix, or all of a name. Takes effect on every replica within a second or two.
pub async fn revoke_key(db: &Db, tenant: TenantId, name_or_prefix: &str) -> Result<u64> {
    let mut tx = db.tenant(tenant).await?;
    let now = tx.now().await?;
    let revoked = store::api_keys::revoke(&mut tx, tenant, name_or_prefix, now).await?;
    if revoked == 0 {
        return Err(Error::not_found(format!("key {name_or_prefix:?}")));
    }
    let detail = format!("{name_or_prefix}: {revoked}");
    store::audit::record(
        &mut tx,
        tenant,
        &Fact::new(audit::OPERATOR, "key.revoked").detail(&detail),
    )
    .await?;
    tx.commit().await?;
    Ok(revoked)
}

fn issue(tenant: TenantId, new: NewKey, now: OffsetDateTime) -> (IssuedKey, [u8; 32]) {
    let prefix = hex::encode(rand::random::<[u8; PREFIX_BYTES]>());
    let text = format!(
        "{MARK}{prefix}_{}",
        hex::encode(rand::random::<[u8; SECRET_BYTES]>())
    );
    let hash = Sha256::digest(&text).into();
    let key = ApiKey {
        id: ApiKeyId::new(),
        tenant,
        name: new.name,
        prefix,
        scopes: new.scopes,
        speaker: new.speaker,
        source: UserSource::default(),
        chat: new.chat,
        created_at: now,
        expires_at: new.expires_at,
        revoked_at: None,
    };
    (
        IssuedKey {
            key,
            secret: Secret::new(text),
        },
        hash,
    )
}
