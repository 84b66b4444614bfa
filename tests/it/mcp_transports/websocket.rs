use std::time::Duration;

use domain::server::{Endpoint, Remote, Timeouts};
use http::StatusCode;
use mcp::{CallError, ConnectionState, Lifecycle, McpErrorKind};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::sockets::{Say, Sockets};
use crate::support::{
    origin::{Origin, ok, redirect},
    scripted::{Scripted, reply, text},
    servers::{
        args, gateway, key, mcp, options, request, soon, spec, spec_with, steps_of_a_long_call,
        until,
    },
};

#[tokio::test]
async fn a_published_gateway_answers_and_says_how_far_it_is() {
    let (server, mcp, key) = (gateway().await, mcp(), key());
    let spec = spec(server.over(Remote::WebSocket));
    let found = mcp.discover(&key, &spec).await.unwrap();
    assert_eq!(found.lifecycle, Lifecycle::Handshake);
    assert_eq!(steps_of_a_long_call(&mcp, &key, &spec).await, [1.0, 2.0]);
}

#[tokio::test]
async fn a_handshake_offers_the_language_and_carries_the_headers() {
    let server = Sockets::start(|_, _| None).await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    mcp.discover(&key, &spec).await.unwrap();
    let shakes = server.shakes();
    assert_eq!(shakes.len(), 1);
    assert_eq!(
        (
            &shakes[0]["sec-websocket-protocol"],
            &shakes[0]["authorization"]
        ),
        (
            &"mcp".parse().unwrap(),
            &"Bearer hunter2-hunter2".parse().unwrap()
        )
    );
}

#[tokio::test]
async fn a_server_of_the_newer_era_is_spoken_to_without_a_handshake() {
    let server = Sockets::start(|message, _| {
        (message["method"] == "server/discover").then(|| {
            Say::Result(json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                "ttlMs": 0, "cacheScope": "private",
            }))
        })
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    assert_eq!(
        mcp.discover(&key, &spec).await.unwrap().lifecycle,
        Lifecycle::Stateless
    );
    assert_eq!(server.count("initialize"), 0);
}

#[tokio::test]
async fn a_server_that_hangs_up_at_the_newer_handshake_is_asked_the_older_way() {
    let server = Sockets::start(|message, _| {
        (message["method"] == "server/discover").then_some(Say::HangUp)
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    assert_eq!(
        mcp.discover(&key, &spec).await.unwrap().lifecycle,
        Lifecycle::Handshake
    );
    mcp.close(&key).await;
    mcp.discover(&key, &spec).await.unwrap();
    assert_eq!(
        (server.count("server/discover"), server.count("initialize")),
        (1, 2)
    );
}

#[tokio::test]
async fn a_definite_no_to_the_handshake_is_told_as_one() {
    for (status, kind) in [
        (StatusCode::UNAUTHORIZED, McpErrorKind::SignInRequired),
        (StatusCode::FORBIDDEN, McpErrorKind::Forbidden),
        (StatusCode::OK, McpErrorKind::Protocol),
        (StatusCode::NOT_FOUND, McpErrorKind::Protocol),
    ] {
        let server = Scripted::start(move |_| async move { reply(status, &[], "") }).await;
        let endpoint = Endpoint::Remote {
            transport: Remote::WebSocket,
            url: server.url.clone(),
            headers: vec![],
        };
        let error = mcp().discover(&key(), &spec(endpoint)).await.unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
    }
}

#[tokio::test]
async fn a_handshake_is_not_led_to_another_origin() {
    let spy = Origin::start(|_| ok("reached")).await;
    let elsewhere = String::from(spy.url("/mcp"));
    let server = Origin::start(move |_| redirect(307, &elsewhere)).await;
    let endpoint = Endpoint::Remote {
        transport: Remote::WebSocket,
        url: server.url("/mcp"),
        headers: vec![],
    };
    let error = mcp().discover(&key(), &spec(endpoint)).await.unwrap_err();
    assert!(
        error
            .message
            .contains("it would open a WebSocket at another origin"),
        "{error}"
    );
    assert_eq!(spy.accepted(), 0);
}

#[tokio::test]
async fn a_call_whose_socket_breaks_is_not_made_again_and_the_next_one_opens_a_new_socket() {
    let server = Sockets::start(|message, _| {
        (message["params"]["arguments"]["fatal"] == true).then_some(Say::HangUp)
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let error = soon(mcp.call(
        &key,
        &spec,
        request("echo", &args(&json!({"fatal": true}))),
        options(),
    ))
    .await
    .unwrap_err();
    assert!(matches!(error, CallError::OutcomeUnknown(_)), "{error:?}");
    assert_eq!(server.count("tools/call"), 1);
    mcp.call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap();
    assert_eq!((server.count("tools/call"), server.shakes().len()), (2, 2));
}

#[tokio::test]
async fn a_message_that_is_too_large_ends_the_connection() {
    let server = Sockets::start(|message, _| {
        (message["method"] == "tools/call").then(|| Say::Result(text(&"x".repeat(9 * 1024 * 1024))))
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let error = soon(mcp.call(&key, &spec, request("echo", &args(&json!({}))), options()))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::OutcomeUnknown(_)), "{error:?}");
    assert_eq!(server.count("tools/call"), 1);
}

#[tokio::test]
async fn messages_that_are_none_are_left_out_and_bytes_are_read_as_text() {
    let server = Sockets::start(|message, _| {
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": text("in bytes")});
        match message["method"].as_str()? {
            "tools/call" => Some(Say::Raw(Message::binary(answer.to_string()))),
            "notifications/initialized" => Some(Say::Raw(Message::text("welcome!"))),
            _ => None,
        }
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let outcome = mcp
        .call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap();
    assert_eq!(outcome.text, "in bytes");
}

#[tokio::test]
async fn a_server_that_gives_no_sign_of_life_is_given_up() {
    let server =
        Sockets::start(|message, _| (message["method"] == "tools/list").then_some(Say::Freeze))
            .await;
    let timeouts = Timeouts {
        stream_idle: Some(Duration::from_millis(300)),
        ..Timeouts::default()
    };
    let (mcp, key, spec) = (mcp(), key(), spec_with(server.endpoint(), timeouts));
    let outcome = soon(mcp.call(&key, &spec, request("echo", &args(&json!({}))), options()))
        .await
        .unwrap();
    assert_eq!(outcome.text, "{}");
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert!(
        matches!(mcp.state(&key), ConnectionState::Ready { .. }),
        "it answers pings"
    );
    soon(mcp.discover(&key, &spec)).await.unwrap_err();
    until(|| !matches!(mcp.state(&key), ConnectionState::Ready { .. })).await;
}

#[tokio::test]
async fn a_credential_that_the_server_says_back_is_hidden() {
    let server = Sockets::start(|message, headers| {
        let said = headers["authorization"].to_str().unwrap();
        (message["method"] == "tools/call").then(|| Say::Result(text(said)))
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
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
