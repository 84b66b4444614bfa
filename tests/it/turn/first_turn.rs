//! Servers that are slow to connect: a replica is not ready before, and the first turn of a new tenant has its tools.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use chatelaine::app::accounts::{self, development};
use domain::{account::Tenant, clock::Clock};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::support::{
    bank::pair,
    client::Client,
    model::{calls, results, text},
    servers::soon,
    wait::eventually,
    world::{Setup, World},
};

/// A way to the bank on which nothing passes while it is closed.
struct Way {
    open: watch::Sender<bool>,
    /// How often something was held up.
    held: Arc<AtomicUsize>,
}

impl Way {
    /// Puts itself between the product and the bank.
    fn new(setup: &mut Setup, is_open: bool) -> Self {
        let bank = setup.env.get("BANK_URL").unwrap().to_owned();
        let bank = url::Url::parse(&bank).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let here = format!("http://{}/mcp", listener.local_addr().unwrap());
        setup.env = setup.env.clone().with("BANK_URL", here);
        let (open, is_open) = watch::channel(is_open);
        let way = Self {
            open,
            held: Arc::default(),
        };
        let (held, port) = (way.held.clone(), bank.port().unwrap());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, port, is_open.clone(), held.clone()));
            }
        });
        way
    }

    /// Closes it; how often something was held up before.
    fn close(&self) -> usize {
        let before = self.held.load(Ordering::SeqCst);
        self.open.send_replace(false);
        before
    }

    async fn until_held(&self, before: usize) {
        eventually(async || self.held.load(Ordering::SeqCst) > before).await;
    }
}

async fn forward(
    client: TcpStream,
    port: u16,
    mut open: watch::Receiver<bool>,
    held: Arc<AtomicUsize>,
) -> std::io::Result<()> {
    let bank = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_bank, mut to_bank) = bank.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_bank, &mut to_client).await });
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = from_client.read(&mut bytes).await?;
        if read == 0 {
            return to_bank.shutdown().await;
        }
        if !*open.borrow() {
            held.fetch_add(1, Ordering::SeqCst);
        }
        if open.wait_for(|open| *open).await.is_err() {
            return Ok(());
        }
        to_bank.write_all(&bytes[..read]).await?;
    }
}

/// A world with a way to its bank, to which each tenant has a connection of its own. It may take this long to connect.
async fn world(seconds: u32) -> (World, Way) {
    let timeouts = json!({ "connectSeconds": seconds });
    world_with(
        true,
        json!({ "instances": "per-tenant", "timeouts": timeouts }),
    )
    .await
}

async fn world_with(is_open: bool, change: Value) -> (World, Way) {
    let mut way = None;
    let world = World::with(|setup| {
        setup.change_server(change);
        way = Some(Way::new(setup, is_open));
    })
    .await;
    (world, way.unwrap())
}

/// Somebody of a tenant that was added a moment ago.
async fn newcomer(world: &World) -> (Tenant, Client) {
    let db = &world.db.db;
    let tenant = accounts::add_tenant(db, &Clock::System, "initech", None, false)
        .await
        .unwrap();
    let person = development::DevelopmentUser {
        user: "nina".to_owned(),
        roles: vec!["employee".to_owned()],
        ..Default::default()
    };
    let (now, life) = (Clock::System.now(), time::Duration::hours(1));
    let data = &world.config.data;
    let token = development::token(db, data, &tenant, &person, now..now + life)
        .await
        .unwrap();
    (tenant, world.client(&token))
}

/// The names of the tools that the model was offered.
fn offered(request: &Value) -> Vec<String> {
    let tools = request["tools"].as_array().cloned().unwrap_or_default();
    tools
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn the_first_turn_of_a_new_tenant_has_the_tools_of_a_slow_server() {
    let (world, way) = world(30).await;
    world.model.on(|request| {
        Some(if results(request).is_empty() {
            calls([("bank__get_exchange_rate", pair())])
        } else {
            text("There you are.")
        })
    });
    let before = way.close();
    let (_, nina) = newcomer(&world).await;
    let chat = nina.open("bank").await;
    let run = nina.say(&chat, "what is a dollar?").await;
    way.until_held(before).await;
    assert!(world.model.requests().is_empty(), "the turn waits");
    way.open.send_replace(true);
    nina.listen(&chat, Some(0)).await.until_run_ends(&run).await;
    let first = &world.model.requests()[0].body;
    let mut names = offered(first);
    names.sort();
    assert_eq!(names, ["bank__get_balances", "bank__get_exchange_rate"]);
    assert_eq!(world.bank.executions("get_exchange_rate"), 1);
}

#[tokio::test]
async fn a_direct_call_waits_likewise_and_a_command_without_tools_does_not() {
    let (world, way) = world(30).await;
    let before = way.close();
    let (_, nina) = newcomer(&world).await;
    let (chat, other) = (nina.open("bank").await, nina.open("bank").await);
    let call = nina
        .say(&chat, &format!("/call bank get_exchange_rate {}", pair()))
        .await;
    way.until_held(before).await;
    soon(nina.say_and_wait(&other, "/help")).await;
    assert_eq!(world.bank.executions("get_exchange_rate"), 0);
    way.open.send_replace(true);
    nina.listen(&chat, Some(0))
        .await
        .until_run_ends(&call)
        .await;
    assert_eq!(world.bank.executions("get_exchange_rate"), 1);
}

#[tokio::test]
async fn a_client_that_lists_its_tools_at_once_gets_them_all() {
    let (world, way) = world(30).await;
    let before = way.close();
    let (_, nina) = newcomer(&world).await;
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let opened = async {
        way.until_held(before).await;
        way.open.send_replace(true);
    };
    let (listed, ()) = tokio::join!(nina.post("/mcp/bank", list), opened);
    let tools = listed.expect(200)["result"]["tools"].clone();
    let names = tools.as_array().unwrap().iter();
    let mut names: Vec<_> = names.map(|tool| tool["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["bank__get_balances", "bank__get_exchange_rate"]);
}

#[tokio::test]
async fn a_turn_waits_no_longer_than_the_server_may_take_to_connect() {
    let (world, way) = world(1).await;
    world.model.on(|_| Some(text("I have no tools.")));
    way.close();
    let (_, nina) = newcomer(&world).await;
    nina.ask("bank", "what is a dollar?").await;
    assert!(offered(&world.model.last_request()).is_empty());
}

#[tokio::test]
async fn a_replica_is_ready_after_the_first_discovery() {
    let slow = json!({ "timeouts": { "connectSeconds": 30 } });
    let (world, way) = world_with(false, slow).await;
    let nobody = world.nobody();
    way.until_held(0).await;
    let not_yet = nobody.get("/readyz").await;
    assert_eq!(not_yet.expect(503)["started"], false);
    way.open.send_replace(true);
    eventually(async || nobody.get("/readyz").await.status == 200).await;
    assert_eq!(world.app().connections.count(), (1, 0));
}
