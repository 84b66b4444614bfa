//! What an agent has of its servers, in the whole product: all of them at once, each for itself.

mod logs; // what servers make the program write
mod numbers; // that no double holds
mod obstacles; // why a tool cannot be called
mod pins; // tools that their server has changed
mod restarts; // servers killed in the middle of chats
mod search; // more tools than a model takes
mod sharing; // one connection for all, and who must not share one
mod smoke; // names that fit no tool, and who may call what
mod transports; // every format over every transport
mod trouble; // what people are told of a server that cannot be used

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::sync::Barrier;

use crate::support::{
    client::{Client, Event},
    has::Has,
    many::{connections_of, entry, pack},
    model::{calls, results, text},
    scripted::{Scripted, Seen},
    world::{Setup, World},
};

/// Writes the files of an agent whose pack is of another format, and lets the scripted model be its model.
pub(crate) fn write_agent(setup: &mut Setup, agent: &str, files: &[(&str, &str)]) {
    let folder = setup.config.packs.join(agent);
    for (path, text) in files {
        let file = folder.join(path);
        std::fs::create_dir_all(file.parent().unwrap_or(Path::new("."))).unwrap();
        std::fs::write(file, text).unwrap();
    }
    let model = setup.env.get("MODEL_URL").unwrap().to_owned();
    let variables = [
        ("LLM_PROVIDER", "openai"),
        ("LLM_MODEL", "scripted"),
        ("OPENAI_API_KEY", "model-key-0123456789"),
    ];
    let env = variables
        .iter()
        .fold(setup.env.clone(), |env, (name, value)| {
            env.with(*name, *value)
        });
    setup.env = env.with("OPENAI_BASE_URL", model);
}

/// The connections of the agent, once every server is in this state.
async fn connections(client: &Client, states: &[(&str, &str)]) -> Vec<Value> {
    connections_of(client, "many", states).await
}

fn named<'a>(events: &'a [Event], name: &str, server: &str) -> Option<&'a Value> {
    events
        .iter()
        .find(|event| event.name == name && event.data["server"] == server)
        .map(|event| &event.data)
}

#[tokio::test]
async fn all_servers_of_an_agent_are_discovered_at_once() {
    let all = Arc::new(Barrier::new(5));
    let mut servers = Vec::new();
    for _ in 0..5 {
        let all = all.clone();
        let server = Scripted::modern(move |seen: Seen| {
            let all = all.clone();
            async move {
                if seen.method() == "server/discover" {
                    all.wait().await;
                }
                None
            }
        });
        servers.push(server.await);
    }
    let entries: String = servers
        .iter()
        .enumerate()
        .map(|(at, server)| entry(&format!("s{at}"), &server.url, ""))
        .collect();
    let world = World::with(|setup| setup.packs.push(pack(&entries))).await;
    let ann = world.user("ann", &[]).await;
    connections(
        &ann,
        &["s0", "s1", "s2", "s3", "s4"].map(|name| (name, "ready")),
    )
    .await;
}

#[tokio::test]
async fn a_listed_tool_that_is_missing_costs_only_itself_and_is_told() {
    let server = Scripted::modern(async |_| None).await;
    let entries = entry("desk", &server.url, ", tools: [echo, gone]");
    let world = World::with(|setup| setup.packs.push(pack(&entries))).await;
    let (alice, ann) = (world.user("alice", &[]).await, world.user("ann", &[]).await);
    let known = connections(&alice, &[("desk", "ready")]).await;
    known[0].has(json!({ "missing": ["gone"], "tools": 1 }));
    assert_eq!(
        connections(&ann, &[("desk", "ready")]).await[0]["missing"],
        json!([]),
        "not for everybody"
    );

    let id = ann.open("many").await;
    let mut events = ann.listen(&id, None).await;
    world
        .model
        .reply(calls([("desk__echo", json!({"n": 1}))]))
        .reply(text("Done."));
    let run = ann.say(&id, "go").await;
    let heard = events.until_run_ends(&run).await;
    let started = named(&heard, "server_started", "desk").unwrap();
    started.has(json!({ "transport": "streamable-http", "tools": 1 }));
    let missing = named(&heard, "server_unavailable", "desk").unwrap();
    missing.has(json!({ "reason": "Tools not discovered: gone", "missing_tools": ["gone"] }));
    assert_eq!(results(&world.model.requests()[1].body), [r#"{"n":1}"#]);
    assert_eq!(
        server.requests("tools/list").len(),
        2,
        "asked once more and no more"
    );
}

#[tokio::test]
async fn a_server_that_is_not_ready_with_its_list_is_asked_once_more_a_moment_later() {
    let asked = Arc::<Mutex<Vec<Instant>>>::default();
    let times = asked.clone();
    let server =
        Scripted::modern(move |seen: Seen| {
            let times = times.clone();
            async move {
                if seen.method() != "tools/list" {
                    return None;
                }
                let mut times = times.lock().unwrap();
                times.push(domain::clock::instant());
                let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
                let names: &[&str] = if times.len() == 1 {
                    &["echo"]
                } else {
                    &["echo", "late"]
                };
                Some(seen.result(
                    json!({"tools": names.iter().map(|name| tool(name)).collect::<Vec<_>>()}),
                ))
            }
        })
        .await;
    let entries = entry("desk", &server.url, ", tools: [echo, late]");
    let world = World::with(|setup| setup.packs.push(pack(&entries))).await;
    let alice = world.user("alice", &[]).await;
    let known = connections(&alice, &[("desk", "ready")]).await;
    known[0].has(json!({ "missing": [], "tools": 2 }));
    let times = asked.lock().unwrap().clone();
    assert_eq!(times.len(), 2);
    assert!(
        times[1] - times[0] >= Duration::from_millis(250),
        "{times:?}"
    );

    let id = alice.open("many").await;
    let mut events = alice.listen(&id, None).await;
    world
        .model
        .reply(calls([("desk__late", json!({"n": 1}))]))
        .reply(text("Done."));
    let run = alice.say(&id, "go").await;
    let heard = events.until_run_ends(&run).await;
    assert!(named(&heard, "server_unavailable", "desk").is_none());
    assert_eq!(results(&world.model.requests()[1].body), [r#"{"n":1}"#]);
}

#[tokio::test]
async fn a_server_that_is_down_is_told_and_the_others_serve() {
    let server = Scripted::modern(async |_| None).await;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = format!("http://{}/mcp", nobody.local_addr().unwrap())
        .parse()
        .unwrap();
    drop(nobody);
    let entries = entry("desk", &server.url, "") + &entry("gone", &gone, "");
    let world = World::with(|setup| setup.packs.push(pack(&entries))).await;
    let ann = world.user("ann", &[]).await;
    connections(&ann, &[("desk", "ready"), ("gone", "down")]).await;
    let id = ann.open("many").await;
    let mut events = ann.listen(&id, None).await;
    world
        .model
        .reply(calls([("desk__echo", json!({}))]))
        .reply(text("Done."));
    let run = ann.say(&id, "go").await;
    let heard = events.until_run_ends(&run).await;
    assert!(
        named(&heard, "server_started", "desk").is_some()
            && named(&heard, "server_started", "gone").is_none()
    );
    let down = named(&heard, "server_unavailable", "gone").unwrap();
    // The address and the words of the failure are for those who run the agent.
    assert_eq!(
        down["reason"],
        "not reachable at the moment; tried again by itself"
    );
}
