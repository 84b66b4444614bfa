//! The two primitives of the vault: AES-256-GCM with a nonce of 12 bytes, and HKDF-SHA-256.

use aes_gcm::{
    Aes256Gcm, KeyInit,
    aead::{AeadInOut, inout::InOutBuf},
};
use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use domain::ring::KEY_BYTES;

pub const NONCE_BYTES: usize = 12;
pub const TAG_BYTES: usize = 16;

/// Appends ciphertext and tag to `out`.
pub fn encrypt(
    key: &[u8; KEY_BYTES],
    nonce: &[u8; NONCE_BYTES],
    aad: &[u8],
    plaintext: &[u8],
    out: &mut Vec<u8>,
) {
    out.reserve_exact(plaintext.len() + TAG_BYTES);
    let start = out.len();
    out.extend_from_slice(plaintext);
    let tag = Aes256Gcm::new(key.into())
        .encrypt_inout_detached(nonce.into(), aad, InOutBuf::from(&mut out[start..]))
        .expect("a plaintext is shorter than 64 GiB");
    out.extend_from_slice(&tag);
}

/// Decrypts ciphertext and tag. `None` if any part was changed.
pub fn decrypt(
    key: &[u8; KEY_BYTES],
    nonce: &[u8; NONCE_BYTES],
    aad: &[u8],
    sealed: &[u8],
) -> Option<Zeroizing<Vec<u8>>> {
    let (ciphertext, tag) = sealed.split_last_chunk::<TAG_BYTES>()?;
    let mut plaintext = Zeroizing::new(ciphertext.to_vec());
    Aes256Gcm::new(key.into())
        .decrypt_inout_detached(
            nonce.into(),
            aad,
            InOutBuf::from(plaintext.as_mut_slice()),
            tag.into(),
        )
        .ok()?;
    Some(plaintext)
}

/// HKDF-SHA-256 (RFC 5869), extract and expand. `out` may have at most 8160 bytes.
pub fn derive(salt: &[u8], key: &[u8], info: &[u8], out: &mut [u8]) {
    Hkdf::<Sha256>::new(Some(salt), key)
        .expand(info, out)
        .expect("at most 255 blocks are asked for");
}

pub(super) fn random_key() -> Zeroizing<[u8; KEY_BYTES]> {
    Zeroizing::new(rand::random())
}
