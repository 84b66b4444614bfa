//! One step of a model, against a scripted one: what comes out, and what the model is shown.

use std::{sync::Arc, time::Duration};

use domain::{pack::Llm, run::Usage};
use futures_util::{Stream, StreamExt};
use llm::{Delta, Limits, ModelCall, ModelError, Models, Reply, StepRequest, Stop, ToolDef, Turn};
use serde_json::{Value, json, value::to_raw_value};

use super::support::{
    client::plain_http,
    model::{ScriptedModel, call, calls, text, text_of},
};

mod fallback; // other models, when one says nothing
mod guards; // sizes, silences, cancelling
mod hostile; // endpoints that break their own protocol
mod logs; // what is never written down
pub mod prefixes; // what providers keep of a request for the next one
mod providers; // stubs with the rules of each provider
mod retries; // errors, patience, the breaker
mod script; // the scripted model itself
mod wires; // the other three providers

fn client() -> reqwest::Client {
    plain_http()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap()
}

/// Production's bounds, with waits that a test can afford.
fn limits() -> Limits {
    Limits {
        backoff: Duration::from_millis(1),
        ..Limits::default()
    }
}

fn models() -> Models {
    Models::with_limits(client(), limits())
}

fn request() -> StepRequest {
    StepRequest {
        tenant: None,
        user: None,
        system: "be brief".to_owned(),
        history: vec![user("how much do I have?")],
        tools: vec![balances()],
        format: None,
        is_repeated_by_client: false,
    }
}

fn balances() -> ToolDef {
    tool(
        "bank__get_balances",
        json!({ "type": "object", "properties": { "account": { "type": "string" } } }),
    )
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "callers write the schema in place"
)]
fn tool(name: &str, schema: Value) -> ToolDef {
    ToolDef {
        name: name.to_owned(),
        description: "a tool".to_owned(),
        schema: Arc::from(to_raw_value(&schema).unwrap()),
    }
}

fn user(text: &str) -> Turn {
    Turn::User(text.to_owned())
}

fn assistant(text: &str, calls: impl Into<Vec<ModelCall>>) -> Turn {
    Turn::Assistant {
        text: text.to_owned(),
        calls: calls.into(),
    }
}

fn made(id: &str, name: &str, arguments: &str) -> ModelCall {
    ModelCall {
        call_id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    }
}

fn result(id: &str, text: &str) -> Turn {
    Turn::ToolResult {
        call_id: id.to_owned(),
        name: "bank__get_balances".to_owned(),
        text: text.to_owned(),
        is_error: false,
    }
}

/// All pieces of text, and how the stream ended.
async fn collect(
    mut stream: impl Stream<Item = Result<Delta, ModelError>> + Unpin,
) -> (Vec<String>, Result<Reply, ModelError>) {
    let mut pieces = Vec::new();
    while let Some(item) = stream.next().await {
        let end = match item {
            Ok(Delta::Text(piece)) => {
                pieces.push(piece);
                continue;
            }
            Ok(Delta::Done(reply)) => Ok(reply),
            Err(error) => Err(error),
        };
        assert!(
            stream.next().await.is_none(),
            "an item came after the last one"
        );
        return (pieces, end);
    }
    panic!("the stream ended without a last item");
}

async fn ask(llm: &Llm, request: StepRequest) -> Result<Reply, ModelError> {
    collect(models().step(llm, request)).await.1
}

#[tokio::test]
async fn text_comes_in_pieces_and_ends_with_the_whole_reply() {
    let model = ScriptedModel::start().await;
    model.reply(text("You have 5 €."));
    let (pieces, reply) = collect(models().step(&model.llm(), request())).await;
    assert_eq!(pieces, ["You ", "have ", "5 ", "€."]);
    let usage = Usage {
        input_tokens: 11,
        cached_input_tokens: 0,
        output_tokens: 7,
        estimated: false,
    };
    let expected = Reply {
        text: "You have 5 €.".to_owned(),
        calls: Vec::new(),
        stop: Stop::End,
        usage,
    };
    assert_eq!(reply.unwrap(), expected);
}

#[tokio::test]
async fn calls_come_assembled_and_in_order() {
    let model = ScriptedModel::start().await;
    model.reply(calls([
        ("bank__get_balances", json!({ "account": "a" })),
        ("bank__get_balances", json!({})),
    ]));
    let reply = ask(&model.llm(), request()).await.unwrap();
    assert_eq!(reply.stop, Stop::ToolCalls);
    assert_eq!(
        reply.calls,
        [
            made("call_0000_0000", "bank__get_balances", r#"{"account":"a"}"#),
            made("call_0000_0001", "bank__get_balances", "{}"),
        ]
    );
}

#[tokio::test]
async fn text_may_come_before_calls() {
    let model = ScriptedModel::start().await;
    model.reply(text("Let me look.").and_call(call("bank__get_balances", "{}")));
    let reply = ask(&model.llm(), request()).await.unwrap();
    assert_eq!(
        (reply.text.as_str(), reply.calls.len()),
        ("Let me look.", 1)
    );
}

#[tokio::test]
async fn the_request_carries_the_packs_settings_and_the_operators_key() {
    let model = ScriptedModel::start().await;
    model.reply(text("ok"));
    let llm = Llm {
        temperature: Some(0.25),
        max_tokens: Some(99),
        ..model.llm()
    };
    ask(&llm, request()).await.unwrap();
    let sent = &model.requests()[0];
    assert_eq!(sent.headers["authorization"], "Bearer model-key-0123456789");
    assert_eq!(
        sent.body,
        json!({
            "model": "scripted",
            "messages": [
                { "role": "system", "content": "be brief" },
                { "role": "user", "content": "how much do I have?" },
            ],
            "tools": [{ "type": "function", "function": {
                "name": "bank__get_balances", "description": "a tool",
                "parameters": { "type": "object", "properties": { "account": { "type": "string" } } },
            } }],
            "temperature": 0.25,
            "max_tokens": 99,
            "stream": true,
            "stream_options": { "include_usage": true },
        })
    );
}

#[tokio::test]
async fn an_endpoint_without_a_key_is_sent_none() {
    let model = ScriptedModel::start().await;
    model.reply(text("ok"));
    ask(
        &Llm {
            api_key: None,
            ..model.llm()
        },
        request(),
    )
    .await
    .unwrap();
    assert!(!model.requests()[0].headers.contains_key("authorization"));
}

#[tokio::test]
async fn a_conversation_is_shown_with_each_result_right_after_its_call() {
    let model = ScriptedModel::start().await;
    model.reply(text("ok"));
    let history = vec![
        user("both accounts?"),
        assistant(
            "",
            [
                made("call_first_1", "bank__get_balances", "{\"account\": \"a\"}"),
                made("call_first_2", "x", "{}"),
            ],
        ),
        result("call_first_2", "two"),
        // Typed while the tools ran.
        user("hurry"),
        result("call_first_1", "one"),
        assistant("one and two", []),
        user("thanks"),
    ];
    ask(
        &model.llm(),
        StepRequest {
            history,
            ..request()
        },
    )
    .await
    .unwrap();
    let body = model.last_request();
    let shown: Vec<(String, String)> = body["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| {
            (
                message["role"].as_str().unwrap().to_owned(),
                text_of(message),
            )
        })
        .collect();
    let shown: Vec<(&str, &str)> = shown
        .iter()
        .map(|(role, text)| (role.as_str(), text.as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            ("system", "be brief"),
            ("user", "both accounts?"),
            ("assistant", ""),
            ("tool", "one"),
            ("tool", "two"),
            (
                "assistant",
                "[note of the chat program, not the assistant's words: the user went on before there was an answer]",
            ),
            ("user", "hurry"),
            ("assistant", "one and two"),
            ("user", "thanks"),
        ]
    );
}

#[tokio::test]
async fn a_history_may_be_cut_anywhere() {
    let turns = [
        user("one"),
        assistant(
            "",
            [
                made("call_cut_0001", "bank__get_balances", "{}"),
                made("call_cut_0002", "bank__get_balances", "{}"),
            ],
        ),
        result("call_cut_0001", "1"),
        result("call_cut_0002", "2"),
        assistant("", [made("call_cut_0001", "bank__get_balances", "{}")]),
        result("call_cut_0001", "3"),
        assistant("done", []),
        user("two"),
    ];
    let model = ScriptedModel::start().await;
    model.on(|_| Some(text("ok")));
    for from in 0..turns.len() {
        for to in from + 1..=turns.len() {
            let history = turns[from..to].to_vec();
            let unheard = history
                .iter()
                .all(|turn| matches!(turn, Turn::ToolResult { .. }));
            let history = if unheard { vec![user("go")] } else { history };
            ask(
                &model.llm(),
                StepRequest {
                    history,
                    ..request()
                },
            )
            .await
            .unwrap();
        }
    }
}

#[tokio::test]
async fn what_a_model_made_up_is_shown_back_in_a_legal_shape() {
    let model = ScriptedModel::start().await;
    model.reply(text("ok"));
    let long = "x".repeat(100);
    let history = vec![
        user(" "),
        assistant(
            "",
            [
                made("call_odd_0001", "bank.get balances!", "{\"a\": "),
                made("call_odd_0002", &long, "[1]"),
            ],
        ),
        result("call_odd_0001", ""),
    ];
    ask(
        &model.llm(),
        StepRequest {
            history,
            ..request()
        },
    )
    .await
    .unwrap();
    let body = model.last_request();
    let calls = &body["messages"][2]["tool_calls"];
    assert_eq!(calls[0]["function"]["name"], "bank_get_balances_");
    assert_eq!(calls[1]["function"]["name"], "x".repeat(64));
    assert_eq!(
        body["messages"][4]["content"],
        "there is no result of this call"
    );
}

#[tokio::test]
async fn a_schema_is_sent_without_what_providers_refuse() {
    let model = ScriptedModel::start().await;
    model.reply(text("ok"));
    let nested = json!({ "oneOf": [{ "type": "string" }, { "type": "null" }] });
    let tools = vec![
        tool(
            "a",
            json!({
                "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
                "properties": { "x": nested }, "required": ["x"], "anyOf": [{ "required": ["x"] }], "additionalProperties": false,
            }),
        ),
        tool("b", json!({})),
        tool("c", json!(true)),
    ];
    ask(&model.llm(), StepRequest { tools, ..request() })
        .await
        .unwrap();
    let body = model.last_request();
    let schema = |at: usize| body["tools"][at]["function"]["parameters"].clone();
    assert_eq!(
        schema(0),
        json!({ "type": "object", "properties": { "x": nested }, "required": ["x"], "additionalProperties": false })
    );
    assert_eq!(schema(1), json!({ "type": "object", "properties": {} }));
    assert_eq!(schema(2), schema(1));
}

#[tokio::test]
async fn an_id_that_the_conversation_has_already_is_replaced() {
    let model = ScriptedModel::start().await;
    let again = || call("bank__get_balances", "{}").id("call_taken_01");
    model.reply(
        text("")
            .and_call(again())
            .and_call(again())
            .and_call(call("bank__get_balances", "{}").id("call_new_0001")),
    );
    let history = vec![
        user("go"),
        assistant("", [made("call_taken_01", "bank__get_balances", "{}")]),
        result("call_taken_01", "1"),
    ];
    let reply = ask(
        &model.llm(),
        StepRequest {
            history,
            ..request()
        },
    )
    .await
    .unwrap();
    let mut ids: Vec<&str> = reply
        .calls
        .iter()
        .map(|call| call.call_id.as_str())
        .collect();
    assert_eq!(ids.len(), 3);
    assert_eq!(ids[2], "call_new_0001");
    assert!(!ids.contains(&"call_taken_01"), "{ids:?}");
    ids.dedup();
    assert_eq!(ids.len(), 3, "{ids:?}");
}

#[tokio::test]
async fn an_id_that_is_only_a_counter_is_replaced() {
    let model = ScriptedModel::start().await;
    model.reply(
        text("")
            .and_call(call("bank__get_balances", "{}").id("call_0"))
            .and_call(call("bank__get_balances", "{}").id("")),
    );
    let reply = ask(&model.llm(), request()).await.unwrap();
    assert!(
        reply.calls.iter().all(|call| call.call_id.len() > 30),
        "{:?}",
        reply.calls
    );
    assert_ne!(reply.calls[0].call_id, reply.calls[1].call_id);
}

#[tokio::test]
async fn usage_that_is_not_given_is_estimated_and_says_so() {
    let model = ScriptedModel::start().await;
    model
        .reply(text("x".repeat(400)).without_usage())
        .reply(text("y").usage(0, 0));
    for output in [100, 1] {
        let usage = ask(&model.llm(), request()).await.unwrap().usage;
        assert!(usage.estimated);
        assert_eq!(usage.output_tokens, output);
        assert!((10..100).contains(&usage.input_tokens), "{usage:?}");
    }
}

#[tokio::test]
async fn an_agent_without_a_model_says_so() {
    let llm = Llm {
        provider: domain::pack::Provider::None,
        ..ScriptedModel::start().await.llm()
    };
    let error = ask(&llm, request()).await.unwrap_err();
    assert_eq!(error, ModelError::NoModel);
    assert!(error.to_string().starts_with("this agent has no model"));
}
