//! Replicas whose packs say different things about who may do what: the stricter policy decides at each of them, until
//! they agree or the operator settles which one counts.

use chatelaine::app::platform::replicas;
use domain::{ids::AgentId, policy::PolicyDigest};

use super::{
    limits::{call, pay},
    *,
};
use crate::support::wait::eventually;

/// The change of the bank's entry after which everybody pays alone.
fn without_consent() -> Value {
    json!({ "toolAccess": { "approval": null } })
}

fn waits(answer: &Value) -> bool {
    answer.to_string().contains("waits for approval")
}

/// Pays until it waits for consent, once the bank is connected; nothing is paid meanwhile.
async fn pays_with_consent(world: &World, client: &Client) {
    let before = world.bank.executions("send_money");
    let mut answers = Vec::new();
    for _ in 0..20 {
        let answer = pay(client, "1.00").await;
        if waits(&answer) {
            assert_eq!(world.bank.executions("send_money"), before);
            return;
        }
        answers.push(answer);
        sleep(Duration::from_millis(100)).await;
    }
    panic!("{answers:#?}");
}

/// The digest of the policy of the bank at a replica.
async fn digest_at(admin: &Client, url: &str, replica: &str) -> PolicyDigest {
    let list = admin.at(url).get("/v1/admin/replicas").await.expect(200);
    let items = list["items"].as_array().unwrap().iter();
    let mut items = items.filter(|item| item["id"] == replica);
    let digest = items.next().expect("it is on the list")["policies"]["bank"].clone();
    PolicyDigest::parse(digest.as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn a_replica_with_a_laxer_pack_asks_for_the_same_consent_from_its_first_call_on() {
    let world = world_with(|_| {}).await;
    let ann = world.user("ann", &["employee"]).await;
    let (lax, _files) = world.replica_with_server(without_consent()).await;
    for url in [&lax.url, &world.url] {
        pays_with_consent(&world, &ann.at(url)).await;
    }
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn a_stricter_pack_of_another_replica_counts_within_seconds_and_no_longer_than_it_lives() {
    let world = world_with(|setup| setup.change_server(without_consent())).await;
    let ann = world.user("ann", &["employee"]).await;
    let rule =
        json!([{ "tools": ["send_money"], "approvers": ["manager"], "selfApproval": false }]);
    let (strict, _files) = world
        .replica_with_server(json!({ "toolAccess": { "approval": rule } }))
        .await;
    pays_with_consent(&world, &ann.at(&strict.url)).await;
    eventually(async || waits(&pay(&ann, "2.00").await)).await;
    strict.app.stop().await;
    eventually(async || !waits(&pay(&ann, "3.00").await)).await;
}

#[tokio::test]
async fn a_tool_that_another_replica_does_not_allow_is_not_listed() {
    let world = world_with(|_| {}).await;
    let ann = world.user("ann", &["employee"]).await;
    let (other, _files) = world
        .replica_with_server(json!({ "tools": ["get_exchange_rate"] }))
        .await;
    for url in [&world.url, &other.url] {
        // An unknown tool is an error of the protocol, and no result.
        let mut is_unknown = false;
        for _ in 0..30 {
            is_unknown = pay(&ann.at(url), "1.00").await.is_null();
            if is_unknown {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
        assert!(is_unknown, "{url}");
    }
}

#[tokio::test]
async fn nothing_is_changed_while_the_rules_of_a_replica_cannot_be_read() {
    let world = world_with(|setup| setup.change_server(without_consent())).await;
    let ann = world.user("ann", &["employee"]).await;
    let written = json!({ "bank": { "rules_of": "a release to come" } }).to_string();
    sqlx::query(
        "insert into replicas (id, version, started_at, readiness, policies, policies_sha256, policies_since)
         values (gen_random_uuid(), '9.9.9', now(), '{}', $1::json, 'x', now())",
    )
    .bind(&written)
    .execute(&mut world.db.as_system().await)
    .await
    .unwrap();
    let refused = async || {
        let answer = pay(&ann, "1.00").await;
        answer.to_string().contains("the rules are being updated")
    };
    eventually(refused).await;
    let before = world.bank.executions("send_money");
    let rate = json!({ "from": "EUR", "to": "USD" });
    let read = call(&ann, "bank__get_exchange_rate", rate).await;
    assert_ne!(read["isError"], true, "{read}");
    assert_eq!(world.bank.executions("send_money"), before);
}

#[tokio::test]
async fn the_operator_settles_which_rules_count_while_a_replica_has_them() {
    let world = world_with(|_| {}).await;
    let (ann, admin) = (world.user("ann", &["employee"]).await, world.admin().await);
    let (lax, _files) = world.replica_with_server(without_consent()).await;
    pays_with_consent(&world, &ann.at(&lax.url)).await;
    let id = lax.app.replica.to_string();
    let digest = digest_at(&admin, &world.url, &id).await;
    let bank = AgentId::parse("bank").unwrap();
    replicas::settle_policy(&world.db.db, &bank, digest)
        .await
        .unwrap();
    for url in [&world.url, &lax.url] {
        eventually(async || !waits(&pay(&ann.at(url), "1.00").await)).await;
    }
    lax.app.stop().await;
    eventually(async || waits(&pay(&ann, "2.00").await)).await;
}

#[tokio::test]
async fn words_and_order_in_a_pack_do_not_change_its_rules() {
    let world = world_with(|_| {}).await;
    let admin = world.admin().await;
    let other = json!({ "summaries": { "send_money": { "en": "Pay {amount}" } } });
    let (replica, _files) = world.replica_with_server(other).await;
    let ids = [&world.app().replica, &replica.app.replica].map(ToString::to_string);
    let first = digest_at(&admin, &world.url, &ids[0]).await;
    assert_eq!(first, digest_at(&admin, &world.url, &ids[1]).await);
}
