//! What never comes back: sensitive values of entries, secrets of the tenant, in the API and in the rows.

use serde_json::{Value, json};
use sqlx::Row;

use super::{entry, pack, put, world};
use crate::support::{client::Client, has::Has, world::World};

const VALUE: &str = "sk-literal-0123456789";
const MASK: &str = "••••";

fn store(url: &str, default: Value) -> Value {
    entry(
        "store",
        url,
        json!({ "api_key": { "type": "string", "sensitive": true }, "zone": { "type": "string" } }),
        default,
    )
}

const URL: &str = "https://store.example.org/mcp";

async fn stored(admin: &Client) -> Value {
    let created = admin
        .post(
            "/mcp-servers",
            store(URL, json!({ "api_key": VALUE, "zone": "eu" })),
        )
        .await;
    assert!(!created.text.contains(VALUE));
    created.expect(201)
}

/// What is sealed now, as the resolver sees it.
async fn in_force(world: &World) -> Option<String> {
    use chatelaine::app::servers::registry;
    use domain::{ids::AgentId, registry::resolve::ReferenceValues};
    let pack = world
        .app()
        .packs
        .get(&AgentId::parse("uses").unwrap())
        .unwrap();
    let resolved = registry::resolve(
        world.app(),
        world.tenant.id,
        &pack,
        &ReferenceValues::default(),
    )
    .await
    .unwrap();
    let key = resolved[0].config.iter().find(|key| key.key == "api_key");
    key.map(|key| key.value.expose().to_owned())
}

async fn world_with_user() -> World {
    World::with(|setup| {
        super::open_localhost(setup);
        setup.packs.push(pack(
            "uses",
            "mcpServers: { s: { ref: store, toolAccess: { default: public } } }",
        ));
    })
    .await
}

#[tokio::test]
async fn a_sensitive_value_is_masked_wherever_it_could_be_read() {
    let world = world_with_user().await;
    let admin = world.admin().await;
    let created = stored(&admin).await;
    assert_eq!(
        created["default_config"],
        json!({ "api_key": MASK, "zone": "eu" })
    );
    for path in [
        "/mcp-servers",
        "/mcp-servers/store",
        "/v1/agents/uses/servers?explain=true",
    ] {
        let answer = admin.get(path).await;
        answer.expect(200);
        assert!(
            answer.text.contains(MASK) && !answer.text.contains(VALUE),
            "{path}: {}",
            answer.text
        );
    }
    let rows =
        sqlx::query("select definition::text || encode(sealed, 'escape') as row from mcp_servers")
            .fetch_all(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
    assert!(
        !rows[0].get::<String, _>("row").contains(VALUE),
        "it is sealed in the row"
    );
    assert_eq!(in_force(&world).await.as_deref(), Some(VALUE));
}

#[tokio::test]
async fn a_reference_may_be_read_even_of_a_sensitive_key() {
    let world = world().await;
    let admin = world.admin().await;
    for default in [json!("${env.GRANTED}"), json!({ "$secret": "name" })] {
        let body = store(URL, json!({ "api_key": default }));
        let created = admin.post("/mcp-servers", body).await.expect(201);
        assert_eq!(created["default_config"]["api_key"], default);
        admin.delete("/mcp-servers/store").await.expect(204);
    }
    let mixed = admin
        .post(
            "/mcp-servers",
            store(URL, json!({ "api_key": "Bearer abc${env.GRANTED}" })),
        )
        .await;
    assert_eq!(mixed.expect(201)["default_config"]["api_key"], MASK);
}

#[tokio::test]
async fn a_sensitive_value_that_is_left_out_or_masked_stays() {
    let world = world_with_user().await;
    let admin = world.admin().await;
    stored(&admin).await;
    let path = "/mcp-servers/store";
    put(&admin, path, &store(URL, json!({ "zone": "us" })))
        .await
        .expect(200);
    assert_eq!(in_force(&world).await.as_deref(), Some(VALUE), "left out");
    let read = admin.get(path).await.expect(200);
    assert!(read["updated_at"].is_string());
    put(&admin, path, &read).await.expect(200);
    assert_eq!(
        in_force(&world).await.as_deref(),
        Some(VALUE),
        "what was read is sent back"
    );
    put(
        &admin,
        path,
        &store(URL, json!({ "api_key": "another-0123456789" })),
    )
    .await
    .expect(200);
    assert_eq!(
        in_force(&world).await.as_deref(),
        Some("another-0123456789"),
        "replaced"
    );
    put(&admin, path, &store(URL, json!({ "api_key": null })))
        .await
        .expect(200);
    assert_eq!(in_force(&world).await, None, "taken away");
}

#[tokio::test]
async fn a_sensitive_value_does_not_follow_the_server_to_another_host() {
    let world = world_with_user().await;
    let admin = world.admin().await;
    stored(&admin).await;
    for default in [json!({}), json!({ "api_key": MASK })] {
        let moved = put(
            &admin,
            "/mcp-servers/store",
            &store("https://evil.example.org/mcp", default),
        )
        .await
        .expect(400);
        assert_eq!(moved["field"], "default_config.api_key");
        moved["detail"].says("not taken along to another host");
    }
    put(
        &admin,
        "/mcp-servers/store",
        &store("https://store.example.org/v2/mcp", json!({})),
    )
    .await
    .expect(200);
    assert_eq!(
        in_force(&world).await.as_deref(),
        Some(VALUE),
        "the same host"
    );
    put(
        &admin,
        "/mcp-servers/store",
        &store("https://new.example.org/mcp", json!({ "api_key": null })),
    )
    .await
    .expect(200);
}

#[tokio::test]
async fn a_key_that_is_sensitive_no_more_does_not_show_what_it_was() {
    let world = world_with_user().await;
    let admin = world.admin().await;
    stored(&admin).await;
    let open = |default: Value| {
        entry(
            "store",
            URL,
            json!({ "api_key": { "type": "string" } }),
            default,
        )
    };
    let refused = put(
        &admin,
        "/mcp-servers/store",
        &open(json!({ "api_key": MASK })),
    )
    .await
    .expect(400);
    refused["detail"].says("sensitive any more");
    let opened = put(&admin, "/mcp-servers/store", &open(json!({}))).await;
    assert!(!opened.text.contains(VALUE), "{}", opened.text);
    assert_eq!(in_force(&world).await, None);
}

#[tokio::test]
async fn a_secret_that_no_header_can_carry_is_refused_when_it_is_written() {
    let world = World::shared().await;
    let admin = world.admin().await;
    for value in ["a\nb", "a\0", "Zürich"] {
        let refused = put(&admin, "/v1/secrets/token", &json!({ "value": value })).await;
        let problem = refused.expect(400);
        assert_eq!(problem["field"], "value");
        assert!(!refused.text.contains(value), "{problem}");
    }
}

#[tokio::test]
async fn secrets_are_written_and_only_their_names_are_read() {
    let world = world_with_user().await;
    let admin = world.admin().await;
    put(
        &admin,
        "/v1/secrets/atlassian-api-key",
        &json!({ "value": VALUE }),
    )
    .await
    .expect(204);
    let listed = admin.get("/v1/secrets").await;
    assert_eq!(listed.expect(200)["items"][0]["name"], "atlassian-api-key");
    assert!(!listed.text.contains(VALUE));
    admin.get("/v1/secrets/atlassian-api-key").await.expect(405);
    // The document's own default.
    let body = store(URL, json!({ "api_key": {"$secret": "atlassian-api-key"} }));
    admin.post("/mcp-servers", body).await.expect(201);
    assert_eq!(in_force(&world).await.as_deref(), Some(VALUE));
    put(
        &admin,
        "/v1/secrets/atlassian-api-key",
        &json!({ "value": "second-0123456789" }),
    )
    .await
    .expect(204);
    assert_eq!(in_force(&world).await.as_deref(), Some("second-0123456789"));
    let used = admin
        .delete("/v1/secrets/atlassian-api-key")
        .await
        .expect(409);
    assert_eq!(used["code"], "secret_in_use");
    used["detail"].says("is used by MCP server 'store'");
    put(&admin, "/mcp-servers/store", &store(URL, json!({})))
        .await
        .expect(200);
    admin
        .delete("/v1/secrets/atlassian-api-key")
        .await
        .expect(204);
    admin
        .delete("/v1/secrets/atlassian-api-key")
        .await
        .expect(404);
}

#[tokio::test]
async fn an_entry_whose_secret_cannot_be_opened_is_seen_and_replaced() {
    let world = world_with_user().await;
    let admin = world.admin().await;
    stored(&admin).await;
    let spoilt = "update mcp_servers set sealed = set_byte(sealed, 60, get_byte(sealed, 60) # 255), version = 2";
    sqlx::query(spoilt)
        .execute(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    let listed = admin.get("/mcp-servers").await.expect(200);
    assert_eq!(
        listed["items"][0]["default_config"],
        json!({ "zone": "eu" })
    );
    let masked = put(
        &admin,
        "/mcp-servers/store",
        &store(URL, json!({ "api_key": MASK })),
    )
    .await
    .expect(400);
    masked["detail"].says("enter one");
    put(
        &admin,
        "/mcp-servers/store",
        &store(URL, json!({ "api_key": "anew-0123456789" })),
    )
    .await
    .expect(200);
    assert_eq!(in_force(&world).await.as_deref(), Some("anew-0123456789"));
}

#[tokio::test]
async fn a_secret_that_cannot_be_one_is_refused() {
    let world = world().await;
    let admin = world.admin().await;
    let put =
        async |name: &str, body: Value| put(&admin, &format!("/v1/secrets/{name}"), &body).await;
    assert_eq!(
        put("a%2Fb", json!({ "value": "v" })).await.expect(400)["field"],
        "name"
    );
    assert_eq!(
        put(&"a".repeat(65), json!({ "value": "v" }))
            .await
            .expect(400)["field"],
        "name"
    );
    assert_eq!(
        put("token", json!({ "value": "" })).await.expect(400)["field"],
        "value"
    );
    let wrong = put("token", json!({ "value": 12_345_678 })).await;
    assert_eq!(wrong.expect(400)["field"], "value");
    assert!(
        !wrong.text.contains("12345678"),
        "an error repeats no value: {}",
        wrong.text
    );
}

#[tokio::test]
async fn the_value_of_a_variable_is_not_said_back_by_an_address_that_is_refused() {
    let world = world().await;
    let admin = world.admin().await;
    let token_url = |url: &str| {
        let mut body = store(URL, json!({}));
        body["auth"] = json!({ "type": "oauth2_client_credentials", "token_url": url, "client_id": "i", "client_secret": "s" });
        body
    };
    let bad = "http://${env.ATLASSIAN_API_KEY}/mcp";
    for (body, field) in [
        (store(bad, json!({})), "url"),
        (
            store(
                "https://${env.ATLASSIAN_API_KEY}.internal/${scope.x}",
                json!({}),
            ),
            "url",
        ),
        (token_url(bad), "auth.token_url"),
    ] {
        let refused = admin.post("/mcp-servers", body).await;
        let problem = refused.expect(400);
        assert_eq!(problem["field"], field);
        problem["detail"].says("with the value of ATLASSIAN_API_KEY");
        assert!(!refused.text.contains("sk-atlassian"), "{problem}");
    }
}

#[tokio::test]
async fn a_secret_in_the_wrong_place_is_not_said_back() {
    let world = world_with_user().await;
    let admin = world.admin().await;
    let with = |field: &str, value: Value| {
        let mut body = store(URL, json!({}));
        body[field] = value;
        body
    };
    for body in [
        with("auth", json!(VALUE)),
        with("auth", json!({ "type": VALUE })),
        with("default_config", json!(VALUE)),
        with("config_schema", json!({ "k": { "type": VALUE } })),
        with(
            "config_schema",
            json!({ "k": { "type": "string", "required": VALUE } }),
        ),
        with(
            "config_schema",
            json!({ "k": { "type": "string", "required": format!("{VALUE}, expected {VALUE}") } }),
        ),
        with("config_schema", json!(VALUE)),
    ] {
        let refused = admin.post("/mcp-servers", body.clone()).await;
        refused.expect(400);
        assert!(
            !refused.text.contains("sk-literal"),
            "{body}: {}",
            refused.text
        );
        assert!(!refused.text.contains("struct"), "{}", refused.text);
    }
    for body in [
        json!(VALUE),
        json!([VALUE]),
        json!({ "value": [VALUE] }),
        json!({ "value": { "v": VALUE } }),
    ] {
        let refused = put(&admin, "/v1/secrets/one", &body).await;
        refused.expect(400);
        assert!(
            !refused.text.contains("sk-literal"),
            "{body}: {}",
            refused.text
        );
    }
    let shown = put(&admin, "/v1/secrets/one", &json!(VALUE))
        .await
        .expect(400);
    assert_eq!(shown["detail"], "body must be an object");
    assert_eq!(
        admin.get("/v1/secrets").await.expect(200)["items"],
        json!([]),
        "nothing was stored"
    );
}

#[tokio::test]
async fn a_secret_is_entered_again_before_it_goes_to_another_host() {
    let world = world().await;
    let admin = world.admin().await;
    let enter = async || {
        put(&admin, "/v1/secrets/token", &json!({ "value": "s-3cr3t" }))
            .await
            .expect(204);
    };
    enter().await;
    let with = |url: &str| store(url, json!({ "api_key": { "$secret": "token" } }));
    admin.post("/mcp-servers", with(URL)).await.expect(201);
    sqlx::query("update secrets set updated_at = now() - interval '2 hours'")
        .execute(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    let path = "/mcp-servers/store";
    put(&admin, path, &with("https://store.example.org/other"))
        .await
        .expect(200);
    let elsewhere = with("https://evil.example.org/mcp");
    let refused = put(&admin, path, &elsewhere).await.expect(400);
    assert_eq!(refused["field"], "url");
    let why = refused["detail"].as_str().unwrap();
    assert!(
        why.contains("evil.example.org") && why.contains("PUT /v1/secrets/token"),
        "{why}"
    );
    let mut another = elsewhere.clone();
    another["id"] = json!("another");
    admin.post("/mcp-servers", another).await.expect(400);
    let without = store("https://evil.example.org/mcp", json!({}));
    put(&admin, path, &without).await.expect(200);
    put(&admin, path, &elsewhere).await.expect(400);
    enter().await;
    put(&admin, path, &elsewhere).await.expect(200);
}
