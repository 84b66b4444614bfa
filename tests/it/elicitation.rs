//! Questions that servers put to the user in the middle of a call: asked in the chat, answered once, never slept on.

mod canary; // where an answer must not be
mod durability;
mod forms; // what may be asked, and what an answer means
mod live; // questions whose server waits, and its run with it
mod older; // servers that wait for the answer
mod rules; // who is asked, and what is declined // restarts, other replicas, time

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::support::{
    client::Client,
    has::Has,
    model::{calls, results, said, text},
    offer::{answer, asked, audited, texts, world},
    scripted::{Reply, Scripted, Seen, text as result},
    wait::eventually,
    world::World,
};

const OPEN: &str = "{ default: public }";

/// A server of the newer era that answers the first `rounds` calls with these requests and the next with what it was
/// given; its state counts.
pub async fn asking(rounds: usize, requests: Value) -> Scripted {
    let count = Arc::new(Mutex::new(0));
    Scripted::modern(move |seen: Seen| {
        let (count, requests) = (count.clone(), requests.clone());
        async move { (seen.method() == "tools/call").then(|| reply(&seen, &count, rounds, &requests)) }
    })
    .await
}

fn reply(seen: &Seen, count: &Mutex<usize>, rounds: usize, requests: &Value) -> Reply {
    let mut count = count.lock().unwrap();
    *count += 1;
    if *count > rounds {
        return seen.result(result(&format!(
            "given {}",
            seen.body["params"]["inputResponses"]
        )));
    }
    let state = format!("state-{count}");
    seen.result(
        json!({"resultType": "input_required", "inputRequests": requests, "requestState": state}),
    )
}

/// A form with these properties, all of them required.
pub fn form(properties: &Value) -> Value {
    let required: Vec<_> = properties.as_object().unwrap().keys().collect();
    json!({"ask": {"method": "elicitation/create", "params": {
        "mode": "form", "message": "Who are you?",
        "requestedSchema": {"type": "object", "properties": properties, "required": required},
    }}})
}

fn name() -> Value {
    form(&json!({"name": {"type": "string", "title": "Your name"}}))
}

/// A model that calls the tool when asked to, and then repeats what it hears of it.
fn scripted(world: &World) {
    world
        .model
        .on(|request| said(request, "Go").then(|| calls([("desk__echo", json!({"a": 1}))])));
    world.model.on(|request| {
        let heard = results(request);
        (!heard.is_empty())
            .then(|| text(format!("Waiting: {}", heard[0].starts_with("not finished"))))
    });
    world
        .model
        .on(|request| said(request, "outcome of call").then(|| text("It is done.")));
    world.model.on(|_| Some(text("Hello.")));
}

/// Somebody in whose conversation the tool was called and answered with a question.
async fn asked_user(world: &World) -> (Client, String) {
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let parts = answer(&ann, &chat, "Go").await;
    assert!(texts(&parts).contains("Waiting: true"), "{parts:?}");
    (ann, chat)
}

/// The parts of this kind in a conversation.
async fn parts(client: &Client, chat: &str, kind: &str) -> Vec<Value> {
    let messages = client.messages(chat).await;
    let parts = messages
        .iter()
        .flat_map(|message| message["parts"].as_array().unwrap());
    parts.filter(|part| part["type"] == kind).cloned().collect()
}

fn responses(server: &Scripted) -> Vec<Value> {
    asked(server, "tools/call")
        .into_iter()
        .map(|params| params["inputResponses"].clone())
        .collect()
}

#[tokio::test]
async fn a_question_is_a_prompt_and_its_answer_goes_on_with_the_call() {
    let server = asking(1, name()).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat) = asked_user(&world).await;
    let prompt = parts(&ann, &chat, "prompt").await.remove(0);
    let shown = prompt["text"].as_str().unwrap();
    let first = "The server desk asks you before it goes on with echo: Who are you?\nYour name\n";
    assert!(
        shown.starts_with(first) && shown.contains("/decline"),
        "{shown}"
    );
    prompt.has(json!({ "field": "name", "input": "text", "secret": false }));
    assert_eq!(
        prompt["asking"]["schema"],
        json!({"type": "string", "title": "Your name"})
    );

    let told = answer(&ann, &chat, "Ann").await;
    assert_eq!(told[0]["type"], "call_outcome");
    assert_eq!(
        told[0]["text"],
        r#"given {"ask":{"action":"accept","content":{"name":"Ann"}}}"#
    );
    assert_eq!(texts(&told[1..]), "It is done.", "in the run of the answer");
    let sent = asked(&server, "tools/call");
    assert_eq!(sent[1]["requestState"], "state-1");
    assert_eq!(sent[1]["arguments"], json!({"a": 1}));
    assert_eq!(sent.len(), 2, "once more and no more");
    assert_eq!(
        texts(&answer(&ann, &chat, "Thanks").await),
        "Hello.",
        "said to the agent again"
    );
    eventually(async || {
        audited(&world, "tool.call").await == ["desk echo succeeded", "desk echo awaiting_input"]
    })
    .await;
}

#[tokio::test]
async fn only_who_can_be_asked_is_said_to_be_able() {
    let server = asking(0, name()).await;
    let world = world(&server.url, OPEN).await;
    world
        .model
        .on(|request| said(request, "Go").then(|| calls([("desk__echo", json!({}))])));
    world.model.on(|_| Some(text("Done.")));
    let ann = world.user("ann", &[]).await;
    ann.ask("desk", "Go").await;
    ann.post(
        "/v1/runs",
        json!({"agent_name": "desk", "prompt": "Go", "mode": "sync"}),
    )
    .await
    .expect(200);
    let declared = |seen: &Seen| {
        seen.body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"].clone()
    };
    let calls: Vec<_> = server.requests("tools/call").iter().map(declared).collect();
    assert_eq!(
        calls,
        [json!({"elicitation": {"form": {}, "url": {}}}), json!({})]
    );
    let lists: Vec<_> = server.requests("tools/list").iter().map(declared).collect();
    assert!(
        lists.iter().all(|declared| *declared == json!({})),
        "{lists:?}"
    );
}

#[tokio::test]
async fn several_fields_are_asked_one_by_one_and_each_is_checked() {
    let fields = json!({
        "amount": {"type": "number", "minimum": 1, "maximum": 10, "description": "in euros"},
        "color": {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"], "default": "g"},
        "days": {"type": "array", "items": {"type": "string", "enum": ["mon", "tue", "wed"]}, "maxItems": 2},
        "mail": {"type": "string", "format": "email"},
        "sure": {"type": "boolean"},
    });
    let mut requests = form(&fields);
    requests["ask"]["params"]["requestedSchema"]["required"] =
        json!(["amount", "color", "days", "sure"]);
    let server = asking(1, requests).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat) = asked_user(&world).await;
    for (said, heard) in [
        ("many", "Answer with a number."),
        ("11", "That does not fit. 1 … 10"),
        ("2,5", "color\nOne of: Red, Green\n(answer with - for g)"),
        ("blue", "That is none of the options."),
        (
            "-",
            "days (… 2)\nAny of these, separated by commas: mon, tue, wed",
        ),
        ("mon, tue, wed", "That does not fit."),
        ("1, wed", "mail (name@example.org)\n(optional;"),
        ("ann", "That does not fit. name@example.org"),
        ("-", "sure\nAnswer yes or no."),
        ("perhaps", "Answer yes or no."),
    ] {
        let told = texts(&answer(&ann, &chat, said).await);
        assert!(told.contains(heard), "{said}: {told}");
    }
    answer(&ann, &chat, "yes").await;
    let content = json!({"amount": 2.5, "color": "g", "days": ["mon", "wed"], "sure": true});
    assert_eq!(
        responses(&server)[1],
        json!({"ask": {"action": "accept", "content": content}})
    );
}

#[tokio::test]
async fn a_frontend_answers_by_the_name_of_the_field() {
    let server = asking(1, name()).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat) = asked_user(&world).await;
    let path = format!("/v1/conversations/{chat}/messages");
    let wrong = json!({"answer": {"field": "other", "value": "Ann"}});
    assert_eq!(ann.post(&path, wrong).await.status, 409);
    let mut events = ann.listen(&chat, None).await;
    let posted = ann
        .post(
            &path,
            json!({"answer": {"field": "name", "value": "/cancel"}}),
        )
        .await
        .expect(202);
    assert_eq!(posted["run"]["kind"], "turn");
    events
        .until_run_ends(posted["run"]["id"].as_str().unwrap())
        .await;
    let given = json!({"ask": {"action": "accept", "content": {"name": "/cancel"}}});
    assert_eq!(responses(&server)[1], given, "a value is a value");
    let again = json!({"answer": {"field": "name", "value": "Bob"}});
    assert_eq!(ann.post(&path, again).await.status, 409, "it was answered");
}

#[tokio::test]
async fn an_unchanged_openai_client_answers_by_text() {
    let server = asking(1, name()).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let ann = world.user("ann", &[]).await;
    let mut messages = vec![json!({"role": "user", "content": "Go"})];
    let ask = async |messages: &[Value]| {
        let answer = ann
            .post(
                "/v1/chat/completions",
                json!({"model": "desk", "messages": messages}),
            )
            .await
            .expect(200);
        answer["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let asked = ask(&messages).await;
    assert!(
        asked.contains("Who are you?") && asked.contains("Waiting: true"),
        "{asked}"
    );
    messages.extend([
        json!({"role": "assistant", "content": asked}),
        json!({"role": "user", "content": "Ann"}),
    ]);
    let done = ask(&messages).await;
    assert!(
        done.contains("given") && done.ends_with("It is done."),
        "{done}"
    );
}

#[tokio::test]
async fn a_request_that_is_sent_again_does_not_answer_the_next_question() {
    let fields = json!({
        "first": {"type": "string", "title": "First name"},
        "last": {"type": "string", "title": "Last name"},
    });
    let server = asking(1, form(&fields)).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let ann = world.user("ann", &[]).await;
    let ask = async |key: &str, text: &str| {
        let message = json!({"id": key, "role": "user", "parts": [{"type": "text", "text": text}]});
        let body = json!({"id": "chat-1", "agent": "desk", "message": message});
        let ann = ann.clone().with_header("idempotency-key", key);
        ann.post("/v1/ui/chat", body).await.text
    };
    let first = ask("k-1", "Go").await;
    assert!(first.contains("First name"), "{first}");
    for _ in 0..2 {
        let last = ask("k-2", "Ann").await;
        assert!(last.contains("Last name"), "{last}");
    }
    ask("k-3", "Bell").await;
    let content = json!({"first": "Ann", "last": "Bell"});
    assert_eq!(
        responses(&server)[1],
        json!({"ask": {"action": "accept", "content": content}})
    );
}

#[tokio::test]
async fn whoever_calls_without_a_model_is_asked_and_told_too() {
    let server = asking(1, name()).await;
    let world = world(&server.url, OPEN).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    assert!(texts(&answer(&ann, &chat, "/call desk echo {}").await).contains("Who are you?"));
    let told = answer(&ann, &chat, "Ann").await;
    assert!(texts(&told).starts_with("given"), "{told:?}");
    assert!(world.model.requests().is_empty());
}

#[tokio::test]
async fn decline_and_cancel_are_answers_of_their_own() {
    for (said, action) in [("/decline", "decline"), ("/cancel", "cancel")] {
        let server = asking(1, name()).await;
        let world = world(&server.url, OPEN).await;
        scripted(&world);
        let (ann, chat) = asked_user(&world).await;
        assert!(
            texts(&answer(&ann, &chat, "/help").await).contains("/decline"),
            "commands keep their meaning"
        );
        assert!(texts(&answer(&ann, &chat, said).await).ends_with("It is done."));
        assert_eq!(responses(&server)[1], json!({"ask": {"action": action}}));
        assert!(texts(&answer(&ann, &chat, "/decline").await).contains("Nobody asks you anything"));
    }
}

#[tokio::test]
async fn a_server_may_ask_again_but_not_for_ever() {
    let server = asking(99, name()).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat) = asked_user(&world).await;
    for _ in 0..4 {
        let again = answer(&ann, &chat, "Ann").await;
        json!(again).has(json!([{ "type": "prompt" }]));
    }
    let told = answer(&ann, &chat, "Ann").await;
    assert!(texts(&told).contains("asked the user 5 times"), "{told:?}");
    let states: Vec<_> = asked(&server, "tools/call")
        .iter()
        .map(|params| params["requestState"].clone())
        .collect();
    assert_eq!(
        states[1..],
        ["state-1", "state-2", "state-3", "state-4", "state-5"]
    );
}
