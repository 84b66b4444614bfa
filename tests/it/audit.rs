//! The audit trail: what is in it, with what it records or not at all; who may read it; and that nobody changes it.

mod reading; // over the API and on the command line

use chatelaine::app::{
    accounts::{self, NewKey},
    platform::{
        audit::{of_operator, of_tenant},
        keys::{Keys, replica_keys, rewrap, rotation},
    },
};
use domain::{
    account::{Issuer, IssuerKeys, KeyKind},
    audit::{Filter, Line},
    clock::Clock,
    ids::{IssuerId, KekId, ReplicaId, TenantId, UserId},
    principal::{Scope, Scopes},
    ring::KeyRing,
    secret::Secret,
};
use serde_json::json;
use sqlx::AssertSqlSafe;
use store::{Db, vault::Context};
use uuid::Uuid;

use crate::support::{
    bank::{approval_by, pair, payment},
    db::TestDb,
    notes::Notes,
    wait::eventually,
    world::World,
};

/// The whole trail of a tenant, oldest first.
async fn trail(db: &Db, tenant: TenantId) -> Vec<Line> {
    let mut lines = of_tenant(db, tenant, &Filter::default(), None, 1000)
        .await
        .unwrap();
    lines.reverse();
    lines
}

async fn actions(db: &Db, tenant: TenantId) -> Vec<String> {
    trail(db, tenant)
        .await
        .into_iter()
        .map(|line| line.action)
        .collect()
}

fn new_key(name: &str) -> NewKey {
    let speaker = KeyKind::Service(serde_json::Map::new());
    NewKey {
        source: domain::account::SourceSettings::default(),
        name: name.to_owned(),
        scopes: Scopes::new([Scope::Chat]),
        speaker,
        chat: domain::account::ChatSettings::default(),
        expires_at: None,
    }
}

/// Waits for the lines of calls, which are written in batches.
async fn calls(world: &World, count: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    eventually(async || {
        lines = trail(&world.db.db, world.tenant.id).await;
        lines.retain(|line| line.action == "tool.call");
        lines.len() >= count
    })
    .await;
    lines
}

#[tokio::test]
async fn what_an_operator_does_to_a_tenant_is_in_its_trail_without_any_secret() {
    let test = TestDb::new().await;
    let (db, clock) = (&test.db, Clock::System);
    let tenant = accounts::add_tenant(db, &clock, "acme", None, false)
        .await
        .unwrap()
        .id;
    let issuer = Issuer {
        id: IssuerId::new(),
        tenant,
        issuer: "https://idp.example".to_owned(),
        audience: "chat".to_owned(),
        algorithm: "HS256".to_owned(),
        keys: IssuerKeys::SecretEnv("IDP_SECRET".to_owned()),
        source: domain::account::UserSource::default(),
        of_tenant: None,
    };
    accounts::add_issuer(
        db,
        issuer.clone(),
        &domain::account::SourceSettings::default(),
    )
    .await
    .unwrap();
    accounts::remove_issuer(db, tenant, &issuer.issuer, None)
        .await
        .unwrap();
    let first = accounts::create_key(db, &clock, tenant, new_key("nightly"))
        .await
        .unwrap();
    let second = accounts::rotate_key(
        db,
        &clock,
        tenant,
        "nightly",
        after(time::Duration::hours(1)),
    )
    .await
    .unwrap();
    accounts::revoke_key(db, tenant, "nightly").await.unwrap();
    let lines = trail(db, tenant).await;
    let seen: Vec<_> = lines
        .iter()
        .map(|line| (line.action.as_str(), line.detail.as_deref().unwrap()))
        .collect();
    let (one, two) = (&first.key.prefix, &second.key.prefix);
    assert_eq!(
        seen,
        [
            ("tenant.created", "acme"),
            ("issuer.stored", "https://idp.example for chat, HS256"),
            ("issuer.removed", "https://idp.example"),
            (
                "key.created",
                format!("nightly ({one}): service, chat").as_str()
            ),
            (
                "key.rotated",
                format!("nightly ({two}): service, chat, in place of {one}").as_str()
            ),
            ("key.revoked", "nightly: 2"),
        ]
    );
    assert!(
        lines
            .iter()
            .all(|line| line.actor == "operator" && line.outcome == "succeeded"),
        "{lines:?}"
    );
    let written = serde_json::to_string(&lines).unwrap();
    for issued in [first, second] {
        let secret = issued
            .secret
            .expose()
            .rsplit('_')
            .next()
            .unwrap()
            .to_owned();
        assert!(!written.contains(&secret), "{written}");
    }
}

#[tokio::test]
async fn a_tenants_end_stays_in_the_operators_trail() {
    let test = TestDb::new().await;
    let tenant = accounts::add_tenant(&test.db, &Clock::System, "acme", None, false)
        .await
        .unwrap()
        .id;
    accounts::remove_tenant(&test.db, tenant).await.unwrap();
    accounts::remove_tenant(&test.db, tenant).await.unwrap_err();
    let seen: Vec<_> = of_operator(&test.db, None, 10).await.unwrap();
    let seen: Vec<_> = seen
        .iter()
        .map(|line| (line.action.as_str(), line.detail.clone().unwrap()))
        .collect();
    assert_eq!(
        seen,
        [
            ("tenant.removed", tenant.to_string()),
            ("tenant.created", format!("acme ({tenant})"))
        ]
    );
}

#[tokio::test]
async fn what_was_not_done_is_not_in_the_trail() {
    let test = TestDb::new().await;
    let (db, clock) = (&test.db, Clock::System);
    let tenant = accounts::add_tenant(db, &clock, "acme", None, false)
        .await
        .unwrap()
        .id;
    accounts::create_key(db, &clock, tenant, new_key("nightly"))
        .await
        .unwrap();
    let before = actions(db, tenant).await;
    accounts::create_key(db, &clock, tenant, new_key("nightly"))
        .await
        .unwrap_err();
    accounts::revoke_key(db, tenant, "unknown")
        .await
        .unwrap_err();
    accounts::remove_issuer(db, tenant, "https://unknown.example", None)
        .await
        .unwrap_err();
    accounts::add_tenant(db, &clock, "acme", None, false)
        .await
        .unwrap_err();
    assert_eq!(actions(db, tenant).await, before);
    assert_eq!(of_operator(db, None, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn each_step_of_a_rotation_is_in_the_trail_of_whom_it_concerns() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let ring = |ids: &[&str]| {
        let entries: Vec<_> = ids
            .iter()
            .map(|id| format!("{id}:{}", id.trim_start_matches('k').repeat(64)))
            .collect();
        KeyRing::parse(&entries.join(",")).unwrap()
    };
    let k = |id: &str| KekId::parse(id).unwrap();
    let replica = (
        Keys::new(test.db.clone(), Some(ring(&["k1"]))),
        ReplicaId::new(),
    );
    replica_keys::register(&replica.0, replica.1).await.unwrap();
    let context = Context {
        tenant,
        user: UserId("ann".into()),
        scope: "bank/notes".to_owned(),
        credential: Uuid::now_v7(),
        generation: 1,
    };
    replica
        .0
        .seal(tenant, &context, &Secret::new("a token"))
        .await
        .unwrap();
    replica_keys::leave(&replica.0, replica.1).await;
    let operator = Keys::new(test.db.clone(), Some(ring(&["k1", "k2"])));
    rotation::add(&operator, &k("k2")).await.unwrap();
    rotation::promote(&operator, &k("k2")).await.unwrap();
    rewrap::rewrap(&operator, 10, |_| ()).await.unwrap();
    rotation::retire(&operator, &k("k1")).await.unwrap();
    // Once more: nothing is done, so nothing is said.
    rotation::add(&operator, &k("k2")).await.unwrap();
    rotation::retire(&operator, &k("k1")).await.unwrap();
    let mut ring_lines = of_operator(&test.db, None, 100).await.unwrap();
    ring_lines.reverse();
    let seen: Vec<_> = ring_lines
        .iter()
        .map(|line| {
            (
                line.actor.as_str(),
                line.action.as_str(),
                line.detail.as_deref().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("system", "kek.added", "k1"),
            ("system", "kek.promoted", "k1"),
            ("operator", "kek.added", "k2"),
            ("operator", "kek.promoted", "k2"),
            ("operator", "kek.retired", "k1"),
        ]
    );
    let lines = trail(&test.db, tenant).await;
    let seen: Vec<_> = lines
        .iter()
        .map(|line| (line.action.as_str(), line.detail.as_deref().unwrap()))
        .collect();
    assert_eq!(
        seen,
        [
            ("tenant_key.created", "version 1, wrapped with k1"),
            ("tenant_key.created", "version 2, wrapped with k2"),
            ("tenant_key.rewrapped", "1, with k2"),
        ]
    );
}

#[tokio::test]
async fn the_life_of_a_credential_is_in_the_trail_and_its_values_are_not() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    let path = "/v1/agents/notes/connections/notes";
    let enter = async |token: &str| {
        let request = ann
            .request(http::Method::PUT, path)
            .json(&json!({ "fields": { "token": token } }));
        ann.send(request).await.status
    };
    assert_eq!(enter("reader-token-1").await, 200);
    assert_eq!(enter("not-a-token").await, 422);
    assert_eq!(enter("reader-token-2").await, 200);
    notes.revoke("reader-token-2");
    ann.post(&format!("{path}/test"), json!({}))
        .await
        .expect(200);
    notes.grant("reader-token-2", "reader2", &["read"]);
    ann.post(&format!("{path}/test"), json!({}))
        .await
        .expect(200);
    ann.delete(path).await.expect(204);
    ann.delete(path).await.expect(204);
    let mut lines = trail(&world.db.db, world.tenant.id).await;
    lines.retain(|line| line.action.starts_with("credential."));
    let seen: Vec<_> = lines
        .iter()
        .map(|line| (line.action.as_str(), line.detail.as_deref()))
        .collect();
    assert_eq!(
        seen,
        [
            ("credential.stored", Some("generation 1")),
            ("credential.replaced", Some("generation 2")),
            ("credential.rejected", Some("unauthorized")),
            ("credential.accepted", None),
            ("credential.removed", None),
        ]
    );
    for line in &lines {
        let place = (
            line.actor.as_str(),
            line.agent.as_deref(),
            line.server.as_deref(),
        );
        assert_eq!(place, ("ann", Some("notes"), Some("notes")));
    }
    let text = serde_json::to_string(&lines).unwrap();
    assert!(!text.contains("token"), "{text}");
}

#[tokio::test]
async fn a_deleted_conversation_is_in_the_trail_by_its_id() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    ann.delete(&format!("/v1/conversations/{id}"))
        .await
        .expect(204);
    ann.delete(&format!("/v1/conversations/{id}"))
        .await
        .expect(404);
    let mut lines = trail(&world.db.db, world.tenant.id).await;
    lines.retain(|line| line.action == "conversation.deleted");
    let [line] = &lines[..] else {
        panic!("{lines:?}")
    };
    assert_eq!(
        (line.actor.as_str(), line.agent.as_deref()),
        ("ann", Some("bank"))
    );
    assert_eq!(line.detail.as_deref(), Some(id.as_str()));
}

#[tokio::test]
async fn a_call_that_its_callers_own_role_approved_is_told_apart() {
    let world = World::with(|setup| setup.change_server(approval_by("finance"))).await;
    world.tools_ready().await;
    let fin = world.user("fin", &["finance"]).await;
    let id = fin.open("bank").await;
    fin.say_and_wait(&id, &format!("/call bank send_money {}", payment("1.00")))
        .await;
    fin.say_and_wait(&id, &format!("/call bank get_exchange_rate {}", pair()))
        .await;
    let lines = calls(&world, 2).await;
    let seen: Vec<_> = lines
        .iter()
        .map(|line| (line.tool.as_deref().unwrap(), line.detail.as_deref()))
        .collect();
    assert_eq!(
        seen,
        [
            ("send_money", Some("self-approved")),
            ("get_exchange_rate", None)
        ]
    );
}

#[tokio::test]
async fn nobody_changes_or_removes_a_line() {
    let test = TestDb::new().await;
    let tenant = accounts::add_tenant(&test.db, &Clock::System, "acme", None, false)
        .await
        .unwrap()
        .id;
    let mut connections = [
        ("audit", test.as_tenant(tenant).await),
        ("operator_audit", test.as_system().await),
    ];
    for (table, connection) in &mut connections {
        for sql in [
            format!("update {table} set actor = 'x'"),
            format!("delete from {table}"),
            format!("truncate {table}"),
        ] {
            let error = sqlx::query(AssertSqlSafe(sql.clone()))
                .execute(&mut *connection)
                .await
                .unwrap_err();
            assert_eq!(
                error.as_database_error().unwrap().code().unwrap(),
                "42501",
                "{sql}: {error}"
            );
        }
    }
    assert_eq!(actions(&test.db, tenant).await, ["tenant.created"]);
    assert_eq!(of_operator(&test.db, None, 10).await.unwrap().len(), 1);
}

/// The first key ends after this time.
fn after(overlap: time::Duration) -> accounts::KeyRotation {
    accounts::KeyRotation {
        overlap,
        ..accounts::KeyRotation::default()
    }
}
