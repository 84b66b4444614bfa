//! Seals and opens secrets. Pure: no store, no clock, no environment.
//!
//! Three kinds of key, each protecting the next: a key of the ring ([`domain::ring::Kek`], from the
//! environment) wraps a tenant's key ([`TenantKey`], stored wrapped); that one, with a random salt, gives
//! every record a key of its own. What comes of it is `CV1` (`envelope.rs`).
//!
//! A sealed value opens for the [`Context`] it was sealed for, or not at all: everything that it carries and
//! everything it belongs to is authenticated. Whatever is wrong is one of [`Unopenable`], never plaintext.

pub mod cipher;
mod envelope;

use uuid::Uuid;
use zeroize::Zeroizing;

use self::envelope::Purpose;
pub use self::envelope::key_version;
use domain::{
    ids::{TenantId, UserId},
    ring::{KEY_BYTES, Kek},
    secret::Secret,
};

/// The owner of a record. All fields must be the same when the record is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    pub tenant: TenantId,
    pub user: UserId,
    /// `<agent>/<server>`.
    pub scope: String,
    pub credential: Uuid,
    pub generation: u64,
}

/// Why something sealed does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unopenable {
    #[error("it is cut short")]
    Truncated,
    #[error("its format {0} is not known to this version of the program")]
    UnknownFormat(u8),
    #[error("its cipher suite {0} is not known to this version of the program")]
    UnknownSuite(u16),
    #[error("the tenant has no key version {0}")]
    UnknownVersion(u32),
    #[error("it was sealed with another key")]
    OtherKey,
    #[error("it was altered, or belongs to another tenant, user, server or generation")]
    Altered,
}

/// A version of a tenant's key. Zeroed on drop; neither printed nor serialised.
pub struct TenantKey {
    pub version: u32,
    bytes: Zeroizing<[u8; KEY_BYTES]>,
}

impl TenantKey {
    /// A fresh random key.
    pub fn generate(version: u32) -> Self {
        Self {
            version,
            bytes: cipher::random_key(),
        }
    }
}

/// Seals a record's plaintext with the tenant's key.
pub fn seal(key: &TenantKey, context: &Context, plaintext: &Secret) -> Vec<u8> {
    envelope::seal(
        Purpose::Record,
        &key.bytes,
        key.version,
        &associated_data(context),
        plaintext.expose().as_bytes(),
    )
}

/// Opens what [`seal`] made with the same key for the same context.
pub fn open(key: &TenantKey, context: &Context, sealed: &[u8]) -> Result<Secret, Unopenable> {
    let opened = envelope::open(
        Purpose::Record,
        &key.bytes,
        key.version,
        &associated_data(context),
        sealed,
    )?;
    let text = std::str::from_utf8(&opened).map_err(|_| Unopenable::Altered)?;
    Ok(Secret::new(text))
}

/// A tenant's key as it may be stored.
pub fn wrap(kek: &Kek, tenant: TenantId, key: &TenantKey) -> Vec<u8> {
    envelope::seal(
        Purpose::TenantKey,
        kek.expose(),
        key.version,
        &owner(kek, tenant),
        &*key.bytes,
    )
}

/// Undoes [`wrap`].
pub fn unwrap(
    kek: &Kek,
    tenant: TenantId,
    version: u32,
    wrapped: &[u8],
) -> Result<TenantKey, Unopenable> {
    let opened = envelope::open(
        Purpose::TenantKey,
        kek.expose(),
        version,
        &owner(kek, tenant),
        wrapped,
    )?;
    let bytes = opened
        .as_slice()
        .try_into()
        .map_err(|_| Unopenable::Altered)?;
    Ok(TenantKey {
        version,
        bytes: Zeroizing::new(bytes),
    })
}

/// A value that identifies a key of the ring and reveals nothing else about it. The database stores it.
pub fn check_value(kek: &Kek) -> [u8; 16] {
    let mut value = [0; 16];
    cipher::derive(
        b"",
        kek.expose(),
        b"chatelaine key check value 1",
        &mut value,
    );
    value
}

fn associated_data(context: &Context) -> Vec<u8> {
    envelope::length_prefixed(&[
        context.tenant.0.as_bytes(),
        context.user.as_str().as_bytes(),
        context.scope.as_bytes(),
        context.credential.as_bytes(),
        &context.generation.to_be_bytes(),
    ])
}

fn owner(kek: &Kek, tenant: TenantId) -> Vec<u8> {
    envelope::length_prefixed(&[kek.id.as_str().as_bytes(), tenant.0.as_bytes()])
}
