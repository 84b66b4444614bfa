//! Where requests may go, and what may come back: servers count what arrives.

mod redirects; // what a redirect carries
mod verdicts; // a table of hosts, addresses and spellings

use std::{net::IpAddr, time::Duration};

use axum::{body::Body, http::HeaderValue, response::Response as Answer};
use bytes::Bytes;
use egress::{Egress, ErrorKind, Limits, NameSource, Request, operator_client, parse_url};
use futures_util::StreamExt;
use tokio::net::TcpListener;
use url::Url;

use crate::support::origin::{Origin, at, ok, open, post, raw, redirecting, refusal, text};

// ---- what is refused is never dialled

#[tokio::test]
async fn a_refused_address_sees_no_connection_in_any_spelling() {
    let spy = Origin::start(|_| ok("reached")).await;
    let port = spy.address.port();
    let names = NameSource::table([("rebound.example", vec!["127.0.0.1".parse().unwrap()])]);
    let egress = Egress::with_names(&[], &names).unwrap();
    for url in [
        format!("http://127.0.0.1:{port}/"),
        format!("https://127.0.0.1:{port}/"),
        format!("http://2130706433:{port}/"),
        format!("http://0x7f000001:{port}/"),
        format!("http://0177.0.0.1:{port}/"),
        format!("http://127.1:{port}/"),
        format!("http://0:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        format!("http://localhost:{port}/"),
        format!("http://LOCALHOST.:{port}/"),
        format!("https://example.com@127.0.0.1:{port}/"),
        format!("https://rebound.example:{port}/"),
    ] {
        let error = refusal(&egress, Request::get(parse_url(&url).unwrap())).await;
        assert!(error.is_rejected() && !error.sent, "{url}: {error}");
    }
    assert_eq!(spy.accepted(), 0);
    assert_eq!(
        text(&open(), Request::get(spy.url("/"))).await.unwrap(),
        "reached",
        "the spy does listen"
    );
    assert_eq!(spy.accepted(), 1);
}

#[tokio::test]
async fn one_private_address_among_public_ones_refuses_the_name() {
    let spy = Origin::start(|_| ok("reached")).await;
    for private in [
        "127.0.0.1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "10.0.0.1",
        "fd00::1",
    ] {
        let addresses = vec!["8.8.8.8".parse().unwrap(), private.parse().unwrap()];
        let egress =
            Egress::with_names(&[], &NameSource::table([("mixed.example", addresses)])).unwrap();
        let url = Url::parse(&format!("https://mixed.example:{}/", spy.address.port())).unwrap();
        let error = refusal(&egress, Request::get(url)).await;
        let address: IpAddr = private.parse().unwrap();
        assert_eq!(
            error.to_string(),
            format!("egress rejected: \"mixed.example\" resolves to a private address ({address})")
        );
        assert!(!error.sent);
    }
    assert_eq!(spy.accepted(), 0);
}

#[tokio::test]
async fn the_address_that_was_judged_is_the_one_that_is_dialled() {
    let origin = Origin::start(|_| ok("reached")).await;
    let names = NameSource::table([("tools.example", vec!["127.0.0.1".parse().unwrap()])]);
    let egress = Egress::with_names(&["tools.example".to_owned()], &names).unwrap();
    let url = Url::parse(&format!("http://tools.example:{}/", origin.address.port())).unwrap();
    for _ in 0..3 {
        assert_eq!(
            text(&egress, Request::get(url.clone())).await.unwrap(),
            "reached"
        );
    }
    assert_eq!(
        (names.lookups(), origin.accepted()),
        (1, 1),
        "one look-up per connection, none after it"
    );
}

#[tokio::test]
async fn an_entry_with_a_port_opens_that_port_only() {
    let (admitted, other) = (
        Origin::start(|_| ok("reached")).await,
        Origin::start(|_| ok("reached")).await,
    );
    let names = NameSource::table([("tools.example", vec!["127.0.0.1".parse().unwrap()])]);
    let entry = format!("tools.example:{}", admitted.address.port());
    let egress = Egress::with_names(&[entry], &names).unwrap();
    let to = |scheme: &str, origin: &Origin| {
        Request::get(
            Url::parse(&format!(
                "{scheme}://tools.example:{}/",
                origin.address.port()
            ))
            .unwrap(),
        )
    };
    assert_eq!(
        text(&egress, to("http", &admitted)).await.unwrap(),
        "reached"
    );
    let error = refusal(&egress, to("https", &other)).await;
    assert!(
        error
            .to_string()
            .contains("resolves to a private address (127.0.0.1)"),
        "{error}"
    );
    let error = refusal(&egress, to("http", &other)).await;
    assert!(
        error
            .to_string()
            .contains("plain http to non-loopback host \"tools.example\""),
        "{error}"
    );
    assert_eq!(other.accepted(), 0);
}

#[tokio::test]
async fn a_name_without_an_address_is_said_to_have_none() {
    let egress = Egress::with_names(&[], &NameSource::table([])).unwrap();
    let error = refusal(
        &egress,
        Request::get(Url::parse("https://nowhere.example/").unwrap()),
    )
    .await;
    assert_eq!(
        error.to_string(),
        "could not resolve \"nowhere.example\": no such name"
    );
    assert!(!error.sent);
}

#[tokio::test]
async fn the_machines_own_names_are_asked_for_what_no_table_holds() {
    let origin = Origin::start(|_| ok("reached")).await;
    let egress = Egress::new(&["localhost".to_owned()]).unwrap();
    let url = Url::parse(&format!("http://localhost:{}/", origin.address.port())).unwrap();
    assert_eq!(text(&egress, Request::get(url)).await.unwrap(), "reached");
}

// ---- caps

#[tokio::test]
async fn a_body_is_capped_by_what_it_announces() {
    let address = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 8388609\r\n\r\n", true).await;
    let error = refusal(&open(), Request::get(at(address))).await;
    assert_eq!(error.to_string(), "response body exceeds 8388608 bytes");
}

#[tokio::test]
async fn a_body_is_capped_by_what_is_read() {
    let origin = Origin::start(|_| {
        let chunks = futures_util::stream::repeat_with(|| {
            Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 65536]))
        });
        ok(Body::from_stream(chunks))
    })
    .await;
    let mut body = open()
        .send(Request::get(origin.url("/")))
        .await
        .unwrap()
        .body;
    let mut read = 0;
    let error = loop {
        match body.next().await.expect("the stream is endless") {
            Ok(chunk) => read += chunk.len(),
            Err(error) => break error,
        }
    };
    assert_eq!(error.to_string(), "response body exceeds 8388608 bytes");
    assert!(read <= 8_388_608, "{read}");
    assert!(body.next().await.is_none(), "nothing comes after the error");
}

#[tokio::test]
async fn a_body_as_large_as_the_cap_is_read() {
    let origin = Origin::start(|_| ok(vec![b'x'; 1000])).await;
    let limited = |max_body| Request {
        limits: Limits {
            max_body,
            ..Limits::default()
        },
        ..Request::get(origin.url("/"))
    };
    assert_eq!(text(&open(), limited(1000)).await.unwrap().len(), 1000);
    assert_eq!(
        refusal(&open(), limited(999)).await.to_string(),
        "response body exceeds 999 bytes"
    );
}

#[tokio::test]
async fn one_deadline_covers_the_body() {
    let address = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", true).await;
    let limits = Limits {
        deadline: Some(Duration::from_millis(200)),
        ..Limits::default()
    };
    let answer = open()
        .send(Request {
            limits,
            ..Request::get(at(address))
        })
        .await
        .unwrap();
    let error = answer.bytes().await.expect_err("the rest never comes");
    assert_eq!(error.to_string(), "no complete answer within 200 ms");
    assert!(error.is_timeout() && error.sent);
}

#[tokio::test]
async fn the_deadline_covers_the_wait_for_the_head() {
    let address = raw(b"", true).await;
    let limits = Limits {
        deadline: Some(Duration::from_millis(100)),
        ..Limits::default()
    };
    let error = refusal(
        &open(),
        Request {
            limits,
            ..Request::get(at(address))
        },
    )
    .await;
    assert_eq!(error.to_string(), "no complete answer within 100 ms");
}

#[tokio::test]
async fn silence_ends_a_stream_that_has_no_deadline() {
    let address = raw(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n",
        true,
    )
    .await;
    let limits = Limits {
        deadline: None,
        idle: Some(Duration::from_millis(100)),
        ..Limits::default()
    };
    let mut body = open()
        .send(Request {
            limits,
            ..Request::get(at(address))
        })
        .await
        .unwrap()
        .body;
    assert_eq!(body.next().await.unwrap().unwrap(), "hi");
    let error = body.next().await.unwrap().expect_err("nothing more comes");
    assert_eq!(error.kind, ErrorKind::Idle(Duration::from_millis(100)));
}

#[tokio::test]
async fn a_silent_tls_handshake_costs_the_time_to_connect() {
    let address = raw(b"", true).await;
    let mut request = Request::get(Url::parse(&format!("https://{address}/")).unwrap());
    request.limits.connect = Duration::from_millis(100);
    let error = refusal(&open(), request).await;
    assert_eq!(
        error.to_string(),
        "could not connect to \"127.0.0.1\" within 100 ms"
    );
    assert!(!error.sent && error.is_timeout());
}

#[tokio::test]
async fn a_compressed_answer_is_refused_since_nobody_asked_for_one() {
    let origin = Origin::start(|_| {
        Answer::builder()
            .header("content-encoding", "gzip")
            .body(Body::from("not text"))
            .unwrap()
    })
    .await;
    let error = refusal(&open(), Request::get(origin.url("/"))).await;
    assert_eq!(
        error.to_string(),
        "the response is compressed (\"gzip\"), which was not asked for"
    );
    assert_eq!(origin.seen()[0].headers["accept-encoding"], "identity");
}

// ---- connections

#[tokio::test]
async fn clones_share_one_warm_connection() {
    let origin = Origin::start(|_| ok("hello")).await;
    let egress = open();
    for _ in 0..5 {
        assert_eq!(
            text(&egress.clone(), Request::get(origin.url("/")))
                .await
                .unwrap(),
            "hello"
        );
    }
    assert_eq!((origin.accepted(), origin.seen().len()), (1, 5));
}

#[tokio::test]
async fn a_refused_connection_counts_as_not_sent_and_a_broken_one_as_sent() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = gone.local_addr().unwrap();
    drop(gone);
    let error = refusal(&open(), Request::get(at(address))).await;
    assert!(
        matches!(error.kind, ErrorKind::Connect { .. }) && !error.sent,
        "{error:?}"
    );

    let address = raw(b"", false).await;
    let error = refusal(&open(), post(at(address))).await;
    assert!(
        matches!(error.kind, ErrorKind::Broken { .. }) && error.sent,
        "{error:?}"
    );
}

#[tokio::test]
async fn headers_of_the_connection_are_not_the_callers() {
    let origin = Origin::start(|_| ok("")).await;
    let mut request = post(origin.url("/"));
    request
        .headers
        .insert("host", HeaderValue::from_static("elsewhere.example"));
    request
        .headers
        .insert("content-length", HeaderValue::from_static("3"));
    request
        .headers
        .insert("transfer-encoding", HeaderValue::from_static("chunked"));
    text(&open(), request).await.unwrap();
    let seen = origin.seen().pop().unwrap();
    assert_eq!(seen.headers["host"], origin.address.to_string());
    assert_eq!(
        (seen.body.as_str(), &seen.headers["content-length"]),
        ("the body", &HeaderValue::from_static("8"))
    );
}

#[tokio::test]
async fn an_operators_client_reaches_a_private_host_and_follows_no_redirect() {
    let other = Origin::start(|_| ok("end")).await;
    let origin = Origin::start(redirecting(other.url("/end").into())).await;
    let answer = operator_client()
        .unwrap()
        .get(origin.url("/302"))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status().as_u16(), 302);
    assert_eq!(other.accepted(), 0);
}

#[tokio::test]
async fn errors_name_the_host_and_neither_path_nor_query() {
    let address = raw(b"nonsense\r\n\r\n", false).await;
    let url = Url::parse(&format!("http://{address}/hunter2/path?token=hunter2")).unwrap();
    let error = refusal(&open(), post(url)).await;
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    assert!(
        !format!("{error} {error:?}").contains("hunter2"),
        "{error:?}"
    );
    let error =
        parse_url("https://user:hunter2@exa mple/?token=hunter2").expect_err("a blank in the host");
    assert_eq!(
        error.to_string(),
        "egress rejected: unparseable URL \"https://…@exa mple/\""
    );
}
