//! Rotation: each step, what it refuses, and that nothing is lost by it, under load and when stopped anywhere.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use chatelaine::{
    app::platform::keys::{
        Keys,
        rewrap::{Progress, rewrap},
        rotation,
    },
    cli::keys::{Command, run},
};
use domain::{
    config::{Config, Environment},
    credential::{CredentialRef, CredentialState},
    error::Error,
    ids::TenantId,
};
use store::Db;
use tokio::sync::Notify;

use super::{
    Replica, damage, entered, kek, known, opened, pairs, reason, replaced, ring, sealed, stored,
    tenant_keys, value, version,
};
use crate::support::{db::TestDb, wait::eventually, world::TIME_LIMIT};

/// A database where `k1` sealed some records, and a replica that has `k2` too.
async fn set_up(records: usize) -> (TestDb, TenantId, Replica, Vec<CredentialRef>) {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let replica = Replica::start(&test, &["k1", "k2"]).await;
    let mut credentials = Vec::new();
    for at in 0..records {
        credentials.push(entered(&replica.keys, &test.db, tenant, &format!("token {at}")).await);
    }
    (test, tenant, replica, credentials)
}

/// What an operator's command has: the same ring, and no memory.
fn operator(db: &Db, ids: &[&str]) -> Keys {
    Keys::new(db.clone(), Some(ring(ids)))
}

fn refused<T: std::fmt::Debug>(done: Result<T, Error>) -> String {
    done.expect_err("it was done").to_string()
}

#[tokio::test]
async fn rotation_loses_nothing() {
    let (test, tenant, _replica, credentials) = set_up(7).await;
    let unsealed = rows(&test, tenant).await;
    let mut before = Vec::new();
    for credential in &credentials {
        before.push(sealed(&test.db, credential).await);
    }
    let operator = operator(&test.db, &["k1", "k2"]);
    rotation::promote(&operator, &kek("k2")).await.unwrap();
    let mut shown = Vec::new();
    let done = rewrap(&operator, 3, |progress| shown.push(progress.seen))
        .await
        .unwrap();
    assert_eq!(
        done,
        Progress {
            tenant_keys: 1,
            records: 7,
            seen: 7,
            total: 7,
            unopenable: 0,
            locked: 0
        }
    );
    assert_eq!(shown, [0, 3, 6, 7]);
    assert_eq!(
        tenant_keys(&test, tenant).await,
        [version(1, "k2", "opening"), version(2, "k2", "sealing")]
    );
    rotation::retire(&operator, &kek("k1")).await.unwrap();
    assert_eq!(
        known(&test).await,
        pairs(&[("k1", "retired"), ("k2", "sealing")])
    );
    // From now on the old key is not even there.
    let replica = Replica::start(&test, &["k2"]).await;
    for (at, credential) in credentials.iter().enumerate() {
        assert_eq!(
            opened(&replica.keys, &test.db, credential).await.unwrap(),
            format!("token {at}")
        );
        assert_ne!(sealed(&test.db, credential).await, before[at]);
    }
    assert_eq!(
        rows(&test, tenant).await,
        unsealed,
        "only the sealing changed"
    );
}

/// All credentials, but for how they are sealed.
async fn rows(test: &TestDb, tenant: TenantId) -> Vec<String> {
    let sql = "select (to_jsonb(c) - 'sealed' - 'tenant_key_version')::text from credentials c order by id";
    sqlx::query_scalar(sql)
        .fetch_all(&mut test.as_tenant(tenant).await)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_second_rewrap_has_nothing_to_do() {
    let (test, _, _replica, _) = set_up(3).await;
    let operator = operator(&test.db, &["k1", "k2"]);
    assert_eq!(
        rewrap(&operator, 2, |_| ()).await.unwrap(),
        Progress::default()
    );
    rotation::promote(&operator, &kek("k2")).await.unwrap();
    assert_eq!(rewrap(&operator, 2, |_| ()).await.unwrap().records, 3);
    assert_eq!(
        rewrap(&operator, 2, |_| ()).await.unwrap(),
        Progress::default()
    );
}

#[tokio::test]
async fn a_rewrap_that_was_stopped_is_continued() {
    let (test, _, replica, credentials) = set_up(10).await;
    let operator = operator(&test.db, &["k1", "k2"]);
    rotation::promote(&operator, &kek("k2")).await.unwrap();
    let (stop, seen) = (Notify::new(), AtomicUsize::new(0));
    let first = rewrap(&operator, 2, |progress| {
        seen.store(
            usize::try_from(progress.records).unwrap(),
            Ordering::Relaxed,
        );
        if progress.records >= 4 {
            stop.notify_one();
        }
    });
    // Dropped in the middle, as a killed process would be.
    tokio::select! {
        biased;
        () = stop.notified() => {}
        done = first => panic!("it was not stopped: {done:?}"),
    }
    let before = seen.load(Ordering::Relaxed);
    assert!((4..10).contains(&before), "{before}");
    let second = rewrap(&operator, 2, |_| ()).await.unwrap();
    assert!(
        second.records >= 4 && second.records <= 10 - 4,
        "{second:?}"
    );
    for (at, credential) in credentials.iter().enumerate() {
        assert_eq!(
            opened(&replica.keys, &test.db, credential).await.unwrap(),
            format!("token {at}")
        );
    }
    rotation::retire(&operator, &kek("k1")).await.unwrap();
}

#[tokio::test]
async fn two_rewraps_at_once_do_no_harm() {
    let (test, tenant, replica, credentials) = set_up(12).await;
    let operators = [
        operator(&test.db, &["k1", "k2"]),
        operator(&test.db, &["k2", "k1"]),
    ];
    rotation::promote(&operators[0], &kek("k2")).await.unwrap();
    let (one, two) = tokio::join!(
        rewrap(&operators[0], 2, |_| ()),
        rewrap(&operators[1], 3, |_| ())
    );
    assert_eq!(one.unwrap().records + two.unwrap().records, 12);
    assert_eq!(
        tenant_keys(&test, tenant).await,
        [version(1, "k2", "opening"), version(2, "k2", "sealing")]
    );
    for (at, credential) in credentials.iter().enumerate() {
        assert_eq!(
            opened(&replica.keys, &test.db, credential).await.unwrap(),
            format!("token {at}")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_under_load_fails_nobody_and_loses_nothing() {
    let (test, tenant, one, _) = set_up(20).await;
    let two = Replica::start(&test, &["k1", "k2", "k3"]).await;
    let three = Replica::start(&test, &["k1", "k2", "k3"]).await;
    one.stop().await;
    let stop = AtomicBool::new(false);
    let served: [AtomicUsize; 4] = Default::default();
    let users = (0..4).map(|user| {
        let (db, stop, replicas) = (&test.db, &stop, [&two, &three]);
        let served = &served[user];
        async move {
            let mut credential = entered(&replicas[0].keys, db, tenant, "0").await;
            let mut rounds = 0_usize;
            while !stop.load(Ordering::Relaxed) {
                rounds += 1;
                let (seals, opens) = (replicas[(rounds + user) % 2], replicas[rounds % 2]);
                credential = replaced(&seals.keys, db, &credential, &rounds.to_string())
                    .await
                    .unwrap();
                assert_eq!(
                    opened(&opens.keys, db, &credential).await.unwrap(),
                    rounds.to_string()
                );
                served.store(rounds, Ordering::Relaxed);
            }
            (credential, rounds)
        }
    });
    let rotate = async {
        let operator = operator(&test.db, &["k3", "k2", "k1"]);
        for (new, old) in [("k2", "k1"), ("k3", "k2")] {
            rotation::add(&operator, &kek(new)).await.unwrap();
            rotation::promote(&operator, &kek(new)).await.unwrap();
            // Everybody is served with the new key before the old one goes.
            for user in &served {
                let before = user.load(Ordering::Relaxed);
                eventually(async || user.load(Ordering::Relaxed) > before + 1).await;
            }
            rewrap(&operator, 3, |_| ()).await.unwrap();
            rotation::retire(&operator, &kek(old)).await.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    };
    let (users, ()) = tokio::join!(futures_util::future::join_all(users), rotate);
    assert_eq!(
        known(&test).await,
        pairs(&[("k1", "retired"), ("k2", "retired"), ("k3", "sealing")])
    );
    let left = Replica::start(&test, &["k3"]).await;
    for (credential, rounds) in users {
        assert_eq!(
            opened(&left.keys, &test.db, &credential).await.unwrap(),
            rounds.to_string()
        );
    }
    assert_eq!(count(&test, tenant, "state = 'quarantined'").await, 0);
    assert_eq!(count(&test, tenant, "true").await, 24);
}

async fn count(test: &TestDb, tenant: TenantId, condition: &str) -> i64 {
    let sql = sqlx::AssertSqlSafe(format!(
        "select count(*) from credentials where {condition}"
    ));
    sqlx::query_scalar(sql)
        .fetch_one(&mut test.as_tenant(tenant).await)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_record_that_a_slow_replica_sealed_with_the_old_version_still_opens_after_all() {
    let (test, tenant, slow, _) = set_up(1).await;
    let operator = operator(&test.db, &["k1", "k2"]);
    rotation::promote(&operator, &kek("k2")).await.unwrap();
    rewrap(&operator, 10, |_| ()).await.unwrap();
    rotation::retire(&operator, &kek("k1")).await.unwrap();
    // It remembers version 1 and has not looked since.
    let late = entered(&slow.keys, &test.db, tenant, "late").await;
    let stored = sealed(&test.db, &late).await;
    assert_eq!(store::vault::key_version(&stored), Ok(1));
    let fresh = Replica::start(&test, &["k2"]).await;
    assert_eq!(opened(&fresh.keys, &test.db, &late).await.unwrap(), "late");
    assert_eq!(rewrap(&fresh.keys, 10, |_| ()).await.unwrap().records, 1);
    assert_eq!(opened(&fresh.keys, &test.db, &late).await.unwrap(), "late");
}

#[tokio::test]
async fn yesterdays_database_works_with_todays_ring() {
    let (test, _, replica, credentials) = set_up(2).await;
    replica.stop().await;
    // As it was before `k2`, opened by a replica of after the rotation.
    sqlx::query("delete from keks where id = 'k2'")
        .execute(&mut test.as_system().await)
        .await
        .unwrap();
    let replica = Replica::start(&test, &["k2", "k1"]).await;
    assert_eq!(
        known(&test).await,
        pairs(&[("k1", "opening"), ("k2", "sealing")])
    );
    assert_eq!(
        opened(&replica.keys, &test.db, &credentials[1])
            .await
            .unwrap(),
        "token 1"
    );
}

#[tokio::test]
async fn rewrap_puts_aside_what_cannot_be_opened_and_goes_on() {
    let (test, _, replica, credentials) = set_up(5).await;
    damage(&test, &credentials[2]).await;
    let operator = operator(&test.db, &["k1", "k2"]);
    rotation::promote(&operator, &kek("k2")).await.unwrap();
    let done = rewrap(&operator, 2, |_| ()).await.unwrap();
    assert_eq!((done.records, done.seen, done.unopenable), (4, 5, 1));
    assert_eq!(
        stored(&test.db, &credentials[2]).await.state,
        CredentialState::Quarantined
    );
    assert_eq!(
        opened(&replica.keys, &test.db, &credentials[3])
            .await
            .unwrap(),
        "token 3"
    );
    // Repaired, it comes back with the next one.
    damage(&test, &credentials[2]).await;
    assert_eq!(rewrap(&operator, 2, |_| ()).await.unwrap().records, 1);
    let back = stored(&test.db, &credentials[2]).await;
    let why = reason(&test, &credentials[2]).await;
    assert_eq!((back.state, why), (CredentialState::Active, None));
}

#[tokio::test]
async fn a_tenants_key_that_is_broken_stops_nobody_else_and_is_kept() {
    let (test, tenant, _replica, credentials) = set_up(2).await;
    let globex = test.tenant("globex").await;
    let operator = operator(&test.db, &["k1", "k2"]);
    let theirs = entered(&operator, &test.db, globex, "theirs").await;
    sqlx::query(
        "update tenant_keys set wrapped = set_byte(wrapped, 90, get_byte(wrapped, 90) # 1)",
    )
    .execute(&mut test.as_tenant(tenant).await)
    .await
    .unwrap();
    // A replica without a memory of it: nothing is marked, and no new key is made.
    let replica = Replica::start(&test, &["k1", "k2"]).await;
    assert!(matches!(
        opened(&replica.keys, &test.db, &credentials[0]).await,
        Err(Error::KeysUnreadable)
    ));
    rotation::promote(&operator, &kek("k2")).await.unwrap();
    let done = rewrap(
        &Keys::new(test.db.clone(), Some(ring(&["k1", "k2"]))),
        10,
        |_| (),
    )
    .await
    .unwrap();
    assert_eq!((done.records, done.unopenable, done.locked), (1, 0, 2));
    assert_eq!(
        opened(&replica.keys, &test.db, &theirs).await.unwrap(),
        "theirs"
    );
    let why = refused(rotation::retire(&operator, &kek("k1")).await);
    assert!(
        why.starts_with("key k1 is needed: it wraps 1 tenant key, which 2 records need"),
        "{why}"
    );
}

#[tokio::test]
async fn a_rejected_credential_stays_rejected_when_it_is_sealed_anew() {
    let (test, tenant, _replica, credentials) = set_up(1).await;
    sqlx::query("update credentials set state = 'rejected', reason = '401'")
        .execute(&mut test.as_tenant(tenant).await)
        .await
        .unwrap();
    let operator = operator(&test.db, &["k1", "k2"]);
    rotation::promote(&operator, &kek("k2")).await.unwrap();
    assert_eq!(rewrap(&operator, 2, |_| ()).await.unwrap().records, 1);
    let now = stored(&test.db, &credentials[0]).await;
    assert_eq!(
        (now.state, reason(&test, &credentials[0]).await.as_deref()),
        (CredentialState::Rejected, Some("401"))
    );
}

#[tokio::test]
async fn a_key_that_is_needed_is_not_retired() {
    let (test, _, _replica, _) = set_up(3).await;
    let operator = operator(&test.db, &["k1", "k2"]);
    assert_eq!(
        refused(rotation::retire(&operator, &kek("k1")).await),
        "key k1 seals; promote another one first"
    );
    rotation::promote(&operator, &kek("k2")).await.unwrap();
    assert_eq!(
        refused(rotation::retire(&operator, &kek("k1")).await),
        "key k1 is needed: it wraps 1 tenant key, which 3 records need; run `chatelaine keys rewrap` first"
    );
    assert_eq!(
        known(&test).await,
        pairs(&[("k1", "opening"), ("k2", "sealing")])
    );
}

#[tokio::test]
async fn retiring_waits_for_a_tenants_key_that_is_being_made() {
    let (test, tenant, _replica, _) = set_up(0).await;
    let operator = operator(&test.db, &["k1", "k2"]);
    let mut making = test.as_tenant(tenant).await;
    sqlx::query("begin").execute(&mut making).await.unwrap();
    sqlx::query(
        "insert into tenant_keys (tenant_id, id, version, kek_id, wrapped, state) values ($1, $1, 1, 'k1', '', 'sealing')",
    )
    .bind(tenant.0)
    .execute(&mut making)
    .await
    .unwrap();
    rotation::promote(&operator, &kek("k2")).await.unwrap();
    let k1 = kek("k1");
    let commit_when_waited_for = async {
        eventually(async || test.awaited_locks("").await > 0).await;
        sqlx::query("commit").execute(&mut making).await.unwrap();
    };
    let waiting = tokio::time::timeout(TIME_LIMIT, commit_when_waited_for);
    let (retired, waited) = tokio::join!(rotation::retire(&operator, &k1), waiting);
    waited.expect("retiring did not wait");
    assert_eq!(
        refused(retired),
        "key k1 still wraps tenants' keys; run `chatelaine keys rewrap`"
    );
    assert_eq!(
        known(&test).await,
        pairs(&[("k1", "opening"), ("k2", "sealing")])
    );
}

#[tokio::test]
async fn a_key_that_a_living_replica_lacks_is_not_promoted() {
    let test = TestDb::new().await;
    let old = Replica::start(&test, &["k1"]).await;
    let operator = operator(&test.db, &["k1", "k2"]);
    assert_eq!(
        refused(rotation::promote(&operator, &kek("k2")).await),
        "this database does not know a key k2; run `chatelaine keys add k2` first"
    );
    rotation::add(&operator, &kek("k2")).await.unwrap();
    let why = refused(rotation::promote(&operator, &kek("k2")).await);
    assert!(
        why.starts_with("1 replica is running without key k2"),
        "{why}"
    );
    assert!(why.contains(&old.id.to_string()), "{why}");
    old.stop().await;
    rotation::promote(&operator, &kek("k2")).await.unwrap();
}

#[tokio::test]
async fn a_replica_that_was_killed_counts_for_a_minute() {
    let test = TestDb::new().await;
    let _killed = Replica::start(&test, &["k1"]).await;
    let operator = operator(&test.db, &["k1", "k2"]);
    rotation::add(&operator, &kek("k2")).await.unwrap();
    refused(rotation::promote(&operator, &kek("k2")).await);
    sqlx::query("update key_holders set seen_at = seen_at - interval '61 seconds'")
        .execute(&mut test.as_system().await)
        .await
        .unwrap();
    rotation::promote(&operator, &kek("k2")).await.unwrap();
}

#[tokio::test]
async fn a_key_that_was_added_is_the_only_one_of_its_id() {
    let test = TestDb::new().await;
    Replica::start(&test, &["k1"]).await;
    rotation::add(&operator(&test.db, &["k1", "k2"]), &kek("k2"))
        .await
        .unwrap();
    let typo = domain::ring::KeyRing::parse(&format!("k1:{},k2:{}", value("k1"), "ab".repeat(32)))
        .unwrap();
    let why = super::refusal(&test, typo).await;
    assert!(why.starts_with("key k2 is wrong"), "{why}");
}

#[tokio::test]
async fn a_retired_key_does_not_come_back() {
    let (test, _, _replica, _) = set_up(0).await;
    let operator = operator(&test.db, &["k1", "k2"]);
    rotation::promote(&operator, &kek("k2")).await.unwrap();
    rotation::retire(&operator, &kek("k1")).await.unwrap();
    rotation::retire(&operator, &kek("k1")).await.unwrap();
    let why = refused(rotation::promote(&operator, &kek("k1")).await);
    assert_eq!(why, "key k1 is retired; add a new one and promote that");
    let why = refused(rotation::add(&operator, &kek("k1")).await);
    assert_eq!(why, "key k1 is retired; give a new key another id");
    // One that is still in a ring is no reason not to start.
    Replica::start(&test, &["k1", "k2"]).await;
    assert_eq!(
        known(&test).await,
        pairs(&[("k1", "retired"), ("k2", "sealing")])
    );
}

#[tokio::test]
async fn the_commands_lead_through_a_rotation() {
    let (test, _, replica, _) = set_up(2).await;
    replica.stop().await;
    sqlx::query("delete from keks where id = 'k2'")
        .execute(&mut test.as_system().await)
        .await
        .unwrap();
    let mut said = String::new();
    for command in [
        Command::List,
        Command::Add { key: kek("k2") },
        Command::Promote { key: kek("k2") },
        Command::List,
        Command::Rewrap { batch: 1 },
        Command::List,
        Command::Retire { key: kek("k1") },
        Command::List,
    ] {
        said.push_str(&command_output(&test, command).await);
        said.push_str("---\n");
    }
    let seconds = said.find("sealed anew in ").unwrap() + "sealed anew in ".len();
    let end = seconds + said[seconds..].find(" s\n").unwrap();
    said.replace_range(seconds..end, "[time]");
    assert!(
        !said.contains(&value("k1")) && !said.contains(&value("k2")),
        "{said}"
    );
    insta::assert_snapshot!(said);
}

async fn command_output(test: &TestDb, command: Command) -> String {
    let env = Environment::default()
        .with("MCP_CONFIG_ENCRYPTION_KEY", value("k1"))
        .with(
            "MCP_CONFIG_ENCRYPTION_KEYS",
            format!("k1:{},k2:{}", value("k1"), value("k2")),
        );
    let config = Config::from_environment(&env).unwrap();
    let mut out = Vec::new();
    run(command, &test.db, &config, &mut out).await.unwrap();
    String::from_utf8(out).unwrap()
}
