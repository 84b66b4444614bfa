use mcp::{CallError, CallOptions, ConnectionState, Lifecycle, McpErrorKind, Progress};
use serde_json::json;

use crate::support::servers::{
    args, desk, everything, key, mcp, options, request, spec, steps_of_a_long_call,
};

#[tokio::test]
async fn a_published_server_of_the_older_era_lists_its_tools_and_answers() {
    let (server, mcp, key) = (everything(None).await, mcp(), key());
    let spec = spec(server.endpoint(&[]));
    let found = mcp.discover(&key, &spec).await.unwrap();
    assert_eq!(found.lifecycle, Lifecycle::Handshake);
    assert!(found.dropped.is_empty(), "{:?}", found.dropped);
    assert!(found.tools.iter().any(|tool| tool.name == "echo"));
    assert!(matches!(
        mcp.state(&key),
        ConnectionState::Ready {
            lifecycle: Lifecycle::Handshake,
            ..
        }
    ));
    let outcome = mcp
        .call(
            &key,
            &spec,
            request("echo", &args(&json!({"message": "hello"}))),
            options(),
        )
        .await
        .unwrap();
    assert_eq!(
        (outcome.text.as_str(), outcome.is_error),
        ("Echo: hello", false)
    );
}

#[tokio::test]
async fn progress_of_a_published_server_arrives_in_order() {
    let (server, mcp, key) = (everything(None).await, mcp(), key());
    let spec = spec(server.endpoint(&[]));
    assert_eq!(steps_of_a_long_call(&mcp, &key, &spec).await, [1.0, 2.0]);
}

#[tokio::test]
async fn images_and_structured_content_of_a_published_server_survive() {
    let (server, mcp, key) = (everything(None).await, mcp(), key());
    let spec = spec(server.endpoint(&[]));
    let image = mcp
        .call(
            &key,
            &spec,
            request("get-tiny-image", &args(&json!({}))),
            options(),
        )
        .await
        .unwrap();
    assert!(image.text.contains("[image image/png, "), "{}", image.text);
    assert!(image.raw.get().contains("\"type\":\"image\""));
    let arguments = args(&json!({"location": "New York"}));
    let weather = mcp
        .call(
            &key,
            &spec,
            request("get-structured-content", &arguments),
            options(),
        )
        .await
        .unwrap();
    assert!(
        weather.raw.get().contains("\"structuredContent\":{"),
        "{}",
        weather.raw
    );
}

#[tokio::test]
async fn after_a_restart_of_a_published_server_the_call_after_the_next_goes_on_by_itself() {
    let (server, mcp, key) = (everything(None).await, mcp(), key());
    let spec = spec(server.endpoint(&[]));
    mcp.discover(&key, &spec).await.unwrap();
    let port = server.port;
    drop(server);
    let _server = everything(Some(port)).await;
    let arguments = args(&json!({"message": "again"}));
    // A session that was idle for two seconds is asked first, and the restart may take less than that.
    let first = mcp
        .call(&key, &spec, request("echo", &arguments), options())
        .await;
    assert!(
        matches!(first, Ok(_) | Err(CallError::SessionLost { .. })),
        "{first:?}"
    );
    let outcome = mcp
        .call(&key, &spec, request("echo", &arguments), options())
        .await
        .unwrap();
    assert_eq!(outcome.text, "Echo: again");
}

#[tokio::test]
async fn a_published_server_of_the_newer_era_is_spoken_to_without_a_handshake() {
    let (server, mcp, key) = (desk().await, mcp(), key());
    let spec = spec(server.endpoint(&[("Authorization", "Bearer reader-token")]));
    let found = mcp.discover(&key, &spec).await.unwrap();
    assert_eq!(
        (found.lifecycle, found.protocol.as_str()),
        (Lifecycle::Stateless, "2026-07-28")
    );
    let sum = mcp
        .call(
            &key,
            &spec,
            request("add", &args(&json!({"a": 2, "b": 3}))),
            options(),
        )
        .await
        .unwrap();
    assert_eq!(sum.text, "5");
    let (progress, mut heard) = mcp::progress_channel();
    let options = CallOptions {
        progress: Some(progress),
        ..CallOptions::default()
    };
    mcp.call(
        &key,
        &spec,
        request("count", &args(&json!({"to": 3}))),
        options,
    )
    .await
    .unwrap();
    let first = heard.next().await.unwrap();
    assert_eq!(
        first,
        Progress {
            progress: 1.0,
            total: Some(3.0),
            message: Some("at 1".to_owned())
        }
    );
}

#[tokio::test]
async fn a_tool_that_fails_is_a_result_and_no_error_of_the_call() {
    let (server, mcp, key) = (desk().await, mcp(), key());
    let spec = spec(server.endpoint(&[("Authorization", "Bearer reader-token")]));
    let outcome = mcp
        .call(
            &key,
            &spec,
            request("fail", &args(&json!({"why": "no reason"}))),
            options(),
        )
        .await
        .unwrap();
    assert!(outcome.is_error);
    assert!(outcome.text.contains("no reason"), "{}", outcome.text);
}

#[tokio::test]
async fn what_a_server_offers_depends_on_the_credential_of_the_key() {
    let (server, mcp) = (desk().await, mcp());
    let (reader, writer) = (key(), key());
    let offered = async |key, token: &str| {
        let spec = spec(server.endpoint(&[("Authorization", &format!("Bearer {token}"))]));
        let found = mcp.discover(key, &spec).await.unwrap();
        found.tools.iter().any(|tool| tool.name == "close_ticket")
    };
    assert!(!offered(&reader, "reader-token").await);
    assert!(offered(&writer, "writer-token").await);
}

#[tokio::test]
async fn a_wrong_token_is_a_definite_no() {
    let (server, mcp, key) = (desk().await, mcp(), key());
    let spec = spec(server.endpoint(&[("Authorization", "Bearer wrong")]));
    let error = mcp.discover(&key, &spec).await.unwrap_err();
    assert_eq!(error.kind, McpErrorKind::Unauthorized, "{error}");
    let error = mcp
        .call(
            &key,
            &spec,
            request("add", &args(&json!({"a": 1, "b": 1}))),
            options(),
        )
        .await
        .unwrap_err();
    assert_eq!(error, CallError::Unauthorized);
}
