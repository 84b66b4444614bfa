//! Conversations are found by the words in them: those that were said a moment ago, and those that are in the index.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use crate::support::{
    client::{Client, plain},
    has::Has,
    model::{last_user, text},
    world::World,
};

/// The ids of the conversations that are found, in the order of the list.
async fn found(client: &Client, words: &str) -> Vec<Value> {
    let path = format!("/v1/conversations?search={words}");
    let page = client.get(&path).await.expect(200);
    let items = page["items"].as_array().unwrap().iter();
    items.map(|item| item["id"].clone()).collect()
}

async fn rename(client: &Client, conversation: &str, title: &str) {
    let path = format!("/v1/conversations/{conversation}");
    let request = client.request(Method::PATCH, &path);
    let changed = client.send(request.json(&json!({ "title": title }))).await;
    changed.expect(200);
}

/// Indexes all that was said, however short a time ago.
async fn index(world: &World) {
    let tenant = world.tenant.id;
    let done = world.in_process(move |_, db| async move {
        let mut tx = db.tenant(tenant).await.unwrap();
        store::words::index(&mut tx, Duration::ZERO, None, 1000)
            .await
            .unwrap();
        tx.commit().await.unwrap();
    });
    done.await;
    assert_eq!(count(world, "unindexed_messages").await, 0);
}

async fn count(world: &World, table: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from {table}")))
        .fetch_one(&mut world.db.as_tenant(world.tenant.id).await)
        .await
        .unwrap()
}

async fn echoing() -> World {
    let world = World::shared().await;
    world
        .model
        .on(|request| Some(text(format!("You said {}", last_user(request)))));
    world
}

#[tokio::test]
async fn conversations_are_found_by_the_words_in_them() {
    let world = echoing().await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let (cats, dogs, named) = (
        ann.open("bank").await,
        ann.open("bank").await,
        ann.open("bank").await,
    );
    ann.say_and_wait(&cats, "Größere Katzen schlafen lange")
        .await;
    ann.say_and_wait(&dogs, "Dogs are awake").await;
    rename(&ann, &named, "Cats and dogs").await;
    let strange = bob.open("bank").await;
    bob.say_and_wait(&strange, "Katzen of another user").await;

    // The second time by the index.
    for _ in 0..2 {
        assert_eq!(found(&ann, "katz").await, [&*cats]);
        assert_eq!(found(&ann, "gr%C3%B6%C3%9Fere+schla").await, [&*cats]);
        assert_eq!(found(&ann, "dogs").await, [&*named, &*dogs]);
        assert_eq!(found(&ann, "dogs+-awake").await, [&*named]);
        assert_eq!(found(&ann, "-katzen").await, [&*named, &*dogs]);
        assert_eq!(found(&ann, "%22katzen+schlafen%22").await, [&*cats]);
        assert_eq!(
            found(&ann, "%22schlafen+katzen%22+lange").await,
            Vec::<Value>::new()
        );
        assert_eq!(found(&ann, "cats+or+lange").await, [&*named, &*cats]);
        assert_eq!(found(&ann, "awake+-%22dogs+sleep%22").await, [&*dogs]);
        // Each is said, but not in one message.
        assert!(found(&ann, "katzen+awake").await.is_empty());
        assert!(found(&ann, "help").await.is_empty());
        for odd in [
            "%27%3A%2A",
            "%26%7C%21",
            "%22",
            "zz%5C",
            "awake+-%22are+dogs%22+zz",
        ] {
            assert!(found(&ann, odd).await.is_empty(), "{odd}");
        }
        let page = ann
            .get("/v1/conversations?search=schlafen")
            .await
            .expect(200);
        page["items"][0]["found"]
            .has(json!({ "seq": 3, "text": "You said Größere Katzen schlafen lange" }));
        index(&world).await;
    }
    assert!(count(&world, "conversation_words").await >= 4);
    ann.get("/v1/conversations?search=+").await.expect(400);
}

#[tokio::test]
async fn what_changes_after_it_was_indexed_is_found_as_it_is_now() {
    let world = echoing().await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    ann.say_and_wait(&id, "kiwi").await;
    index(&world).await;

    ann.say_and_wait(&id, "plum").await;
    rename(&ann, &id, "Fruit").await;
    for _ in 0..2 {
        assert_eq!(found(&ann, "plum").await, [&*id]);
        assert_eq!(found(&ann, "fruit").await, [&*id]);
        assert_eq!(
            found(&ann, "kiwi").await,
            [&*id],
            "said before it was indexed"
        );
        index(&world).await;
    }
    rename(&ann, &id, "Trees").await;
    for _ in 0..2 {
        assert_eq!(found(&ann, "trees").await, [&*id]);
        assert!(found(&ann, "fruit").await.is_empty());
        index(&world).await;
    }

    // A branch that is not shown is not searched.
    let messages = ann.messages(&id).await;
    let plum = messages
        .iter()
        .find(|said| said["role"] == "user" && plain(said) == "plum");
    let edit = json!({ "replaces": plum.unwrap()["id"], "text": "pear" });
    let mut events = ann.listen(&id, None).await;
    let posted = ann
        .post(&format!("/v1/conversations/{id}/messages"), edit)
        .await
        .expect(202);
    events
        .until_run_ends(posted["run"]["id"].as_str().unwrap())
        .await;
    for _ in 0..2 {
        assert_eq!(found(&ann, "pear").await, [&*id]);
        assert!(found(&ann, "plum").await.is_empty());
        assert_eq!(found(&ann, "kiwi").await, [&*id]);
        index(&world).await;
    }

    ann.delete(&format!("/v1/conversations/{id}"))
        .await
        .expect(204);
    assert!(found(&ann, "kiwi").await.is_empty());
    assert_eq!(count(&world, "conversation_words").await, 0);
}

#[tokio::test]
async fn a_long_conversation_is_indexed_in_stretches() {
    let world = echoing().await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let mut tenant = world.db.as_tenant(world.tenant.id).await;
    let said = "insert into messages (tenant_id, id, conversation_id, seq, run_ordinal, role, parts, for_model)
                select $1, gen_random_uuid(), $2::uuid, seq, 1, 'user',
                       json_build_array(json_build_object('type', 'text', 'text', 'word' || seq || ' common')), true
                from generate_series(10, 209) seq
                on conflict do nothing";
    sqlx::query(said)
        .bind(world.tenant.id.0)
        .bind(&id)
        .execute(&mut tenant)
        .await
        .unwrap();
    index(&world).await;
    assert_eq!(count(&world, "conversation_words").await, 5);
    for (words, seq) in [
        ("word10+common", 10),
        ("word117", 117),
        ("word209", 209),
        ("common", 209),
        // Not the number of the last row, but of the message that has the word and not the other.
        ("common+-word209", 208),
        ("word11+or+word12", 129),
        ("%22word117+common%22", 117),
    ] {
        let page = ann
            .get(&format!("/v1/conversations?search={words}"))
            .await
            .expect(200);
        assert_eq!(page["items"][0]["found"]["seq"], seq, "{words}");
    }
    for words in ["word117+word118", "%22common+word117%22"] {
        assert_eq!(found(&ann, words).await, Vec::<Value>::new(), "{words}");
    }
}

#[tokio::test]
async fn words_that_are_long_or_have_signs_do_not_keep_others_from_the_index() {
    let world = echoing().await;
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    let (long, longer) = ("x".repeat(2045), "y".repeat(3000));
    let said =
        format!(r"kiwi {long} {longer} it's C:\temp\new.txt a\b 'quoted' <0> | & ! (:*) 0190 plum");
    ann.say_and_wait(&id, &said).await;
    for _ in 0..2 {
        for words in [
            "kiwi+plum",
            "it's",
            r"C:\temp\new.txt",
            "temp+new.txt",
            "'quoted'",
            "%22quoted+0%22",
            "019",
        ] {
            assert_eq!(found(&ann, words).await.len(), 1, "{words}");
        }
        // The second time by the index.
        index(&world).await;
    }
}

#[tokio::test]
async fn pages_of_what_was_found_follow_each_other() {
    let world = echoing().await;
    let ann = world.user("ann", &[]).await;
    let mut all = Vec::new();
    for _ in 0..3 {
        let id = ann.open("bank").await;
        ann.say_and_wait(&id, "kiwi").await;
        all.insert(0, Value::from(id));
    }
    index(&world).await;
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/conversations?search=kiwi&limit=1{cursor}");
        let page = ann.get(&path).await.expect(200);
        seen.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["id"].clone()),
        );
        let Some(next) = page["next"].as_str() else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, all);
}
