//! Values of a run: what the second half of the registry's work builds on.

use std::sync::Arc;

use chatelaine::app::{
    servers::registry::{self, ResolutionError},
    tools::{
        gate::{self, Call, CallTarget},
        toolset,
    },
};
use domain::{
    error::{Error, ErrorCode},
    ids::{AgentId, RunId},
    json::{Json, Members},
    message::{CallStatus, ToolResult},
    pack::Pack,
    policy::Origin,
    principal::{Audience, Principal},
    registry::resolve::{ReferenceValues, ResolveError},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Watched, entry, open_localhost, pack};
use crate::support::world::World;

const SCOPED: &str = r#"
mcpServers:
  docs:
    ref: context-store
    config: { context_id: "${scope.context_id}", workflow_id: "${scope.workflow_id}" }
    toolAccess: { default: public }
"#;

async fn world(bank: &Watched) -> World {
    let world = World::with(|setup| {
        open_localhost(setup);
        setup.packs.push(pack("reader", SCOPED));
    })
    .await;
    let schema = json!({ "context_id": { "type": "string", "required": true }, "workflow_id": { "type": "string" } });
    let body = entry(
        "context-store",
        &bank.url,
        schema,
        json!({ "context_id": "default" }),
    );
    world
        .admin()
        .await
        .post("/mcp-servers", body)
        .await
        .expect(201);
    world
}

fn base(world: &World) -> Arc<Pack> {
    world
        .app()
        .packs
        .get(&AgentId::parse("reader").unwrap())
        .unwrap()
}

fn scope(values: &Value) -> ReferenceValues {
    ReferenceValues::default().scope(&values.as_object().map(Members::from).unwrap_or_default())
}

fn principal(world: &World) -> Principal {
    Principal {
        tenant: world.tenant.id,
        user: domain::ids::UserId("ann".into()),
        authenticated: true,
        claims: Arc::default(),
        locale: None,
        key: None,
        audience: Audience::default(),
    }
}

/// Calls a tool as a run with these values would.
async fn called(world: &World, values: &ReferenceValues) -> ToolResult {
    let pack = registry::pack_for_run(world.app(), world.tenant.id, &base(world), values)
        .await
        .unwrap();
    let principal = principal(world);
    let toolset = toolset::select(world.app(), &principal, &pack)
        .await
        .unwrap();
    let call = Call {
        principal: &principal,
        toolset: &toolset,
        run: Some(RunId::new()),
        call_id: "c1",
        line: None,
        is_recorded: false,
        target: CallTarget::Pair {
            server: "docs",
            tool: "get_exchange_rate",
        },
        origin: Origin::Mcp,
        arguments: Ok(Json::from(&json!({ "from": "EUR", "to": "USD" }))),
        ambiguity: None,
        progress: mcp::progress_channel().0,
        cancel: CancellationToken::default(),
        elicitation: None,
        shows_requests: false,
    };
    gate::call(world.app(), call).await
}

#[tokio::test]
async fn a_server_that_needs_a_runs_values_is_there_within_runs_only() {
    let bank = Watched::start().await;
    let world = world(&bank).await;
    let outside = registry::pack_for(world.app(), world.tenant.id, &base(&world))
        .await
        .unwrap();
    assert!(outside.servers.is_empty());
    let ann = world.user("ann", &[]).await;
    assert_eq!(
        ann.get("/v1/agents/reader/tools").await.expect(200)["items"],
        json!([])
    );
    assert!(
        bank.seen.lock().unwrap().is_empty(),
        "nobody connects without the values"
    );
    let result = called(&world, &scope(&json!({ "context_id": "sprint-42" }))).await;
    assert_eq!(result.status, CallStatus::Succeeded, "{}", result.text);
    assert_eq!(bank.last("x-context-id").as_deref(), Some("sprint-42"));
    assert_eq!(bank.last("x-workflow-id"), None, "optional, and not given");
}

#[tokio::test]
async fn runs_with_other_values_share_no_connection() {
    let bank = Watched::start().await;
    let world = world(&bank).await;
    let [a, b] = ["a", "b"].map(|id| scope(&json!({ "context_id": id, "workflow_id": 7 })));
    let both = tokio::join!(called(&world, &a), called(&world, &b));
    assert_eq!(
        (both.0.status, both.1.status),
        (CallStatus::Succeeded, CallStatus::Succeeded)
    );
    assert_eq!(bank.all("x-context-id"), ["a", "b"]);
    assert_eq!(bank.all("x-workflow-id"), ["7"]);
    let keys = async |values: &ReferenceValues| {
        let resolved = registry::resolve(world.app(), world.tenant.id, &base(&world), values)
            .await
            .unwrap();
        assert!(resolved[0].per_run);
        resolved[0]
            .spec
            .run_config
            .expect("reached with values of the run")
    };
    assert_ne!(keys(&a).await, keys(&b).await);
    assert_eq!(
        keys(&a).await,
        keys(&scope(&json!({ "context_id": "a", "workflow_id": "7" }))).await
    );
    let before = bank.seen.lock().unwrap().len();
    called(&world, &a).await;
    assert_eq!(
        bank.seen.lock().unwrap().len(),
        before + 1,
        "a warm call is one request"
    );
}

#[tokio::test]
async fn a_run_without_a_required_value_is_refused_in_the_documents_words() {
    let bank = Watched::start().await;
    let world = world(&bank).await;
    let refused = registry::resolve(
        world.app(),
        world.tenant.id,
        &base(&world),
        &scope(&json!({})),
    )
    .await;
    let Err(ResolutionError::Config(error @ ResolveError::Missing { .. })) = refused else {
        panic!("it was resolved")
    };
    assert_eq!(
        error.to_string(),
        "Missing required value: scope.context_id for config key 'context_id'"
    );
    let error = Error::from(error);
    assert_eq!(
        (error.code(), error.to_string().split(": ").next().unwrap()),
        (ErrorCode::MissingField, "scope.context_id")
    );
}

#[tokio::test]
async fn a_value_of_a_run_is_kept_out_of_what_the_server_says() {
    let bank = Watched::start().await;
    let world = world(&bank).await;
    let (pack, values) = (
        base(&world),
        scope(&json!({ "context_id": "tok-en-0123456789" })),
    );
    let resolved = registry::resolve(world.app(), world.tenant.id, &pack, &values)
        .await
        .unwrap();
    let spec = &resolved[0].spec;
    let scrubber = domain::scrub::Scrubber::of(spec);
    assert_eq!(
        scrubber.text("it is tok-en-0123456789!").as_deref(),
        Some("it is ••••!")
    );
    assert!(!format!("{spec:?}").contains("tok-en-0123456789"));
}
