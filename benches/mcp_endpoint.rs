//! A tool call by HTTP through `/mcp/{agent}` (token, roles, schema, limits, audit) against the same request sent to the
//! server itself: the same client, connections that are kept, in turns.

use std::{sync::Arc, time::Duration};

use domain::clock;
use futures_util::{FutureExt, future::BoxFuture};
use http::header;
use serde_json::{Value, json};

use super::{
    rates::{self, TOOL},
    round::Round,
    support::world::World,
    table::{
        Amount::{Factor, Time},
        Target::{AtLeast, AtMost},
        Times, median, row,
    },
};

const MANY: usize = 64;
const REVISION: &str = "2026-07-28";

/// One way to make the call.
struct Way {
    http: reqwest::Client,
    url: String,
    token: String,
    tool: String,
}

pub async fn measure() {
    let server = rates::start().await;
    let world = World::with(|setup| {
        setup.env = setup.env.clone().with("BANK_URL", server.clone());
        setup.config.requests_per_minute = u32::MAX;
        setup.config.max_requests = 4096;
    })
    .await;
    world.tools_ready().await;
    let bob = world.user("bob", &["finance"]).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let way = |url: String, tool: String| {
        Arc::new(Way {
            http: http.clone(),
            url,
            token: bob.token().to_owned(),
            tool,
        })
    };
    let direct = way(server, TOOL.to_owned());
    let ours = way(format!("{}/mcp/bank", world.url), format!("bank__{TOOL}"));
    for at_once in [1, MANY] {
        compare(&direct, &ours, at_once, 2, 20).await;
    }

    let rounds = compare(&direct, &ours, 1, 20, 200).await;
    let added = rounds.iter().map(|(direct, ours)| {
        let middle = |round: &Round| Times::of(round.each.clone()).median().as_secs_f64();
        (middle(ours) - middle(direct)).max(0.0)
    });
    row(
        "time that the MCP endpoint adds to a call; one at a time",
        &AtMost(Time(Duration::from_micros(80))),
        Time(Duration::from_secs_f64(median(added.collect()))),
        "above the same request sent to the server itself",
    );

    let rounds = compare(&direct, &ours, MANY, 15, 30).await;
    let ratios = rounds
        .iter()
        .map(|(direct, ours)| ours.rate() / direct.rate());
    let (direct, ours): (Vec<_>, Vec<_>) = rounds
        .iter()
        .map(|(direct, ours)| (direct.rate(), ours.rate()))
        .unzip();
    let remark = format!("{:.0} a second against {:.0}", median(ours), median(direct));
    row(
        &format!("throughput of the MCP endpoint, of the server itself; {MANY} at once"),
        &AtLeast(Factor(0.5)),
        Factor(median(ratios.collect())),
        &remark,
    );
}

/// `rounds` of both ways in turns; in each round, `at_once` callers make `each` calls.
async fn compare(
    direct: &Arc<Way>,
    ours: &Arc<Way>,
    at_once: usize,
    rounds: usize,
    each: usize,
) -> Vec<(Round, Round)> {
    let mut all = Vec::new();
    for _ in 0..rounds {
        let direct = Round::run(at_once, each, calls(direct)).await;
        all.push((direct, Round::run(at_once, each, calls(ours)).await));
    }
    all
}

/// Calls in this way, timed.
fn calls(way: &Arc<Way>) -> impl Fn() -> BoxFuture<'static, Duration> + Clone + use<> {
    let way = way.clone();
    move || {
        let way = way.clone();
        async move {
            let start = clock::instant();
            way.call().await;
            start.elapsed()
        }
        .boxed()
    }
}

impl Way {
    async fn call(&self) {
        let params = json!({
            "name": self.tool,
            "arguments": { "from": "EUR", "to": "USD" },
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": REVISION,
                "io.modelcontextprotocol/clientInfo": { "name": "bench", "version": "1" },
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let request = self
            .http
            .post(&self.url)
            .bearer_auth(&self.token)
            .header(header::ACCEPT, "application/json, text/event-stream")
            .header("mcp-protocol-version", REVISION)
            .header("mcp-method", "tools/call")
            .header("mcp-name", &self.tool)
            .json(&body);
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        assert!(
            answer["result"]["structuredContent"]["rate"].is_string(),
            "{answer}"
        );
    }
}
