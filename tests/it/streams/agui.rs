//! AG-UI 1.0.

use http::Method;
use serde_json::{Value, json};

use super::{approve, confirming, post, rest, teller, with_confirmation, world};
use crate::support::{
    bank::pair,
    client::Client,
    has::Has,
    model::{self, Gate, calls, error, text},
    node,
    wait::{ended, eventually},
    world::World,
};

const PATH: &str = "/v1/agui/bank";

fn user(text: &str) -> Value {
    json!({ "id": text, "role": "user", "content": text })
}

fn input(run: &str, messages: impl Into<Value>) -> Value {
    json!({ "threadId": "thread-1", "runId": run, "messages": messages.into(), "tools": [], "context": [] })
}

fn types(events: &[Value]) -> Vec<&str> {
    let mut types: Vec<_> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    types.dedup();
    types
}

#[tokio::test]
async fn the_official_client_runs_an_agent_with_tools_and_interrupts() {
    let world = world().await;
    let ann = world.user("ann", &["employee"]).await;
    let seen = node::run(include_str!("agui.mjs"), &world.url, &ann).await;
    assert_eq!(seen["hello"], json!([["assistant", "Hello."]]));
    let expected = json!([
        ["assistant", ["bank__get_exchange_rate"]],
        ["tool"],
        ["assistant", "Done as told."]
    ]);
    seen.has(json!({ "rate": expected, "interrupts": [["tool_call", true, true]] }));
    seen["blocked"].says("pending interrupt");
    assert_eq!(seen["cancelled"], json!([]));
    let approvals = ann.get("/v1/approvals?role=requester").await.expect(200);
    assert_eq!(approvals["items"][0]["state"], "cancelled");
    let conversations = ann.get("/v1/conversations").await.expect(200);
    assert_eq!(conversations["items"].as_array().unwrap().len(), 1);
    let refused = seen["refused"].as_str().unwrap();
    assert!(
        refused.contains("404") && refused.contains("agent \"none\" was not found"),
        "{seen}"
    );
}

#[tokio::test]
async fn a_stream_has_the_events_of_the_protocol() {
    let world = World::shared().await;
    world.model.reply(text("Hello.").usage(11, 7));
    let ann = world.user("ann", &[]).await;
    let events = rest(post(&ann, PATH, &input("run-1", json!([user("hi")]))).await).await;
    let expected = [
        "RUN_STARTED",
        "CUSTOM",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ];
    assert_eq!(types(&events), expected);
    let end = events.last().unwrap();
    end.has(json!({
        "threadId": "thread-1",
        "runId": "run-1",
        "usage": [{ "totalTokens": 18 }],
    }));
    assert_eq!(end["outcome"], json!({ "type": "success" }));
}

#[tokio::test]
async fn a_run_that_is_sent_again_is_the_same_run() {
    let world = World::shared().await;
    world.model.reply(text("Once.")).reply(text("Twice."));
    let ann = world.user("ann", &[]).await;
    let ask = async |run: &str| {
        let events = rest(post(&ann, PATH, &input(run, json!([user("hi")]))).await).await;
        events[1]["value"].clone()
    };
    let first = ask("run-1").await;
    assert_eq!(first, ask("run-1").await);
    assert_ne!(first["run_id"], ask("run-2").await["run_id"]);
    assert_eq!(world.model.requests().len(), 2);
}

#[tokio::test]
async fn an_outcome_stands_before_the_next_answer() {
    let world = world().await;
    let ann = world.user("ann", &["employee"]).await;
    let first = rest(post(&ann, PATH, &input("run-1", json!([user("pay 5.00")]))).await).await;
    let outcome = &first.last().unwrap()["outcome"];
    assert_eq!(outcome["type"], "interrupt");
    let interrupt = &outcome["interrupts"][0];
    approve(&world).await;
    let conversation = first[1]["value"]["conversation_id"].as_str().unwrap();
    reported(&ann, conversation).await;
    let mut messages = vec![user("pay 5.00")];
    messages.extend(said(&first));
    messages.push(user("thanks"));
    let mut next = input("run-2", messages);
    next["resume"] = json!([{ "interruptId": interrupt["id"], "status": "resolved" }]);
    let second = rest(post(&ann, PATH, &next).await).await;
    assert_eq!(second[1]["value"]["conversation_id"], conversation);
    assert!(
        deltas(&second).contains("So it ended."),
        "{}",
        deltas(&second)
    );
    let note = second
        .iter()
        .find(|event| event["name"] == "approval")
        .unwrap();
    assert_eq!(note["value"]["state"], "succeeded");
    assert_eq!(second.last().unwrap()["outcome"]["type"], "success");
}

#[tokio::test]
async fn a_run_that_only_answers_interrupts_tells_what_happened() {
    let world = world().await;
    let ann = world.user("ann", &["employee"]).await;
    let first = rest(post(&ann, PATH, &input("run-1", json!([user("pay 5.00")]))).await).await;
    let interrupt = first.last().unwrap()["outcome"]["interrupts"][0].clone();
    let mut shown = vec![user("pay 5.00")];
    shown.extend(said(&first));
    let resume = |run: &str, shown: &[Value]| {
        let mut body = input(run, shown);
        body["resume"] = json!([{ "interruptId": interrupt["id"], "status": "resolved" }]);
        body
    };
    let waiting = rest(post(&ann, PATH, &resume("run-2", &shown)).await).await;
    let outcome = &waiting.last().unwrap()["outcome"];
    assert_eq!(outcome["interrupts"][0]["id"], interrupt["id"]);
    approve(&world).await;
    let conversation = first[1]["value"]["conversation_id"].as_str().unwrap();
    reported(&ann, conversation).await;
    let told = rest(post(&ann, PATH, &resume("run-3", &shown)).await).await;
    assert!(deltas(&told).ends_with("So it ended."), "{}", deltas(&told));
    assert_eq!(told.last().unwrap()["outcome"]["type"], "success");
    shown.extend(said(&told));
    shown.push(user("thanks"));
    let next = rest(post(&ann, PATH, &input("run-4", shown)).await).await;
    assert_eq!(next[1]["value"]["conversation_id"], conversation);
    assert!(
        !next.iter().any(|event| event["name"] == "approval"),
        "it is told once"
    );
    assert_eq!(world.bank.executions("send_money"), 1);
}

#[tokio::test]
async fn an_interrupt_that_asks_the_user_is_answered_by_the_next_run() {
    let world = confirming().await;
    let ann = world.user("ann", &["employee"]).await;
    let thread = |thread: &str, run: &str, messages: Vec<Value>| {
        let mut body = input(run, messages);
        body["threadId"] = json!(thread);
        body
    };
    for (name, approved, state) in [("yes", true, "succeeded"), ("no", false, "rejected")] {
        let asked = thread(name, "run-1", vec![user("pay 5.00")]);
        let first = rest(post(&ann, PATH, &asked).await).await;
        let interrupt = first.last().unwrap()["outcome"]["interrupts"][0].clone();
        interrupt.has(
            json!({ "reason": "confirmation", "responseSchema": { "required": ["approved"] } }),
        );
        interrupt["message"].says(r#""amount":"5.00""#);
        let mut shown = vec![user("pay 5.00")];
        shown.extend(said(&first));
        let entry = |payload: Value| json!([{ "interruptId": interrupt["id"], "status": "resolved", "payload": payload }]);
        // Another thread does not answer it, and an answer without a word leaves it open.
        let other = thread("other", "run-o", vec![user("hi")]);
        rest(post(&ann, PATH, &other).await).await;
        let mut stray = thread("other", "run-s", vec![user("hi")]);
        stray["resume"] = entry(json!({ "approved": true }));
        assert_eq!(ann.post(PATH, stray).await.status, 404);
        let mut open = thread(name, "run-2", shown.clone());
        open["resume"] = entry(Value::Null);
        let waiting = rest(post(&ann, PATH, &open).await).await;
        let again = &waiting.last().unwrap()["outcome"]["interrupts"][0];
        assert_eq!(again["id"], interrupt["id"]);
        again["message"].says(r#""amount":"5.00""#);
        // Two answers that contradict each other are none, in whatever order and however they are written.
        for (run, answers) in [[true, false], [false, true]].into_iter().enumerate() {
            let mut both = thread(name, &format!("run-b{run}"), shown.clone());
            let entries = answers.map(|approved| entry(json!({ "approved": approved }))[0].clone());
            both["resume"] = json!(entries);
            let refused = ann.post(PATH, both).await;
            assert_eq!(refused.status, 400, "{}", refused.text);
            assert!(refused.text.contains(interrupt["id"].as_str().unwrap()));
        }
        // Nor is one with more than an answer, such as other arguments.
        for (at, more) in [
            json!({ "approved": true, "editedArgs": { "amount": "9.00" } }),
            json!({ "approved": true, "Approved": false }),
            json!({ "approved": true, "reason": "no, wait" }),
        ]
        .into_iter()
        .enumerate()
        {
            let mut edited = thread(name, &format!("run-e{at}"), shown.clone());
            edited["resume"] = entry(more);
            let refused = ann.post(PATH, edited).await;
            assert_eq!(refused.status, 400, "{}", refused.text);
        }
        let mut twice = thread(name, "run-t", shown.clone());
        twice["resume"] = entry(json!({ "approved": true, "x": 0 }));
        let twice = twice.to_string().replace(r#""x":0"#, r#""approved":false"#);
        let sent = ann.request(Method::POST, PATH);
        let sent = sent.header("content-type", "application/json").body(twice);
        assert_eq!(ann.send(sent).await.status, 400);
        let mut command = thread(name, "run-c", shown.clone());
        command["messages"]
            .as_array_mut()
            .unwrap()
            .push(user("/decline ZZZZ"));
        command["resume"] = entry(json!({ "approved": true }));
        assert_eq!(ann.post(PATH, command).await.status, 400);
        // The same answer twice is one.
        let mut answer = thread(name, "run-3", shown.clone());
        let yes_or_no = entry(json!({ "approved": approved }))[0].clone();
        answer["resume"] = json!([yes_or_no, yes_or_no]);
        let told = rest(post(&ann, PATH, &answer).await).await;
        let note = told
            .iter()
            .find(|event| event["name"] == "approval")
            .unwrap();
        assert_eq!(note["value"]["state"], state);
        assert!(deltas(&told).ends_with("So it ended."), "{}", deltas(&told));
        assert_eq!(told.last().unwrap()["outcome"]["type"], "success");
        assert_eq!(world.bank.executions("send_money"), 1);
    }
}

#[tokio::test]
async fn several_answers_and_the_next_question_are_one_step() {
    let world = World::with(|setup| {
        with_confirmation(setup);
        setup.config.open_runs_per_user = 1;
    })
    .await;
    world.tools_ready().await;
    let gate = Gate::new();
    let held = gate.clone();
    world
        .model
        .on(move |request| model::said(request, "slowly").then(|| text("Later.").gate(0, &held)));
    world.model.on(teller);
    let ann = world.user("ann", &["employee"]).await;
    let mut shown = vec![user("pay both")];
    let first = rest(post(&ann, PATH, &input("run-1", shown.clone())).await).await;
    let interrupts = &first.last().unwrap()["outcome"]["interrupts"];
    let interrupts = [0, 1].map(|at| interrupts[at]["id"].clone());
    shown.extend(said(&first));
    let states = async || {
        let mine = ann.get("/v1/approvals?role=requester").await.expect(200);
        let mine = mine["items"].as_array().unwrap().clone();
        let states = mine
            .iter()
            .map(|it| it["state"].as_str().unwrap().to_owned());
        states.collect::<Vec<_>>()
    };
    let resume = |ids: [Value; 2], messages: &[Value]| {
        let mut body = input("run-3", messages);
        let entry = |id| json!({ "interruptId": id, "status": "resolved", "payload": { "approved": true } });
        body["resume"] = ids.into_iter().map(entry).collect();
        body
    };
    let [first, second] = interrupts;
    let other_hash = |id: &Value| {
        let (id, _) = id.as_str().unwrap().split_once('.').unwrap();
        json!(format!("{id}.{}", "ab".repeat(32)))
    };
    let only_id = json!(second.as_str().unwrap().split('.').next());
    let mut asked = shown.clone();
    asked.push(user("thanks"));
    for messages in [&shown, &asked] {
        for (wrong, status) in [
            (other_hash(&second), 409),
            (only_id.clone(), 409),
            (json!("01a2"), 404),
        ] {
            let body = resume([first.clone(), wrong], messages);
            let refused = ann.post(PATH, body).await;
            assert_eq!(refused.status, status, "{}", refused.text);
            assert_eq!(states().await, ["pending", "pending"]);
        }
    }
    // A question that is refused takes the answers with it.
    let other = ann.open("bank").await;
    let other = ann.say(&other, "slowly").await;
    gate.reached().await;
    let body = resume([first.clone(), second.clone()], &asked);
    let refused = ann.post(PATH, body).await;
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert_eq!(states().await, ["pending", "pending"]);
    assert_eq!(world.bank.executions("send_money"), 0);
    gate.open();
    ended(&ann, &other).await;
    let body = resume([first, second], &asked);
    rest(post(&ann, PATH, &body).await).await;
    eventually(async || states().await == ["succeeded", "succeeded"]).await;
    // The same request again changes nothing.
    rest(post(&ann, PATH, &body).await).await;
    assert_eq!(world.bank.executions("send_money"), 2);
}

/// Waits until the outcome was told in the conversation.
async fn reported(client: &Client, conversation: &str) {
    eventually(async || {
        let run = client.messages(conversation).await;
        let run = run.iter().rfind(|m| m.to_string().contains("So it ended."));
        let Some(id) = run.and_then(|m| m["run_id"].as_str()) else {
            return false;
        };
        client.get(&format!("/v1/runs/{id}")).await.json()["status"] == "succeeded"
    })
    .await;
}

fn deltas(events: &[Value]) -> String {
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "TEXT_MESSAGE_CONTENT");
    deltas
        .map(|event| event["delta"].as_str().unwrap())
        .collect()
}

/// The assistant's messages, as the client has them.
fn said(events: &[Value]) -> Vec<Value> {
    let mut said: Vec<Value> = Vec::new();
    for event in events {
        match event["type"].as_str().unwrap() {
            "TEXT_MESSAGE_START" => {
                said.push(json!({ "id": event["messageId"], "role": "assistant", "content": "" }));
            }
            "TEXT_MESSAGE_CONTENT" => {
                let last = said.last_mut().unwrap();
                let text = last["content"].as_str().unwrap().to_owned();
                last["content"] = json!(text + event["delta"].as_str().unwrap());
            }
            _ => {}
        }
    }
    said
}

#[tokio::test]
async fn a_run_that_fails_or_is_cancelled_is_told() {
    let world = World::shared().await;
    world.model.reply(error(400, "on holiday"));
    let ann = world.user("ann", &[]).await;
    let failed = rest(post(&ann, PATH, &input("run-1", json!([user("hi")]))).await).await;
    let last = failed.last().unwrap();
    last.has(json!({ "type": "RUN_ERROR", "code": "run_failed" }));
    let gate = Gate::new();
    world.model.reply(text("never to be heard").gate(1, &gate));
    let mut events = post(&ann, PATH, &input("run-2", json!([user("hi")]))).await;
    events.next().await.unwrap();
    let run = events.next().await.unwrap().data["value"]["run_id"].clone();
    gate.reached().await;
    let path = format!("/v1/runs/{}/cancel", run.as_str().unwrap());
    ann.post(&path, json!({})).await.expect(202);
    let rest = rest(events).await;
    assert_eq!(rest.last().unwrap()["outcome"]["type"], "cancelled");
    gate.open();
}

#[tokio::test]
async fn a_run_that_fails_after_a_call_ends_with_an_error_that_says_what_happened() {
    let world = World::shared().await;
    world.tools_ready().await;
    world
        .model
        .reply(calls([("bank__get_exchange_rate", pair())]))
        .reply(error(400, "on holiday"));
    let ann = world.user("ann", &["employee"]).await;
    let events = rest(post(&ann, PATH, &input("run-1", json!([user("rate?")]))).await).await;
    let last = events.last().unwrap();
    last.has(json!({ "type": "RUN_ERROR", "code": "turn_failed_after_call" }));
    last["message"].says("bank.get_exchange_rate");
    assert!(!last["message"].to_string().contains("Idempotency-Key"));
}

/// A change to a good request, and the field of its refusal.
type Case = (fn(&mut Value), &'static str);

const CASES: [Case; 6] = [
    (|body| body["threadId"] = json!(" "), "threadId"),
    (
        |body| _ = body.as_object_mut().unwrap().remove("runId"),
        "runId",
    ),
    (|body| body["messages"] = json!([]), "messages"),
    (
        |body| body["messages"][0]["role"] = json!("robot"),
        "messages[0].role",
    ),
    (
        |body| body["messages"][0]["content"] = json!(7),
        "messages[0].content",
    ),
    (
        |body| body["resume"] = json!([{ "interruptId": "x", "status": "maybe" }]),
        "resume[0].status",
    ),
];

#[tokio::test]
async fn every_refusal_names_the_field() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    for (change, field) in CASES {
        let mut body = input("run-1", json!([user("hi")]));
        change(&mut body);
        let request = ann.request(Method::POST, PATH).json(&body);
        let request = request.header("accept", "application/json");
        let refused = ann.send(request).await.expect(400);
        assert_eq!(refused["field"], field, "{body}");
    }
    let mut unknown = input("run-1", json!([user("hi")]));
    unknown["resume"] = json!([{ "interruptId": "01a2", "status": "cancelled" }]);
    assert_eq!(ann.post(PATH, unknown).await.status, 404);
    assert!(world.model.requests().is_empty());
}
