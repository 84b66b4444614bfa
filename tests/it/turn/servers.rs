//! Servers that come, go and change while the service runs.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt, stream};
use serde_json::json;
use tokio::net::TcpListener;

use super::{world, world_with};
use crate::support::{
    bank::{books::Books, http::router, pair, tools::Bank},
    client::{Client, plain},
    model::{call, calls, results, text, tool_names},
    scripted::{Scripted, Seen, event, events},
    wait::eventually,
    world::World,
};

/// An address of this machine where nobody listens.
async fn nowhere() -> std::net::SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
}

async fn states(client: &Client) -> Vec<String> {
    let list = client.get("/v1/agents/bank/connections").await.expect(200);
    list["items"]
        .as_array()
        .unwrap_or_else(|| panic!("{list}"))
        .iter()
        .map(|view| view["state"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_server_that_is_down_at_the_start_is_used_when_it_comes() {
    let address = nowhere().await;
    let world = World::with(|setup| {
        setup.env = setup
            .env
            .clone()
            .with("BANK_URL", format!("http://{address}/mcp"));
    })
    .await;
    world
        .model
        .on(|request| results(request).is_empty().then(|| text("Nothing to use.")));
    let ann = world.user("ann", &["employee"]).await;
    eventually(async || states(&ann).await == ["down"]).await;
    assert_eq!(
        ann.ask("bank", "rate?").await,
        "Nothing to use.",
        "the agent works without it"
    );
    assert!(tool_names(&world.model.last_request()).is_empty());
    let id = ann.open("bank").await;
    ann.say_and_wait(&id, "/tools").await;
    assert!(
        plain(ann.messages(&id).await.last().unwrap())
            .contains("bank – not reachable at the moment")
    );
    let books = std::sync::Arc::new(Books::open(None).unwrap());
    let listener = TcpListener::bind(address).await.unwrap();
    let router = router(
        Bank::new(books.clone(), std::time::Duration::ZERO),
        books.clone(),
        None,
        &[],
    );
    tokio::spawn(async move { axum::serve(listener, router).await });
    eventually(async || states(&ann).await == ["ready"]).await;
    ann.say_and_wait(&id, &format!("/call bank get_exchange_rate {}", pair()))
        .await;
    assert_eq!(books.entries().len(), 1);
}

#[tokio::test]
async fn known_tools_are_listed_after_a_restart_although_their_server_is_down() {
    let world = world().await;
    let mut system = world.db.as_system().await;
    eventually(async || {
        let kept = sqlx::query_scalar::<_, i64>("select count(*) from catalogs_of_all");
        kept.fetch_one(&mut system).await.unwrap() > 0
    })
    .await;
    let mut stopped = world.stop().await;
    stopped.env = stopped
        .env
        .with("BANK_URL", format!("http://{}/mcp", nowhere().await));
    let world = stopped.start().await;
    let ann = world.user("ann", &["employee"]).await;
    let tools = async || {
        let id = ann.open("bank").await;
        ann.say_and_wait(&id, "/tools").await;
        plain(ann.messages(&id).await.last().unwrap()).contains("get_balances")
    };
    eventually(tools).await;
    world
        .model
        .reply(calls([("bank__get_balances", json!({}))]))
        .reply(text("It is away."));
    assert_eq!(ann.ask("bank", "balance?").await, "It is away.");
    let told = &results(&world.model.last_request())[0];
    let certain = "failed, nothing was sent: MCP server \"bank\" is not available: ";
    assert!(
        told.starts_with(certain),
        "nothing was sent, which is certain: {told}"
    );
}

#[tokio::test]
async fn a_server_that_goes_is_found_down_by_its_first_call_and_found_again() {
    let address = nowhere().await;
    let books = std::sync::Arc::new(Books::open(None).unwrap());
    let serve = |listener: TcpListener| {
        let bank = Bank::new(books.clone(), std::time::Duration::ZERO);
        let router = router(bank, books.clone(), None, &[]);
        tokio::spawn(async move { axum::serve(listener, router).await })
    };
    let bank = serve(TcpListener::bind(address).await.unwrap());
    let world = world_with(|setup| {
        setup.env = setup
            .env
            .clone()
            .with("BANK_URL", format!("http://{address}/mcp"));
    })
    .await;
    let ann = world.user("ann", &["employee"]).await;
    let id = ann.open("bank").await;
    bank.abort();
    let line = format!("/call bank get_exchange_rate {}", pair());
    eventually(async || {
        // Connections that were accepted before go on for a while.
        ann.say_and_wait(&id, &line).await;
        states(&ann).await == ["down"]
    })
    .await;
    let made = books.entries().len();
    serve(TcpListener::bind(address).await.unwrap());
    eventually(async || states(&ann).await == ["ready"]).await;
    ann.say_and_wait(&id, &line).await;
    assert_eq!(books.entries().len(), made + 1);
}

#[tokio::test]
async fn tools_that_change_are_offered_from_then_on() {
    let listed = std::sync::Arc::new(AtomicUsize::new(0));
    let count = listed.clone();
    let server = Scripted::legacy(move |seen: Seen| {
        let count = count.clone();
        async move {
            match seen.method() {
                "GET" => {
                    let changed = event(
                        &json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}),
                    );
                    Some(events(stream::iter([Ok(changed)]).chain(stream::pending())))
                }
                "tools/list" => {
                    let name = if count.fetch_add(1, Ordering::SeqCst) < 1 {
                        "before"
                    } else {
                        "after"
                    };
                    Some(seen.result(
                        json!({"tools": [{"name": name, "inputSchema": {"type": "object"}}]}),
                    ))
                }
                _ => None,
            }
        }
    })
    .await;
    let url = server.url.to_string();
    let world = world_with(|setup| {
        setup.env = setup.env.clone().with("BANK_URL", url);
        setup.change_server(json!({ "toolAccess": { "default": "all" }, "pin": "off" }));
    })
    .await;
    world.model.on(|_| Some(text("Hm.")));
    let ann = world.user("ann", &[]).await;
    eventually(async || {
        ann.ask("bank", "tools?").await;
        tool_names(&world.model.last_request()) == ["bank__after"]
    })
    .await;
    assert!(
        listed.load(Ordering::SeqCst) < 12,
        "a server that says so again and again is not asked each time"
    );
}

#[tokio::test]
async fn a_start_fails_when_a_required_server_is_down() {
    let address = nowhere().await;
    let world = world().await;
    world.change_server(json!({ "required": true }));
    let mut stopped = world.stop().await;
    stopped.env = stopped
        .env
        .with("BANK_URL", format!("http://{address}/mcp"));
    let db = store::Db::connect(&stopped.db.url, 4).await.unwrap();
    let started =
        chatelaine::cli::serve::Service::start(stopped.config.clone(), &stopped.env, db).await;
    let error = started.err().expect("it started").to_string();
    assert!(error.contains("server bank is `required: true`"), "{error}");
}

#[tokio::test]
async fn one_server_that_is_down_does_not_take_the_others_with_it() {
    let address = nowhere().await;
    let away = json!({ "name": "away", "transport": "streamable-http", "url": format!("http://{address}/mcp"),
        "toolAccess": { "default": "all" } });
    let world = World::with(|setup| setup.add_server(away)).await;
    world.tools_ready().await;
    world
        .model
        .reply(text("").and_call(call("bank__get_balances", "{}")))
        .reply(text("Much."));
    let ann = world.user("ann", &["employee"]).await;
    eventually(async || states(&ann).await == ["down", "ready"]).await;
    assert_eq!(ann.ask("bank", "balance?").await, "Much.");
    assert_eq!(world.app().connections.count(), (1, 1));
}
