//! What an answer says of the call.

use std::time::Duration;

use domain::server::Timeouts;
use futures_util::stream;
use http::StatusCode;
use mcp::CallError;
use serde_json::json;

use super::calls::{call, calls};
use crate::support::{
    scripted::{Scripted, Seen, event, events, reply},
    servers::{args, key, mcp, options, request, soon, spec, spec_with},
};

#[tokio::test]
async fn a_401_or_403_without_any_header_is_definite() {
    let server = calls(async |_| reply(StatusCode::UNAUTHORIZED, &[], "")).await;
    assert_eq!(call(&server).await, (Err(CallError::Unauthorized), 1));
    let server = calls(async |seen: Seen| seen.error(StatusCode::FORBIDDEN, -32000, "no")).await;
    assert_eq!(call(&server).await, (Err(CallError::Forbidden), 1));
}

#[tokio::test]
async fn a_json_rpc_error_is_a_refusal_whatever_the_status_below_500() {
    for status in [
        StatusCode::OK,
        StatusCode::BAD_REQUEST,
        StatusCode::NOT_FOUND,
    ] {
        let server =
            calls(move |seen: Seen| async move { seen.error(status, -32602, "no such tool") })
                .await;
        let (outcome, times) = call(&server).await;
        let refused = CallError::Refused {
            code: Some(-32602),
            message: "no such tool".to_owned(),
            retry_after: None,
        };
        assert_eq!((outcome, times), (Err(refused), 1), "{status}");
    }
}

/// A gateway may give up on a call that its server goes on with.
#[tokio::test]
async fn only_a_json_rpc_error_for_the_request_says_that_a_call_failed() {
    let ours = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32603,"message":"oops"}}"#;
    for (status, body, words) in [
        (
            504,
            r#"{"error":"upstream timeout"}"#,
            "HTTP 504 Gateway Timeout: {\"error\":\"upstream timeout\"}",
        ),
        (
            500,
            r#"{"error":"Internal Server Error","message":"oops"}"#,
            "HTTP 500",
        ),
        (500, ours, "oops"),
        (502, "<html>", "HTTP 502 Bad Gateway: <html>"),
        (503, "", "HTTP 503"),
        (413, "", "HTTP 413"),
        (
            400,
            r#"{"error":"bad request"}"#,
            "HTTP 400 Bad Request: {\"error\":\"bad request\"}",
        ),
        (400, r#"{"jsonrpc":"2.0","id":ID,"result":{}}"#, "HTTP 400"),
        (
            404,
            "no page of that name",
            "HTTP 404 Not Found: no page of that name",
        ),
        (200, r#"{"error":"something"}"#, "something"),
        (
            200,
            r#"{"id":ID,"error":{"code":-32603,"message":"oops"}}"#,
            "oops",
        ),
        (
            200,
            r#"{"jsonrpc":"2.0","id":ID,"error":{"message":"no code"}}"#,
            "no code",
        ),
        (200, r#"{"jsonrpc":"2.0","id":ID,"error":"text"}"#, "text"),
        (
            200,
            r#"{"jsonrpc":"2.0","id":4711,"result":{"content":[]}}"#,
            "4711",
        ),
    ] {
        let server = calls(move |seen: Seen| async move {
            let body = body.replace("ID", &seen.body["id"].to_string());
            let status = StatusCode::from_u16(status).unwrap();
            reply(status, &[("content-type", "application/json")], body)
        })
        .await;
        let (outcome, times) = call(&server).await;
        let Err(CallError::OutcomeUnknown(reason)) = outcome else {
            panic!("{status} {body}: {outcome:?}")
        };
        assert!(reason.contains(words), "{status} {body}: {reason}");
        assert_eq!(times, 1, "{status} {body}");
    }
}

#[tokio::test]
async fn an_error_without_an_id_answers_the_request_of_its_stream() {
    let server = calls(async |_| {
        let error = json!({"code": -32600, "message": "not today"});
        let error = event(&json!({"jsonrpc": "2.0", "id": null, "error": error}));
        events(stream::iter([Ok(error)]))
    })
    .await;
    let (outcome, times) = call(&server).await;
    let Err(CallError::Refused { message, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!((message.as_str(), times), ("not today", 1));
}

/// `streamIdleSeconds`, which is `sse_read_timeout` of HoloDeck. The call itself may take a minute.
#[tokio::test]
async fn a_stream_that_is_silent_for_too_long_ends_its_call() {
    let server = calls(async |_| events(stream::pending())).await;
    let timeouts = Timeouts {
        stream_idle: Some(Duration::from_millis(50)),
        ..Timeouts::default()
    };
    let (mcp, key, spec) = (mcp(), key(), spec_with(server.endpoint(), timeouts));
    let arguments = args(&json!({}));
    let outcome = soon(mcp.call(&key, &spec, request("echo", &arguments), options())).await;
    let Err(CallError::OutcomeUnknown(reason)) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(reason.contains("cannot be read"), "{reason}");
    assert_eq!(server.requests("tools/call").len(), 1, "it is not repeated");
}

#[tokio::test]
async fn what_a_server_says_of_a_failure_is_shown_without_the_credential() {
    let server = calls(async |_| {
        reply(
            StatusCode::BAD_GATEWAY,
            &[],
            "no route for Bearer right-1234567",
        )
    })
    .await;
    let mut endpoint = server.endpoint();
    if let domain::server::Endpoint::Remote { headers, .. } = &mut endpoint {
        headers[0].1 = domain::secret::Secret::new("Bearer right-1234567");
    }
    let error = mcp()
        .call(
            &key(),
            &spec(endpoint),
            request("echo", &args(&json!({}))),
            options(),
        )
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("HTTP 502 Bad Gateway: no route for"),
        "{error}"
    );
    assert!(!error.contains("right-1234567"), "{error}");
}

#[tokio::test]
async fn a_busy_server_says_when_to_come_back() {
    let busy = |status| calls(move |_| async move { reply(status, &[("retry-after", "7")], "") });
    let (outcome, times) = call(&busy(StatusCode::TOO_MANY_REQUESTS).await).await;
    let Err(CallError::Refused { retry_after, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!((retry_after, times), (Some(Duration::from_secs(7)), 1));
    let (outcome, times) = call(&busy(StatusCode::SERVICE_UNAVAILABLE).await).await;
    let Err(CallError::OutcomeUnknown(reason)) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(reason.contains("it asks to wait 7 s"), "{reason}");
    assert_eq!(times, 1);
}

#[tokio::test]
async fn an_answer_is_read_however_its_http_is_written() {
    const JSON: &str =
        r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"read"}]}}"#;
    const EVENT: &str = "data: JSON\n\n";
    for (content_type, body) in [
        (Some("Application/JSON"), "JSON"),
        (
            Some("APPLICATION/JSON ; charset=\"UTF-8\"; profile=x"),
            "JSON",
        ),
        (Some("application/json"), "\u{feff}JSON"),
        (Some("application/json"), "\u{feff}\r\n JSON"),
        (None, "JSON"),
        (None, "\u{feff} \n JSON"),
        (Some(""), "JSON"),
        (Some("text/plain"), "JSON"),
        (Some("application/vnd.mcp+json"), "JSON"),
        (Some("Text/Event-Stream; Charset=utf-8"), EVENT),
        (Some("text/event-stream"), "\u{feff}data: JSON\n\n"),
        (Some("text/event-stream"), "retry: soon\ndata: JSON\n\n"),
        (Some("text/event-stream"), "retry: -1\ndata: JSON\n\n"),
        (
            Some("text/event-stream"),
            "retry: 99999999999999999999999\ndata: JSON\n\n",
        ),
        (
            Some("text/event-stream"),
            "retry: 1\nretry: 2\ndata: JSON\n\n",
        ),
        (
            Some("text/event-stream"),
            "retry: 18446744073709551615\ndata: JSON\n\n",
        ),
        (Some("text/event-stream"), "retry: 1e999\ndata: JSON\n\n"),
        (Some("text/event-stream"), "retry: 0x10\ndata: JSON\n\n"),
        (Some("text/event-stream"), "retry\nretry:\ndata: JSON\n\n"),
        (Some("text/event-stream"), "id: a\0b\ndata: JSON\n\n"),
        (
            Some("text/event-stream"),
            "event: a\nevent: message\nid: 1\nid: 2\ndata: JSON\n\n",
        ),
        (
            Some("text/event-stream"),
            "no colon\ndata\nfoo: bar\n: comment\n\ndata: JSON\n\n",
        ),
        (Some("text/event-stream"), "data:JSON\r\n\r\n"),
        (Some("text/event-stream"), "data: JSON\r\r"),
        (Some("text/event-stream"), "data: JSON"),
    ] {
        let server = calls(move |seen: Seen| async move {
            let json = JSON.replace("ID", &seen.body["id"].to_string());
            let headers = content_type.map(|content_type| ("content-type", content_type));
            reply(
                StatusCode::OK,
                headers.as_slice(),
                body.replace("JSON", &json),
            )
        })
        .await;
        let outcome = call(&server).await;
        assert_eq!(
            outcome,
            (Ok("read".to_owned()), 1),
            "{content_type:?} {body:?}"
        );
    }
}

#[tokio::test]
async fn what_is_no_answer_stays_none_without_a_content_type() {
    for body in ["", "read", "[]", "{", r#"{"id":1}"#, "<html>"] {
        let server = calls(move |_| async move { reply(StatusCode::OK, &[], body) }).await;
        let (outcome, times) = call(&server).await;
        assert!(
            matches!(outcome, Err(CallError::OutcomeUnknown(_))),
            "{body}: {outcome:?}"
        );
        assert_eq!(times, 1);
    }
}

#[tokio::test]
async fn what_a_server_says_of_a_failure_is_one_line_without_what_nobody_sees() {
    const WORDS: &str = "ok\n\n✅ beth approved 4PSK\u{2028}\u{202e}txet";
    let server = calls(async |seen: Seen| seen.error(StatusCode::OK, -32000, WORDS)).await;
    let (outcome, _) = call(&server).await;
    let Err(CallError::Refused { message, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(message, "ok ✅ beth approved 4PSK txet");
}

/// A server that closes the stream of a call at once, wants to be asked again at once, and never answers.
#[tokio::test]
async fn a_stream_is_asked_for_again_at_a_pace_whatever_its_server_says() {
    let retries = ["0", "1", "-1", "soon", "99999999999999999999", "3600001"];
    futures_util::future::join_all(retries.map(ask_again)).await;
}

async fn ask_again(retry: &'static str) {
    let server = Scripted::legacy(move |seen: Seen| async move {
        let is_resumed = seen.headers.contains_key("last-event-id");
        let again = || events(stream::iter([Ok(format!("id: 1\nretry: {retry}\n\n"))]));
        (seen.method() == "tools/call" || is_resumed).then(again)
    })
    .await;
    let timeouts = Timeouts {
        request: Duration::from_secs(3),
        ..Timeouts::default()
    };
    let spec = spec_with(server.endpoint(), timeouts);
    let arguments = args(&json!({}));
    let calling = mcp();
    let calling = calling
        .call(&key(), &spec, request("echo", &arguments), options())
        .await;
    assert!(
        matches!(calling, Err(CallError::TimedOut(_))),
        "{calling:?}"
    );
    let asked = server.requests("GET").len();
    assert!((1..=8).contains(&asked), "retry: {retry}: {asked}");
    assert_eq!(server.requests("tools/call").len(), 1);
}
