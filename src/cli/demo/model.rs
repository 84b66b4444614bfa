//! The demo model: rules in the place of a model, so that somebody without a key can talk to the demo.
//!
//! It is behind a socket that speaks OpenAI's chat completions, like any other provider, and its answers say what it is. It
//! reads the conversation and what is offered: names, descriptions and schemas of tools. It knows no tool by its name. What
//! it does not find in a sentence it asks for, and it makes no call twice for one sentence.

mod answers;
mod arguments;
mod conversation;
mod intents;
mod results;
mod sentence;
mod words;

use std::{convert::Infallible, time::Duration};

use anyhow::Context as _;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State, rejection::BytesRejection},
    response::{IntoResponse, Json, Response},
    routing::{get, post},
};
use futures_util::{StreamExt as _, stream};
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use self::{
    answers::Reply,
    conversation::{Conversation, Refusal},
};

/// The model's name.
pub const NAME: &str = "demo";
/// Between two groups of words: somebody can read along.
pub const READING_PACE: Duration = Duration::from_millis(22);
/// The largest request.
const MAX_BODY: usize = 32 << 20;
/// Characters of a group of words, about.
const GROUP: usize = 8;

/// The model at work; it ends with this value.
pub struct DemoModel {
    /// What a pack's `llm.baseUrl` should be.
    pub url: String,
    server: JoinHandle<()>,
}

impl Drop for DemoModel {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Starts the model on a free port of this machine. `pace` is the time between two groups of words of a streamed answer.
pub async fn start(pace: Duration) -> anyhow::Result<DemoModel> {
    let listener = TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.context("the demo model finds no port to listen on")?;
    let url = format!("http://{}/v1", listener.local_addr()?);
    let refuse_path = async || refusal(StatusCode::NOT_FOUND, "there is nothing here", None);
    let refuse_method = async || {
        refusal(
            StatusCode::METHOD_NOT_ALLOWED,
            "this method is not allowed here",
            None,
        )
    };
    let router = Router::new()
        .route("/v1/chat/completions", post(complete))
        .route("/v1/models", get(list_models))
        .route("/v1/models/demo", get(async || Json(model())))
        .fallback(refuse_path)
        .method_not_allowed_fallback(refuse_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(pace);
    let server = tokio::spawn(async move {
        let _ = axum::serve(listener, router).await;
    });
    Ok(DemoModel { url, server })
}

async fn list_models() -> Json<Value> {
    Json(json!({ "object": "list", "data": [model()] }))
}

fn model() -> Value {
    json!({ "id": NAME, "object": "model", "created": 0, "owned_by": "chatelaine" })
}

async fn complete(State(pace): State<Duration>, body: Result<Bytes, BytesRejection>) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return refusal(rejection.status(), &rejection.body_text(), None),
    };
    let Ok(request) = serde_json::from_slice::<Value>(&body) else {
        return refusal(StatusCode::BAD_REQUEST, "the body is not JSON", None);
    };
    let conversation = match Conversation::read(&request) {
        Ok(conversation) => conversation,
        Err(Refusal { reason, param }) => {
            return refusal(StatusCode::BAD_REQUEST, &reason, Some(&param));
        }
    };
    let reply = match answers::reply(&conversation) {
        Ok(reply) => reply,
        Err(Refusal { reason, param }) => {
            return refusal(StatusCode::BAD_REQUEST, &reason, Some(&param));
        }
    };
    let usage = usage(body.len(), &reply);
    if request["stream"] != true {
        return whole(&reply, &usage).into_response();
    }
    let with_usage = request["stream_options"]["include_usage"] == true;
    streamed(&reply, with_usage.then_some(usage), pace)
}

/// An error as OpenAI writes it.
fn refusal(status: StatusCode, message: &str, param: Option<&str>) -> Response {
    let error = json!({ "error": {
        "message": message, "type": "invalid_request_error", "param": param, "code": null,
    } });
    (status, Json(error)).into_response()
}

/// Four characters are about a token.
fn usage(asked: usize, reply: &Reply) -> Value {
    let calls = reply.calls.iter();
    let calls = calls.map(|call| call.name.len() + call.arguments.to_string().len());
    let (input, output) = (
        asked / 4,
        (reply.text.len() + calls.sum::<usize>()).div_ceil(4),
    );
    json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output })
}

fn finish_reason(reply: &Reply) -> &'static str {
    if reply.calls.is_empty() {
        "stop"
    } else {
        "tool_calls"
    }
}

/// The calls of a reply, each with an id of its own.
fn tool_calls(reply: &Reply) -> Vec<Value> {
    let calls = reply.calls.iter().enumerate().map(|(index, call)| {
        json!({ "index": index, "id": new_id("call_"), "type": "function", "function": {
            "name": call.name, "arguments": call.arguments.to_string(),
        } })
    });
    calls.collect()
}

fn new_id(prefix: &str) -> String {
    format!("{prefix}{}", uuid::Uuid::now_v7().simple())
}

fn whole(reply: &Reply, usage: &Value) -> Json<Value> {
    let mut message = json!({ "role": "assistant", "content": reply.text });
    if !reply.calls.is_empty() {
        message["tool_calls"] = tool_calls(reply).into();
        if reply.text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    Json(json!({
        "id": new_id("chatcmpl-"), "object": "chat.completion", "created": 0, "model": NAME,
        "choices": [{ "index": 0, "message": message, "finish_reason": finish_reason(reply) }],
        "usage": usage,
    }))
}

fn streamed(reply: &Reply, usage: Option<Value>, pace: Duration) -> Response {
    let id = new_id("chatcmpl-");
    let chunk = |choices: Value, usage: Option<&Value>| {
        let mut chunk = json!({
            "id": id, "object": "chat.completion.chunk", "created": 0, "model": NAME, "choices": choices,
        });
        if let Some(usage) = usage {
            chunk["usage"] = usage.clone();
        }
        format!("data: {chunk}\n\n")
    };
    let delta = |delta: Value, reason: Option<&str>| {
        chunk(
            json!([{ "index": 0, "delta": delta, "finish_reason": reason }]),
            None,
        )
    };
    let mut chunks = vec![delta(json!({ "role": "assistant", "content": "" }), None)];
    let groups = word_groups(&reply.text);
    chunks.extend(groups.map(|words| delta(json!({ "content": words }), None)));
    if !reply.calls.is_empty() {
        chunks.push(delta(json!({ "tool_calls": tool_calls(reply) }), None));
    }
    chunks.push(delta(json!({}), Some(finish_reason(reply))));
    chunks.extend(usage.map(|usage| chunk(json!([]), Some(&usage))));
    chunks.push("data: [DONE]\n\n".to_owned());
    let paced = stream::iter(chunks).then(move |chunk| async move {
        if !pace.is_zero() {
            tokio::time::sleep(pace).await;
        }
        Ok::<_, Infallible>(chunk)
    });
    let head = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (head, Body::from_stream(paced)).into_response()
}

/// A text in groups of whole words.
fn word_groups(text: &str) -> impl Iterator<Item = String> {
    let mut groups = vec![String::new()];
    for word in text.split_inclusive(char::is_whitespace) {
        match groups.last_mut() {
            Some(group) if group.len() < GROUP => group.push_str(word),
            _ => groups.push(word.to_owned()),
        }
    }
    groups.into_iter().filter(|group| !group.is_empty())
}
