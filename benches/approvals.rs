//! Calls that wait for somebody's consent: deciding about them while what was approved runs, the count beside the
//! menu, and how soon somebody at another replica knows what came of it.

use std::{os::unix::fs::PermissionsExt, sync::Arc, time::Duration};

use chatelaine::{app::tools::approvals, cli::private_postgres::PrivatePostgres};
use domain::{
    clock,
    config::Environment,
    principal::{Audience, Principal},
};
use futures_util::{StreamExt, future::join_all, stream};
use serde_json::{Value, json};

use super::{
    product::{Deployment, Product},
    rates::{self, TOOL},
    support::{
        client::{Client, Events},
        world::{TIME_LIMIT, World},
    },
    table::{Amount::Time, Target::AtMost, Times, row},
};

/// Each has so many calls waiting; the server knows nine different ones.
const CLERKS: usize = 250;
const CALLS: usize = 8;
const CHIEFS: usize = 16;
const ROUNDS: usize = 200;
const ROWS: i32 = 100_000;
const PENDING: i32 = 200;
const COUNTS: usize = 500;
const RING: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0";
const CURRENCIES: [&str; 3] = ["EUR", "USD", "GBP"];

pub async fn measure() {
    let server = rates::start().await;
    badge(&server).await;
    // On a disk, which /tmp need not be.
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    // Root's server runs as another user, who must pass through.
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).unwrap();
    let private = PrivatePostgres::start(
        &folder.path().join("postgres"),
        &Environment::from_process(),
    )
    .await
    .unwrap();
    let deployment =
        Deployment::with_ring(private.url(), [("bank".to_owned(), pack(&server))], RING).await;
    let here = deployment.start().await;
    here.until_connected().await;
    decide(&deployment, &here).await;
    let there = deployment.start().await;
    there.until_connected().await;
    outcome(&deployment, &here, &there).await;
    drop::<[Product; 2]>([here, there]);
    private.stop().await.unwrap();
}

/// What a clerk asks for, a chief approves.
fn pack(server: &str) -> String {
    format!(
        r#"
metadata: {{ id: bank, displayName: Bank, description: Money, defaultLanguage: en }}
languages: {{ en: {{}} }}
llm: {{ provider: none }}
flows: {{ authentication: {{ required: true, rolesAttribute: roles }} }}
mcp:
  servers:
    - name: bank
      transport: streamable-http
      url: "{server}"
      toolAccess:
        default: none
        roles: {{ clerk: [{TOOL}] }}
        approval: [{{ tools: [{TOOL}], approvers: [chief] }}]
"#
    )
}

/// One of nine calls.
fn call(at: usize) -> String {
    let (from, to) = (CURRENCIES[at % 3], CURRENCIES[at / 3 % 3]);
    format!("/call bank {TOOL} {}", json!({ "from": from, "to": to }))
}

/// How long a decision takes, from the first byte of the request to the last of its answer.
async fn decide(deployment: &Deployment, product: &Product) {
    let clerks = stream::iter(0..CLERKS).map(async |at| {
        let clerk = deployment
            .member(product, &format!("clerk-{at}"), "clerk")
            .await;
        let conversation = clerk.open("bank").await;
        for at in 0..CALLS {
            clerk.say(&conversation, &call(at)).await;
        }
    });
    clerks.buffer_unordered(CHIEFS).collect::<()>().await;
    let mut chiefs = Vec::new();
    for at in 0..CHIEFS {
        chiefs.push(
            deployment
                .member(product, &format!("chief-{at}"), "chief")
                .await,
        );
    }
    let waiting = waiting(&chiefs[0]).await;
    let start = clock::instant();
    let decided = chiefs.into_iter().enumerate().map(|(at, chief)| {
        let mine: Vec<Value> = waiting.iter().skip(at).step_by(CHIEFS).cloned().collect();
        tokio::spawn(async move {
            let mut times = Vec::new();
            for request in mine {
                let start = clock::instant();
                approve(&chief, &request).await;
                times.push(start.elapsed());
            }
            times
        })
    });
    let times = Times::of(
        join_all(decided)
            .await
            .into_iter()
            .flat_map(Result::unwrap)
            .collect(),
    );
    let took = start.elapsed();
    let each = took / u32::try_from(times.count()).unwrap();
    let rate = times.count() as u128 * 1000 / took.as_millis();
    let remark = format!("{rate} a second; what is approved runs meanwhile; safe on disk");
    row(
        "decide about one of many (400 a second)",
        &AtMost(Time(Duration::from_micros(2500))),
        Time(each),
        &remark,
    );
    let figure = format!("a decision, {CHIEFS} at once, p99");
    let remark = format!("p50 {}", Time(times.median()));
    row(
        &figure,
        &AtMost(Time(Duration::from_millis(50))),
        Time(times.percentile(99)),
        &remark,
    );
}

/// Everything that waits for a chief, as soon as all of it does.
async fn waiting(chief: &Client) -> Vec<Value> {
    let deadline = clock::instant() + TIME_LIMIT * 10;
    loop {
        let (mut found, mut before) = (Vec::new(), String::new());
        loop {
            let page = chief
                .get(&format!("/v1/approvals?decidable=true&limit=100{before}"))
                .await
                .expect(200);
            found.extend(page["items"].as_array().unwrap().clone());
            let Some(next) = page["next"].as_str() else {
                break;
            };
            before = format!("&before={next}");
        }
        if found.len() == CLERKS * CALLS {
            return found;
        }
        assert!(
            clock::instant() < deadline,
            "only {} calls wait",
            found.len()
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn approve(chief: &Client, request: &Value) {
    let body = json!({ "decision": "approve", "args_sha256": request["args_sha256"] });
    let path = format!("/v1/approvals/{}/decision", request["id"].as_str().unwrap());
    chief.post(&path, body).await.expect(200);
}

/// From a chief's decision at one replica to the outcome that the clerk hears at the other, the call included.
async fn outcome(deployment: &Deployment, here: &Product, there: &Product) {
    let clerk = deployment.member(here, "somebody", "clerk").await;
    let chief = deployment.member(here, "chief-0", "chief").await;
    let conversation = clerk.open("bank").await;
    let mut events = there.listen(&clerk, &conversation).await;
    let mut times = Vec::new();
    for at in 0..ROUNDS {
        clerk.say(&conversation, &call(at)).await;
        let request = heard(&mut events, "pending").await;
        let start = clock::instant();
        let ((), _) = tokio::join!(approve(&chief, &request), heard(&mut events, "succeeded"));
        times.push(start.elapsed());
    }
    let times = Times::of(times);
    let figure = "from a decision to its outcome at another replica, p99";
    let remark = format!(
        "p50 {}; the call itself is part of it",
        Time(times.median())
    );
    row(
        figure,
        &AtMost(Time(Duration::from_millis(300))),
        Time(times.percentile(99)),
        &remark,
    );
}

/// The next request in this state that a conversation tells of.
async fn heard(events: &mut Events, state: &str) -> Value {
    loop {
        let event = events.next().await.expect("the stream ended");
        let parts = event.data["parts"].as_array().cloned().unwrap_or_default();
        if let Some(note) = parts
            .into_iter()
            .find(|part| part["type"] == "approval" && part["state"] == state)
        {
            return note;
        }
    }
}

/// How long it takes to count what waits for somebody, among many that do not.
async fn badge(server: &str) {
    let world = World::with(|setup| setup.packs = vec![("bank".to_owned(), pack(server))]).await;
    world.tools_ready().await;
    world
        .user("clerk", &["clerk"])
        .await
        .ask("bank", &call(0))
        .await;
    copy_requests(&world).await;
    let claims: Value = json!({ "roles": ["chief"] });
    let chief = Principal {
        tenant: world.tenant.id,
        user: serde_json::from_value(json!("chief")).unwrap(),
        claims: Arc::new(claims.as_object().unwrap().clone()),
        locale: None,
        authenticated: true,
        key: None,
        audience: Audience::default(),
    };
    let mut times = Vec::new();
    for _ in 0..COUNTS {
        let start = clock::instant();
        let waiting = approvals::decidable_count(world.app(), &chief)
            .await
            .unwrap();
        times.push(start.elapsed());
        assert_eq!(waiting, i64::from(PENDING) + 1);
    }
    let times = Times::of(times);
    let figure = format!("count the {PENDING} of {ROWS} requests that wait for somebody");
    let remark = format!("p99 {}", Time(times.percentile(99)));
    row(
        &figure,
        &AtMost(Time(Duration::from_millis(2))),
        Time(times.median()),
        &remark,
    );
}

/// Fills the table with copies of the one request there is. Nobody can execute them, and nobody does.
async fn copy_requests(world: &World) {
    let copy = "insert into approvals (tenant_id, id, code, state, agent, server, tool, about, fingerprint,
            args_sha256, sealed, credential, requester, principal, call_id, follow_up, approvers, min_approvals,
            self_approval, expires_at, finished_at)
        select tenant_id, gen_random_uuid(), code || n, case when n <= $2 then 'pending' else 'succeeded' end, agent,
            server, tool, about, fingerprint, sha256(n::text::bytea), sealed, credential, 'copy-' || n % 1000,
            principal, call_id, follow_up, approvers, min_approvals, self_approval, expires_at,
            case when n > $2 then clock_timestamp() end
        from approvals, generate_series(1, $1) n";
    let mut tenant = world.db.as_tenant(world.tenant.id).await;
    let copied = sqlx::query(copy)
        .bind(ROWS)
        .bind(PENDING)
        .execute(&mut tenant)
        .await
        .unwrap();
    assert_eq!(copied.rows_affected(), u64::from(ROWS.unsigned_abs()));
    sqlx::query("analyze approvals")
        .execute(&mut world.db.as_owner().await)
        .await
        .unwrap();
}
