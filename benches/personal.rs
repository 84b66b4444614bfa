//! Users with credentials of their own: finding their tools, and what their open connections cost.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use chatelaine::app::tools::toolset;
use domain::{
    clock,
    ids::AgentId,
    principal::{Audience, Principal},
};
use futures_util::{StreamExt, stream};
use serde_json::json;

use super::{
    product::{Deployment, Product},
    rates::{self, TOOL},
    support::{client::Client, db::TestDb, world::World},
    table::{
        Amount::{Bytes, Time},
        Target::AtMost,
        Times, row,
    },
};

const SERVERS: usize = 20;
const USERS: usize = 1000;
const STORED: usize = 10_000;
const AT_ONCE: usize = 8;
const SETTLE: Duration = Duration::from_secs(4);
const RING: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0";

pub async fn measure() {
    let url = rates::start().await;
    toolsets(&url).await;
    connections(&url).await;
}

/// A pack with so many personal servers.
fn pack(servers: usize, url: &str) -> String {
    let mut yaml =
        "metadata: { id: many, displayName: Many, description: Many, defaultLanguage: en }
languages: { en: {} }
llm: { provider: none }
flows: { authentication: { required: true } }
mcp:
  servers:
"
        .to_owned();
    for at in 0..servers {
        write!(
            yaml,
            "    - name: server-{at}
      transport: streamable-http
      url: \"{url}\"
      accessMode: user-controlled
      userConfig: {{ fields: [{{ name: token, type: secret, headerTemplate: \"Bearer {{value}}\" }}] }}
      toolAccess: {{ default: public }}
"
        )
        .unwrap();
    }
    yaml
}

async fn enter(person: &Client, server: usize) {
    let path = format!("/v1/agents/many/connections/server-{server}");
    let body = json!({ "fields": { "token": format!("token-of-server-{server}") } });
    let request = person.request(http::Method::PUT, &path).json(&body);
    person.send(request).await.expect(200);
}

/// The toolset of a user of 20 personal servers, known and unknown to the process.
async fn toolsets(url: &str) {
    let world = World::with(|setup| {
        setup.config.ring = Some(domain::ring::KeyRing::parse(&format!("k1:{RING}")).unwrap());
        setup.packs = vec![("many".to_owned(), pack(SERVERS, url))];
    })
    .await;
    let ann = world.user("ann", &[]).await;
    for server in 0..SERVERS {
        enter(&ann, server).await;
    }
    let principal = Principal {
        tenant: world.tenant.id,
        user: serde_json::from_value(json!("ann")).unwrap(),
        claims: Arc::default(),
        locale: None,
        authenticated: true,
        key: None,
        audience: Audience::default(),
    };
    let agent = AgentId::parse("many").unwrap();
    let mut cold = Vec::new();
    for _ in 0..15 {
        let replica = world.replica().await;
        let pack = replica.app.packs.get(&agent).unwrap();
        // The pool of connections to the database is warm, as in any process that serves somebody.
        replica.app.accounts.tenant(world.tenant.id).await.unwrap();
        let start = clock::instant();
        let toolset = toolset::select(&replica.app, &principal, &pack)
            .await
            .unwrap();
        cold.push(start.elapsed());
        assert_eq!(toolset.len(), SERVERS);
    }
    let cold = Times::of(cold);
    let pack = world.app().packs.get(&agent).unwrap();
    let mut warm = Vec::new();
    for _ in 0..2000 {
        let start = clock::instant();
        std::hint::black_box(
            toolset::select(world.app(), &principal, &pack)
                .await
                .unwrap(),
        );
        warm.push(start.elapsed());
    }
    let warm = Times::of(warm);
    let figure = format!("the toolset of a user with {SERVERS} personal servers, warm");
    row(
        &figure,
        &AtMost(Time(Duration::from_micros(200))),
        Time(warm.median()),
        &format!("p99 {}", Time(warm.percentile(99))),
    );
    let figure = "the same in a process that has not seen the user".to_owned();
    let remark = format!("slowest of {} {}", cold.count(), Time(cold.percentile(100)));
    row(
        &figure,
        &AtMost(Time(Duration::from_millis(5))),
        Time(cold.median()),
        &remark,
    );
}

/// What users cost who have a credential, and what it costs to have their connections open.
async fn connections(url: &str) {
    let database = TestDb::new().await;
    let deployment =
        Deployment::with_ring(&database.url, [("many".to_owned(), pack(1, url))], RING).await;
    let product = deployment.start().await;
    let first = deployment.user(&product, "first").await;
    enter(&first, 0).await;
    tokio::time::sleep(SETTLE).await;
    let before = product.resident();
    deployment.copy_credentials(STORED).await;
    // Everybody looks each second for what others changed.
    tokio::time::sleep(SETTLE).await;
    let each = (product.resident() - before).max(0.0) / 1e4;
    let figure = format!("memory of one of {STORED} users with a credential and nothing open");
    row(&figure, &AtMost(Bytes(16.0)), Bytes(each), "");

    let mut people = Vec::new();
    for at in 0..USERS {
        people.push((deployment.user(&product, &format!("user-{at}")).await, at));
    }
    let before = product.resident();
    let connected = stream::iter(&people).map(async |(person, _)| connect(person).await);
    let connected: Vec<()> = connected.buffer_unordered(AT_ONCE).collect().await;
    tokio::time::sleep(SETTLE).await;
    let open = product
        .until(|readiness| readiness["personal_connections"].as_u64() >= Some(1))
        .await;
    let open = open["personal_connections"].as_u64().unwrap();
    let each = (product.resident() - before) / f64::from(u32::try_from(connected.len()).unwrap());
    let figure = format!("memory of one of {USERS} users with an open personal connection");
    let remark = format!("{open} are open; {} in all", Bytes(product.resident()));
    row(
        &figure,
        &AtMost(Bytes(150.0 * 1024.0)),
        Bytes(each),
        &remark,
    );
    drop::<Product>(product);
}

async fn connect(person: &Client) {
    enter(person, 0).await;
    let answer = person
        .ask(
            "many",
            &format!("/call server-0 {TOOL} {{\"from\": \"EUR\", \"to\": \"USD\"}}"),
        )
        .await;
    assert!(answer.contains("1.085"), "{answer}");
}
