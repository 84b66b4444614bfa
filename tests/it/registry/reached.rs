//! A server that is reached through an entry, and what it is told.

use serde_json::json;

use super::{Watched, entry, eventually, offered, open_localhost, other_admin, pack, put};
use crate::support::{
    has::Has,
    model::{call, text},
    world::World,
};

const DOCS: &str = r#"
mcpServers:
  docs:
    ref: context-store
    config: { zone: "agent's" }
    toolAccess: { default: public }
"#;

fn schema() -> serde_json::Value {
    json!({
        "context_id": { "type": "string", "required": true },
        "zone": { "type": "string" },
        "api_key": { "type": "string", "sensitive": true, "description": "A key" },
    })
}

#[tokio::test]
async fn a_server_is_told_its_configuration_and_the_model_is_not() {
    let bank = Watched::start().await;
    let world = World::with(|setup| {
        open_localhost(setup);
        setup.packs.push(pack("reader", DOCS));
    })
    .await;
    let (admin, ann) = (world.admin().await, world.user("ann", &[]).await);
    world.model.forbid("granted-1").forbid("ctx-default");
    let defaults =
        json!({ "context_id": "ctx-default", "zone": "registry's", "api_key": "${env.GRANTED}" });
    admin
        .post(
            "/mcp-servers",
            entry("context-store", &bank.url, schema(), defaults),
        )
        .await
        .expect(201);
    offered(&ann, "reader", "docs").await;
    let arguments = json!({ "from": "EUR", "to": "USD" }).to_string();
    world
        .model
        .reply(text("I look.").and_call(call("docs__get_exchange_rate", arguments)));
    world.model.reply(text("Done."));
    assert_eq!(ann.ask("reader", "EUR to USD?").await, "Done.");
    assert_eq!(bank.executions(), 1);
    let told = ["x-context-id", "x-zone", "x-api-key"].map(|name| bank.last(name));
    assert_eq!(
        told,
        ["ctx-default", "agent's", "granted-1"].map(|text| Some(text.to_owned()))
    );
    world.model.assert_clean();
    let seen = ann.get("/v1/agents/reader/servers").await;
    assert_eq!(seen.expect(200)["items"][0]["connection"]["state"], "ready");
    assert!(!seen.text.contains("ctx-default"), "{}", seen.text);
    ann.get("/v1/agents/reader/servers?explain=true")
        .await
        .expect(403);
}

#[tokio::test]
async fn a_change_reaches_every_replica_within_seconds() {
    let (first, second) = (Watched::start().await, Watched::start().await);
    let world = World::with(|setup| {
        open_localhost(setup);
        setup.packs.push(pack("reader", DOCS));
    })
    .await;
    let (admin, ann) = (world.admin().await, world.user("ann", &[]).await);
    let replica = world.replica().await;
    let at = |url: &str, context: &str| {
        entry(
            "context-store",
            url,
            schema(),
            json!({ "context_id": context }),
        )
    };
    admin
        .post("/mcp-servers", at(&first.url, "one"))
        .await
        .expect(201);
    offered(&ann, "reader", "docs").await;
    offered(&ann.at(&replica.url), "reader", "docs").await;
    put(
        &admin,
        "/mcp-servers/context-store",
        &at(&second.url, "two"),
    )
    .await
    .expect(200);
    let changed = domain::clock::instant();
    for url in [&world.url, &replica.url] {
        let at_replica = admin.at(url);
        eventually("the new address is in force", async || {
            let seen = at_replica
                .get("/v1/agents/reader/servers?explain=true")
                .await
                .expect(200);
            seen["items"][0]["explained"]["url"] == second.url
        })
        .await;
    }
    eventually("both replicas connect to it", async || {
        second.all("x-context-id") == ["two"] && second.seen.lock().unwrap().len() >= 2
    })
    .await;
    assert!(
        changed.elapsed().as_secs() < 10,
        "it took {:?}",
        changed.elapsed()
    );
    assert_eq!(
        first.all("x-context-id"),
        ["one"],
        "the old server hears nothing of the new configuration"
    );
}

#[tokio::test]
async fn the_view_says_where_each_value_is_from() {
    let world = World::with(|setup| {
        open_localhost(setup);
        std::fs::create_dir_all(setup.config.packs.join("capabilities")).unwrap();
        let research = r#"{"mcpServers": {"docs": {"ref": "context-store", "config": {"context_id": "${scope.context_id}"}}}}"#;
        std::fs::write(setup.config.packs.join("capabilities/research.yaml"), research).unwrap();
        let agent = "capabilities: [research]\nmcpServers: { docs: { ref: context-store, config: { zone: null }, toolAccess: { default: public } }, gone: { ref: nowhere, toolAccess: { default: public } } }";
        setup.packs.push(pack("reader", agent));
    })
    .await;
    let admin = world.admin().await;
    let defaults = json!({ "context_id": "default", "zone": "eu", "api_key": "${env.GRANTED}" });
    let url = "https://store.example.org/mcp";
    admin
        .post(
            "/mcp-servers",
            entry("context-store", url, schema(), defaults),
        )
        .await
        .expect(201);
    let seen = admin
        .get("/v1/agents/reader/servers?explain=true")
        .await
        .expect(200);
    let docs = &seen["items"][0];
    docs.has(json!({ "server": "docs", "ref": "context-store", "per_run": true }));
    let expected = json!([
        { "key": "api_key", "value": "${env.GRANTED}", "origin": "registry default", "note": "from registry default",
          "header": "X-Api-Key", "type": "string", "description": "A key", "required": false, "sensitive": true },
        { "key": "context_id", "value": "${scope.context_id}", "origin": "capability research",
          "note": "overrides registry default (default)", "header": "X-Context-Id", "type": "string", "required": true },
        { "key": "zone", "origin": "agent", "note": "removed by agent, was registry default (eu)", "header": "X-Zone",
          "type": "string", "required": false },
    ]);
    assert_eq!(docs["explained"]["config"], expected);
    let gone = seen["items"][1]["explained"]["problem"].as_str().unwrap();
    assert_eq!(
        gone,
        "Failed to resolve MCP server 'gone' (ref: nowhere): Not found in registry"
    );
}

#[tokio::test]
async fn a_tenants_server_is_sent_no_variable_that_was_not_granted() {
    let bank = Watched::start().await;
    let world = World::with(|setup| {
        open_localhost(setup);
        let config = "{ context_id: c, api_key: \"${env.OPERATORS_OWN}\" }";
        let docs = format!(
            "mcpServers: {{ docs: {{ ref: context-store, config: {config}, toolAccess: {{ default: public }} }} }}"
        );
        setup.packs.push(pack("reader", &docs));
    })
    .await;
    let admin = world.admin().await;
    admin
        .post(
            "/mcp-servers",
            entry("context-store", &bank.url, schema(), json!({})),
        )
        .await
        .expect(201);
    let seen = admin
        .get("/v1/agents/reader/servers?explain=true")
        .await
        .expect(200);
    let problem = seen["items"][0]["explained"]["problem"].as_str().unwrap();
    assert!(
        problem.contains("OPERATORS_OWN is not granted to the registry"),
        "{problem}"
    );
    let schema_only =
        json!({ "context_id": { "type": "string" }, "api_key": { "type": "string" } });
    put(
        &admin,
        "/mcp-servers/context-store",
        &entry("context-store", &bank.url, schema_only, json!({})),
    )
    .await
    .expect(200);
    admin
        .get("/v1/agents/reader/servers?explain=true")
        .await
        .expect(200);
    assert!(bank.seen.lock().unwrap().is_empty(), "nothing was sent");
}

#[tokio::test]
async fn an_entry_beside_the_pack_is_the_operators_and_no_tenant_changes_it() {
    let (operators, tenants) = (Watched::start().await, Watched::start().await);
    let world = World::with(|setup| {
        open_localhost(setup);
        let docs = "mcpServers: { docs: { ref: context-store, toolAccess: { default: public } } }";
        setup.packs.push(pack("reader", docs));
        let folder = setup.config.packs.join("reader/registry");
        std::fs::create_dir_all(&folder).unwrap();
        let defaults = json!({ "context_id": "operators", "api_key": "${env.OPERATORS_OWN}" });
        let own = entry("context-store", &operators.url, schema(), defaults);
        std::fs::write(folder.join("context-store.json"), own.to_string()).unwrap();
    })
    .await;
    let (admin, ann) = (world.admin().await, world.user("ann", &[]).await);
    let theirs = entry(
        "context-store",
        &tenants.url,
        schema(),
        json!({ "context_id": "tenants" }),
    );
    admin.post("/mcp-servers", theirs).await.expect(201);
    offered(&ann, "reader", "docs").await;
    assert_eq!(
        operators.last("x-api-key").as_deref(),
        Some("operator-0123456789")
    );
    assert!(tenants.seen.lock().unwrap().is_empty());
    admin.delete("/mcp-servers/context-store").await.expect(204);
}

#[tokio::test]
async fn two_tenants_reach_servers_of_their_own_by_the_same_name() {
    let (ours, theirs) = (Watched::start().await, Watched::start().await);
    let world = World::with(|setup| {
        open_localhost(setup);
        // The other tenant has the agent `bank` only.
        setup.packs[0] = pack("bank", DOCS);
    })
    .await;
    let (admin, other) = (world.admin().await, other_admin(&world).await);
    for (admin, bank, name) in [(&admin, &ours, "ours"), (&other, &theirs, "theirs")] {
        let body = entry(
            "context-store",
            &bank.url,
            schema(),
            json!({ "context_id": name }),
        );
        admin.post("/mcp-servers", body).await.expect(201);
    }
    offered(&world.user("ann", &[]).await, "bank", "docs").await;
    offered(&world.stranger("ann").await, "bank", "docs").await;
    assert_eq!(
        (ours.all("x-context-id"), theirs.all("x-context-id")),
        (vec!["ours".to_owned()], vec!["theirs".to_owned()])
    );
}

#[tokio::test]
async fn the_view_says_what_no_run_will_bring() {
    let world = World::with(|setup| {
        open_localhost(setup);
        let docs = "mcpServers: { docs: { ref: store, config: { zone: \"${scope.zone}\" }, toolAccess: { default: public } } }";
        setup.packs.push(pack("reader", docs));
    })
    .await;
    let admin = world.admin().await;
    let schema = json!({ "zone": { "type": "string", "required": true }, "api_key": { "type": "string", "required": true } });
    let url = "https://store.example.org/mcp";
    let mut body = entry(
        "store",
        url,
        schema,
        json!({ "api_key": { "$secret": "key" } }),
    );
    admin.post("/mcp-servers", body.clone()).await.expect(201);
    let problem = async || {
        let seen = admin
            .get("/v1/agents/reader/servers?explain=true")
            .await
            .expect(200);
        seen["items"][0]["explained"]["problem"].clone()
    };
    assert_eq!(
        problem().await,
        "Missing required value: $secret key for config key 'api_key'"
    );
    put(&admin, "/v1/secrets/key", &json!({ "value": "v" }))
        .await
        .expect(204);
    assert_eq!(problem().await, json!(null), "the rest is a run's to bring");
    body["auth"] = json!({ "type": "oauth2_client_credentials", "token_url": "https://login.example.org/token",
        "client_id": "id", "client_secret": { "$secret": "other" } });
    put(&admin, "/mcp-servers/store", &body).await.expect(200);
    assert_eq!(
        problem().await,
        "auth of MCP server 'docs': missing value: $secret other"
    );
}

#[tokio::test]
async fn a_variable_is_sent_to_the_host_it_was_granted_for_and_to_no_other() {
    let bank = Watched::start().await;
    let world = World::with(|setup| {
        open_localhost(setup);
        let granted = [
            "GRANTED@elsewhere.example",
            "DATABASE_URL@*",
            "ATLASSIAN_*@127.0.0.1",
        ];
        setup.config.registry_env = granted.map(str::to_owned).into();
    })
    .await;
    let admin = world.admin().await;
    let with = |variable: &str, url: &str| {
        let defaults = json!({ "zone": format!("${{env.{variable}}}") });
        entry(
            "context-store",
            url,
            json!({ "zone": { "type": "string" } }),
            defaults,
        )
    };
    for (variable, url) in [
        ("GRANTED", bank.url.as_str()),
        ("DATABASE_URL", bank.url.as_str()),
        ("GRANTED", "https://elsewhere.example.attacker.example/mcp"),
        ("GRANTED", "https://${scope.host}/elsewhere.example"),
    ] {
        let refused = admin.post("/mcp-servers", with(variable, url)).await;
        assert_eq!(refused.status, 400, "{variable} at {url}: {}", refused.text);
    }
    let allowed = with("ATLASSIAN_API_KEY", &bank.url);
    admin.post("/mcp-servers", allowed).await.expect(201);
    let moved = with("ATLASSIAN_API_KEY", "https://elsewhere.example/mcp");
    put(&admin, "/mcp-servers/context-store", &moved)
        .await
        .expect(400);
}

#[tokio::test]
async fn a_dead_server_of_one_tenants_registry_stops_no_start() {
    let bank = Watched::start().await;
    let world = World::with(|setup| {
        open_localhost(setup);
        setup.packs.push(pack(
            "reader",
            "mcpServers: { store: { ref: context-store, required: true, toolAccess: { default: public } } }",
        ));
    })
    .await;
    let admin = world.admin().await;
    let alive = entry("context-store", &bank.url, json!({}), json!({}));
    admin.post("/mcp-servers", alive).await.expect(201);
    let dead = entry(
        "context-store",
        "http://127.0.0.1:1/mcp",
        json!({}),
        json!({}),
    );
    put(&admin, "/mcp-servers/context-store", &dead)
        .await
        .expect(200);
    let world = world.stop().await.start().await;
    world.admin().await.get("/v1/me").await.expect(200);
}
