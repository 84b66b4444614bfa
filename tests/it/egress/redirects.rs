//! What a redirect carries, and where it may lead.

use std::sync::{Arc, Mutex};

use axum::{
    http::{Method, StatusCode, Uri},
    response::Response as Answer,
};
use bytes::Bytes;
use egress::Request;

use crate::support::origin::{
    CREDENTIALS, HARMLESS, Origin, ok, open, post, redirect, redirecting, refusal, text,
};

#[tokio::test]
async fn a_redirect_within_the_origin_keeps_credentials_and_body() {
    for status in [307, 308] {
        let origin = Origin::start(redirecting("/end".to_owned())).await;
        assert_eq!(
            text(&open(), post(origin.url(&format!("/{status}"))))
                .await
                .unwrap(),
            "end"
        );
        let last = origin.seen().pop().unwrap();
        assert_eq!(
            (last.method, last.path.as_str(), last.body.as_str()),
            (Method::POST, "/end", "the body")
        );
        for (name, value) in CREDENTIALS.iter().chain(HARMLESS) {
            assert_eq!(last.headers.get(*name).unwrap(), value, "{status} {name}");
        }
    }
}

#[tokio::test]
async fn a_post_becomes_a_get_without_body_where_the_status_says_so() {
    for status in [301, 302, 303] {
        let origin = Origin::start(redirecting("/end".to_owned())).await;
        assert_eq!(
            text(&open(), post(origin.url(&format!("/{status}"))))
                .await
                .unwrap(),
            "end"
        );
        let last = origin.seen().pop().unwrap();
        assert_eq!(
            (last.method, last.body.as_str()),
            (Method::GET, ""),
            "{status}"
        );
        assert!(
            last.headers.get("content-type").is_none()
                && last.headers.get("content-length").is_none()
        );
        assert_eq!(last.headers["authorization"], "Bearer hunter2");
    }
}

#[tokio::test]
async fn other_methods_survive_all_but_a_303() {
    for (status, method) in [
        (301, Method::DELETE),
        (302, Method::DELETE),
        (307, Method::DELETE),
        (303, Method::GET),
    ] {
        let origin = Origin::start(redirecting("/end".to_owned())).await;
        let request = Request {
            method: Method::DELETE,
            ..Request::get(origin.url(&format!("/{status}")))
        };
        assert_eq!(text(&open(), request).await.unwrap(), "end");
        assert_eq!(origin.seen().pop().unwrap().method, method, "{status}");
    }
}

#[tokio::test]
async fn no_credential_crosses_to_another_origin() {
    for status in [301, 302, 303, 307, 308] {
        let other = Origin::start(|_| ok("end")).await;
        let origin = Origin::start(redirecting(other.url("/end").into())).await;
        let request = Request {
            method: Method::GET,
            body: Bytes::new(),
            ..post(origin.url(&format!("/{status}")))
        };
        assert_eq!(text(&open(), request).await.unwrap(), "end");
        assert_eq!(origin.seen()[0].headers["authorization"], "Bearer hunter2");
        let last = other.seen().pop().unwrap();
        assert!(
            !format!("{last:?}").contains("hunter2"),
            "{status}: {last:?}"
        );
        for (name, value) in HARMLESS {
            assert_eq!(last.headers.get(*name).unwrap(), value, "{status} {name}");
        }
        assert!(
            last.headers.get("referer").is_none() && last.headers.get("content-type").is_none()
        );
    }
}

#[tokio::test]
async fn no_body_crosses_to_another_origin() {
    for status in [307, 308] {
        let other = Origin::start(|_| ok("end")).await;
        let origin = Origin::start(redirecting(other.url("/end").into())).await;
        let error = refusal(&open(), post(origin.url(&format!("/{status}")))).await;
        assert_eq!(
            error.to_string(),
            "redirect refused: it would carry the request's body to another origin"
        );
        assert!(error.sent, "the first server has seen it");
        assert_eq!(other.accepted(), 0);
    }
    let other = Origin::start(|_| ok("end")).await;
    let origin = Origin::start(redirecting(other.url("/end").into())).await;
    assert_eq!(
        text(&open(), post(origin.url("/303"))).await.unwrap(),
        "end"
    );
    let last = other.seen().pop().unwrap();
    assert_eq!((last.method.clone(), last.body.as_str()), (Method::GET, ""));
    assert!(!format!("{last:?}").contains("hunter2"), "{last:?}");
}

#[tokio::test]
async fn credentials_do_not_come_back_with_the_origin() {
    let back = Arc::new(Mutex::new(String::new()));
    let to_back = back.clone();
    let other = Origin::start(move |_| redirect(302, &to_back.lock().unwrap())).await;
    let origin = Origin::start(redirecting(other.url("/").into())).await;
    *back.lock().unwrap() = origin.url("/end").into();
    let request = Request {
        method: Method::GET,
        body: Bytes::new(),
        ..post(origin.url("/302"))
    };
    assert_eq!(text(&open(), request).await.unwrap(), "end");
    let seen = origin.seen();
    assert_eq!(seen.len(), 2);
    assert!(
        !format!("{:?}", seen[1]).contains("hunter2"),
        "{:?}",
        seen[1]
    );
}

#[tokio::test]
async fn five_redirects_are_followed_and_a_sixth_is_not() {
    let countdown = |uri: &Uri| match uri.path()[1..].parse::<u32>().unwrap() {
        0 => ok("end"),
        left => redirect(302, &format!("/{}", left - 1)),
    };
    let origin = Origin::start(countdown).await;
    assert_eq!(
        text(&open(), Request::get(origin.url("/5"))).await.unwrap(),
        "end"
    );
    assert_eq!(origin.seen().len(), 6);
    let error = refusal(&open(), Request::get(origin.url("/6"))).await;
    assert_eq!(error.to_string(), "exceeded 5 redirects");
    assert_eq!(origin.seen().len(), 12);
}

#[tokio::test]
async fn each_hop_passes_the_gate_again() {
    let spy = Origin::start(|_| ok("reached")).await;
    let port = spy.address.port();
    for (to, why) in [
        (
            format!("http://localhost:{port}/"),
            "private/loopback/internal host \"localhost\" not in egress allowlist",
        ),
        (
            format!("http://127.0.0.2:{port}/"),
            "private/loopback/internal host \"127.0.0.2\" not in egress allowlist",
        ),
        (
            format!("//[::1]:{port}/"),
            "private/loopback/internal host \"[::1]\" not in egress allowlist",
        ),
        (
            "http://example.com/".to_owned(),
            "plain http to non-loopback host \"example.com\" (use https or allowlist it)",
        ),
        (
            "ftp://example.com/".to_owned(),
            "scheme \"ftp\" not allowed (http/https only)",
        ),
        (
            "file:///etc/passwd".to_owned(),
            "scheme \"file\" not allowed (http/https only)",
        ),
        (
            format!("http://user:hunter2@127.0.0.1:{port}/"),
            "URL with user information for host \"127.0.0.1\" (send credentials in a header)",
        ),
    ] {
        let origin = Origin::start(redirecting(to.clone())).await;
        let error = refusal(&open(), Request::get(origin.url("/302"))).await;
        assert_eq!(error.to_string(), format!("egress rejected: {why}"), "{to}");
        assert!(error.sent, "the server that redirected has seen it");
    }
    assert_eq!(spy.accepted(), 0);
}

#[tokio::test]
async fn a_redirect_without_a_location_is_the_answer() {
    let origin =
        Origin::start(|_| Answer::builder().status(302).body("here".into()).unwrap()).await;
    let answer = open().send(Request::get(origin.url("/"))).await.unwrap();
    assert_eq!(
        (answer.status, answer.url),
        (StatusCode::FOUND, origin.url("/"))
    );
}
