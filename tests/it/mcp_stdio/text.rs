//! Encodings of a child's streams, and how its lines end.

use domain::{encoding, server::Endpoint};
use mcp::McpErrorKind;
use serde_json::json;

use crate::support::servers::{args, key, mcp, options, probe_stdio, request, spec};

/// The probe with its streams in a Python encoding, and what the pack says of it.
fn probe(python: &str, label: &str) -> Endpoint {
    let probe = probe_stdio(&[], &[("PYTHONIOENCODING", python)]);
    let Endpoint::Stdio {
        command,
        args,
        env,
        cwd,
        ..
    } = probe
    else {
        unreachable!("a probe is a child")
    };
    Endpoint::Stdio {
        command,
        args,
        env,
        cwd,
        encoding: Some(label.to_owned()),
    }
}

#[tokio::test]
async fn text_survives_both_ways_in_every_encoding() {
    for (python, label, said) in [
        ("utf-8", "utf-8", "Zürich ☕ 東京 🦀"),
        ("utf-8", "UTF_8", "Zürich ☕ 東京 🦀"),
        ("latin-1", "latin-1", "Zürich à la carte"),
        ("cp1252", "windows-1252", "5 € for “Zürich”"),
        ("cp1251", "cp1251", "Привет"),
        ("koi8-r", "koi8-r", "Привет"),
        ("shift_jis", "shift_jis", "東京\\"),
        ("euc-kr", "euc-kr", "서울"),
        ("gb18030", "gb18030", "北京 🦀"),
        ("utf-16-le", "utf-16le", "Zürich ☕ 🦀"),
        ("utf-16-be", "utf-16-be", "Zürich ☕ 🦀"),
    ] {
        let (mcp, key, spec) = (mcp(), key(), spec(probe(python, label)));
        let outcome = mcp
            .call(
                &key,
                &spec,
                request("echo", &args(&json!({"said": said}))),
                options(),
            )
            .await
            .unwrap();
        let back: serde_json::Value = serde_json::from_str(&outcome.text).unwrap();
        assert_eq!(back, json!({"said": said}), "{label}");
        mcp.close(&key).await;
    }
}

#[tokio::test]
async fn an_unknown_encoding_is_refused_at_the_launch() {
    for label in ["klingon", "", "utf-7", "iso-2022-kr", "replacement"] {
        let why = encoding::parse_label(label).unwrap_err();
        assert!(
            why.contains(&format!("{label:?}")) && why.contains("utf-8"),
            "{why}"
        );
        let error = mcp()
            .discover(&key(), &spec(probe("utf-8", label)))
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind, &error.message),
            (McpErrorKind::Misconfigured, &why)
        );
    }
}

#[tokio::test]
async fn lines_may_end_as_on_windows_and_what_is_no_message_is_left_out() {
    let (mcp, key, spec) = (mcp(), key(), spec(probe_stdio(&["crlf", "chatty"], &[])));
    let outcome = mcp
        .call(
            &key,
            &spec,
            request("echo", &args(&json!({"n": 1}))),
            options(),
        )
        .await
        .unwrap();
    assert_eq!(outcome.text, r#"{"n": 1}"#);
}

/// Line ends between the parts of JSON are white space, and would end a message of this transport.
#[tokio::test]
async fn arguments_with_line_ends_travel_in_one_line() {
    let (mcp, key, spec) = (mcp(), key(), spec(probe_stdio(&[], &[])));
    let arguments: Box<serde_json::value::RawValue> =
        serde_json::from_str("{\n  \"n\":\r\n  1\n}").unwrap();
    let outcome = mcp
        .call(&key, &spec, request("echo", &arguments), options())
        .await
        .unwrap();
    assert_eq!(outcome.text, r#"{"n": 1}"#);
}
