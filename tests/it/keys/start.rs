//! Which ring may start, and which of its keys seals.

use std::{os::unix::fs::PermissionsExt as _, time::Duration};

use chatelaine::{
    app::platform::keys::{folder, rotation},
    cli::serve::Service,
};
use domain::ring::KeyRing;
use store::Db;

use super::{
    Replica, entered, kek, known, opened, pairs, refusal, ring, tenant_keys, value, version,
};
use crate::support::{
    db::TestDb,
    world::{TIME_LIMIT, World},
};

const PERSONAL: &str = r"
metadata: { id: notes, displayName: Notes, description: Notes, defaultLanguage: en }
languages: { en: { systemPrompt: You keep notes. } }
llm: { provider: none }
mcp:
  servers:
    - name: notes
      transport: streamable-http
      url: http://127.0.0.1:1/mcp
      accessMode: user-controlled
      userConfig: { fields: [ { name: token, type: secret, label: { en: Token }, headerName: Authorization } ] }
      toolAccess: { default: public }
";

#[tokio::test]
async fn the_first_key_of_the_first_ring_seals() {
    let test = TestDb::new().await;
    Replica::start(&test, &["k2", "k1"]).await;
    assert_eq!(
        known(&test).await,
        pairs(&[("k1", "added"), ("k2", "sealing")])
    );
}

#[tokio::test]
async fn replicas_that_start_at_once_agree() {
    let test = TestDb::new().await;
    let (one, two) = (["k1", "k2"], ["k2", "k1"]);
    let starts = [&one, &two, &one, &two].map(|ids| Replica::start(&test, ids));
    futures_util::future::join_all(starts).await;
    let states = known(&test).await;
    assert_eq!(
        states
            .iter()
            .filter(|(_, state)| state == "sealing")
            .count(),
        1,
        "{states:?}"
    );
}

#[tokio::test]
async fn a_replica_with_a_wrong_key_does_not_start_and_says_which_it_is() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let right = Replica::start(&test, &["k1", "k2"]).await;
    let credential = entered(&right.keys, &test.db, tenant, "a token").await;
    let wrong = KeyRing::parse(&format!("k1:{},k2:{}", value("k1"), "ab".repeat(32))).unwrap();
    let why = refusal(&test, wrong).await;
    assert!(
        why.starts_with("key k2 is wrong: this database was sealed with another one"),
        "{why}"
    );
    assert!(!why.contains("ababab"), "{why}");
    assert_eq!(
        opened(&right.keys, &test.db, &credential).await.unwrap(),
        "a token"
    );
}

#[tokio::test]
async fn a_key_by_another_name_is_recognised() {
    let test = TestDb::new().await;
    Replica::start(&test, &["k1"]).await;
    for text in [
        format!("main:{}", value("k1")),
        format!("k1:{},k2:{}", value("k2"), value("k1")),
    ] {
        let why = refusal(&test, KeyRing::parse(&text).unwrap()).await;
        assert!(why.contains("this database knows that key as k1"), "{why}");
    }
    assert_eq!(known(&test).await, pairs(&[("k1", "sealing")]));
}

#[tokio::test]
async fn a_replica_without_a_key_that_is_needed_does_not_start() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let replica = Replica::start(&test, &["k1", "k2"]).await;
    let why = refusal(&test, ring(&["k2"])).await;
    assert!(why.starts_with("key k1 is missing: it seals"), "{why}");
    entered(&replica.keys, &test.db, tenant, "a token").await;
    rotation::promote(&replica.keys, &kek("k2")).await.unwrap();
    let why = refusal(&test, ring(&["k2"])).await;
    assert!(
        why.starts_with("key k1 is missing: it wraps tenants' keys; add `k1:…`"),
        "{why}"
    );
}

#[tokio::test]
async fn a_new_first_key_seals_only_when_every_living_replica_has_it() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let old = Replica::start(&test, &["k1"]).await;
    let credential = entered(&old.keys, &test.db, tenant, "a token").await;
    // The first of a rolling restart.
    let new = Replica::start(&test, &["k2", "k1"]).await;
    assert_eq!(
        known(&test).await,
        pairs(&[("k1", "sealing"), ("k2", "added")])
    );
    let sealed_by_new = entered(&new.keys, &test.db, tenant, "another").await;
    assert_eq!(
        opened(&old.keys, &test.db, &sealed_by_new).await.unwrap(),
        "another"
    );
    old.stop().await;
    new.beat().await;
    assert_eq!(
        known(&test).await,
        pairs(&[("k1", "opening"), ("k2", "sealing")])
    );
    // A replica that remembers nothing seals with it, and opens what is older.
    let restarted = Replica::start(&test, &["k2", "k1"]).await;
    entered(&restarted.keys, &test.db, tenant, "new").await;
    assert_eq!(
        opened(&restarted.keys, &test.db, &credential)
            .await
            .unwrap(),
        "a token"
    );
    let wanted = [version(1, "k1", "opening"), version(2, "k2", "sealing")];
    assert_eq!(tenant_keys(&test, tenant).await, wanted);
}

#[tokio::test]
async fn a_key_that_was_promoted_by_hand_stays_in_force_whatever_the_order_of_the_ring() {
    let test = TestDb::new().await;
    let replica = Replica::start(&test, &["k1", "k2"]).await;
    rotation::promote(&replica.keys, &kek("k2")).await.unwrap();
    replica.beat().await;
    Replica::start(&test, &["k1", "k2"]).await;
    assert_eq!(
        known(&test).await,
        pairs(&[("k1", "opening"), ("k2", "sealing")])
    );
}

#[tokio::test]
async fn a_pack_with_a_personal_server_needs_a_ring() {
    let world = World::start().await;
    world.write_pack("notes", PERSONAL);
    let mut stopped = world.stop().await;
    stopped.config.ring = None;
    let started = Service::start(
        stopped.config.clone(),
        &stopped.env,
        again(&stopped.db).await,
    )
    .await;
    let why = format!("{:#}", started.err().expect("it started"));
    assert!(
        why.starts_with("pack notes: server notes is personal, and there is no key"),
        "{why}"
    );
    assert!(why.contains("openssl rand -hex 32"), "{why}");
}

#[tokio::test]
async fn the_product_does_not_start_with_a_wrong_key() {
    let mut stopped = World::start().await.stop().await;
    stopped.config.ring = Some(KeyRing::parse_one(&"ab".repeat(32)).unwrap());
    let started = Service::start(
        stopped.config.clone(),
        &stopped.env,
        again(&stopped.db).await,
    )
    .await;
    let why = format!("{:#}", started.err().expect("it started"));
    assert!(
        why.starts_with("cannot start with these keys: key k1 is wrong"),
        "{why}"
    );
}

/// The pool of a stopped product is closed.
async fn again(db: &TestDb) -> Db {
    Db::connect(&db.url, 4).await.unwrap()
}

#[test]
fn the_demos_key_is_made_once_for_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    assert!(folder::ring(&data).unwrap().is_none());
    // Two at once: one key.
    let made = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| folder::ring_or_new(&data).unwrap()))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    let kept = folder::ring(&data).unwrap().unwrap();
    assert!(
        made.iter()
            .all(|ring| ring.first().expose() == kept.first().expose())
    );
    assert_eq!(kept.first().id.as_str(), "k1");
    let files: Vec<_> = std::fs::read_dir(&data)
        .unwrap()
        .map(|file| file.unwrap())
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(
        files[0].metadata().unwrap().permissions().mode() & 0o777,
        0o600
    );
}

/// Linux alone shows the limits of another process.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_replica_leaves_no_core_dump() {
    let test = TestDb::new().await;
    let packs = tempfile::tempdir().unwrap();
    let served = tokio::process::Command::new(env!("CARGO_BIN_EXE_chatelaine"))
        .arg("serve")
        .env_clear()
        .env("DATABASE_URL", test.url.expose())
        .env("CHATELAINE_PACKS", packs.path())
        .env("CHATELAINE_LISTEN", "127.0.0.1:0")
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let limits = format!("/proc/{}/limits", served.id().unwrap());
    let none = async {
        loop {
            let limits = std::fs::read_to_string(&limits).expect("it ended");
            let core = limits
                .lines()
                .find_map(|line| line.strip_prefix("Max core file size"))
                .unwrap();
            if core.split_whitespace().take(2).eq(["0", "0"]) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIME_LIMIT, none)
        .await
        .expect("its limit is not 0");
}
