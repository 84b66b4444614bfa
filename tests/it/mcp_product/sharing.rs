//! One connection for all who reach a server in the same way, and who must not share one.

use std::{fs, time::Duration};

use chatelaine::app::accounts;
use domain::{
    ids::{ServerId, TenantId},
    owner::SharedKey,
    secret::Secret,
    server::{Endpoint, Remote, ServerSpec},
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::connections;
use crate::{
    registry::{self, open_localhost},
    support::{
        client::Client,
        many::{connections_of, entry, pack},
        scripted::{Scripted, Seen, event, events},
        servers::{folder, spec, venv},
        wait::eventually,
        world::{Setup, World},
    },
};

/// The bank's agent with this server, which both tenants have, and another agent of the first tenant that calls it
/// `desk`.
fn name_twice(setup: &mut Setup, server: &Scripted, more: &str) {
    let url = server.url.as_str();
    setup.change_server(json!({ "url": url, "toolAccess": null, "headers": { "X-Key": "right" } }));
    setup.change_server(json!({ "toolAccess": { "default": "public" } }));
    let headers = format!(", headers: {{ X-Key: right }}{more}");
    setup
        .packs
        .push(pack(&entry("desk", &server.url, &headers)));
}

async fn say(client: &Client, agent: &str, server: &str, text: &str) -> String {
    let line = format!("/call {server} echo {}", json!({ "say": text }));
    client.ask(agent, &line).await
}

#[test]
fn whatever_decides_what_is_sent_or_listed_is_in_the_key() {
    let (tenant, other) = (TenantId::new(), TenantId::new());
    let endpoint = |url: &str, header: &str, value: &str| Endpoint::Remote {
        transport: Remote::StreamableHttp,
        url: url.parse().unwrap(),
        headers: vec![(header.to_owned(), Secret::new(value))],
    };
    let spec = ServerSpec::clone(&spec(endpoint("https://a.example/mcp", "X-Key", "1")));
    let with = |change: &dyn Fn(&mut ServerSpec)| {
        let mut spec = spec.clone();
        change(&mut spec);
        SharedKey::new(tenant, &spec)
    };
    let key = SharedKey::new(tenant, &spec);
    let own = |spec: &mut ServerSpec| spec.per_tenant = true;
    let different = [
        with(&|spec| spec.endpoint = endpoint("https://a.example/mcp?b", "X-Key", "1")),
        with(&|spec| spec.endpoint = endpoint("https://a.example/mcp", "X-Ke", "y1")),
        with(&|spec| spec.endpoint = endpoint("https://a.example/mcp", "X-Key", "2")),
        with(&|spec| spec.entered = vec![Secret::new("1")]),
        with(&|spec| spec.from_variables = vec![Secret::new("1")]),
        with(&|spec| spec.of_tenant = true),
        with(&|spec| spec.load_tools = false),
        with(&|spec| spec.timeouts.idle = Some(Duration::from_secs(1))),
        with(&own),
    ];
    for (at, one) in different.iter().enumerate() {
        assert_ne!(*one, key, "{at}");
        assert!(!different[..at].contains(one), "{at}");
    }
    let alike = [
        with(&|spec| spec.id = ServerId::parse("another").unwrap()),
        with(&|spec| spec.tools = Some(Vec::new())),
        with(&|spec| spec.required = true),
        SharedKey::new(other, &spec),
    ];
    assert!(alike.iter().all(|one| *one == key));
    let mut owned = spec.clone();
    own(&mut owned);
    assert_ne!(
        SharedKey::new(tenant, &owned),
        SharedKey::new(other, &owned)
    );
}

/// Two tenants whose registries and secrets are the same, to the letter.
#[tokio::test]
async fn entries_of_two_tenants_that_look_alike_share_nothing() {
    let server = Scripted::legacy(async |_: Seen| None).await;
    let world = World::with(|setup| {
        open_localhost(setup);
        setup.change_pack(json!({ "mcpServers": { "docs": { "ref": "store", "toolAccess": { "default": "public" } } } }));
    })
    .await;
    let schema = json!({ "api_key": { "type": "string", "sensitive": true } });
    let entry = registry::entry(
        "store",
        server.url.as_str(),
        schema,
        json!({ "api_key": "the-same-0123" }),
    );
    let ready = [("docs", "ready")];
    for (admin, user) in [
        (world.admin().await, world.user("ann", &[]).await),
        (
            registry::other_admin(&world).await,
            world.stranger("eve").await,
        ),
    ] {
        admin.post("/mcp-servers", entry.clone()).await.expect(201);
        connections_of(&user, "bank", &ready).await;
        assert_eq!(say(&user, "bank", "docs", "1").await, r#"{"say":"1"}"#);
    }
    let calls = server.requests("tools/call");
    let sessions = calls
        .iter()
        .map(|call| call.headers["mcp-session-id"].clone());
    assert_eq!(sessions.collect::<Vec<_>>(), ["s1", "s2"]);
}

#[tokio::test]
async fn one_session_serves_two_tenants_and_two_agents_that_name_a_server_differently() {
    let server = Scripted::legacy(async |_: Seen| None).await;
    let world = World::with(|setup| name_twice(setup, &server, "")).await;
    let (ann, eve) = (world.user("ann", &[]).await, world.stranger("eve").await);
    connections(&ann, &[("desk", "ready")]).await;
    connections_of(&ann, "bank", &[("bank", "ready")]).await;
    connections_of(&eve, "bank", &[("bank", "ready")]).await;
    let (at_desk, at_bank, hers) = tokio::join!(
        say(&ann, "many", "desk", "ANNS-CANARY-1"),
        say(&ann, "bank", "bank", "ANNS-CANARY-2"),
        say(&eve, "bank", "bank", "EVES-CANARY"),
    );
    assert_eq!(at_desk, r#"{"say":"ANNS-CANARY-1"}"#);
    assert_eq!(at_bank, r#"{"say":"ANNS-CANARY-2"}"#);
    assert_eq!(hers, r#"{"say":"EVES-CANARY"}"#);
    let calls = server.requests("tools/call");
    let session = |seen: &Seen| seen.headers["mcp-session-id"].clone();
    assert_eq!(calls.len(), 3);
    assert!(calls.iter().all(|call| session(call) == "s1"));
    assert_eq!(server.requests("initialize").len(), 1);
    assert_eq!(server.requests("tools/list").len(), 1);
    assert_eq!(world.app().connections.count(), (1, 0));
}

#[tokio::test]
async fn another_header_is_another_connection_and_the_old_one_is_closed() {
    let server = Scripted::legacy(async |_: Seen| None).await;
    let world = World::with(|setup| name_twice(setup, &server, "")).await;
    let ann = world.user("ann", &[]).await;
    connections(&ann, &[("desk", "ready")]).await;
    world.change_server(json!({ "headers": { "X-Key": "another" } }));
    world.app().packs.reload();
    server.until("initialize", 2).await;
    assert_eq!(say(&ann, "bank", "bank", "1").await, r#"{"say":"1"}"#);
    assert_eq!(say(&ann, "many", "desk", "2").await, r#"{"say":"2"}"#);
    let keys: Vec<_> = server
        .requests("tools/call")
        .iter()
        .map(|call| call.headers["x-key"].clone())
        .collect();
    assert_eq!(keys, ["another", "right"]);
    assert!(
        server.requests("DELETE").is_empty(),
        "one agent has the old one"
    );
    let yaml = pack(&entry("desk", &server.url, ", headers: { X-Key: another }")).1;
    world.write_pack("many", &yaml);
    world.app().packs.reload();
    server.until("DELETE", 1).await;
    assert_eq!(server.requests("DELETE")[0].headers["x-key"], "right");
    assert_eq!(say(&ann, "many", "desk", "3").await, r#"{"say":"3"}"#);
    assert_eq!(server.requests("initialize").len(), 2);
}

#[tokio::test]
async fn a_change_of_the_tools_is_asked_for_once_and_reaches_every_tenant_and_agent() {
    let (change, changed) = watch::channel(false);
    let server = Scripted::legacy(move |seen: Seen| {
        let mut changed = changed.clone();
        async move {
            match seen.method() {
                "GET" => {
                    let told = stream::once(async move {
                        let _ = changed.wait_for(|changed| *changed).await;
                        let method = "notifications/tools/list_changed";
                        Ok(event(&json!({ "jsonrpc": "2.0", "method": method })))
                    });
                    Some(events(told.chain(stream::pending())))
                }
                "tools/list" => {
                    let name = if *changed.borrow() { "after" } else { "before" };
                    let tool = json!({ "name": name, "inputSchema": { "type": "object" } });
                    Some(seen.result(json!({ "tools": [tool] })))
                }
                _ => None,
            }
        }
    })
    .await;
    // What becomes of a new tool by default, `pins.rs` tries.
    let world = World::with(|setup| {
        name_twice(setup, &server, ", pin: \"off\"");
        setup.change_server(json!({ "pin": "off" }));
    })
    .await;
    let (ann, eve) = (world.user("ann", &[]).await, world.stranger("eve").await);
    for tool in ["before", "after"] {
        change.send_replace(tool == "after");
        for (client, agent) in [(&ann, "many"), (&ann, "bank"), (&eve, "bank")] {
            eventually(async || {
                let path = format!("/v1/agents/{agent}/tools");
                let tools = client.get(&path).await.expect(200);
                tools.to_string().contains(tool)
            })
            .await;
        }
    }
    assert_eq!(server.requests("tools/list").len(), 2);
}

/// The bank's agent with a child that writes down how often it was started.
fn child(setup: &mut Setup, ledger: &tempfile::TempDir, more: Value) {
    let script = folder().join("probe.py");
    setup.change_pack(json!({ "mcp": { "servers": [{
        "name": "bank",
        "transport": "stdio",
        "command": venv("python"),
        "args": [script],
        "env": { "PROBE_LEDGER": ledger.path().join("ledger") },
        "toolAccess": { "default": "public" },
    }] } }));
    setup.change_server(more);
}

/// How many children were started.
fn started(ledger: &tempfile::TempDir) -> usize {
    let written = fs::read_to_string(ledger.path().join("ledger")).unwrap_or_default();
    written.lines().filter(|line| *line == "initialize").count()
}

#[tokio::test]
async fn each_tenant_has_a_child_of_its_own_from_its_first_use_on() {
    let ledger = tempfile::tempdir().unwrap();
    let world = World::with(|setup| child(setup, &ledger, json!({}))).await;
    let (ann, eve) = (world.user("ann", &[]).await, world.stranger("eve").await);
    let nobody = world.nobody();
    eventually(async || nobody.get("/readyz").await.status == 200).await;
    assert_eq!(world.app().connections.count(), (0, 0));
    assert_eq!(started(&ledger), 0, "nobody has used it");
    assert_eq!(say(&ann, "bank", "bank", "1").await, r#"{"say": "1"}"#);
    assert_eq!(started(&ledger), 1);
    assert_eq!(say(&eve, "bank", "bank", "2").await, r#"{"say": "2"}"#);
    assert_eq!(say(&ann, "bank", "bank", "3").await, r#"{"say": "3"}"#);
    assert_eq!(started(&ledger), 2);
}

#[tokio::test]
async fn one_child_serves_all_where_the_pack_says_so() {
    let ledger = tempfile::tempdir().unwrap();
    let shared = json!({ "instances": "shared" });
    let world = World::with(|setup| child(setup, &ledger, shared)).await;
    let (ann, eve) = (world.user("ann", &[]).await, world.stranger("eve").await);
    assert_eq!(started(&ledger), 0, "nobody has used it");
    assert_eq!(say(&ann, "bank", "bank", "1").await, r#"{"say": "1"}"#);
    assert_eq!(say(&eve, "bank", "bank", "2").await, r#"{"say": "2"}"#);
    assert_eq!(started(&ledger), 1);
}

#[tokio::test]
async fn a_child_that_nobody_uses_is_stopped_and_started_again_when_needed() {
    let ledger = tempfile::tempdir().unwrap();
    let soon = json!({ "timeouts": { "idleSeconds": 1 } });
    let world = World::with(|setup| child(setup, &ledger, soon)).await;
    let ann = world.user("ann", &[]).await;
    assert_eq!(say(&ann, "bank", "bank", "1").await, r#"{"say": "1"}"#);
    eventually(async || world.app().connections.count() == (0, 0)).await;
    assert_eq!(started(&ledger), 1);
    assert_eq!(say(&ann, "bank", "bank", "2").await, r#"{"say": "2"}"#);
    assert_eq!(started(&ledger), 2);
}

#[tokio::test]
async fn a_tenant_that_is_removed_leaves_no_child() {
    let ledger = tempfile::tempdir().unwrap();
    let world = World::with(|setup| child(setup, &ledger, json!({}))).await;
    let (ann, eve) = (world.user("ann", &[]).await, world.stranger("eve").await);
    say(&ann, "bank", "bank", "1").await;
    say(&eve, "bank", "bank", "2").await;
    assert_eq!(world.app().connections.count(), (2, 0));
    accounts::remove_tenant(&world.db.db, world.other.id)
        .await
        .unwrap();
    eventually(async || world.app().connections.count() == (1, 0)).await;
    assert_eq!(say(&ann, "bank", "bank", "3").await, r#"{"say": "3"}"#);
    assert_eq!(started(&ledger), 2);
}
