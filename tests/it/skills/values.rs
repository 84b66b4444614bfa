//! What a skill is given, and the text of its result.

use domain::{
    json::{Json, Members},
    message::{CallStatus, ToolResult},
    skill::{arguments, result_text, with_input},
};
use serde_json::{Value, json};

fn value(members: Members) -> Value {
    Json::Object(members).to_value()
}

fn members(value: &Value) -> Members {
    Json::from(value).as_object().cloned().unwrap_or_default()
}

fn given(text: &str) -> Value {
    let read = arguments(text).expect("it stands in braces");
    value(read.expect("these can be arguments").given)
}

#[test]
fn a_text_in_braces_is_the_arguments() {
    assert_eq!(
        given(r#" {"repo":"x","deep":{"a":1}} "#),
        json!({ "repo": "x", "deep": { "a": 1 } })
    );
    for words in ["rust async", "  ", "[1]", "{ is a brace"] {
        assert!(
            arguments(words).is_none(),
            "only an object can be arguments"
        );
    }
    assert!(
        arguments("{repo: x}").is_some_and(|read| read.is_err()),
        "what looks like arguments is never taken for a text"
    );
}

#[test]
fn context_and_free_text_meet_as_the_document_says() {
    let context = members(&json!({ "repo": "x" }));
    let met = with_input(context.clone(), "go").map(value);
    assert_eq!(met, Ok(json!({ "repo": "x", "input": "go" })));
    assert_eq!(
        with_input(context, " ").map(value),
        Ok(json!({ "repo": "x" }))
    );
    let taken = members(&json!({ "input": "a" }));
    assert!(with_input(taken, "b").is_err());
}

#[test]
fn arguments_that_can_be_read_in_two_ways_are_marked() {
    let read = arguments(r#"{"to":"a","to":"b"}"#).expect("it stands in braces");
    assert!(read.expect("it is JSON").ambiguity.is_some());
}

#[test]
fn structured_content_goes_before_the_text_of_the_content() {
    let result = |raw: Value| ToolResult {
        raw: serde_json::value::to_raw_value(&raw).ok(),
        ..ToolResult::new("c", CallStatus::Succeeded, "one\ntwo")
    };
    assert_eq!(
        result_text(&result(
            json!({ "content": [], "structuredContent": { "a": 1 } })
        ))
        .text,
        r#"{"a":1}"#
    );
    for raw in [
        json!({ "content": [] }),
        json!({ "structuredContent": null }),
    ] {
        assert_eq!(result_text(&result(raw)).text, "one\ntwo");
    }
}
