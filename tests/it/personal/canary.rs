//! A secret is planted, everything is done with it, and everything that was written anywhere is searched.

use std::fmt::Write as _;

use base64::Engine;
use serde_json::json;

use super::enter;
use crate::support::{
    model::{calls, text},
    notes::Notes,
    world::World,
};

const CANARY: &str = "canary+T0ken/with=odd\"chars-71c4";

/// The ways in which a secret may be written.
fn spellings(secret: &str) -> Vec<String> {
    let standard = base64::engine::general_purpose::STANDARD.encode(secret);
    let url_safe = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(secret);
    let json = serde_json::to_string(secret).unwrap().trim_matches('"').to_owned();
    let hex = hex::encode(secret);
    let percent = hex
        .as_bytes()
        .chunks(2)
        .fold(String::new(), |all, pair| all + "%" + &String::from_utf8_lossy(pair).to_uppercase());
    let form: String = url::form_urlencoded::byte_serialize(secret.as_bytes()).collect();
    vec![
        secret.to_owned(),
        standard.trim_end_matches('=').to_owned(),
        url_safe,
        json,
        percent,
        form,
        hex.to_uppercase(),
        hex,
    ]
}

fn assert_clean(place: &str, found: &str) {
    for spelling in spellings(CANARY) {
        assert!(!found.contains(&spelling), "{place} holds the secret as {spelling:?}");
    }
}

/// Every row of every table, as text. For the end of a test: the locks are off afterwards.
pub async fn everything_stored(world: &World) -> String {
    let mut db = world.db.as_owner().await;
    let tables: Vec<String> = sqlx::query_scalar("select tablename::text from pg_tables where schemaname = 'public'")
        .fetch_all(&mut db)
        .await
        .unwrap();
    let mut all = String::new();
    for table in tables {
        // Its owner sees every tenant's rows from here on.
        let open = format!("alter table \"{table}\" no force row level security");
        sqlx::query(sqlx::AssertSqlSafe(open)).execute(&mut db).await.unwrap();
        let rows: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("select t::text from \"{table}\" t")))
            .fetch_all(&mut db)
            .await
            .unwrap();
        writeln!(all, "{table}: {rows:?}\n{}", rows.join("\n")).unwrap();
    }
    all
}

#[tokio::test]
async fn a_secret_is_in_no_message_model_request_result_or_row() {
    let notes = Notes::start().await;
    notes.grant(CANARY, "ann", &["read", "write"]);
    let world = notes.world().await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", CANARY).await.expect(200);
    enter(&ann, "notes", &format!("{CANARY}-wrong")).await.expect(422);
    let chat = ann.open("notes").await;
    for spelling in ["raw", "base64", "hex", "url", "inside"] {
        world.model.reply(calls([("notes__echo_token", json!({ "spelling": spelling }))])).reply(text("Done."));
        ann.say_and_wait(&chat, "go").await;
    }
    world.model.reply(calls([("notes__fail_with_token", json!({}))])).reply(text("It failed."));
    ann.say_and_wait(&chat, "go").await;
    notes.revoke(CANARY);
    world.model.reply(calls([("notes__whoami", json!({}))])).reply(text("Refused."));
    ann.say_and_wait(&chat, "go").await;
    let messages = serde_json::to_string(&ann.messages(&chat).await).unwrap();
    assert!(messages.matches("••••").count() >= 6, "the server did give it back: {messages}");
    assert_clean("the conversation", &messages);
    for request in world.model.requests() {
        assert_clean("a model request", &request.body.to_string());
    }
    let stored = everything_stored(&world).await;
    assert!(stored.contains("sealed") || stored.contains("credentials: [\""), "the rows were read");
    assert!(stored.contains("fail_with_token"), "the rows were read");
    assert_clean("the database", &stored);
    assert_clean("the metrics", &world.nobody().get("/metrics").await.text);
}
