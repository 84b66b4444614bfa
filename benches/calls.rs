//! A tool call through the gate (decision, validation, audit) against the same call made with rmcp alone: one warm
//! connection each to the same server, the same revision of the protocol, in turns.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chatelaine::app::tools::{
    gate::{self, Call, CallTarget},
    toolset::{self, Toolset},
};
use domain::{
    clock,
    ids::{AgentId, RunId},
    json::Json,
    message::CallStatus,
    policy::Origin,
    principal::{Audience, Principal},
};
use rmcp::{
    ClientLifecycleMode, ClientServiceExt, RoleClient,
    model::{CallToolRequestParams, ProtocolVersion},
    service::RunningService,
    transport::{
        StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

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

#[derive(Clone, Copy)]
enum Way {
    Gate,
    Rmcp,
}

struct Sides {
    world: World,
    principal: Principal,
    toolset: Arc<Toolset>,
    direct: RunningService<RoleClient, ()>,
}

pub async fn measure() {
    let sides = Arc::new(Sides::new().await);
    // Everything is connected and compiled before the first call that counts.
    for at_once in [1, MANY] {
        compare(&sides, at_once, 2, 20).await;
    }
    let (gate, rmcp) = compare(&sides, 1, 20, 200).await;
    let ratios = gate.iter().zip(&rmcp).map(|(gate, rmcp)| {
        Times::of(gate.each.clone()).median().as_secs_f64()
            / Times::of(rmcp.each.clone()).median().as_secs_f64()
    });
    let middle = |rounds: &[Round]| {
        Time(Times::of(rounds.iter().flat_map(|round| round.each.clone()).collect()).median())
    };
    let remark = format!("{} against {}", middle(&gate), middle(&rmcp));
    let figure = "time of a call through the gate, of rmcp's own; one at a time";
    row(
        figure,
        &AtMost(Factor(1.5)),
        Factor(median(ratios.collect())),
        &remark,
    );

    let (gate, rmcp) = compare(&sides, MANY, 15, 15).await;
    let ratios = gate
        .iter()
        .zip(&rmcp)
        .map(|(gate, rmcp)| gate.rate() / rmcp.rate());
    let middle = |rounds: &[Round]| median(rounds.iter().map(Round::rate).collect());
    let remark = format!("{:.0} a second against {:.0}", middle(&gate), middle(&rmcp));
    let figure = format!("throughput of the gate, of rmcp's own; {MANY} at once");
    row(
        &figure,
        &AtLeast(Factor(0.6)),
        Factor(median(ratios.collect())),
        &remark,
    );
}

/// `rounds` of both ways in turns; in each round, `at_once` callers make `each` calls.
async fn compare(
    sides: &Arc<Sides>,
    at_once: usize,
    rounds: usize,
    each: usize,
) -> (Vec<Round>, Vec<Round>) {
    let (mut gate, mut rmcp) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        for (way, all) in [(Way::Gate, &mut gate), (Way::Rmcp, &mut rmcp)] {
            let sides = sides.clone();
            let call = move || {
                let sides = sides.clone();
                async move { sides.call(way).await }
            };
            all.push(Round::run(at_once, each, call).await);
        }
    }
    (gate, rmcp)
}

impl Sides {
    async fn new() -> Self {
        let url = rates::start().await;
        let world =
            World::with(|setup| setup.env = setup.env.clone().with("BANK_URL", url.clone())).await;
        world.tools_ready().await;
        let claims = [("roles".to_owned(), json!(["finance"]))]
            .into_iter()
            .collect();
        let principal = Principal {
            tenant: world.tenant.id,
            user: serde_json::from_value(json!("bob")).unwrap(),
            claims: Arc::new(claims),
            locale: None,
            authenticated: true,
            key: None,
            audience: Audience::default(),
        };
        let pack = world
            .app()
            .packs
            .get(&AgentId::parse("bank").unwrap())
            .unwrap();
        let toolset = toolset::select(world.app(), &principal, &pack)
            .await
            .unwrap();
        let config =
            StreamableHttpClientTransportConfig::with_uri(url).max_concurrent_requests(2 * MANY);
        let mode = ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        };
        // rmcp's own choice would be a new connection for each call.
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let transport = StreamableHttpClientTransport::with_client(client, config);
        let direct = ().serve_with_lifecycle(transport, mode).await.unwrap();
        Self {
            world,
            principal,
            toolset,
            direct,
        }
    }

    /// Makes one call; answers how long it took.
    async fn call(&self, way: Way) -> Duration {
        let arguments = json!({ "from": "EUR", "to": "USD" });
        let start = clock::instant();
        match way {
            Way::Gate => self.through_the_gate(arguments, start).await,
            Way::Rmcp => self.with_rmcp_alone(arguments, start).await,
        }
    }

    async fn through_the_gate(&self, arguments: Value, start: Instant) -> Duration {
        // Nobody reports progress here, as little as the server does.
        let (progress, _reports) = mcp::progress_channel();
        let call = Call {
            principal: &self.principal,
            toolset: &self.toolset,
            run: Some(RunId::new()),
            call_id: "call_1",
            line: None,
            is_recorded: false,
            target: CallTarget::Pair {
                server: "bank",
                tool: TOOL,
            },
            origin: Origin::Chat,
            arguments: Ok(Json::from(&arguments)),
            ambiguity: None,
            progress,
            cancel: CancellationToken::new(),
            elicitation: None,
            shows_requests: false,
        };
        let result = gate::call(self.world.app(), call).await;
        let took = start.elapsed();
        assert_eq!(result.status, CallStatus::Succeeded, "{}", result.text);
        took
    }

    async fn with_rmcp_alone(&self, arguments: Value, start: Instant) -> Duration {
        let Value::Object(arguments) = arguments else {
            unreachable!("just made")
        };
        let result = self
            .direct
            .call_tool(CallToolRequestParams::new(TOOL).with_arguments(arguments))
            .await
            .unwrap();
        let took = start.elapsed();
        assert_ne!(result.is_error, Some(true));
        took
    }
}
