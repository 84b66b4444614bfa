//! Calls that wait for somebody's consent. The bank's ledger is the truth about what was executed.

mod asking; // what becomes a request, and what does not
mod conditions; // rules about some calls of a tool
mod confirmations; // what its own user is asked
mod deciding; // who decides, when, and what it does
mod entry_points; // text commands, OpenAI clients, news
mod executing; // once, or not at all
mod flow; // a frontend in TypeScript
mod kept; // calls that policies are tried with
mod limits; // how much, and how often, in a while
mod lookalikes; // tools that can be taken for a guarded one
mod lost_rights; // when a requester or an approver may not any more
mod machine; // all of it at random, against a model
mod notices; // what approvers hear where they chat
mod personal; // with everybody's own credential
mod replicas; // that have different packs
mod restored; // when the database is a backup
mod rules; // which state follows which, and codes
mod spellings; // members that another reader takes for others
mod states; // the transitions, one by one
mod terminal; // two people at their terminals

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::support::{
    bank::payment,
    client::Client,
    model::{Reply, calls, results, said, text},
    wait::eventually,
    world::{Setup, World, change_pack},
};

/// Makes an employee's transfers at the bank wait for somebody's consent.
fn ask_for_consent(setup: &mut Setup) {
    setup.change_pack(json!({
        "languages": { "en": { "greetingMessage": null } },
        "flows": { "welcome": null },
    }));
    setup.change_server(json!({
        "summaries": { "send_money": { "en": "Send {amount} {currency} to {to}", "es": "Enviar {amount} {currency} a {to}" } },
        "toolAccess": { "roles": {
            "guest": null,
            "employee": ["get_exchange_rate", "send_money"],
            "cfo": ["get_exchange_rate", "send_money"],
            "finance": null,
            "finance-manager": ["get_exchange_rate"],
        } },
    }));
    setup.change_server(policy(json!({ "timeoutMinutes": 60 })));
}

/// The change of the bank's entry after which transfers need consent under this policy.
fn policy(more: Value) -> Value {
    let mut policy = json!({ "tools": ["send_money"], "approvers": ["finance-manager", "cfo"] });
    change_pack(&mut policy, more);
    json!({ "toolAccess": { "approval": [policy] } })
}

/// A model that pays when it is asked to and says in a word what it was told of it.
fn teller(request: &Value) -> Option<Reply> {
    if said(request, "From the program") {
        return Some(text("So it ended."));
    }
    if let Some(amount) = last_words(request).strip_prefix("pay ") {
        return Some(calls([("bank__send_money", payment(amount))]));
    }
    (!results(request).is_empty()).then(|| text("It waits."))
}

/// Waits as long as a person needs to see what an answer shows.
async fn see() {
    sleep(Duration::from_millis(1100)).await;
}

/// What the user has just said; nothing when something was called since.
fn last_words(request: &Value) -> String {
    let last = request["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .clone();
    if last["role"] == "user" {
        super::support::model::text_of(&last)
    } else {
        String::new()
    }
}

async fn world() -> World {
    world_with(|_| {}).await
}

/// The same in a process that other tests share.
async fn shared_world() -> World {
    let world = World::shared_with("approvals", ask_for_consent).await;
    world.tools_ready().await;
    world.model.on(teller);
    world
}

async fn world_with(change: impl FnOnce(&mut Setup)) -> World {
    let world = World::with(|setup| {
        ask_for_consent(setup);
        change(setup);
    })
    .await;
    world.tools_ready().await;
    world.model.on(teller);
    world
}

/// Who works at the bank.
struct Staff {
    /// An employee, who asks.
    ann: Client,
    /// A finance manager.
    bob: Client,
    /// The cfo.
    carl: Client,
}

impl Staff {
    async fn of(world: &World) -> Self {
        Self {
            ann: world.user("ann", &["employee"]).await,
            bob: world.user("bob", &["finance-manager"]).await,
            carl: world.user("carl", &["cfo"]).await,
        }
    }
}

/// Somebody with a role and a language.
async fn someone(world: &World, user: &str, role: &str, locale: &str) -> Client {
    let person = chatelaine::app::accounts::development::DevelopmentUser {
        user: user.to_owned(),
        roles: vec![role.to_owned()],
        locale: Some(locale.to_owned()),
        ..Default::default()
    };
    world.someone(&person).await
}

/// Says it in a chat of an OpenAI client that waits for the whole answer.
async fn say(client: &Client, chat: &mut Vec<Value>, text: &str) -> String {
    chat.push(json!({ "role": "user", "content": text }));
    let body = json!({ "model": "bank", "messages": chat });
    let answer = client.post("/v1/chat/completions", body).await.expect(200);
    let message = answer["choices"][0]["message"].clone();
    chat.push(message.clone());
    message["content"].as_str().unwrap().to_owned()
}

/// Asks for a transfer; the conversation, and the request as its requester sees it.
async fn asked(client: &Client, amount: &str) -> (String, Value) {
    let conversation = client.open("bank").await;
    client
        .say_and_wait(&conversation, &format!("pay {amount}"))
        .await;
    let mine = client
        .get("/v1/approvals?role=requester&limit=1")
        .await
        .expect(200);
    (conversation, mine["items"][0].clone())
}

fn code(request: &Value) -> &str {
    request["code"].as_str().unwrap()
}

fn path(request: &Value) -> String {
    format!("/v1/approvals/{}", request["id"].as_str().unwrap())
}

fn decision(request: &Value, decision: &str) -> Value {
    json!({ "decision": decision, "args_sha256": request["args_sha256"] })
}

async fn approve(client: &Client, request: &Value) -> crate::support::client::Answer {
    client
        .post(
            &format!("{}/decision", path(request)),
            decision(request, "approve"),
        )
        .await
}

async fn state(client: &Client, request: &Value) -> String {
    let view = client.get(&path(request)).await.expect(200);
    view["state"].as_str().unwrap().to_owned()
}

/// Waits until it is in this state; the request.
async fn becomes(client: &Client, request: &Value, wanted: &str) -> Value {
    let mut view = Value::Null;
    eventually(async || {
        view = client.get(&path(request)).await.expect(200);
        view["state"] == wanted || ended_otherwise(&view, wanted)
    })
    .await;
    assert_eq!(view["state"], wanted, "{view:#}");
    view
}

fn ended_otherwise(view: &Value, wanted: &str) -> bool {
    !matches!(
        view["state"].as_str().unwrap(),
        "pending" | "approved" | "executing"
    ) && view["state"] != wanted
}

/// Changes a request's row behind the program's back.
async fn change_row(world: &World, request: &Value, set: &str) {
    let tenant = world.tenant.id;
    let sql = format!("update approvals set {set} where tenant_id = '{tenant}' and id = $1::uuid");
    let changed = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(request["id"].as_str().unwrap())
        .execute(&mut world.db.as_tenant(tenant).await)
        .await
        .unwrap();
    assert_eq!(changed.rows_affected(), 1);
}

/// Action, actor, outcome and detail of the lines about requests, in order.
async fn trail(world: &World) -> Vec<(String, String, String, Option<String>)> {
    sqlx::query_as("select action, actor, outcome, detail from audit where action like 'approval.%' order by at, id")
        .fetch_all(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap()
}

/// The parts of this kind in a conversation.
async fn notes(client: &Client, conversation: &str) -> Vec<Value> {
    let messages = client.messages(conversation).await;
    let parts = messages
        .iter()
        .flat_map(|message| message["parts"].as_array().unwrap().clone());
    parts.filter(|part| part["type"] == "approval").collect()
}

/// What the model was last told of an outcome.
async fn told(world: &World) -> String {
    let mut words = String::new();
    eventually(async || {
        words = world
            .model
            .requests()
            .iter()
            .rev()
            .map(|request| last_words(&request.body))
            .next()
            .unwrap_or_default();
        words.contains("From the program")
    })
    .await;
    words
}
