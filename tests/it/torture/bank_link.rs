//! What lies between the replicas and the bank: an HTTP proxy that spoils calls of tools. It may cut, delay, refuse or
//! garble a call before the bank has it, or after the bank has executed it. At a second address it makes an older server of
//! the bank, which has sessions, and loses some of them.

use std::{
    collections::HashSet,
    convert::Infallible,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use url::Url;

use crate::support::client::plain_http;

/// Longer than a replica waits for an answer of the bank ([`super::processes::PACK`]).
const HANG: Duration = Duration::from_secs(8);
/// The path of the older server.
const OLDER: &str = "/older";
const SESSION: &str = "mcp-session-id";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoil {
    /// The answer comes late.
    Delay,
    /// The connection ends before the bank has the request.
    CutBefore,
    /// The connection ends after the bank has executed the call.
    CutAfter,
    /// The call is executed, and the answer is a 500.
    Error,
    /// The call is not executed, and the answer is a 429.
    TooMany,
    /// The call is executed, and the answer is no JSON-RPC.
    Garbage,
    /// The call is executed, and nothing is answered.
    Hang,
    /// The session is lost before the bank has the request.
    LoseBefore,
    /// The session is lost after the bank has executed the call.
    LoseAfter,
}

const SPOILS: [Spoil; 9] = [
    Spoil::Delay,
    Spoil::CutBefore,
    Spoil::CutAfter,
    Spoil::Error,
    Spoil::TooMany,
    Spoil::Garbage,
    Spoil::Hang,
    Spoil::LoseBefore,
    Spoil::LoseAfter,
];

/// The proxy; the replicas take it for the bank.
pub struct BankLink {
    pub url: String,
    /// The same bank as a server with sessions.
    pub older_url: String,
    link: Arc<Link>,
}

struct Link {
    bank: Url,
    http: reqwest::Client,
    random: Mutex<StdRng>,
    sessions: Mutex<HashSet<HeaderValue>>,
    calls: AtomicUsize,
    spoiled: [AtomicUsize; SPOILS.len()],
}

impl BankLink {
    pub async fn start(bank: &str, seed: u64) -> Self {
        // Fails when another test was first, which is as good.
        let link = Arc::new(Link {
            bank: bank.parse().unwrap(),
            http: plain_http().build().unwrap(),
            random: Mutex::new(StdRng::seed_from_u64(seed ^ 2)),
            sessions: Mutex::default(),
            calls: AtomicUsize::new(0),
            spoiled: Default::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Arc::clone(&link)));
        Self {
            url: format!("http://{address}/mcp"),
            older_url: format!("http://{address}{OLDER}"),
            link,
        }
    }

    /// Calls of tools that passed, and how many were spoiled in which way.
    pub fn report(&self) -> String {
        let spoiled = SPOILS.iter().zip(&self.link.spoiled);
        let spoiled = spoiled.map(|(spoil, count)| format!("{} {spoil:?}", count.load(Relaxed)));
        let spoiled: Vec<_> = spoiled.collect();
        format!(
            "{} calls sent; spoiled: {}",
            self.link.calls.load(Relaxed),
            spoiled.join(", ")
        )
    }
}

async fn serve(listener: TcpListener, link: Arc<Link>) -> Infallible {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let link = Arc::clone(&link);
        let service = service_fn(move |request| {
            let link = Arc::clone(&link);
            async move { link.pass(request).await }
        });
        // An error of the service is a connection that is cut, as it should be.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

impl Link {
    async fn pass(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let message = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let is_older = head.uri.path() == OLDER;
        if is_older && let Some(refusal) = self.refuse(&head, &message) {
            return Ok(refusal);
        }
        let spoil = self.draw(&message, is_older);
        match spoil {
            Some(Spoil::CutBefore) => return Err(io::Error::other("cut before")),
            Some(Spoil::TooMany) => return Ok(answer(StatusCode::TOO_MANY_REQUESTS, "slow down")),
            Some(Spoil::LoseBefore) => return Ok(self.lose(&head.headers)),
            _ => {}
        }
        let mut url = self.bank.clone();
        url.set_query(head.uri.query());
        let mut headers = head.headers.clone();
        headers.remove(header::HOST);
        headers.remove(SESSION);
        let sent = self.http.request(head.method, url).headers(headers);
        let there = sent.body(body).send().await.map_err(io::Error::other)?;
        let Some(spoil) = spoil else {
            let mut relayed = relay(there);
            if is_older && message["method"] == "initialize" {
                relayed.headers_mut().insert(SESSION, self.open_session());
            }
            return Ok(relayed);
        };
        match spoil {
            Spoil::Delay => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                return Ok(relay(there));
            }
            Spoil::Hang => tokio::time::sleep(HANG).await,
            // Once the whole answer is here, the bank has executed the call.
            _ => drop(there.bytes().await),
        }
        match spoil {
            Spoil::LoseAfter => Ok(self.lose(&head.headers)),
            Spoil::Error => Ok(answer(StatusCode::INTERNAL_SERVER_ERROR, "out of order")),
            Spoil::Garbage => Ok(answer(StatusCode::OK, "{\"jsonrpc\": \"2.0\", \"id\": ")),
            _ => Err(io::Error::other("cut after")),
        }
    }

    /// What an older server says itself: that it is one, and that it does not know a session.
    fn refuse(&self, head: &Parts, message: &Value) -> Option<Response<Body>> {
        let sessions = self.sessions.lock().unwrap();
        let session = head.headers.get(SESSION);
        match message["method"].as_str() {
            _ if head.method == Method::GET => Some(answer(StatusCode::METHOD_NOT_ALLOWED, "")),
            _ if head.method == Method::DELETE => Some(answer(StatusCode::OK, "")),
            Some("initialize") => None,
            Some("server/discover") => Some(no_session(StatusCode::BAD_REQUEST, &message["id"])),
            _ if session.is_some_and(|session| sessions.contains(session)) => None,
            _ => Some(no_session(StatusCode::NOT_FOUND, &Value::Null)),
        }
    }

    fn open_session(&self) -> HeaderValue {
        let session = HeaderValue::from(self.random.lock().unwrap().next_u64());
        self.sessions.lock().unwrap().insert(session.clone());
        session
    }

    fn lose(&self, headers: &HeaderMap) -> Response<Body> {
        let session = headers.get(SESSION).expect("it was known");
        self.sessions.lock().unwrap().remove(session);
        no_session(StatusCode::NOT_FOUND, &Value::Null)
    }

    /// What happens to this request: one of six calls of tools is spoiled, and nothing else.
    fn draw(&self, message: &Value, has_session: bool) -> Option<Spoil> {
        if message["method"] != "tools/call" {
            return None;
        }
        self.calls.fetch_add(1, Relaxed);
        let mut random = self.random.lock().unwrap();
        if !random.random_bool(1.0 / 6.0) {
            return None;
        }
        let of_sessions = if has_session { 0 } else { 2 };
        let at = random.random_range(0..SPOILS.len() - of_sessions);
        self.spoiled[at].fetch_add(1, Relaxed);
        Some(SPOILS[at])
    }
}

fn no_session(status: StatusCode, id: &Value) -> Response<Body> {
    let error = json!({ "code": -32000, "message": "session not found" });
    let body = json!({ "jsonrpc": "2.0", "id": id, "error": error });
    answer(status, body.to_string())
}

fn answer(status: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn relay(there: reqwest::Response) -> Response<Body> {
    let mut headers: HeaderMap = there.headers().clone();
    headers.remove(header::TRANSFER_ENCODING);
    headers.remove(header::CONNECTION);
    let status = there.status();
    let mut response = Response::new(Body::from_stream(there.bytes_stream()));
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    response
}
