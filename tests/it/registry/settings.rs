//! What admins set for the servers of agents and capabilities: rows of their tenant, beside the files of the packs.

use http::Method;
use serde_json::{Value, json};

use super::{Watched, entry, eventually, offered, open_localhost, other_admin, pack, put};
use crate::support::{
    bank::{self, payment},
    client::{Answer, Client},
    has::Has,
    model::text,
    world::{Setup, World},
};

/// What the file of the capability says of the document's entry.
const RESEARCH: &str = r#"{"mcpServers": {"docs": {"ref": "context-store",
  "config": {"context_id": "of-file", "zone": "of-file"}, "toolAccess": {"default": "users"}}}}"#;

const SETTINGS: &str = "/v1/admin/agents/plain/servers";
const RESEARCHED: &str = "/v1/admin/capabilities/research/servers";

/// `plain` takes nothing from the registry; `reader` and `writer` have a capability, and `reader` says more itself.
/// `guarded` closes a server of the registry, and has an entry and a server of its own.
fn write_packs(setup: &mut Setup, own: &str) {
    open_localhost(setup);
    let packs = &setup.config.packs;
    let write = |name: &str, text: &str| {
        let path = packs.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("capabilities/research.yaml", RESEARCH);
    write(
        "guarded/registry/own.json",
        &entry(
            "own",
            "https://own.example.org/mcp",
            json!({ "token": { "type": "string" } }),
            json!({}),
        )
        .to_string(),
    );
    let plain = pack("plain", "").1.replace(
        "adminUsers: [root]",
        "adminUsers: [root], rolesAttribute: roles",
    );
    setup.packs.push(("plain".to_owned(), plain));
    setup.packs.push(pack(
        "reader",
        "paramsSchema: { topic: { type: string } }\ncapabilities: [research]\nmcpServers: { docs: { ref: context-store, config: { zone: of-agent } } }",
    ));
    setup.packs.push(pack("writer", "capabilities: [research]"));
    setup.packs.push(pack(
        "guarded",
        &format!(
            "mcpServers:\n  docs: {{ ref: context-store, toolAccess: {{ default: none }} }}\n  own: {{ ref: own, toolAccess: {{ default: none }} }}\n\
             mcp: {{ servers: [ {{ name: vault, transport: streamable-http, url: \"{own}\", accessMode: admin-controlled, toolAccess: {{ default: none }} }} ] }}"
        ),
    ));
}

fn schema() -> Value {
    json!({
        "context_id": { "type": "string", "required": true, "description": "Context for document isolation" },
        "zone": { "type": "string" },
        "topic": { "type": "string" },
        "limit": { "type": "number" },
        "deep": { "type": "boolean" },
        "filter": { "type": "json" },
        "api_key": { "type": "string", "sensitive": true },
    })
}

async fn world(bank: &Watched) -> (World, Client) {
    let world = World::with(|setup| write_packs(setup, "https://vault.example.org/mcp")).await;
    let admin = world.admin().await;
    let store = entry(
        "context-store",
        &bank.url,
        schema(),
        json!({ "context_id": "default", "zone": "of-registry" }),
    );
    admin.post("/mcp-servers", store).await.expect(201);
    (world, admin)
}

/// A setting that adds the store.
fn added(config: Value) -> Value {
    let mut setting = json!({ "ref": "context-store", "toolAccess": { "default": "users" } });
    setting["config"] = config;
    setting
}

fn set(config: Value) -> Value {
    let mut setting = json!({ "ref": "context-store" });
    setting["config"] = config;
    setting
}

/// Where a key of a server comes from.
async fn key(admin: &Client, agent: &str, key: &str) -> Value {
    let servers = admin
        .get(&format!("/v1/agents/{agent}/servers?explain=true"))
        .await
        .expect(200);
    let config = servers["items"][0]["explained"]["config"].clone();
    let found = config
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["key"] == key);
    let found = found.unwrap_or_else(|| panic!("{servers}"));
    json!([found["value"], found["note"]])
}

async fn rate(client: &Client, agent: &str, server: &str) -> String {
    let call = format!("/call {server} get_exchange_rate {{\"from\":\"EUR\",\"to\":\"USD\"}}");
    client.ask(agent, &call).await
}

#[tokio::test]
async fn an_admin_adds_a_server_of_the_registry_to_an_agent_and_takes_it_away() {
    let bank = Watched::start().await;
    let (world, admin) = world(&bank).await;
    let ann = world.user("ann", &[]).await;
    assert_eq!(
        admin.get(SETTINGS).await.expect(200),
        json!({ "items": [] })
    );
    let path = format!("{SETTINGS}/docs");
    admin.get(&path).await.expect(404);
    let setting =
        added(json!({ "context_id": "ctx-1", "zone": null, "limit": 5, "filter": { "a": [1] } }));
    let stored = put(&admin, &path, &setting).await;
    let read = admin.get(&path).await;
    assert_eq!(read.expect(200), stored.expect(200));
    assert_eq!(read.header("etag"), stored.header("etag"));
    assert_eq!(read.json()["inherited"], false);
    assert_eq!(
        read.json()["setting"]["toolAccess"],
        json!({ "default": "users" })
    );
    assert_eq!(
        admin.get(SETTINGS).await.expect(200)["items"][0],
        read.json()
    );
    offered(&ann, "plain", "docs").await;
    assert!(rate(&ann, "plain", "docs").await.contains("1.085"));
    assert_eq!(bank.last("x-context-id").unwrap(), "ctx-1");
    let sent = bank.request_with("x-context-id", "ctx-1");
    assert_eq!(sent["x-limit"], "5");
    assert_eq!(sent["x-filter"], "{\"a\":[1]}");
    assert!(!sent.contains_key("x-zone"), "the key is taken away");
    assert_eq!(
        key(&admin, "plain", "context_id").await,
        json!(["ctx-1", "overrides registry default (default)"])
    );
    assert_eq!(
        key(&admin, "plain", "zone").await,
        json!([
            null,
            "removed by an admin for the agent, was registry default (of-registry)"
        ])
    );
    let tools = ann.get("/v1/agents/plain/tools?explain=true").await;
    tools.expect(403);
    admin.delete(&path).await.expect(204);
    admin.delete(&path).await.expect(404);
    let servers = ann.get("/v1/agents/plain/servers").await.expect(200);
    assert_eq!(servers, json!({ "items": [] }));
    assert!(!rate(&ann, "plain", "docs").await.contains("1.085"));
    let audit = admin.get("/v1/admin/audit?limit=50").await.expect(200);
    let mut lines = audit["items"].as_array().unwrap().iter();
    let mut line = |action: &str| {
        lines
            .find(|line| line["action"] == action)
            .cloned()
            .unwrap()
    };
    for action in ["server_setting.removed", "server_setting.stored"] {
        let line = line(action);
        line.has(json!({
            "agent": "plain",
            "server": "docs",
            "detail": "agent plain, entry context-store",
        }));
    }
}

#[tokio::test]
async fn the_chain_is_default_capability_agent_each_with_its_file_and_then_its_settings() {
    let bank = Watched::start().await;
    let (world, admin) = world(&bank).await;
    let ann = world.user("ann", &[]).await;
    assert_eq!(
        key(&admin, "reader", "zone").await,
        json!([
            "of-agent",
            "overrides capability research (of-file), registry default (of-registry)"
        ])
    );
    let of_capability =
        set(json!({ "context_id": "${scope.context_id}", "zone": "of-admins", "deep": true }));
    put(&admin, &format!("{RESEARCHED}/docs"), &of_capability)
        .await
        .expect(200);
    let note = "overrides an admin for capability research (of-admins), capability research (of-file), \
                registry default (of-registry)";
    assert_eq!(
        key(&admin, "reader", "zone").await,
        json!(["of-agent", note])
    );
    assert_eq!(key(&admin, "writer", "zone").await[0], "of-admins");
    let of_agent = set(json!({ "zone": null, "topic": "${params.topic}", "deep": null }));
    put(&admin, "/v1/admin/agents/reader/servers/docs", &of_agent)
        .await
        .expect(200);
    let note = format!(
        "removed by an admin for the agent, was agent (of-agent), {}",
        note.replace("overrides ", "")
    );
    assert_eq!(key(&admin, "reader", "zone").await, json!([null, note]));
    // The capability's view ends with the capability.
    let listed = admin.get(RESEARCHED).await.expect(200)["items"][0].clone();
    let zone = listed["config"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["key"] == "zone");
    assert_eq!(zone.unwrap()["value"], "of-admins");
    listed.has(json!({ "inherited": true, "setting": { "config": { "zone": "of-admins" } } }));
    let run = json!({ "agent_name": "reader", "prompt": "x", "params": { "topic": "t" } });
    let missing = ann.post("/v1/runs/check", run.clone()).await.expect(400);
    assert_eq!(
        missing["detail"],
        "Missing required value: scope.context_id for config key 'context_id'"
    );
    let mut complete = run;
    complete["scope"] = json!({ "context_id": "ctx-9" });
    let checked = ann
        .post("/v1/runs/check", complete.clone())
        .await
        .expect(200);
    assert_eq!(checked["servers"], json!(["docs"]));
    world.model.on(|_| Some(text("Done.")));
    complete["mode"] = "sync".into();
    ann.post("/runs", complete).await.expect(200);
    eventually("the run's values reach the server", async || {
        bank.all("x-context-id").contains(&"ctx-9".to_owned())
    })
    .await;
    let sent = bank.request_with("x-context-id", "ctx-9");
    assert_eq!(sent["x-topic"], "t");
    assert!(!sent.contains_key("x-zone") && !sent.contains_key("x-deep"));
    let capabilities = admin.get("/v1/admin/capabilities").await.expect(200);
    assert_eq!(
        capabilities,
        json!({ "items": [{ "name": "research", "agents": ["reader", "writer"] }] })
    );
}

/// A setting that is refused: where, what, the field that is named, and a word of the reason.
type Refusal = (String, Value, &'static str, &'static str);

#[expect(clippy::too_many_lines, reason = "a line for each refusal")]
fn refusals() -> Vec<Refusal> {
    let plain = |setting: Value, field, word| (format!("{SETTINGS}/docs"), setting, field, word);
    let with = |config: Value, field, word| plain(added(config), field, word);
    let at = |path: &str, setting: Value, field, word| (path.to_owned(), setting, field, word);
    let guarded = "/v1/admin/agents/guarded/servers";
    let access = |access: Value| json!({ "ref": "context-store", "toolAccess": access });
    vec![
        // What the pack closed or guards.
        plain(set(json!({})), "toolAccess", "say who may call which tool"),
        at(
            &format!("{guarded}/docs"),
            added(json!({})),
            "toolAccess",
            "the file of the agent guarded",
        ),
        at(
            &format!("{RESEARCHED}/docs"),
            added(json!({})),
            "toolAccess",
            "the file of the capability research",
        ),
        at(
            &format!("{guarded}/docs"),
            json!({ "ref": "context-store", "tools": ["*"] }),
            "tools",
            "the file of the agent",
        ),
        at(
            &format!("{guarded}/more"),
            added(json!({})),
            "ref",
            "has context-store already, as docs",
        ),
        at(
            &format!("{guarded}/same"),
            json!({ "ref": "same", "toolAccess": { "default": "users" } }),
            "ref",
            "at this address already, as docs",
        ),
        at(
            &format!("{guarded}/also"),
            json!({ "ref": "vault", "toolAccess": { "default": "users" } }),
            "ref",
            "at this address already, as vault",
        ),
        at(
            &format!("{guarded}/own2"),
            json!({ "ref": "own", "toolAccess": { "default": "users" } }),
            "ref",
            "has own already, as own",
        ),
        at(
            &format!("{guarded}/Vault"),
            added(json!({})),
            "server",
            "has a server Vault of its own",
        ),
        at(
            &format!("{guarded}/own"),
            json!({ "ref": "own", "config": { "token": "${env.OPERATORS_OWN}" } }),
            "config.token",
            "is not granted",
        ),
        at(
            "/v1/admin/agents/reader/servers/docs",
            json!({ "ref": "same" }),
            "ref",
            "docs refers to context-store there",
        ),
        at(
            "/v1/admin/agents/reader/servers/Docs",
            set(json!({})),
            "server",
            "is called docs there",
        ),
        // What cannot be read.
        plain(
            json!({ "ref": "nothing", "toolAccess": { "default": "users" } }),
            "ref",
            "names no entry of the registry: nothing",
        ),
        plain(
            json!({ "ref": "No!", "toolAccess": { "default": "users" } }),
            "ref",
            "lower-case letters",
        ),
        at(
            &format!("{SETTINGS}/a%20b"),
            added(json!({})),
            "server",
            "letters",
        ),
        plain(
            access(json!({ "default": "everybody" })),
            "toolAccess.default",
            "none",
        ),
        plain(
            access(json!({ "public": ["a"], "roles": {} })),
            "toolAccess.public",
            "does not go with `roles`",
        ),
        plain(
            access(json!({ "approval": [{ "tools": ["send_money"] }] })),
            "toolAccess.approval[0].approvers",
            "missing",
        ),
        plain(access(json!([])), "toolAccess", "map"),
        with(
            json!({ "nonsense": 1 }),
            "config.nonsense",
            "takes no such key",
        ),
        with(
            json!({ "limit": "many" }),
            "config.limit",
            "must be a number",
        ),
        with(
            json!({ "deep": "yes" }),
            "config.deep",
            "must be true or false",
        ),
        with(
            json!({ "filter": "{\"a\": 1" }),
            "config.filter",
            "must be JSON",
        ),
        with(json!({ "zone": "a\nb" }), "config.zone", "line break"),
        with(
            json!({ "zone": "${scope.x" }),
            "config.zone",
            "never closed",
        ),
        with(
            json!({ "zone": "${nonsense.x}" }),
            "config.zone",
            "there is no source",
        ),
        with(
            json!({ "zone": "${runtime.x}" }),
            "config.zone",
            "has no key",
        ),
        with(
            json!({ "zone": "${env.HOME}" }),
            "config.zone",
            "is not granted",
        ),
        plain(
            json!({ "ref": "internal", "config": { "run_id": "run-of-another" }, "toolAccess": { "default": "users" } }),
            "config.run_id",
            "is internal",
        ),
        with(
            json!({ "api_key": "sk-${scope.x}" }),
            "config.api_key",
            "is sensitive",
        ),
        with(
            json!({ "zone": "••••" }),
            "config.zone",
            "stands for a value",
        ),
        at(
            &format!("{RESEARCHED}/docs"),
            set(json!({ "topic": "${params.topic}" })),
            "config.topic",
            "cannot be used here",
        ),
    ]
}

#[tokio::test]
async fn what_a_setting_may_not_say_is_refused_at_its_field() {
    let bank = Watched::start().await;
    let (_world, admin) = world(&bank).await;
    let same = entry("same", &format!("{}/?x=1", bank.url), json!({}), json!({}));
    admin.post("/mcp-servers", same).await.expect(201);
    let internal = json!({ "run_id": { "type": "string", "internal": true } });
    let internal = entry(
        "internal",
        "https://inner.example.org/mcp",
        internal,
        json!({}),
    );
    admin.post("/mcp-servers", internal).await.expect(201);
    let vault = entry(
        "vault",
        "https://VAULT.example.org:443/x/..//%256d%43P;x=1/",
        json!({}),
        json!({}),
    );
    admin.post("/mcp-servers", vault).await.expect(201);
    let mut wrong = Vec::new();
    for (path, setting, field, word) in refusals() {
        let answer = put(&admin, &path, &setting).await;
        let problem: Value = serde_json::from_str(&answer.text).unwrap_or_default();
        let said = problem["detail"].as_str().unwrap_or_default();
        if answer.status != 400 || problem["field"] != field || !said.contains(word) {
            wrong.push(format!(
                "{path} {setting}: {} {}",
                answer.status, answer.text
            ));
        }
        assert!(!answer.text.contains("sk-0123456789"), "{}", answer.text);
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
    for path in [SETTINGS, RESEARCHED, "/v1/admin/agents/guarded/servers"] {
        let listed = admin.get(path).await.expect(200);
        let mut items = listed["items"].as_array().unwrap().iter();
        assert!(items.all(|item| item["setting"].is_null()), "{listed}");
    }
    for path in [
        "/v1/admin/agents/nobody/servers/docs",
        "/v1/admin/capabilities/none/servers/docs",
    ] {
        put(&admin, path, &added(json!({}))).await.expect(404);
    }
    put(
        &admin,
        &format!("{SETTINGS}/docs"),
        &json!({ "ref": "context-store", "url": "x" }),
    )
    .await
    .expect(400);
}

#[tokio::test]
async fn keys_of_a_closed_server_are_set_and_it_stays_closed() {
    let bank = Watched::start().await;
    let (world, admin) = world(&bank).await;
    let ann = world.user("ann", &[]).await;
    let path = "/v1/admin/agents/guarded/servers/docs";
    put(&admin, path, &set(json!({ "zone": "of-admins" })))
        .await
        .expect(200);
    assert_eq!(key(&admin, "guarded", "zone").await[0], "of-admins");
    eventually("the server is discovered with the value", async || {
        bank.last("x-zone").is_some_and(|zone| zone == "of-admins")
    })
    .await;
    let tools = ann.get("/v1/agents/guarded/tools").await.expect(200);
    let all = tools["items"].as_array().unwrap().iter();
    let offered = all.flat_map(|item| item["tools"].as_array().unwrap());
    assert_eq!(offered.count(), 0, "{tools}");
    assert!(!rate(&ann, "guarded", "docs").await.contains("1.085"));
    assert_eq!(bank.executions(), 0);
}

/// A row that no admin could have written, or that a file has overtaken since.
async fn write_row(world: &World, agent: &str, server: &str, setting: &Value) {
    let mut db = world.db.as_tenant(world.tenant.id).await;
    let entry = setting["ref"].as_str().unwrap();
    sqlx::query(
        "insert into server_settings (tenant_id, id, level, owner, server, entry, definition, version)
         values ($1, gen_random_uuid(), 'agent', $2, $3, $4, $5::text::json, 1)",
    )
    .bind(world.tenant.id.0)
    .bind(agent)
    .bind(server)
    .bind(entry)
    .bind(setting.to_string())
    .execute(&mut db)
    .await
    .unwrap();
}

#[tokio::test]
async fn a_row_that_a_file_has_overtaken_opens_nothing_and_takes_no_variable() {
    let bank = Watched::start().await;
    let (world, admin) = world(&bank).await;
    let ann = world.user("ann", &[]).await;
    write_row(&world, "guarded", "more", &added(json!({}))).await;
    write_row(
        &world,
        "guarded",
        "own",
        &json!({ "ref": "own", "config": { "token": "${env.OPERATORS_OWN}" } }),
    )
    .await;
    write_row(&world, "plain", "late", &set(json!({}))).await;
    // The last of them: with it all are seen.
    write_row(
        &world,
        "guarded",
        "docs",
        &added(json!({ "zone": "of-row" })),
    )
    .await;
    eventually("the rows are seen", async || {
        key(&admin, "guarded", "zone").await[0] == "of-row"
    })
    .await;
    let tools = ann.get("/v1/agents/guarded/tools").await.expect(200);
    let all = tools["items"].as_array().unwrap().iter();
    assert_eq!(
        all.flat_map(|item| item["tools"].as_array().unwrap())
            .count(),
        0,
        "{tools}"
    );
    let listed = admin
        .get("/v1/admin/agents/guarded/servers")
        .await
        .expect(200);
    let problem = |server: &str| {
        let mut items = listed["items"].as_array().unwrap().iter();
        let found = items.find(|item| item["server"] == server).unwrap();
        found["problem"].as_str().unwrap_or_default().to_owned()
    };
    assert!(
        problem("more").contains("has context-store already, as docs"),
        "{listed}"
    );
    assert!(
        problem("own").contains("OPERATORS_OWN is not granted"),
        "{listed}"
    );
    let listed = admin.get(SETTINGS).await.expect(200);
    assert!(
        listed["items"][0]["problem"]
            .as_str()
            .unwrap()
            .contains("toolAccess")
            || listed["items"][0]["problem"]
                .as_str()
                .unwrap()
                .contains("say who may"),
        "{listed}"
    );
    let run = json!({ "agent_name": "guarded", "prompt": "x" });
    let refused = ann.post("/v1/runs/check", run).await.expect(400);
    refused["detail"].says("OPERATORS_OWN is not granted");
}

#[tokio::test]
async fn a_server_that_is_added_has_roles_and_approvers_of_its_own() {
    let bank = Watched::start().await;
    let (world, admin) = world(&bank).await;
    let mut setting = added(json!({}));
    setting["toolAccess"] = json!({
        "roles": { "clerk": ["get_*", "send_money"] },
        "approval": [{ "tools": ["send_money"], "approvers": ["boss"] }],
    });
    put(&admin, &format!("{SETTINGS}/docs"), &setting)
        .await
        .expect(200);
    let (ann, clerk) = (
        world.user("ann", &["visitor"]).await,
        world.user("carl", &["clerk"]).await,
    );
    let boss = world.user("bob", &["boss"]).await;
    offered(&clerk, "plain", "docs").await;
    assert!(!rate(&ann, "plain", "docs").await.contains("1.085"));
    assert!(rate(&clerk, "plain", "docs").await.contains("1.085"));
    clerk
        .ask(
            "plain",
            "/call docs send_money {\"from_account\":\"current\",\"to\":\"acme\",\"amount\":\"1.00\",\"currency\":\"EUR\"}",
        )
        .await;
    let waiting = boss.get("/v1/approvals").await.expect(200);
    let request = waiting["items"][0].clone();
    request.has(json!({ "server": "docs", "tool": "send_money" }));
    let body = json!({ "decision": "approve", "args_sha256": request["args_sha256"] });
    let path = format!("/v1/approvals/{}/decision", request["id"].as_str().unwrap());
    ann.post(&path, body.clone()).await.expect(404);
    boss.post(&path, body).await.expect(200);
    eventually("the approved call is executed", async || {
        bank.executions() == 2
    })
    .await;
}

#[tokio::test]
async fn a_change_after_another_one_is_refused_with_its_etag() {
    let bank = Watched::start().await;
    let (_world, admin) = world(&bank).await;
    let path = format!("{SETTINGS}/docs");
    let send = async |method: Method, name: &str, tag: &str| -> Answer {
        let request = admin.request(method, &path).header(name, tag);
        admin
            .send(request.json(&added(json!({ "zone": "z" }))))
            .await
    };
    let first = send(Method::PUT, "if-none-match", "*").await;
    first.expect(200);
    let taken = send(Method::PUT, "if-none-match", "*").await.expect(412);
    assert_eq!(taken["code"], "precondition_failed");
    let second = send(Method::PUT, "if-match", first.header("etag")).await;
    second.expect(200);
    assert_ne!(second.header("etag"), first.header("etag"));
    send(Method::PUT, "if-match", first.header("etag"))
        .await
        .expect(412);
    send(Method::DELETE, "if-match", first.header("etag"))
        .await
        .expect(412);
    send(Method::PUT, "if-match", "*").await.expect(200);
    admin.delete(&path).await.expect(204);
    send(Method::PUT, "if-match", second.header("etag"))
        .await
        .expect(412);
}

#[tokio::test]
async fn what_is_set_belongs_to_one_tenant() {
    let bank = Watched::start().await;
    let (world, admin) = world(&bank).await;
    let stranger = other_admin(&world).await;
    let path = "/v1/admin/agents/bank/servers/docs";
    put(&admin, path, &added(json!({ "context_id": "ctx-1" })))
        .await
        .expect(200);
    let (ann, other) = (world.user("ann", &[]).await, world.stranger("ann").await);
    offered(&ann, "bank", "docs").await;
    let servers = other.get("/v1/agents/bank/servers").await.expect(200);
    assert_eq!(servers, json!({ "items": [] }));
    let listed = stranger
        .get("/v1/admin/agents/bank/servers")
        .await
        .expect(200);
    assert_eq!(listed, json!({ "items": [] }));
    stranger.get(path).await.expect(404);
    stranger.delete(path).await.expect(404);
    // The entry is the other tenant's, too.
    let refused = put(&stranger, path, &added(json!({}))).await.expect(400);
    assert_eq!(refused["field"], "ref");
    stranger.get(SETTINGS).await.expect(404);
    stranger.get(RESEARCHED).await.expect(404);
    let none = json!({ "items": [] });
    assert_eq!(
        stranger.get("/v1/admin/capabilities").await.expect(200),
        none
    );
    admin.get(path).await.expect(200);
}

#[tokio::test]
async fn other_replicas_and_those_that_start_later_have_it() {
    let bank = Watched::start().await;
    let (world, admin) = world(&bank).await;
    let (other, ann) = (world.replica().await, world.user("ann", &[]).await);
    let there = ann.at(&other.url);
    let none = json!({ "items": [] });
    assert_eq!(
        there.get("/v1/agents/plain/servers").await.expect(200),
        none
    );
    put(&admin, &format!("{SETTINGS}/docs"), &added(json!({})))
        .await
        .expect(200);
    offered(&there, "plain", "docs").await;
    admin.delete(&format!("{SETTINGS}/docs")).await.expect(204);
    eventually("the other replica has it no more", async || {
        there.get("/v1/agents/plain/servers").await.expect(200) == none
    })
    .await;
    put(&admin, &format!("{SETTINGS}/docs"), &added(json!({})))
        .await
        .expect(200);
    let third = world.replica().await;
    let servers = ann
        .at(&third.url)
        .get("/v1/agents/plain/servers")
        .await
        .expect(200);
    assert_eq!(servers["items"][0]["server"], "docs");
}

#[tokio::test]
async fn an_entry_and_a_secret_that_are_set_for_an_agent_are_not_removed() {
    let bank = Watched::start().await;
    let (world, admin) = world(&bank).await;
    let ann = world.user("ann", &[]).await;
    let secret = json!({ "value": "sk-0123456789" });
    put(&admin, "/v1/secrets/store-key", &secret)
        .await
        .expect(204);
    world.model.forbid("sk-0123456789");
    let setting = added(json!({ "api_key": { "$secret": "store-key" } }));
    put(&admin, &format!("{SETTINGS}/docs"), &setting)
        .await
        .expect(200);
    offered(&ann, "plain", "docs").await;
    assert!(rate(&ann, "plain", "docs").await.contains("1.085"));
    assert_eq!(bank.last("x-api-key").unwrap(), "sk-0123456789");
    let kept = admin.delete("/v1/secrets/store-key").await.expect(409);
    kept["detail"].says("used by agent plain");
    let more = json!({ "ref": "other", "toolAccess": { "default": "users" } });
    admin
        .post(
            "/mcp-servers",
            entry(
                "other",
                "https://other.example.org/mcp",
                json!({}),
                json!({}),
            ),
        )
        .await
        .expect(201);
    put(&admin, &format!("{SETTINGS}/more"), &more)
        .await
        .expect(200);
    let kept = admin.delete("/mcp-servers/other").await.expect(409);
    assert_eq!(kept["code"], "server_in_use");
    kept["detail"].says("used by agent plain");
    admin.delete(&format!("{SETTINGS}/more")).await.expect(204);
    admin.delete("/mcp-servers/other").await.expect(204);
}

/// The names of the tenant's secrets.
async fn secrets(admin: &Client) -> Vec<String> {
    let listed = admin.get("/v1/secrets").await.expect(200);
    let items = listed["items"].as_array().unwrap().iter();
    items
        .map(|secret| secret["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn what_is_typed_for_a_sensitive_key_is_sealed_and_goes_with_what_names_it() {
    let bank = Watched::start().await;
    let (world, admin) = world(&bank).await;
    let ann = world.user("ann", &[]).await;
    for secret in ["sk-0123456789", "sk-9876543210"] {
        world.model.forbid(secret);
    }
    let path = format!("{SETTINGS}/docs");
    let typed = |key: &str, zone: &str| added(json!({ "api_key": key, "zone": zone }));
    // What is refused leaves nothing behind.
    put(&admin, &path, &typed("sk-0123456789", "${nowhere.x}"))
        .await
        .expect(400);
    put(&admin, &path, &typed("sk-0123456789\n", "here"))
        .await
        .expect(400);
    assert_eq!(secrets(&admin).await, Vec::<String>::new());
    let stored = put(&admin, &path, &typed("sk-0123456789", "here")).await;
    assert!(!stored.text.contains("sk-0123456789"), "{}", stored.text);
    let [first] = <[String; 1]>::try_from(secrets(&admin).await).unwrap();
    assert!(first.starts_with("plain.docs.api_key."), "{first}");
    let read = admin.get(&path).await.expect(200);
    assert_eq!(
        read["setting"]["config"]["api_key"],
        json!({ "$secret": first })
    );
    offered(&ann, "plain", "docs").await;
    assert!(rate(&ann, "plain", "docs").await.contains("1.085"));
    assert_eq!(bank.last("x-api-key").unwrap(), "sk-0123456789");
    // A change that keeps it, and one that replaces it.
    let keeps = added(json!({ "api_key": { "$secret": first }, "zone": "there" }));
    put(&admin, &path, &keeps).await.expect(200);
    assert_eq!(secrets(&admin).await, std::slice::from_ref(&first));
    put(&admin, &path, &typed("sk-9876543210", "there"))
        .await
        .expect(200);
    let [second] = <[String; 1]>::try_from(secrets(&admin).await).unwrap();
    assert_ne!(first, second);
    // What something else names stays.
    let other = format!("{RESEARCHED}/docs");
    let shared = set(json!({ "api_key": { "$secret": second } }));
    put(&admin, &other, &shared).await.expect(200);
    put(
        &admin,
        "/v1/secrets/own",
        &json!({ "value": "sk-of-its-own" }),
    )
    .await
    .expect(204);
    admin.delete(&path).await.expect(204);
    assert_eq!(secrets(&admin).await, ["own".to_owned(), second.clone()]);
    admin.delete(&other).await.expect(204);
    admin
        .delete(&format!("/v1/secrets/{second}"))
        .await
        .expect(204);
    put(&admin, &path, &typed("sk-0123456789", "here"))
        .await
        .expect(200);
    admin.delete(&path).await.expect(204);
    assert_eq!(secrets(&admin).await, ["own"]);
    let audit = admin.get("/v1/admin/audit?limit=100").await;
    assert!(!audit.text.contains("sk-0123456789"));
    let lines = audit.expect(200)["items"].as_array().unwrap().clone();
    let removed = lines
        .iter()
        .filter(|line| line["action"] == "secret.removed");
    assert_eq!(removed.count(), 3);
}

#[tokio::test]
async fn an_entry_at_the_address_of_another_agents_server_has_the_rules_of_that_server() {
    let access = "{ default: all, approval: [{ tools: [send_money], approvers: [cfo] }] }";
    let world = World::with(|setup| {
        setup.packs[0] = bank::pack("bank", access);
        let own = ["127.0.0.1", "localhost"].map(ToOwned::to_owned);
        setup.config.tenant_egress_allow.extend(own);
    })
    .await;
    world.tools_ready().await;
    let (admin, ann) = (world.admin().await, world.user("ann", &[]).await);
    let other_name = world.bank.url.replace("127.0.0.1", "localhost");
    for (at, address) in [&world.bank.url, &other_name].into_iter().enumerate() {
        let key = format!("books{at}");
        let books = entry(&key, address, json!({}), json!({}));
        admin.post("/mcp-servers", books).await.expect(201);
        let setting = json!({ "ref": key, "toolAccess": { "default": "users" } });
        let path = format!("/v1/admin/agents/office/servers/{key}");
        put(&admin, &path, &setting).await.expect(200);
        offered(&ann, "office", &key).await;
        let call = format!("/call {key} send_money {}", payment("7"));
        let told = ann.ask("office", &call).await;
        assert_eq!(world.bank.executions("send_money"), 0, "{told}");
        let waiting = ann.get("/v1/approvals?role=requester").await.expect(200);
        waiting["items"][0].has(
            json!({ "agent": "office", "server": key, "tool": "send_money", "approvers": ["cfo"] }),
        );
    }
}
