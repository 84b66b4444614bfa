//! How much a tenant may define, and what the document keeps for later.

use serde_json::{Value, json};

use super::{entry, pack, put, world};
use crate::support::{has::Has, world::World};

const URL: &str = "https://mcp.example.org/mcp";

/// Fills a table up to this many rows of the tenant.
async fn fill(world: &World, sql: &'static str) {
    let mut db = world.db.as_tenant(world.tenant.id).await;
    sqlx::query(sql)
        .bind(world.tenant.id.0)
        .execute(&mut db)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_tenant_has_a_thousand_servers_and_a_thousand_secrets_at_most() {
    let world = world().await;
    let admin = world.admin().await;
    put(&admin, "/v1/secrets/token", &json!({ "value": "one" }))
        .await
        .expect(204);
    fill(
        &world,
        "insert into mcp_servers (tenant_id, id, entry, name, definition, version)
         select $1, gen_random_uuid(), 'full-' || n, 'Full', '{\"id\":\"full\",\"url\":\"https://full.example.org\"}', 1
         from generate_series(1, 999) n on conflict do nothing",
    )
    .await;
    fill(
        &world,
        "insert into secrets (tenant_id, id, name, sealed, version)
         select $1, gen_random_uuid(), 'full-' || n, sealed, 1 from secrets, generate_series(1, 999) n
         on conflict do nothing",
    )
    .await;
    let one = |id: &str| entry(id, URL, json!({}), json!({}));
    admin.post("/mcp-servers", one("last")).await.expect(201);
    let full = admin.post("/mcp-servers", one("more")).await.expect(409);
    full.has(json!({
        "code": "limit_reached",
        "detail": "there are 1000 MCP servers, and there may be 1000 at most; remove one first",
    }));
    let full = put(&admin, "/v1/secrets/more", &json!({ "value": "v" }))
        .await
        .expect(409);
    assert_eq!(
        full["detail"],
        "there are 1000 secrets, and there may be 1000 at most; remove one first"
    );
    put(&admin, "/v1/secrets/token", &json!({ "value": "another" }))
        .await
        .expect(204);
    put(&admin, "/mcp-servers/last", &one("last"))
        .await
        .expect(200);
    admin.delete("/mcp-servers/full-1").await.expect(204);
    admin.post("/mcp-servers", one("more")).await.expect(201);
}

#[tokio::test]
async fn a_definition_that_is_too_large_is_refused() {
    let world = world().await;
    let admin = world.admin().await;
    let schema = |keys: usize, words: usize| {
        let key = |at| {
            (
                format!("key_{at}"),
                json!({ "type": "string", "description": "d".repeat(words) }),
            )
        };
        Value::Object((0..keys).map(key).collect())
    };
    for (schema, field, reason) in [
        (schema(20, 4000), "body", "is longer than 65536 bytes"),
        (schema(65, 1), "config_schema", "has more than 64 keys"),
        (
            schema(1, 4001),
            "config_schema.key_0.description",
            "must have at most 4000 characters",
        ),
    ] {
        let refused = admin
            .post("/mcp-servers", entry("big", URL, schema, json!({})))
            .await
            .expect(400);
        assert_eq!(refused["field"], field, "{refused}");
        refused["detail"].says(reason);
    }
    let vast = json!({ "id": "vast", "url": URL, "description": "d".repeat(2_000_000) });
    admin.post("/mcp-servers", vast).await.expect(413);
    admin
        .post(
            "/mcp-servers",
            entry("big", URL, schema(15, 4000), json!({})),
        )
        .await
        .expect(201);
}

/// The document's own.
const SCOPE_SCHEMA: &str = r#"{
  "scope_schema": {
    "context_id": {"type": "string", "description": "Context for document scoping"},
    "workflow_id": {"type": "string", "description": "Workflow correlation"}
  }
}"#;

#[tokio::test]
async fn a_scope_schema_tells_whoever_starts_runs_what_to_give() {
    let world = World::with(|setup| {
        super::open_localhost(setup);
        let config = "{ context_id: \"${scope.context_id}\", tag: \"${scope.tag}\" }";
        let docs =
            format!("mcpServers: {{ docs: {{ ref: store, config: {config}, toolAccess: {{ default: public }} }} }}");
        setup.packs.push(pack("reader", &docs));
    })
    .await;
    let (admin, ann) = (world.admin().await, world.user("ann", &[]).await);
    let schema = json!({ "context_id": { "type": "string", "required": true }, "tag": { "type": "string" } });
    let mut body = entry("store", URL, schema, json!({}));
    let documented: Value = serde_json::from_str(SCOPE_SCHEMA).unwrap();
    body["scope_schema"] = documented["scope_schema"].clone();
    let created = admin.post("/mcp-servers", body.clone()).await.expect(201);
    assert_eq!(created["scope_schema"], documented["scope_schema"]);
    let seen = ann.get("/v1/agents/reader/servers").await.expect(200);
    let expected = json!([
        { "key": "context_id", "required": true, "type": "string", "description": "Context for document scoping" },
        { "key": "tag", "required": false },
        { "key": "workflow_id", "required": false, "type": "string", "description": "Workflow correlation" },
    ]);
    assert_eq!(seen["items"][0]["scope"], expected);
    // It says what there is; a scope is not checked against it.
    world
        .model
        .on(|_| Some(crate::support::model::text("Hello.")));
    let scope = json!({ "context_id": 7, "workflow_id": false, "else": [] });
    ann.post(
        "/runs",
        json!({ "agent_name": "reader", "prompt": "hi", "scope": scope }),
    )
    .await
    .expect(202);
    for (keys, field, reason) in [
        (
            json!({ "a b": { "type": "string" } }),
            "scope_schema.a b",
            "is not a usable key",
        ),
        (
            json!({ "a": { "type": "text" } }),
            "scope_schema.a.type",
            "must be one of",
        ),
        (
            json!({ "a": { "type": "string", "required": true } }),
            "scope_schema.a.required",
            "is not known here",
        ),
    ] {
        body["scope_schema"] = keys;
        let refused = put(&admin, "/mcp-servers/store", &body).await.expect(400);
        assert_eq!(refused["field"], field, "{refused}");
        refused["detail"].says(reason);
    }
}
