//! Sealing, opening, and bringing everything along to a new key.

use std::time::Duration;

use chatelaine::app::platform::keys::{Keys, contexts, replica_keys, rewrap, rotation};
use domain::{
    clock,
    credential::CredentialRef,
    ids::{AgentId, CredentialId, KekId, ReplicaId, ServerId, TenantId, UserId},
    ring::KeyRing,
    secret::Secret,
};
use store::vault::{self, TenantKey};

use super::{
    support::db::TestDb,
    table::{Amount::Time, Target::AtMost, repeat, row},
};

const TENANTS: usize = 20;
const RECORDS: usize = 1_000;
/// What a user enters: two fields, as JSON.
const PLAINTEXT: &str =
    r#"{"url":"https://notes.example.org/mcp","token":"ghp_16C7e42F292c6912E7710c838347Ae178B4a"}"#;

pub async fn measure() {
    let target = AtMost(Time(Duration::from_micros(15)));
    let (key, credential, secret) = (
        TenantKey::generate(1),
        credential(TenantId::new(), 0),
        Secret::new(PLAINTEXT),
    );
    let context = contexts::of_credential(&credential);
    let seal = repeat(50, 2_000, || vault::seal(&key, &context, &secret));
    let remark = format!(
        "{} bytes; slowest round {}",
        PLAINTEXT.len(),
        Time(seal.percentile(100))
    );
    row("seal a credential", &target, Time(seal.median()), &remark);
    let sealed = vault::seal(&key, &context, &secret);
    let open = repeat(50, 2_000, || vault::open(&key, &context, &sealed).unwrap());
    let remark = format!("slowest round {}", Time(open.percentile(100)));
    row("open a credential", &target, Time(open.median()), &remark);
    rotate().await;
}

async fn rotate() {
    let test = TestDb::new().await;
    let ring = KeyRing::parse(&format!("k1:{},k2:{}", "1f".repeat(32), "2f".repeat(32))).unwrap();
    let keys = Keys::new(test.db.clone(), Some(ring));
    replica_keys::register(&keys, ReplicaId::new())
        .await
        .unwrap();
    for at in 0..TENANTS {
        let tenant = test.tenant(&format!("tenant-{at}")).await;
        let mut rows = Vec::new();
        for user in 0..RECORDS {
            let credential = credential(tenant, user);
            let context = contexts::of_credential(&credential);
            let sealed = keys.seal(tenant, &context, &Secret::new(PLAINTEXT)).await;
            rows.push((sealed.unwrap(), credential));
        }
        let mut tx = test.db.tenant(tenant).await.unwrap();
        for (sealed, credential) in rows {
            store::credentials::put(&mut tx, &credential, &sealed, None)
                .await
                .unwrap();
        }
        tx.commit().await.unwrap();
    }
    rotation::promote(&keys, &KekId::parse("k2").unwrap())
        .await
        .unwrap();
    let start = clock::instant();
    let done = rewrap::rewrap(&keys, rewrap::BATCH, |_| ()).await.unwrap();
    let took = start.elapsed();
    assert_eq!(done.records, (TENANTS * RECORDS) as u64);
    let each = took / u32::try_from(done.records).unwrap();
    let rate = u128::from(done.records) * 1_000 / took.as_millis();
    let remark = format!(
        "{rate} a second, of {} in {TENANTS} tenants; a database without fsync",
        done.records
    );
    row(
        "bring one record along to a new key (2,000 a second)",
        &AtMost(Time(Duration::from_micros(500))),
        Time(each),
        &remark,
    );
}

fn credential(tenant: TenantId, user: usize) -> CredentialRef {
    CredentialRef {
        tenant,
        user: UserId(format!("user-{user}").into()),
        agent: AgentId::parse("bank").unwrap(),
        server: ServerId::parse("notes").unwrap(),
        id: CredentialId::new(),
        generation: 1,
    }
}
