//! The key ring of replicas that share a database: which ring may start, who seals, and that nothing is lost
//! while keys come and go.

mod rotation;
mod sealed;
mod start;
mod unreadable;

use std::sync::atomic::{AtomicU64, Ordering};

use chatelaine::app::{
    accounts,
    platform::keys::{Keys, contexts, replica_keys},
};
use domain::{
    credential::{CredentialMeta, CredentialRef, CredentialState},
    error::Error,
    ids::{AgentId, CredentialId, KekId, ReplicaId, ServerId, TenantId, UserId},
    ring::KeyRing,
    secret::Secret,
};
use store::Db;

use crate::support::db::TestDb;

/// A ring of these keys; a key's value follows from its id.
fn ring(ids: &[&str]) -> KeyRing {
    let entries: Vec<String> = ids.iter().map(|id| format!("{id}:{}", value(id))).collect();
    KeyRing::parse(&entries.join(",")).unwrap()
}

fn value(id: &str) -> String {
    let byte = id
        .bytes()
        .fold(0x5e_u8, |byte, next| byte.rotate_left(3) ^ next);
    hex::encode([byte; 32])
}

fn kek(id: &str) -> KekId {
    KekId::parse(id).unwrap()
}

/// A replica that started with this ring.
struct Replica {
    keys: Keys,
    id: ReplicaId,
}

impl Replica {
    async fn start(test: &TestDb, ids: &[&str]) -> Self {
        Self::try_start(&test.db, ring(ids)).await.unwrap()
    }

    async fn try_start(db: &Db, ring: KeyRing) -> Result<Self, Error> {
        let (keys, id) = (Keys::new(db.clone(), Some(ring)), ReplicaId::new());
        replica_keys::register(&keys, id).await?;
        Ok(Self { keys, id })
    }

    /// What a running one does every few seconds.
    async fn beat(&self) {
        replica_keys::register(&self.keys, self.id).await.unwrap();
    }

    async fn stop(self) {
        replica_keys::leave(&self.keys, self.id).await;
    }
}

/// Why a replica with this ring does not start.
async fn refusal(test: &TestDb, ring: KeyRing) -> String {
    match Replica::try_start(&test.db, ring).await {
        Ok(_) => panic!("it started"),
        Err(error) => error.to_string(),
    }
}

/// A credential of a user that nobody else has.
async fn entered(keys: &Keys, db: &Db, tenant: TenantId, plaintext: &str) -> CredentialRef {
    static USERS: AtomicU64 = AtomicU64::new(0);
    let credential = CredentialRef {
        tenant,
        user: UserId(format!("user-{}", USERS.fetch_add(1, Ordering::Relaxed)).into()),
        agent: AgentId::parse("bank").unwrap(),
        server: ServerId::parse("notes").unwrap(),
        id: CredentialId::new(),
        generation: 1,
    };
    put(keys, db, &credential, plaintext, None).await.unwrap();
    credential
}

/// The same with another plaintext, one generation later.
async fn replaced(
    keys: &Keys,
    db: &Db,
    before: &CredentialRef,
    plaintext: &str,
) -> Result<CredentialRef, Error> {
    let credential = CredentialRef {
        generation: before.generation + 1,
        ..before.clone()
    };
    put(keys, db, &credential, plaintext, Some(before.generation)).await?;
    Ok(credential)
}

async fn put(
    keys: &Keys,
    db: &Db,
    credential: &CredentialRef,
    plaintext: &str,
    replaces: Option<u64>,
) -> Result<(), Error> {
    let (tenant, secret) = (credential.tenant, Secret::new(plaintext));
    let sealed = keys
        .seal(tenant, &contexts::of_credential(credential), &secret)
        .await?;
    let mut tx = db.tenant(tenant).await?;
    store::credentials::put(&mut tx, credential, &sealed, replaces).await?;
    tx.commit().await
}

/// The credential as it is stored now, without its content.
async fn stored(db: &Db, credential: &CredentialRef) -> CredentialMeta {
    let mut tx = db.tenant(credential.tenant).await.unwrap();
    let all = store::credentials::list_of_user(&mut tx, &credential.agent, &credential.user)
        .await
        .unwrap();
    let found = all.into_iter().find(|meta| meta.id == credential.id);
    found.unwrap()
}

/// What is stored of its content.
async fn sealed(db: &Db, credential: &CredentialRef) -> Vec<u8> {
    let mut tx = db.tenant(credential.tenant).await.unwrap();
    store::credentials::get_sealed(&mut tx, credential.id, credential.generation)
        .await
        .unwrap()
        .unwrap()
}

/// Why it needs its user's attention.
async fn reason(test: &TestDb, credential: &CredentialRef) -> Option<String> {
    sqlx::query_scalar("select reason from credentials where id = $1")
        .bind(credential.id.0)
        .fetch_one(&mut test.as_tenant(credential.tenant).await)
        .await
        .unwrap()
}

/// The plaintext of a credential as it is stored now.
async fn opened(keys: &Keys, db: &Db, credential: &CredentialRef) -> Result<String, Error> {
    let credential = CredentialRef {
        generation: stored(db, credential).await.generation,
        ..credential.clone()
    };
    let secret = keys.open_credential(&credential).await?;
    Ok(secret.expose().to_owned())
}

/// Version, key of the ring and state of each key of a tenant.
async fn tenant_keys(test: &TestDb, tenant: TenantId) -> Vec<(i32, String, String)> {
    sqlx::query_as("select version, kek_id, state from tenant_keys order by version")
        .fetch_all(&mut test.as_tenant(tenant).await)
        .await
        .unwrap()
}

fn version(number: i32, kek: &str, state: &str) -> (i32, String, String) {
    (number, kek.to_owned(), state.to_owned())
}

/// Id and state of each key of the ring.
async fn known(test: &TestDb) -> Vec<(String, String)> {
    sqlx::query_as("select id, state from keks order by id")
        .fetch_all(&mut test.as_system().await)
        .await
        .unwrap()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(id, state)| ((*id).to_owned(), (*state).to_owned()))
        .collect()
}

#[tokio::test]
async fn what_one_replica_seals_another_opens() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let (one, two) = (
        Replica::start(&test, &["k1"]).await,
        Replica::start(&test, &["k1"]).await,
    );
    let credential = entered(&one.keys, &test.db, tenant, "a token").await;
    assert_eq!(
        opened(&two.keys, &test.db, &credential).await.unwrap(),
        "a token"
    );
}

#[tokio::test]
async fn replicas_that_seal_at_once_agree_on_one_key_of_the_tenant() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let replicas = [
        Replica::start(&test, &["k1"]).await,
        Replica::start(&test, &["k1"]).await,
    ];
    let seals = (0..12).map(|at| entered(&replicas[at % 2].keys, &test.db, tenant, "a token"));
    for credential in futures_util::future::join_all(seals).await {
        assert_eq!(
            opened(&replicas[0].keys, &test.db, &credential)
                .await
                .unwrap(),
            "a token"
        );
    }
    assert_eq!(
        tenant_keys(&test, tenant).await,
        [version(1, "k1", "sealing")]
    );
}

#[tokio::test]
async fn each_tenant_has_a_key_of_its_own() {
    let test = TestDb::new().await;
    let (acme, globex) = (test.tenant("acme").await, test.tenant("globex").await);
    let replica = Replica::start(&test, &["k1"]).await;
    let ours = entered(&replica.keys, &test.db, acme, "ours").await;
    entered(&replica.keys, &test.db, globex, "theirs").await;
    // Carried over with its context, it does not open: the other tenant's version 1 is another key.
    let theirs = sealed(&test.db, &ours).await;
    let stolen = CredentialRef {
        tenant: globex,
        ..ours
    };
    let error = replica
        .keys
        .open(globex, &contexts::of_credential(&stolen), &theirs)
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the stored value cannot be opened: it was sealed with another key"
    );
}

#[tokio::test]
async fn a_context_of_another_tenant_is_not_sealed_for() {
    let test = TestDb::new().await;
    let (acme, globex) = (test.tenant("acme").await, test.tenant("globex").await);
    let replica = Replica::start(&test, &["k1"]).await;
    let ours = entered(&replica.keys, &test.db, acme, "ours").await;
    let sealed = replica
        .keys
        .seal(globex, &contexts::of_credential(&ours), &Secret::new("x"))
        .await;
    assert!(matches!(sealed, Err(Error::Internal(_))), "{sealed:?}");
}

#[tokio::test]
async fn without_a_ring_nothing_is_sealed_and_the_error_says_what_to_do() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let ours = entered(
        &Replica::start(&test, &["k1"]).await.keys,
        &test.db,
        tenant,
        "ours",
    )
    .await;
    let keys = Keys::new(test.db.clone(), None);
    let error = keys
        .seal(tenant, &contexts::of_credential(&ours), &Secret::new("x"))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("set MCP_CONFIG_ENCRYPTION_KEY to 64 hex digits"),
        "{error}"
    );
    // It may open with the right ring, so it is not put aside.
    assert!(matches!(
        opened(&keys, &test.db, &ours).await,
        Err(Error::Unavailable(_))
    ));
    assert_eq!(stored(&test.db, &ours).await.state, CredentialState::Active);
}

#[tokio::test]
async fn a_damaged_row_is_put_aside_and_kept() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let replica = Replica::start(&test, &["k1"]).await;
    let good = entered(&replica.keys, &test.db, tenant, "good").await;
    let bad = entered(&replica.keys, &test.db, tenant, "bad").await;
    damage(&test, &bad).await;
    let error = opened(&replica.keys, &test.db, &bad).await.unwrap_err();
    assert!(
        matches!(&error, Error::Conflict(_, why) if why.contains("enter it again")),
        "{error:?}"
    );
    let kept = stored(&test.db, &bad).await;
    assert_eq!(kept.state, CredentialState::Quarantined);
    let why = reason(&test, &bad).await.unwrap();
    assert!(why.starts_with("it was altered"), "{why}");
    assert_eq!(kept.generation, bad.generation);
    assert_eq!(
        opened(&replica.keys, &test.db, &good).await.unwrap(),
        "good"
    );
    // Entered again, it is as good as new.
    replaced(&replica.keys, &test.db, &bad, "better")
        .await
        .unwrap();
    assert_eq!(
        opened(&replica.keys, &test.db, &bad).await.unwrap(),
        "better"
    );
}

/// Changes one bit of what is stored.
async fn damage(test: &TestDb, credential: &CredentialRef) {
    sqlx::query("update credentials set sealed = set_byte(sealed, 90, get_byte(sealed, 90) # 1) where id = $1")
        .bind(credential.id.0)
        .execute(&mut test.as_tenant(credential.tenant).await)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_replacement_counts_only_over_the_generation_that_was_seen() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let replica = Replica::start(&test, &["k1"]).await;
    let first = entered(&replica.keys, &test.db, tenant, "one").await;
    let tries =
        ["two", "three"].map(|plaintext| replaced(&replica.keys, &test.db, &first, plaintext));
    let done = futures_util::future::join_all(tries).await;
    let conflicts = done
        .iter()
        .filter(|done| matches!(done, Err(Error::Conflict(..))))
        .count();
    assert_eq!(
        (conflicts, done.iter().filter(|done| done.is_ok()).count()),
        (1, 1)
    );
    assert!(matches!(
        put(&replica.keys, &test.db, &first, "four", None).await,
        Err(Error::Conflict(..))
    ));
    assert_eq!(stored(&test.db, &first).await.generation, 2);
}

#[tokio::test]
async fn a_state_is_set_on_the_generation_that_was_seen() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let replica = Replica::start(&test, &["k1"]).await;
    let first = entered(&replica.keys, &test.db, tenant, "one").await;
    replaced(&replica.keys, &test.db, &first, "two")
        .await
        .unwrap();
    for (generation, state) in [(1, CredentialState::Active), (2, CredentialState::Rejected)] {
        let mut tx = test.db.tenant(tenant).await.unwrap();
        let rejected = CredentialState::Rejected;
        let set = store::credentials::mark(&mut tx, first.id, generation, rejected, "401").await;
        assert_eq!(set.unwrap(), generation == 2);
        tx.commit().await.unwrap();
        assert_eq!(stored(&test.db, &first).await.state, state);
    }
}

#[tokio::test]
async fn a_user_lists_and_removes_what_is_theirs() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let replica = Replica::start(&test, &["k1"]).await;
    let ours = entered(&replica.keys, &test.db, tenant, "ours").await;
    let theirs = entered(&replica.keys, &test.db, tenant, "theirs").await;
    let other = AgentId::parse("office").unwrap();
    let mut tx = test.db.tenant(tenant).await.unwrap();
    for (user, agent, found) in [
        (&ours.user, &ours.agent, Some(ours.id)),
        (&ours.user, &other, None),
    ] {
        let listed = store::credentials::list_of_user(&mut tx, agent, user).await;
        let ids: Vec<_> = listed.unwrap().iter().map(|meta| meta.id).collect();
        assert_eq!(ids, Vec::from_iter(found));
    }
    let elsewhere = Some((&other, &ours.server));
    let removed = store::credentials::delete(&mut tx, &ours.user, elsewhere).await;
    assert!(removed.unwrap().is_empty());
    let removed =
        store::credentials::delete(&mut tx, &ours.user, Some((&ours.agent, &ours.server))).await;
    let removed = removed.unwrap();
    let credentials: Vec<_> = removed.iter().map(|removed| &removed.credential).collect();
    assert_eq!(credentials, [&ours]);
    assert!(removed[0].tokens.is_none(), "it was no sign-in");
    let left = store::credentials::list_of_user(&mut tx, &ours.agent, &ours.user).await;
    assert_eq!(left.unwrap(), []);
    let left = store::credentials::list_of_user(&mut tx, &theirs.agent, &theirs.user).await;
    assert_eq!(left.unwrap().len(), 1);
}

#[tokio::test]
async fn a_tenant_leaves_with_its_keys_and_credentials() {
    let test = TestDb::new().await;
    let (acme, globex) = (test.tenant("acme").await, test.tenant("globex").await);
    let replica = Replica::start(&test, &["k1"]).await;
    entered(&replica.keys, &test.db, acme, "ours").await;
    let theirs = entered(&replica.keys, &test.db, globex, "theirs").await;
    accounts::remove_tenant(&test.db, acme).await.unwrap();
    assert_eq!(tenant_keys(&test, acme).await, []);
    assert_eq!(
        opened(&replica.keys, &test.db, &theirs).await.unwrap(),
        "theirs"
    );
}
