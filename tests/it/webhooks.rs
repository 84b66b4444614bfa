//! Webhooks: signed, sent again until they are heard, and never where they must not go.

mod admin; // making, listing, testing, removing
mod sending; // the outbox and its way out

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use axum::{body::Body, response::Response as Answer};
use domain::ids::TenantId;
use serde_json::{Value, json};
use store::Db;

use crate::support::{
    client::Client,
    db::TestDb,
    origin::{Origin, Seen},
    wait::eventually,
    world::World,
};

/// A receiver at a socket of its own. It answers as it is told, then 200.
pub struct Receiver {
    origin: Origin,
    answers: Arc<Mutex<VecDeque<Answer>>>,
}

impl Receiver {
    pub async fn start() -> Self {
        let answers = Arc::<Mutex<VecDeque<Answer>>>::default();
        let next = answers.clone();
        let origin = Origin::start(move |_| {
            next.lock()
                .unwrap()
                .pop_front()
                .unwrap_or_else(|| answer(200))
        })
        .await;
        Self { origin, answers }
    }

    fn will_answer(&self, answer: Answer) {
        self.answers.lock().unwrap().push_back(answer);
    }

    fn seen(&self) -> Vec<Seen> {
        self.origin.seen()
    }

    /// Waits until so many requests came; all of them.
    pub async fn heard(&self, count: usize) -> Vec<Seen> {
        eventually(async || self.seen().len() >= count).await;
        self.seen()
    }

    pub fn url(&self) -> String {
        self.origin.url("/hook").into()
    }
}

fn answer(status: u16) -> Answer {
    Answer::builder()
        .status(status)
        .body(Body::empty())
        .unwrap()
}

fn header(seen: &Seen, name: &str) -> String {
    seen.headers[name].to_str().unwrap().to_owned()
}

/// A webhook of the tenant: its id and secret.
pub async fn hook(admin: &Client, url: &str, events: &[&str]) -> (String, String) {
    let made = admin
        .post(
            "/v1/admin/webhooks",
            json!({ "url": url, "events": events }),
        )
        .await
        .expect(201);
    (
        made["id"].as_str().unwrap().to_owned(),
        made["secret"].as_str().unwrap().to_owned(),
    )
}

/// Something happens.
async fn happens(db: &Db, tenant: TenantId, event: &str, payload: &Value) {
    let mut tx = db.tenant(tenant).await.unwrap();
    store::webhooks::enqueue(&mut tx, tenant, event, payload)
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

/// The time has come for everything that waits.
async fn hurry(db: &TestDb, tenant: TenantId) {
    sqlx::query(
        "update webhook_deliveries set next_attempt_at = now() where next_attempt_at is not null",
    )
    .execute(&mut db.as_tenant(tenant).await)
    .await
    .unwrap();
}

/// What the API says of the messages to a webhook, newest first.
async fn deliveries(admin: &Client, id: &str) -> Vec<Value> {
    let page = admin
        .get(&format!("/v1/admin/webhooks/{id}/deliveries"))
        .await
        .expect(200);
    page["items"].as_array().unwrap().clone()
}

/// Waits until the newest message to a webhook has been tried so often; what became of it.
async fn tried(admin: &Client, id: &str, times: u64) -> Value {
    let mut seen = Value::Null;
    eventually(async || {
        seen = deliveries(admin, id)
            .await
            .into_iter()
            .next()
            .unwrap_or_default();
        let settled = !seen["last_status"].is_null() || !seen["last_error"].is_null();
        seen["attempts"].as_u64() >= Some(times) && settled
    })
    .await;
    seen
}

/// A world, its admin, a receiver, and a webhook for all events of approvals.
async fn told() -> (World, Client, Receiver, String) {
    let (world, receiver) = (World::start().await, Receiver::start().await);
    let admin = world.admin().await;
    let (id, _) = hook(&admin, &receiver.url(), &["approval.*"]).await;
    (world, admin, receiver, id)
}
