//! A stub of a provider that applies the provider's rules to each request, and refuses what breaks one with status 400 and
//! the provider's words. A refusal that a test did not ask for fails the test.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use domain::{
    pack::{Llm, Provider},
    secret::Secret,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use super::rules::{Kind, refusal};

/// What the stub answers.
#[derive(Clone)]
pub enum Saying {
    Text(String),
    Calls(Vec<(String, Value)>),
    /// The status of a refusal, and its message.
    Error(u16, String),
}

/// `None`: the request is taken.
type Extra = Box<dyn Fn(&Value) -> Option<String> + Send + Sync>;

pub struct StrictProvider {
    kind: Kind,
    inner: Arc<Inner>,
    base: String,
    server: JoinHandle<()>,
}

struct Inner {
    kind: Kind,
    sayings: Mutex<VecDeque<Saying>>,
    extra: Mutex<Option<Extra>>,
    /// What was asked, byte for byte.
    requests: Mutex<Vec<String>>,
    /// What was refused by the rules of the provider.
    refusals: Mutex<Vec<String>>,
}

impl StrictProvider {
    pub async fn start(kind: Kind) -> Self {
        let inner = Arc::new(Inner {
            kind,
            sayings: Mutex::default(),
            extra: Mutex::default(),
            requests: Mutex::default(),
            refusals: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&inner));
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            kind,
            inner,
            base,
            server,
        }
    }

    /// The next answer; without one it says "ok".
    pub fn say(&self, text: &str) -> &Self {
        self.push(Saying::Text(text.to_owned()))
    }

    pub fn call<const N: usize>(&self, calls: [(&str, Value); N]) -> &Self {
        self.push(Saying::Calls(
            calls
                .map(|(name, arguments)| (name.to_owned(), arguments))
                .into(),
        ))
    }

    pub fn fail(&self, status: u16, message: &str) -> &Self {
        self.push(Saying::Error(status, message.to_owned()))
    }

    fn push(&self, saying: Saying) -> &Self {
        self.inner.sayings.lock().unwrap().push_back(saying);
        self
    }

    /// One more rule, whose refusals do not fail the test.
    pub fn refuse(&self, rule: impl Fn(&Value) -> Option<String> + Send + Sync + 'static) -> &Self {
        *self.inner.extra.lock().unwrap() = Some(Box::new(rule));
        self
    }

    pub fn provider(&self) -> Provider {
        match self.kind {
            Kind::Openai | Kind::LlamaCpp | Kind::Mistral => Provider::Openai,
            Kind::Anthropic => Provider::Anthropic,
            Kind::Gemini => Provider::Gemini,
            Kind::Ollama => Provider::Ollama,
        }
    }

    pub fn model(&self) -> &'static str {
        match self.kind {
            Kind::Openai => "gpt-5-mini",
            Kind::LlamaCpp => "gemma-3",
            Kind::Mistral => "mistral-large-latest",
            Kind::Anthropic => "claude-sonnet-5",
            Kind::Gemini => "gemini-3-pro",
            Kind::Ollama => "qwen3",
        }
    }

    pub fn base_url(&self) -> String {
        match self.provider() {
            Provider::Openai => format!("{}/v1", self.base),
            _ => self.base.clone(),
        }
    }

    pub fn llm(&self) -> Llm {
        Llm {
            provider: self.provider(),
            model: self.model().to_owned(),
            base_url: Some(self.base_url().parse().unwrap()),
            api_key: Some(Secret::new("strict-key-0123456789")),
            agent_prompt: None,
            temperature: None,
            max_tokens: None,
            max_steps: 16,
            reasoning_effort: None,
            fallback: Vec::new(),
        }
    }

    /// What was asked so far, byte for byte.
    pub fn texts(&self) -> Vec<String> {
        self.inner.requests.lock().unwrap().clone()
    }

    pub fn requests(&self) -> Vec<Value> {
        self.texts()
            .iter()
            .map(|text| serde_json::from_str(text).unwrap())
            .collect()
    }

    pub fn last_request(&self) -> Value {
        self.requests().pop().expect("no request came")
    }

    pub fn take_refusals(&self) -> Vec<String> {
        std::mem::take(&mut *self.inner.refusals.lock().unwrap())
    }
}

impl Drop for StrictProvider {
    fn drop(&mut self) {
        self.server.abort();
        if !std::thread::panicking() {
            let refusals = self.inner.refusals.lock().unwrap();
            assert!(
                refusals.is_empty(),
                "{:?} would refuse what it was sent:\n{}",
                self.kind,
                refusals.join("\n")
            );
        }
    }
}

async fn answer(State(inner): State<Arc<Inner>>, body: Bytes) -> Response {
    let text = String::from_utf8(body.to_vec()).unwrap();
    let body: Value = serde_json::from_str(&text).unwrap();
    super::keep(&format!("{:?}", inner.kind), &body);
    inner.requests.lock().unwrap().push(text);
    let number = inner.requests.lock().unwrap().len();
    if let Some((message, source)) = refusal(inner.kind, &body) {
        let what = format!("request {number}: {message} ({source})");
        inner.refusals.lock().unwrap().push(what);
        return refuse(inner.kind, 400, &message);
    }
    let extra = inner
        .extra
        .lock()
        .unwrap()
        .as_ref()
        .and_then(|rule| rule(&body));
    if let Some(message) = extra {
        return refuse(inner.kind, 400, &message);
    }
    let saying = inner.sayings.lock().unwrap().pop_front();
    let events = match saying.unwrap_or_else(|| Saying::Text("ok".to_owned())) {
        Saying::Error(status, message) => return refuse(inner.kind, status, &message),
        Saying::Text(text) => write(inner.kind, &text, &[], number),
        Saying::Calls(calls) => write(inner.kind, "", &calls, number),
    };
    if inner.kind == Kind::Ollama {
        let lines: Vec<String> = events.iter().map(|event| format!("{event}\n")).collect();
        return ([("content-type", "application/x-ndjson")], lines.concat()).into_response();
    }
    let events = events.iter().map(|event| match event["type"].as_str() {
        Some(name) => format!("event: {name}\ndata: {event}\n\n"),
        None => format!("data: {event}\n\n"),
    });
    let mut stream: String = events.collect();
    if matches!(inner.kind, Kind::Openai | Kind::LlamaCpp | Kind::Mistral) {
        stream.push_str("data: [DONE]\n\n");
    }
    ([("content-type", "text/event-stream")], stream).into_response()
}

fn refuse(kind: Kind, status: u16, message: &str) -> Response {
    let body = match kind {
        Kind::Anthropic => {
            json!({ "type": "error", "error": { "type": "invalid_request_error", "message": message } })
        }
        Kind::Gemini => {
            json!({ "error": { "code": status, "status": "INVALID_ARGUMENT", "message": message } })
        }
        Kind::Ollama => json!({ "error": message }),
        Kind::Mistral => {
            json!({ "object": "error", "type": "invalid_request_error", "message": message, "code": "3230" })
        }
        _ => {
            json!({ "error": { "type": "invalid_request_error", "message": message, "param": null, "code": null } })
        }
    };
    (
        StatusCode::from_u16(status).unwrap(),
        [("content-type", "application/json")],
        body.to_string(),
    )
        .into_response()
}

/// 100 tokens in, 60 of which came from a cache; 7 tokens out.
fn write(kind: Kind, text: &str, calls: &[(String, Value)], number: usize) -> Vec<Value> {
    match kind {
        Kind::Anthropic => anthropic(text, calls, number),
        Kind::Gemini => {
            let mut parts: Vec<Value> = Vec::new();
            if !text.is_empty() {
                parts.push(json!({ "text": text }));
            }
            parts.extend(calls.iter().map(
                |(name, arguments)| json!({ "functionCall": { "name": name, "args": arguments } }),
            ));
            vec![json!({
                "candidates": [{ "content": { "role": "model", "parts": parts }, "finishReason": "STOP", "index": 0 }],
                "usageMetadata": { "promptTokenCount": 100, "cachedContentTokenCount": 60, "candidatesTokenCount": 7 },
            })]
        }
        Kind::Ollama => {
            let calls: Vec<Value> = calls.iter().map(|(name, arguments)| json!({ "function": { "name": name, "arguments": arguments } })).collect();
            vec![
                json!({ "message": { "role": "assistant", "content": text, "tool_calls": calls }, "done": false }),
                json!({ "message": { "role": "assistant", "content": "" }, "done": true, "done_reason": "stop", "prompt_eval_count": 100, "eval_count": 7 }),
            ]
        }
        _ => {
            let chunk = |delta: Value, reason: Value| json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }] });
            let mut events = vec![chunk(
                json!({ "role": "assistant", "content": text }),
                Value::Null,
            )];
            events.extend(calls.iter().enumerate().map(|(at, (name, arguments))| {
                let call = json!({ "index": at, "id": format!("call_{number:04}_{at:04}"), "type": "function", "function": { "name": name, "arguments": arguments.to_string() } });
                chunk(json!({ "tool_calls": [call] }), Value::Null)
            }));
            events.push(chunk(
                json!({}),
                json!(if calls.is_empty() {
                    "stop"
                } else {
                    "tool_calls"
                }),
            ));
            events.push(json!({ "choices": [], "usage": { "prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": { "cached_tokens": 60 } } }));
            events
        }
    }
}

fn anthropic(text: &str, calls: &[(String, Value)], number: usize) -> Vec<Value> {
    let usage = json!({ "input_tokens": 30, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 10, "output_tokens": 1 });
    let mut events = vec![
        json!({ "type": "message_start", "message": { "id": "msg", "role": "assistant", "content": [], "usage": usage } }),
    ];
    if !text.is_empty() {
        events.push(json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }));
        events.push(json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": text } }));
        events.push(json!({ "type": "content_block_stop", "index": 0 }));
    }
    for (at, (name, arguments)) in calls.iter().enumerate() {
        let index = at + 1;
        let block = json!({ "type": "tool_use", "id": format!("toolu_{number:04}_{at:04}"), "name": name, "input": {} });
        events
            .push(json!({ "type": "content_block_start", "index": index, "content_block": block }));
        events.push(json!({ "type": "content_block_delta", "index": index, "delta": { "type": "input_json_delta", "partial_json": arguments.to_string() } }));
        events.push(json!({ "type": "content_block_stop", "index": index }));
    }
    let reason = if calls.is_empty() {
        "end_turn"
    } else {
        "tool_use"
    };
    events.push(json!({ "type": "message_delta", "delta": { "stop_reason": reason }, "usage": { "output_tokens": 7 } }));
    events.push(json!({ "type": "message_stop" }));
    events
}
