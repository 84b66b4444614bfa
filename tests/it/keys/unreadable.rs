//! What cannot be opened: a tenant's key that cannot be read, which is the operator's trouble and marks nothing, and a
//! credential that is damaged, which is put aside and tried again by a command.

use chatelaine::{
    app::platform::keys::{Retried, mark_credential, retry_quarantined, rewrap::rewrap, rotation},
    cli::keys::Command as KeysCommand,
};
use http::Method;
use serde_json::json;

use super::*;
use crate::{
    personal::enter,
    support::{notes::Notes, program::chatelaine, world::World},
};

const UNREADABLE: &str = "the service cannot read its keys; the operator knows";
/// The key of a [`World`].
const WORLD_KEY: &str = crate::support::notes::KEY;

/// Changes one bit of a tenant's wrapped keys; the second time they are what they were.
async fn flip_tenant_keys(test: &TestDb, tenant: TenantId) {
    let sql = "update tenant_keys set wrapped = set_byte(wrapped, 90, get_byte(wrapped, 90) # 1) where tenant_id = $1 and version = 1";
    sqlx::query(sql)
        .bind(tenant.0)
        .execute(&mut test.as_tenant(tenant).await)
        .await
        .unwrap();
}

/// The same with all credentials of a tenant.
async fn flip_credentials(test: &TestDb, tenant: TenantId) {
    let sql = "update credentials set sealed = set_byte(sealed, 90, get_byte(sealed, 90) # 1) where tenant_id = $1";
    sqlx::query(sql)
        .bind(tenant.0)
        .execute(&mut test.as_tenant(tenant).await)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_tenants_key_that_cannot_be_read_marks_nothing_is_not_replaced_and_works_once_it_is_back()
{
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let before = Replica::start(&test, &["k1"]).await;
    let credential = entered(&before.keys, &test.db, tenant, "a token").await;
    flip_tenant_keys(&test, tenant).await;
    let replica = Replica::start(&test, &["k1"]).await;
    let error = opened(&replica.keys, &test.db, &credential).await;
    assert!(matches!(error, Err(Error::KeysUnreadable)), "{error:?}");
    let sealed = replaced(&replica.keys, &test.db, &credential, "another").await;
    assert!(matches!(sealed, Err(Error::KeysUnreadable)), "{sealed:?}");
    assert_eq!(replica.keys.unreadable_tenants(), 1);
    assert_eq!(
        stored(&test.db, &credential).await.state,
        CredentialState::Active
    );
    assert_eq!(
        tenant_keys(&test, tenant).await,
        [version(1, "k1", "sealing")]
    );
    flip_tenant_keys(&test, tenant).await;
    assert_eq!(
        opened(&replica.keys, &test.db, &credential).await.unwrap(),
        "a token"
    );
    assert_eq!(replica.keys.unreadable_tenants(), 0);
}

#[tokio::test]
async fn rewrap_leaves_what_a_lost_key_protects_and_goes_on_with_the_other_tenants() {
    let test = TestDb::new().await;
    let (acme, globex) = (test.tenant("acme").await, test.tenant("globex").await);
    let before = Replica::start(&test, &["k1", "k2"]).await;
    let lost = entered(&before.keys, &test.db, acme, "ours").await;
    let good = entered(&before.keys, &test.db, globex, "theirs").await;
    flip_tenant_keys(&test, acme).await;
    let operator = Keys::new(test.db.clone(), Some(ring(&["k1", "k2"])));
    rotation::promote(&operator, &kek("k2")).await.unwrap();
    let mut said = Vec::new();
    let config = domain::config::Config {
        ring: Some(ring(&["k1", "k2"])),
        ..domain::config::Config::from_environment(&domain::config::Environment::default()).unwrap()
    };
    chatelaine::cli::keys::run(
        KeysCommand::Rewrap { batch: 10 },
        &test.db,
        &config,
        &mut said,
    )
    .await
    .unwrap();
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("1 of 2 records sealed anew"), "{said}");
    assert!(
        said.contains("1 records are sealed with a key of their tenant that cannot be read"),
        "{said}"
    );
    assert_eq!(stored(&test.db, &lost).await.state, CredentialState::Active);
    // With the key back nothing is lost.
    flip_tenant_keys(&test, acme).await;
    assert_eq!(rewrap(&operator, 10, |_| ()).await.unwrap().records, 1);
    for (credential, text) in [(&lost, "ours"), (&good, "theirs")] {
        assert_eq!(opened(&operator, &test.db, credential).await.unwrap(), text);
    }
}

#[tokio::test]
async fn a_quarantined_credential_is_active_again_when_it_can_be_opened_and_not_before() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let replica = Replica::start(&test, &["k1"]).await;
    let back = entered(&replica.keys, &test.db, tenant, "back").await;
    let lost = entered(&replica.keys, &test.db, tenant, "lost").await;
    for credential in [&back, &lost] {
        damage(&test, credential).await;
        opened(&replica.keys, &test.db, credential)
            .await
            .unwrap_err();
    }
    damage(&test, &back).await;
    let retried = retry_quarantined(&replica.keys, tenant).await.unwrap();
    assert_eq!(
        retried,
        Retried {
            tried: 2,
            active: 1
        }
    );
    assert_eq!(stored(&test.db, &back).await.state, CredentialState::Active);
    assert_eq!(reason(&test, &back).await, None);
    assert_eq!(
        stored(&test.db, &lost).await.state,
        CredentialState::Quarantined
    );
}

#[tokio::test]
async fn a_candidate_that_cannot_be_opened_is_kept_and_one_that_is_refused_is_not() {
    let test = TestDb::new().await;
    let tenant = test.tenant("acme").await;
    let replica = Replica::start(&test, &["k1"]).await;
    let old = entered(&replica.keys, &test.db, tenant, "old").await;
    let newer = CredentialRef {
        generation: 2,
        ..old.clone()
    };
    let put = async || {
        let context = contexts::of_credential(&newer);
        let sealed = replica
            .keys
            .seal(tenant, &context, &Secret::new("new"))
            .await;
        let mut tx = test.db.tenant(tenant).await.unwrap();
        store::credentials::put_candidate(&mut tx, &newer, &sealed.unwrap(), 1)
            .await
            .unwrap();
        tx.commit().await.unwrap();
    };
    put().await;
    let state = CredentialState::Quarantined;
    mark_credential(&test.db, &newer, state, "damaged")
        .await
        .unwrap();
    let kept = stored(&test.db, &old).await;
    assert_eq!((kept.state, kept.candidate), (state, Some(2)));
    assert!(!kept.candidate_refused, "its server was not asked");
    let retried = retry_quarantined(&replica.keys, tenant).await.unwrap();
    assert_eq!(retried.active, 1);
    let state = CredentialState::Rejected;
    mark_credential(&test.db, &newer, state, "401")
        .await
        .unwrap();
    let kept = stored(&test.db, &old).await;
    assert_eq!(
        (kept.state, kept.candidate),
        (CredentialState::Active, None)
    );
    assert!(kept.candidate_refused);
}

#[tokio::test]
async fn a_call_that_needs_an_unreadable_key_says_so_and_works_once_the_key_is_back() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", "reader-token-1").await.expect(200);
    assert_eq!(ann.ask("notes", "/call notes whoami").await, "reader1");
    flip_tenant_keys(&world.db, world.tenant.id).await;
    // Nothing is in memory any more.
    let world = world.stop().await.start().await;
    let ann = world.user("ann", &[]).await;
    let pedro = spanish(&world).await;
    let asked = notes.count("tools/call");
    let said = ann.ask("notes", "/call notes whoami").await;
    assert_eq!(said, format!("not executed: {UNREADABLE}"));
    assert_eq!(notes.count("tools/call"), asked);
    let seen = ann
        .get("/v1/agents/notes/connections/notes")
        .await
        .expect(200);
    assert_eq!(seen["state"], "configured", "nothing of hers is marked");
    let request = ann
        .request(Method::PUT, "/v1/agents/notes/connections/notes")
        .json(&json!({ "fields": { "token": "reader-token-2" } }));
    let refused = ann.send(request).await;
    assert_eq!(refused.expect(503)["code"], "keys_unreadable");
    let chat = pedro.open("notes").await;
    pedro.say_and_wait(&chat, "/connect notes").await;
    let messages = format!("/v1/conversations/{chat}/messages");
    let token = json!({ "text": "reader-token-1" });
    let refused = pedro.post(&messages, token).await;
    assert_eq!(refused.expect(503)["code"], "keys_unreadable");
    let ready = world.nobody().get("/readyz").await.expect(200);
    assert_eq!(ready["unreadable_tenants"], 1, "{ready}");
    let metrics = world.nobody().get("/metrics").await;
    assert!(metrics.text.contains("\nchatelaine_tenants_unreadable 1"));
    flip_tenant_keys(&world.db, world.tenant.id).await;
    assert_eq!(ann.ask("notes", "/call notes whoami").await, "reader1");
    let ready = world.nobody().get("/readyz").await.expect(200);
    assert_eq!(ready["unreadable_tenants"], 0);
    let keys = tenant_keys(&world.db, world.tenant.id).await;
    assert_eq!(keys.len(), 1, "no other key was made");
}

async fn spanish(world: &World) -> crate::support::client::Client {
    let person = chatelaine::app::accounts::development::DevelopmentUser {
        user: "pedro".to_owned(),
        locale: Some("es".to_owned()),
        ..Default::default()
    };
    world.someone(&person).await
}

#[tokio::test]
async fn a_damaged_credential_is_told_as_that_and_a_command_brings_it_back_at_a_running_replica() {
    let notes = Notes::start().await;
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", "reader-token-1").await.expect(200);
    flip_credentials(&world.db, world.tenant.id).await;
    let world = world.stop().await.start().await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("notes").await;
    ann.say_and_wait(&chat, "/call notes whoami").await;
    ann.say_and_wait(&chat, "/tools").await;
    let said = json!(ann.messages(&chat).await).to_string();
    assert!(
        said.contains("can no longer be read here. notes was not asked"),
        "{said}"
    );
    assert!(!said.contains("does not accept"), "{said}");
    flip_credentials(&world.db, world.tenant.id).await;
    let output = chatelaine(&["credentials", "retry", "--tenant", &world.tenant.name])
        .env("DATABASE_URL", world.db.url.expose())
        .env("MCP_CONFIG_ENCRYPTION_KEY", WORLD_KEY)
        .output()
        .await
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed.contains("1 of 1 quarantined credentials are active again"),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    crate::support::wait::eventually(async || {
        ann.ask("notes", "/call notes whoami").await == "reader1"
    })
    .await;
}
