//! What models and servers may say, and what Postgres, later turns and readers must not trip over.

use http::StatusCode;
use serde_json::{Value, json};

use super::{shared_world, world_with};
use crate::support::{
    client::{plain, tool_results},
    model::{call, calls, results, text},
    scripted::{Scripted, Seen},
    wait::eventually,
    world::World,
};

/// A world whose bank is this server, open to everybody.
async fn world_of(server: &Scripted) -> World {
    let url = server.url.to_string();
    world_with(|setup| {
        setup.env = setup.env.clone().with("BANK_URL", url);
        setup.change_server(json!({ "toolAccess": { "default": "all" } }));
    })
    .await
}

/// A server whose one tool answers with this text as its result.
async fn answering(result: &'static str) -> Scripted {
    Scripted::modern(async move |seen: Seen| {
        (seen.method() == "tools/call").then(|| seen.raw_result(result))
    })
    .await
}

/// Calls the tool once, asks something else, and reads the conversation; the tool's result.
async fn survives(result: &'static str) -> (Value, Vec<String>) {
    let server = answering(result).await;
    let world = world_of(&server).await;
    world
        .model
        .reply(calls([("bank__echo", json!({}))]))
        .reply(text("One."))
        .reply(text("Two."));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let run = ann.say_and_wait(&id, "call it").await;
    assert_eq!(run["status"], "succeeded", "{run}");
    let told = results(&world.model.last_request());
    assert_eq!(
        ann.say_and_wait(&id, "and now?").await["status"],
        "succeeded"
    );
    assert_eq!(plain(ann.messages(&id).await.last().unwrap()), "Two.");
    (tool_results(&ann, &id).await.remove(0), told)
}

#[tokio::test]
async fn a_nul_in_what_the_model_says_is_kept() {
    let world = shared_world().await;
    world.model.reply(text("zero:\0.").and_call(call(
        "bank__get_exchange_rate",
        "{\"from\":\"\\u0000\",\"to\":\"EUR\"}",
    )));
    world.model.reply(text("done \0"));
    let ann = world.user("ann", &["employee"]).await;
    let id = ann.open("bank").await;
    let run = ann.say_and_wait(&id, "hi").await;
    assert_eq!(run["status"], "succeeded", "{run}");
    let messages = ann.messages(&id).await;
    assert_eq!(plain(&messages[2]), "zero:\0.");
    assert_eq!(plain(messages.last().unwrap()), "done \0");
}

#[tokio::test]
async fn a_nul_in_a_result_is_kept_for_programs_and_left_out_for_the_model() {
    let (result, told) = survives(r#"{"content":[{"type":"text","text":"a\u0000b"}]}"#).await;
    assert_eq!(told, ["ab"]);
    assert_eq!(result["raw"]["content"][0]["text"], "a\0b");
}

#[tokio::test]
async fn half_of_a_surrogate_pair_in_a_result_harms_nobody() {
    // Members that nobody reads must not matter; the text cannot be read and is said to be so.
    let server =
        answering(r#"{"content":[{"type":"text","text":"fine"}],"_meta":{"x":"\ud83d"}}"#).await;
    let world = world_of(&server).await;
    world
        .model
        .reply(calls([("bank__echo", json!({}))]))
        .reply(text("One."))
        .reply(text("Two."));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    assert_eq!(
        ann.say_and_wait(&id, "call it").await["status"],
        "succeeded"
    );
    assert_eq!(
        ann.say_and_wait(&id, "and now?").await["status"],
        "succeeded"
    );
    let page = ann
        .get(&format!("/v1/conversations/{id}/messages?after=0"))
        .await;
    assert_eq!(page.status, 200);
    assert!(page.text.contains("Two."), "{}", page.text);
}

#[tokio::test]
async fn a_number_beyond_all_bounds_in_a_result_harms_nobody() {
    let server = answering(
        r#"{"content":[{"type":"text","text":"fine"}],"structuredContent":{"n":1e999999}}"#,
    )
    .await;
    let world = world_of(&server).await;
    world
        .model
        .reply(calls([("bank__echo", json!({}))]))
        .reply(text("One."))
        .reply(text("Two."));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    assert_eq!(
        ann.say_and_wait(&id, "call it").await["status"],
        "succeeded"
    );
    assert_eq!(
        ann.say_and_wait(&id, "and now?").await["status"],
        "succeeded"
    );
    let page = ann
        .get(&format!("/v1/conversations/{id}/messages?after=0"))
        .await;
    assert!(
        page.status == 200 && page.text.contains("1e999999"),
        "{}",
        page.text
    );
}

#[tokio::test]
async fn a_result_stays_as_the_server_wrote_it() {
    let server =
        answering(r#"{"content":[],"structuredContent":{"b":1.10,"a":"ü","b2":1e2}}"#).await;
    let world = world_of(&server).await;
    world
        .model
        .reply(calls([("bank__echo", json!({}))]))
        .reply(text("One."));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    ann.say_and_wait(&id, "call it").await;
    let page = ann
        .get(&format!("/v1/conversations/{id}/messages?after=0"))
        .await;
    assert!(
        page.text
            .contains(r#""structuredContent":{"b":1.10,"a":"ü","b2":1e2}"#),
        "{}",
        page.text
    );
}

#[tokio::test]
async fn a_huge_result_is_cut_for_the_model_and_for_the_conversation() {
    let server = Scripted::modern(async |seen: Seen| {
        let huge = json!({ "content": [{ "type": "text", "text": "x".repeat(3 << 20) }] });
        (seen.method() == "tools/call").then(|| seen.result(huge))
    })
    .await;
    let world = world_of(&server).await;
    world
        .model
        .reply(calls([("bank__echo", json!({}))]))
        .reply(text("Too long."));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    assert_eq!(
        ann.say_and_wait(&id, "call it").await["status"],
        "succeeded"
    );
    let told = &results(&world.model.last_request())[0];
    assert!(
        told.len() < 70_000 && told.ends_with("more bytes are not shown]"),
        "{} bytes",
        told.len()
    );
    let page = ann
        .get(&format!("/v1/conversations/{id}/messages?after=0"))
        .await;
    assert!(page.text.len() < 100_000, "{} bytes", page.text.len());
}

#[tokio::test]
async fn an_empty_result_and_a_refusal_of_the_server_are_told() {
    let server =
        Scripted::modern(
            async |seen: Seen| match seen.body["params"]["arguments"]["n"].as_i64() {
                Some(1) => Some(seen.raw_result("{}")),
                Some(2) => Some(seen.error(StatusCode::OK, -32602, "bad\0 arguments")),
                Some(3) => Some(seen.raw_result(
                    r#"{"content":[{"type":"text","text":"no funds"}],"isError":true}"#,
                )),
                _ => None,
            },
        )
        .await;
    let world = world_of(&server).await;
    let echo = |n: i64| ("bank__echo", json!({ "n": n }));
    world
        .model
        .reply(calls([echo(1), echo(2), echo(3)]))
        .reply(text("Hm."));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    assert_eq!(
        ann.say_and_wait(&id, "call it").await["status"],
        "succeeded"
    );
    let told = results(&world.model.last_request());
    assert!(
        told[1].contains("arguments") && told[2].contains("no funds"),
        "{told:?}"
    );
    let mut statuses: Vec<_> = tool_results(&ann, &id)
        .await
        .iter()
        .map(|result| result["status"].clone())
        .collect();
    statuses.sort_by_key(ToString::to_string);
    assert_eq!(statuses, ["failed", "failed", "succeeded"]);
}

#[tokio::test]
async fn a_schema_that_postgres_cannot_read_is_stored_all_the_same() {
    let server = Scripted::modern(async |seen: Seen| {
        let list = r#"{"tools":[{"name":"echo","inputSchema":{"type":"object","properties":{"a":{"const":"\u0000","default":1e999999}}}}]}"#;
        (seen.method() == "tools/list").then(|| seen.raw_result(list))
    })
    .await;
    let world = world_of(&server).await;
    let stored = async || {
        let sql = "select count(*) from catalogs_of_all where tools::text like '%1e999999%'";
        let count: i64 = sqlx::query_scalar(sql)
            .fetch_one(&mut world.db.as_system().await)
            .await
            .unwrap();
        count == 1
    };
    eventually(stored).await;
}

#[tokio::test]
async fn a_message_of_nothing_but_nuls_is_empty() {
    let world = shared_world().await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    ann.post(
        &format!("/v1/conversations/{id}/messages"),
        json!({ "text": "\0\0" }),
    )
    .await
    .expect(400);
    assert_eq!(ann.messages(&id).await.len(), 1);
}
