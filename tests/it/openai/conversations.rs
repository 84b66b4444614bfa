//! What OpenAI's clients do with conversations and responses that are there already: a conversation is one of ours.

use http::Method;
use serde_json::{Value, json};

use crate::support::{
    client::{Client, Events, plain},
    has::Has,
    model::{last_user, text},
    world::World,
};

const PATH: &str = "/v1/responses";

fn output(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"]
        .as_str()
        .unwrap()
}

#[tokio::test]
async fn a_response_goes_on_in_a_conversation_of_ours() {
    let world = World::shared().await;
    world
        .model
        .on(|request| Some(text(format!("You said {}.", last_user(request)))));
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let id = ann.open("bank").await;
    ann.say_and_wait(&id, "I am Ann").await;
    let ask = |conversation: Value, input: &str| json!({ "model": "bank", "input": input, "conversation": conversation });
    let first = ann
        .post(PATH, ask(json!({ "id": id }), "one"))
        .await
        .expect(200);
    assert_eq!(first["conversation"]["id"], id);
    assert_eq!(output(&first), "You said one.");
    assert!(world.model.last_request().to_string().contains("I am Ann"));
    let second = ann.post(PATH, ask(json!(id), "two")).await.expect(200);
    assert_eq!(second["conversation"]["id"], id);
    assert!(
        world
            .model
            .last_request()
            .to_string()
            .contains("You said one.")
    );
    let said: Vec<_> = ann.messages(&id).await.iter().map(plain).collect();
    assert!(
        said.ends_with(&["two".to_owned(), "You said two.".to_owned()]),
        "{said:?}"
    );
    let title = ann
        .get(&format!("/v1/conversations/{id}"))
        .await
        .expect(200);
    assert_ne!(title["title"], "", "it is still a conversation of a person");

    let foreign = bob.post(PATH, ask(json!(id), "mine?")).await.expect(404);
    assert_eq!(foreign["error"]["code"], "not_found");
    let other = json!({ "model": "office", "input": "hi", "conversation": id });
    let refused = ann.post(PATH, other).await.expect(400);
    assert_eq!(refused["error"]["param"], "conversation");
    for (conversation, previous) in [
        (json!("conv_1"), Value::Null),
        (json!(id), second["id"].clone()),
    ] {
        let mut body = ask(conversation, "three");
        body["previous_response_id"] = previous;
        let refused = ann.post(PATH, body).await.expect(400);
        assert_eq!(refused["error"]["param"], "conversation");
    }
}

#[tokio::test]
async fn the_sdk_of_openai_reads_why_a_conversation_is_not_made() {
    let world = World::shared().await;
    let ann = world
        .user("ann", &[])
        .await
        .with_header("x-stainless-lang", "python");
    let refused = ann.post("/v1/conversations", json!({})).await.expect(400);
    refused["error"].has(json!({ "param": "agent", "code": "missing_field" }));
    let refused = ann
        .post(
            "/v1/conversations",
            json!({ "agent": "bank", "items": [{}] }),
        )
        .await
        .expect(400);
    refused["error"]["message"].says("items");
    let made = ann
        .post("/v1/conversations", json!({ "agent": "bank", "items": [] }))
        .await
        .expect(201);
    assert!(made["id"].is_string());
}

async fn events(client: &Client, method: Method, path: &str, body: Option<Value>) -> Vec<Value> {
    let mut request = client.request(method, path);
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let events = Events::of(answer).rest().await;
    events.into_iter().map(|event| event.data).collect()
}

#[tokio::test]
async fn a_stream_goes_on_where_it_was_cut_at_any_event() {
    let world = World::shared().await;
    world.model.on(|_| {
        Some(text(
            "word0 word1 \u{4f60}\u{597d} averyverylongwordwithoutanyblanks\n\nword2 end.",
        ))
    });
    let ann = world.user("ann", &[]).await;
    let body = json!({ "model": "bank", "input": "Say it.", "stream": true });
    let live = events(&ann, Method::POST, PATH, Some(body)).await;
    let id = live[0]["response"]["id"].as_str().unwrap();
    let deltas = |events: &[Value]| {
        events
            .iter()
            .filter_map(|event| event["delta"].as_str().map(str::to_owned))
            .collect::<String>()
    };
    let whole = deltas(&live);
    assert!(live.len() > 10, "{live:?}");
    for after in 0..live.len() {
        let path = format!("{PATH}/{id}?stream=true&starting_after={after}");
        let rest = events(&ann, Method::GET, &path, None).await;
        assert_eq!(rest.len(), live.len() - after - 1, "after {after}");
        assert!(
            rest.iter()
                .all(|event| event["sequence_number"].as_u64().unwrap() > after as u64)
        );
        assert_eq!(
            deltas(&live[..=after]) + &deltas(&rest),
            whole,
            "after {after}"
        );
    }
    let refused = ann
        .get(&format!("{PATH}/{id}?starting_after=3"))
        .await
        .expect(400);
    assert_eq!(refused["error"]["param"], "starting_after");
}

#[tokio::test]
async fn the_input_of_a_response_is_listed_in_pages() {
    let world = World::shared().await;
    world
        .model
        .on(|request| Some(text(format!("re {}", last_user(request)))));
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let first = ann
        .post(PATH, json!({ "model": "bank", "input": "one" }))
        .await
        .expect(200);
    let body = json!({ "model": "bank", "input": "two", "previous_response_id": first["id"] });
    let second = ann.post(PATH, body).await.expect(200);
    let path = format!("{PATH}/{}/input_items", second["id"].as_str().unwrap());
    let all = ann.get(&path).await.expect(200);
    let texts = |page: &Value| {
        let items = page["data"].as_array().unwrap().iter();
        items
            .map(|item| item["content"][0]["text"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(texts(&all), ["two", "re one", "one"]);
    all.has(json!({ "object": "list", "has_more": false }));
    assert_eq!(all["data"][0]["content"][0]["type"], "input_text");
    assert_eq!(all["data"][1]["content"][0]["type"], "output_text");
    let page = ann
        .get(&format!("{path}?limit=2&order=asc"))
        .await
        .expect(200);
    assert_eq!(texts(&page), ["one", "re one"]);
    assert_eq!(page["has_more"], true);
    let last = page["last_id"].as_str().unwrap();
    let rest = ann
        .get(&format!("{path}?order=asc&after={last}"))
        .await
        .expect(200);
    assert_eq!(texts(&rest), ["two"]);
    assert_eq!(rest["has_more"], false);
    bob.get(&path).await.expect(404);
    for (query, param) in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("after=msg_1", "after"),
    ] {
        let refused = ann.get(&format!("{path}?{query}")).await.expect(400);
        assert_eq!(refused["error"]["param"], param);
    }
}

#[tokio::test]
async fn the_items_of_a_conversation_are_those_of_its_active_branch() {
    let world = World::start().await;
    world
        .model
        .on(|request| Some(text(format!("re {}", last_user(request)))));
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let id = ann.open("bank").await;
    ann.say_and_wait(&id, "one").await;
    ann.say_and_wait(&id, "two").await;
    let path = format!("/v1/conversations/{id}/items");
    let listed = ann.get(&format!("{path}?order=asc")).await.expect(200);
    let texts = |page: &Value| {
        let items = page["data"].as_array().unwrap().iter();
        items
            .map(|item| item["content"][0]["text"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(texts(&listed), ["one", "re one", "two", "re two"]);
    let second = &listed["data"][2]["id"];
    let one = format!("{path}/{}", second.as_str().unwrap());
    assert_eq!(ann.get(&one).await.expect(200), listed["data"][2]);
    bob.get(&path).await.expect(404);
    bob.get(&one).await.expect(404);
    let other = ann.open("bank").await;
    let elsewhere = one.replace(&id, &other);
    assert!(ann.get(&elsewhere).await.expect(404)["error"]["message"].is_string());

    // An edit makes a branch, and its items are another list.
    let messages = ann.messages(&id).await;
    let first = messages
        .iter()
        .find(|message| plain(message) == "one")
        .unwrap();
    let edit = json!({ "text": "uno", "replaces": first["id"] });
    let run = ann
        .post(&format!("/v1/conversations/{id}/messages"), edit)
        .await
        .expect(202);
    let mut events = ann.listen(&id, Some(0)).await;
    events
        .until_run_ends(run["run"]["id"].as_str().unwrap())
        .await;
    let listed = ann.get(&format!("{path}?order=asc")).await.expect(200);
    assert_eq!(texts(&listed), ["uno", "re uno"]);

    for (method, path) in [(Method::POST, &path), (Method::DELETE, &one)] {
        let answer = ann.request(method, path).send().await.unwrap();
        assert_eq!(answer.status(), 405);
        assert_eq!(answer.headers()["allow"], "GET,HEAD");
        let refused: Value = answer.json().await.unwrap();
        assert_eq!(refused["error"]["code"], "method_not_allowed", "{refused}");
    }
}
