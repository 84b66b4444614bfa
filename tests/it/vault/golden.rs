//! The format, against values that another program made and a reader written from the specification alone.
//!
//! `cv1.json` was made by a program in another language, with its own HKDF and the AES of OpenSSL. It must never
//! change: a build that does not open it does not open what is in somebody's database.

use domain::{
    ids::{TenantId, UserId},
    ring::KeyRing,
    secret::Secret,
};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use store::vault::{self, Context, TenantKey, cipher};
use uuid::Uuid;

use super::{HEADER, array, bytes};

#[test]
fn what_another_program_sealed_opens() {
    for golden in golden() {
        let (ring, key) = (golden.ring(), golden.key());
        assert_eq!(
            hex::encode(vault::check_value(ring.first())),
            golden.check_value
        );
        let opened = vault::open(&key, &golden.context(), &bytes(&golden.sealed)).unwrap();
        assert_eq!(opened.expose(), golden.plaintext);
        assert_eq!(
            vault::key_version(&bytes(&golden.sealed)),
            Ok(golden.version)
        );
    }
}

#[test]
fn what_is_sealed_opens_for_a_reader_written_from_the_specification() {
    for golden in golden() {
        let context = golden.context();
        let secret = Secret::new(golden.plaintext.clone());
        let sealed = vault::seal(&golden.key(), &context, &secret);
        assert_eq!(sealed.len(), HEADER + golden.plaintext.len() + 16);
        assert_eq!(
            sealed[..7],
            [&[1, 0, 1][..], &golden.version.to_be_bytes()].concat()
        );
        let kek: [u8; 32] = array(&golden.kek);
        let owner = [golden.kek_id.as_bytes(), context.tenant.0.as_bytes()];
        let tenant_key = read(
            b"chatelaine CV1 tenant key",
            &kek,
            &owner,
            &bytes(&golden.wrapped),
        );
        let belongings = [
            context.tenant.0.as_bytes(),
            context.user.as_str().as_bytes(),
            context.scope.as_bytes(),
            context.credential.as_bytes(),
            &context.generation.to_be_bytes()[..],
        ];
        let opened = read(
            b"chatelaine CV1 record",
            &tenant_key.try_into().unwrap(),
            &belongings,
            &sealed,
        );
        assert_eq!(opened, golden.plaintext.as_bytes());
    }
}

/// The envelope as `vault` documents it, with HKDF written out (RFC 5869: two blocks of output).
fn read(info: &[u8], key: &[u8; 32], belongings: &[&[u8]], sealed: &[u8]) -> Vec<u8> {
    let (salt, nonce, commitment) = (&sealed[7..39], &sealed[39..51], &sealed[51..83]);
    let extracted = hmac(salt, &[key]);
    let own_key = hmac(&extracted, &[info, &[1]]);
    assert_eq!(hmac(&extracted, &[&own_key, info, &[2]]), commitment);
    let mut aad = sealed[..83].to_vec();
    for field in belongings {
        aad.extend(u32::try_from(field.len()).unwrap().to_be_bytes());
        aad.extend(*field);
    }
    let opened = cipher::decrypt(
        &own_key.try_into().unwrap(),
        &nonce.try_into().unwrap(),
        &aad,
        &sealed[83..],
    )
    .unwrap();
    opened.to_vec()
}

/// RFC 2104, for keys of at most one block.
fn hmac(key: &[u8], data: &[&[u8]]) -> Vec<u8> {
    let padded =
        |with: u8| -> Vec<u8> { (0..64).map(|at| key.get(at).unwrap_or(&0) ^ with).collect() };
    let inner = Sha256::digest([padded(0x36), data.concat()].concat());
    Sha256::digest([padded(0x5c), inner.to_vec()].concat()).to_vec()
}

#[derive(Deserialize)]
struct Golden {
    kek_id: String,
    kek: String,
    check_value: String,
    tenant: TenantId,
    user: UserId,
    scope: String,
    credential: Uuid,
    generation: u64,
    version: u32,
    wrapped: String,
    plaintext: String,
    sealed: String,
}

fn golden() -> Vec<Golden> {
    serde_json::from_str(include_str!("cv1.json")).unwrap()
}

impl Golden {
    fn ring(&self) -> KeyRing {
        KeyRing::parse(&format!("{}:{}", self.kek_id, self.kek)).unwrap()
    }

    fn key(&self) -> TenantKey {
        vault::unwrap(
            self.ring().first(),
            self.tenant,
            self.version,
            &bytes(&self.wrapped),
        )
        .unwrap()
    }

    fn context(&self) -> Context {
        Context {
            tenant: self.tenant,
            user: self.user.clone(),
            scope: self.scope.clone(),
            credential: self.credential,
            generation: self.generation,
        }
    }
}
