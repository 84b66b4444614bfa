//! Pages: `next` leads through the whole list, each item once.

use serde_json::Value;

use crate::support::{client::Client, world::World};

/// The ids (or numbers) on all pages, and how many pages there were.
async fn walk(client: &Client, path: &str, cursor: &str, key: &str) -> (Vec<Value>, usize) {
    let (mut found, mut pages, mut next) = (Vec::new(), 0, String::new());
    loop {
        let page = client
            .get(&format!("{path}?limit=2{next}"))
            .await
            .expect(200);
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 2);
        found.extend(items.iter().map(|item| item[key].clone()));
        pages += 1;
        match &page["next"] {
            Value::Null => return (found, pages),
            at => next = format!("&{cursor}={}", at.to_string().trim_matches('"')),
        }
    }
}

#[tokio::test]
async fn conversations_come_newest_first_and_once_each() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let mut opened = Vec::new();
    for agent in ["bank", "office", "bank", "office"] {
        opened.push(Value::String(ann.open(agent).await));
    }
    opened.reverse();
    assert_eq!(
        walk(&ann, "/v1/conversations", "cursor", "id").await,
        (opened.clone(), 2)
    );
    let bank = ann.get("/v1/conversations?agent=bank").await.expect(200);
    let ids: Vec<_> = bank["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["id"].clone())
        .collect();
    assert_eq!(ids, [opened[1].clone(), opened[3].clone()]);
}

#[tokio::test]
async fn messages_come_newest_first_and_once_each() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    for _ in 0..2 {
        ann.say_and_wait(&id, "/help").await;
    }
    let (found, pages) = walk(
        &ann,
        &format!("/v1/conversations/{id}/messages"),
        "cursor",
        "seq",
    )
    .await;
    let newest_first = (1..=5).rev().map(Value::from).collect();
    assert_eq!((found, pages), (newest_first, 3));
}

#[tokio::test]
async fn a_conversation_is_named_by_its_user_or_its_first_question() {
    let world = World::shared().await;
    world
        .model
        .on(|_| Some(crate::support::model::text("Hello.")));
    let ann = world.user("ann", &[]).await;
    let body = serde_json::json!({ "agent": "bank", "title": "Taxes" });
    assert_eq!(
        ann.post("/v1/conversations", body).await.expect(201)["title"],
        "Taxes"
    );
    let id = ann.open("bank").await;
    ann.say_and_wait(&id, "What is a euro?\nIn dollars.").await;
    assert_eq!(
        ann.get(&format!("/v1/conversations/{id}"))
            .await
            .expect(200)["title"],
        "What is a euro?"
    );
}
