//! Replicas whose packs say different things about who may do what: the stricter policy decides at each of them, until
//! they agree or the operator settles which one counts.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

use chatelaine::app::platform::audit;
use domain::policy::PolicyDigest;
use http::Method;
use tempfile::TempDir;

use super::{
    executing::{APPROVED, vote_of_bob},
    limits::{call, pay},
    *,
};
use crate::{
    admin,
    support::{
        has::Has,
        model::Gate,
        program::chatelaine,
        replica::Replica,
        wait::{ended, eventually},
    },
};

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

/// A replica of a release to come, whose rules this one cannot read. Nothing is changed once this returns.
async fn add_replica_to_come(world: &World, client: &Client) {
    let written = json!({ "bank": { "rules_of": "a release to come" } }).to_string();
    sqlx::query(
        "insert into replicas (id, version, started_at, readiness, policies, policies_sha256, policies_since)
         values (gen_random_uuid(), '9.9.9', now(), '{}', $1::json, 'x', now())",
    )
    .bind(&written)
    .execute(&mut world.db.as_system().await)
    .await
    .unwrap();
    eventually(async || {
        let answer = pay(client, "1.00").await;
        answer.to_string().contains("the rules are being updated")
    })
    .await;
}

#[tokio::test]
async fn nothing_is_changed_while_the_rules_of_a_replica_cannot_be_read() {
    let world = world_with(|setup| setup.change_server(without_consent())).await;
    let ann = world.user("ann", &["employee"]).await;
    add_replica_to_come(&world, &ann).await;
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
    let digest = digest_at(&admin, &world.url, &id).await.to_string();
    let mut command = chatelaine(&["policy", "settle", "bank", &digest]);
    let said = command.env("DATABASE_URL", world.db.url.expose()).output();
    let said = said.await.unwrap();
    assert!(said.status.success(), "{said:?}");
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

#[tokio::test]
async fn what_is_approved_waits_until_the_rules_are_known_again_and_no_longer_than_its_time() {
    let world = world_with(|_| {}).await;
    let staff = Staff::of(&world).await;
    let mut requests = Vec::new();
    for amount in ["1.00", "2.00", "3.00"] {
        requests.push(asked(&staff.ann, amount).await.1);
    }
    let [pending, approved, late] = &requests[..] else {
        panic!("three requests")
    };
    add_replica_to_come(&world, &staff.ann).await;
    let refused = approve(&staff.bob, pending).await;
    refused.expect(503)["detail"].says("the rules are being updated");
    vote_of_bob(&mut world.db.as_tenant(world.tenant.id).await).await;
    change_row(
        &world,
        approved,
        &APPROVED.replace("1 minute", "10 minutes"),
    )
    .await;
    let soon = APPROVED.replace("1 minute", "1 second");
    change_row(&world, late, &soon).await;
    becomes(&staff.ann, late, "lapsed").await;
    // Somebody has tried it, and put it off.
    eventually(async || {
        let tried = "select fence > 0 from approvals where id = $1::uuid";
        sqlx::query_scalar::<_, bool>(tried)
            .bind(approved["id"].as_str().unwrap())
            .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap()
    })
    .await;
    assert_eq!(state(&staff.ann, approved).await, "approved");
    assert_eq!(state(&staff.ann, pending).await, "pending");
    assert_eq!(world.bank.executions("send_money"), 0);
    sqlx::query("delete from replicas where version = '9.9.9'")
        .execute(&mut world.db.as_system().await)
        .await
        .unwrap();
    becomes(&staff.ann, approved, "succeeded").await;
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn a_run_under_way_asks_for_the_consent_that_stricter_rules_want() {
    let world = world_with(|setup| setup.change_server(without_consent())).await;
    let gate = Gate::new();
    let reply = calls([("bank__send_money", payment("1.00"))]).gate(1, &gate);
    world.model.reply(reply);
    let ann = world.user("ann", &["employee"]).await;
    let conversation = ann.open("bank").await;
    let run = ann.say(&conversation, "the rent, please").await;
    gate.reached().await;
    let (_strict, _files) = world
        .replica_with_server(policy(json!({ "selfApproval": false })))
        .await;
    gate.open();
    ended(&ann, &run).await;
    let told = results(&world.model.last_request());
    assert!(told[0].contains("waiting for approval"), "{told:?}");
    assert_eq!(world.bank.executions("send_money"), 0);
    let mine = ann.get("/v1/approvals?role=requester").await.expect(200);
    assert_eq!(mine["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn once_a_replica_with_stricter_rules_serves_no_other_goes_by_laxer_ones() {
    let world = world_with(|setup| setup.change_server(without_consent())).await;
    let ann = world.user("ann", &["employee"]).await;
    let (_strict, _files) = world.replica_with_server(policy(json!({}))).await;
    assert!(world.app().packs.is_overridden());
    pays_with_consent(&world, &ann).await;
    assert_eq!(world.bank.executions("send_money"), 0);
}

#[tokio::test]
async fn a_pack_that_gets_laxer_at_one_replica_is_held_to_the_rules_of_the_others_at_once() {
    let world = world_with(|_| {}).await;
    let ann = world.user("ann", &["employee"]).await;
    let (strict, _files) = world.replica_with_server(json!({})).await;
    // Replicas with the same rules do not wait for each other.
    eventually(async || {
        let know_each_other =
            "select count(policies_seen) = 2 and count(distinct policies_seen) = 1 from replicas";
        sqlx::query_scalar::<_, bool>(know_each_other)
            .fetch_one(&mut world.db.as_system().await)
            .await
            .unwrap()
    })
    .await;
    world.change_server(without_consent());
    world.app().packs.reload();
    assert!(world.app().packs.is_overridden());
    pays_with_consent(&world, &ann).await;
    assert_eq!(world.bank.executions("send_money"), 0);
    strict.app.stop().await;
    eventually(async || !waits(&pay(&ann, "1.00").await)).await;
}

/// Who pays without a pause at replicas that come and go, and how many payments they have made by rules that were not to
/// be in force.
struct Load {
    people: Client,
    /// The replicas that serve.
    urls: Mutex<Vec<String>>,
    /// Odd while the stricter rules have to be in force.
    phase: AtomicU32,
    asked: AtomicUsize,
    paid: AtomicUsize,
    wrong: AtomicUsize,
}

impl Load {
    async fn go_on(&self) {
        for at in 0.. {
            let url = {
                let urls = self.urls.lock().unwrap();
                urls[at % urls.len()].clone()
            };
            let before = self.phase.load(Ordering::SeqCst);
            let answer = pay(&self.people.at(&url), "0.01").await;
            let after = self.phase.load(Ordering::SeqCst);
            self.asked.fetch_add(1, Ordering::SeqCst);
            if answer["isError"] == false && !waits(&answer) {
                self.paid.fetch_add(1, Ordering::SeqCst);
                if before == after && before % 2 == 1 {
                    self.wrong.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    }

    /// Waits until so many more have been paid, or asked for.
    async fn more(&self, of: &AtomicUsize) {
        let before = of.load(Ordering::SeqCst);
        eventually(async || of.load(Ordering::SeqCst) > before + 6).await;
    }

    /// Puts a replica in the place of another one, as an update does: the new one serves before the old one goes.
    async fn replace(
        &self,
        (old, _): (Replica, TempDir),
        (new, files): (Replica, TempDir),
    ) -> (Replica, TempDir) {
        let mut urls = self.urls.lock().unwrap().clone();
        urls.push(new.url.clone());
        self.urls.lock().unwrap().clone_from(&urls);
        self.more(&self.asked).await;
        urls.retain(|url| *url != old.url);
        *self.urls.lock().unwrap() = urls;
        self.more(&self.asked).await;
        old.app.stop().await;
        (new, files)
    }
}

#[tokio::test]
async fn no_call_is_made_by_laxer_rules_in_a_rolling_update_under_load() {
    let world = world_with(|setup| {
        setup.change_server(without_consent());
        setup.config.requests_per_minute = 100_000;
    })
    .await;
    let lax = async || world.replica_with_server(json!({})).await;
    let strict = async || world.replica_with_server(policy(json!({}))).await;
    let (one, two, three) = (lax().await, lax().await, lax().await);
    let people = world.user("ann", &["employee"]).await;
    // The world itself is no replica of the installation.
    world.app().stop().await;
    let load = Arc::new(Load {
        people,
        urls: Mutex::new([&one, &two, &three].map(|it| it.0.url.clone()).to_vec()),
        phase: AtomicU32::new(0),
        asked: AtomicUsize::new(0),
        paid: AtomicUsize::new(0),
        wrong: AtomicUsize::new(0),
    });
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let load = load.clone();
            tokio::spawn(async move { load.go_on().await })
        })
        .collect();
    load.more(&load.paid).await;
    // To stricter rules: they are in force when the first replica with them serves.
    let new = strict().await;
    load.phase.fetch_add(1, Ordering::SeqCst);
    let one = load.replace(one, new).await;
    let two = load.replace(two, strict().await).await;
    let three = load.replace(three, strict().await).await;
    // And back: until the last replica with them has gone.
    let one = load.replace(one, lax().await).await;
    let two = load.replace(two, lax().await).await;
    let new = lax().await;
    load.more(&load.asked).await;
    load.phase.fetch_add(1, Ordering::SeqCst);
    let _three = load.replace(three, new).await;
    load.more(&load.paid).await;
    for worker in workers {
        worker.abort();
    }
    assert_eq!(load.wrong.load(Ordering::SeqCst), 0);
    drop((one, two));
}

/// The digest of the policy of an agent at this world, and the request that says that it counts.
async fn settle(client: &Client, path: &str, digest: &Value) -> crate::support::client::Answer {
    let request = client
        .request(Method::PUT, path)
        .json(&json!({ "digest": digest }));
    client.send(request).await
}

#[tokio::test]
async fn the_operator_settles_it_over_rest_and_an_admin_where_no_other_tenant_has_the_agent() {
    let world = world_with(admin::with_operator).await;
    let (root, operator) = (world.admin().await, admin::operator(&world));
    let list = "/v1/admin/tenants/acme/replicas";
    let replicas = operator.get(list).await.expect(200);
    let policies = replicas["items"][0]["policies"].clone();
    assert_eq!(
        root.get("/v1/admin/replicas").await.expect(200)["items"][0]["policies"],
        policies
    );
    let (bank, office) = (&policies["bank"], &policies["office"]);

    let refused = settle(&root, "/v1/admin/agents/bank/policy", bank).await;
    refused.expect(403)["detail"].says("the operator settles");
    let path = "/v1/admin/tenants/acme/agents/bank/policy";
    let unknown = settle(&operator, path, office).await.expect(404);
    unknown["detail"].says("a replica that lives and has the rules");
    let unfit = settle(&operator, path, &json!("7c1f")).await.expect(400);
    unfit["detail"].says("hexadecimal");
    assert_eq!(settle(&operator, path, bank).await.status, 204);
    assert_eq!(
        settle(&root, "/v1/admin/agents/office/policy", office)
            .await
            .status,
        204
    );
    let strange = "/v1/admin/tenants/globex/agents/office/policy";
    settle(&operator, strange, office).await.expect(404);

    let trail = audit::of_operator(&world.db.db, None, 10).await.unwrap();
    let settled = trail.iter().filter(|line| line.action == "policy.settled");
    let who: Vec<_> = settled
        .map(|line| (line.actor.as_str(), line.detail.clone().unwrap_or_default()))
        .collect();
    let detail = |agent: &str, digest: &Value| format!("{agent} {}", digest.as_str().unwrap());
    let by_admin = format!(" by an admin of the tenant {}", world.tenant.id);
    assert_eq!(
        who,
        [
            ("root", detail("office", office) + &by_admin),
            ("operator", detail("bank", bank))
        ]
    );
}
