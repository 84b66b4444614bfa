//! Rotation reaches everything that is sealed, wherever it lies: each kind is sealed by the product itself, sealed
//! anew by `rewrap`, and still good for what it was.

use std::collections::BTreeMap;

use chatelaine::app::{
    platform::keys::{
        Keys,
        contexts::{FlowValue, of_flow},
        rewrap::{Progress, rewrap},
        rotation,
    },
    servers::run_values as values,
};
use domain::{ids::UserId, secret::Secret};
use http::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{entered, kek, known, pairs, ring};
use crate::{
    elicitation::{asking, form},
    support::{
        bank::{self, payment},
        client::Client,
        db::TestDb,
        model::{Gate, text},
        offer,
        scripted::Scripted,
        wait::{ended, eventually},
        world::World,
    },
};

/// The columns that hold something sealed, each with the column that says with which version of the tenant's key.
/// What is added to the schema belongs into `store::sealed`, and then here.
const COLUMNS: [(&str, &str); 11] = [
    ("approvals", "tenant_key_version"),
    ("credentials", "tenant_key_version"),
    ("elicitations", "entered_key_version"),
    ("elicitations", "tenant_key_version"),
    ("flows", "answer_key_version"),
    ("flows", "entered_key_version"),
    ("kept_calls", "tenant_key_version"),
    ("mcp_servers", "tenant_key_version"),
    ("runs", "scope_key_version"),
    ("secrets", "tenant_key_version"),
    ("webhooks", "tenant_key_version"),
];

const ACCESS: &str = "{
  default: none,
  roles: { employee: [send_money] },
  approval: [{ tools: [send_money], approvers: [cfo], timeoutMinutes: 60 }],
}";
/// Nobody answers there: it is only asked for.
const MAIL: &str = r"
metadata: { id: mail, displayName: Mail, description: Mail, defaultLanguage: en }
languages: { en: {} }
llm: { provider: none }
flows: { authentication: { required: true } }
mcp:
  servers:
    - name: mail
      transport: streamable-http
      url: http://127.0.0.1:9/mcp
      accessMode: user-controlled
      userConfig:
        fields:
          - { name: first, type: secret, label: { en: First }, headerName: X-First }
          - { name: second, type: secret, label: { en: Second }, headerName: X-Second }
      toolAccess: { default: public }
";

/// A world where everything that can be sealed has been, once.
struct SealedFixture {
    world: World,
    ann: Client,
    /// Holds the model's answer to the run that has a scope.
    gate: Gate,
    run: String,
    /// The call that waits for approval.
    request: Value,
    /// The conversation in which ann is asked for her second field.
    flow: String,
    /// Asks ann for her name and for a colour, in the conversation of this id; she has said her name.
    desk: (Scripted, String),
}

impl SealedFixture {
    async fn new() -> Self {
        let fields = json!({ "name": { "type": "string" }, "color": { "type": "string" } });
        let server = asking(1, form(&fields)).await;
        let world = World::with(|setup| {
            setup.env = setup.env.clone().with("DESK_URL", server.url.as_str());
            setup.config.ring = Some(ring(&["k1", "k2"]));
            setup.packs[0] = bank::pack("bank", ACCESS);
            setup.packs.push(("mail".to_owned(), MAIL.to_owned()));
            setup.packs.push(offer::pack("{ default: public }"));
        })
        .await;
        world.tools_ready().await;
        let (admin, ann, gate) = (
            world.admin().await,
            world.user("ann", &["employee"]).await,
            Gate::new(),
        );
        let put = admin
            .request(Method::PUT, "/v1/secrets/token")
            .json(&json!({ "value": "a secret" }));
        assert_eq!(admin.send(put).await.status, 204);
        let store = json!({
            "id": "store", "url": "https://store.example.org/mcp",
            "config_schema": { "api_key": { "type": "string", "sensitive": true } },
            "default_config": { "api_key": "a sensitive value" },
        });
        admin.post("/v1/mcp-servers", store).await.expect(201);
        let webhook = json!({ "url": "https://hooks.example.org/", "events": ["key.*"] });
        let made = admin.post("/v1/admin/webhooks", webhook).await;
        assert_eq!(made.status, 201, "{}", made.text);
        entered(&world.app().keys, &world.db.db, world.tenant.id, "a token").await;
        world.keep_calls(30).await;
        ann.ask(
            "bank",
            &format!("/call bank send_money {}", payment("1.00")),
        )
        .await;
        let request = ann.get("/v1/approvals?role=requester").await.expect(200)["items"][0].clone();
        let flow = ann.open("mail").await;
        ann.say_and_wait(&flow, "/connect mail").await;
        ann.say_and_wait(&flow, "the first").await;
        let desk = ann.open("desk").await;
        ann.say_and_wait(&desk, "/call desk echo {}").await;
        ann.say_and_wait(&desk, "Ann").await;
        world.model.reply(text("Done.").gate(1, &gate));
        let start = json!({ "agent_name": "office", "prompt": "hi", "scope": { "context_id": "sprint-42" } });
        let run = ann.post("/v1/runs", start).await.expect(202)["run_id"]
            .as_str()
            .unwrap()
            .to_owned();
        gate.reached().await;
        // Every kind once.
        sqlx::query("delete from kept_calls where server <> 'bank'")
            .execute(&mut world.db.as_tenant(world.tenant.id).await)
            .await
            .unwrap();
        let fixture = Self {
            world,
            ann,
            gate,
            run,
            request,
            flow,
            desk: (server, desk),
        };
        fixture.leave_an_answer().await;
        fixture
    }

    /// Puts an answer on its way, where it is for a moment only.
    async fn leave_an_answer(&self) {
        let mut db = self.world.db.as_tenant(self.world.tenant.id).await;
        let (id, user): (Uuid, String) = sqlx::query_as("select id, user_id from flows")
            .fetch_one(&mut db)
            .await
            .unwrap();
        let (tenant, user) = (self.world.tenant.id, UserId(user.into()));
        let context = of_flow(tenant, &user, "mail", id, FlowValue::Answer);
        let sealed = self
            .world
            .app()
            .keys
            .seal(tenant, &context, &Secret::new("an answer"))
            .await
            .unwrap();
        sqlx::query("update flows set answer = $1")
            .bind(sealed)
            .execute(&mut db)
            .await
            .unwrap();
    }

    /// What an operator's command has: the same ring, and no memory.
    async fn promoted(&self) -> Keys {
        let operator = Keys::new(self.world.db.db.clone(), Some(ring(&["k1", "k2"])));
        rotation::promote(&operator, &kek("k2")).await.unwrap();
        operator
    }

    /// The versions in use, by column.
    async fn versions(&self) -> BTreeMap<String, Vec<i32>> {
        let mut db = self.world.db.as_tenant(self.world.tenant.id).await;
        let mut versions = BTreeMap::new();
        for (table, column) in COLUMNS {
            let sql = format!("select {column} from {table} where {column} is not null order by 1");
            let found = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                .fetch_all(&mut db)
                .await
                .unwrap();
            versions.insert(format!("{table}.{column}"), found);
        }
        versions
    }
}

fn all(version: i32) -> BTreeMap<String, Vec<i32>> {
    COLUMNS
        .iter()
        .map(|(table, column)| (format!("{table}.{column}"), vec![version]))
        .collect()
}

#[tokio::test]
async fn everything_that_is_sealed_is_sealed_anew_and_still_good() {
    let fixture = SealedFixture::new().await;
    let SealedFixture {
        world,
        ann,
        gate,
        run,
        request,
        flow,
        desk,
    } = &fixture;
    assert_eq!(fixture.versions().await, all(1), "each kind once");
    let operator = fixture.promoted().await;
    let needed = rotation::retire(&operator, &kek("k1"))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        needed.starts_with("key k1 is needed: it wraps 1 tenant key, which 11 records need;"),
        "{needed}"
    );
    assert_eq!(
        rotation::list(&operator).await.unwrap().1,
        0,
        "no newer version was made yet"
    );
    let done = rewrap(&operator, 2, |_| ()).await.unwrap();
    assert_eq!(
        done,
        Progress {
            tenant_keys: 1,
            records: 11,
            seen: 11,
            total: 11,
            unopenable: 0,
            locked: 0
        }
    );
    assert_eq!(fixture.versions().await, all(2));
    rotation::retire(&operator, &kek("k1")).await.unwrap();
    assert_eq!(
        known(&world.db).await,
        pairs(&[("k1", "retired"), ("k2", "sealing")])
    );
    // From now on with the new key alone.
    let left = Keys::new(world.db.db.clone(), Some(ring(&["k2"])));
    assert_eq!(rewrap(&left, 2, |_| ()).await.unwrap(), Progress::default());
    let (scope, _) = values::load_stored(world.app(), world.tenant.id, run.parse().unwrap())
        .await
        .unwrap();
    assert_eq!(scope.to_string(), r#"{"context_id":"sprint-42"}"#);
    let carl = world.user("carl", &["cfo"]).await;
    let path = format!("/v1/approvals/{}", request["id"].as_str().unwrap());
    let decision = json!({ "decision": "approve", "args_sha256": request["args_sha256"] });
    carl.post(&format!("{path}/decision"), decision)
        .await
        .expect(200);
    eventually(async || ann.get(&path).await.expect(200)["state"] == "succeeded").await;
    assert_eq!(
        world.bank.executions("send_money"),
        1,
        "the arguments are what they were"
    );
    ann.say_and_wait(flow, "the second").await;
    let said = crate::support::client::plain(ann.messages(flow).await.last().unwrap());
    assert!(
        said.contains("unreachable"),
        "both fields were there to be tried: {said}"
    );
    ann.say_and_wait(&desk.1, "red").await;
    let sent = offer::asked(&desk.0, "tools/call").remove(1);
    assert_eq!(
        sent["inputResponses"]["ask"]["content"],
        json!({ "color": "red", "name": "Ann" })
    );
    gate.open();
    ended(ann, run).await;
}

#[tokio::test]
async fn what_cannot_be_opened_stays_and_the_rest_goes_on() {
    let fixture = SealedFixture::new().await;
    let tenant = fixture.world.tenant.id;
    sqlx::query("update secrets set sealed = set_byte(sealed, 90, get_byte(sealed, 90) # 1)")
        .execute(&mut fixture.world.db.as_tenant(tenant).await)
        .await
        .unwrap();
    let operator = fixture.promoted().await;
    for records in [10, 0] {
        let done = rewrap(&operator, 3, |_| ()).await.unwrap();
        assert_eq!((done.records, done.unopenable), (records, 1));
    }
    let mut expected = all(2);
    expected.insert("secrets.tenant_key_version".to_owned(), vec![1]);
    assert_eq!(fixture.versions().await, expected);
    fixture.gate.open();
    ended(&fixture.ann, &fixture.run).await;
}

#[tokio::test]
async fn no_column_with_something_sealed_is_forgotten() {
    let test = TestDb::new().await;
    let sql = "select table_name::text, column_name::text from information_schema.columns
               where table_schema = 'public' and is_generated = 'ALWAYS' and column_name like '%key_version'
               order by 1, 2";
    let found: Vec<(String, String)> = sqlx::query_as(sql)
        .fetch_all(&mut test.as_owner().await)
        .await
        .unwrap();
    let mut expected = COLUMNS
        .map(|(table, column)| (table.to_owned(), column.to_owned()))
        .to_vec();
    // A token that cannot be opened is got anew. No credential waits for its first call in the fixture.
    for (table, column) in [
        ("access_tokens", "tenant_key_version"),
        ("credentials", "candidate_key_version"),
    ] {
        expected.push((table.to_owned(), column.to_owned()));
    }
    expected.sort();
    assert_eq!(found, expected);
    // Other binary columns are hashes, wrapped keys, and ends of those above.
    let sql = "select table_name || '.' || column_name from information_schema.columns
               where table_schema = 'public' and udt_name = 'bytea' and table_name <> '_sqlx_migrations' order by 1";
    let bytes: Vec<String> = sqlx::query_scalar(sql)
        .fetch_all(&mut test.as_owner().await)
        .await
        .unwrap();
    let sealed = [
        "access_tokens.sealed",
        "approvals.sealed",
        "credentials.candidate",
        "credentials.sealed",
        "elicitations.entered",
        "elicitations.sealed",
        "flows.answer",
        "flows.entered",
        "kept_calls.sealed",
        "mcp_servers.sealed",
        "oauth_clients.sealed",
        "oauth_sign_ins.sealed",
        "request_answers.sealed",
        "runs.scope",
        "secrets.sealed",
        "webhooks.sealed",
    ];
    let plain = [
        "access_tokens.request",
        "api_keys.hash",
        "approvals.args_sha256",
        "approvals.fingerprint",
        "attachments.data",
        "audit.args_sha256",
        "credential_judges.asked",
        "flows.code_hash",
        "flows.link_hash",
        "keks.check_value",
        "limit_sums.id",
        "limit_uses.sum_id",
        "operator_request_answers.answer",
        "operator_request_answers.digest",
        "replicas.policies_seen",
        "replicas.policies_sha256",
        "request_answers.digest",
        "settled_policies.sha256",
        "oauth_sign_ins.browser_hash",
        "oauth_sign_ins.state_hash",
        "request_keys.digest",
        "shown_requests.args_sha256",
        "stream_tickets.hash",
        "tenant_keys.wrapped",
    ];
    let mut expected: Vec<&str> = sealed.into_iter().chain(plain).collect();
    expected.sort_unstable();
    assert_eq!(
        bytes, expected,
        "is the new column sealed? then it belongs into store::sealed"
    );
}
