use domain::tool::ToolOutcome;
use http::StatusCode;
use mcp::CallError;
use serde_json::{Value, json};

use crate::support::{
    scripted::{Scripted, Seen, reply},
    servers::{args, key, mcp, options, request, spec},
};

/// What a call makes of this result.
async fn outcome_of(result: impl Into<String>) -> Result<ToolOutcome, CallError> {
    let result = result.into();
    let server = Scripted::modern(move |seen: Seen| {
        let result = result.clone();
        async move { (seen.method() == "tools/call").then(|| seen.raw_result(&result)) }
    })
    .await;
    mcp()
        .call(
            &key(),
            &spec(server.endpoint()),
            request("echo", &args(&json!({}))),
            options(),
        )
        .await
}

#[tokio::test]
async fn a_result_is_kept_as_it_came() {
    let raw = r#"{"content":[{"type":"hologram","beam":1e400},{"type":"text","text":"a\u00e9"}], "extra" : 1.10}"#;
    let outcome = outcome_of(raw).await.unwrap();
    assert_eq!(outcome.raw.get(), raw);
    assert_eq!(outcome.text, "[hologram]\naé");
    assert!(!outcome.is_error);
}

#[tokio::test]
async fn what_is_no_text_is_named_and_measured() {
    let blocks = json!({"content": [
        {"type": "text", "text": "see"},
        {"type": "image", "mimeType": "image/png", "data": "A".repeat(16 * 1024)},
        {"type": "audio", "mimeType": "audio/wav", "data": "AAAA"},
        {"type": "resource", "resource": {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "inside"}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAA"}},
        {"type": "resource_link", "uri": "https://example.org/c", "name": "c"},
        {"text": "no type"},
    ]});
    let text = outcome_of(blocks.to_string()).await.unwrap().text;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "see",
            "[image image/png, 12 KB]",
            "[audio audio/wav, 3 bytes]",
            "[resource file:///a.txt text/plain, 6 bytes]",
            "inside",
            "[resource file:///b, 3 bytes]",
            "[link https://example.org/c]",
            "[content that cannot be read]",
        ]
    );
}

#[tokio::test]
async fn structured_content_is_the_text_when_there_is_none() {
    let alone = outcome_of(r#"{"content":[],"structuredContent":{"rate": 1.10},"isError":true}"#)
        .await
        .unwrap();
    assert_eq!(
        (alone.text.as_str(), alone.is_error),
        (r#"{"rate": 1.10}"#, true)
    );
}

async fn text_of(content: Value, structured: &str) -> String {
    let result = format!(r#"{{"content":{content},"structuredContent":{structured}}}"#);
    outcome_of(result).await.unwrap().text
}

#[tokio::test]
async fn structured_content_follows_a_text_that_does_not_say_it() {
    let note = json!([{ "type": "text", "text": "2 projects" }]);
    let projects = r#"{"projects":[{"id":12345678901234567890123,"rate":1.10}]}"#;
    assert_eq!(
        text_of(note.clone(), projects).await,
        format!("2 projects\n{projects}")
    );
    let resource = json!([{ "type": "resource", "resource": { "uri": "file:///a", "text": "2" } }]);
    assert!(text_of(resource, projects).await.ends_with(projects));
    let other = json!([{ "type": "text", "text": projects.replace("890123", "890124") }]);
    assert!(
        text_of(other, projects).await.ends_with(projects),
        "another number is not the same"
    );
}

#[tokio::test]
async fn structured_content_is_not_repeated_where_the_text_says_it() {
    let texts = |texts: &[&str]| -> Value {
        texts
            .iter()
            .map(|text| json!({ "type": "text", "text": text }))
            .collect()
    };
    for (said, structured) in [
        (
            texts(&["{\n  \"b\": 2.0,\n  \"a\": \"\u{e9}\"\n}"]),
            r#"{"a":"\u00e9","b":2}"#,
        ),
        (texts(&[r#"Found: {"a":1}"#]), r#"{"a":1}"#),
        (texts(&["5"]), r#"{"result":5}"#),
        (texts(&["hello"]), r#"{"result":"hello"}"#),
        (texts(&["12"]), r#"{"result":"12"}"#),
        (
            texts(&[r#"{"id":1}"#, r#"{"id":2}"#]),
            r#"{"result":[{"id":1},{"id":2}]}"#,
        ),
        (texts(&["a", "b"]), r#"{"result":["a","b"]}"#),
        (texts(&["done"]), "{}"),
    ] {
        let lines: Vec<_> = said
            .as_array()
            .unwrap()
            .iter()
            .map(|block| block["text"].as_str().unwrap())
            .collect();
        assert_eq!(
            text_of(said.clone(), structured).await,
            lines.join("\n"),
            "{structured}"
        );
    }
}

#[tokio::test]
async fn content_that_is_no_list_is_not_lost() {
    for (result, text) in [
        (r#"{"content":"it is done"}"#, "it is done"),
        (r#"{"content":{"type":"text","text":"one"}}"#, "one"),
        (r#"{"content":{}}"#, "[content that cannot be read]"),
        (r#"{"content":7}"#, "[content that cannot be read]"),
        (r#"{"toolResult":"old"}"#, "[the result has no content]"),
        (r#"{"content":[]}"#, ""),
        (r#"{"content":[],"isError":true}"#, ""),
        (r#"{"isError":true}"#, ""),
        (
            r#"{"content":null,"structuredContent":{"a":1}}"#,
            r#"{"a":1}"#,
        ),
    ] {
        assert_eq!(outcome_of(result).await.unwrap().text, text, "{result}");
    }
}

#[tokio::test]
async fn a_long_text_is_cut_between_characters_and_says_so() {
    let long = "é".repeat(40_000);
    let result = json!({"content": [{"type": "text", "text": format!("x{long}")}]});
    let outcome = outcome_of(result.to_string()).await.unwrap();
    let (kept, mark) = outcome.text.rsplit_once('\n').unwrap();
    assert_eq!(kept, format!("x{}", "é".repeat(32_767)));
    assert_eq!(mark, "[cut: 14466 more bytes are not shown]");
    assert!(outcome.raw.get().len() > 80_000);
}

#[tokio::test]
async fn a_result_that_asks_for_something_is_a_refusal() {
    let error =
        outcome_of(r#"{"resultType":"input_required","inputRequests":{},"requestState":"s"}"#)
            .await
            .unwrap_err();
    let CallError::Refused { message, .. } = error else {
        panic!("{error:?}")
    };
    assert!(message.contains("input_required"), "{message}");
}

#[tokio::test]
async fn a_result_that_is_no_object_leaves_the_outcome_unknown() {
    for result in ["[]", "7", "\"done\""] {
        let error = outcome_of(result).await.unwrap_err();
        assert!(
            matches!(error, CallError::OutcomeUnknown(_)),
            "{result}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_result_of_an_unknown_kind_leaves_the_outcome_unknown() {
    let error = outcome_of(r#"{"resultType":"task","task":{"taskId":"1"}}"#)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, CallError::OutcomeUnknown(reason) if reason.contains("task")),
        "{error:?}"
    );
}

/// What `slice()` of JavaScript leaves of an emoji.
#[tokio::test]
async fn half_a_character_becomes_a_replacement_character() {
    let raw = r#"{"content":[{"type":"text","text":"x\ud83dy \\ud83d \ud83d\ude00 \ude00"}]}"#;
    let outcome = outcome_of(raw).await.unwrap();
    assert_eq!(outcome.text, "x\u{fffd}y \\ud83d \u{1f600} \u{fffd}");
    let kept: serde_json::Value = serde_json::from_str(outcome.raw.get()).unwrap();
    assert_eq!(kept["content"][0]["text"], outcome.text);
}

#[tokio::test]
async fn bytes_that_are_no_utf_8_become_replacement_characters() {
    let bytes = |seen: &Seen, before: &str, after: &str| {
        let start = format!(
            r#"{before}{{"jsonrpc":"2.0","id":{},"result":"#,
            seen.body["id"]
        );
        let mut bytes = start.into_bytes();
        bytes.extend(br#"{"content":[{"type":"text","text":"caf"#);
        bytes.extend([0xe9]);
        bytes.extend("é".as_bytes());
        bytes.extend(br#""}]}}"#);
        bytes.extend(after.as_bytes());
        bytes
    };
    for (content_type, before, after) in [
        ("application/json", "", ""),
        ("text/event-stream", "data: ", "\n\n"),
    ] {
        let server = Scripted::modern(move |seen: Seen| async move {
            (seen.method() == "tools/call").then(|| {
                let body = bytes(&seen, before, after);
                reply(StatusCode::OK, &[("content-type", content_type)], body)
            })
        })
        .await;
        let (mcp, key, spec) = (mcp(), key(), spec(server.endpoint()));
        let outcome = mcp
            .call(&key, &spec, request("echo", &args(&json!({}))), options())
            .await;
        assert_eq!(outcome.unwrap().text, "caf\u{fffd}é", "{content_type}");
    }
}

#[tokio::test]
async fn a_result_that_is_nested_too_deep_keeps_its_text_alone() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let raw = format!(
        r#"{{"content":[{{"type":"text","text":"[[[ done"}}],"structuredContent":{{"a":{deep}}}}}"#
    );
    let outcome = outcome_of(raw).await.unwrap();
    assert!(outcome.text.starts_with("[[[ done\n"), "{}", outcome.text);
    assert!(outcome.text.contains("nested deeper"), "{}", outcome.text);
    assert!(outcome.raw.get().len() < 1000);
}
