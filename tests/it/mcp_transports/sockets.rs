//! A server at a WebSocket that does exactly what a test says, and remembers every message.

use std::sync::{Arc, Mutex};

use domain::{
    secret::Secret,
    server::{Endpoint, Remote},
};
use futures_util::{SinkExt, StreamExt};
use http::HeaderMap;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::AbortHandle};
use tokio_tungstenite::{
    accept_hdr_async,
    tungstenite::{
        Message,
        handshake::server::{ErrorResponse, Request, Response},
    },
};
use url::Url;

use crate::support::scripted::text;

/// What a script does about a message.
pub enum Say {
    /// Answers the request with this result.
    Result(Value),
    /// Answers it with an error.
    Error(i64, &'static str),
    /// Sends this as it is.
    Raw(Message),
    Nothing,
    /// Closes the connection without a word.
    HangUp,
    /// Reads nothing more, and keeps the connection.
    Freeze,
    /// Answers the request with this result, reads nothing more and sends these messages without end.
    ResultThen(Value, fn(usize) -> Value),
}

pub struct Sockets {
    pub url: Url,
    seen: Arc<Mutex<Vec<Value>>>,
    shakes: Arc<Mutex<Vec<HeaderMap>>>,
    /// Messages that the newest connection took from [`Say::ResultThen`].
    asked: Arc<Mutex<usize>>,
    task: AbortHandle,
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sockets {
    /// Serves with a script; `None` is answered as an ordinary server of the older era would.
    pub async fn start(
        script: impl Fn(&Value, &HeaderMap) -> Option<Say> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("ws://{}/mcp", listener.local_addr().unwrap())).unwrap();
        let (seen, shakes) = (
            Arc::<Mutex<Vec<Value>>>::default(),
            Arc::<Mutex<Vec<HeaderMap>>>::default(),
        );
        let (log, opened, script) = (seen.clone(), shakes.clone(), Arc::new(script));
        let asked = Arc::<Mutex<usize>>::default();
        let requests = asked.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (log, opened, script) = (log.clone(), opened.clone(), script.clone());
                let asked = requests.clone();
                connections.spawn(async move {
                    let mut headers = HeaderMap::new();
                    #[expect(clippy::result_large_err, reason = "the shape is the library's")]
                    let shake = |request: &Request,
                                 mut answer: Response|
                     -> Result<Response, ErrorResponse> {
                        headers = request.headers().clone();
                        answer
                            .headers_mut()
                            .insert("sec-websocket-protocol", "mcp".parse().unwrap());
                        Ok(answer)
                    };
                    let Ok(mut socket) = accept_hdr_async(stream, shake).await else {
                        return;
                    };
                    opened.lock().unwrap().push(headers.clone());
                    while let Some(Ok(message)) = socket.next().await {
                        let Ok(message) =
                            serde_json::from_str::<Value>(message.to_text().unwrap_or_default())
                        else {
                            continue;
                        };
                        log.lock().unwrap().push(message.clone());
                        let id = &message["id"];
                        let said = match script(&message, &headers)
                            .unwrap_or_else(|| ordinary(&message))
                        {
                            Say::Result(result) => {
                                json!({"jsonrpc": "2.0", "id": id, "result": result})
                                    .to_string()
                                    .into()
                            }
                            Say::Error(code, why) => {
                                let error = json!({"code": code, "message": why});
                                json!({"jsonrpc": "2.0", "id": id, "error": error})
                                    .to_string()
                                    .into()
                            }
                            Say::Raw(message) => message,
                            Say::Nothing => continue,
                            Say::HangUp => return,
                            Say::Freeze => std::future::pending().await,
                            Say::ResultThen(result, messages) => {
                                let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
                                let mut next = Message::from(answer.to_string());
                                for number in 0.. {
                                    if socket.send(next).await.is_err() {
                                        return;
                                    }
                                    *asked.lock().unwrap() = number;
                                    next = Message::from(messages(number).to_string());
                                }
                                return;
                            }
                        };
                        if socket.send(said).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self {
            url,
            seen,
            shakes,
            asked,
            task: task.abort_handle(),
        }
    }

    pub fn endpoint(&self) -> Endpoint {
        let headers = vec![(
            "Authorization".to_owned(),
            Secret::new("Bearer hunter2-hunter2"),
        )];
        Endpoint::Remote {
            transport: Remote::WebSocket,
            url: self.url.clone(),
            headers,
        }
    }

    /// How many messages the client has taken from a server that sends them without end.
    pub fn asked(&self) -> usize {
        *self.asked.lock().unwrap()
    }

    /// How often this method was requested.
    pub fn count(&self, method: &str) -> usize {
        self.seen
            .lock()
            .unwrap()
            .iter()
            .filter(|seen| seen["method"] == method)
            .count()
    }

    /// The headers of each handshake.
    pub fn shakes(&self) -> Vec<HeaderMap> {
        self.shakes.lock().unwrap().clone()
    }
}

/// A request that no client of ours knows how to answer.
pub fn sampling(number: usize) -> Value {
    json!({"jsonrpc": "2.0", "id": format!("s{number}"), "method": "sampling/createMessage", "params": {}})
}

fn ordinary(message: &Value) -> Say {
    match message["method"].as_str().unwrap_or_default() {
        "initialize" => Say::Result(json!({
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"},
        })),
        "tools/list" => {
            Say::Result(json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}))
        }
        "tools/call" => Say::Result(text(&message["params"]["arguments"].to_string())),
        _ if message.get("id").is_none() => Say::Nothing,
        _ => Say::Error(-32601, "Method not found"),
    }
}
