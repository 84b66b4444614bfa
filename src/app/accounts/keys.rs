//! API keys: `chk_<prefix>_<secret>`, 256 random bits of which only the hash is kept.
//!
//! A key speaks for itself, for the users of a frontend, or for one guest. Two keys of one name may be live, so that
//! a new one can take over before the old one ends.

use std::{net::IpAddr, sync::Arc, time::Duration};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::app::accounts::{
    Accounts, CachedRow, Caller, EndedSessions, GUEST_USER, Headers, Shared,
    authentication::{drop_unnamed, unauthenticated},
    frontends,
};
use domain::{
    account::{
        ApiKey, ChatSettings, FrontendHeaders, KeyKind, SourceName, SourceSettings, UserSource,
    },
    audit::{self, Fact},
    clock::Clock,
    error::{Error, ErrorCode, Result},
    header,
    ids::{ApiKeyId, TenantId, UserId},
    principal::{Admin, Audience, KEY_USER, Operator, Principal, Scope, Scopes},
    secret::Secret,
};
use store::{Db, Tx};

/// The beginning of every key.
pub(super) const MARK: &str = "chk_";
const PREFIX_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;

/// A key to be made.
pub struct NewKey {
    pub name: String,
    pub scopes: Scopes,
    /// Not a guest: guests get their keys from [`super::Accounts::create_guest`].
    pub speaker: KeyKind,
    /// For the key of a frontend.
    pub source: SourceSettings,
    pub chat: ChatSettings,
    pub expires_at: Option<OffsetDateTime>,
}

/// A new key with its secret, which is shown this once.
#[derive(Debug)]
pub struct IssuedKey {
    pub key: ApiKey,
    pub secret: Secret,
}

impl Accounts {
    /// Makes a key of the admin's tenant. A live key of the same name is a conflict.
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

    /// The keys of the admin's tenant before `before`, newest first, without guests.
    pub async fn keys(
        &self,
        admin: &Admin,
        before: Option<ApiKeyId>,
        limit: i64,
    ) -> Result<Vec<ApiKey>> {
        let mut tx = self.shared.db.tenant(admin.tenant()).await?;
        store::api_keys::list_page(&mut tx, admin.tenant(), before, limit).await
    }

    /// Revokes a key of the admin's tenant, on every replica within a second. For an earlier revocation, a conflict
    /// says when it was.
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
        let detail = describe(&key);
        let fact = Fact::new(admin.user().as_str(), "key.revoked").detail(&detail);
        store::audit::record(&mut tx, tenant, &fact).await?;
        tx.commit().await
    }

    /// Refuses a key from now on and ends the event streams opened with it. Called when a key was revoked here, on
    /// another replica or on the command line.
    pub async fn key_revoked(&self, tenant: TenantId, key: ApiKeyId) {
        self.shared.revoked_keys.insert(key, ()).await;
        // An error means that there is no listener.
        let _ = self.shared.ended.send(EndedSessions::Key(tenant, key));
    }
}

/// Makes a key as the operator. A live key of the same name is a conflict: [`rotate_key`] replaces it.
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
    check_new_key(&new)?;
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
    issued.key.source = store_source(&mut tx, &issued.key, &settings).await?;
    store::api_keys::insert(&mut tx, &issued.key, &hash, 0).await?;
    let detail = describe(&issued.key);
    store::audit::record(
        &mut tx,
        tenant,
        &Fact::new(admin.user().as_str(), "key.created").detail(&detail),
    )
    .await?;
    tx.commit().await?;
    Ok(issued)
}

/// Stores how the users of a frontend's key are named. Other keys may have no such setting.
async fn store_source(tx: &mut Tx, key: &ApiKey, settings: &SourceSettings) -> Result<UserSource> {
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
fn describe(key: &ApiKey) -> String {
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

/// Revokes a key by its prefix, or all keys of a name, and returns their number. Every replica notices within two
/// seconds.
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

impl Shared {
    pub(in crate::app::accounts) async fn key_caller(
        &self,
        text: &str,
        digest: [u8; 32],
        headers: &Headers<'_>,
        address: Option<IpAddr>,
    ) -> Result<Caller> {
        let now = self.clock.now();
        let known = match self.keys.get(&digest).await {
            Some(known) if known.is_recent(now) => known,
            _ => {
                let known = Arc::new(CachedRow {
                    row: self.look_up_key(text, digest, address).await?,
                    since: now,
                });
                self.keys.insert(digest, known.clone()).await;
                known
            }
        };
        let key = &known.row;
        if key.revoked_at.is_some() || self.revoked_keys.contains_key(&key.id) {
            return unauthenticated(format!("the API key {} is revoked", key.prefix));
        }
        if !key.is_live(now) {
            return unauthenticated(format!("the API key {} has expired", key.prefix));
        }
        let mut caller = caller_of_key(key, headers)?;
        if caller.is_frontend {
            drop_unnamed(&mut caller.principal, self.named_claims().as_deref());
        }
        Ok(caller)
    }

    async fn look_up_key(
        &self,
        text: &str,
        digest: [u8; 32],
        address: Option<IpAddr>,
    ) -> Result<ApiKey> {
        let unknown = || {
            Error::Unauthenticated(
                "the API key is unknown; check that it was copied whole".to_owned(),
            )
        };
        let prefix = prefix_of(text).ok_or_else(unknown)?;
        if self.lookups.is_unknown(&digest) {
            return Err(unknown());
        }
        let _permit = self.lookups.begin(digest, address).await?;
        let mut tx = self.db.system().await?;
        let found = store::api_keys::find_by_prefix(&mut tx, prefix).await?;
        match found {
            Some((key, hash)) if bool::from(hash.as_slice().ct_eq(&digest)) => {
                self.lookups.note_good(digest).await;
                Ok(key)
            }
            _ => {
                self.lookups.note_unknown(digest).await;
                Err(unknown())
            }
        }
    }
}

/// The prefix of a well-formed key.
fn prefix_of(text: &str) -> Option<&str> {
    let (prefix, secret) = text.strip_prefix(MARK)?.split_once('_')?;
    let hex = |part: &str, bytes: usize| {
        part.len() == 2 * bytes && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    (hex(prefix, PREFIX_BYTES) && hex(secret, SECRET_BYTES)).then_some(prefix)
}

fn caller_of_key(key: &ApiKey, headers: &Headers<'_>) -> Result<Caller> {
    let (principal, conversation_key) = match &key.speaker {
        KeyKind::Frontend(settings) => frontends::read_user(key, settings, headers)?,
        KeyKind::Service(claims) => {
            let locale = claims
                .get("locale")
                .and_then(|locale| locale.as_str())
                .map(str::to_owned);
            let user = UserId(format!("{KEY_USER}{}", key.name).into());
            let claims = Arc::new(claims.clone());
            (
                Principal {
                    tenant: key.tenant,
                    user,
                    claims,
                    locale,
                    authenticated: true,
                    key: Some(key.id),
                    audience: Audience::default(),
                },
                None,
            )
        }
        KeyKind::Guest => {
            let user = UserId(format!("{GUEST_USER}{}", key.id).into());
            let claims = Arc::default();
            (
                Principal {
                    tenant: key.tenant,
                    user,
                    claims,
                    locale: None,
                    authenticated: false,
                    key: Some(key.id),
                    audience: Audience::default(),
                },
                None,
            )
        }
    };
    Ok(Caller {
        principal,
        scopes: key.scopes,
        key: Some(key.id),
        conversation_key,
        chat: key.chat,
        is_frontend: matches!(key.speaker, KeyKind::Frontend(_)),
    })
}

/// The settings of a rotation.
#[derive(Clone, Debug, Default)]
pub struct KeyRotation {
    /// How long the old key still works.
    pub overlap: time::Duration,
    /// For the key of a frontend.
    pub source: SourceSettings,
}

/// Makes a second key like the live one of a name. The old key ends after the overlap.
pub async fn rotate_key(
    db: &Db,
    clock: &Clock,
    tenant: TenantId,
    name: &str,
    change: KeyRotation,
) -> Result<IssuedKey> {
    let now = clock.now();
    let mut tx = db.tenant(tenant).await?;
    store::api_keys::retire(&mut tx, tenant, name, now).await?;
    let mut live = store::api_keys::list(&mut tx, tenant, Some(name)).await?;
    live.retain(|key| key.is_live(now));
    let old = live
        .pop()
        .ok_or_else(|| Error::not_found(format!("live key {name:?}")))?;
    if !live.is_empty() {
        return Err(Error::conflict(
            ErrorCode::Conflict,
            format!("two keys {name:?} are live; revoke one by its prefix first"),
        ));
    }
    let span = old.expires_at.map(|expiry| expiry - old.created_at);
    let new = NewKey {
        name: old.name.clone(),
        scopes: old.scopes,
        speaker: old.speaker.clone(),
        source: SourceSettings::default(),
        chat: old.chat,
        expires_at: span.map(|span| now + span),
    };
    let (mut issued, hash) = issue(tenant, new, now);
    issued.key.source = store_source(&mut tx, &issued.key, &change.source).await?;
    let slot = store::api_keys::get_slot(&mut tx, tenant, old.id).await?;
    store::api_keys::insert(&mut tx, &issued.key, &hash, 1 - slot).await?;
    store::api_keys::expire(&mut tx, tenant, old.id, now + change.overlap).await?;
    let detail = format!("{}, in place of {}", describe(&issued.key), old.prefix);
    store::audit::record(
        &mut tx,
        tenant,
        &Fact::new(audit::OPERATOR, "key.rotated").detail(&detail),
    )
    .await?;
    tx.commit().await?;
    Ok(issued)
}

const GUEST_LIFE: time::Duration = time::Duration::hours(24);

/// The most guests of a tenant at a time.
const MAX_GUESTS: i64 = 10_000;

/// Makes a key for one guest. It has no line in the audit trail, because the caller is unknown and a stranger may ask
/// any number of times.
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
        scopes: Scopes::new([Scope::Chat]),
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

/// The tenant of this name; `NotFound` unless it accepts guests now.
pub(in crate::app::accounts) async fn tenant_for_guests(db: &Db, name: &str) -> Result<TenantId> {
    let mut tx = db.system().await?;
    let tenant = store::tenants::find_by_name(&mut tx, name).await?;
    let open = tenant.filter(|tenant| tenant.guests && tenant.suspended_at.is_none());
    let closed = || Error::not_found(format!("tenant {name:?} that takes guests"));
    Ok(open.ok_or_else(closed)?.id)
}

/// The most bytes of a key's claims as JSON.
const MAX_CLAIMS: usize = 8 * 1024;

/// Checks that claims can be stored: not too long, and without the character that Postgres cannot store.
fn check_claims(claims: &Map<String, Value>) -> Result<()> {
    let text = serde_json::to_string(claims).map_err(Error::internal)?;
    if text.len() > MAX_CLAIMS || text.contains("\\u0000") {
        let rule =
            format!("must have at most {MAX_CLAIMS} bytes as JSON, without the character U+0000");
        return Err(Error::invalid("claims", rule));
    }
    Ok(())
}

fn is_key_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 63
        && name.bytes().next().is_some_and(plain)
        && name
            .bytes()
            .all(|byte| plain(byte) || matches!(byte, b'-' | b'_' | b'.'))
}

fn check_new_key(new: &NewKey) -> Result<()> {
    let name = &new.name;
    if !is_key_name(name) {
        let rule = "use 1 to 63 lower-case letters, digits, `-`, `_` or `.`, starting with a letter or digit";
        return Err(Error::invalid(
            "name",
            format!("{name:?} is no key name: {rule}"),
        ));
    }
    if new.scopes == Scopes::default() {
        return Err(Error::invalid(
            "scopes",
            "a key without a scope opens nothing; give it `chat` or `admin`",
        ));
    }
    match &new.speaker {
        KeyKind::Service(_) => Ok(()),
        KeyKind::Frontend(_) if new.scopes.has(Scope::Admin) => Err(Error::invalid(
            "scopes",
            "`admin` on a frontend's key would make all its users admins",
        )),
        KeyKind::Frontend(headers) => check_headers(headers),
        KeyKind::Guest => Err(Error::invalid(
            "speaker",
            "a guest's key is made by asking for a guest",
        )),
    }
}

/// Checks the header names in a frontend's settings: each must be valid and without a meaning of its own.
fn check_headers(headers: &FrontendHeaders) -> Result<()> {
    let taken = [
        "authorization",
        "cookie",
        "host",
        "content-type",
        "content-length",
        "accept",
    ];
    for name in headers.names() {
        if !header::is_name(name) || taken.iter().any(|taken| taken.eq_ignore_ascii_case(name)) {
            return Err(Error::invalid(
                "frontend",
                format!("{name:?} cannot be the header that names a user"),
            ));
        }
    }
    Ok(())
}
