//! What a user finds again: messages from the end, titles, the archive.

use http::Method;
use serde_json::{Value, json};

use crate::support::{
    client::{Answer, Client},
    has::Has,
    model::{said, text},
    world::World,
};

async fn change(client: &Client, conversation: &str, body: Value) -> Answer {
    let path = format!("/v1/conversations/{conversation}");
    client
        .send(client.request(Method::PATCH, &path).json(&body))
        .await
}

/// The values of a field of the items of a list.
async fn listed(client: &Client, path: &str, field: &str) -> Vec<Value> {
    let page = client.get(path).await.expect(200);
    let items = page["items"].as_array().unwrap().iter();
    items.map(|item| item[field].clone()).collect()
}

#[tokio::test]
async fn messages_are_read_from_the_end_and_in_both_directions() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    for _ in 0..2 {
        ann.say_and_wait(&id, "/help").await;
    }
    let path = format!("/v1/conversations/{id}/messages");
    for (query, expected) in [
        ("limit=2", vec![5, 4]),
        ("limit=2&before=4", vec![3, 2]),
        ("limit=2&cursor=4", vec![3, 2]),
        ("limit=2&after=2", vec![3, 4]),
        ("before=1", vec![]),
    ] {
        let found = listed(&ann, &format!("{path}?{query}"), "seq").await;
        let expected: Vec<_> = expected.into_iter().map(Value::from).collect();
        assert_eq!(found, expected, "{query}");
    }
    let page = ann
        .get(&format!("{path}?after=2&limit=2"))
        .await
        .expect(200);
    assert_eq!(page["next"], 4);
    for query in ["after=-1", "before=-1", "after=1&before=4", "cursor=x"] {
        ann.get(&format!("{path}?{query}")).await.expect(400);
    }
}

#[tokio::test]
async fn a_conversation_is_renamed_archived_and_pinned() {
    let world = World::shared().await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let (first, second) = (ann.open("bank").await, ann.open("bank").await);
    let third = ann.open("bank").await;

    let changed = change(
        &ann,
        &first,
        json!({ "title": "Taxes\nof 2026", "pinned": true }),
    )
    .await;
    let changed = changed.expect(200);
    changed.has(json!({ "title": "Taxes", "pinned": true, "archived": false }));
    change(&ann, &second, json!({ "archived": true }))
        .await
        .expect(200);
    assert_eq!(
        listed(&ann, "/v1/conversations", "id").await,
        [first.clone(), third.clone()]
    );
    let archived = listed(&ann, "/v1/conversations?archived=true", "id").await;
    assert_eq!(archived, std::slice::from_ref(&second));
    assert_eq!(
        listed(&ann, "/v1/conversations?pinned=true", "id").await,
        std::slice::from_ref(&first)
    );
    // The pinned one stands on the first page only.
    let page = ann.get("/v1/conversations?limit=1").await.expect(200);
    let cursor = page["next"].as_str().unwrap();
    let rest = listed(&ann, &format!("/v1/conversations?cursor={cursor}"), "id").await;
    assert_eq!(rest, [third]);

    change(&ann, &first, json!({ "pinned": false }))
        .await
        .expect(200);
    let back = change(&ann, &second, json!({ "archived": false })).await;
    assert_eq!(back.expect(200)["archived"], false);
    change(&bob, &first, json!({ "title": "mine" }))
        .await
        .expect(404);
    change(&ann, &first, json!({ "title": " " }))
        .await
        .expect(400);
    change(&ann, &first, json!({ "tags": [] }))
        .await
        .expect(400);
}

/// What the request for a title begins with.
const TASK: &str = "Write a title for the conversation";

fn is_title(request: &Value) -> bool {
    let first = request["messages"][0]["content"].as_str();
    first.is_some_and(|system| system.starts_with(TASK))
}

#[tokio::test]
async fn a_command_is_the_title_until_a_message_is_said() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Hm.")));
    let ann = world.user("ann", &["employee"]).await;
    let id = ann.open("bank").await;
    let title = async || {
        let conversation = ann
            .get(&format!("/v1/conversations/{id}"))
            .await
            .expect(200);
        conversation["title"].as_str().unwrap().to_owned()
    };
    for (line, expected) in [
        ("/tools", "/tools"),
        ("/approvals", "/tools"),
        ("Tell me of cats", "Tell me of cats"),
        ("/tools", "Tell me of cats"),
        ("And of dogs", "Tell me of cats"),
    ] {
        ann.say_and_wait(&id, line).await;
        assert_eq!(title().await, expected, "{line}");
    }
}

#[tokio::test]
async fn the_model_makes_a_title_once_and_never_over_a_users() {
    let world = World::with(|setup| setup.config.model_titles = true).await;
    world.model.on(|request| {
        let asks = is_title(request);
        let about = if said(request, "cats") {
            "\"Sleepy cats\"\n"
        } else {
            "Other things"
        };
        Some(text(if asks { about } else { "They sleep." }))
    });
    let ann = world.user("ann", &["employee"]).await;
    let id = ann.open("bank").await;
    let mut events = ann.listen(&id, None).await;
    let run = ann.say(&id, "Tell me of cats").await;
    let heard = events.until_run_ends(&run).await;
    assert!(heard.iter().all(|event| event.name != "title"));
    let event = events.next().await.unwrap();
    assert_eq!(event.name, "title");
    assert_eq!(event.data["title"], "Sleepy cats");
    let path = format!("/v1/conversations/{id}");
    assert_eq!(ann.get(&path).await.expect(200)["title"], "Sleepy cats");

    let asked = world.model.requests();
    let titles: Vec<_> = asked.iter().filter(|asked| is_title(&asked.body)).collect();
    assert_eq!(titles.len(), 1);
    assert!(
        titles[0].body.get("tools").is_none(),
        "a title needs no tools"
    );
    let runs: i64 = sqlx::query_scalar("select count(*) from runs")
        .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap();
    assert_eq!(runs, 1);

    // The next answer asks for none, and neither does one in a conversation with a name.
    ann.say_and_wait(&id, "More").await;
    let body = json!({ "agent": "bank", "title": "Mine" });
    let named = ann.post("/v1/conversations", body).await.expect(201);
    let named = named["id"].as_str().unwrap();
    ann.say_and_wait(named, "Tell me of cats").await;
    assert_eq!(world.model.requests().len(), 4);
    assert_eq!(
        ann.get(&format!("/v1/conversations/{named}"))
            .await
            .expect(200)["title"],
        "Mine"
    );
}

/// A history with a long answer, as a client of each protocol sends it in a new chat.
fn with_history(door: &str, answer: &str, at: usize) -> (&'static str, Value) {
    let said = [
        ("user", "a"),
        ("assistant", answer),
        ("user", &format!("b{at}")),
    ];
    let plain = said.map(|(role, text)| json!({ "role": role, "content": text }));
    let parts = said.map(|(role, text)| {
        json!({ "id": text.len().to_string(), "role": role, "parts": [{ "type": "text", "text": text }] })
    });
    let chat = format!("chat-{at}");
    match door {
        "chat" => (
            "/v1/chat/completions",
            json!({ "model": "bank", "messages": plain }),
        ),
        "responses" => ("/v1/responses", json!({ "model": "bank", "input": plain })),
        "instructions" => (
            "/v1/responses",
            json!({ "model": "bank", "input": format!("b{at}"), "instructions": answer }),
        ),
        "ui" => (
            "/v1/ui/chat",
            json!({ "id": chat, "agent": "bank", "messages": parts }),
        ),
        _ => {
            let ids = said.map(|(role, text)| {
                json!({ "id": text.len().to_string(), "role": role, "content": text })
            });
            (
                "/v1/agui/bank",
                json!({ "threadId": chat, "runId": chat, "messages": ids, "tools": [], "context": [],
                    "state": {}, "forwardedProps": {} }),
            )
        }
    }
}

#[tokio::test]
async fn history_that_a_request_brings_counts_as_stored_at_each_protocol() {
    let world = World::with(|setup| {
        setup.config.stored_per_guest_per_day = Some(1 << 20);
        setup.config.stored_by_guests_per_day = None;
    })
    .await;
    world.model.on(|_| Some(text("Fine.")));
    let stored = async |guest: &Client| {
        let me = guest.get("/v1/me").await.expect(200);
        me["usage"]["stored_bytes"].as_i64().unwrap()
    };
    for door in ["chat", "responses", "ui", "agui", "instructions"] {
        let guest = world.guest().await;
        // Instructions are kept as a message and with the response.
        let copies = if door == "instructions" { 2 } else { 1 };
        let answer = "x".repeat(400_000 / copies);
        for at in 1..=2 {
            let (path, body) = with_history(door, &answer, at);
            let answered = guest.post(path, body).await;
            assert_eq!(answered.status, 200, "{door}: {}", answered.text);
            let counted = stored(&guest).await;
            let brought = 400_000 * i64::try_from(at).unwrap();
            assert!(
                (brought..brought + 20_000).contains(&counted),
                "{door}: {counted}"
            );
        }
        let before = stored(&guest).await;
        let (path, body) = with_history(door, &answer, 3);
        let refused = guest.post(path, body).await;
        assert_eq!(refused.status, 429, "{door}: {}", refused.text);
        assert!(!refused.header("retry-after").is_empty(), "{door}");
        assert_eq!(stored(&guest).await, before, "{door}: nothing was written");
    }
}

#[tokio::test]
async fn history_that_is_stored_already_counts_once() {
    let world = World::with(|setup| setup.config.stored_per_user_per_day = Some(1 << 20)).await;
    world.model.on(|_| Some(text("Fine.")));
    let ann = world.user("ann", &[]).await;
    let answer = "x".repeat(700_000);
    let mut said = vec![
        json!({ "role": "user", "content": "a" }),
        json!({ "role": "assistant", "content": answer }),
    ];
    for question in ["b", "c", "d"] {
        said.push(json!({ "role": "user", "content": question }));
        let body = json!({ "model": "bank", "messages": said });
        ann.post("/v1/chat/completions", body).await.expect(200);
        said.push(json!({ "role": "assistant", "content": "Fine." }));
    }
}
