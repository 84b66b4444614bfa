//! Questions whose server waits for the answer, and with it the call and its run.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::stream::unfold;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot};

use super::{Client, OPEN, World, answer, calls, parts, results, said, text, texts};
use crate::support::{
    has::Has,
    offer::{audited, pack, parts_of, world, world_with},
    scripted::{Scripted, Seen, event, events, reply, text as result},
    wait::eventually,
};

/// A server of the older era that asks these questions in the course of each call, one after the other, on the stream
/// that answers it. Its answer says how many were accepted.
pub async fn waiting(questions: impl Fn(&Value) -> Vec<Value> + Send + Sync + 'static) -> Scripted {
    let (open, ids) = (
        Arc::new(Mutex::new(HashMap::new())),
        Arc::new(AtomicU64::new(100)),
    );
    Scripted::legacy(move |seen: Seen| {
        let asked = questions(&seen.body["params"]["arguments"]);
        let (open, ids) = (open.clone(), ids.clone());
        async move {
            match seen.method() {
                "tools/call" => Some(ask(seen.body["id"].clone(), asked, open, ids)),
                "POST" => {
                    let waits: Option<oneshot::Sender<Value>> = open
                        .lock()
                        .unwrap()
                        .remove(&seen.body["id"].as_u64().unwrap());
                    if let Some(waits) = waits {
                        let _ = waits.send(seen.body["result"].clone());
                    }
                    Some(reply(http::StatusCode::ACCEPTED, &[], ""))
                }
                _ => None,
            }
        }
    })
    .await
}

type Waits = Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>>;

fn ask(
    call: Value,
    asked: Vec<Value>,
    open: Waits,
    ids: Arc<AtomicU64>,
) -> crate::support::scripted::Reply {
    let (out, sent) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut accepted = 0;
        for params in asked {
            let id = ids.fetch_add(1, Ordering::SeqCst);
            let (answer, answered) = oneshot::channel();
            open.lock().unwrap().insert(id, answer);
            let question = json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params});
            out.send(Ok(event(&question))).unwrap();
            let Ok(answer) = answered.await else { return };
            accepted += usize::from(answer["action"] == "accept");
        }
        let done = json!({"jsonrpc": "2.0", "id": call, "result": result(&format!("{accepted} accepted"))});
        let _ = out.send(Ok(event(&done)));
    });
    events(unfold(sent, async |mut sent| {
        sent.recv().await.map(|event| (event, sent))
    }))
}

/// What the server was told, in order.
pub fn replies(server: &Scripted) -> Vec<Value> {
    server
        .requests("POST")
        .into_iter()
        .map(|seen| seen.body["result"].clone())
        .collect()
}

/// Asks for a name.
pub fn name(message: &str) -> Value {
    form(
        message,
        &json!({"name": {"type": "string", "title": "Your name"}}),
    )
}

fn form(message: &str, properties: &Value) -> Value {
    let required: Vec<_> = properties.as_object().unwrap().keys().collect();
    json!({"message": message, "requestedSchema": {"type": "object", "properties": properties, "required": required}})
}

/// Waits until the user was asked so often.
pub async fn prompted(client: &Client, chat: &str, times: usize) {
    eventually(async || parts(client, chat, "prompt").await.len() >= times).await;
}

/// The tool is called when the user says so; what comes of it is said.
fn scripted(world: &World) {
    world
        .model
        .on(|request| said(request, "Go").then(|| calls([("desk__echo", json!({"a": 1}))])));
    world.model.on(|request| {
        results(request)
            .last()
            .map(|heard| text(format!("Heard: {heard}")))
    });
    world.model.on(|_| Some(text("Hello.")));
}

/// Somebody who is being asked, and the run that waits.
async fn asked_user(world: &World) -> (Client, String, String) {
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let run = ann.say(&chat, "Go").await;
    prompted(&ann, &chat, 1).await;
    (ann, chat, run)
}

async fn ended(client: &Client, run: &str) -> Value {
    eventually(async || {
        let run = client.get(&format!("/v1/runs/{run}")).await.expect(200);
        !matches!(run["status"].as_str(), Some("queued" | "running"))
    })
    .await;
    client.get(&format!("/v1/runs/{run}")).await.expect(200)
}

async fn rows(world: &World) -> i64 {
    let mut db = world.db.as_tenant(world.tenant.id).await;
    sqlx::query_scalar("select count(*) from elicitations")
        .fetch_one(&mut db)
        .await
        .unwrap()
}

async fn notices(client: &Client, chat: &str) -> String {
    parts(client, chat, "notice")
        .await
        .iter()
        .map(|part| part["code"].as_str().unwrap().to_owned() + " ")
        .collect()
}

#[tokio::test]
async fn the_answer_goes_into_the_call_that_waits_for_it() {
    let server = waiting(|_| vec![name("Who are you?")]).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat, run) = asked_user(&world).await;
    let prompt = parts(&ann, &chat, "prompt").await.remove(0);
    let shown = prompt["text"].as_str().unwrap();
    assert!(
        shown.starts_with("The server desk asks you before it goes on with echo: Who are you?"),
        "{shown}"
    );
    assert!(
        shown.contains("after 5 minutes") && prompt["asking"]["live"] == true,
        "{prompt}"
    );
    let path = format!("/v1/conversations/{chat}/messages");
    let posted = ann
        .post(&path, json!({"text": "Ann of Cleves"}))
        .await
        .expect(202);
    // No run of its own.
    posted.has(json!({ "run": { "id": run }, "message": { "run_id": run } }));
    assert_eq!(ended(&ann, &run).await["status"], "succeeded");
    assert_eq!(
        replies(&server),
        [json!({"action": "accept", "content": {"name": "Ann of Cleves"}})]
    );
    let heard = texts(&parts_of(&ann, &chat, &run).await);
    assert!(heard.ends_with("Heard: 1 accepted"), "{heard}");
    let requests = world.model.requests();
    assert!(
        requests
            .iter()
            .all(|request| !request.body.to_string().contains("Cleves")),
        "the model hears the server only"
    );
    assert_eq!(server.requests("tools/call").len(), 1);
    assert_eq!(rows(&world).await, 0);
    eventually(async || audited(&world, "tool.call").await == ["desk echo succeeded"]).await;
    assert_eq!(
        texts(&answer(&ann, &chat, "Thanks").await),
        "Hello.",
        "said to the agent again"
    );
}

#[tokio::test]
async fn fields_and_questions_come_one_by_one_and_each_answer_is_checked() {
    let fields = json!({"count": {"type": "integer", "maximum": 9}, "sure": {"type": "boolean"}});
    let server = waiting(move |_| vec![form("How many?", &fields), name("And who?")]).await;
    let world = world(&server.url, OPEN).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let run = ann.say(&chat, "/call desk echo {}").await;
    for (at, said) in ["many", "10", "3", "perhaps", "yes", "Ann"]
        .into_iter()
        .enumerate()
    {
        prompted(&ann, &chat, at + 1).await;
        assert_eq!(ann.say(&chat, said).await, run, "{said}");
    }
    assert_eq!(ended(&ann, &run).await["status"], "succeeded");
    let first = json!({"action": "accept", "content": {"count": 3, "sure": true}});
    assert_eq!(
        replies(&server),
        [
            first,
            json!({"action": "accept", "content": {"name": "Ann"}})
        ]
    );
    assert_eq!(
        notices(&ann, &chat).await,
        "bad_answer bad_answer bad_answer "
    );
}

#[tokio::test]
async fn a_frontend_answers_by_the_name_of_the_field() {
    let server = waiting(|_| vec![name("Who?")]).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat, run) = asked_user(&world).await;
    let path = format!("/v1/conversations/{chat}/messages");
    assert_eq!(
        ann.post(&path, json!({"answer": {"field": "other", "value": "Ann"}}))
            .await
            .status,
        409
    );
    let posted = ann
        .post(
            &path,
            json!({"answer": {"field": "name", "value": "/cancel"}}),
        )
        .await
        .expect(202);
    assert_eq!(posted["run"]["id"], json!(run));
    ended(&ann, &run).await;
    assert_eq!(
        replies(&server),
        [json!({"action": "accept", "content": {"name": "/cancel"}})]
    );
    assert_eq!(
        ann.post(&path, json!({"answer": {"field": "name", "value": "Bob"}}))
            .await
            .status,
        409
    );
}

#[tokio::test]
async fn decline_and_cancel_are_answers_of_their_own() {
    for (said, action) in [("/decline", "decline"), ("/cancel", "cancel")] {
        let server = waiting(|_| vec![name("Who?")]).await;
        let world = world(&server.url, OPEN).await;
        scripted(&world);
        let (ann, chat, run) = asked_user(&world).await;
        let aside = ann.say(&chat, "/help").await;
        assert_ne!(aside, run, "commands keep their meaning");
        assert_eq!(ann.say(&chat, said).await, run);
        assert_eq!(ended(&ann, &run).await["status"], "succeeded");
        assert_eq!(replies(&server), [json!({"action": action})]);
        ended(&ann, &aside).await;
    }
}

#[tokio::test]
async fn an_address_is_shown_and_confirmed() {
    let server = waiting(|_| {
        vec![json!({"mode": "url", "message": "Sign in.", "url": "https://id.example/x?a=1", "elicitationId": "e"})]
    })
    .await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat, run) = asked_user(&world).await;
    let prompt = parts(&ann, &chat, "prompt").await.remove(0);
    assert_eq!(prompt["url"], "https://id.example/x?a=1");
    prompt["text"].says("id.example");
    ann.say(&chat, "yes").await;
    ended(&ann, &run).await;
    assert_eq!(replies(&server), [json!({"action": "accept"})]);
}

#[tokio::test]
async fn what_must_not_be_asked_is_declined_at_once() {
    for (question, told) in [
        (
            form("Sign in", &json!({"apiKey": {"type": "string"}})),
            "asked you for a secret",
        ),
        (
            form("Deep", &json!({"deep": {"type": "object"}})),
            "nobody can answer here",
        ),
    ] {
        let server = waiting(move |_| vec![question.clone()]).await;
        let world = world(&server.url, OPEN).await;
        let ann = world.user("ann", &[]).await;
        let chat = ann.open("desk").await;
        let heard = texts(&answer(&ann, &chat, "/call desk echo {}").await);
        assert!(
            heard.contains(told) && heard.ends_with("0 accepted"),
            "{heard}"
        );
        assert_eq!(replies(&server), [json!({"action": "decline"})]);
        assert!(parts(&ann, &chat, "prompt").await.is_empty());
    }
}

#[tokio::test]
async fn a_sixth_question_of_one_call_is_declined() {
    let server = waiting(|_| vec![name("Who?"); 6]).await;
    let world = world(&server.url, OPEN).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let run = ann.say(&chat, "/call desk echo {}").await;
    for at in 1..=5 {
        prompted(&ann, &chat, at).await;
        ann.say(&chat, "Ann").await;
    }
    ended(&ann, &run).await;
    assert_eq!(replies(&server)[5], json!({"action": "decline"}));
    assert_eq!(parts(&ann, &chat, "prompt").await.len(), 5);
    assert_eq!(notices(&ann, &chat).await, "input_declined ");
}

/// The agent whose server has one second for a call.
fn hasty(setup: &mut crate::support::world::Setup) {
    let (id, yaml) = pack(OPEN);
    setup.packs = vec![(id, yaml.replace("requestSeconds: 10", "requestSeconds: 1"))];
}

#[tokio::test]
async fn the_time_of_the_call_stands_still_while_its_user_thinks() {
    let server = waiting(|_| vec![name("Who?")]).await;
    let world = world_with(&server.url, OPEN, hasty).await;
    scripted(&world);
    let (ann, chat, run) = asked_user(&world).await;
    // Longer than the call may take.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    ann.say(&chat, "Ann").await;
    ended(&ann, &run).await;
    assert!(texts(&parts_of(&ann, &chat, &run).await).ends_with("Heard: 1 accepted"));
}

#[tokio::test]
async fn the_time_of_the_call_goes_on_after_the_answer() {
    let server = Scripted::legacy(async |seen: Seen| {
        let ask = json!({"jsonrpc": "2.0", "id": 77, "method": "elicitation/create", "params": name("Who?")});
        match seen.method() {
            "tools/call" => Some(events(futures_util::StreamExt::chain(
                futures_util::stream::iter([Ok(event(&ask))]),
                futures_util::stream::pending(),
            ))),
            "POST" => Some(reply(http::StatusCode::ACCEPTED, &[], "")),
            _ => None,
        }
    })
    .await;
    let world = world_with(&server.url, OPEN, hasty).await;
    scripted(&world);
    let (ann, chat, run) = asked_user(&world).await;
    ann.say(&chat, "Ann").await;
    ended(&ann, &run).await;
    let heard = texts(&parts_of(&ann, &chat, &run).await);
    assert!(heard.contains("Heard: outcome unknown"), "{heard}");
}

#[tokio::test]
async fn a_run_that_is_stopped_takes_its_question_back() {
    let server = waiting(|_| vec![name("Who?")]).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat, run) = asked_user(&world).await;
    ann.post(&format!("/v1/runs/{run}/cancel"), json!({})).await;
    assert_eq!(ended(&ann, &run).await["status"], "cancelled");
    assert_eq!(notices(&ann, &chat).await, "input_withdrawn ");
    assert_eq!(rows(&world).await, 0);
    assert_eq!(
        texts(&answer(&ann, &chat, "Ann").await),
        "Hello.",
        "said to the agent"
    );
}

#[tokio::test]
async fn a_server_may_take_its_question_back() {
    let go = Arc::new(Notify::new());
    let signal = go.clone();
    let server = Scripted::legacy(move |seen: Seen| {
        let signal = signal.clone();
        async move {
            let ask = json!({"jsonrpc": "2.0", "id": 77, "method": "elicitation/create", "params": name("Who?")});
            let back = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}});
            let done = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result("never mind")});
            match seen.method() {
                "tools/call" => {
                    let (later, sent) = mpsc::unbounded_channel();
                    tokio::spawn(async move {
                        later.send(Ok(event(&ask))).unwrap();
                        signal.notified().await;
                        later.send(Ok(event(&back))).unwrap();
                        signal.notified().await;
                        later.send(Ok(event(&done))).unwrap();
                    });
                    Some(events(unfold(sent, async |mut sent| sent.recv().await.map(|event| (event, sent)))))
                }
                "POST" => Some(reply(http::StatusCode::ACCEPTED, &[], "")),
                _ => None,
            }
        }
    })
    .await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let (ann, chat, run) = asked_user(&world).await;
    go.notify_one();
    eventually(async || notices(&ann, &chat).await == "input_withdrawn ").await;
    go.notify_one();
    assert_eq!(ended(&ann, &run).await["status"], "succeeded");
    assert!(texts(&parts_of(&ann, &chat, &run).await).ends_with("Heard: never mind"));
}

#[tokio::test]
async fn an_answer_may_be_given_at_another_replica() {
    let server = waiting(|_| vec![name("Who?"), name("Really?")]).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let replica = world.replica().await;
    let (ann, chat, run) = asked_user(&world).await;
    let there = ann.at(&replica.url);
    assert_eq!(there.say(&chat, "Ann").await, run);
    prompted(&there, &chat, 2).await;
    there.say(&chat, "Anne").await;
    assert_eq!(ended(&there, &run).await["status"], "succeeded");
    let accepted = |name: &str| json!({"action": "accept", "content": {"name": name}});
    assert_eq!(replies(&server), [accepted("Ann"), accepted("Anne")]);
}

#[tokio::test]
async fn a_question_whose_worker_is_gone_ends_by_the_clock_and_its_user_is_told() {
    let server = waiting(|_| vec![name("Who?")]).await;
    let world = world(&server.url, OPEN).await;
    scripted(&world);
    let replica = world.replica().await;
    eventually(async || replica.app.connections.count().0 == 1).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let there = ann.at(&replica.url);
    there.say(&chat, "Go").await;
    prompted(&ann, &chat, 1).await;
    replica.kill();
    let mut db = world.db.as_tenant(world.tenant.id).await;
    // As if its lease had run out; whoever lives would have prolonged it.
    eventually(async || {
        let passed = "update elicitations set expires_at = now() - interval '1 second'";
        sqlx::query(passed).execute(&mut db).await.unwrap();
        chatelaine::app::tools::elicitations::expire_overdue(world.app())
            .await
            .unwrap();
        rows(&world).await == 0
    })
    .await;
    assert!(notices(&ann, &chat).await.contains("input_withdrawn"));
}

#[tokio::test]
async fn two_users_of_one_connection_each_get_their_own_question() {
    let server = waiting(|arguments| {
        vec![name(&format!(
            "Are you {}?",
            arguments["who"].as_str().unwrap_or("?")
        ))]
    })
    .await;
    let world = world(&server.url, OPEN).await;
    let mut open = Vec::new();
    for user in ["ann", "bob"] {
        let client = world.user(user, &[]).await;
        let chat = client.open("desk").await;
        let run = client
            .say(&chat, &format!(r#"/call desk echo {{"who":"{user}"}}"#))
            .await;
        open.push((user, client, chat, run));
    }
    for (user, client, chat, _) in &open {
        prompted(client, chat, 1).await;
        let shown = texts(&parts(client, chat, "prompt").await);
        assert!(shown.contains(&format!("Are you {user}?")), "{shown}");
    }
    for (user, client, chat, run) in open.iter().rev() {
        client.say(chat, user).await;
        assert_eq!(ended(client, run).await["status"], "succeeded");
        assert_eq!(parts(client, chat, "prompt").await.len(), 1);
    }
    let given: Vec<_> = replies(&server)
        .iter()
        .map(|reply| reply["content"]["name"].clone())
        .collect();
    assert_eq!(given, ["bob", "ann"]);
    assert_eq!(server.requests("initialize").len(), 1, "one connection");
}

#[tokio::test]
async fn two_calls_of_one_step_ask_one_after_the_other() {
    let server = waiting(|arguments| vec![name(&format!("Of {}?", arguments["a"]))]).await;
    let world = world(&server.url, OPEN).await;
    let both = || {
        calls([
            ("desk__echo", json!({"a": 1})),
            ("desk__echo", json!({"a": 2})),
        ])
    };
    world
        .model
        .on(move |request| said(request, "Go").then(both));
    world.model.on(|_| Some(text("Done.")));
    let (ann, chat, run) = asked_user(&world).await;
    ann.say(&chat, "one").await;
    prompted(&ann, &chat, 2).await;
    ann.say(&chat, "two").await;
    assert_eq!(ended(&ann, &run).await["status"], "succeeded");
    assert_eq!(replies(&server).len(), 2);
    let shown = texts(&parts(&ann, &chat, "prompt").await);
    assert!(
        shown.contains("Of 1?") && shown.contains("Of 2?"),
        "{shown}"
    );
}
