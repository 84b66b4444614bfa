//! A server on loopback that counts connections and remembers requests, and what a client sends to it.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    body::Body,
    extract::{Request as Incoming, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Uri},
    response::Response as Answer,
};
use bytes::Bytes;
use egress::{Egress, EgressError, Request};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use url::Url;

/// What a server saw of a request.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: String,
}

type Respond = Arc<dyn Fn(&Uri) -> Answer + Send + Sync>;

/// A server on loopback that remembers requests and counts connections.
pub struct Origin {
    pub address: SocketAddr,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    pub accepted: Arc<AtomicUsize>,
}

struct Counting(TcpListener, Arc<AtomicUsize>);

impl axum::serve::Listener for Counting {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        let accepted = self.0.accept().await.unwrap();
        self.1.fetch_add(1, Ordering::SeqCst);
        accepted
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl Origin {
    pub async fn start(respond: impl Fn(&Uri) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, accepted) = (
            Arc::<Mutex<Vec<Seen>>>::default(),
            Arc::<AtomicUsize>::default(),
        );
        let state = (seen.clone(), Arc::new(respond) as Respond);
        let app = Router::new().fallback(record).with_state(state);
        let listener = Counting(listener, accepted.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            address,
            seen,
            accepted,
        }
    }

    pub fn url(&self, path: &str) -> Url {
        Url::parse(&format!("http://{}{path}", self.address)).unwrap()
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

async fn record(
    State((seen, respond)): State<(Arc<Mutex<Vec<Seen>>>, Respond)>,
    request: Incoming,
) -> Answer {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    seen.lock().unwrap().push(Seen {
        method: head.method,
        path: head.uri.path().to_owned(),
        headers: head.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    });
    respond(&head.uri)
}

pub fn ok(body: impl Into<Body>) -> Answer {
    Answer::new(body.into())
}

pub fn redirect(status: u16, to: &str) -> Answer {
    Answer::builder()
        .status(status)
        .header("location", to)
        .body(Body::empty())
        .unwrap()
}

/// Redirects `/<status>` to a target and answers `end` to anything else.
pub fn redirecting(to: String) -> impl Fn(&Uri) -> Answer + Send + Sync {
    move |uri| match uri.path().trim_start_matches('/').parse() {
        Ok(status) => redirect(status, &to),
        Err(_) => ok("end"),
    }
}

/// A listener that answers each connection with fixed bytes after reading the request's head.
pub async fn raw(answer: &'static [u8], keep_open: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let _ = socket.read(&mut head).await;
            let _ = socket.write_all(answer).await;
            if keep_open {
                kept.push(socket);
            }
        }
    });
    address
}

pub fn open() -> Egress {
    Egress::new(&["127.0.0.1".to_owned()]).unwrap()
}

pub fn closed() -> Egress {
    Egress::new(&[]).unwrap()
}

pub fn at(address: SocketAddr) -> Url {
    Url::parse(&format!("http://{address}/")).unwrap()
}

pub fn post(url: Url) -> Request {
    let mut request = Request {
        method: Method::POST,
        body: Bytes::from_static(b"the body"),
        ..Request::get(url)
    };
    for (name, value) in CREDENTIALS.iter().chain(HARMLESS) {
        request.headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    request
        .headers
        .insert("content-type", HeaderValue::from_static("text/plain"));
    request
}

pub const CREDENTIALS: &[(&str, &str)] = &[
    ("authorization", "Bearer hunter2"),
    ("cookie", "session=hunter2"),
    ("x-api-key", "hunter2"),
    ("private-token", "hunter2"),
    ("x-context-id", "hunter2"),
    ("mcp-session-id", "hunter2"),
];
pub const HARMLESS: &[(&str, &str)] = &[
    ("accept", "application/json"),
    ("mcp-protocol-version", "2025-11-25"),
];

pub async fn text(egress: &Egress, request: Request) -> Result<String, EgressError> {
    let body = egress.send(request).await?.bytes().await?;
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

pub async fn refusal(egress: &Egress, request: Request) -> EgressError {
    text(egress, request)
        .await
        .expect_err("the request must fail")
}
