//! Servers of the older era, which ask while a call is open: who is asked, and what is declined at once.

use domain::{
    elicitation::Answer,
    ids::{TenantId, UserId},
};
use futures_util::stream;
use mcp::{CallOptions, Caller, LiveQuestion};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    OPEN, answer,
    live::{name, prompted, replies, waiting},
    parts, texts,
};
use crate::support::{
    offer::{world, world_with},
    scripted::{Scripted, Seen, event, events, text as result},
    servers::{args, asks, everything, key, mcp, probe_stdio, request, shared_key, spec},
    wait::eventually,
};

#[tokio::test]
async fn an_older_server_is_told_in_the_handshake_that_users_can_be_asked() {
    let server = Scripted::legacy(async |_: Seen| None).await;
    let world = world(&server.url, OPEN).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    answer(&ann, &chat, "/call desk echo {}").await;
    for seen in server.requests("initialize") {
        assert_eq!(
            seen.body["params"]["capabilities"],
            json!({"elicitation": {"form": {}, "url": {}}})
        );
    }
    let call: Value = server.requests("tools/call").remove(0).body;
    assert!(!call.to_string().contains("elicitation"), "{call}");
}

#[tokio::test]
async fn a_server_that_does_not_wait_for_the_answer_gets_none() {
    let server = Scripted::legacy(async |seen: Seen| {
        let ask = json!({"jsonrpc": "2.0", "id": 77, "method": "elicitation/create", "params": name("Your name?")});
        let done = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result("without it, then")});
        match seen.method() {
            "tools/call" => Some(events(stream::iter([Ok(event(&ask)), Ok(event(&done))]))),
            "POST" => Some(crate::support::scripted::reply(http::StatusCode::ACCEPTED, &[], "")),
            _ => None,
        }
    })
    .await;
    let world = world(&server.url, OPEN).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let told = texts(&answer(&ann, &chat, "/call desk echo {}").await);
    assert!(told.ends_with("without it, then"), "{told}");
    server.until("POST", 1).await;
    let given = replies(&server);
    assert!(
        given == [json!({"action": "cancel"})] || given == [json!({"action": "decline"})],
        "{given:?}"
    );
    let mut db = world.db.as_tenant(world.tenant.id).await;
    let left: i64 = sqlx::query_scalar("select count(*) from elicitations")
        .fetch_one(&mut db)
        .await
        .unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn nobody_is_asked_in_a_run_that_a_program_started() {
    let server = waiting(|_| vec![name("Who?")]).await;
    let world = world(&server.url, OPEN).await;
    super::scripted(&world);
    let ann = world.user("ann", &[]).await;
    let start = json!({"agent_name": "desk", "prompt": "Go", "mode": "sync"});
    ann.post("/v1/runs", start).await.expect(200);
    assert_eq!(replies(&server), [json!({"action": "decline"})]);
}

#[tokio::test]
async fn a_client_that_cannot_speak_while_it_listens_is_not_asked() {
    let server = waiting(|_| vec![name("Who are you?")]).await;
    let world = world(&server.url, OPEN).await;
    super::scripted(&world);
    let ann = world.user("ann", &[]).await;
    let body = json!({"model": "desk", "messages": [{"role": "user", "content": "Go"}]});
    let told = ann
        .post("/v1/chat/completions", body)
        .await
        .expect(200)
        .to_string();
    assert_eq!(replies(&server), [json!({"action": "decline"})]);
    assert!(
        told.contains("It was declined for you") && told.contains("Who are you?"),
        "{told}"
    );
}

#[tokio::test]
async fn without_a_key_ring_nobody_is_asked() {
    let server = waiting(|_| vec![name("Who are you?")]).await;
    let world = world_with(&server.url, OPEN, |setup| setup.config.ring = None).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    answer(&ann, &chat, "/call desk echo {}").await;
    assert_eq!(replies(&server), [json!({"action": "decline"})]);
}

/// Options that take questions, and where they come in.
fn live() -> (CallOptions, mpsc::UnboundedReceiver<LiveQuestion>) {
    let (live, questions) = mpsc::unbounded_channel();
    (
        CallOptions {
            live_questions: Some(live),
            ..CallOptions::default()
        },
        questions,
    )
}

#[tokio::test]
async fn over_a_pipe_the_question_is_of_the_one_call_that_is_open() {
    let (mcp, key, spec) = (mcp(), key(), spec(probe_stdio(&["curious"], &[])));
    let (options, mut questions) = live();
    let arguments = args(&json!({"who": "ann"}));
    let (outcome, ()) = tokio::join!(
        mcp.call(&key, &spec, request("ask", &arguments), options),
        async {
            let question = questions.recv().await.unwrap();
            let asked = question.input.questions.as_ref().unwrap();
            assert_eq!(asked[0].message, "Who is ann?");
            let said = Answer::from_values(asked, &[json!("Ann")], None);
            question.answer.send(said).unwrap();
        }
    );
    assert_eq!(
        outcome.unwrap().text,
        r#"{"action": "accept", "content": {"name": "Ann"}}"#
    );
}

#[tokio::test]
async fn over_a_pipe_a_question_is_declined_while_two_calls_are_open() {
    let (mcp, key, spec) = (mcp(), key(), spec(probe_stdio(&["curious"], &[])));
    let (first, mut of_first) = live();
    let (second, mut of_second) = live();
    let arguments = args(&json!({"who": "ann"}));
    // Connected before, so that they are written in the order in which they are made.
    mcp.connect(&key, &spec).await.unwrap();
    let calls = async {
        tokio::join!(
            mcp.call(&key, &spec, request("ask_late", &arguments), first),
            mcp.call(&key, &spec, request("echo", &arguments), second),
        )
    };
    // A question that reached one of the two users is answered, so that its call ends.
    let mut asked = Vec::new();
    let answering = async {
        loop {
            let question = tokio::select! {
                Some(question) = of_first.recv() => question,
                Some(question) = of_second.recv() => question,
                else => std::future::pending().await,
            };
            let questions = question.input.questions.as_ref().unwrap();
            let said = Answer::from_values(questions, &[json!("Ann")], None);
            asked.push(questions[0].message.clone());
            question.answer.send(said).unwrap();
        }
    };
    let (late, echo) = tokio::select! {
        biased;
        ended = calls => ended,
        () = answering => unreachable!("it has no end"),
    };
    assert!(
        asked.is_empty(),
        "nobody can say whose question it is: {asked:?}"
    );
    echo.unwrap();
    let late = late.unwrap();
    assert_eq!(late.text, r#"{"action": "decline"}"#);
    assert!(late.declined.is_empty(), "no user is told of it either");
}

#[tokio::test]
async fn over_a_pipe_that_several_tenants_use_nobody_is_asked() {
    let spec = spec(probe_stdio(&["curious"], &[]));
    let (mcp, key) = (mcp(), shared_key(&spec));
    let arguments = args(&json!({"who": "ann"}));
    let of = |options: CallOptions| CallOptions {
        caller: Some(Caller {
            tenant: TenantId::new(),
            user: UserId("ann".into()),
        }),
        ..options
    };
    let before = of(CallOptions::default());
    mcp.call(&key, &spec, request("echo", &arguments), before)
        .await
        .unwrap();
    let (options, mut questions) = live();
    let outcome = mcp
        .call(&key, &spec, request("ask", &arguments), of(options))
        .await
        .unwrap();
    assert_eq!(outcome.text, r#"{"action": "decline"}"#);
    assert!(
        questions.recv().await.is_none(),
        "it may be a question of the other tenant's call"
    );
}

#[tokio::test]
async fn over_a_pipe_nobody_is_asked_after_a_call_that_was_given_up() {
    let (mcp, key, spec) = (mcp(), key(), spec(probe_stdio(&["curious"], &[])));
    let nothing = args(&json!({}));
    let (gone, _) = live();
    let cancel = gone.cancel.clone();
    let (given_up, ()) = tokio::join!(
        mcp.call(&key, &spec, request("forget", &nothing), gone),
        async {
            // Over the same pipe, so that the first one was written when the last of these is answered.
            for _ in 0..2 {
                mcp.call(
                    &key,
                    &spec,
                    request("echo", &nothing),
                    CallOptions::default(),
                )
                .await
                .unwrap();
            }
            cancel.cancel();
        }
    );
    given_up.unwrap_err();
    let (options, mut questions) = live();
    let outcome = mcp
        .call(&key, &spec, request("ask", &nothing), options)
        .await
        .unwrap();
    assert_eq!(outcome.text, r#"{"action": "decline"}"#);
    assert!(
        questions.recv().await.is_none(),
        "it may be a question of the call before"
    );
}

#[tokio::test]
async fn the_reference_server_asks_a_form_of_many_fields() {
    let server = everything(None).await;
    let world = world(&server.url, OPEN).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let mut heard = ann.listen(&chat, None).await;
    // It adds the tool when it knows that we can ask.
    eventually(async || {
        ann.get("/v1/agents/desk/tools")
            .await
            .expect(200)
            .to_string()
            .contains("trigger-elicitation-request")
    })
    .await;
    let run = ann
        .say(&chat, "/call desk trigger-elicitation-request {}")
        .await;
    let said = [
        "Ann",
        "yes",
        "-",
        "ann@example.org",
        "-",
        "2001-02-03",
        "7",
        "2.5",
        "Joey",
        "Piano, Bass",
        "2",
        "Tuna",
    ];
    for (at, text) in said.into_iter().chain(["Dogs"]).enumerate() {
        prompted(&ann, &chat, at + 1).await;
        assert_eq!(ann.say(&chat, text).await, run, "{text}");
    }
    heard.until_run_ends(&run).await;
    let told = texts(&crate::support::offer::parts_of(&ann, &chat, &run).await);
    for line in [
        "✅ User provided",
        "- Name: Ann",
        "- Email: ann@example.org",
        "- Favorite Integer: 7",
        "\"hero-2\"",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert!(
        told.contains("\"pet-2\"") && told.contains("It was a dark and stormy night."),
        "{told}"
    );
}

#[tokio::test]
async fn a_fastmcp_server_asks_for_a_value() {
    let server = asks().await;
    let world = world(&server.url, OPEN).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("desk").await;
    let mut heard = ann.listen(&chat, None).await;
    let run = ann.say(&chat, "/call desk book {}").await;
    prompted(&ann, &chat, 1).await;
    assert!(texts(&parts(&ann, &chat, "prompt").await).contains("For how many?"));
    ann.say(&chat, "4").await;
    heard.until_run_ends(&run).await;
    let answer = async || texts(&parts(&ann, &chat, "tool_result").await);
    eventually(async || answer().await.contains("accept 4")).await;
}
