//! Seals and opens secrets. Uses no database, no clock and no environment.
//!
//! There are three kinds of keys, and each protects the next: a key of the ring ([`domain::ring::Kek`], from the
//! environment) wraps a tenant's key ([`TenantKey`], stored wrapped). From the tenant's key and a random salt, every
//! record gets a key of its own. The format of a sealed value is `CV1` (`envelope.rs`).
//!
//! A sealed value opens only for the [`Context`] for which it was sealed: its content and its context are
//! authenticated. Every fault is one of [`Unopenable`], and never gives plaintext.

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

/// The place of a record. All fields must be the same when the record is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    pub tenant: TenantId,
    pub user: UserId,
    /// The agent and the server, as `<agent>/<server>`.
    pub scope: String,
    pub credential: Uuid,
    pub generation: u64,
}

/// Why a sealed value does not open.
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

/// A version of a tenant's key. It is overwritten when it is dropped, and cannot be printed or serialised.
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

/// Opens a value that [`seal`] made with the same key for the same context.
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

/// Seals a tenant's key with a key of the ring, so that it can be stored.
pub fn wrap(kek: &Kek, tenant: TenantId, key: &TenantKey) -> Vec<u8> {
    envelope::seal(
        Purpose::TenantKey,
        kek.expose(),
        key.version,
        &wrapping_data(kek, tenant),
        &*key.bytes,
    )
}

/// Opens a tenant's key that [`wrap`] sealed.
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
        &wrapping_data(kek, tenant),
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

/// A value that identifies a key of the ring and reveals nothing else about it. It is stored in the database.
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

/// The associated data of a record.
fn associated_data(context: &Context) -> Vec<u8> {
    envelope::length_prefixed(&[
        context.tenant.0.as_bytes(),
        context.user.as_str().as_bytes(),
        context.scope.as_bytes(),
        context.credential.as_bytes(),
        &context.generation.to_be_bytes(),
    ])
}

/// The associated data of a wrapped key of a tenant.
fn wrapping_data(kek: &Kek, tenant: TenantId) -> Vec<u8> {
    envelope::length_prefixed(&[kek.id.as_str().as_bytes(), tenant.0.as_bytes()])
}
