//! What the log says of a run: by the id of the run one finds what went wrong, where, and after what time; and never what
//! somebody said.

use http::StatusCode;
use serde_json::json;

use crate::support::{
    client::Client,
    model::{calls, error, text},
    offer,
    program::{self, Program},
    scripted::{Scripted, reply},
    wait::ended,
    world::{Stopped, World},
};

/// Serves what a world has left, as talkative as it is by default.
async fn serve(stopped: &Stopped, variables: &[&str]) -> Program {
    let mut command = program::serve(&stopped.config, &stopped.db, &"5e".repeat(32));
    let variable = |name: &&str| Some((name.to_string(), stopped.env.get(name)?.to_owned()));
    command.envs(variables.iter().filter_map(variable));
    Program::start(command).await
}

/// Says something in a request with this id, and waits for the end of its run.
async fn say(client: &Client, conversation: &str, words: &str, request: &str) -> String {
    let client = client.clone().with_header("x-request-id", request);
    client.say(conversation, words).await
}

/// The one line of a run that has all of these words.
#[track_caller]
fn line_of<'a>(log: &'a str, run: &str, words: &[&str]) -> &'a str {
    let mut lines = log.lines().filter(|line| line.contains(run));
    let found = lines.find(|line| words.iter().all(|word| line.contains(word)));
    found.unwrap_or_else(|| panic!("no line of {run} has {words:?}:\n{log}"))
}

#[tokio::test]
async fn a_model_that_fails_is_found_by_the_id_of_the_run() {
    let world = World::start().await;
    let tenant = world.tenant.id.to_string();
    let ann = world.user("ann", &[]).await;
    let stopped = world.stop().await;
    stopped.model.on(|_| Some(error(500, "boom upstream")));
    let program = serve(&stopped, &["MODEL_URL", "BANK_URL"]).await;
    let ann = ann.at(&program.url);
    let conversation = ann.open("bank").await;
    let first = say(&ann, &conversation, "What of the merger?", "req-17").await;
    // It waits for the end of the first, so whoever works on it knows it from its row.
    let second = say(&ann, &conversation, "And the price?", "req-18").await;
    assert_eq!(ended(&ann, &first).await["status"], "failed");
    assert_eq!(ended(&ann, &second).await["status"], "failed");
    let log = program.stop().await;
    for (run, request) in [(&first, "req-17"), (&second, "req-18")] {
        let about = [tenant.as_str(), &conversation, request];
        let cause = [
            "model request failed",
            r#"host="127.0.0.1""#,
            r#"code="unavailable""#,
            "status=500",
            "ms=",
            "last=true",
        ];
        line_of(&log, run, &[&about[..], &cause].concat());
        line_of(
            &log,
            run,
            &[&about[..], &["run ended", r#"status="failed""#]].concat(),
        );
    }
    for words in ["boom upstream", "merger", "price", "model-key"] {
        assert!(!log.contains(words), "{words}: {log}");
    }
}

#[tokio::test]
async fn a_tool_that_fails_is_found_by_the_id_of_the_run() {
    let server = Scripted::modern(async |seen| {
        let is_call = seen.method() == "tools/call";
        is_call.then(|| reply(StatusCode::BAD_GATEWAY, &[], "no such account ZZ-4711-Q"))
    })
    .await;
    let world = offer::world(&server.url, "{ default: public }").await;
    let ann = world.user("ann", &[]).await;
    let stopped = world.stop().await;
    let call = calls([("desk__echo", json!({ "text": "the words of ann" }))]);
    stopped.model.reply(call).reply(text("It failed."));
    let program = serve(&stopped, &["MODEL_URL", "DESK_URL"]).await;
    let ann = ann.at(&program.url);
    let conversation = ann.open("desk").await;
    let run = say(&ann, &conversation, "Say it.", "req-19").await;
    assert_eq!(ended(&ann, &run).await["status"], "succeeded");
    let log = program.stop().await;
    let words = [
        "tool call failed",
        "server=desk",
        r#"tool="echo""#,
        r#"host="127.0.0.1""#,
        r#"code="outcome_unknown""#,
        "status=502",
        "ms=",
        "req-19",
        &conversation,
    ];
    line_of(&log, &run, &words);
    for words in ["ZZ-4711-Q", "the words of ann"] {
        assert!(!log.contains(words), "{words}: {log}");
    }
}

/// What an internal error is, only the log may say; and it does, whichever part of the program stumbles.
#[tokio::test]
async fn an_internal_error_of_a_call_is_in_the_log_with_its_cause() {
    let server = Scripted::modern(async |_| None).await;
    let access = "{ default: public, limits: [{ tools: [echo], per: user, over: 1h, most: 9, then: deny }] }";
    let world = offer::world(&server.url, access).await;
    let ann = world.user("ann", &[]).await;
    let stopped = world.stop().await;
    let call = calls([("desk__echo", json!({ "text": "the words of ann" }))]);
    stopped.model.reply(call).reply(text("It failed."));
    let program = serve(&stopped, &["MODEL_URL", "DESK_URL"]).await;
    let ann = ann.at(&program.url);
    let conversation = ann.open("desk").await;
    sqlx::raw_sql("alter table limit_sums rename to limit_sums_of_nobody")
        .execute(&mut stopped.db.as_owner().await)
        .await
        .unwrap();
    let run = say(&ann, &conversation, "Say it.", "req-20").await;
    assert_eq!(ended(&ann, &run).await["status"], "succeeded");
    let told = json!(ann.messages(&conversation).await).to_string();
    assert!(told.contains("not executed: internal error"), "{told}");
    assert!(!told.contains("limit_sums"), "{told}");
    let params = json!({ "name": "desk__echo", "arguments": {} });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let request = ann
        .request(http::Method::POST, "/mcp/desk")
        .header("mcp-protocol-version", "2025-11-25")
        .header("x-request-id", "req-21");
    let told = ann.send(request.json(&body)).await.text;
    assert!(told.contains("not executed: internal error"), "{told}");
    let log = program.stop().await;
    let cause = [
        "because of an internal error",
        r#"relation \"limit_sums\" does not exist"#,
    ];
    line_of(&log, &run, &cause);
    line_of(&log, "req-21", &cause);
    assert!(!log.contains("the words of ann"), "{log}");
}
