//! All that is one user's: a copy of it, and its deletion. Nothing of anybody else is in the one or goes with the other.

use std::collections::BTreeSet;

use chatelaine::{
    app::{accounts::development, platform::keys::contexts},
    cli::user,
};
use clap::Parser;
use domain::{
    credential::CredentialRef,
    ids::{AgentId, CredentialId, ServerId, TenantId, UserId},
};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use crate::support::{
    bank::cfo_approves,
    client::Client,
    model::{Gate, text},
    wait::eventually,
    world::World,
};

const TRANSFER: &str = r#"/call bank send_money {"from_account":"current","to":"acme","amount":"5.00","currency":"EUR"}"#;
/// Words that are Zoe's and nobody else's.
const NAME: &str = "Zoe Zweistein";
const EMAIL: &str = "zoe@zweistein.example";
const SAID: &str = "my cat is called Mondrian";
const TOKEN: &str = "token-of-zoe-0123456789";
/// Where her id stays.
const KEEPS_ID: [&str; 5] = [
    "approvals",
    "audit",
    "sign_outs",
    "usage",
    "usage_additions",
];

async fn world() -> World {
    let world = World::with(|setup| setup.change_server(cfo_approves())).await;
    world.tools_ready().await;
    world.keep_calls(30).await;
    world.model.on(|_| Some(text("Hello.")));
    world
}

async fn zoe(world: &World) -> Client {
    world
        .someone(&development::DevelopmentUser {
            user: "zoe-4711".to_owned(),
            roles: vec!["employee".to_owned()],
            name: Some(NAME.to_owned()),
            email: Some(EMAIL.to_owned()),
            ..Default::default()
        })
        .await
}

/// Something that a user entered for a personal server.
async fn enter(world: &World, user: &str, secret: &str) {
    let (app, tenant) = (world.app(), world.tenant.id);
    let credential = CredentialRef {
        tenant,
        user: UserId(user.into()),
        agent: AgentId::parse("bank").unwrap(),
        server: ServerId::parse("notes").unwrap(),
        id: CredentialId::new(),
        generation: 1,
    };
    let secret = secret.to_owned().into();
    let sealed = app
        .keys
        .seal(tenant, &contexts::of_credential(&credential), &secret)
        .await;
    let mut tx = world.db.db.tenant(tenant).await.unwrap();
    store::credentials::put(&mut tx, &credential, &sealed.unwrap(), None)
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

/// Everything that a user can leave: two conversations, one request that is decided and one that waits.
async fn live(world: &World, client: &Client, user: &str, said: &str) {
    let chat = client.open("bank").await;
    client.say_and_wait(&chat, said).await;
    client.say_and_wait(&chat, TRANSFER).await;
    let carl = world.user("carl", &["cfo"]).await;
    let mine = client.get("/v1/approvals?role=requester").await.expect(200);
    let request = &mine["items"][0];
    let no = json!({ "decision": "reject", "args_sha256": request["args_sha256"] });
    let path = format!("/v1/approvals/{}/decision", request["id"].as_str().unwrap());
    carl.post(&path, no).await.expect(200);
    let other = client.open("bank").await;
    client
        .say_and_wait(&other, &TRANSFER.replace("5.00", "6.00"))
        .await;
    enter(world, user, TOKEN).await;
}

/// The tables of a tenant that have this text in any column.
async fn tables_with(world: &World, tenant: TenantId, text: &str) -> BTreeSet<String> {
    let mut db = world.db.as_tenant(tenant).await;
    let tables: Vec<String> = sqlx::query_scalar(
        "select c.relname::text from pg_class c
         where c.relkind = 'r' and c.relnamespace = 'public'::regnamespace
           and has_table_privilege(current_user, c.oid, 'select')",
    )
    .fetch_all(&mut db)
    .await
    .unwrap();
    let mut found = BTreeSet::new();
    for table in tables {
        let sql = format!("select count(*) from {table} t where strpos(t::text, $1) > 0");
        let rows: i64 = sqlx::query_scalar(AssertSqlSafe(sql))
            .bind(text)
            .fetch_one(&mut db)
            .await
            .unwrap();
        if rows > 0 {
            found.insert(table);
        }
    }
    found
}

/// All rows of a tenant that have this text, table by table.
async fn rows_with(world: &World, tenant: TenantId, text: &str) -> Vec<String> {
    let mut db = world.db.as_tenant(tenant).await;
    let mut rows = Vec::new();
    for table in tables_with(world, tenant, text).await {
        // What was used is added up in the background.
        if table.starts_with("usage") {
            continue;
        }
        let sql = format!("select t::text from {table} t where strpos(t::text, $1) > 0 order by 1");
        let found: Vec<String> = sqlx::query_scalar(AssertSqlSafe(sql))
            .bind(text)
            .fetch_all(&mut db)
            .await
            .unwrap();
        rows.extend(found.into_iter().map(|row| format!("{table}: {row}")));
    }
    rows
}

#[tokio::test]
async fn a_copy_has_all_that_is_the_users_and_no_secret() {
    let world = world().await;
    let (zoe, admin) = (zoe(&world).await, world.admin().await);
    let (ann, eve) = (
        world.user("ann", &["employee"]).await,
        world.stranger("zoe-4711").await,
    );
    live(&world, &zoe, "zoe-4711", SAID).await;
    live(&world, &ann, "ann", "what ann said").await;
    let strange = eve.open("bank").await;
    eve.say_and_wait(&strange, "what the other zoe said").await;
    let answer = zoe.get("/v1/me/export").await;
    let copy = answer.expect(200);
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(copy["user"], "zoe-4711");
    assert_eq!(copy["claims"]["name"], NAME);
    assert_eq!(copy["connections"][0]["server"], "notes");
    assert_eq!(copy["usage"][0]["runs"], 1);
    let approvals = copy["approvals"].as_array().unwrap();
    let states: Vec<_> = approvals.iter().map(|it| it["state"].clone()).collect();
    assert_eq!(states, ["pending", "rejected"]);
    let amounts = copy["kept_calls"].as_array().unwrap().iter();
    let amounts: Vec<_> = amounts
        .map(|call| call["arguments"]["amount"].clone())
        .collect();
    assert_eq!(amounts, ["5.00", "6.00"]);
    let conversations = copy["conversations"].as_array().unwrap();
    assert_eq!(conversations.len(), 2);
    let mine = zoe.messages(conversations[1]["id"].as_str().unwrap()).await;
    assert_eq!(conversations[1]["messages"], json!(mine));
    assert!(answer.text.contains(SAID));
    assert!(
        copy["audit"]
            .as_array()
            .unwrap()
            .iter()
            .all(|line| line["actor"] == "zoe-4711")
    );
    for foreign in [TOKEN, "what ann said", "what the other zoe said"] {
        assert!(!answer.text.contains(foreign), "{foreign}");
    }
    let by_admin = admin
        .get("/v1/admin/users/zoe-4711/export")
        .await
        .expect(200);
    assert_eq!(by_admin["conversations"], copy["conversations"]);
    assert_eq!(by_admin["approvals"], copy["approvals"]);
}

#[tokio::test]
async fn claims_that_no_pack_names_are_in_no_row() {
    let world = world().await;
    let (acme, zoe) = (world.tenant.id, zoe(&world).await);
    live(&world, &zoe, "zoe-4711", SAID).await;
    assert_eq!(tables_with(&world, acme, EMAIL).await, BTreeSet::new());
    // A pack that names it has it from the next request on.
    world.change_pack(json!({ "flows": { "authentication": { "userIdAttribute": "email" } } }));
    eventually(async || {
        zoe.get("/v1/me").await.expect(200);
        tables_with(&world, acme, EMAIL).await.contains("users")
    })
    .await;
}

#[tokio::test]
async fn a_long_history_is_copied_page_by_page() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("bank").await;
    let many = format!(
        "insert into messages (tenant_id, id, conversation_id, seq, run_ordinal, role, parts, for_model)
         select tenant_id, gen_random_uuid(), id, 100 + n, 1, 'user',
                json_build_array(json_build_object('type', 'text', 'text', 'word ' || n)), true
         from conversations, generate_series(1, 450) n where id = '{chat}' on conflict do nothing"
    );
    sqlx::raw_sql(AssertSqlSafe(many))
        .execute(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    for _ in 0..120 {
        ann.open("bank").await;
    }
    let copy = ann.get("/v1/me/export").await.expect(200);
    let conversations = copy["conversations"].as_array().unwrap();
    assert_eq!(conversations.len(), 121);
    let long = conversations
        .iter()
        .find(|it| it["id"] == json!(chat))
        .unwrap();
    let texts: Vec<&str> = long["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|message| message["parts"][0]["text"].as_str())
        .filter(|text| text.starts_with("word "))
        .collect();
    let expected: Vec<String> = (1..=450).map(|n| format!("word {n}")).collect();
    assert_eq!(texts, expected);
}

#[tokio::test]
async fn a_deleted_user_leaves_an_id_and_nothing_else() {
    let world = world().await;
    let (acme, globex) = (world.tenant.id, world.other.id);
    let (replica, gate) = (world.replica().await, Gate::new());
    let (zoe, admin) = (zoe(&world).await, world.admin().await);
    let (ann, eve) = (
        world.user("ann", &["employee"]).await,
        world.stranger("zoe-4711").await,
    );
    live(&world, &zoe, "zoe-4711", SAID).await;
    live(&world, &ann, "ann", "what ann said").await;
    let strange = eve.open("bank").await;
    eve.say_and_wait(&strange, "what the other zoe said").await;
    // A run of hers is under way on the other replica.
    world.model.reply(text("never to be heard").gate(1, &gate));
    let there = zoe.at(&replica.url);
    let busy = there.open("bank").await;
    there.say(&busy, "tell me a long story").await;
    let left = tables_with(&world, acme, NAME).await;
    assert!(left.contains("users"), "{left:?}");
    let (of_ann, of_eve) = (
        rows_with(&world, acme, "what ann said").await,
        rows_with(&world, globex, "zoe-4711").await,
    );
    let answer = admin.delete("/v1/admin/users/zoe-4711").await;
    assert_eq!(answer.status, 204, "{}", answer.text);
    for at in [&zoe, &there] {
        eventually(async || at.get("/v1/me").await.status == 401).await;
    }
    // What waited was taken back.
    let open = "select count(*) from approvals where requester = 'zoe-4711' and state in ('pending', 'approved')";
    eventually(async || {
        let open: i64 = sqlx::query_scalar(open)
            .fetch_one(&mut world.db.as_tenant(acme).await)
            .await
            .unwrap();
        open == 0
    })
    .await;
    for word in [NAME, SAID, "a long story", "never to be heard"] {
        let found = tables_with(&world, acme, word).await;
        assert!(found.is_empty(), "{word}: {found:?}");
    }
    let ids = tables_with(&world, acme, "zoe-4711").await;
    let allowed: BTreeSet<String> = KEEPS_ID.iter().map(|table| (*table).to_owned()).collect();
    assert!(ids.is_subset(&allowed), "{ids:?}");
    // Nothing of anybody else.
    assert_eq!(rows_with(&world, acme, "what ann said").await, of_ann);
    assert_eq!(rows_with(&world, globex, "zoe-4711").await, of_eve);
    ann.get("/v1/me/export").await.expect(200);
    let mine = ann.get("/v1/approvals?role=requester").await.expect(200);
    assert_eq!(mine["items"][0]["state"], "pending");
    let told = "select count(*) from audit where action = 'user.deleted' and actor = 'root' and detail = 'zoe-4711'";
    let told: i64 = sqlx::query_scalar(told)
        .fetch_one(&mut world.db.as_tenant(acme).await)
        .await
        .unwrap();
    assert_eq!(told, 1);
    // It is no error to do it again: of her the trail still knows.
    let again = admin.delete("/v1/admin/users/zoe-4711").await;
    assert_eq!(again.status, 204, "{}", again.text);
    assert_eq!(admin.delete("/v1/admin/users/who").await.status, 404);
}

#[tokio::test]
async fn users_delete_their_own_data_and_come_back_with_nothing() {
    let world = world().await;
    let (ann, bob) = (world.frontend("ann").await, world.user("bob", &[]).await);
    for person in [&ann, &bob] {
        let chat = person.open("bank").await;
        person.say_and_wait(&chat, "hi").await;
    }
    assert_eq!(ann.delete("/v1/me/data").await.status, 204);
    let count = async |client: &Client| {
        let list = client.get("/v1/conversations").await.expect(200);
        list["items"].as_array().unwrap().len()
    };
    // A frontend's key still speaks for her.
    assert_eq!((count(&ann).await, count(&bob).await), (0, 1));
    let chat = ann.open("bank").await;
    ann.say_and_wait(&chat, "hi again").await;
    assert_eq!(count(&ann).await, 1);
}

#[derive(Parser)]
enum Typed {
    #[command(subcommand)]
    User(user::Command),
}

async fn typed(world: &World, line: &[&str]) -> anyhow::Result<String> {
    let Typed::User(command) = Typed::try_parse_from([&["chatelaine", "user"], line].concat())?;
    let mut out = Vec::new();
    user::run(command, &world.db.db, &world.config, &mut out).await?;
    Ok(String::from_utf8(out)?)
}

#[tokio::test]
async fn the_operator_does_the_same_at_the_database() {
    let world = world().await;
    let zoe = zoe(&world).await;
    live(&world, &zoe, "zoe-4711", SAID).await;
    let of = ["--tenant", "acme", "zoe-4711"];
    let copy = typed(&world, &[&["export"], &of[..]].concat())
        .await
        .unwrap();
    let copy: Value = serde_json::from_str(&copy).unwrap();
    assert_eq!(copy["conversations"].as_array().unwrap().len(), 2);
    let unsure = typed(&world, &[&["delete"], &of[..]].concat()).await;
    assert!(unsure.unwrap_err().to_string().contains("--yes"));
    typed(&world, &[&["delete", "--yes"], &of[..]].concat())
        .await
        .unwrap();
    eventually(async || zoe.get("/v1/me").await.status == 401).await;
    let found = tables_with(&world, world.tenant.id, SAID).await;
    assert!(found.is_empty(), "{found:?}");
    let gone = typed(&world, &["export", "--tenant", "nobody", "zoe"]).await;
    assert!(gone.unwrap_err().to_string().contains("tenant"));
}
