//! What frontends and SDKs send as they come: tools, images, limits, requests beside the chat, an early goodbye.

use domain::{
    account::{ChatSettings, FrontendHeaders, KeyKind, ShownCalls},
    run::Conversation,
};
use serde_json::{Value, json};

use super::{PATH, complete, content, request, stream};
use crate::support::{
    client::{Client, plain},
    has::Has,
    model::{Gate, call, calls, said, text, tool_names},
    wait::eventually,
    world::World,
};

/// As Open WebUI sends its own tools with every message.
fn with_tools(mut body: Value) -> Value {
    body["tools"] = json!([{ "type": "function", "function": {
        "name": "search_memories", "description": "…", "parameters": { "type": "object", "properties": {} } } }]);
    body
}

const TITLE: &str = "### Task:\nGenerate a concise title summarizing the chat history.\n### Guidelines:\n- Keep it short.\n\
                     ### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>";
const SOURCES: &str = "### Task:\nRespond to the user query using the provided context, incorporating inline citations.\n\
                       <context>…</context>\n\nHow much?";
const LIBRECHAT_TITLE: &str = "Provide a concise, 5-word-or-less title for the conversation, using title case \
                               conventions. Only return the title itself.\n\nConversation:\nUser: hi\nAI: hello";

#[tokio::test]
async fn tools_of_a_client_are_ignored_and_named() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Fine.")));
    let mut forced = with_tools(request(&["hi"]));
    forced["tool_choice"] = json!("required");
    let fay = world.frontend("fay").await;
    let answer = fay.post(PATH, forced.clone()).await;
    answer.expect(200);
    assert_eq!(answer.header("x-ignored-parameters"), "tools");
    assert!(
        !world
            .model
            .last_request()
            .to_string()
            .contains("search_memories")
    );
    let ann = world.user("ann", &[]).await;
    ann.post(PATH, with_tools(request(&["hi"])))
        .await
        .expect(200);
    let refused = ann.post(PATH, forced.clone()).await.expect(400);
    assert_eq!(refused["error"]["param"], "tool_choice");
    forced["tool_choice"] =
        json!({ "type": "function", "function": { "name": "search_memories" } });
    ann.post(PATH, forced).await.expect(400);
}

#[tokio::test]
async fn several_answers_are_not_promised_and_refuse_nothing() {
    let world = World::shared().await;
    world.model.reply(text("One."));
    let mut body = request(&["hi"]);
    body["n"] = json!(3);
    let answer = world.user("ann", &[]).await.post(PATH, body).await;
    let completion = answer.expect(200);
    assert_eq!(completion["choices"].as_array().unwrap().len(), 1);
    assert_eq!(answer.header("x-ignored-parameters"), "n");
}

#[tokio::test]
async fn an_image_is_named_and_the_conversation_goes_on() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Nice.")));
    let ann = world.user("ann", &[]).await;
    let data = format!("data:image/png;base64,{}", "A".repeat(4000));
    let image = json!({ "role": "user", "content": [
        { "type": "text", "text": "Look:" }, { "type": "image_url", "image_url": { "url": data } } ] });
    let mut body = request(&[]);
    body["messages"] = json!([image]);
    let first = ann.post(PATH, body.clone()).await;
    first.expect(200);
    let asked = world.model.last_request();
    assert!(said(
        &asked,
        "Look:\n[image: image/png, 3 kB; not shown to you]"
    ));
    let mut history = body["messages"].clone();
    history.as_array_mut().unwrap().extend([
        json!({ "role": "assistant", "content": "Nice." }),
        json!({ "role": "user", "content": "And now?" }),
    ]);
    body["messages"] = history;
    let second = ann.post(PATH, body).await;
    second.expect(200);
    assert_eq!(
        first.header("x-conversation-id"),
        second.header("x-conversation-id")
    );
}

#[tokio::test]
async fn an_answer_ends_before_a_stop_text() {
    let world = World::shared().await;
    world
        .model
        .on(|_| Some(text("You have 5 euros and a cent.")));
    let ann = world.user("ann", &[]).await;
    let mut body = request(&["How much?"]);
    body["stop"] = json!(["dollars", "5 euros"]);
    let whole = ann.post(PATH, body.clone()).await;
    let choice = whole.expect(200)["choices"][0].clone();
    choice.has(json!({ "message": { "content": "You have " }, "finish_reason": "stop" }));
    let (chunks, done) = stream(&ann, body).await;
    assert!(done);
    assert_eq!(content(&chunks), "You have ");
    let next = ann
        .post(PATH, request(&["How much?", "You have", "So?"]))
        .await;
    next.expect(200);
    let asked = world.model.last_request();
    assert_eq!(asked["messages"].as_array().unwrap().len(), 4, "{asked}");
}

#[tokio::test]
async fn an_answer_ends_at_max_tokens() {
    let world = World::shared().await;
    world
        .model
        .on(|_| Some(text("You have 5 euros and a cent.")));
    let ann = world.user("ann", &[]).await;
    for field in ["max_tokens", "max_completion_tokens"] {
        let mut body = request(&["How much?"]);
        body[field] = json!(2);
        let (chunks, done) = stream(&ann, body).await;
        assert!(done);
        assert_eq!(content(&chunks), "You have");
        assert_eq!(
            chunks.last().unwrap()["choices"][0]["finish_reason"],
            "length"
        );
    }
}

#[tokio::test]
async fn a_request_beside_the_chat_is_one_call_of_the_model_and_leaves_nothing() {
    let world = World::with(|setup| setup.config.runs_per_user_per_day = Some(1)).await;
    world.tools_ready().await;
    world.model.on(|_| Some(text("Money Talk").usage(11, 7)));
    let ann = world.user("ann", &["finance"]).await;
    for prompt in [TITLE, LIBRECHAT_TITLE] {
        let answer = ann.post(PATH, request(&[prompt])).await;
        let completion = answer.expect(200);
        assert_eq!(completion["choices"][0]["message"]["content"], "Money Talk");
        assert_eq!(completion["usage"]["total_tokens"], 18);
        assert_eq!(answer.header("x-conversation-id"), "");
        assert!(tool_names(&world.model.last_request()).is_empty());
    }
    let (chunks, done) = stream(&ann, request(&[TITLE])).await;
    assert!(done);
    assert_eq!(content(&chunks), "Money Talk");
    let task = ann
        .clone()
        .with_header("x-openwebui-task", "tags_generation");
    assert_eq!(
        complete(&task, &["In our own words: tags, please"]).await,
        "Money Talk"
    );
    let conversations = ann.get("/v1/conversations").await.expect(200);
    assert_eq!(conversations["items"], json!([]));
    // The one run of the day is left, and a question about documents is one although its prompt begins alike.
    let placeholder = ann.clone().with_header("x-openwebui-task", "{{TASK}}");
    placeholder
        .post(PATH, request(&[SOURCES]))
        .await
        .expect(200);
    assert!(!tool_names(&world.model.last_request()).is_empty());
    ann.post(PATH, request(&["again"])).await.expect(429);
    complete(&ann, &[TITLE]).await;
}

#[tokio::test]
async fn tokens_of_a_request_beside_the_chat_count() {
    let world = World::with(|setup| setup.config.tokens_per_user_per_day = Some(18)).await;
    world.model.on(|_| Some(text("Money Talk").usage(11, 7)));
    let ann = world.user("ann", &[]).await;
    complete(&ann, &[TITLE]).await;
    ann.post(PATH, request(&[TITLE])).await.expect(429);
}

#[tokio::test]
async fn a_second_question_of_a_chat_does_not_meet_the_first_under_way() {
    let world = World::shared().await;
    let gate = Gate::new();
    let held = gate.clone();
    world
        .model
        .on(move |request| said(request, "slow").then(|| text("At last.").gate(1, &held)));
    world.model.on(|_| Some(text("At once.")));
    let chat = world
        .frontend("fay")
        .await
        .with_header("x-openwebui-chat-id", "c-1");
    let slow = {
        let chat = chat.clone();
        tokio::spawn(async move { chat.post(PATH, request(&["slow"])).await })
    };
    gate.reached().await;
    let quick = chat.post(PATH, request(&["quick"])).await;
    quick.expect(200);
    gate.open();
    let slow = slow.await.unwrap();
    slow.expect(200);
    assert_ne!(
        slow.header("x-conversation-id"),
        quick.header("x-conversation-id")
    );
}

/// Asks for a stream and leaves in the middle of it; the conversation and the run.
async fn leave(world: &World, client: &Client) -> (String, String, Gate) {
    let gate = Gate::new();
    world.model.reply(text("Kept for later.").gate(1, &gate));
    let mut body = request(&["hi"]);
    body["stream"] = json!(true);
    let answer = client
        .request(http::Method::POST, PATH)
        .json(&body)
        .send()
        .await
        .unwrap();
    let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
    let (conversation, run) = (header("x-conversation-id"), header("x-run-id"));
    gate.reached().await;
    drop(answer);
    (conversation, run, gate)
}

#[tokio::test]
async fn a_run_stops_when_its_client_leaves() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let (_, run, gate) = leave(&world, &ann).await;
    eventually(async || {
        ann.get(&format!("/v1/runs/{run}")).await.expect(200)["status"] == "cancelled"
    })
    .await;
    world.model.wait_for_hangups(1).await;
    gate.open();
}

#[tokio::test]
async fn a_key_can_say_that_runs_go_on() {
    let world = World::shared().await;
    let settings = ChatSettings {
        keep_running: true,
        ..ChatSettings::default()
    };
    let key = world
        .chat_key(
            "patient",
            settings,
            KeyKind::Service(serde_json::Map::default()),
        )
        .await;
    let client = world.client(&key);
    let (conversation, run, gate) = leave(&world, &client).await;
    gate.open();
    eventually(async || {
        client.get(&format!("/v1/runs/{run}")).await.expect(200)["status"] == "succeeded"
    })
    .await;
    let kept = client.messages(&conversation).await;
    assert_eq!(plain(kept.last().unwrap()), "Kept for later.");
}

#[tokio::test]
async fn of_a_long_transcript_the_end_is_taken_over_at_once() {
    let world = World::start().await;
    world.model.on(|_| Some(text("Yes.")));
    let ann = world.user("ann", &[]).await;
    let messages: Vec<_> = (0..5001)
        .map(|n| if n % 2 == 0 { "q" } else { "a" })
        .collect();
    let before = world.app().transactions();
    let answer = ann.post(PATH, request(&messages)).await;
    answer.expect(200);
    assert!(world.app().transactions() - before < 20);
    let path = format!(
        "/v1/conversations/{}/messages?limit=100",
        answer.header("x-conversation-id")
    );
    let mut kept = 0;
    let mut after = json!(0);
    loop {
        let page = ann.get(&format!("{path}&after={after}")).await.expect(200);
        kept += page["items"].as_array().unwrap().len();
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(kept, 202, "the last 200, the question and the answer");
}

fn rate() -> crate::support::model::Call {
    call(
        "bank__get_exchange_rate",
        json!({ "from": "EUR", "to": "USD" }).to_string(),
    )
}

/// A frontend whose key shows tool calls this way.
async fn showing(world: &World, tool_calls: ShownCalls) -> Client {
    let settings = ChatSettings {
        tool_calls,
        ..ChatSettings::default()
    };
    let speaker = KeyKind::Frontend(FrontendHeaders::open_webui());
    let key = world
        .chat_key(tool_calls.into_str(), settings, speaker)
        .await;
    let client = world.client(&key).with_header("x-openwebui-user-id", "fay");
    client.with_header("x-openwebui-user-role", "employee")
}

#[tokio::test]
async fn tool_calls_are_shown_as_the_key_says() {
    let world = World::shared().await;
    world.tools_ready().await;
    for shown in [ShownCalls::Text, ShownCalls::Details] {
        let fay = showing(&world, shown).await;
        world
            .model
            .reply(text("Let me look.").and_call(rate()))
            .reply(text("It is high."));
        let (chunks, _) = stream(&fay, request(&["rate?"])).await;
        let answer = content(&chunks);
        let shows = match shown {
            ShownCalls::Text => {
                r#"> 🔧 bank get_exchange_rate `{"from":"EUR","to":"USD"}`: succeeded"#
            }
            _ => r#"<details type="tool_calls" done="true" id="#,
        };
        assert!(answer.contains(shows), "{answer}");
        assert!(answer.starts_with("Let me look.\n\n") && answer.ends_with("\n\nIt is high."));
        // Some clients send back what they show, others only the words.
        for sent_back in [answer.as_str(), "Let me look.\n\nIt is high."] {
            world.model.reply(text("Bye."));
            complete(&fay, &["rate?", sent_back, "thanks"]).await;
            let asked = world.model.last_request();
            assert!(!asked.to_string().contains("🔧") && !asked.to_string().contains("details"));
            if sent_back == answer {
                let results = asked["messages"].as_array().unwrap().iter();
                let results = results.filter(|message| message["role"] == "tool");
                assert_eq!(results.count(), 1, "the conversation was found: {asked}");
            }
        }
    }
}

#[tokio::test]
async fn what_a_typed_call_gives_is_shown_once() {
    let world = World::shared().await;
    world.tools_ready().await;
    for shown in [ShownCalls::None, ShownCalls::Text, ShownCalls::Details] {
        let fay = showing(&world, shown).await;
        let line = r#"/call bank get_exchange_rate {"from":"EUR","to":"USD"}"#;
        let (chunks, _) = stream(&fay, request(&[line])).await;
        let answer = content(&chunks);
        assert_eq!(answer.matches("1.085").count(), 1, "{answer}");
    }
}

#[tokio::test]
async fn of_a_client_that_sends_back_the_words_alone_the_conversation_is_found() {
    let world = World::shared().await;
    world.tools_ready().await;
    let fay = showing(&world, ShownCalls::Details).await;
    world.model.reply(calls([(
        "bank__get_exchange_rate",
        json!({ "from": "EUR", "to": "USD" }),
    )]));
    world.model.reply(text("It is high.")).reply(text("Bye."));
    let first = fay.post(PATH, request(&["rate?"])).await;
    first.expect(200);
    let next = fay
        .post(PATH, request(&["rate?", "It is high.", "thanks"]))
        .await;
    next.expect(200);
    assert_eq!(
        first.header("x-conversation-id"),
        next.header("x-conversation-id")
    );
}

#[test]
fn the_files_that_open_webui_lists_are_no_title() {
    let files = "<attached_files>\n<file type=\"image\" url=\"f1\"/>\n</attached_files>\n\n";
    for text in ["What is this?", &format!("{files}What is this?\nTell me.")] {
        assert_eq!(Conversation::title_from(text), "What is this?");
    }
}
