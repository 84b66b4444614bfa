//! Replicas behind a pooler in transaction mode. `CHATELAINE_TEST_POOLER` puts the worlds of all other tests behind one.

use domain::{config::DirectAddress, ids::ReplicaId, secret::Secret};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use store::Db;

use crate::support::{
    bank::pair,
    db::{TestDb, start},
    model::{calls, text},
    pooler::Pooler,
    replica::Replica,
    wait::eventually,
    world::World,
};

/// Two replicas behind one pooler, whose news come over the direct address or by the clock.
async fn replicas(listen: bool) -> (World, Replica, Pooler) {
    let mut pooler = None;
    let world = World::with(|setup| {
        let here = Pooler::start(&setup.database);
        setup.config.database_url = Some(here.url.clone());
        setup.config.direct_database = if listen {
            DirectAddress::At(setup.database.clone())
        } else {
            DirectAddress::Off
        };
        pooler = Some(here);
    })
    .await;
    let replica = world.replica().await;
    world.tools_ready().await;
    (world, replica, pooler.unwrap())
}

#[tokio::test]
async fn a_turn_is_heard_at_another_replica_and_nothing_is_left_in_a_session() {
    for listen in [true, false] {
        let (world, replica, pooler) = replicas(listen).await;
        let rate = calls([("bank__get_exchange_rate", pair())]);
        world.model.reply(rate).reply(text("It is fine."));
        let ann = world.user("ann", &["employee"]).await;
        let conversation = ann.open("bank").await;
        let mut events = ann.at(&replica.url).listen(&conversation, None).await;
        let run = ann.say(&conversation, "What is the rate?").await;
        let heard = events.until_run_ends(&run).await;
        assert!(heard.iter().any(|event| event.text.contains("It is fine.")));
        assert_eq!(pooler.misuse(), [""; 0]);
    }
}

#[tokio::test]
async fn a_sign_out_holds_at_another_replica() {
    for listen in [true, false] {
        let (world, replica, _pooler) = replicas(listen).await;
        let ann = world.user("ann", &[]).await;
        let there = ann.at(&replica.url);
        there.get("/v1/me").await.expect(200);
        let admin = world.admin().await;
        let out = admin.post("/v1/admin/users/ann/sign-out", json!({})).await;
        out.expect(204);
        eventually(async || there.get("/v1/me").await.status == 401).await;
    }
}

#[tokio::test]
async fn a_pooler_that_restarts_is_never_the_programs_fault() {
    let (world, _replica, pooler) = replicas(true).await;
    let ann = world.user("ann", &[]).await;
    for _ in 0..20 {
        let asked = ann.post("/v1/conversations", json!({ "agent": "bank" }));
        let (answer, ()) = tokio::join!(asked, async { pooler.restart() });
        assert!([201, 503].contains(&answer.status), "{}", answer.text);
        eventually(async || ann.get("/v1/conversations").await.status == 200).await;
    }
}

#[tokio::test]
async fn a_connection_starts_with_parameters_that_a_pooler_knows() {
    let test = TestDb::new().await;
    let pooler = Pooler::start(&test.url);
    let plain = PgConnection::connect(pooler.url.expose()).await;
    let refused = plain.unwrap_err().to_string();
    assert!(
        refused.contains("unsupported startup parameter: extra_float_digits"),
        "{refused}"
    );
    let direct = DirectAddress::At(test.url.clone());
    let db = Db::connect_within(std::time::Duration::ZERO, &pooler.url, &direct, 2, &start()).await;
    db.unwrap().close().await;
}

#[tokio::test]
async fn a_direct_address_of_another_database_is_refused() {
    let (here, there) = (TestDb::new().await, TestDb::new().await);
    let mut owner = here.as_owner().await;
    sqlx::raw_sql("drop table _sqlx_migrations")
        .execute(&mut owner)
        .await
        .unwrap();
    let connect = async |direct: &Secret| {
        let direct = DirectAddress::At(direct.clone());
        Db::connect_within(std::time::Duration::ZERO, &here.url, &direct, 2, &start()).await
    };
    let refused = connect(&there.url).await.map(drop).unwrap_err().to_string();
    assert_eq!(
        refused,
        "CHATELAINE_LISTEN_DATABASE_URL must name the database that DATABASE_URL names, and it names another"
    );
}

#[tokio::test]
async fn who_listens_through_a_pooler_is_noticed() {
    let test = TestDb::new().await;
    let pooler = Pooler::start(&test.url);
    let db = Db::connect(&pooler.url, 2).await.unwrap();
    let _hints = db.listen(ReplicaId::new()).await.unwrap().unwrap();
    assert_eq!(pooler.misuse(), [r#"LISTEN "chatelaine""#]);
}
