//! Unchanged OpenAI clients: their requests and answers, and what these cannot say.

mod chats; // which conversation a transcript belongs to
mod clients; // what clients send as they come
mod conversations; // OpenAI's conversations are ours
mod failures; // turns that fail after a call
mod files; // text files by every door
mod formats; // answers as JSON
mod librechat; // the requests of LibreChat
mod node; // the official client for Node, and the AI SDK
mod python; // the official client
mod refusals; // what is refused, in OpenAI's shape
mod repeats; // requests that are sent again
mod responses; // the Responses API
mod steps; // from steps, tools and commands to one text
mod transactions; // how many a run begins

use serde_json::{Value, json};

use super::support::{
    client::{Client, Events},
    has::Has,
    model::{Gate, said, text},
    world::World,
};

const PATH: &str = "/v1/chat/completions";

/// A request with these messages, alternating between user and assistant.
fn request(messages: &[&str]) -> Value {
    let role = |at: usize| {
        if at.is_multiple_of(2) {
            "user"
        } else {
            "assistant"
        }
    };
    let messages: Vec<_> = messages
        .iter()
        .enumerate()
        .map(|(at, text)| json!({ "role": role(at), "content": text }))
        .collect();
    json!({ "model": "bank", "messages": messages })
}

/// Asks and waits; the answer's text.
async fn complete(client: &Client, messages: &[&str]) -> String {
    let answer = client.post(PATH, request(messages)).await.expect(200);
    answer["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Asks for a stream; its chunks, and whether it was ended with `[DONE]`.
async fn stream(client: &Client, mut body: Value) -> (Vec<Value>, bool) {
    body["stream"] = json!(true);
    let answer = client
        .request(http::Method::POST, PATH)
        .json(&body)
        .send()
        .await
        .unwrap();
    let mut heard = Events::of(answer).rest().await;
    let done = heard.pop_if(|last| last.text == "[DONE]").is_some();
    (heard.into_iter().map(|event| event.data).collect(), done)
}

fn content(chunks: &[Value]) -> String {
    chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect()
}

#[tokio::test]
async fn agents_are_models() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let list = ann.get("/v1/models").await.expect(200);
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(ids, ["bank", "office"]);
    let one = ann.get("/v1/models/bank").await.expect(200);
    assert_eq!(one, list["data"][0]);
    one.has(json!({ "object": "model", "name": "Bank" }));
}

#[tokio::test]
async fn a_whole_answer_has_openais_shape() {
    let world = World::shared().await;
    world.model.reply(text("You have 5 euros.").usage(11, 7));
    let ann = world.user("ann", &[]).await;
    let answer = ann.post(PATH, request(&["How much?"])).await;
    let mut completion = answer.expect(200);
    let id = completion["id"].take();
    assert!(id.as_str().unwrap().starts_with("chatcmpl-"));
    assert!(completion["created"].take().as_i64().unwrap() > 1_700_000_000);
    let message = json!({ "role": "assistant", "content": "You have 5 euros.", "refusal": null });
    let choice =
        json!({ "index": 0, "message": message, "finish_reason": "stop", "logprobs": null });
    let usage = json!({ "prompt_tokens": 11, "prompt_tokens_details": { "cached_tokens": 0 }, "completion_tokens": 7, "total_tokens": 18 });
    let expected = json!({
        "id": null, "object": "chat.completion", "created": null, "model": "bank", "choices": [choice], "usage": usage
    });
    assert_eq!(completion, expected);
    let run = ann
        .get(&format!("/v1/runs/{}", answer.header("x-run-id")))
        .await
        .expect(200);
    assert_eq!(run["conversation_id"], answer.header("x-conversation-id"));
}

#[tokio::test]
async fn a_stream_begins_with_the_role_and_ends_with_the_reason_the_usage_and_done() {
    let world = World::shared().await;
    world.model.reply(text("You have 5 euros.").usage(11, 7));
    let ann = world.user("ann", &[]).await;
    let mut body = request(&["How much?"]);
    body["stream_options"] = json!({ "include_usage": true });
    let (chunks, done) = stream(&ann, body).await;
    assert!(done);
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["object"] == "chat.completion.chunk"
                && chunk["id"] == chunks[0]["id"])
    );
    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({ "role": "assistant", "content": "" })
    );
    assert_eq!(content(&chunks), "You have 5 euros.");
    let [middle @ .., end, usage] = &chunks[1..] else {
        panic!("{chunks:?}")
    };
    assert!(middle.len() > 1, "it is streamed");
    assert!(middle.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null() && chunk["usage"].is_null()));
    assert_eq!(end["choices"][0]["delta"], json!({}));
    assert_eq!(end["choices"][0]["finish_reason"], "stop");
    usage.has(json!({ "choices": [], "usage": { "total_tokens": 18 } }));
}

#[tokio::test]
async fn without_being_asked_for_usage_a_stream_has_no_chunk_without_choices() {
    let world = World::shared().await;
    world.model.reply(text("Yes."));
    let (chunks, done) = stream(&world.user("ann", &[]).await, request(&["Really?"])).await;
    assert!(done);
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["choices"].as_array().unwrap().len() == 1)
    );
}

#[tokio::test]
async fn the_next_request_continues_the_conversation_that_the_client_shows() {
    let world = World::shared().await;
    world
        .model
        .reply(text("First."))
        .reply(text("Second."))
        .reply(text("Third."));
    let ann = world.user("ann", &[]).await;
    let first = ann.post(PATH, request(&["one"])).await;
    let streamed = stream(&ann, request(&["one", "First.", "two"])).await;
    assert_eq!(content(&streamed.0), "Second.");
    // Clients trim what they show.
    let third = ann
        .post(
            PATH,
            request(&["one", " First.\n", "two", "Second.", "three"]),
        )
        .await;
    assert_eq!(
        first.header("x-conversation-id"),
        third.header("x-conversation-id")
    );
    let messages = ann.messages(first.header("x-conversation-id")).await;
    assert_eq!(messages.len(), 6, "nothing was imported twice");
}

#[tokio::test]
async fn an_edited_transcript_becomes_a_conversation_of_its_own() {
    let world = World::shared().await;
    world.model.reply(text("First.")).reply(text("Other."));
    let ann = world.user("ann", &[]).await;
    let first = ann.post(PATH, request(&["one"])).await;
    let edited = ann
        .post(PATH, request(&["one", "I never said that.", "two"]))
        .await;
    edited.expect(200);
    assert_ne!(
        first.header("x-conversation-id"),
        edited.header("x-conversation-id")
    );
    let model_saw = world.model.last_request();
    assert!(said(&model_saw, "two") && model_saw.to_string().contains("I never said that."));
}

#[tokio::test]
async fn two_people_with_the_same_transcript_have_two_conversations() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Same.")));
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let anns = ann.post(PATH, request(&["hi", "Same.", "again"])).await;
    let bobs = bob.post(PATH, request(&["hi", "Same.", "again"])).await;
    assert_ne!(
        anns.header("x-conversation-id"),
        bobs.header("x-conversation-id")
    );
    ann.get(&format!(
        "/v1/conversations/{}",
        bobs.header("x-conversation-id")
    ))
    .await
    .expect(404);
}

#[tokio::test]
async fn a_frontends_chats_do_not_meet_although_they_begin_alike() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Hello.")));
    let fay = world.frontend("fay").await;
    let chat = async |id: &str, messages: &[&str]| {
        let client = fay.clone().with_header("x-openwebui-chat-id", id);
        client
            .post(PATH, request(messages))
            .await
            .header("x-conversation-id")
            .to_owned()
    };
    let (one, two) = (chat("chat-1", &["hi"]).await, chat("chat-2", &["hi"]).await);
    assert_ne!(one, two);
    assert_eq!(chat("chat-1", &["hi", "Hello.", "more"]).await, one);
    assert_eq!(chat("chat-2", &["hi", "Hello.", "more"]).await, two);
}

#[tokio::test]
async fn what_clients_send_besides_is_ignored() {
    let world = World::shared().await;
    world.model.reply(text("Fine."));
    let mut body = request(&[]);
    body["messages"] = json!([
        { "role": "developer", "content": "Be brief.", "name": "dev" },
        { "role": "user", "content": [{ "type": "text", "text": "How" }, { "type": "text", "text": "much?" }] },
    ]);
    for (field, value) in [
        ("temperature", json!(0.1)),
        ("tools", json!([])),
        ("functions", json!(null)),
        ("n", json!(1)),
        ("user", json!("u-1")),
        ("response_format", json!({ "type": "text" })),
        ("stop", json!(["\n"])),
        ("metadata", json!({ "a": "b" })),
        ("max_completion_tokens", json!(100)),
        ("a_field_of_tomorrow", json!({ "x": [1] })),
    ] {
        body[field] = value;
    }
    let answer = world
        .user("ann", &[])
        .await
        .post(PATH, body)
        .await
        .expect(200);
    assert_eq!(answer["choices"][0]["message"]["content"], "Fine.");
    assert!(said(&world.model.last_request(), "How\nmuch?"));
}

#[tokio::test]
async fn who_waits_for_a_model_holds_no_place_among_the_requests() {
    let world = World::with(|setup| setup.config.max_requests = 1).await;
    let gate = Gate::new();
    world.model.reply(text("At last.").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let waiting = {
        let ann = ann.clone();
        tokio::spawn(async move { complete(&ann, &["hi"]).await })
    };
    gate.reached().await;
    ann.get("/v1/me").await.expect(200);
    gate.open();
    assert_eq!(waiting.await.unwrap(), "At last.");
}
