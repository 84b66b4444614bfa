use std::{io, sync::Arc, time::Duration};

use domain::{
    ids::{TenantId, UserId},
    server::Timeouts,
};
use futures_util::{StreamExt, stream};
use http::StatusCode;
use mcp::{CallError, CallOptions, Caller, ConnectionState};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::support::{
    scripted::{Reply, Scripted, Seen, event, events, reply, text},
    servers::{args, key, mcp, options, request, shared_key, soon, spec, spec_with},
};

/// A modern server that answers calls as told and everything else well.
pub async fn calls<R: Future<Output = Reply> + Send + 'static>(
    script: impl Fn(Seen) -> R + Clone + Send + Sync + 'static,
) -> Scripted {
    Scripted::modern(move |seen| {
        let script = script.clone();
        async move {
            if seen.method() == "tools/call" {
                Some(script(seen).await)
            } else {
                None
            }
        }
    })
    .await
}

/// The outcome of one call, and how often the server was asked to make it.
pub async fn call(server: &Scripted) -> (Result<String, CallError>, usize) {
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let outcome = soon(mcp.call(
        &key,
        &spec,
        request("echo", &args(&json!({"n": 1}))),
        options(),
    ))
    .await;
    (
        outcome.map(|outcome| outcome.text),
        server.requests("tools/call").len(),
    )
}

fn short(request: Duration) -> Timeouts {
    Timeouts {
        connect: Duration::from_secs(5),
        request,
        ..Timeouts::default()
    }
}

#[tokio::test]
async fn a_warm_call_is_one_request() {
    let server = Scripted::modern(async |_| None).await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    mcp.call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap();
    let before = server.methods().len();
    mcp.call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap();
    assert_eq!(server.methods()[before..], ["tools/call"]);
}

#[tokio::test]
async fn arguments_arrive_as_they_were_spelt() {
    let server = Scripted::modern(async |_| None).await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let arguments =
        serde_json::from_str(r#"{ "amount": 12345678901234567890.10, "b": "\u00e9" }"#).unwrap();
    let arguments: Box<serde_json::value::RawValue> = arguments;
    mcp.call(&key, &spec, request("echo", &arguments), options())
        .await
        .unwrap();
    let sent = server.requests("tools/call").remove(0);
    assert!(sent.raw.contains(arguments.get()), "{}", sent.raw);
    assert_eq!(sent.headers["authorization"], "Bearer right");
    assert_eq!(sent.headers["mcp-name"], "echo");
}

#[tokio::test]
async fn arguments_that_are_no_object_are_not_sent() {
    let server = Scripted::modern(async |_| None).await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let error = mcp
        .call(&key, &spec, request("echo", &args(&json!([1]))), options())
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)));
    assert!(server.methods().is_empty());
}

#[tokio::test]
async fn a_call_whose_connection_breaks_is_not_made_again() {
    let server = calls(async |_| Reply::HangUp).await;
    let (outcome, times) = call(&server).await;
    assert!(
        matches!(outcome, Err(CallError::OutcomeUnknown(_))),
        "{outcome:?}"
    );
    assert_eq!(times, 1);
}

#[tokio::test]
async fn a_call_whose_answer_breaks_off_is_not_made_again() {
    let server = calls(async |_| {
        let half = stream::iter([
            Ok(": hello\n\n".to_owned()),
            Err(io::Error::other("broken")),
        ]);
        events(half)
    })
    .await;
    let (outcome, times) = call(&server).await;
    assert!(
        matches!(outcome, Err(CallError::OutcomeUnknown(_))),
        "{outcome:?}"
    );
    assert_eq!(times, 1);
}

#[tokio::test]
async fn an_answer_that_is_not_the_protocol_leaves_the_outcome_unknown() {
    for (content_type, body) in [
        ("application/json", "{}"),
        ("application/json", "<html>"),
        ("text/html", "hi"),
        ("application/json", ""),
    ] {
        let server = calls(move |_| async move {
            reply(StatusCode::OK, &[("content-type", content_type)], body)
        })
        .await;
        let (outcome, times) = call(&server).await;
        assert!(
            matches!(outcome, Err(CallError::OutcomeUnknown(_))),
            "{body}: {outcome:?}"
        );
        assert_eq!(times, 1);
    }
}

#[tokio::test]
async fn a_call_that_is_taken_and_not_answered_leaves_the_outcome_unknown() {
    let server = calls(async |_| reply(StatusCode::ACCEPTED, &[], "")).await;
    let (outcome, times) = call(&server).await;
    assert!(
        matches!(outcome, Err(CallError::OutcomeUnknown(_))),
        "{outcome:?}"
    );
    assert_eq!(times, 1);
}

#[tokio::test]
async fn a_huge_answer_is_not_read_to_its_end() {
    let server = calls(async |seen: Seen| seen.result(text(&"x".repeat(9 * 1024 * 1024)))).await;
    let (outcome, times) = call(&server).await;
    let Err(CallError::OutcomeUnknown(reason)) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(reason.contains("exceeds"), "{reason}");
    assert_eq!(times, 1);
}

#[tokio::test]
async fn a_huge_event_is_not_read_to_its_end() {
    let server = calls(async |_| {
        let first = stream::iter([Ok("id: 1\ndata: \"".to_owned())]);
        events(first.chain(stream::repeat_with(|| Ok("x".repeat(64 * 1024)))))
    })
    .await;
    let (outcome, times) = call(&server).await;
    let Err(CallError::OutcomeUnknown(reason)) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(reason.contains("exceeds"), "{reason}");
    assert_eq!(times, 1);
}

#[tokio::test]
async fn endless_events_end_with_the_cap_of_the_stream() {
    let server = calls(async |_| {
        let note = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x".repeat(60_000)}});
        let note = event(&note);
        events(stream::repeat_with(move || Ok(note.clone())))
    })
    .await;
    let (outcome, times) = call(&server).await;
    assert!(
        matches!(outcome, Err(CallError::OutcomeUnknown(_))),
        "{outcome:?}"
    );
    assert_eq!(times, 1);
}

#[tokio::test]
async fn a_call_that_is_cancelled_before_it_is_sent_is_said_not_to_be_sent() {
    let server = Scripted::start(async |_| std::future::pending().await).await;
    let (cancel, (mcp, key, spec)) = (
        CancellationToken::new(),
        (mcp(), key(), spec(server.endpoint())),
    );
    let options = CallOptions {
        cancel: cancel.clone(),
        ..CallOptions::default()
    };
    let arguments = args(&json!({}));
    let calling = mcp.call(&key, &spec, request("echo", &arguments), options);
    let cancelling = async {
        server.until("server/discover", 1).await;
        cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(soon(calling), cancelling);
    assert_eq!(outcome.unwrap_err(), CallError::Cancelled { sent: false });
}

#[tokio::test]
async fn a_slow_call_costs_its_own_time_and_the_server_hears_of_it() {
    let server = Scripted::legacy(async |seen: Seen| {
        if seen.method() == "tools/call" {
            std::future::pending::<()>().await;
        }
        None
    })
    .await;
    let (mcp, key) = (mcp(), key());
    let spec = spec_with(server.endpoint(), short(Duration::from_millis(300)));
    let outcome = soon(mcp.call(&key, &spec, request("echo", &args(&json!({}))), options())).await;
    assert_eq!(
        outcome.unwrap_err(),
        CallError::TimedOut(Duration::from_millis(300))
    );
    server.until("notifications/cancelled", 1).await;
    assert_eq!(server.requests("tools/call").len(), 1);
}

#[tokio::test]
async fn after_a_call_ran_out_of_time_the_server_is_asked_for_a_sign_of_life() {
    let server = Scripted::legacy(async |seen: Seen| {
        let silent = matches!(seen.method(), "tools/call" | "ping");
        if silent {
            std::future::pending::<()>().await;
        }
        None
    })
    .await;
    let (mcp, key) = (mcp(), key());
    let timeouts = Timeouts {
        connect: Duration::from_millis(300),
        request: Duration::from_millis(600),
        ..Timeouts::default()
    };
    let spec = spec_with(server.endpoint(), timeouts);
    let first = mcp
        .call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await;
    assert_eq!(first.unwrap_err(), CallError::TimedOut(timeouts.request));
    let second = mcp
        .call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await;
    assert!(matches!(second.unwrap_err(), CallError::NotSent(_)));
    assert!(matches!(mcp.state(&key), ConnectionState::Down { .. }));
    assert_eq!(server.requests("tools/call").len(), 1);
}

#[tokio::test]
async fn a_server_that_was_only_slow_once_goes_on_in_its_session() {
    let server = Scripted::legacy(async |seen: Seen| match seen.method() {
        "tools/call" if seen.body["params"]["arguments"]["slow"] == true => {
            std::future::pending().await
        }
        "ping" => Some(seen.result(json!({}))),
        _ => None,
    })
    .await;
    let (mcp, key) = (mcp(), key());
    let spec = spec_with(server.endpoint(), short(Duration::from_millis(300)));
    mcp.call(
        &key,
        &spec,
        request("echo", &args(&json!({"slow": true}))),
        options(),
    )
    .await
    .unwrap_err();
    mcp.call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap();
    assert_eq!(
        (
            server.requests("ping").len(),
            server.requests("initialize").len()
        ),
        (1, 1)
    );
}

/// Tells when it is dropped: a request whose connection the client closed.
struct Gone(mpsc::UnboundedSender<()>);

impl Drop for Gone {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[tokio::test]
async fn a_cancelled_call_closes_its_request() {
    let (gone, mut closed) = mpsc::unbounded_channel();
    let server = calls(move |_| {
        let gone = Gone(gone.clone());
        async move {
            let _gone = gone;
            std::future::pending().await
        }
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let cancel = CancellationToken::new();
    let options = CallOptions {
        cancel: cancel.clone(),
        ..CallOptions::default()
    };
    let arguments = args(&json!({}));
    let calling = mcp.call(&key, &spec, request("echo", &arguments), options);
    let cancelling = async {
        server.until("tools/call", 1).await;
        cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(soon(calling), cancelling);
    assert_eq!(outcome.unwrap_err(), CallError::Cancelled { sent: true });
    assert_eq!(soon(closed.recv()).await, Some(()));
    assert_eq!(server.requests("tools/call").len(), 1);
}

#[tokio::test]
async fn no_more_calls_than_allowed_are_under_way() {
    let server = calls(async |_| std::future::pending().await).await;
    let mcp = crate::support::servers::mcp_with(mcp::Options {
        calls_per_server: 2,
        ..mcp::Options::default()
    });
    let (key, arguments) = (key(), args(&json!({})));
    let [patient, hasty] = [2000, 100]
        .map(|millis| spec_with(server.endpoint(), short(Duration::from_millis(millis))));
    let third = async {
        server.until("tools/call", 2).await;
        mcp.call(&key, &hasty, request("echo", &arguments), options())
            .await
    };
    let one = || mcp.call(&key, &patient, request("echo", &arguments), options());
    let (a, b, c) = tokio::join!(one(), one(), third);
    for held in [a, b] {
        assert!(matches!(held, Err(CallError::TimedOut(_))), "{held:?}");
    }
    assert!(matches!(c, Err(CallError::NotSent(_))), "{c:?}");
    assert_eq!(server.requests("tools/call").len(), 2);
}

fn caller(tenant: TenantId, user: &str) -> Caller {
    Caller {
        tenant,
        user: UserId(user.into()),
    }
}

#[tokio::test]
async fn one_tenant_cannot_take_all_places_of_a_server_that_serves_all() {
    let release = Arc::new(tokio::sync::Semaphore::new(0));
    let released = release.clone();
    let server = calls(move |seen: Seen| {
        let released = released.clone();
        async move {
            released.acquire().await.unwrap().forget();
            seen.result(text("served"))
        }
    })
    .await;
    let mcp = crate::support::servers::mcp_with(mcp::Options {
        calls_per_server: 4,
        ..mcp::Options::default()
    });
    let spec = spec(server.endpoint());
    let key = shared_key(&spec);
    let call = |tenant: TenantId, user: usize| {
        let (mcp, key, spec) = (mcp.clone(), key.clone(), spec.clone());
        tokio::spawn(async move {
            let options = CallOptions {
                caller: Some(caller(tenant, &user.to_string())),
                ..CallOptions::default()
            };
            let arguments = args(&json!({ "tenant": tenant.to_string() }));
            mcp.call(&key, &spec, request("echo", &arguments), options)
                .await
        })
    };
    // Four tenants with six users each want everything: each gets its own four places.
    let tenants: Vec<TenantId> = (0..4).map(|_| TenantId::new()).collect();
    for tenant in &tenants {
        for user in 0..6 {
            call(*tenant, user);
        }
    }
    server.until("tools/call", 16).await;
    let of = |tenant: TenantId| {
        let sent = server.requests("tools/call");
        let is_its =
            |seen: &&Seen| seen.body["params"]["arguments"]["tenant"] == tenant.to_string();
        sent.iter().filter(is_its).count()
    };
    assert!(tenants.iter().all(|tenant| of(*tenant) == 4));
    // The next place goes to the tenant that has none, though others have waited longer.
    let late = TenantId::new();
    let served = call(late, 0);
    tokio::task::yield_now().await;
    release.add_permits(1);
    server.until("tools/call", 17).await;
    assert_eq!(of(late), 1);
    release.add_permits(100);
    assert_eq!(soon(served).await.unwrap().unwrap().text, "served");
}

#[tokio::test]
async fn calls_that_fail_for_one_tenant_take_nothing_from_another() {
    let server = calls(
        async |seen: Seen| match seen.body["params"]["arguments"]["how"].as_str() {
            Some("broken") => reply(StatusCode::INTERNAL_SERVER_ERROR, &[], ""),
            Some("cut") => Reply::HangUp,
            _ => seen.result(text("served")),
        },
    )
    .await;
    let (mcp, spec) = (mcp(), spec(server.endpoint()));
    let key = shared_key(&spec);
    let (one, other) = (TenantId::new(), TenantId::new());
    let call = async |tenant: TenantId, how: &str| {
        let options = CallOptions {
            caller: Some(caller(tenant, "ann")),
            ..options()
        };
        let arguments = args(&json!({ "how": how }));
        soon(mcp.call(&key, &spec, request("echo", &arguments), options)).await
    };
    for how in ["broken", "cut"] {
        for _ in 0..10 {
            call(one, how).await.unwrap_err();
            assert_eq!(call(other, "well").await.unwrap().text, "served");
        }
    }
    let state = mcp.state(&key);
    assert!(matches!(state, ConnectionState::Ready { .. }), "{state:?}");
    assert_eq!(server.requests("server/discover").len(), 1);
}

#[tokio::test]
async fn one_user_cannot_take_all_places_of_a_server() {
    let server = calls(async |seen: Seen| {
        if seen.body["params"]["arguments"]["wait"] == true {
            std::future::pending::<()>().await;
        }
        seen.result(text("served"))
    })
    .await;
    let mcp = crate::support::servers::mcp_with(mcp::Options {
        calls_per_server: 8,
        ..mcp::Options::default()
    });
    let (key, spec, tenant) = (key(), spec(server.endpoint()), TenantId::new());
    let of = |user: &str| CallOptions {
        caller: Some(caller(tenant, user)),
        ..CallOptions::default()
    };
    let (waiting, quick) = (args(&json!({"wait": true})), args(&json!({})));
    let greedy = futures_util::future::join_all(
        (0..20).map(|_| mcp.call(&key, &spec, request("echo", &waiting), of("alice"))),
    );
    let other = async {
        server.until("tools/call", 2).await;
        mcp.call(&key, &spec, request("echo", &quick), of("bob"))
            .await
    };
    tokio::select! {
        _ = greedy => panic!("these calls wait for ever"),
        served = soon(other) => assert_eq!(served.unwrap().text, "served"),
    }
    assert_eq!(server.requests("tools/call").len(), 3);
}

/// A call that waited for a place, and one whose server is slow, each have the whole time that the pack gives.
#[tokio::test]
async fn waiting_for_a_place_costs_a_call_none_of_its_own_time() {
    let server = calls(async |seen: Seen| {
        tokio::time::sleep(Duration::from_millis(600)).await;
        seen.result(text("served"))
    })
    .await;
    let mcp = crate::support::servers::mcp_with(mcp::Options {
        calls_per_server: 1,
        ..mcp::Options::default()
    });
    let (key, arguments) = (key(), args(&json!({})));
    let spec = spec_with(server.endpoint(), short(Duration::from_secs(1)));
    mcp.connect(&key, &spec).await.unwrap();
    let one = || mcp.call(&key, &spec, request("echo", &arguments), options());
    let (first, second) = Box::pin(soon(async { tokio::join!(one(), one()) })).await;
    assert_eq!(
        [first.unwrap().text, second.unwrap().text],
        ["served", "served"]
    );
}
