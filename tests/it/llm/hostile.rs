//! Endpoints that break their own protocol, each in a way that was seen somewhere.

use super::*;
use crate::support::model::{Index, events, raw};

#[expect(
    clippy::needless_pass_by_value,
    reason = "callers write the delta in place"
)]
fn chunk(delta: Value, reason: Option<&str>) -> Value {
    json!({ "object": "chat.completion.chunk", "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }] })
}

#[tokio::test]
async fn calls_are_told_apart_whatever_their_index() {
    let model = ScriptedModel::start().await;
    for index in [
        Index::Missing,
        Index::Gapped,
        Index::From(7),
        Index::From(4_000_000_000),
        Index::From(u64::MAX - 2),
    ] {
        model.reply(
            calls([
                ("bank__get_balances", json!({ "account": "a" })),
                ("bank__get_balances", json!({ "account": "b" })),
            ])
            .index(index),
        );
        let reply = ask(&model.llm(), request()).await.unwrap();
        let arguments: Vec<&str> = reply
            .calls
            .iter()
            .map(|call| call.arguments.as_str())
            .collect();
        assert_eq!(
            arguments,
            [r#"{"account":"a"}"#, r#"{"account":"b"}"#],
            "{index:?}"
        );
    }
}

#[tokio::test]
async fn fragments_of_several_calls_may_be_mixed() {
    let piece = |index: u64, text: &str| {
        chunk(
            json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] }),
            None,
        )
    };
    let head = |index: u64, name: &str| {
        chunk(
            json!({ "tool_calls": [{ "index": index, "id": format!("call_mixed_{index}"), "function": { "name": name } }] }),
            None,
        )
    };
    let model = ScriptedModel::start().await;
    model.reply(events([
        head(0, "first"),
        head(1, "second"),
        piece(1, "{\"b\""),
        piece(0, "{\"a\""),
        piece(1, ":2}"),
        piece(0, ":1}"),
        chunk(json!({}), Some("tool_calls")),
    ]));
    let reply = ask(&model.llm(), request()).await.unwrap();
    assert_eq!(
        reply.calls,
        [
            made("call_mixed_0", "first", "{\"a\":1}"),
            made("call_mixed_1", "second", "{\"b\":2}")
        ]
    );
}

#[tokio::test]
async fn a_call_without_a_name_is_no_call() {
    let model = ScriptedModel::start().await;
    model.reply(text("hm").and_call(call("", "{}")));
    let reply = ask(&model.llm(), request()).await.unwrap();
    assert_eq!((reply.calls.len(), reply.stop), (0, Stop::End));
}

#[tokio::test]
async fn arguments_that_are_not_json_are_kept_as_written() {
    let model = ScriptedModel::start().await;
    for arguments in [
        "{\"account\": ",
        "{'account': 'a'}",
        "[1, 2]",
        "\"a\"",
        "{\"a\": 1} }",
        "not json",
    ] {
        model.reply(text("").and_call(call("bank__get_balances", arguments)));
        let reply = ask(&model.llm(), request()).await.unwrap();
        assert_eq!(reply.calls[0].arguments, arguments);
        assert_eq!(reply.stop, Stop::ToolCalls);
    }
}

#[tokio::test]
async fn a_call_without_arguments_has_an_empty_object() {
    let model = ScriptedModel::start().await;
    for arguments in ["", " ", "null"] {
        model.reply(text("").and_call(call("bank__get_balances", arguments)));
        assert_eq!(
            ask(&model.llm(), request()).await.unwrap().calls[0].arguments,
            "{}",
            "{arguments:?}"
        );
    }
}

#[tokio::test]
async fn a_missing_end_mark_is_forgiven_when_the_model_said_why_it_stopped() {
    let model = ScriptedModel::start().await;
    model.reply(text("all of it").without_done());
    assert_eq!(
        ask(&model.llm(), request()).await.unwrap().text,
        "all of it"
    );
}

/// NVIDIA NIM and others never say why an answer ended.
#[tokio::test]
async fn an_answer_that_ends_with_its_mark_is_complete_without_a_reason() {
    let model = ScriptedModel::start().await;
    let said = chunk(json!({ "role": "assistant", "content": "all of it" }), None);
    let call = json!({ "index": 0, "id": "call_whole_001", "type": "function", "function": { "name": "bank__get_balances", "arguments": "{}" } });
    let called = chunk(json!({ "tool_calls": [call] }), None);
    for mark in ["[DONE]", "[DONE] ", " [DONE]  "] {
        model.reply(raw([format!("data: {said}\n\ndata:{mark}\n\n")]));
        let reply = ask(&model.llm(), request()).await.unwrap();
        assert_eq!((reply.text.as_str(), reply.stop), ("all of it", Stop::End));
        model.reply(raw([format!("data: {called}\n\ndata: {mark}\n\n")]));
        let reply = ask(&model.llm(), request()).await.unwrap();
        assert_eq!(
            (reply.calls.len(), reply.stop),
            (1, Stop::ToolCalls),
            "{mark:?}"
        );
    }
    let half = json!({ "index": 0, "id": "call_half_0001", "function": { "name": "bank__get_balances", "arguments": "{\"a\":" } });
    let half = chunk(json!({ "tool_calls": [half] }), None);
    model.reply(raw([format!("data: {half}\n\ndata: [DONE]\n\n")]));
    assert_eq!(
        ask(&model.llm(), request()).await,
        Err(ModelError::Truncated)
    );
}

#[tokio::test]
async fn a_mark_of_byte_order_line_ends_of_old_and_halves_of_an_emoji_are_read_over() {
    let model = ScriptedModel::start().await;
    let said = |text: &str| {
        chunk(json!({ "content": "TEXT" }), None)
            .to_string()
            .replace("TEXT", text)
    };
    let end = chunk(json!({}), Some("stop"));
    model.reply(raw([format!(
        "\u{feff}data: {}\r\rdata: {}\r\rdata: {end}\r\rdata: [DONE]\r\r",
        said("a crab \\ud83e"),
        said("\\udd80 done"),
    )]));
    let reply = ask(&model.llm(), request()).await.unwrap();
    assert!(
        reply.text.starts_with("a crab ") && reply.text.ends_with(" done"),
        "{}",
        reply.text
    );
}

/// `OpenRouter`'s chunk that ends an answer with an error; before the first word the question is asked again.
#[tokio::test]
async fn an_error_beside_a_choice_is_an_error() {
    let broken = json!({
        "error": { "code": 502, "message": "Provider disconnected unexpectedly" },
        "choices": [{ "index": 0, "delta": { "content": "" }, "finish_reason": "error" }],
    });
    let model = ScriptedModel::start().await;
    model.reply(events([broken.clone()])).reply(text("again"));
    assert_eq!(ask(&model.llm(), request()).await.unwrap().text, "again");
    let half = chunk(json!({ "content": "The balance is 1" }), None);
    model.reply(events([half, broken]));
    let (pieces, end) = collect(models().step(&model.llm(), request())).await;
    let error = end.unwrap_err().to_string();
    assert!(
        error.contains("Provider disconnected unexpectedly"),
        "{error}"
    );
    assert_eq!(pieces.concat(), "The balance is 1");
}

#[tokio::test]
async fn an_answer_that_just_ends_is_truncated() {
    let model = ScriptedModel::start().await;
    model.reply(events([chunk(json!({ "content": "half of " }), None)]));
    let (pieces, end) = collect(models().step(&model.llm(), request())).await;
    assert_eq!(
        (pieces, end),
        (vec!["half of ".to_owned()], Err(ModelError::Truncated))
    );
}

#[tokio::test]
async fn an_answer_whose_connection_breaks_is_truncated() {
    let model = ScriptedModel::start().await;
    model.reply(text("one two three four").cut(4));
    let (pieces, end) = collect(models().step(&model.llm(), request())).await;
    assert_eq!(end, Err(ModelError::Truncated));
    assert!(
        "one two three".starts_with(pieces.concat().trim()),
        "{pieces:?}"
    );
    assert_eq!(model.requests().len(), 1, "an answer was asked for twice");
}

#[tokio::test]
async fn a_call_that_is_cut_is_never_handed_out() {
    let model = ScriptedModel::start().await;
    model.reply(calls([("bank__get_balances", json!({ "account": "a" }))]).cut(4));
    assert_eq!(
        ask(&model.llm(), request()).await,
        Err(ModelError::Truncated)
    );
}

#[tokio::test]
async fn an_error_in_the_stream_is_an_error_of_its_kind() {
    let model = ScriptedModel::start().await;
    let cases = [
        (
            json!({ "error": { "message": "Overloaded", "type": "overloaded_error" } }),
            "unavailable",
        ),
        (
            json!({ "error": { "message": "too fast", "code": 429 } }),
            "rate_limited",
        ),
        (
            json!({ "error": { "message": "too long", "code": "context_length_exceeded" } }),
            "bad_request",
        ),
        (
            json!({ "error": { "message": "no", "code": "invalid_api_key" } }),
            "unauthorized",
        ),
        (json!({ "error": "something" }), "unavailable"),
    ];
    let asked = cases.len();
    for (event, code) in cases {
        model.reply(events([chunk(json!({ "content": "Let " }), None), event]));
        let (pieces, end) = collect(models().step(&model.llm(), request())).await;
        assert_eq!(pieces, ["Let "]);
        assert_eq!(end.unwrap_err().code(), code);
    }
    assert_eq!(
        model.requests().len(),
        asked,
        "an answer was asked for twice although text was shown"
    );
}

#[tokio::test]
async fn characters_may_be_split_between_chunks() {
    let model = ScriptedModel::start().await;
    for size in [1, 2, 3, 5] {
        model.reply(text("naïve 日本語 🦀 done").in_chunks_of(size));
        let (pieces, end) = collect(models().step(&model.llm(), request())).await;
        assert_eq!(pieces.concat(), "naïve 日本語 🦀 done");
        assert_eq!(end.unwrap().text, pieces.concat());
    }
}

#[tokio::test]
async fn comments_blank_events_and_crlf_are_read_over() {
    let answer = chunk(json!({ "content": "hi" }), Some("stop"));
    let model = ScriptedModel::start().await;
    model.reply(raw([format!(
        ": ping\r\n\r\ndata:\r\n\r\nevent: message\r\ndata: {answer}\r\n\r\ndata: [DONE]\r\n\r\n"
    )]));
    assert_eq!(ask(&model.llm(), request()).await.unwrap().text, "hi");
}

#[tokio::test]
async fn reasons_to_stop_are_values_and_not_errors() {
    let model = ScriptedModel::start().await;
    let cases = [
        ("length", Stop::Length),
        ("content_filter", Stop::ContentFilter),
        ("eos", Stop::End),
        ("something_new", Stop::Other("something_new".to_owned())),
    ];
    for (reason, stop) in cases {
        model.reply(text("so far").finish(reason));
        let reply = ask(&model.llm(), request()).await.unwrap();
        assert_eq!((reply.text.as_str(), reply.stop), ("so far", stop));
    }
}

#[tokio::test]
async fn calls_count_whatever_reason_is_given() {
    let model = ScriptedModel::start().await;
    for reason in ["stop", "something_new", "function_call"] {
        model.reply(calls([("bank__get_balances", json!({}))]).finish(reason));
        let reply = ask(&model.llm(), request()).await.unwrap();
        assert_eq!(
            (reply.calls.len(), reply.stop),
            (1, Stop::ToolCalls),
            "{reason}"
        );
    }
}

#[tokio::test]
async fn a_filtered_answer_has_no_calls() {
    let model = ScriptedModel::start().await;
    model.reply(calls([("bank__get_balances", json!({}))]).finish("content_filter"));
    let reply = ask(&model.llm(), request()).await.unwrap();
    assert_eq!((reply.calls.len(), reply.stop), (0, Stop::ContentFilter));
}

#[tokio::test]
async fn an_answer_cut_by_the_token_limit_shows_the_call_as_far_as_it_came() {
    let model = ScriptedModel::start().await;
    model.reply(
        text("")
            .and_call(call("bank__get_balances", "{\"account\": \"ab"))
            .finish("length"),
    );
    let reply = ask(&model.llm(), request()).await.unwrap();
    assert_eq!(
        (reply.calls[0].arguments.as_str(), reply.stop),
        ("{\"account\": \"ab", Stop::Length)
    );
}

#[tokio::test]
async fn reasoning_is_not_part_of_the_answer() {
    let model = ScriptedModel::start().await;
    model.reply(events([
        chunk(json!({ "reasoning_content": "the user wants" }), None),
        chunk(json!({ "content": "hello" }), None),
        chunk(json!({}), Some("stop")),
    ]));
    let (pieces, end) = collect(models().step(&model.llm(), request())).await;
    assert_eq!(
        (pieces, end.unwrap().text),
        (vec!["hello".to_owned()], "hello".to_owned())
    );
}

#[tokio::test]
async fn something_that_is_not_a_stream_is_a_protocol_error() {
    let model = ScriptedModel::start().await;
    model.reply(raw(["<html>welcome</html>"]).header("content-type", "text/html"));
    model.reply(raw(["data: {\"choices\": \n\n"]));
    for _ in 0..2 {
        assert_eq!(
            ask(&model.llm(), request()).await.unwrap_err().code(),
            "protocol"
        );
    }
}
