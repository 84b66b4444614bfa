//! Servers that send without end. What they send is bounded here, whatever the transport, and the connection ends with
//! a reason that a person can read.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use domain::server::ServerSpec;
use futures_util::StreamExt;
use mcp::{CallOptions, Key, Mcp, McpErrorKind};
use serde_json::json;

use super::sockets::{Say, Sockets, sampling};
use crate::support::{
    scripted::{Scripted, Seen, event, events, text},
    servers::{args, key, mcp, options, probe_stdio, request, soon, spec},
};

/// More than any buffer on the way holds, and far less than a server sends in a second.
const FEW: usize = 50_000;

/// Waits until the next use of the server is refused for what it sent.
async fn until_refused(mcp: &Mcp, key: &Key, spec: &Arc<ServerSpec>) -> String {
    let arguments = args(&json!({}));
    soon(async {
        loop {
            if let Err(error) = mcp
                .call(key, spec, request("echo", &arguments), options())
                .await
                && error.to_string().contains("the server made")
            {
                return error.to_string();
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

#[tokio::test]
async fn a_server_that_asks_on_its_stream_and_takes_no_answer_loses_its_connection() {
    let pulled = Arc::<AtomicUsize>::default();
    let count = pulled.clone();
    let server = Scripted::legacy(move |seen: Seen| {
        let count = count.clone();
        async move {
            match seen.method() {
                "GET" => Some(events(futures_util::stream::iter(0..).map(move |number| {
                    count.fetch_add(1, Ordering::SeqCst);
                    Ok(event(&sampling(number)))
                }))),
                // An answer of ours: never taken.
                "POST" => std::future::pending().await,
                _ => None,
            }
        }
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    mcp.discover(&key, &spec).await.unwrap();
    let reason = until_refused(&mcp, &key, &spec).await;
    assert!(
        reason.contains("did not take the answers to 64 of them"),
        "{reason}"
    );
    assert!(server.requests("POST").len() <= 64);
    assert!(pulled.load(Ordering::SeqCst) < FEW, "{pulled:?}");
}

#[tokio::test]
async fn a_socket_that_asks_and_reads_nothing_loses_its_connection() {
    let server = Sockets::start(|message, _| {
        (message["method"] == "tools/list").then(|| {
            let tools = json!([{"name": "echo", "inputSchema": {"type": "object"}}]);
            Say::ResultThen(json!({ "tools": tools }), sampling)
        })
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    mcp.discover(&key, &spec).await.unwrap();
    until_refused(&mcp, &key, &spec).await;
    assert!(server.asked() < FEW, "{}", server.asked());
}

#[tokio::test]
async fn a_child_that_asks_and_reads_nothing_loses_its_connection() {
    let ledger = tempfile::tempdir().unwrap();
    let path = ledger.path().join("ledger");
    let endpoint = probe_stdio(&["greedy"], &[("PROBE_LEDGER", path.to_str().unwrap())]);
    let (mcp, key, spec) = (mcp(), key(), spec(endpoint));
    mcp.discover(&key, &spec).await.unwrap();
    until_refused(&mcp, &key, &spec).await;
    let thousands = std::fs::read_to_string(path).unwrap();
    assert!(thousands.matches("thousand").count() < FEW / 1000);
}

#[tokio::test]
async fn a_server_that_takes_the_answers_is_answered() {
    let server = Scripted::legacy(move |seen: Seen| async move {
        match seen.method() {
            "GET" => {
                let pings = (0..60).map(|number| {
                    Ok(event(
                        &json!({"jsonrpc": "2.0", "id": number, "method": "ping"}),
                    ))
                });
                let open = futures_util::stream::pending();
                Some(events(futures_util::stream::iter(pings).chain(open)))
            }
            "POST" => Some(crate::support::scripted::reply(
                http::StatusCode::ACCEPTED,
                &[],
                "",
            )),
            _ => None,
        }
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    mcp.discover(&key, &spec).await.unwrap();
    server.until("POST", 60).await;
    let arguments = args(&json!({"text": "hi"}));
    let outcome = mcp
        .call(&key, &spec, request("echo", &arguments), options())
        .await
        .unwrap();
    assert_eq!(outcome.text, r#"{"text":"hi"}"#);
}

/// Whoever does not read the progress of a call keeps the newest reports only, each cut.
#[tokio::test]
async fn progress_that_nobody_reads_is_not_kept() {
    let server = Scripted::legacy(|seen: Seen| async move {
        (seen.method() == "tools/call").then(|| {
            let token = seen.body["params"]["_meta"]["progressToken"].clone();
            let reports = (0..100).map(move |step| {
                let params = json!({"progressToken": token, "progress": step, "message": "x".repeat(100_000)});
                event(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
            });
            let result = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": text("done")});
            let all: Vec<_> = reports.chain([event(&result)]).map(Ok).collect();
            events(futures_util::stream::iter(all))
        })
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let (progress, mut reports) = mcp::progress_channel();
    let arguments = args(&json!({}));
    let options = CallOptions {
        progress: Some(progress),
        ..CallOptions::default()
    };
    let outcome = mcp
        .call(&key, &spec, request("echo", &arguments), options)
        .await
        .unwrap();
    assert_eq!(outcome.text, "done");
    let mut kept = Vec::new();
    while let Some(report) = reports.next().await {
        assert!(report.message.unwrap().len() <= 1024);
        kept.push(report.progress);
    }
    assert_eq!(kept, (84..100).map(f64::from).collect::<Vec<_>>());
}

/// The reason why a server is not connected is the server's own doing, and says so.
#[tokio::test]
async fn a_connection_that_ended_for_what_it_sent_is_not_opened_at_full_pace() {
    let server = Scripted::legacy(|seen: Seen| async move {
        match seen.method() {
            "GET" => Some(events(
                futures_util::stream::iter(0..).map(|number| Ok(event(&sampling(number)))),
            )),
            "POST" => std::future::pending().await,
            _ => None,
        }
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    mcp.discover(&key, &spec).await.unwrap();
    until_refused(&mcp, &key, &spec).await;
    let error = mcp.discover(&key, &spec).await.unwrap_err();
    assert_eq!(error.kind, McpErrorKind::Protocol, "{error}");
    assert!(error.retry_in.is_some());
    assert_eq!(server.requests("initialize").len(), 1);
}
