//! Reads and writes `CV1`, the format of all sealed values:
//!
//! ```text
//! 01 | suite u16 | key version u32 | salt 32 | nonce 12 | commitment 32 | ciphertext, tag 16
//! ```
//!
//! Numbers are big-endian. In suite 1, HKDF-SHA-256 over the sealing key and the salt gives 64 bytes: the key of this
//! value, and the commitment. The commitment is compared in constant time before anything is decrypted, so that no
//! ciphertext opens with two keys; AES-GCM alone does not guarantee that. The value is encrypted with AES-256-GCM, which
//! also authenticates everything before the ciphertext, and the context of the value.

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{
    Unopenable,
    cipher::{self, NONCE_BYTES, TAG_BYTES},
};
use domain::ring::KEY_BYTES;

const FORMAT: u8 = 1;
const SUITE: u16 = 1;
const SALT_BYTES: usize = 32;
const COMMITMENT_BYTES: usize = 32;
/// Format, suite, key version.
const PREFIX_BYTES: usize = 1 + 2 + 4;
const HEADER_BYTES: usize = PREFIX_BYTES + SALT_BYTES + NONCE_BYTES + COMMITMENT_BYTES;

/// The kind of a sealed value. A value of one kind does not open as another.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// Sealed with a tenant's key.
    Record,
    /// Sealed with a key of the ring.
    TenantKey,
}

impl Purpose {
    fn info(self) -> &'static [u8] {
        match self {
            Self::Record => b"chatelaine CV1 record",
            Self::TenantKey => b"chatelaine CV1 tenant key",
        }
    }
}

/// The parts of a sealed value.
struct Parts<'a> {
    version: u32,
    salt: &'a [u8; SALT_BYTES],
    nonce: &'a [u8; NONCE_BYTES],
    commitment: &'a [u8; COMMITMENT_BYTES],
    header: &'a [u8],
    ciphertext: &'a [u8],
}

pub(super) fn seal(
    purpose: Purpose,
    key: &[u8; KEY_BYTES],
    version: u32,
    associated_data: &[u8],
    plaintext: &[u8],
) -> Vec<u8> {
    let (salt, nonce): ([u8; SALT_BYTES], [u8; NONCE_BYTES]) = rand::random();
    let (own_key, commitment) = derive_value_key(purpose, key, &salt);
    let mut sealed = Vec::with_capacity(HEADER_BYTES + plaintext.len() + TAG_BYTES);
    sealed.push(FORMAT);
    sealed.extend_from_slice(&SUITE.to_be_bytes());
    sealed.extend_from_slice(&version.to_be_bytes());
    sealed.extend_from_slice(&salt);
    sealed.extend_from_slice(&nonce);
    sealed.extend_from_slice(&commitment);
    let aad = [&sealed, associated_data].concat();
    cipher::encrypt(&own_key, &nonce, &aad, plaintext, &mut sealed);
    sealed
}

pub(super) fn open(
    purpose: Purpose,
    key: &[u8; KEY_BYTES],
    version: u32,
    associated_data: &[u8],
    sealed: &[u8],
) -> Result<Zeroizing<Vec<u8>>, Unopenable> {
    let parts = parse_parts(sealed)?;
    if parts.version != version {
        return Err(Unopenable::UnknownVersion(parts.version));
    }
    let (own_key, commitment) = derive_value_key(purpose, key, parts.salt);
    if !bool::from(commitment.ct_eq(parts.commitment)) {
        return Err(Unopenable::OtherKey);
    }
    let aad = [parts.header, associated_data].concat();
    cipher::decrypt(&own_key, parts.nonce, &aad, parts.ciphertext).ok_or(Unopenable::Altered)
}

/// The version of the tenant's key with which a record was sealed.
pub fn key_version(sealed: &[u8]) -> Result<u32, Unopenable> {
    parse_parts(sealed).map(|parts| parts.version)
}

fn parse_parts(sealed: &[u8]) -> Result<Parts<'_>, Unopenable> {
    let format = *sealed.first().ok_or(Unopenable::Truncated)?;
    if format != FORMAT {
        return Err(Unopenable::UnknownFormat(format));
    }
    let (header, ciphertext) = sealed
        .split_at_checked(HEADER_BYTES)
        .ok_or(Unopenable::Truncated)?;
    if ciphertext.len() < TAG_BYTES {
        return Err(Unopenable::Truncated);
    }
    let mut rest = &header[1..];
    let suite = u16::from_be_bytes(*take_field(&mut rest));
    if suite != SUITE {
        return Err(Unopenable::UnknownSuite(suite));
    }
    let version = u32::from_be_bytes(*take_field(&mut rest));
    let (salt, nonce, commitment) = (
        take_field(&mut rest),
        take_field(&mut rest),
        take_field(&mut rest),
    );
    Ok(Parts {
        version,
        salt,
        nonce,
        commitment,
        header,
        ciphertext,
    })
}

/// The next `N` bytes of a header.
fn take_field<'a, const N: usize>(rest: &mut &'a [u8]) -> &'a [u8; N] {
    let (first, others) = rest
        .split_first_chunk()
        .expect("a header has room for all of its fields");
    *rest = others;
    first
}

/// The key of one value, and the commitment to it.
fn derive_value_key(
    purpose: Purpose,
    key: &[u8; KEY_BYTES],
    salt: &[u8; SALT_BYTES],
) -> (Zeroizing<[u8; KEY_BYTES]>, [u8; COMMITMENT_BYTES]) {
    let mut both = Zeroizing::new([0; KEY_BYTES + COMMITMENT_BYTES]);
    cipher::derive(salt, key, purpose.info(), &mut *both);
    let (mut own_key, mut commitment) = (Zeroizing::new([0; KEY_BYTES]), [0; COMMITMENT_BYTES]);
    own_key.copy_from_slice(&both[..KEY_BYTES]);
    commitment.copy_from_slice(&both[KEY_BYTES..]);
    (own_key, commitment)
}

/// Joins fields, each after its length (u32), so that two different lists of fields never give the same bytes.
pub(super) fn length_prefixed(fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(fields.iter().map(|field| 4 + field.len()).sum());
    for field in fields {
        let length = u32::try_from(field.len()).expect("a name is shorter than 4 GiB");
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(field);
    }
    bytes
}
