use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use domain::{
    secret::Secret,
    server::{Endpoint, Remote, Timeouts},
};
use futures_util::StreamExt;
use http::{Method, StatusCode};
use mcp::{CallError, Lifecycle, McpErrorKind};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::support::{
    origin::{Origin, ok},
    scripted::{Reply, Scripted, Seen, event, events, reply, text},
    servers::{
        args, everything, everything_sse, key, mcp, options, replaced, request, soon, spec,
        spec_with, steps_of_a_long_call, until,
    },
};

/// The open stream of a server: what is sent goes out as it is; dropped, the stream ends.
type Line = mpsc::UnboundedSender<io::Result<String>>;

/// A server that says its endpoint is `/messages`. The script sees what is posted there, with the stream; `None`
/// is answered as an ordinary server would.
async fn pair<F, R>(endpoint: &'static str, script: F) -> (Scripted, Arc<Mutex<Option<Line>>>)
where
    F: Fn(Seen, Line) -> R + Send + Sync + 'static,
    R: Future<Output = Option<Reply>> + Send + 'static,
{
    let line: Arc<Mutex<Option<Line>>> = Arc::default();
    let (current, script) = (line.clone(), Arc::new(script));
    let server = Scripted::start(move |seen| {
        let (line, script) = (current.clone(), script.clone());
        async move {
            match (&seen.http, seen.path.as_str()) {
                (&Method::GET, "/mcp") => {
                    let (sender, receiver) = mpsc::unbounded_channel();
                    sender
                        .send(Ok(format!("event: endpoint\ndata: {endpoint}\n\n")))
                        .unwrap();
                    *line.lock().unwrap() = Some(sender);
                    events(UnboundedReceiverStream::new(receiver).boxed())
                }
                (&Method::POST, "/messages") => {
                    let open = line.lock().unwrap().clone();
                    let Some(open) = open else {
                        return reply(StatusCode::NOT_FOUND, &[], "");
                    };
                    match script(seen.clone(), open.clone()).await {
                        Some(reply) => reply,
                        None => answer(&seen, &open),
                    }
                }
                _ => reply(StatusCode::METHOD_NOT_ALLOWED, &[], ""),
            }
        }
    })
    .await;
    (server, line)
}

/// What an ordinary server does: takes the message and answers over the stream.
fn answer(seen: &Seen, line: &Line) -> Reply {
    let result = match seen.method() {
        "initialize" => json!({
            "protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"},
        }),
        "tools/list" => json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}),
        "tools/call" => text(&seen.body["params"]["arguments"].to_string()),
        _ => return reply(StatusCode::ACCEPTED, &[], ""),
    };
    say(line, &seen.body["id"], &result);
    reply(StatusCode::ACCEPTED, &[], "Accepted")
}

fn say(line: &Line, id: &Value, result: &Value) {
    // The stream may be gone.
    let _ = line.send(Ok(event(
        &json!({"jsonrpc": "2.0", "id": id, "result": result}),
    )));
}

fn endpoint(server: &Scripted) -> Endpoint {
    let headers = vec![(
        "Authorization".to_owned(),
        Secret::new("Bearer hunter2-hunter2"),
    )];
    Endpoint::Remote {
        transport: Remote::Sse,
        url: server.url.clone(),
        headers,
    }
}

fn posts(server: &Scripted, path: &str, method: &str) -> usize {
    server
        .requests(method)
        .iter()
        .filter(|seen| seen.path == path)
        .count()
}

#[tokio::test]
async fn a_published_server_answers_and_says_how_far_it_is() {
    let (server, mcp, key) = (everything_sse().await, mcp(), key());
    let spec = spec(server.over(Remote::Sse));
    let found = mcp.discover(&key, &spec).await.unwrap();
    assert_eq!(found.lifecycle, Lifecycle::Handshake);
    assert!(found.tools.iter().any(|tool| tool.name == "echo"));
    assert_eq!(steps_of_a_long_call(&mcp, &key, &spec).await, [1.0, 2.0]);
}

#[tokio::test]
async fn an_address_that_ends_in_sse_is_tried_both_ways_whatever_the_pack_calls_it() {
    let (server, mcp, key) = (everything_sse().await, mcp(), key());
    let spec = spec(server.over(Remote::StreamableHttp));
    let outcome = mcp
        .call(
            &key,
            &spec,
            request("echo", &args(&json!({"message": "hello"}))),
            options(),
        )
        .await
        .unwrap();
    assert_eq!(outcome.text, "Echo: hello");
}

#[tokio::test]
async fn a_server_of_streamable_http_that_a_pack_calls_sse_is_spoken_to_that_way() {
    let (server, mcp, key) = (everything(None).await, mcp(), key());
    let spec = spec(server.over(Remote::Sse));
    let outcome = mcp
        .call(
            &key,
            &spec,
            request("echo", &args(&json!({"message": "hello"}))),
            options(),
        )
        .await
        .unwrap();
    assert_eq!(outcome.text, "Echo: hello");
}

#[tokio::test]
async fn streamable_http_is_tried_once_and_the_way_that_worked_is_remembered() {
    let (server, _line) = pair("/messages?session=1", async |_, _| None).await;
    let (mcp, first) = (mcp(), key());
    let spec = spec(endpoint(&server));
    mcp.discover(&first, &spec).await.unwrap();
    let tried = posts(&server, "/mcp", "initialize") + posts(&server, "/mcp", "server/discover");
    assert!(tried > 0);
    mcp.discover(&replaced(&first), &spec).await.unwrap();
    assert_eq!(
        posts(&server, "/mcp", "initialize") + posts(&server, "/mcp", "server/discover"),
        tried
    );
    assert_eq!(posts(&server, "/messages", "initialize"), 2);
}

#[tokio::test]
async fn credentials_go_with_the_stream_and_with_every_message() {
    let (server, _line) = pair("/messages", async |_, _| None).await;
    let (mcp, key, spec) = (mcp(), key(), spec(endpoint(&server)));
    mcp.call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap();
    for method in [
        "GET",
        "initialize",
        "notifications/initialized",
        "tools/call",
    ] {
        for seen in server.requests(method) {
            assert_eq!(
                seen.headers["authorization"], "Bearer hunter2-hunter2",
                "{method}"
            );
        }
        assert!(!server.requests(method).is_empty(), "{method}");
    }
}

#[tokio::test]
async fn an_endpoint_at_another_origin_is_not_used() {
    let spy = Origin::start(|_| ok("reached")).await;
    let place: &'static str = String::from(spy.url("/messages")).leak();
    let (server, _line) = pair(place, async |_, _| None).await;
    let error = mcp()
        .discover(&key(), &spec(endpoint(&server)))
        .await
        .unwrap_err();
    assert_eq!(error.kind, McpErrorKind::Protocol);
    assert!(
        error
            .message
            .starts_with("the server names an endpoint at another origin"),
        "{error}"
    );
    assert_eq!(spy.accepted(), 0);
}

#[tokio::test]
async fn a_definite_no_to_the_stream_is_told_as_one() {
    for (status, kind) in [
        (StatusCode::UNAUTHORIZED, McpErrorKind::Unauthorized),
        (StatusCode::FORBIDDEN, McpErrorKind::Forbidden),
    ] {
        let server = Scripted::start(move |seen| async move {
            reply(
                if seen.http == Method::GET {
                    status
                } else {
                    StatusCode::METHOD_NOT_ALLOWED
                },
                &[],
                "",
            )
        })
        .await;
        let error = mcp()
            .discover(&key(), &spec(endpoint(&server)))
            .await
            .unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
    }
}

#[tokio::test]
async fn a_definite_no_to_a_call_is_told_as_one() {
    let (server, _line) = pair("/messages", async |seen: Seen, _| {
        (seen.method() == "tools/call").then(|| reply(StatusCode::UNAUTHORIZED, &[], ""))
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(endpoint(&server)));
    let error = mcp
        .call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap_err();
    assert_eq!(error, CallError::Unauthorized);
}

#[tokio::test]
async fn a_call_whose_stream_ends_is_not_made_again_and_the_next_one_opens_a_new_stream() {
    let (server, line) = pair("/messages", async |seen: Seen, line: Line| {
        if seen.body["params"]["arguments"]["fatal"] != true {
            return None;
        }
        let _ = line.send(Err(io::Error::other("broken")));
        Some(reply(StatusCode::ACCEPTED, &[], ""))
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(endpoint(&server)));
    let error = soon(mcp.call(
        &key,
        &spec,
        request("echo", &args(&json!({"fatal": true}))),
        options(),
    ))
    .await
    .unwrap_err();
    assert!(matches!(error, CallError::OutcomeUnknown(_)), "{error:?}");
    assert_eq!(server.requests("tools/call").len(), 1);
    drop(line);
    mcp.call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap();
    assert_eq!(
        (
            server.requests("tools/call").len(),
            server.requests("GET").len()
        ),
        (2, 2)
    );
}

#[tokio::test]
async fn a_call_whose_session_is_lost_is_not_made_again_and_the_next_one_opens_a_new_stream() {
    let executed = Arc::new(Mutex::new(0));
    let count = executed.clone();
    let (server, _line) = pair("/messages", move |seen: Seen, _| {
        let count = count.clone();
        async move {
            let mut count = count.lock().unwrap();
            if seen.method() != "tools/call" {
                return None;
            }
            *count += 1;
            (*count == 1).then(|| reply(StatusCode::NOT_FOUND, &[], "Session not found"))
        }
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(endpoint(&server)));
    let arguments = args(&json!({}));
    let error = mcp
        .call(&key, &spec, request("echo", &arguments), options())
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::SessionLost { .. }), "{error:?}");
    assert_eq!(*executed.lock().unwrap(), 1);
    mcp.call(&key, &spec, request("echo", &arguments), options())
        .await
        .unwrap();
    assert_eq!(
        (*executed.lock().unwrap(), server.requests("GET").len()),
        (2, 2)
    );
}

#[tokio::test]
async fn an_answer_counts_although_nonsense_follows_it_at_once() {
    let (server, _line) = pair("/messages", async |seen: Seen, line: Line| {
        if seen.method() != "tools/call" {
            return None;
        }
        let answer = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": text("counts")});
        let _ = line.send(Ok(format!(
            "{}nonsense without a colon\n\n",
            event(&answer)
        )));
        Some(reply(StatusCode::ACCEPTED, &[], ""))
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(endpoint(&server)));
    let outcome = soon(mcp.call(&key, &spec, request("echo", &args(&json!({}))), options()))
        .await
        .unwrap();
    assert_eq!(outcome.text, "counts");
}

#[tokio::test]
async fn an_event_that_is_too_large_ends_the_connection() {
    let (server, _line) = pair("/messages", async |seen: Seen, line: Line| {
        if seen.method() == "tools/call" {
            say(&line, &seen.body["id"], &text(&"x".repeat(9 * 1024 * 1024)));
            return Some(reply(StatusCode::ACCEPTED, &[], ""));
        }
        None
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(endpoint(&server)));
    let error = soon(mcp.call(&key, &spec, request("echo", &args(&json!({}))), options()))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::OutcomeUnknown(_)), "{error:?}");
}

#[tokio::test]
async fn a_stream_that_is_silent_for_too_long_is_given_up() {
    let (server, _line) = pair("/messages", async |_, _| None).await;
    let timeouts = Timeouts {
        stream_idle: Some(Duration::from_millis(200)),
        ..Timeouts::default()
    };
    let (mcp, key, spec) = (mcp(), key(), spec_with(endpoint(&server), timeouts));
    mcp.discover(&key, &spec).await.unwrap();
    until(|| mcp.state(&key) == mcp::ConnectionState::Idle).await;
}

#[tokio::test]
async fn a_credential_that_the_server_says_back_is_hidden() {
    let (server, _line) = pair("/messages", async |seen: Seen, line: Line| {
        if seen.method() != "tools/call" {
            return None;
        }
        say(
            &line,
            &seen.body["id"],
            &text(seen.headers["authorization"].to_str().unwrap()),
        );
        Some(reply(StatusCode::ACCEPTED, &[], ""))
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(endpoint(&server)));
    let outcome = mcp
        .call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap();
    assert!(
        !outcome.text.contains("hunter2") && !outcome.raw.get().contains("hunter2"),
        "{}",
        outcome.text
    );
}

#[tokio::test]
async fn a_call_follows_no_redirect() {
    let (server, _line) = pair("/messages", async |seen: Seen, _| {
        let elsewhere = || {
            reply(
                StatusCode::TEMPORARY_REDIRECT,
                &[("location", "/messages?again")],
                "",
            )
        };
        (seen.method() == "tools/call").then(elsewhere)
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(endpoint(&server)));
    let error = mcp
        .call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap_err();
    assert!(
        matches!(&error, CallError::OutcomeUnknown(reason) if reason.contains("307")),
        "{error:?}"
    );
    assert_eq!(server.requests("tools/call").len(), 1);
}

#[tokio::test]
async fn a_server_that_never_names_its_endpoint_costs_the_time_to_connect() {
    let server = Scripted::start(async |seen: Seen| {
        if seen.http == Method::GET {
            events(futures_util::stream::pending())
        } else {
            reply(StatusCode::NOT_FOUND, &[], "")
        }
    })
    .await;
    let timeouts = Timeouts {
        connect: Duration::from_millis(200),
        ..Timeouts::default()
    };
    let error = soon(mcp().discover(&key(), &spec_with(endpoint(&server), timeouts)))
        .await
        .unwrap_err();
    assert_eq!(error.kind, McpErrorKind::TimedOut, "{error}");
}
