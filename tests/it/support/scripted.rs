//! An MCP server over HTTP that does exactly what a test says, and remembers every request.

use std::{
    io,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Frame, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::AbortHandle};
use url::Url;

use domain::{
    secret::Secret,
    server::{Endpoint, Remote},
};

use crate::support::servers::soon;

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// What a script does about a request.
pub enum Reply {
    Answer(Answer),
    /// Closes the connection without an answer.
    HangUp,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub http: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub raw: String,
    pub body: Value,
}

impl Seen {
    /// The JSON-RPC method, or the HTTP one.
    pub fn method(&self) -> &str {
        self.body["method"].as_str().unwrap_or(self.http.as_str())
    }

    /// A result for this request.
    pub fn result(&self, result: impl Into<Value>) -> Reply {
        json_reply(
            StatusCode::OK,
            &json!({"jsonrpc": "2.0", "id": self.body["id"], "result": result.into()}),
        )
    }

    /// A result for this request, spelt out.
    pub fn raw_result(&self, result: &str) -> Reply {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#,
            self.body["id"]
        );
        reply(
            StatusCode::OK,
            &[("content-type", "application/json")],
            body,
        )
    }

    /// A JSON-RPC error for this request.
    pub fn error(&self, status: StatusCode, code: i64, message: &str) -> Reply {
        let error = json!({"code": code, "message": message});
        json_reply(
            status,
            &json!({"jsonrpc": "2.0", "id": self.body["id"], "error": error}),
        )
    }
}

/// The server. It ends with the test.
pub struct Scripted {
    pub url: Url,
    seen: Arc<Mutex<Vec<Seen>>>,
    count: watch::Receiver<usize>,
    task: AbortHandle,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Scripted {
    /// Serves with `script` alone.
    pub async fn start<F, R>(script: F) -> Self
    where
        F: Fn(Seen) -> R + Send + Sync + 'static,
        R: Future<Output = Reply> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/mcp", listener.local_addr().unwrap())).unwrap();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (counter, count) = watch::channel(0);
        let script: Arc<dyn Fn(Seen) -> BoxFuture<'static, Reply> + Send + Sync> =
            Arc::new(move |seen| script(seen).boxed());
        let (log, counter) = (seen.clone(), Arc::new(counter));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (script, log, counter) = (script.clone(), log.clone(), counter.clone());
                connections.spawn(async move {
                    let answer = service_fn(|request| answer(request, &script, &log, &counter));
                    let _ = http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), answer)
                        .await;
                });
            }
        });
        Self {
            url,
            seen,
            count,
            task: task.abort_handle(),
        }
    }

    /// A server of the newer era: one tool `echo`, unless the script says otherwise by returning something.
    pub async fn modern<F, R>(script: F) -> Self
    where
        F: Fn(Seen) -> R + Send + Sync + 'static,
        R: Future<Output = Option<Reply>> + Send + 'static,
    {
        Self::start(move |seen| {
            let scripted = script(seen.clone());
            async move {
                match scripted.await {
                    Some(reply) => reply,
                    None => modern(&seen),
                }
            }
        })
        .await
    }

    /// A server of the older era with sessions `s1`, `s2`, ….
    pub async fn legacy<F, R>(script: F) -> Self
    where
        F: Fn(Seen) -> R + Send + Sync + 'static,
        R: Future<Output = Option<Reply>> + Send + 'static,
    {
        let sessions = Arc::new(Mutex::new(0));
        Self::start(move |seen| {
            let (scripted, sessions) = (script(seen.clone()), sessions.clone());
            async move {
                match scripted.await {
                    Some(reply) => reply,
                    None => legacy(&seen, &sessions),
                }
            }
        })
        .await
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Remote {
            transport: Remote::StreamableHttp,
            url: self.url.clone(),
            headers: vec![("Authorization".to_owned(), Secret::new("Bearer right"))],
        }
    }

    /// All requests of this method so far.
    pub fn requests(&self, method: &str) -> Vec<Seen> {
        self.seen
            .lock()
            .unwrap()
            .iter()
            .filter(|seen| seen.method() == method)
            .cloned()
            .collect()
    }

    /// All methods so far, in order.
    pub fn methods(&self) -> Vec<String> {
        self.seen
            .lock()
            .unwrap()
            .iter()
            .map(|seen| seen.method().to_owned())
            .collect()
    }

    /// Waits until this method was requested this often.
    pub async fn until(&self, method: &str, times: usize) {
        let mut count = self.count.clone();
        let enough = async {
            while self.requests(method).len() < times {
                count.changed().await.unwrap();
            }
        };
        soon(enough).await;
    }
}

async fn answer(
    request: Request<Incoming>,
    script: &Arc<dyn Fn(Seen) -> BoxFuture<'static, Reply> + Send + Sync>,
    log: &Mutex<Vec<Seen>>,
    counter: &watch::Sender<usize>,
) -> io::Result<Answer> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let raw = String::from_utf8_lossy(&body).into_owned();
    let body = serde_json::from_str(&raw).unwrap_or(Value::Null);
    let path = head.uri.path().to_owned();
    let seen = Seen {
        http: head.method,
        path,
        headers: head.headers,
        raw,
        body,
    };
    log.lock().unwrap().push(seen.clone());
    counter.send_modify(|count| *count += 1);
    match script(seen).await {
        Reply::Answer(answer) => Ok(answer),
        Reply::HangUp => Err(io::Error::other("the test wants the connection closed")),
    }
}

fn modern(seen: &Seen) -> Reply {
    match seen.method() {
        "server/discover" => seen.result(json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
            "ttlMs": 0, "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "scripted", "version": "1"}},
        })),
        method => common(seen, method),
    }
}

fn legacy(seen: &Seen, sessions: &Mutex<usize>) -> Reply {
    match seen.method() {
        "initialize" => {
            let mut sessions = sessions.lock().unwrap();
            *sessions += 1;
            let result = json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": true}},
                "serverInfo": {"name": "scripted", "version": "1"},
            });
            let body =
                json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result}).to_string();
            let session = format!("s{sessions}");
            reply(
                StatusCode::OK,
                &[
                    ("content-type", "application/json"),
                    ("mcp-session-id", &session),
                ],
                body,
            )
        }
        "server/discover" => seen.error(
            StatusCode::BAD_REQUEST,
            -32000,
            "Bad Request: Server not initialized",
        ),
        "notifications/initialized" | "notifications/cancelled" => {
            reply(StatusCode::ACCEPTED, &[], "")
        }
        "GET" => reply(StatusCode::METHOD_NOT_ALLOWED, &[], ""),
        "DELETE" => reply(StatusCode::OK, &[], ""),
        method => common(seen, method),
    }
}

fn common(seen: &Seen, method: &str) -> Reply {
    match method {
        "tools/list" => {
            seen.result(json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}))
        }
        "tools/call" => seen.result(text(&seen.body["params"]["arguments"].to_string())),
        _ => seen.error(StatusCode::NOT_FOUND, -32601, "Method not found"),
    }
}

/// A result of one text.
pub fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

pub fn reply(status: StatusCode, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Reply {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    let body = Full::new(body.into())
        .map_err(|never| match never {})
        .boxed_unsync();
    Reply::Answer(response.body(body).unwrap())
}

pub fn json_reply(status: StatusCode, body: &Value) -> Reply {
    reply(
        status,
        &[("content-type", "application/json")],
        body.to_string(),
    )
}

/// Events as they come out of a stream; an error in it breaks the connection.
pub fn events(
    events: impl futures_util::Stream<Item = io::Result<String>> + Send + 'static,
) -> Reply {
    use futures_util::TryStreamExt;
    let frames = events.map_ok(|event| Frame::data(Bytes::from(event)));
    let response = Response::builder().header("content-type", "text/event-stream");
    Reply::Answer(
        response
            .body(BodyExt::boxed_unsync(StreamBody::new(frames)))
            .unwrap(),
    )
}

/// One event with this message.
pub fn event(message: &Value) -> String {
    format!("data: {message}\n\n")
}
