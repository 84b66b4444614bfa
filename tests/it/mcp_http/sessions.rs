use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use domain::{
    server::{Endpoint, ServerSpec, Timeouts},
    tool::ToolOutcome,
};
use egress::Egress;
use futures_util::StreamExt;
use http::StatusCode;
use mcp::{CallError, CallOptions, ConnectionState, Key, Mcp, Options};
use serde_json::{Value, json};

use crate::support::{
    scripted::{Reply, Scripted, Seen, events, json_reply, reply},
    servers::{args, key, mcp, mcp_with, options, request, soon, spec, spec_with},
};

/// How a server that does not know a session refuses what comes in it.
type Refuse = fn(&Seen) -> Reply;

/// What a server says to a ping; `None`: nothing, ever.
type AnswerPing = fn(&Seen) -> Option<Reply>;

const FORGOTTEN: &str = "Session not found or expired";

/// Every way in which published servers and gateways say that they do not know a session.
const WAYS: &[(&str, Refuse)] = &[
    ("404", |_| reply(StatusCode::NOT_FOUND, &[], "")),
    ("404 in words", |_| {
        reply(StatusCode::NOT_FOUND, &[], "Session not found")
    }),
    ("404 with the id", |seen| {
        seen.error(StatusCode::NOT_FOUND, -32000, FORGOTTEN)
    }),
    ("404 with no id", |_| {
        refused(StatusCode::NOT_FOUND, &Value::Null)
    }),
    ("404 with another id", |_| {
        refused(StatusCode::NOT_FOUND, &json!("server-error"))
    }),
    ("400 with the id", |seen| {
        seen.error(StatusCode::BAD_REQUEST, -32000, FORGOTTEN)
    }),
    ("400 with no id", |_| {
        refused(StatusCode::BAD_REQUEST, &Value::Null)
    }),
    ("400 in JSON", |seen| {
        json_reply(
            StatusCode::BAD_REQUEST,
            &json!({"detail": FORGOTTEN, "id": seen.body["id"]}),
        )
    }),
    ("401", |_| reply(StatusCode::UNAUTHORIZED, &[], "")),
    ("401 with the id", |seen| {
        seen.error(StatusCode::UNAUTHORIZED, -32000, FORGOTTEN)
    }),
    ("403", |_| reply(StatusCode::FORBIDDEN, &[], "")),
];

fn refused(status: StatusCode, id: &Value) -> Reply {
    let error = json!({"code": -32000, "message": FORGOTTEN});
    json_reply(status, &json!({"jsonrpc": "2.0", "error": error, "id": id}))
}

/// A server of the older era that can forget its sessions.
struct Forgetful {
    server: Scripted,
    /// How many calls were executed.
    executed: Arc<AtomicUsize>,
    /// The number of the only session that it knows.
    known: Arc<AtomicUsize>,
}

impl Forgetful {
    /// It answers pings, and refuses what comes in another session than it knows.
    async fn start(lost: Refuse) -> Self {
        let (executed, known) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(1)));
        let (count, now) = (executed.clone(), known.clone());
        let server = Scripted::legacy(move |seen: Seen| {
            let (count, known) = (count.clone(), format!("s{}", now.load(Ordering::SeqCst)));
            async move {
                let is_lost = seen
                    .headers
                    .get("mcp-session-id")
                    .is_some_and(|id| id != known.as_str());
                match seen.method() {
                    "notifications/initialized" | "GET" | "DELETE" => None,
                    _ if is_lost => Some(lost(&seen)),
                    "ping" => Some(seen.result(json!({}))),
                    "tools/call" => {
                        count.fetch_add(1, Ordering::SeqCst);
                        None
                    }
                    _ => None,
                }
            }
        })
        .await;
        Self {
            server,
            executed,
            known,
        }
    }

    fn restart(&self) {
        self.known.fetch_add(1, Ordering::SeqCst);
    }

    fn executed(&self) -> usize {
        self.executed.load(Ordering::SeqCst)
    }
}

/// A client that asks before each call, as after two seconds.
fn asking() -> Mcp {
    mcp_with(Options {
        ping_after: Duration::ZERO,
        ..Options::default()
    })
}

fn is_session_lost(outcome: &Result<ToolOutcome, CallError>) -> bool {
    matches!(outcome, Err(CallError::SessionLost { .. }))
}

/// A server of the older era whose calls and pings are answered as told.
async fn refusing<C, P>(call: C, ping: P) -> Scripted
where
    C: Fn(&Seen) -> Reply + Clone + Send + Sync + 'static,
    P: Fn(&Seen) -> Option<Reply> + Clone + Send + Sync + 'static,
{
    Scripted::legacy(move |seen: Seen| {
        let (call, ping) = (call.clone(), ping.clone());
        async move {
            match seen.method() {
                "tools/call" => Some(call(&seen)),
                "ping" => match ping(&seen) {
                    Some(reply) => Some(reply),
                    None => std::future::pending().await,
                },
                _ => None,
            }
        }
    })
    .await
}

fn made(server: &Scripted) -> [usize; 3] {
    ["initialize", "ping", "tools/call"].map(|method| server.requests(method).len())
}

async fn call(mcp: &Mcp, key: &Key, spec: &Arc<ServerSpec>) -> Result<ToolOutcome, CallError> {
    let arguments = args(&json!({}));
    soon(mcp.call(key, spec, request("echo", &arguments), options())).await
}

#[tokio::test]
async fn what_may_have_been_read_is_not_sent_again_however_the_server_says_that_the_session_is_lost()
 {
    for (way, lost) in WAYS {
        for idempotency_key in [None, Some("request-1".to_owned())] {
            let bank = Forgetful::start(*lost).await;
            let (mcp, key, spec) = (mcp(), key(), spec(bank.server.endpoint()));
            call(&mcp, &key, &spec).await.unwrap();
            bank.restart();
            let options = CallOptions {
                idempotency_key,
                ..options()
            };
            let arguments = args(&json!({}));
            let outcome = soon(mcp.call(&key, &spec, request("echo", &arguments), options)).await;
            assert!(is_session_lost(&outcome), "{way}: {outcome:?}");
            assert_eq!(bank.server.requests("tools/call").len(), 2, "{way}");
            // The next call is made in a new session at once.
            call(&mcp, &key, &spec).await.unwrap();
            assert_eq!(bank.executed(), 2, "{way}");
            assert_eq!(made(&bank.server), [2, 0, 3], "{way}");
        }
    }
}

#[tokio::test]
async fn a_call_that_does_no_harm_twice_is_made_once_more_in_a_new_session() {
    for (way, lost) in WAYS {
        let bank = Forgetful::start(*lost).await;
        let (mcp, key, spec) = (mcp(), key(), spec(bank.server.endpoint()));
        call(&mcp, &key, &spec).await.unwrap();
        bank.restart();
        let options = CallOptions {
            may_repeat: true,
            ..options()
        };
        let arguments = args(&json!({}));
        soon(mcp.call(&key, &spec, request("echo", &arguments), options))
            .await
            .unwrap_or_else(|error| panic!("{way}: {error}"));
        assert_eq!(bank.executed(), 2, "{way}");
        assert_eq!(made(&bank.server), [2, 0, 3], "{way}");
    }
}

/// What becomes of a call at its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answered,
    /// The session is not known, and nothing was executed.
    LostBefore,
    /// It was executed, and then the session is not known.
    LostAfter,
    /// It was executed, and the connection ends.
    Cut,
}

/// How a call ends for whoever made it.
#[derive(Debug, PartialEq, Eq)]
enum Ending {
    Done,
    SessionLost,
    Unknown,
}

/// How often the call was sent and executed, and what its caller is told: what may have been read is sent once, but for
/// what may be repeated, after a lost session and one time more.
fn oracle(fates: [Fate; 2], may_repeat: bool) -> (usize, usize, Ending) {
    let executes = |fate: Fate| usize::from(fate != Fate::LostBefore);
    let [first, second] = fates;
    match first {
        Fate::Answered => (1, 1, Ending::Done),
        Fate::Cut => (1, 1, Ending::Unknown),
        lost if !may_repeat => (1, executes(lost), Ending::SessionLost),
        lost => {
            let ending = if second == Fate::Answered {
                Ending::Done
            } else {
                Ending::SessionLost
            };
            (2, executes(lost) + executes(second), ending)
        }
    }
}

#[tokio::test]
async fn every_pair_of_fates_of_a_call_agrees_with_the_oracle() {
    const FATES: [Fate; 4] = [Fate::Answered, Fate::LostBefore, Fate::LostAfter, Fate::Cut];
    // One that was approved, one like any other, and one that changes nothing the second time.
    let kinds = [(Some("request-1"), false), (None, false), (None, true)];
    let pairs = FATES
        .iter()
        .flat_map(|first| FATES.map(|second| [*first, second]));
    for (fates, (key_of_call, may_repeat)) in
        pairs.flat_map(|fates| kinds.map(|kind| (fates, kind)))
    {
        let (sent, executed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (sending, ledger) = (sent.clone(), executed.clone());
        let server = Scripted::legacy(move |seen: Seen| {
            let (sending, ledger) = (sending.clone(), ledger.clone());
            async move {
                if seen.method() != "tools/call" {
                    return None;
                }
                let at = sending.fetch_add(1, Ordering::SeqCst);
                let fate = fates.get(at).copied().unwrap_or(Fate::Answered);
                if fate != Fate::LostBefore {
                    ledger.fetch_add(1, Ordering::SeqCst);
                }
                match fate {
                    Fate::Answered => None,
                    Fate::LostBefore | Fate::LostAfter => {
                        Some(refused(StatusCode::NOT_FOUND, &Value::Null))
                    }
                    Fate::Cut => Some(Reply::HangUp),
                }
            }
        })
        .await;
        let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
        let options = CallOptions {
            idempotency_key: key_of_call.map(str::to_owned),
            may_repeat,
            ..options()
        };
        let arguments = args(&json!({}));
        let outcome = soon(mcp.call(&key, &spec, request("echo", &arguments), options)).await;
        let ending = match &outcome {
            Ok(_) => Ending::Done,
            Err(CallError::SessionLost { .. }) => Ending::SessionLost,
            Err(CallError::OutcomeUnknown(_)) => Ending::Unknown,
            Err(other) => panic!("{fates:?} {key_of_call:?} {may_repeat}: {other:?}"),
        };
        let count = |of: &AtomicUsize| of.load(Ordering::SeqCst);
        let told = (count(&sent), count(&executed), ending);
        assert_eq!(
            told,
            oracle(fates, may_repeat),
            "{fates:?} {key_of_call:?} {may_repeat}"
        );
    }
}

#[tokio::test]
async fn a_call_that_was_made_again_in_vain_may_have_been_executed_the_first_time() {
    let server = refusing(
        |_| reply(StatusCode::NOT_FOUND, &[], ""),
        |_| Some(reply(StatusCode::NOT_FOUND, &[], "")),
    )
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let options = CallOptions {
        may_repeat: true,
        ..options()
    };
    let arguments = args(&json!({}));
    let outcome = soon(mcp.call(&key, &spec, request("echo", &arguments), options)).await;
    assert!(is_session_lost(&outcome), "{outcome:?}");
    assert_eq!(made(&server), [2, 0, 2]);
}

#[tokio::test]
async fn an_idle_session_is_asked_before_a_call_and_a_lost_one_is_replaced() {
    for (way, lost) in WAYS {
        let bank = Forgetful::start(*lost).await;
        let (mcp, key, spec) = (asking(), key(), spec(bank.server.endpoint()));
        call(&mcp, &key, &spec).await.unwrap();
        bank.restart();
        call(&mcp, &key, &spec)
            .await
            .unwrap_or_else(|error| panic!("{way}: {error}"));
        assert_eq!(bank.executed(), 2, "{way}");
        assert_eq!(
            [2, 2],
            ["initialize", "tools/call"].map(|method| bank.server.requests(method).len()),
            "{way}"
        );
    }
}

#[tokio::test]
async fn a_session_that_is_in_use_is_not_asked() {
    let bank = Forgetful::start(WAYS[0].1).await;
    let (mcp, key, spec) = (mcp(), key(), spec(bank.server.endpoint()));
    for _ in 0..5 {
        call(&mcp, &key, &spec).await.unwrap();
    }
    assert_eq!(made(&bank.server), [1, 0, 5]);
}

#[tokio::test]
async fn callers_at_once_share_one_ping() {
    let may_answer = Arc::new(tokio::sync::Semaphore::new(0));
    let answering = may_answer.clone();
    let server = Scripted::legacy(move |seen: Seen| {
        let may_answer = answering.clone();
        async move {
            if seen.method() != "ping" {
                return None;
            }
            may_answer.acquire().await.unwrap().forget();
            Some(seen.result(json!({})))
        }
    })
    .await;
    let (mcp, key, spec) = (asking(), key(), spec(server.endpoint()));
    mcp.discover(&key, &spec).await.unwrap();
    let calls = futures_util::future::join_all((0..8).map(|_| call(&mcp, &key, &spec)));
    let (outcomes, ()) = tokio::join!(calls, async {
        server.until("ping", 1).await;
        may_answer.add_permits(1);
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(made(&server), [1, 1, 8]);
}

/// Every way not to answer a ping, with the requests after three calls: a server that does not answer is not asked again.
const DEAF: &[(&str, AnswerPing, [usize; 3])] = &[
    (
        "method not found",
        |seen| Some(seen.error(StatusCode::OK, -32601, "Method not found")),
        [1, 1, 3],
    ),
    (
        "method not found with a status",
        |seen| Some(seen.error(StatusCode::NOT_FOUND, -32601, "Method not found")),
        [1, 1, 3],
    ),
    ("silent", |_| None, [1, 1, 3]),
    (
        "as a session that is not known",
        |_| Some(reply(StatusCode::NOT_FOUND, &[], "")),
        [2, 2, 3],
    ),
];

#[tokio::test]
async fn a_server_that_does_not_answer_pings_is_not_asked_again() {
    for (way, ping, requests) in DEAF {
        let server = refusing(|seen| seen.result(json!({ "content": [] })), *ping).await;
        let timeouts = Timeouts {
            request: Duration::from_secs(2),
            ..Timeouts::default()
        };
        let (mcp, key, spec) = (asking(), key(), spec_with(server.endpoint(), timeouts));
        for _ in 0..3 {
            call(&mcp, &key, &spec)
                .await
                .unwrap_or_else(|error| panic!("{way}: {error}"));
        }
        assert_eq!(made(&server), *requests, "{way}");
    }
}

/// Every ping that fails without a word about the session.
const UNCLEAR: &[(&str, AnswerPing)] = &[
    ("cut", |_| Some(Reply::HangUp)),
    ("500", |_| {
        Some(reply(StatusCode::INTERNAL_SERVER_ERROR, &[], FORGOTTEN))
    }),
    ("502", |_| Some(reply(StatusCode::BAD_GATEWAY, &[], ""))),
    ("503 with an error", |seen| {
        Some(seen.error(StatusCode::SERVICE_UNAVAILABLE, -32000, FORGOTTEN))
    }),
    ("busy", |_| {
        Some(reply(StatusCode::TOO_MANY_REQUESTS, &[], ""))
    }),
    ("busy for a while", |_| {
        Some(reply(
            StatusCode::SERVICE_UNAVAILABLE,
            &[("retry-after", "7")],
            "",
        ))
    }),
    ("accepted", |_| Some(reply(StatusCode::ACCEPTED, &[], ""))),
    ("a page", |_| {
        Some(reply(
            StatusCode::OK,
            &[("content-type", "text/html")],
            "<html>",
        ))
    }),
    ("moved", |_| {
        Some(reply(
            StatusCode::TEMPORARY_REDIRECT,
            &[("location", "/mcp")],
            "",
        ))
    }),
];

#[tokio::test]
async fn a_ping_that_fails_is_no_failure_of_the_call() {
    for (way, ping) in UNCLEAR {
        let server = refusing(|seen| seen.result(json!({ "content": [] })), *ping).await;
        let (mcp, key, spec) = (asking(), key(), spec(server.endpoint()));
        for _ in 0..2 {
            call(&mcp, &key, &spec)
                .await
                .unwrap_or_else(|error| panic!("{way}: {error}"));
        }
        assert_eq!(made(&server), [1, 1, 2], "{way}");
    }
}

#[tokio::test]
async fn a_refusal_of_a_credential_that_comes_late_is_no_proof_that_the_call_was_not_read() {
    // Executed, while the session was lost: or by another server behind the same address, which is gone.
    let server = Scripted::legacy(|seen: Seen| async move {
        let is_first = seen
            .headers
            .get("mcp-session-id")
            .is_some_and(|id| id == "s1");
        if seen.method() != "tools/call" || !is_first {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(2500)).await;
        Some(reply(StatusCode::UNAUTHORIZED, &[], ""))
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    let outcome = call(&mcp, &key, &spec).await;
    assert!(is_session_lost(&outcome), "{outcome:?}");
    assert_eq!(made(&server), [1, 0, 1]);
    // The next call begins with a new handshake.
    call(&mcp, &key, &spec).await.unwrap();
    assert_eq!(made(&server), [2, 0, 2]);
}

#[tokio::test]
async fn a_lost_session_is_opened_again_for_what_only_reads() {
    for (way, lost) in WAYS {
        let bank = Forgetful::start(*lost).await;
        bank.restart();
        let found = soon(mcp().discover(&key(), &spec(bank.server.endpoint()))).await;
        assert_eq!(
            found
                .unwrap_or_else(|error| panic!("{way}: {error}"))
                .tools
                .len(),
            1,
            "{way}"
        );
    }
}

#[tokio::test]
async fn a_refusal_that_the_protocol_says_is_about_the_request_is_the_tools_own() {
    for status in [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND] {
        for code in [-32601, -32602] {
            let server = refusing(
                move |seen| seen.error(status, code, "there is no such tool"),
                |seen| Some(seen.result(json!({}))),
            )
            .await;
            let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
            for calls in 1..=2 {
                let error = call(&mcp, &key, &spec).await.unwrap_err();
                assert!(matches!(error, CallError::Refused { .. }), "{error:?}");
                assert_eq!(made(&server), [1, 0, calls]);
            }
        }
    }
}

#[tokio::test]
async fn where_there_are_no_sessions_nothing_is_asked_and_nothing_is_made_again() {
    for (way, refuse) in WAYS {
        let server = Scripted::modern(async |seen: Seen| {
            (seen.method() == "tools/call").then(|| refuse(&seen))
        })
        .await;
        call(&asking(), &key(), &spec(server.endpoint()))
            .await
            .unwrap_err();
        assert_eq!(made(&server), [0, 0, 1], "{way}");
    }
}

#[tokio::test]
async fn a_server_that_forgets_every_session_is_left_alone_for_a_while() {
    let server = refusing(
        |_| reply(StatusCode::NOT_FOUND, &[], ""),
        |_| Some(reply(StatusCode::NOT_FOUND, &[], "")),
    )
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    for _ in 0..20 {
        call(&mcp, &key, &spec).await.unwrap_err();
    }
    let error = call(&mcp, &key, &spec).await.unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)), "{error:?}");
    assert!(matches!(mcp.state(&key), ConnectionState::Down { .. }));
    let [handshakes, _, calls] = made(&server);
    assert!(handshakes <= 6 && calls <= 6, "{handshakes}, {calls}");
}

#[tokio::test]
async fn a_server_that_is_restarted_again_and_again_is_found_again_each_time() {
    for answers_pings in [true, false] {
        let known = Arc::new(AtomicUsize::new(1));
        let now = known.clone();
        let server = Scripted::legacy(move |seen: Seen| {
            let known = format!("s{}", now.load(Ordering::SeqCst));
            async move {
                let is_lost = seen
                    .headers
                    .get("mcp-session-id")
                    .is_some_and(|id| id != known.as_str());
                match seen.method() {
                    "tools/call" | "ping" if is_lost => {
                        Some(seen.error(StatusCode::NOT_FOUND, -32000, FORGOTTEN))
                    }
                    "ping" if answers_pings => Some(seen.result(json!({}))),
                    _ => None,
                }
            }
        })
        .await;
        let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
        call(&mcp, &key, &spec).await.unwrap();
        for _ in 0..10 {
            known.fetch_add(1, Ordering::SeqCst);
            let outcome = call(&mcp, &key, &spec).await;
            assert!(is_session_lost(&outcome), "{outcome:?}");
            call(&mcp, &key, &spec).await.unwrap();
        }
        assert_eq!(server.requests("initialize").len(), 11, "{answers_pings}");
    }
}

#[tokio::test]
async fn a_tool_that_refuses_each_call_does_not_cost_a_handshake_each() {
    let server = refusing(
        |seen| {
            seen.error(
                StatusCode::NOT_FOUND,
                -32000,
                "order 17 was not found in this session",
            )
        },
        |seen| Some(seen.result(json!({}))),
    )
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    for _ in 0..20 {
        let outcome = call(&mcp, &key, &spec).await;
        assert!(is_session_lost(&outcome), "{outcome:?}");
    }
    // After some new sessions, a ping before each call shows that the session is known.
    assert_eq!(made(&server), [4, 16, 20]);
}

/// A server with a credential that is good until it is not, and that knows no session from before.
async fn judging(is_good: &Arc<AtomicBool>) -> Scripted {
    let is_good = is_good.clone();
    Scripted::legacy(move |seen: Seen| {
        let is_good = is_good.load(Ordering::SeqCst);
        async move {
            let is_lost = seen
                .headers
                .get("mcp-session-id")
                .is_some_and(|id| id != "s1");
            let is_refused = match seen.method() {
                "initialize" => !is_good,
                "tools/call" | "ping" => is_lost || !is_good,
                _ => false,
            };
            is_refused.then(|| reply(StatusCode::UNAUTHORIZED, &[], ""))
        }
    })
    .await
}

#[tokio::test]
async fn a_credential_is_refused_only_when_a_new_handshake_with_it_is() {
    let is_good = Arc::new(AtomicBool::new(true));
    let server = judging(&is_good).await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    call(&mcp, &key, &spec).await.unwrap();
    is_good.store(false, Ordering::SeqCst);
    assert_eq!(
        call(&mcp, &key, &spec).await.unwrap_err(),
        CallError::Unauthorized
    );
    assert_eq!(made(&server), [2, 0, 2]);
}

#[tokio::test]
async fn a_credential_that_was_good_and_passes_each_handshake_is_not_what_is_refused() {
    let lost = |_: &Seen| reply(StatusCode::UNAUTHORIZED, &[], "");
    let server = Scripted::legacy(move |seen: Seen| async move {
        let is_first = seen.body["params"]["arguments"]["first"] == true;
        match seen.method() {
            "tools/call" if is_first => None,
            "tools/call" | "ping" => Some(lost(&seen)),
            _ => None,
        }
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    // One that never was good is refused by the call, where the handshake does not judge it.
    assert_eq!(
        call(&mcp, &key, &spec).await.unwrap_err(),
        CallError::Unauthorized
    );
    let first = args(&json!({"first": true}));
    mcp.call(&key, &spec, request("echo", &first), options())
        .await
        .unwrap();
    let outcome = call(&mcp, &key, &spec).await;
    assert!(is_session_lost(&outcome), "{outcome:?}");
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
async fn a_call_that_may_be_sent_once_carries_its_key() {
    for server in [
        Scripted::legacy(async |_| None).await,
        Scripted::modern(async |_| None).await,
    ] {
        let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
        let once = CallOptions {
            idempotency_key: Some("request-1".to_owned()),
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

/// A server that is at `/mcp/`, as frameworks redirect.
async fn moved(is_modern: bool) -> Scripted {
    let script = async |seen: Seen| {
        let elsewhere = || reply(StatusCode::TEMPORARY_REDIRECT, &[("location", "/mcp/")], "");
        (seen.path == "/mcp").then(elsewhere)
    };
    if is_modern {
        Scripted::modern(script).await
    } else {
        Scripted::legacy(script).await
    }
}

#[tokio::test]
async fn the_address_at_which_the_handshake_ended_is_that_of_all_that_follows() {
    for is_modern in [false, true] {
        let server = moved(is_modern).await;
        let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
        mcp.discover(&key, &spec).await.unwrap();
        call(&mcp, &key, &spec).await.unwrap();
        for method in ["tools/list", "tools/call"] {
            let paths: Vec<_> = server
                .requests(method)
                .into_iter()
                .map(|seen| seen.path)
                .collect();
            assert_eq!(paths, ["/mcp/"], "{method}");
        }
        mcp.close(&key).await;
        assert!(
            server
                .requests("DELETE")
                .iter()
                .all(|seen| seen.path == "/mcp/")
        );
    }
}

/// The rules of a tenant's server are those of its address.
#[tokio::test]
async fn the_calls_of_a_tenants_server_go_to_its_own_address_wherever_it_redirects() {
    for (of_tenant, expected) in [(false, "/bank/mcp"), (true, "/mcp")] {
        let server = Scripted::legacy(async |seen: Seen| {
            let elsewhere = || {
                reply(
                    StatusCode::TEMPORARY_REDIRECT,
                    &[("location", "/bank/mcp")],
                    "",
                )
            };
            (seen.path == "/mcp" && seen.method() == "initialize").then(elsewhere)
        })
        .await;
        let spec = Arc::new(ServerSpec {
            of_tenant,
            ..ServerSpec::clone(&spec(server.endpoint()))
        });
        let allowed = ["127.0.0.1".to_owned()];
        let egress = Egress::with_tenant_list(&allowed, &allowed).unwrap();
        let mcp = Mcp::new(egress, Options::default());
        call(&mcp, &key(), &spec).await.unwrap();
        let calls = server.requests("tools/call");
        let paths: Vec<_> = calls.iter().map(|seen| seen.path.as_str()).collect();
        assert_eq!(paths, [expected]);
    }
}

#[tokio::test]
async fn a_server_that_redirects_without_end_is_named_in_the_error() {
    let server = Scripted::start(async |_| {
        reply(StatusCode::TEMPORARY_REDIRECT, &[("location", "/mcp")], "")
    })
    .await;
    let mcp = mcp();
    let error = soon(mcp.discover(&key(), &spec(server.endpoint())))
        .await
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .contains("MCP server exceeded 5 redirects"),
        "{error}"
    );
}

#[tokio::test]
async fn a_call_follows_no_redirect_and_the_next_one_begins_with_a_handshake() {
    for is_modern in [false, true] {
        for once in [None, Some("request-1".to_owned())] {
            for status in [301, 302, 303, 307, 308] {
                let server =
                    redirecting_calls(is_modern, StatusCode::from_u16(status).unwrap()).await;
                let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
                let options = CallOptions {
                    idempotency_key: once.clone(),
                    ..options()
                };
                let arguments = args(&json!({}));
                let calling = mcp.call(&key, &spec, request("echo", &arguments), options);
                let error = soon(calling).await.unwrap_err();
                assert!(
                    matches!(&error, CallError::OutcomeUnknown(reason) if reason.contains(&status.to_string())),
                    "{error:?}"
                );
                assert_eq!(server.requests("tools/call").len(), 1, "{status}");
                let handshake = if is_modern {
                    "server/discover"
                } else {
                    "initialize"
                };
                let before = server.requests(handshake).len();
                call(&mcp, &key, &spec).await.unwrap_err();
                assert_eq!(server.requests(handshake).len(), before + 1, "{status}");
                assert_eq!(server.requests("tools/call").len(), 2, "{status}");
            }
        }
    }
}

/// A server that answers its calls with a redirect to itself.
async fn redirecting_calls(is_modern: bool, status: StatusCode) -> Scripted {
    let script = move |seen: Seen| async move {
        (seen.method() == "tools/call").then(|| reply(status, &[("location", "/mcp")], ""))
    };
    if is_modern {
        Scripted::modern(script).await
    } else {
        Scripted::legacy(script).await
    }
}

/// Two replicas behind a balancer that keeps a client at its replica by a cookie; without it they take turns.
async fn balanced(attributes: &'static str) -> Scripted {
    let turns = AtomicUsize::new(0);
    let known: [Arc<Mutex<Vec<String>>>; 2] = Default::default();
    Scripted::start(move |seen: Seen| {
        let cookie = seen.headers.get("cookie").map(|cookie| cookie.to_str().unwrap().to_owned());
        let kept = cookie.as_deref().and_then(|cookie| cookie.strip_prefix("AWSALB=")?.parse().ok());
        let replica = kept.unwrap_or_else(|| turns.fetch_add(1, Ordering::SeqCst) % 2);
        let sessions = known[replica].clone();
        async move {
            let session = seen.headers.get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
            let set = format!("AWSALB={replica}; Expires=Wed, 01 Jan 2031 00:00:00 GMT; Path=/{attributes}");
            let answer = |headers: &[(&str, &str)], body: String| {
                let mut all = vec![("content-type", "application/json"), ("set-cookie", set.as_str())];
                all.extend_from_slice(headers);
                reply(StatusCode::OK, &all, body)
            };
            let result = |result: Value| json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result}).to_string();
            match seen.method() {
                "server/discover" => seen.error(StatusCode::BAD_REQUEST, -32601, "Method not found"),
                "initialize" => {
                    let id = format!("{replica}-{}", sessions.lock().unwrap().len());
                    sessions.lock().unwrap().push(id.clone());
                    let body = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}});
                    answer(&[("mcp-session-id", &id)], result(body))
                }
                _ if session.is_none_or(|id| !sessions.lock().unwrap().contains(&id)) => {
                    refused(StatusCode::NOT_FOUND, &Value::Null)
                }
                "GET" => reply(StatusCode::METHOD_NOT_ALLOWED, &[], ""),
                "tools/list" => answer(&[], result(json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}))),
                "tools/call" => answer(&[], result(crate::support::scripted::text("ok"))),
                _ => reply(StatusCode::ACCEPTED, &[], ""),
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_session_stays_at_its_replica_by_the_cookie_of_the_balancer() {
    for attributes in ["", "; HttpOnly; SameSite=Lax", "; Domain=127.0.0.1"] {
        let server = balanced(attributes).await;
        let (mcp, spec) = (mcp(), spec(server.endpoint()));
        let keys = [key(), key(), key()];
        for key in &keys {
            mcp.discover(key, &spec).await.unwrap();
            for _ in 0..3 {
                call(&mcp, key, &spec).await.unwrap();
            }
        }
        // A session begins without the cookie of another one.
        for seen in server.requests("initialize") {
            assert!(!seen.headers.contains_key("cookie"));
        }
        mcp.close(&keys[0]).await;
        call(&mcp, &keys[0], &spec).await.unwrap();
        assert!(
            !server
                .requests("initialize")
                .pop()
                .unwrap()
                .headers
                .contains_key("cookie")
        );
    }
}

#[tokio::test]
async fn a_cookie_goes_only_where_it_belongs() {
    let server = Scripted::legacy(async |seen: Seen| {
        if seen.method() != "tools/list" {
            return None;
        }
        let huge = format!("huge={}", "x".repeat(5000));
        let mut set: Vec<(&str, &str)> = [
            "kept=1",
            "kept=2; Max-Age=60",
            "here=1; Path=/mcp",
            "gone=1",
            "gone=1; Max-Age=0",
            "old=1; Expires=Thu, 01 Jan 1970 00:00:00 GMT",
            "older=1; expires=Thu, 01-Jan-1970 00:00:00 GMT",
            "safe=1; Secure",
            "__Secure-a=1",
            "elsewhere=1; Domain=example.org",
            "below=1; Path=/mcp/below",
            "beside=1; Path=/mc",
            "nonsense",
            "=1",
            &huge,
        ]
        .into_iter()
        .map(|cookie| ("set-cookie", cookie))
        .collect();
        set.push(("content-type", "application/json"));
        let result = json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]});
        let body = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result});
        Some(reply(StatusCode::OK, &set, body.to_string()))
    })
    .await;
    let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
    mcp.discover(&key, &spec).await.unwrap();
    call(&mcp, &key, &spec).await.unwrap();
    let call = server.requests("tools/call").remove(0);
    assert_eq!(call.headers["cookie"], "kept=2; here=1");
}

#[tokio::test]
async fn a_cookie_with_an_empty_domain_belongs_to_its_host() {
    let server = Scripted::legacy(async |seen: Seen| {
        if seen.method() != "tools/list" {
            return None;
        }
        let set = [
            ("set-cookie", "empty=1; Domain="),
            ("set-cookie", "elsewhere=1; Domain=example.org"),
            ("content-type", "application/json"),
        ];
        let result = json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]});
        let body = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result});
        Some(reply(StatusCode::OK, &set, body.to_string()))
    })
    .await;
    let Endpoint::Remote {
        transport,
        mut url,
        headers,
    } = server.endpoint()
    else {
        unreachable!("a scripted server is remote");
    };
    url.set_host(Some("localhost")).unwrap();
    let egress = Egress::new(&["localhost".to_owned()]).unwrap();
    let (mcp, key) = (Mcp::new(egress, Options::default()), key());
    let spec = spec(Endpoint::Remote {
        transport,
        url,
        headers,
    });
    mcp.discover(&key, &spec).await.unwrap();
    call(&mcp, &key, &spec).await.unwrap();
    let call = server.requests("tools/call").remove(0);
    assert_eq!(call.headers["cookie"], "empty=1");
}

#[tokio::test]
async fn revisions_without_sessions_have_no_cookies_and_a_jar_is_bounded() {
    let cookies: Vec<String> = (0..50).map(|n| format!("c{n}=1")).collect();
    let script = move |seen: Seen| {
        let cookies = cookies.clone();
        async move {
            if seen.method() != "tools/list" {
                return None;
            }
            let mut set: Vec<(&str, &str)> = cookies
                .iter()
                .map(|cookie| ("set-cookie", cookie.as_str()))
                .collect();
            set.push(("content-type", "application/json"));
            let body = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": {"tools": []}});
            Some(reply(StatusCode::OK, &set, body.to_string()))
        }
    };
    for (server, most) in [
        (Scripted::modern(script.clone()).await, 0),
        (Scripted::legacy(script).await, 16),
    ] {
        let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
        mcp.discover(&key, &spec).await.unwrap();
        call(&mcp, &key, &spec).await.unwrap();
        let call = server.requests("tools/call").remove(0);
        let sent = call
            .headers
            .get("cookie")
            .map(|cookie| cookie.to_str().unwrap().split("; ").count());
        assert_eq!(sent.unwrap_or_default(), most);
    }
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
                times.lock().unwrap().push(domain::clock::instant());
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
