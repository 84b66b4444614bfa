use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use chatelaine::{
    domain::server::Timeouts,
    mcp::{CallError, CallOptions},
};
use futures_util::StreamExt;
use http::StatusCode;
use serde_json::json;

use super::scripted::{Reply, Scripted, Seen, events, json_reply, reply};
use crate::support::servers::{args, key, mcp, options, request, soon, spec, spec_with};

/// A server of the older era that knows only its second session, and counts executions.
async fn forgetful(lost: fn() -> Reply) -> (Scripted, Arc<AtomicUsize>) {
    let executed = Arc::new(AtomicUsize::new(0));
    let count = executed.clone();
    let server = Scripted::legacy(move |seen: Seen| {
        let count = count.clone();
        async move {
            if seen.method() != "tools/call" {
                return None;
            }
            if seen.headers.get("mcp-session-id").unwrap() == "s1" {
                return Some(lost());
            }
            count.fetch_add(1, Ordering::SeqCst);
            None
        }
    })
    .await;
    (server, executed)
}

#[tokio::test]
async fn a_session_lost_with_404_is_opened_again_and_the_call_made_once() {
    let (server, executed) = forgetful(|| reply(StatusCode::NOT_FOUND, &[], "")).await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    mcp.call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap();
    assert_eq!(
        (
            executed.load(Ordering::SeqCst),
            server.requests("initialize").len()
        ),
        (1, 2)
    );
}

/// Reference servers answer 400 for a session that they do not know. Nothing but its words tells it from any other
/// error, so the call is not made again, and the next one has a session of its own.
#[tokio::test]
async fn after_a_400_without_an_id_the_next_call_has_a_new_session() {
    let (server, executed) = forgetful(|| {
        let error = json!({"code": -32000, "message": "Bad Request: No valid session ID provided"});
        json_reply(
            StatusCode::BAD_REQUEST,
            &json!({"jsonrpc": "2.0", "error": error, "id": null}),
        )
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let arguments = args(&json!({}));
    let first = mcp
        .call(&key, &spec, request("echo", &arguments), options())
        .await;
    assert!(
        matches!(&first, Err(CallError::Refused { message, .. }) if message.contains("No valid session")),
        "{first:?}"
    );
    assert_eq!(server.requests("tools/call").len(), 1);
    mcp.call(&key, &spec, request("echo", &arguments), options())
        .await
        .unwrap();
    assert_eq!(
        (
            executed.load(Ordering::SeqCst),
            server.requests("initialize").len()
        ),
        (1, 2)
    );
}

#[tokio::test]
async fn an_error_of_the_tool_is_no_lost_session_whatever_its_status_and_words() {
    for (status, message) in [
        (
            StatusCode::BAD_REQUEST,
            "The trading session is closed for today",
        ),
        (StatusCode::BAD_REQUEST, "the order is not initialized"),
        (
            StatusCode::NOT_FOUND,
            "order 17 was not found in this session",
        ),
    ] {
        let server = Scripted::legacy(move |seen: Seen| async move {
            (seen.method() == "tools/call").then(|| seen.error(status, -32000, message))
        })
        .await;
        let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
        let outcome = mcp
            .call(
                &key,
                &spec,
                request("echo", &args(&json!({"x": "buy"}))),
                options(),
            )
            .await;
        let refused = CallError::Refused {
            code: Some(-32000),
            message: message.to_owned(),
            retry_after: None,
        };
        assert_eq!(outcome.unwrap_err(), refused);
        assert_eq!(server.requests("tools/call").len(), 1, "{message}");
    }
}

#[tokio::test]
async fn a_404_with_an_error_for_another_request_is_a_lost_session() {
    let (server, executed) = forgetful(|| {
        let error = json!({"code": -32600, "message": "Session not found"});
        json_reply(
            StatusCode::NOT_FOUND,
            &json!({"jsonrpc": "2.0", "id": "server-error", "error": error}),
        )
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    mcp.call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap();
    assert_eq!(executed.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_400_that_is_not_about_the_session_is_a_refusal() {
    let (server, executed) = forgetful(|| {
        let error = json!({"code": -32602, "message": "amount must be positive"});
        json_reply(
            StatusCode::BAD_REQUEST,
            &json!({"jsonrpc": "2.0", "error": error, "id": null}),
        )
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let error = mcp
        .call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            CallError::Refused {
                code: Some(-32602),
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(
        (
            executed.load(Ordering::SeqCst),
            server.requests("tools/call").len()
        ),
        (0, 1)
    );
}

#[tokio::test]
async fn a_server_that_forgets_every_session_is_given_up_after_the_second() {
    let server = Scripted::legacy(async |seen: Seen| {
        (seen.method() == "tools/call").then(|| reply(StatusCode::NOT_FOUND, &[], ""))
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let error = soon(mcp.call(&key, &spec, request("echo", &args(&json!({}))), options()))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)), "{error:?}");
    assert_eq!(server.requests("tools/call").len(), 2);
}

#[tokio::test]
async fn a_session_is_ended_when_its_connection_is_closed() {
    let server = Scripted::legacy(async |_| None).await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    mcp.discover(&key, &spec).await.unwrap();
    mcp.close(&key).await;
    let ended = server.requests("DELETE");
    assert_eq!(ended.len(), 1);
    assert_eq!(
        (
            &ended[0].headers["mcp-session-id"],
            &ended[0].headers["authorization"]
        ),
        (&"s1".parse().unwrap(), &"Bearer right".parse().unwrap())
    );
}

#[tokio::test]
async fn a_session_lapses_by_itself_where_the_pack_says_so() {
    let server = Scripted::legacy(async |_| None).await;
    let (mcp, key) = (mcp(), key());
    let mut spec = (*spec(server.endpoint())).clone();
    spec.terminate_on_close = false;
    mcp.discover(&key, &Arc::new(spec)).await.unwrap();
    mcp.close(&key).await;
    assert_eq!(server.requests("DELETE").len(), 0);
}

#[tokio::test]
async fn a_stream_of_changes_that_is_silent_for_too_long_is_asked_for_again() {
    let server = Scripted::legacy(async |seen: Seen| {
        (seen.method() == "GET").then(|| events(futures_util::stream::pending()))
    })
    .await;
    let timeouts = Timeouts {
        stream_idle: Some(Duration::from_millis(50)),
        ..Timeouts::default()
    };
    let (mcp, key, spec) = (mcp(), key(), spec_with(server.endpoint(), timeouts));
    mcp.discover(&key, &spec).await.unwrap();
    server.until("GET", 2).await;
}

#[tokio::test]
async fn a_call_that_may_be_sent_once_is_not_sent_over_a_second_session() {
    let (server, executed) = forgetful(|| reply(StatusCode::NOT_FOUND, &[], "")).await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let once = || CallOptions {
        once: Some("request-1".to_owned()),
        ..options()
    };
    let error = mcp
        .call(&key, &spec, request("echo", &args(&json!({}))), once())
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)), "{error:?}");
    assert_eq!(
        (
            executed.load(Ordering::SeqCst),
            server.requests("tools/call").len()
        ),
        (0, 1)
    );
}

#[tokio::test]
async fn a_call_that_may_be_sent_once_carries_its_key() {
    for server in [
        Scripted::legacy(async |_| None).await,
        Scripted::modern(async |_| None).await,
    ] {
        let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
        let once = CallOptions {
            once: Some("request-1".to_owned()),
            ..options()
        };
        mcp.call(&key, &spec, request("echo", &args(&json!({}))), once)
            .await
            .unwrap();
        mcp.call(&key, &spec, request("echo", &args(&json!({}))), options())
            .await
            .unwrap();
        let keys: Vec<_> = server
            .requests("tools/call")
            .iter()
            .map(|seen| seen.body["params"]["_meta"]["chatelaine/idempotencyKey"].clone())
            .collect();
        assert_eq!(keys, [json!("request-1"), serde_json::Value::Null]);
    }
}

#[tokio::test]
async fn a_call_that_may_be_sent_once_follows_no_redirect() {
    let server = Scripted::modern(async |seen| {
        let elsewhere = || {
            reply(
                StatusCode::TEMPORARY_REDIRECT,
                &[("location", "/elsewhere")],
                "",
            )
        };
        (seen.method() == "tools/call").then(elsewhere)
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let once = CallOptions {
        once: Some("request-1".to_owned()),
        ..options()
    };
    let error = mcp
        .call(&key, &spec, request("echo", &args(&json!({}))), once)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, CallError::OutcomeUnknown(reason) if reason.contains("307")),
        "{error:?}"
    );
    assert_eq!(server.requests("tools/call").len(), 1);
}

/// Statement A6 of the acceptance list.
#[tokio::test]
async fn the_negotiated_revision_and_the_session_ride_on_every_request_after_the_first() {
    let server = Scripted::legacy(async |_| None).await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    mcp.discover(&key, &spec).await.unwrap();
    mcp.call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap();
    let header = |method: &str, name: &str| {
        let seen = server.requests(method);
        assert_eq!(seen.len(), 1, "{method}");
        seen[0]
            .headers
            .get(name)
            .map(|value| value.to_str().unwrap().to_owned())
    };
    let order = [
        "initialize",
        "notifications/initialized",
        "tools/list",
        "tools/call",
    ];
    let methods = server.methods();
    let made: Vec<_> = methods
        .iter()
        .filter(|method| order.contains(&method.as_str()))
        .collect();
    assert_eq!(made, order);
    for name in ["mcp-protocol-version", "mcp-session-id"] {
        assert_eq!(header("initialize", name), None, "{name}");
    }
    for method in &order[1..] {
        let carried = ["mcp-protocol-version", "mcp-session-id"].map(|name| header(method, name));
        assert_eq!(
            carried,
            [Some("2025-11-25".to_owned()), Some("s1".to_owned())],
            "{method}"
        );
    }
}

/// A stream that is cut is asked for again after a pause of two seconds, as one that ends is.
#[tokio::test]
async fn a_stream_of_changes_that_breaks_at_once_is_not_asked_for_at_full_pace() {
    let asked = Arc::<std::sync::Mutex<Vec<std::time::Instant>>>::default();
    let times = asked.clone();
    let server = Scripted::legacy(move |seen: Seen| {
        let times = times.clone();
        async move {
            (seen.method() == "GET").then(|| {
                times
                    .lock()
                    .unwrap()
                    .push(chatelaine::domain::clock::instant());
                let hello = futures_util::stream::iter([Ok(": hello\n\n".to_owned())]);
                // The head of the answer leaves before the connection is cut.
                let cut = futures_util::stream::once(async {
                    tokio::task::yield_now().await;
                    Err(std::io::Error::other("cut"))
                });
                events(hello.chain(cut))
            })
        }
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    mcp.discover(&key, &spec).await.unwrap();
    server.until("GET", 3).await;
    let times = asked.lock().unwrap().clone();
    let pauses: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[0] >= Duration::from_millis(1900), "{pauses:?}");
    assert!(pauses[1] >= Duration::from_millis(4500), "{pauses:?}");
}
