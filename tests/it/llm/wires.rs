//! The other three providers, as their documentation describes them on the wire.

use std::sync::Mutex;

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, http::Uri};
use domain::{
    answer_format::{AnswerFormat, AnswerSchema},
    pack::Provider,
    secret::Secret,
};

use super::*;
use crate::support::has::Has;

/// Answers everything with one body, and keeps what it was asked.
struct Fake {
    state: Arc<Kept>,
    base: String,
}

struct Kept {
    content_type: &'static str,
    body: String,
    asked: Mutex<Vec<(Uri, HeaderMap, Value)>>,
}

impl Fake {
    async fn start(content_type: &'static str, body: String) -> Self {
        let state = Arc::new(Kept {
            content_type,
            body,
            asked: Mutex::default(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&state));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { state, base }
    }

    async fn sse(events: impl IntoIterator<Item = Value>) -> Self {
        let event = |event: Value| match event["type"].as_str() {
            Some(name) => format!("event: {name}\ndata: {event}\n\n"),
            None => format!("data: {event}\n\n"),
        };
        Self::start("text/event-stream", events.into_iter().map(event).collect()).await
    }

    async fn ndjson(lines: &[Value]) -> Self {
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        Self::start("application/x-ndjson", lines.join("\n") + "\n").await
    }

    fn llm(&self, provider: Provider, model: &str, path: &str) -> Llm {
        Llm {
            provider,
            model: model.to_owned(),
            base_url: Some(format!("{}{path}", self.base).parse().unwrap()),
            api_key: Some(Secret::new("wire-key-1")),
            agent_prompt: None,
            temperature: None,
            max_tokens: None,
            max_steps: 4,
            reasoning_effort: None,
            fallback: Vec::new(),
        }
    }

    fn asked(&self) -> (Uri, HeaderMap, Value) {
        self.state
            .asked
            .lock()
            .unwrap()
            .pop()
            .expect("nothing was asked")
    }
}

async fn answer(
    State(kept): State<Arc<Kept>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> ([(&'static str, &'static str); 1], String) {
    let body = serde_json::from_slice(&body).unwrap();
    kept.asked.lock().unwrap().push((uri, headers, body));
    ([("content-type", kept.content_type)], kept.body.clone())
}

/// A conversation with everything that providers are particular about.
fn conversation() -> StepRequest {
    let schema = json!({ "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {} });
    let history = vec![
        user("both?"),
        assistant(
            "",
            [
                made("call_wire_0001", "bank__get_balances", "{\"a\": 1}"),
                made("call_wire_0002", "bank__get_balances", "{}"),
            ],
        ),
        result("call_wire_0001", "one"),
    ];
    StepRequest {
        tenant: None,
        user: None,
        system: "be brief".to_owned(),
        history,
        tools: vec![tool("bank__get_balances", schema)],
        format: None,
        is_repeated_by_client: false,
    }
}

/// The same, with the form of the answer.
fn formatted() -> StepRequest {
    let schema = json!({
        "type": "object", "required": ["euros"],
        "properties": { "euros": { "type": "integer", "minimum": 0 }, "when": { "type": "string", "format": "x" } },
    });
    StepRequest {
        format: Some(AnswerFormat::JsonSchema(AnswerSchema {
            name: "balance".to_owned(),
            description: None,
            schema,
            strict: Some(true),
        })),
        ..conversation()
    }
}

#[tokio::test]
async fn each_provider_is_told_the_form_of_an_answer_in_its_own_way() {
    let schema = formatted().format.unwrap().schema().unwrap().clone();
    let asked = async |provider, model: &str, request: StepRequest| {
        let fake = Fake::sse(Vec::new()).await;
        let _ = collect(models().step(&fake.llm(provider, model, ""), request)).await;
        fake.asked().2
    };
    let without_tools = || StepRequest {
        tools: Vec::new(),
        ..formatted()
    };
    let body = asked(Provider::Openai, "a-model", formatted()).await;
    let about = json!({ "name": "balance", "schema": schema, "strict": true });
    assert_eq!(
        body["response_format"],
        json!({ "type": "json_schema", "json_schema": about })
    );
    // Anthropic takes no limits of values and no objects that are open.
    let body = asked(Provider::Anthropic, "a-model", formatted()).await;
    assert_eq!(
        body["output_config"]["format"]["schema"],
        json!({ "type": "object", "required": ["euros"], "additionalProperties": false,
                "properties": { "euros": { "type": "integer" }, "when": { "type": "string" } } })
    );
    for (model, request, is_told) in [
        ("gemini-3-pro", formatted(), true),
        ("gemini-2.5-flash", formatted(), false),
        ("gemini-2.5-flash", without_tools(), true),
    ] {
        let body = asked(Provider::Gemini, model, request).await;
        let config = &body["generationConfig"];
        assert_eq!(
            config["responseJsonSchema"] == schema,
            is_told,
            "{model}: {body}"
        );
        assert_eq!(config["responseMimeType"] == "application/json", is_told);
    }
    let body = asked(Provider::Ollama, "a-model", formatted()).await;
    assert_eq!(
        body["format"],
        Value::Null,
        "it would keep the model from its tools"
    );
    let body = asked(Provider::Ollama, "a-model", without_tools()).await;
    assert_eq!(body["format"], schema);
}

fn anthropic(stop: &str) -> Vec<Value> {
    vec![
        json!({ "type": "message_start", "message": { "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [], "usage": { "input_tokens": 21, "output_tokens": 1 } } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
        json!({ "type": "ping" }),
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "Let me " } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "look." } }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "content_block_start", "index": 1, "content_block": { "type": "tool_use", "id": "toolu_01A09q90qw90lq917835lq9", "name": "bank__get_balances", "input": {} } }),
        json!({ "type": "content_block_delta", "index": 1, "delta": { "type": "input_json_delta", "partial_json": "{\"account\"" } }),
        json!({ "type": "content_block_delta", "index": 1, "delta": { "type": "input_json_delta", "partial_json": ": \"a\"}" } }),
        json!({ "type": "content_block_stop", "index": 1 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": stop, "stop_sequence": null }, "usage": { "output_tokens": 9 } }),
        json!({ "type": "message_stop" }),
    ]
}

#[tokio::test]
async fn anthropic_speaks_its_own_wire() {
    let fake = Fake::sse(anthropic("tool_use")).await;
    let (pieces, reply) = collect(models().step(
        &fake.llm(Provider::Anthropic, "a-model-nobody-knows", ""),
        conversation(),
    ))
    .await;
    let reply = reply.unwrap();
    assert_eq!(pieces, ["Let me ", "look."]);
    assert_eq!(
        reply.calls,
        [made(
            "toolu_01A09q90qw90lq917835lq9",
            "bank__get_balances",
            "{\"account\": \"a\"}"
        )]
    );
    assert_eq!(
        reply.usage,
        Usage {
            input_tokens: 21,
            cached_input_tokens: 0,
            output_tokens: 9,
            estimated: false
        }
    );
    let (uri, headers, body) = fake.asked();
    assert_eq!(uri, "/v1/messages");
    assert_eq!(headers["x-api-key"], "wire-key-1");
    assert!(headers.contains_key("anthropic-version") && !headers.contains_key("authorization"));
    assert_eq!(body["system"][0]["text"], "be brief");
    assert!(body["max_tokens"].as_u64().unwrap() > 1000);
    assert_eq!(
        body["tools"][0],
        json!({ "name": "bank__get_balances", "description": "a tool", "input_schema": { "type": "object", "properties": {} },
            "cache_control": { "type": "ephemeral" } })
    );
    let messages = &body["messages"];
    assert_eq!(messages[1]["content"][0]["type"], "tool_use");
    assert_eq!(messages[1]["content"][0]["input"], json!({ "a": 1 }));
    assert_eq!(
        messages[2]["content"][0]["tool_use_id"],
        messages[1]["content"][0]["id"]
    );
    messages[2]["content"][1].has(json!({
        "tool_use_id": messages[1]["content"][1]["id"],
        "is_error": true,
    }));
}

#[tokio::test]
async fn anthropic_may_stop_in_the_middle_or_refuse() {
    for (stop, expected, calls) in [
        ("max_tokens", Stop::Length, 1),
        ("refusal", Stop::ContentFilter, 0),
    ] {
        let fake = Fake::sse(anthropic(stop)).await;
        let reply = ask(
            &fake.llm(Provider::Anthropic, "claude", "/v1"),
            conversation(),
        )
        .await
        .unwrap();
        assert_eq!((reply.stop, reply.calls.len()), (expected, calls));
    }
    let cut = Fake::sse(anthropic("end_turn").into_iter().take(9)).await;
    assert_eq!(
        ask(&cut.llm(Provider::Anthropic, "claude", ""), conversation()).await,
        Err(ModelError::Truncated)
    );
}

#[tokio::test]
async fn anthropic_errors_in_the_stream_are_told_apart() {
    let error = json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } });
    let fake = Fake::sse([error]).await;
    let error = ask(&fake.llm(Provider::Anthropic, "claude", ""), conversation())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ModelError::Unavailable {
            reason: "Overloaded".to_owned(),
            retry_after: None
        }
    );
}

fn gemini(parts: &Value, reason: Option<&str>) -> Value {
    json!({
        "candidates": [{ "content": { "role": "model", "parts": parts }, "finishReason": reason, "index": 0 }],
        "usageMetadata": { "promptTokenCount": 30, "candidatesTokenCount": 5, "totalTokenCount": 35 },
        "modelVersion": "gemini",
    })
}

#[tokio::test]
async fn gemini_speaks_its_own_wire_and_has_no_key_in_its_url() {
    let call =
        json!({ "functionCall": { "name": "bank__get_balances", "args": { "account": "a" } } });
    let fake = Fake::sse([
        gemini(&json!([{ "text": "Let me " }]), None),
        gemini(&json!([{ "text": "look." }, call, call]), Some("STOP")),
    ])
    .await;
    let (pieces, reply) = collect(models().step(
        &fake.llm(Provider::Gemini, "gemini-3-flash-preview", ""),
        conversation(),
    ))
    .await;
    let reply = reply.unwrap();
    assert_eq!(pieces.concat(), "Let me look.");
    assert_eq!((reply.stop, reply.calls.len()), (Stop::ToolCalls, 2));
    assert_ne!(reply.calls[0].call_id, reply.calls[1].call_id);
    assert_eq!(reply.calls[0].arguments, r#"{"account":"a"}"#);
    assert_eq!(
        reply.usage,
        Usage {
            input_tokens: 30,
            cached_input_tokens: 0,
            output_tokens: 5,
            estimated: false
        }
    );
    let (uri, headers, body) = fake.asked();
    assert_eq!(
        uri,
        "/v1beta/models/gemini-3-flash-preview:streamGenerateContent?alt=sse"
    );
    assert_eq!(headers["x-goog-api-key"], "wire-key-1");
    assert_eq!(body["systemInstruction"]["parts"][0]["text"], "be brief");
    assert_eq!(
        body["contents"][1]["parts"][0]["functionCall"]["args"],
        json!({ "a": 1 })
    );
    assert_eq!(body["contents"][2]["parts"].as_array().unwrap().len(), 2);
    assert!(!body.to_string().contains("$schema"));
}

#[tokio::test]
async fn gemini_may_block_the_prompt_or_the_answer() {
    let blocked = Fake::sse([json!({ "promptFeedback": { "blockReason": "SAFETY" } })]).await;
    let cut = Fake::sse([gemini(&json!([{ "text": "So" }]), Some("SAFETY"))]).await;
    for fake in [blocked, cut] {
        let reply = ask(
            &fake.llm(Provider::Gemini, "gemini-2.5-flash", "/v1beta"),
            conversation(),
        )
        .await
        .unwrap();
        assert_eq!(reply.stop, Stop::ContentFilter);
    }
}

#[tokio::test]
async fn ollama_speaks_its_own_wire() {
    let lines = [
        json!({ "model": "m", "message": { "role": "assistant", "content": "Let me " }, "done": false }),
        json!({ "model": "m", "message": { "role": "assistant", "content": "look.", "tool_calls": [{ "function": { "name": "bank__get_balances", "arguments": { "account": "a" } } }] }, "done": false }),
        json!({ "model": "m", "message": { "role": "assistant", "content": "" }, "done": true, "done_reason": "stop", "prompt_eval_count": 40, "eval_count": 6 }),
    ];
    let fake = Fake::ndjson(&lines).await;
    let llm = Llm {
        max_tokens: Some(77),
        ..fake.llm(Provider::Ollama, "qwen3", "/v1")
    };
    let (pieces, reply) = collect(models().step(&llm, conversation())).await;
    let reply = reply.unwrap();
    assert_eq!(pieces.concat(), "Let me look.");
    assert_eq!(
        (reply.stop, reply.calls[0].arguments.as_str()),
        (Stop::ToolCalls, r#"{"account":"a"}"#)
    );
    assert_eq!(
        reply.usage,
        Usage {
            input_tokens: 40,
            cached_input_tokens: 0,
            output_tokens: 6,
            estimated: false
        }
    );
    let (uri, headers, asked) = fake.asked();
    assert_eq!(uri, "/api/chat");
    assert_eq!(headers["authorization"], "Bearer wire-key-1");
    assert_eq!(asked["options"]["num_predict"], 77);
    assert_eq!(asked["messages"][3]["role"], "tool");
    let cut = Fake::ndjson(&lines[..2]).await;
    assert_eq!(
        ask(&cut.llm(Provider::Ollama, "qwen3", ""), conversation()).await,
        Err(ModelError::Truncated)
    );
}
