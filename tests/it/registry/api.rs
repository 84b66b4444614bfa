//! The admins' API: everything a person does, and everything that is refused.

use serde_json::{Value, json};
use sqlx::Row;

use super::{entry, eventually, other_admin, pack, put, world};
use crate::support::{has::Has, world::World};

/// The document's own request.
const ATLASSIAN: &str = r#"{
  "id": "atlassian",
  "name": "Atlassian (Jira + Confluence)",
  "description": "Access Jira issues and Confluence pages",
  "url": "http://localhost:9000/mcp",
  "config_schema": {
    "jira_projects": {
      "type": "string",
      "description": "Comma-separated Jira project keys",
      "required": false,
      "example": "PROJ-A,PROJ-B"
    },
    "confluence_spaces": {
      "type": "string",
      "description": "Comma-separated Confluence space keys",
      "required": false,
      "example": "DEV,DOCS"
    },
    "api_key": {
      "type": "string",
      "description": "API key for Atlassian access",
      "required": true,
      "sensitive": true
    }
  },
  "default_config": {
    "api_key": "${env.ATLASSIAN_API_KEY}"
  }
}"#;

fn atlassian() -> Value {
    serde_json::from_str(ATLASSIAN).unwrap()
}

/// The definition without what the program adds.
fn definition(mut answer: Value) -> Value {
    answer
        .as_object_mut()
        .unwrap()
        .remove("updated_at")
        .expect("when it was changed");
    answer
}

#[tokio::test]
async fn an_entry_is_created_read_listed_updated_and_deleted() {
    let world = world().await;
    let admin = world.admin().await;
    let created = admin.post("/mcp-servers", atlassian()).await;
    assert_eq!(definition(created.expect(201)), atlassian());
    let read = admin.get("/mcp-servers/atlassian").await;
    assert_eq!(definition(read.expect(200)), atlassian());
    assert_eq!(read.header("etag"), created.header("etag"));
    assert!(read.header("etag").starts_with('"'));
    let mut new = atlassian();
    new["name"] = "Jira".into();
    let updated = put(&admin, "/v1/mcp-servers/atlassian", &new).await;
    assert_eq!(definition(updated.expect(200)), new);
    assert_ne!(updated.header("etag"), read.header("etag"));
    let listed = admin.get("/v1/mcp-servers").await.expect(200);
    assert_eq!(definition(listed["items"][0].clone()), new);
    admin.delete("/mcp-servers/atlassian").await.expect(204);
    let gone = admin.get("/mcp-servers/atlassian").await.expect(404);
    assert_eq!(gone["detail"], "MCP server not found: atlassian");
}

#[tokio::test]
async fn the_least_entry_gets_its_defaults() {
    let world = world().await;
    let least = json!({ "id": "neo4j", "url": "https://neo4j.example.org/mcp/" });
    let created = world
        .admin()
        .await
        .post("/mcp-servers", least)
        .await
        .expect(201);
    let expected = json!({ "id": "neo4j", "name": "neo4j", "description": "", "url": "https://neo4j.example.org/mcp/",
        "config_schema": {}, "default_config": {} });
    assert_eq!(definition(created), expected);
}

#[tokio::test]
async fn an_id_that_is_taken_is_a_conflict() {
    let world = world().await;
    let admin = world.admin().await;
    admin.post("/mcp-servers", atlassian()).await.expect(201);
    let taken = admin.post("/v1/mcp-servers", atlassian()).await.expect(409);
    taken.has(json!({ "code": "duplicate_id", "detail": "MCP server 'atlassian' already exists" }));
}

/// A body that is refused, the field that is named, and a word of the reason.
type Refusal = (Value, &'static str, &'static str);

const URL: &str = "https://mcp.example.org/mcp";

fn bad_addresses() -> Vec<Refusal> {
    let (url, long) = (URL, "a".repeat(61));
    let with = |id: &str, url: &str| entry(id, url, json!({}), json!({}));
    vec![
        (with("../etc", url), "id", "lower-case letters"),
        (with("a/b", url), "id", "lower-case letters"),
        (with("", url), "id", "2 to 60"),
        (with("x", url), "id", "2 to 60"),
        (with(&long, url), "id", "2 to 60"),
        (with("Upper", url), "id", "lower-case"),
        (with("one", "not an address"), "url", "is not an address"),
        (
            with("one", "stdio://npx"),
            "url",
            "another scheme than http or https",
        ),
        (with("one", "file:///etc/passwd"), "url", "another scheme"),
        (
            with("one", "http://10.0.0.1/mcp"),
            "url",
            "private/loopback/internal host",
        ),
        (
            with("one", "http://169.254.169.254/latest"),
            "url",
            "private/loopback/internal host",
        ),
        (
            with("one", "https://[::1]/mcp"),
            "url",
            "private/loopback/internal host",
        ),
        (
            with("one", "https://db.internal/mcp"),
            "url",
            "private/loopback/internal host",
        ),
        (
            with("one", "http://mcp.example.org/mcp"),
            "url",
            "plain http",
        ),
        (
            with("one", "https://user:pass@mcp.example.org/mcp"),
            "url",
            "user or password",
        ),
        (
            with("one", "https://${scope.host}/mcp"),
            "url",
            "not in the host",
        ),
        (
            with("one", "https://mcp.example.org/${vault.x}"),
            "url",
            "no source",
        ),
        (
            with("one", "https://mcp.example.org/${env.OPERATORS_OWN}"),
            "url",
            "OPERATORS_OWN is not granted",
        ),
        (
            with(
                "one",
                "https://mcp.example.org/${env.MCP_CONFIG_ENCRYPTION_KEY}",
            ),
            "url",
            "is not granted",
        ),
    ]
}

fn bad_schemas() -> Vec<Refusal> {
    let schema = |key: &str, schema: Value| entry("one", URL, json!({ key: schema }), json!({}));
    let text = json!({ "type": "string" });
    vec![
        (
            schema("a b", text.clone()),
            "config_schema.a b",
            "not a usable key",
        ),
        (
            schema("host", json!({ "type": "string", "header": "Host" })),
            "config_schema.host",
            "set by the program itself",
        ),
        (
            schema("x-a", json!({ "type": "string", "header": "bad header" })),
            "config_schema.x-a",
            "not the name of a header",
        ),
        (
            schema("mcp-session-id", text.clone()),
            "config_schema.mcp-session-id",
            "set by the program itself",
        ),
        (
            schema("k", json!({ "type": "text" })),
            "config_schema.k.type",
            "must be one of",
        ),
        (
            schema("k", json!({ "type": "string", "secret": true })),
            "config_schema.k.secret",
            "is not known here",
        ),
        (
            entry(
                "one",
                URL,
                json!({ "a_b": text, "A-b": { "type": "string", "header": "X-A-B" } }),
                json!({}),
            ),
            "config_schema.a_b",
            "which A-b fills already",
        ),
    ]
}

fn bad_defaults() -> Vec<Refusal> {
    let default = |kind: &str, value: Value| {
        entry(
            "one",
            URL,
            json!({ "k": { "type": kind } }),
            json!({ "k": value }),
        )
    };
    vec![
        (
            entry("one", URL, json!({}), json!({ "k": "v" })),
            "default_config.k",
            "is not a key of `config_schema`",
        ),
        (
            default("string", json!(1)),
            "default_config.k",
            "must be text",
        ),
        (
            default("boolean", json!("yes")),
            "default_config.k",
            "must be true or false",
        ),
        (
            default("number", json!("1x")),
            "default_config.k",
            "must be a number",
        ),
        (
            default("json", json!("{")),
            "default_config.k",
            "must be JSON",
        ),
        (
            default("string", json!("a\r\nX-Admin: 1")),
            "default_config.k",
            "holds a line break",
        ),
        (
            default("string", json!("a\0b")),
            "default_config.k",
            "a header cannot carry",
        ),
        (
            default("string", json!("a\n${scope.b}")),
            "default_config.k",
            "holds a line break",
        ),
        (
            default("string", json!("${params.topic}")),
            "default_config.k",
            "cannot be used here",
        ),
        (
            default("string", json!("${NAME}")),
            "default_config.k",
            "${env.NAME}",
        ),
        (
            default("string", json!("${env.OPERATORS_OWN}")),
            "default_config.k",
            "CHATELAINE_REGISTRY_ENV",
        ),
        (
            default("string", json!({ "$secret": "../x" })),
            "default_config.k",
            "not the name of a secret",
        ),
        (
            default("string", json!("••••")),
            "default_config.k",
            "stands for a value that is there",
        ),
        (
            entry(
                "one",
                URL,
                json!({ "run_id": { "type": "string", "internal": true } }),
                json!({ "run_id": "r" }),
            ),
            "default_config.run_id",
            "is internal",
        ),
        (
            json!({ "id": "one", "command": "npx", "args": [] }),
            "command",
            "command is not known here",
        ),
        (
            json!({ "id": "one", "url": URL, "transport": "stdio" }),
            "transport",
            "transport is not known here",
        ),
        (json!({ "id": "one" }), "url", "url is missing"),
    ]
}

#[tokio::test]
async fn what_cannot_be_an_entry_is_refused_with_its_field() {
    let world = world().await;
    let admin = world.admin().await;
    let cases = bad_addresses()
        .into_iter()
        .chain(bad_schemas())
        .chain(bad_defaults());
    for (body, field, reason) in cases {
        let shown = body.to_string();
        let refused = admin.post("/v1/mcp-servers", body).await;
        assert_eq!(refused.status, 400, "{shown}: {}", refused.text);
        let refused = refused.json();
        assert!(
            refused["detail"].as_str().unwrap().contains(reason),
            "{shown}: {refused}"
        );
        assert_eq!(refused["field"], field, "{shown}: {refused}");
    }
    assert_eq!(
        admin.get("/mcp-servers").await.expect(200)["items"],
        json!([]),
        "nothing was created"
    );
}

#[tokio::test]
async fn ids_in_paths_name_nothing_when_they_cannot_be_ids() {
    let world = world().await;
    let admin = world.admin().await;
    for id in ["..%2F..%2Fetc", "UPPER", &"a".repeat(200)] {
        admin.get(&format!("/mcp-servers/{id}")).await.expect(404);
        admin
            .delete(&format!("/mcp-servers/{id}"))
            .await
            .expect(404);
    }
}

#[tokio::test]
async fn an_id_never_changes() {
    let world = world().await;
    let admin = world.admin().await;
    admin.post("/mcp-servers", atlassian()).await.expect(201);
    let mut other = atlassian();
    other["id"] = "other".into();
    assert_eq!(
        put(&admin, "/mcp-servers/atlassian", &other)
            .await
            .expect(400)["field"],
        "id"
    );
    other.as_object_mut().unwrap().remove("id");
    put(&admin, "/mcp-servers/atlassian", &other)
        .await
        .expect(200);
    put(&admin, "/mcp-servers/nothing", &other)
        .await
        .expect(404);
}

#[tokio::test]
async fn the_list_comes_in_pages_by_name() {
    let world = world().await;
    let admin = world.admin().await;
    for (id, name) in [
        ("id-one", "Zebra"),
        ("id-two", "Ant"),
        ("id-three", "Mole"),
        ("id-four", "Mole"),
    ] {
        let mut body = entry(id, "https://mcp.example.org/mcp", json!({}), json!({}));
        body["name"] = name.into();
        admin.post("/mcp-servers", body).await.expect(201);
    }
    let ids = |page: &Value| -> Vec<String> {
        page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let first = admin.get("/mcp-servers?limit=3").await.expect(200);
    assert_eq!(ids(&first), ["id-two", "id-four", "id-three"]);
    let next = first["next"].as_str().unwrap();
    // What the page ended with may be gone by then.
    admin.delete("/mcp-servers/id-three").await.expect(204);
    let last = admin
        .get(&format!("/mcp-servers?limit=3&after={next}"))
        .await
        .expect(200);
    assert_eq!(ids(&last), ["id-one"]);
    assert_eq!(last["next"], Value::Null);
    admin.get("/mcp-servers?after=nonsense").await.expect(400);
    admin.get("/mcp-servers?limit=0").await.expect(400);
}

#[tokio::test]
async fn a_change_of_what_has_changed_meanwhile_is_refused() {
    let world = world().await;
    let admin = world.admin().await;
    let etag = admin
        .post("/mcp-servers", atlassian())
        .await
        .header("etag")
        .to_owned();
    let path = "/mcp-servers/atlassian";
    let renamed = async |name: &str| {
        let mut body = atlassian();
        body["name"] = name.into();
        put(&admin.clone().with_header("if-match", &etag), path, &body).await
    };
    let (a, b) = tokio::join!(renamed("A"), renamed("B"));
    let mut statuses = [a.status, b.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412], "{} {}", a.text, b.text);
    let (winner, loser) = if a.status == 200 {
        ("A", &b)
    } else {
        ("B", &a)
    };
    assert_eq!(loser.json()["code"], "precondition_failed");
    assert_eq!(
        admin.get(path).await.expect(200)["name"],
        winner,
        "nothing of the loser is there"
    );
    admin
        .send(
            admin
                .clone()
                .with_header("if-match", &etag)
                .request(http::Method::DELETE, path),
        )
        .await
        .expect(412);
    // Without a condition the last change wins; `*` is any version.
    put(&admin, path, &atlassian()).await.expect(200);
    put(
        &admin.clone().with_header("if-match", "*"),
        path,
        &atlassian(),
    )
    .await
    .expect(200);
    let now = admin.get(path).await.header("etag").to_owned();
    let listed = format!("\"other\", {now}");
    admin
        .send(
            admin
                .clone()
                .with_header("if-match", &listed)
                .request(http::Method::DELETE, path),
        )
        .await
        .expect(204);
    // One that was made anew is another one.
    admin.post("/mcp-servers", atlassian()).await.expect(201);
    put(
        &admin.clone().with_header("if-match", &etag),
        path,
        &atlassian(),
    )
    .await
    .expect(412);
}

#[tokio::test]
async fn changes_without_a_condition_at_the_same_time_all_count() {
    let world = world().await;
    let admin = world.admin().await;
    admin.post("/mcp-servers", atlassian()).await.expect(201);
    let body = atlassian();
    let change = || put(&admin, "/mcp-servers/atlassian", &body);
    let (a, b, c) = tokio::join!(change(), change(), change());
    assert_eq!(
        [a.status, b.status, c.status],
        [200; 3],
        "{} {} {}",
        a.text,
        b.text,
        c.text
    );
}

#[tokio::test]
async fn another_tenant_sees_none_of_it() {
    let world = world().await;
    let (admin, stranger) = (world.admin().await, other_admin(&world).await);
    admin.post("/mcp-servers", atlassian()).await.expect(201);
    assert_eq!(
        stranger.get("/mcp-servers").await.expect(200)["items"],
        json!([])
    );
    stranger.get("/mcp-servers/atlassian").await.expect(404);
    put(&stranger, "/mcp-servers/atlassian", &atlassian())
        .await
        .expect(404);
    stranger.delete("/mcp-servers/atlassian").await.expect(404);
    stranger.post("/mcp-servers", atlassian()).await.expect(201);
    stranger.delete("/mcp-servers/atlassian").await.expect(204);
    admin.get("/mcp-servers/atlassian").await.expect(200);
    put(&admin, "/v1/secrets/token", &json!({ "value": "mine" }))
        .await
        .expect(204);
    assert_eq!(
        stranger.get("/v1/secrets").await.expect(200)["items"],
        json!([])
    );
    stranger.delete("/v1/secrets/token").await.expect(404);
}

#[tokio::test]
async fn an_entry_in_use_is_not_deleted_and_its_users_are_named() {
    let world = World::with(|setup| {
        super::open_localhost(setup);
        let docs = "mcpServers: { docs: { ref: atlassian, toolAccess: { default: public } } }";
        setup.packs.push(pack("reader", docs));
        setup.packs.push(pack("writer", docs));
    })
    .await;
    let (admin, stranger) = (world.admin().await, other_admin(&world).await);
    admin.post("/mcp-servers", atlassian()).await.expect(201);
    let refused = admin.delete("/mcp-servers/atlassian").await.expect(409);
    let expected = "MCP server 'atlassian' is used by reader, writer; remove it from there first";
    refused.has(json!({ "detail": expected, "code": "server_in_use" }));
    // The other tenant has neither agent.
    stranger.post("/mcp-servers", atlassian()).await.expect(201);
    stranger.delete("/mcp-servers/atlassian").await.expect(204);
    for id in ["reader", "writer"] {
        world.write_pack(id, &pack(id, "").1);
    }
    eventually("the packs are reloaded", async || {
        admin.delete("/mcp-servers/atlassian").await.status == 204
    })
    .await;
}

#[tokio::test]
async fn every_change_is_in_the_audit_trail() {
    let world = world().await;
    let admin = world.admin().await;
    admin.post("/mcp-servers", atlassian()).await.expect(201);
    admin.post("/mcp-servers", atlassian()).await.expect(409);
    put(&admin, "/mcp-servers/atlassian", &atlassian())
        .await
        .expect(200);
    admin.delete("/mcp-servers/atlassian").await.expect(204);
    put(&admin, "/v1/secrets/token", &json!({ "value": "v" }))
        .await
        .expect(204);
    admin.delete("/v1/secrets/token").await.expect(204);
    let rows = sqlx::query(
        "select actor || ' ' || action || ' ' || server as line from audit
         where action like 'registry.%' or action like 'secret.%' order by id",
    )
    .fetch_all(&mut world.db.as_tenant(world.tenant.id).await)
    .await
    .unwrap();
    let lines: Vec<String> = rows.iter().map(|row| row.get("line")).collect();
    let expected = [
        "root registry.created atlassian",
        "root registry.updated atlassian",
        "root registry.removed atlassian",
        "root secret.stored token",
        "root secret.removed token",
    ];
    assert_eq!(lines, expected);
}
