//! The outbox and its way out, seen from the receiver's socket.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use chatelaine::app::platform::{
    keys::{Keys, rewrap::rewrap, rotation},
    webhooks::purge_old,
};
use domain::{
    clock::Clock,
    ids::{DeliveryId, KekId, WebhookId},
    ring::KeyRing,
    secret::Secret,
    webhook::{TRIES, retry_after, retry_delay, sign},
};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use store::deliveries::{DeliveryAttempt, DueDelivery};
use time::macros::datetime;

use super::{Receiver, answer, deliveries, happens, header, hook, hurry, told, tried};
use crate::support::{
    has::Has,
    origin::{ok, raw, redirect},
    wait::eventually,
    world::World,
};

#[test]
fn a_signature_is_the_one_of_the_published_example() {
    let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let signature = sign(
        &secret,
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1_614_265_330,
        r#"{"test": 2432232314}"#,
    );
    assert_eq!(
        signature.unwrap(),
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    );
}

#[test]
fn pauses_grow_are_spread_and_end() {
    let seconds = |tries, chance| retry_delay(tries, chance, None).map(|pause| pause.as_secs());
    assert_eq!((seconds(1, 0.0), seconds(1, 1.0)), (Some(4), Some(6)));
    let all: Vec<_> = (1..TRIES)
        .map(|tries| seconds(tries, 0.5).unwrap())
        .collect();
    assert!(
        all.is_sorted() && all.first() == Some(&5) && all.last() == Some(&21_600),
        "{all:?}"
    );
    assert_eq!((seconds(TRIES, 0.5), seconds(TRIES + 1, 0.5)), (None, None));
}

#[test]
fn a_receiver_may_ask_for_a_longer_pause_within_bounds() {
    let asked = |seconds| {
        retry_delay(1, 0.5, Some(Duration::from_secs(seconds)))
            .unwrap()
            .as_secs()
    };
    assert_eq!((asked(1), asked(600), asked(u64::MAX)), (5, 600, 21_600));
    let now = datetime!(2015-10-21 07:27 UTC);
    assert_eq!(retry_after("120", now), Some(Duration::from_secs(120)));
    assert_eq!(
        retry_after("Wed, 21 Oct 2015 07:28:00 GMT", now),
        Some(Duration::from_secs(60))
    );
    for none in ["soon", "-1", "Wed, 21 Oct 2015 07:26:00 GMT"] {
        assert_eq!(retry_after(none, now), None, "{none}");
    }
}

#[tokio::test]
async fn a_message_is_signed_and_says_what_happened() {
    let (world, receiver) = (World::start().await, Receiver::start().await);
    let admin = world.admin().await;
    let (id, secret) = hook(&admin, &receiver.url(), &["approval.requested"]).await;
    let payload = json!({ "code": "7F3K", "link": "https://chat.example.org/approvals/7F3K" });
    happens(
        &world.db.db,
        world.tenant.id,
        "approval.requested",
        &payload,
    )
    .await;
    let seen = &receiver.heard(1).await[0];
    assert_eq!(
        (seen.method.as_str(), seen.path.as_str()),
        ("POST", "/hook")
    );
    assert_eq!(header(seen, "content-type"), "application/json");
    let body: Value = serde_json::from_str(&seen.body).unwrap();
    assert_eq!(body["type"], "approval.requested");
    assert_eq!(body["data"], payload);
    assert!(body["timestamp"].as_str().unwrap().ends_with('Z'), "{body}");
    let (message, timestamp) = (
        header(seen, "webhook-id"),
        header(seen, "webhook-timestamp"),
    );
    let age = Clock::System.now().unix_timestamp() - timestamp.parse::<i64>().unwrap();
    assert!((0..60).contains(&age), "{age}");
    let key = STANDARD
        .decode(secret.strip_prefix("whsec_").unwrap())
        .unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(format!("{message}.{timestamp}.{}", seen.body).as_bytes());
    let signature = STANDARD
        .decode(
            header(seen, "webhook-signature")
                .strip_prefix("v1,")
                .unwrap(),
        )
        .unwrap();
    mac.verify_slice(&signature).unwrap();
    let delivery = tried(&admin, &id, 1).await;
    delivery.has(json!({ "id": message, "state": "delivered" }));
}

#[tokio::test]
async fn a_secret_outlives_the_key_that_it_was_sealed_with() {
    let (world, receiver) = (World::start().await, Receiver::start().await);
    let (_, secret) = hook(&world.admin().await, &receiver.url(), &["approval.*"]).await;
    let tenant = world.tenant.id;
    let mut stopped = world.stop().await;
    let ring = |text: &str| KeyRing::parse(text).unwrap();
    let (old, new) = (
        format!("k1:{}", "5e".repeat(32)),
        format!("k2:{}", "6f".repeat(32)),
    );
    stopped.db.db = store::Db::connect(&stopped.db.url, 2).await.unwrap();
    let operator = Keys::new(stopped.db.db.clone(), Some(ring(&format!("{old},{new}"))));
    let [k1, k2] = ["k1", "k2"].map(|id| KekId::parse(id).unwrap());
    rotation::add(&operator, &k2).await.unwrap();
    rotation::promote(&operator, &k2).await.unwrap();
    rewrap(&operator, 10, |_| ()).await.unwrap();
    rotation::retire(&operator, &k1).await.unwrap();
    let version: i32 = sqlx::query_scalar("select tenant_key_version from webhooks")
        .fetch_one(&mut stopped.db.as_tenant(tenant).await)
        .await
        .unwrap();
    assert_eq!(version, 2, "it is sealed with the tenant's new key");
    stopped.config.ring = Some(ring(&new));
    let world = stopped.start().await;
    happens(&world.db.db, tenant, "approval.requested", &json!({})).await;
    let seen = &receiver.heard(1).await[0];
    let timestamp = header(seen, "webhook-timestamp").parse().unwrap();
    let expected = sign(
        &Secret::new(secret),
        &header(seen, "webhook-id"),
        timestamp,
        &seen.body,
    )
    .unwrap();
    assert_eq!(header(seen, "webhook-signature"), expected);
}

#[tokio::test]
async fn only_events_that_were_asked_for_are_sent() {
    let (world, receiver) = (World::start().await, Receiver::start().await);
    let admin = world.admin().await;
    for (path, events) in [
        ("/one", &["approval.requested"][..]),
        ("/many", &["approval.*", "ping"]),
        ("/all", &["*"]),
    ] {
        hook(&admin, receiver.origin.url(path).as_str(), events).await;
    }
    for event in [
        "approval.requested",
        "approval.decided",
        "approvals.created",
        "approval",
    ] {
        happens(&world.db.db, world.tenant.id, event, &json!({})).await;
    }
    let mut told: Vec<(String, String)> = Vec::new();
    for seen in receiver.heard(7).await {
        let body: Value = serde_json::from_str(&seen.body).unwrap();
        told.push((seen.path, body["type"].as_str().unwrap().to_owned()));
    }
    told.sort();
    let expected = [
        ("/all", "approval"),
        ("/all", "approval.decided"),
        ("/all", "approval.requested"),
        ("/all", "approvals.created"),
        ("/many", "approval.decided"),
        ("/many", "approval.requested"),
        ("/one", "approval.requested"),
    ];
    assert_eq!(
        told,
        expected.map(|(path, event)| (path.to_owned(), event.to_owned()))
    );
}

#[tokio::test]
async fn what_was_rolled_back_is_not_told() {
    let (world, admin, receiver, id) = told().await;
    let mut tx = world.db.db.tenant(world.tenant.id).await.unwrap();
    store::webhooks::enqueue(
        &mut tx,
        world.tenant.id,
        "approval.requested",
        &json!({ "done": false }),
    )
    .await
    .unwrap();
    drop(tx);
    happens(
        &world.db.db,
        world.tenant.id,
        "approval.requested",
        &json!({ "done": true }),
    )
    .await;
    assert!(receiver.heard(1).await[0].body.contains("true"));
    assert_eq!(deliveries(&admin, &id).await.len(), 1);
}

#[tokio::test]
async fn a_message_that_was_not_taken_is_sent_again_with_the_same_id_and_body() {
    let (world, admin, receiver, id) = told().await;
    receiver.will_answer(answer(500));
    happens(
        &world.db.db,
        world.tenant.id,
        "approval.requested",
        &json!({ "code": "7F3K" }),
    )
    .await;
    let waits = tried(&admin, &id, 1).await;
    waits.has(json!({
        "state": "pending",
        "last_status": 500,
        "last_error": "the receiver answered 500",
    }));
    hurry(&world.db, world.tenant.id).await;
    let heard = receiver.heard(2).await;
    assert_eq!(
        header(&heard[0], "webhook-id"),
        header(&heard[1], "webhook-id")
    );
    assert_eq!(heard[0].body, heard[1].body);
    eventually(async || deliveries(&admin, &id).await[0]["state"] == "delivered").await;
    let done = &deliveries(&admin, &id).await[0];
    done.has(json!({ "attempts": 2, "last_status": 200 }));
    assert_eq!(done.get("last_error"), None);
}

#[tokio::test]
async fn a_receiver_that_asks_to_wait_is_waited_for() {
    let (world, admin, receiver, id) = told().await;
    let mut busy = answer(429);
    busy.headers_mut()
        .insert("retry-after", "3600".parse().unwrap());
    receiver.will_answer(busy);
    happens(
        &world.db.db,
        world.tenant.id,
        "approval.requested",
        &json!({}),
    )
    .await;
    tried(&admin, &id, 1).await;
    let waits: f64 = sqlx::query_scalar(
        "select extract(epoch from next_attempt_at - now())::float8 from webhook_deliveries",
    )
    .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
    .await
    .unwrap();
    assert!((3500.0..=3600.0).contains(&waits), "{waits}");
}

#[tokio::test]
async fn a_message_is_given_up_after_its_last_try() {
    let (world, admin, receiver, id) = told().await;
    receiver.will_answer(answer(500));
    happens(
        &world.db.db,
        world.tenant.id,
        "approval.requested",
        &json!({}),
    )
    .await;
    tried(&admin, &id, 1).await;
    sqlx::query("update webhook_deliveries set attempts = 9, next_attempt_at = now()")
        .execute(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    receiver.will_answer(answer(400));
    receiver.heard(2).await;
    eventually(async || deliveries(&admin, &id).await[0]["state"] == "failed").await;
    let given_up = &deliveries(&admin, &id).await[0];
    given_up.has(json!({ "attempts": 10, "last_status": 400 }));
    let hooks = admin.get("/v1/admin/webhooks").await.expect(200);
    let hook = &hooks["items"][0];
    assert_eq!(hook["last_error"], "the receiver answered 400");
    assert_eq!(hook.get("disabled_at"), None);
}

#[tokio::test]
async fn a_receiver_that_is_gone_is_told_nothing_any_more() {
    let (world, admin, receiver, id) = told().await;
    receiver.will_answer(answer(500));
    happens(
        &world.db.db,
        world.tenant.id,
        "approval.requested",
        &json!({}),
    )
    .await;
    tried(&admin, &id, 1).await;
    receiver.will_answer(answer(410));
    happens(
        &world.db.db,
        world.tenant.id,
        "approval.requested",
        &json!({}),
    )
    .await;
    eventually(async || {
        deliveries(&admin, &id)
            .await
            .iter()
            .all(|item| item["state"] == "failed")
    })
    .await;
    happens(
        &world.db.db,
        world.tenant.id,
        "approval.requested",
        &json!({}),
    )
    .await;
    assert_eq!(
        deliveries(&admin, &id).await.len(),
        2,
        "what happens later is not even kept"
    );
    let hooks = admin.get("/v1/admin/webhooks").await.expect(200);
    assert!(hooks["items"][0]["disabled_at"].is_string(), "{hooks}");
    admin
        .post(&format!("/v1/admin/webhooks/{id}/test"), json!({}))
        .await
        .expect(409);
    let trail = admin
        .get("/v1/admin/audit?action=webhook.disabled")
        .await
        .expect(200);
    trail["items"][0].has(json!({ "actor": "system", "detail": format!("{id}: 410") }));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (world, admin, receiver, id) = told().await;
    let elsewhere = Receiver::start().await;
    for status in [302, 307] {
        receiver.will_answer(redirect(status, &elsewhere.url()));
        happens(
            &world.db.db,
            world.tenant.id,
            "approval.requested",
            &json!({}),
        )
        .await;
        let refused = tried(&admin, &id, 1).await;
        refused.has(json!({ "state": "pending", "last_status": status }));
        let why = refused["last_error"].as_str().unwrap();
        assert_eq!(
            why,
            format!("the receiver answered {status}; redirects are not followed")
        );
    }
    assert_eq!(elsewhere.origin.accepted(), 0);
}

#[tokio::test]
async fn a_private_address_is_refused_when_the_operator_does_not_allow_it_any_more() {
    let (world, _, receiver, id) = told().await;
    let mut stopped = world.stop().await;
    stopped.config.tenant_egress_allow.clear();
    let world = stopped.start().await;
    happens(
        &world.db.db,
        world.tenant.id,
        "approval.requested",
        &json!({}),
    )
    .await;
    let refused = tried(&world.admin().await, &id, 1).await;
    assert!(
        refused["last_error"]
            .as_str()
            .unwrap()
            .starts_with("egress rejected"),
        "{refused}"
    );
    assert_eq!(receiver.origin.accepted(), 0);
}

#[tokio::test]
async fn two_replicas_send_a_message_once() {
    let (world, admin, receiver, id) = told().await;
    let _replica = world.replica().await;
    for number in 0..40 {
        happens(
            &world.db.db,
            world.tenant.id,
            "approval.requested",
            &json!({ "number": number }),
        )
        .await;
    }
    let waiting = "select count(*) from webhook_deliveries where delivered_at is null";
    eventually(async || {
        let mut db = world.db.as_tenant(world.tenant.id).await;
        sqlx::query_scalar::<_, i64>(waiting)
            .fetch_one(&mut db)
            .await
            .unwrap()
            == 0
    })
    .await;
    let mut heard: BTreeMap<String, usize> = BTreeMap::new();
    for seen in receiver.seen() {
        *heard.entry(header(&seen, "webhook-id")).or_default() += 1;
    }
    assert_eq!(heard.len(), 40);
    assert!(heard.values().all(|times| *times == 1), "{heard:?}");
    assert!(
        deliveries(&admin, &id)
            .await
            .iter()
            .all(|item| item["attempts"] == 1)
    );
}

#[tokio::test]
async fn what_waited_while_nobody_was_at_work_is_sent_after_the_start() {
    let (world, _, receiver, _) = told().await;
    let mut stopped = world.stop().await;
    stopped.db.db = store::Db::connect(&stopped.db.url, 2).await.unwrap();
    happens(
        &stopped.db.db,
        stopped.tenant.id,
        "approval.requested",
        &json!({ "code": "7F3K" }),
    )
    .await;
    assert_eq!(receiver.seen().len(), 0);
    let _world = stopped.start().await;
    assert!(receiver.heard(1).await[0].body.contains("7F3K"));
}

#[tokio::test]
async fn a_message_whose_sender_died_is_sent_when_its_lease_ends_and_the_dead_ones_word_counts_for_nothing()
 {
    let (world, _, receiver, id) = told().await;
    let tenant = world.tenant.id;
    let mut stopped = world.stop().await;
    stopped.db.db = store::Db::connect(&stopped.db.url, 2).await.unwrap();
    happens(&stopped.db.db, tenant, "approval.requested", &json!({})).await;
    let delivery: uuid::Uuid = sqlx::query_scalar("select id from webhook_deliveries")
        .fetch_one(&mut stopped.db.as_tenant(tenant).await)
        .await
        .unwrap();
    let due = DueDelivery {
        tenant,
        id: DeliveryId(delivery),
        webhook: id.parse::<WebhookId>().unwrap(),
    };
    // Long enough that a busy machine asks a second time within it.
    let lease = Duration::from_secs(1);
    let mut tx = stopped.db.db.tenant(tenant).await.unwrap();
    let dead = store::deliveries::claim(&mut tx, &due, lease)
        .await
        .unwrap()
        .unwrap();
    assert!(
        store::deliveries::claim(&mut tx, &due, lease)
            .await
            .unwrap()
            .is_none(),
        "it has one sender at a time"
    );
    tx.commit().await.unwrap();
    let world = stopped.start().await;
    receiver.heard(1).await;
    let admin = world.admin().await;
    eventually(async || deliveries(&admin, &id).await[0]["state"] == "delivered").await;
    let mut tx = world.db.db.tenant(tenant).await.unwrap();
    let late = DeliveryAttempt {
        status: Some(500),
        error: Some("late".to_owned()),
        again: None,
    };
    assert!(
        !store::deliveries::finish(&mut tx, &dead, &late)
            .await
            .unwrap()
    );
    tx.commit().await.unwrap();
    let kept = &deliveries(&admin, &id).await[0];
    kept.has(json!({ "state": "delivered", "attempts": 2 }));
}

#[tokio::test]
async fn a_receiver_that_never_answers_does_not_hold_up_the_others() {
    let (world, admin, receiver, _) = told().await;
    let silent = raw(b"", true).await;
    let (silent, _) = hook(&admin, &format!("http://{silent}/"), &["approval.*"]).await;
    for number in 0..100 {
        happens(
            &world.db.db,
            world.tenant.id,
            "approval.requested",
            &json!({ "number": number }),
        )
        .await;
    }
    receiver.heard(100).await;
    // At most two messages at a time are under way to the silent receiver, each for ten seconds.
    let waiting = deliveries(&admin, &silent).await;
    let untried = waiting.iter().filter(|item| item["attempts"] == 0).count();
    assert!(untried > waiting.len() / 2, "{waiting:?}");
}

#[tokio::test]
async fn an_answers_body_is_not_waited_for_without_end() {
    let (world, admin, receiver, id) = told().await;
    receiver.will_answer(ok(vec![b'x'; 1 << 20]));
    happens(
        &world.db.db,
        world.tenant.id,
        "approval.requested",
        &json!({}),
    )
    .await;
    receiver.heard(1).await;
    eventually(async || deliveries(&admin, &id).await[0]["state"] == "delivered").await;
}

#[tokio::test]
async fn old_messages_are_forgotten_unless_they_are_still_to_be_sent() {
    let (world, admin, receiver, id) = told().await;
    for number in 0..3 {
        happens(
            &world.db.db,
            world.tenant.id,
            "approval.requested",
            &json!({ "number": number }),
        )
        .await;
    }
    receiver.heard(3).await;
    eventually(async || {
        deliveries(&admin, &id)
            .await
            .iter()
            .all(|item| item["state"] == "delivered")
    })
    .await;
    let ids: Vec<String> = deliveries(&admin, &id)
        .await
        .iter()
        .map(|item| item["id"].as_str().unwrap().to_owned())
        .collect();
    let mut db = world.db.as_tenant(world.tenant.id).await;
    let old = "update webhook_deliveries set created_at = now() - interval '8 days' where id::text = any($1)";
    sqlx::query(old)
        .bind(&ids[..2])
        .execute(&mut db)
        .await
        .unwrap();
    let waits = "update webhook_deliveries set delivered_at = null, next_attempt_at = now() + interval '1 hour' where id::text = $1";
    sqlx::query(waits)
        .bind(&ids[1])
        .execute(&mut db)
        .await
        .unwrap();
    assert_eq!(purge_old(world.app()).await.unwrap(), 1);
    let left: Vec<_> = deliveries(&admin, &id)
        .await
        .iter()
        .map(|item| item["id"].clone())
        .collect();
    assert_eq!(left, [json!(ids[1]), json!(ids[2])]);
}
