//! What the operator and a tenant's admins do over the API: tenants, keys, issuers, users.

mod access; // who may use which tool
mod issuers; // who may vouch for users
mod keys; // made, listed, revoked
mod limits; // a tenant's own limits of a day
mod replicas; // who is at work
mod sources; // whose users are the same, and whose addresses count
mod suspended; // a tenant on hold, and one that is removed
mod tenants; // the operator's routes
mod users; // who has been seen, and an end to it

use domain::{ids::TenantId, secret::Secret};
use http::Method;
use serde_json::Value;

use super::support::{
    client::{Answer, Client},
    world::{Setup, World},
};

/// What the operator of these tests is known by.
const TOKEN: &str = "operator-token-of-the-tests-0123456789";

async fn world() -> World {
    world_with(|_| {}).await
}

async fn world_with(change: impl FnOnce(&mut Setup)) -> World {
    World::with(|setup| {
        with_operator(setup);
        change(setup);
    })
    .await
}

/// Lets the operator in.
pub fn with_operator(setup: &mut Setup) {
    setup.config.operator_token = Some(Secret::new(TOKEN));
}

pub fn operator(world: &World) -> Client {
    world.client(&Secret::new(TOKEN))
}

pub async fn patch(client: &Client, path: &str, body: Value) -> Answer {
    client
        .send(client.request(Method::PATCH, path).json(&body))
        .await
}

/// Actor, action and detail of a tenant's trail, calls and the like left out, the oldest first.
async fn trail(world: &World, tenant: TenantId, actions: &str) -> Vec<(String, String, String)> {
    let sql =
        "select actor, action, coalesce(detail, '') from audit where action like $1 order by id";
    sqlx::query_as(sql)
        .bind(actions)
        .fetch_all(&mut world.db.as_tenant(tenant).await)
        .await
        .unwrap()
}

fn line(actor: &str, action: &str, detail: &str) -> (String, String, String) {
    (actor.to_owned(), action.to_owned(), detail.to_owned())
}

/// One field of every item.
fn field(page: &Value, name: &str) -> Vec<String> {
    page["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item[name].as_str().unwrap_or_default().to_owned())
        .collect()
}
