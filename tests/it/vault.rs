//! Sealing and opening: the primitives against published vectors, everything that must not open, and the ring.
//! The format itself is in `vault/golden.rs`.

mod golden;

use domain::{
    config::{Config, Environment},
    ids::{TenantId, UserId},
    ring::{Kek, KeyRing},
    secret::Secret,
};
use proptest::prelude::*;
use store::vault::{self, Context, TenantKey, Unopenable, cipher};
use uuid::Uuid;

/// Format, suite, key version, salt, nonce, commitment.
const HEADER: usize = 1 + 2 + 4 + 32 + 12 + 32;

#[test]
fn aes_256_gcm_answers_as_its_specification_says() {
    let feff = "feffe9928665731c6d6a8f9467308308".repeat(2);
    let plain = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255";
    let sealed = "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad";
    let zero = "00".repeat(32);
    // McGrew and Viega, The Galois/Counter Mode of Operation, test cases 13 to 16:
    // key, nonce, additional data, plaintext, ciphertext, tag.
    for (key, nonce, aad, plaintext, ciphertext, tag) in [
        (
            &zero,
            &zero[..24],
            "",
            "",
            "",
            "530f8afbc74536b9a963b4f1c4cb738b",
        ),
        (
            &zero,
            &zero[..24],
            "",
            &zero[..32],
            "cea7403d4d606b6e074ec5d3baf39d18",
            "d0d1c8a799996bf0265b98b5d48ab919",
        ),
        (
            &feff,
            "cafebabefacedbaddecaf888",
            "",
            plain,
            sealed,
            "b094dac5d93471bdec1a502270e3cc6c",
        ),
        (
            &feff,
            "cafebabefacedbaddecaf888",
            "feedfacedeadbeeffeedfacedeadbeefabaddad2",
            &plain[..120],
            &sealed[..120],
            "76fc6ece0f4e1768cddf8853bb2d551b",
        ),
    ] {
        let (key, nonce, aad, plaintext) = (array(key), array(nonce), bytes(aad), bytes(plaintext));
        let wanted = [bytes(ciphertext), bytes(tag)].concat();
        let mut made = b"before".to_vec();
        cipher::encrypt(&key, &nonce, &aad, &plaintext, &mut made);
        assert_eq!(made.strip_prefix(b"before"), Some(&*wanted));
        assert_eq!(
            cipher::decrypt(&key, &nonce, &aad, &wanted).as_deref(),
            Some(&plaintext)
        );
        // As in Project Wycheproof: a tag with one bit changed, all bits changed, or nothing but zeros.
        let tag_at = wanted.len() - 16;
        for bit in 0..128 {
            assert!(
                cipher::decrypt(&key, &nonce, &aad, &flipped(&wanted, tag_at * 8 + bit)).is_none()
            );
        }
        let all: Vec<u8> = wanted[tag_at..].iter().map(|byte| !byte).collect();
        for tag in [all, vec![0; 16], vec![0xff; 16]] {
            assert!(
                cipher::decrypt(&key, &nonce, &aad, &[&wanted[..tag_at], &tag].concat()).is_none()
            );
        }
        assert!(cipher::decrypt(&key, &nonce, &[&aad[..], &[0]].concat(), &wanted).is_none());
    }
}

#[test]
fn hkdf_sha_256_answers_as_rfc_5869_says() {
    let count = |from: u8, to: u8| (from..=to).collect::<Vec<u8>>();
    // Test cases 1 to 3: salt, key, info, what comes of it.
    for (salt, key, info, wanted) in [
        (
            count(0, 0x0c),
            vec![0x0b; 22],
            count(0xf0, 0xf9),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            count(0x60, 0xaf),
            count(0, 0x4f),
            count(0xb0, 0xff),
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
        ),
        (
            vec![],
            vec![0x0b; 22],
            vec![],
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ] {
        let mut made = vec![0; wanted.len() / 2];
        cipher::derive(&salt, &key, &info, &mut made);
        assert_eq!(hex::encode(made), wanted);
    }
}

#[test]
fn a_value_with_any_single_bit_changed_does_not_open() {
    let (key, context) = (TenantKey::generate(1), context());
    let sealed = vault::seal(&key, &context, &Secret::new("a token"));
    for bit in 0..sealed.len() * 8 {
        let why = vault::open(&key, &context, &flipped(&sealed, bit)).unwrap_err();
        let wanted = match bit / 8 {
            0 => Unopenable::UnknownFormat(1 ^ (0x80 >> (bit % 8))),
            1..3 => Unopenable::UnknownSuite(1 ^ (0x8000 >> (bit - 8))),
            3..7 => Unopenable::UnknownVersion(1 ^ (0x8000_0000 >> (bit - 24))),
            // Salt and commitment; then nonce, ciphertext and tag.
            7..39 | 51..83 => Unopenable::OtherKey,
            _ => Unopenable::Altered,
        };
        assert_eq!(why, wanted, "bit {bit}");
    }
}

#[test]
fn a_wrapped_key_with_any_single_bit_changed_does_not_open() {
    let (ring, tenant) = (ring("k1", 7), TenantId::new());
    let wrapped = vault::wrap(ring.first(), tenant, &TenantKey::generate(1));
    for bit in 0..wrapped.len() * 8 {
        assert!(
            vault::unwrap(ring.first(), tenant, 1, &flipped(&wrapped, bit)).is_err(),
            "bit {bit}"
        );
    }
}

#[test]
fn a_value_cut_at_any_length_or_made_longer_does_not_open() {
    let (key, context) = (TenantKey::generate(1), context());
    let sealed = vault::seal(&key, &context, &Secret::new("a token"));
    for length in 0..sealed.len() {
        let why = vault::open(&key, &context, &sealed[..length]).unwrap_err();
        let wanted = if length < HEADER + 16 {
            Unopenable::Truncated
        } else {
            Unopenable::Altered
        };
        assert_eq!(why, wanted, "{length} bytes");
    }
    let longer = [&sealed[..], &[0]].concat();
    assert_eq!(
        vault::open(&key, &context, &longer).unwrap_err(),
        Unopenable::Altered
    );
}

#[test]
fn a_value_opens_in_no_other_context() {
    let (key, context) = (TenantKey::generate(1), context());
    let sealed = vault::seal(&key, &context, &Secret::new("a token"));
    vault::open(&key, &context, &sealed).unwrap();
    let other = |change: fn(&mut Context)| {
        let mut context = context.clone();
        change(&mut context);
        context
    };
    for wrong in [
        other(|context| context.tenant = TenantId::new()),
        other(|context| context.user = UserId("alicf".into())),
        other(|context| context.user = UserId("Alice".into())),
        other(|context| context.user = UserId("".into())),
        other(|context| context.scope = "bank/note".into()),
        other(|context| context.scope = "notes/bank".into()),
        other(|context| context.credential = Uuid::now_v7()),
        other(|context| context.generation += 1),
        other(|context| context.generation -= 1),
        // The same bytes, with the border between two fields moved.
        other(|context| {
            context.user = UserId("alic".into());
            context.scope = "ebank/notes".into();
        }),
    ] {
        assert_eq!(
            vault::open(&key, &wrong, &sealed).unwrap_err(),
            Unopenable::Altered,
            "{wrong:?}"
        );
    }
}

#[test]
fn a_value_opens_with_no_other_key() {
    let (key, context) = (TenantKey::generate(1), context());
    let sealed = vault::seal(&key, &context, &Secret::new("a token"));
    let open = |key: &TenantKey| vault::open(key, &context, &sealed).unwrap_err();
    assert_eq!(open(&TenantKey::generate(1)), Unopenable::OtherKey);
    assert_eq!(open(&TenantKey::generate(2)), Unopenable::UnknownVersion(1));
}

#[test]
fn a_tenants_key_opens_for_its_tenant_version_and_key_of_the_ring_only() {
    let (k1, tenant) = (ring("k1", 7), TenantId::new());
    let wrapped = vault::wrap(k1.first(), tenant, &TenantKey::generate(3));
    let unwrap = |kek: &Kek, tenant, version| {
        vault::unwrap(kek, tenant, version, &wrapped).map(|key| key.version)
    };
    assert_eq!(unwrap(k1.first(), tenant, 3), Ok(3));
    assert_eq!(
        unwrap(k1.first(), tenant, 2),
        Err(Unopenable::UnknownVersion(3))
    );
    assert_eq!(
        unwrap(k1.first(), TenantId::new(), 3),
        Err(Unopenable::Altered)
    );
    assert_eq!(
        unwrap(ring("k1", 8).first(), tenant, 3),
        Err(Unopenable::OtherKey)
    );
    // The same key by another name.
    assert_eq!(
        unwrap(ring("k2", 7).first(), tenant, 3),
        Err(Unopenable::Altered)
    );
}

#[test]
fn nothing_random_is_used_twice() {
    let (key, context, secret) = (TenantKey::generate(1), context(), Secret::new("a token"));
    let (one, two) = (
        vault::seal(&key, &context, &secret),
        vault::seal(&key, &context, &secret),
    );
    for field in [7..39, 39..51, 51..83, 83..one.len()] {
        assert_ne!(one[field.clone()], two[field]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_sealed_opens_again(text in any::<String>(), user in any::<String>(), scope in any::<String>(), generation: u64) {
        let key = TenantKey::generate(1);
        let context = Context { user: UserId(user.into()), scope, generation, ..context() };
        let sealed = vault::seal(&key, &context, &Secret::new(text.clone()));
        let opened = vault::open(&key, &context, &sealed).unwrap();
        prop_assert_eq!(opened.expose(), text);
    }

    #[test]
    fn no_noise_opens(noise in proptest::collection::vec(any::<u8>(), 0..200), format: bool) {
        let noise = if format { [&[1, 0, 1, 0, 0, 0, 1], &noise[..]].concat() } else { noise };
        prop_assert!(vault::open(&TenantKey::generate(1), &context(), &noise).is_err());
    }
}

#[test]
fn the_ring_is_read_from_the_settings() {
    let (one, two) = ("1f".repeat(32), "2F".repeat(32));
    for (single, many, wanted) in [
        ("", String::new(), vec![]),
        (&*one, String::new(), vec!["k1"]),
        ("", format!("k2:{two},k1:{one}"), vec!["k2", "k1"]),
        (
            "",
            format!(" 2026-07 : {two} ,\n k1:{one}\n"),
            vec!["2026-07", "k1"],
        ),
        (&*one, format!("k2:{two}"), vec!["k2", "k1"]),
        (&*one, format!("k2:{two},k1:{one}"), vec!["k2", "k1"]),
    ] {
        let ring = settings(single, &many).unwrap().ring;
        let ids: Vec<String> = ring
            .iter()
            .flat_map(KeyRing::keks)
            .map(|kek| kek.id.to_string())
            .collect();
        assert_eq!(ids, wanted);
    }
}

#[test]
fn a_malformed_ring_is_refused_without_repeating_it() {
    let (one, two) = ("1f".repeat(32), "2f".repeat(32));
    let short = &one[1..];
    for (single, many, wanted) in [
        (
            "hello",
            String::new(),
            "MCP_CONFIG_ENCRYPTION_KEY: is not 64 hex digits; `openssl rand -hex 32` makes a key",
        ),
        (
            short,
            String::new(),
            "MCP_CONFIG_ENCRYPTION_KEY: is not 64 hex digits",
        ),
        (
            &format!("{one}00"),
            String::new(),
            "MCP_CONFIG_ENCRYPTION_KEY: is not 64 hex digits",
        ),
        (
            &one.replace('f', "g"),
            String::new(),
            "MCP_CONFIG_ENCRYPTION_KEY: is not 64 hex digits",
        ),
        (
            "",
            one.clone(),
            "MCP_CONFIG_ENCRYPTION_KEYS: entry 1 is not `id:key`",
        ),
        ("", format!("k2:{two},{one}"), "entry 2 is not `id:key`"),
        ("", format!("k2:{two},"), "entry 2 is not `id:key`"),
        (
            "",
            format!("k2:{short}"),
            "the key `k2` is not 64 hex digits",
        ),
        (
            "",
            format!("{one}:k1"),
            "entry 1 has more than 32 characters before its `:`",
        ),
        ("", format!("k 2:{two}"), "entry 1 has no id before its `:`"),
        ("", format!(":{two}"), "entry 1 has no id before its `:`"),
        (
            "",
            format!("k1:{one},k1:{two}"),
            "there are two different keys `k1`",
        ),
        (
            "",
            format!("k2:{one},k1:{one}"),
            "`k2` and `k1` are the same key",
        ),
        (
            &*one,
            format!("k1:{two}"),
            "there are two different keys `k1`; leave one of the two out",
        ),
        (
            &*one,
            format!("main:{one}"),
            "`main` and `k1` are the same key; leave one of the two out",
        ),
    ] {
        let Err(why) = settings(single, &many) else {
            panic!("{single:?} and {many:?} were taken")
        };
        assert!(why.contains(wanted), "{why}");
        assert!(
            !why.contains("1f1f1f") && !why.contains("2f2f2f") && !why.contains("hello"),
            "{why}"
        );
    }
}

#[test]
fn no_pack_can_name_the_ring() {
    let names = ["MCP_CONFIG_ENCRYPTION_KEY", "MCP_CONFIG_ENCRYPTION_KEYS"];
    let env = names
        .iter()
        .fold(Environment::default(), |env, name| env.with(*name, "x"))
        .with("OTHER", "y");
    let env = env.without_keys();
    assert_eq!(names.map(|name| env.get(name)), [None, None]);
    assert_eq!(env.get("OTHER"), Some("y"));
}

fn settings(one: &str, many: &str) -> Result<Config, String> {
    let env = Environment::default()
        .with("MCP_CONFIG_ENCRYPTION_KEY", one)
        .with("MCP_CONFIG_ENCRYPTION_KEYS", many);
    Config::from_environment(&env)
}

fn ring(id: &str, byte: u8) -> KeyRing {
    KeyRing::parse(&format!("{id}:{}", hex::encode([byte; 32]))).unwrap()
}

fn context() -> Context {
    Context {
        tenant: TenantId("01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap()),
        user: UserId("alice".into()),
        scope: "bank/notes".to_owned(),
        credential: "01890a5d-ac96-774b-bcce-b302099a8058".parse().unwrap(),
        generation: 1,
    }
}

fn flipped(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 0x80 >> (bit % 8);
    bytes
}

fn bytes(hex: &str) -> Vec<u8> {
    hex::decode(hex).unwrap()
}

fn array<const N: usize>(hex: &str) -> [u8; N] {
    bytes(hex).try_into().unwrap()
}
