//! From steps, tools and commands to the one text that a client shows: the same streamed and whole.

use serde_json::json;

use super::{PATH, complete, content, request, stream};
use crate::support::{
    model::{Gate, call, calls, said, text, tool_names},
    world::World,
};

#[tokio::test]
async fn tools_run_here_and_the_client_is_not_asked_to_run_any() {
    let world = World::shared().await;
    world.tools_ready().await;
    let rate = || {
        calls([(
            "bank__get_exchange_rate",
            json!({ "from": "EUR", "to": "USD" }),
        )])
    };
    world
        .model
        .reply(rate())
        .reply(text("It is high."))
        .reply(rate())
        .reply(text("It is low."));
    let ann = world.user("ann", &["employee"]).await;
    let whole = ann.post(PATH, request(&["rate?"])).await.expect(200);
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["content"], "It is high.");
    assert_eq!(message.get("tool_calls"), None);
    let (chunks, done) = stream(&ann, request(&["and now?"])).await;
    assert!(done);
    assert_eq!(content(&chunks), "It is low.");
    assert!(
        chunks
            .iter()
            .all(|chunk| !chunk.to_string().contains("tool_calls"))
    );
    assert_eq!(world.bank.executions("get_exchange_rate"), 2);
}

#[tokio::test]
async fn the_steps_of_an_answer_are_set_apart_and_the_next_request_still_matches() {
    let world = World::shared().await;
    world.tools_ready().await;
    let rate = || {
        call(
            "bank__get_exchange_rate",
            json!({ "from": "EUR", "to": "USD" }).to_string(),
        )
    };
    let both = "Let me look.\n\nIt is high.";
    for _ in 0..2 {
        world
            .model
            .reply(text("Let me look.").and_call(rate()))
            .reply(text("It is high."));
    }
    world.model.reply(text("Bye."));
    let ann = world.user("ann", &["employee"]).await;
    assert_eq!(complete(&ann, &["rate?"]).await, both);
    let (chunks, _) = stream(&ann, request(&["rate, please?"])).await;
    assert_eq!(content(&chunks), both);
    assert_eq!(complete(&ann, &["rate?", both, "thanks"]).await, "Bye.");
    let last = world.model.last_request();
    let results = last["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "tool");
    assert_eq!(
        results.count(),
        1,
        "the tool's result, which the client never saw, is in the history"
    );
}

#[tokio::test]
async fn an_answer_that_another_replica_works_out_is_shown_whole() {
    let world = World::with(|setup| setup.config.runs_at_once = 1).await;
    let gate = Gate::new();
    let held = gate.clone();
    world
        .model
        .on(move |request| said(request, "wait").then(|| text("At last.").gate(1, &held)));
    world.model.on(|_| Some(text("From elsewhere.")));
    let ann = world.user("ann", &[]).await;
    let id = ann.open("bank").await;
    ann.say(&id, "wait").await;
    gate.reached().await;
    let _other = world.replica().await;
    let (chunks, done) = stream(&ann, request(&["and now?"])).await;
    assert!(done);
    assert_eq!(
        content(&chunks),
        "From elsewhere.",
        "no delta was heard here, only the message"
    );
    gate.open();
}

#[tokio::test]
async fn a_model_is_offered_what_its_user_may_use() {
    let world = World::shared().await;
    world.tools_ready().await;
    world.model.on(|_| Some(text("Hm.")));
    complete(&world.guest().await, &["send money"]).await;
    assert_eq!(
        tool_names(&world.model.last_request()),
        ["bank__get_exchange_rate"]
    );
    complete(&world.user("fin", &["finance"]).await, &["send money"]).await;
    assert!(tool_names(&world.model.last_request()).contains(&"bank__send_money".to_owned()));
}

#[tokio::test]
async fn a_command_is_answered_by_the_program() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    assert!(complete(&ann, &["/help"]).await.contains("/tools"));
    let (chunks, done) = stream(&ann, request(&["/help"])).await;
    assert!(done && content(&chunks).contains("/tools"));
    assert!(world.model.requests().is_empty());
}

#[tokio::test]
async fn without_a_model_the_client_is_told_what_works() {
    let world = World::with(|setup| {
        let pack = "metadata: { id: mute, displayName: Mute, defaultLanguage: en }\n\
            languages: { en: { systemPrompt: hi } }\nllm: { provider: none }\n";
        setup.packs = vec![("mute".to_owned(), pack.to_owned())];
    })
    .await;
    let ann = world.user("ann", &[]).await;
    let mut body = request(&["hello?"]);
    body["model"] = json!("mute");
    let answer = ann.post(PATH, body).await;
    assert!(answer.text.contains("/help"), "{}", answer.text);
}
