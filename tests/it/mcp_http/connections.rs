use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use domain::{
    clock,
    secret::Secret,
    server::{AccessMode, Endpoint, Remote, ServerSpec, Timeouts},
};
use futures_util::future::join_all;
use http::StatusCode;
use mcp::{CallError, ConnectionState, Key, McpErrorKind, Options};
use serde_json::json;
use tokio::sync::Notify;

use crate::support::{
    scripted::{Scripted, Seen, reply},
    servers::{
        args, key, mcp, mcp_with, options, replaced, request, shared_key, soon, spec, spec_with,
        until,
    },
};

/// A server that takes requests and never answers.
async fn silent() -> Scripted {
    Scripted::start(async |_| std::future::pending().await).await
}

fn patience(connect: u64) -> Timeouts {
    Timeouts {
        connect: Duration::from_millis(connect),
        request: Duration::from_secs(10),
        ..Timeouts::default()
    }
}

fn elapsed(since: Instant) -> Duration {
    clock::instant().duration_since(since)
}

#[tokio::test]
async fn however_many_ask_a_server_is_connected_once() {
    let server = Scripted::legacy(async |_| None).await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let arguments = args(&json!({}));
    let calls =
        join_all((0..20).map(|_| mcp.call(&key, &spec, request("echo", &arguments), options())))
            .await;
    assert!(calls.iter().all(Result::is_ok), "{calls:?}");
    assert_eq!(
        (
            server.requests("initialize").len(),
            server.requests("tools/call").len()
        ),
        (1, 20)
    );
}

#[tokio::test]
async fn a_silent_server_costs_its_connect_timeout_once() {
    let server = silent().await;
    let mcp = mcp_with(Options {
        first_pause: Duration::from_secs(30),
        ..Options::default()
    });
    let (key, spec) = (key(), spec_with(server.endpoint(), patience(300)));
    let error = soon(mcp.discover(&key, &spec)).await.unwrap_err();
    assert_eq!(error.kind, McpErrorKind::TimedOut, "{error}");
    let started = clock::instant();
    let error = mcp.discover(&key, &spec).await.unwrap_err();
    assert!(elapsed(started) < Duration::from_millis(100));
    assert!(
        error
            .retry_in
            .is_some_and(|wait| wait > Duration::from_secs(10)),
        "{error:?}"
    );
    let call = mcp
        .call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap_err();
    assert!(matches!(call, CallError::NotSent(_)), "{call:?}");
    assert!(matches!(mcp.state(&key), ConnectionState::Down { .. }));
    assert_eq!(server.methods().len(), 1);
}

#[tokio::test]
async fn a_server_that_comes_back_is_used_again_after_its_pause() {
    let up = Arc::new(AtomicBool::new(false));
    let is_up = up.clone();
    let server = Scripted::modern(move |_| {
        let up = is_up.load(Ordering::SeqCst);
        async move { (!up).then(|| reply(StatusCode::BAD_GATEWAY, &[], "")) }
    })
    .await;
    let mcp = mcp_with(Options {
        first_pause: Duration::from_millis(20),
        ..Options::default()
    });
    let (key, spec) = (key(), spec(server.endpoint()));
    mcp.discover(&key, &spec).await.unwrap_err();
    up.store(true, Ordering::SeqCst);
    let back = async {
        while mcp.discover(&key, &spec).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(back).await;
    assert!(matches!(mcp.state(&key), ConnectionState::Ready { .. }));
}

#[tokio::test]
async fn whoever_goes_away_does_not_end_connecting_for_the_others() {
    let gate = Arc::new(Notify::new());
    let closed = gate.clone();
    let server = Scripted::modern(move |seen: Seen| {
        let gate = closed.clone();
        async move {
            if seen.method() == "server/discover" {
                gate.notified().await;
            }
            None
        }
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    tokio::select! {
        found = mcp.discover(&key, &spec) => panic!("nobody answered, and yet: {found:?}"),
        () = server.until("server/discover", 1) => {}
    }
    assert_eq!(mcp.state(&key), ConnectionState::Connecting);
    gate.notify_one();
    mcp.discover(&key, &spec).await.unwrap();
    assert_eq!(server.requests("server/discover").len(), 1);
}

#[tokio::test]
async fn a_definite_no_at_the_handshake_is_told_as_one() {
    for (status, kind) in [
        (StatusCode::UNAUTHORIZED, McpErrorKind::Unauthorized),
        (StatusCode::FORBIDDEN, McpErrorKind::Forbidden),
    ] {
        let server = Scripted::start(move |_| async move { reply(status, &[], "") }).await;
        let error = mcp()
            .discover(&key(), &spec(server.endpoint()))
            .await
            .unwrap_err();
        assert_eq!(error.kind, kind);
    }
}

#[tokio::test]
async fn a_page_that_is_no_server_is_told_as_such() {
    let server = Scripted::start(async |_| {
        reply(StatusCode::OK, &[("content-type", "text/html")], "<html>")
    })
    .await;
    let error = mcp()
        .discover(&key(), &spec(server.endpoint()))
        .await
        .unwrap_err();
    assert_eq!(error.kind, McpErrorKind::WebPage);
    assert!(error.message.contains("text/html"), "{error}");
}

#[tokio::test]
async fn a_server_of_an_unknown_revision_is_refused() {
    for version in ["1999-01-01", "2099-01-01"] {
        let server = Scripted::legacy(move |seen: Seen| async move {
            (seen.method() == "initialize").then(|| {
                seen.result(json!({
                    "protocolVersion": version, "capabilities": {"tools": {}},
                    "serverInfo": {"name": "scripted", "version": "1"},
                }))
            })
        })
        .await;
        let error = mcp()
            .discover(&key(), &spec(server.endpoint()))
            .await
            .unwrap_err();
        assert_eq!(error.kind, McpErrorKind::Protocol);
        assert!(error.message.contains(version), "{error}");
        assert_eq!(server.requests("tools/list").len(), 0);
    }
}

#[tokio::test]
async fn a_place_that_the_guard_refuses_is_a_mistake_of_the_pack() {
    let url = "http://10.1.2.3/mcp".parse().unwrap();
    let error = mcp()
        .discover(
            &key(),
            &spec(Endpoint::Remote {
                transport: Remote::StreamableHttp,
                url,
                headers: vec![],
            }),
        )
        .await
        .unwrap_err();
    assert_eq!(error.kind, McpErrorKind::Misconfigured, "{error}");
}

#[tokio::test]
async fn a_header_that_cannot_be_sent_is_named_without_its_value() {
    let server = Scripted::modern(async |_| None).await;
    for (name, value) in [
        ("X-Key", "line\nbreak"),
        ("Mcp-Session-Id", "break"),
        ("no spaces", "break"),
    ] {
        let headers = vec![(name.to_owned(), Secret::new(value))];
        let spec = spec(Endpoint::Remote {
            transport: Remote::StreamableHttp,
            url: server.url.clone(),
            headers,
        });
        let error = mcp().discover(&key(), &spec).await.unwrap_err();
        assert_eq!(error.kind, McpErrorKind::Misconfigured);
        assert!(
            error.message.contains(name) && !error.message.contains("break"),
            "{error}"
        );
    }
    assert!(server.methods().is_empty());
}

#[tokio::test]
async fn the_era_of_a_server_is_asked_once() {
    let server = Scripted::legacy(async |_| None).await;
    let (mcp, spec) = (mcp(), spec(server.endpoint()));
    let first = key();
    mcp.discover(&first, &spec).await.unwrap();
    mcp.discover(&replaced(&first), &spec).await.unwrap();
    assert_eq!(
        (
            server.requests("server/discover").len(),
            server.requests("initialize").len()
        ),
        (1, 2)
    );
}

#[tokio::test]
async fn a_server_that_answers_anything_to_what_it_does_not_know_is_asked_the_older_way() {
    let server = Scripted::legacy(async |seen: Seen| {
        (seen.method() == "server/discover").then(|| seen.result(json!({})))
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    assert_eq!(
        mcp.discover(&key, &spec).await.unwrap().protocol,
        "2025-11-25"
    );
}

#[tokio::test]
async fn a_server_that_learnt_the_newer_era_is_asked_again() {
    let upgraded = Arc::new(AtomicBool::new(false));
    let is_upgraded = upgraded.clone();
    let old = Scripted::modern(move |seen: Seen| {
        let upgraded = is_upgraded.load(Ordering::SeqCst);
        async move {
            match (seen.method(), upgraded) {
                ("server/discover", false) => Some(seen.error(StatusCode::BAD_REQUEST, -32601, "Method not found")),
                ("initialize", false) => Some(seen.result(json!({
                    "protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"},
                }))),
                ("notifications/initialized", false) => Some(reply(StatusCode::ACCEPTED, &[], "")),
                ("initialize", true) => Some(seen.error(StatusCode::NOT_FOUND, -32601, "Method not found")),
                _ => None,
            }
        }
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(old.endpoint()));
    assert_eq!(
        mcp.discover(&key, &spec).await.unwrap().protocol,
        "2025-06-18"
    );
    mcp.close(&key).await;
    upgraded.store(true, Ordering::SeqCst);
    assert_eq!(
        mcp.discover(&key, &spec).await.unwrap().protocol,
        "2026-07-28"
    );
}

#[tokio::test]
async fn a_changed_server_gets_a_new_connection_and_the_old_one_serves_who_holds_it() {
    let server = Scripted::legacy(async |_| None).await;
    let (mcp, key) = (mcp(), key());
    let old = spec(server.endpoint());
    let headers = vec![("X-New".to_owned(), Secret::new("1"))];
    let new = spec(Endpoint::Remote {
        transport: Remote::StreamableHttp,
        url: server.url.clone(),
        headers,
    });
    for spec in [&old, &new, &old, &new] {
        mcp.call(&key, spec, request("echo", &args(&json!({}))), options())
            .await
            .unwrap();
    }
    assert_eq!(server.requests("initialize").len(), 2);
    let new_ones = server
        .requests("tools/call")
        .iter()
        .filter(|seen| seen.headers.contains_key("x-new"))
        .count();
    assert_eq!(new_ones, 2);
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_opened_again_when_needed() {
    let server = Scripted::legacy(async |_| None).await;
    let mcp = mcp_with(Options {
        idle_ttl: Duration::from_millis(50),
        ..Options::default()
    });
    let (key, spec) = (key(), spec(server.endpoint()));
    mcp.discover(&key, &spec).await.unwrap();
    server.until("DELETE", 1).await;
    assert_eq!(mcp.state(&key), ConnectionState::Idle);
    mcp.call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap();
}

#[tokio::test]
async fn an_idle_connection_with_values_of_runs_is_closed_as_soon_as_a_personal_one() {
    let server = Scripted::legacy(async |_| None).await;
    let mcp = mcp_with(Options {
        idle_ttl: Duration::from_millis(50),
        ..Options::default()
    });
    let of = |per_tenant| {
        Arc::new(ServerSpec {
            access_mode: AccessMode::AdminControlled,
            per_tenant,
            ..(*spec(server.endpoint())).clone()
        })
    };
    let (for_all, for_runs) = (of(false), of(true));
    let (all, runs) = (shared_key(&for_all), shared_key(&for_runs));
    mcp.connect(&all, &for_all).await.unwrap();
    mcp.connect(&runs, &for_runs).await.unwrap();
    server.until("DELETE", 1).await;
    assert_eq!(mcp.state(&runs), ConnectionState::Idle);
    assert!(matches!(mcp.state(&all), ConnectionState::Ready { .. }));
}

#[tokio::test]
async fn above_the_cap_the_least_recently_used_connection_goes() {
    let server = Scripted::legacy(async |_| None).await;
    let mcp = mcp_with(Options {
        max_connections: 2,
        ..Options::default()
    });
    let spec = spec(server.endpoint());
    let keys = [key(), key(), key()];
    for key in &keys {
        mcp.discover(key, &spec).await.unwrap();
    }
    until(|| mcp.state(&keys[0]) == ConnectionState::Idle).await;
    assert!(matches!(mcp.state(&keys[1]), ConnectionState::Ready { .. }));
    assert!(matches!(mcp.state(&keys[2]), ConnectionState::Ready { .. }));
}

#[tokio::test]
async fn after_shutdown_sessions_are_ended_and_none_is_opened() {
    let server = Scripted::legacy(async |_| None).await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    mcp.discover(&key, &spec).await.unwrap();
    soon(mcp.shutdown()).await;
    assert_eq!(server.requests("DELETE").len(), 1);
    assert_eq!(
        mcp.discover(&key, &spec).await.unwrap_err().kind,
        McpErrorKind::Closed
    );
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_server_that_is_silent() {
    let server = silent().await;
    let (mcp, key) = (mcp(), key());
    let spec = spec_with(server.endpoint(), patience(60_000));
    let connecting = mcp.discover(&key, &spec);
    let stopping = async {
        server.until("server/discover", 1).await;
        let started = clock::instant();
        mcp.shutdown().await;
        elapsed(started)
    };
    let (outcome, took) = tokio::join!(soon(connecting), stopping);
    assert_eq!(outcome.unwrap_err().kind, McpErrorKind::Closed);
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn a_server_that_is_silent_to_the_newer_handshake_is_asked_the_older_way_next() {
    let server = Scripted::legacy(async |seen: Seen| {
        if seen.method() == "server/discover" {
            std::future::pending::<()>().await;
        }
        None
    })
    .await;
    let mcp = mcp_with(Options {
        first_pause: Duration::from_millis(1),
        ..Options::default()
    });
    let (key, spec) = (key(), spec_with(server.endpoint(), patience(300)));
    mcp.discover(&key, &spec).await.unwrap_err();
    let found = async {
        loop {
            if let Ok(found) = mcp.discover(&key, &spec).await {
                return found;
            }
        }
    };
    assert_eq!(soon(found).await.protocol, "2025-11-25");
    assert_eq!(server.requests("server/discover").len(), 1);
}

#[tokio::test]
async fn only_what_was_made_with_a_credential_is_a_personal_connection() {
    let server = Scripted::legacy(async |_| None).await;
    let (mcp, personal, spec) = (mcp(), key(), spec(server.endpoint()));
    let of_tenant = Arc::new(ServerSpec {
        per_tenant: true,
        ..ServerSpec::clone(&spec)
    });
    for (key, spec) in [
        (shared_key(&spec), &spec),
        (shared_key(&of_tenant), &of_tenant),
        (personal.clone(), &spec),
    ] {
        mcp.connect(&key, spec).await.unwrap();
    }
    let Key::Personal(credential) = personal else {
        panic!("a personal connection");
    };
    assert_eq!(mcp.personal_connections(), [credential]);
    assert_eq!(server.requests("initialize").len(), 3);
}
