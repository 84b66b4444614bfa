//! What lies between the replicas and the bank: an HTTP proxy that spoils calls of tools. It may cut, delay, refuse or
//! garble a call before the bank has it, or after the bank has executed it.

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::body::Body;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::net::TcpListener;
use url::Url;

use crate::support::client::plain_http;

/// Longer than a replica waits for an answer of the bank ([`super::processes::PACK`]).
const HANG: Duration = Duration::from_secs(8);

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
}

const SPOILS: [Spoil; 7] = [
    Spoil::Delay,
    Spoil::CutBefore,
    Spoil::CutAfter,
    Spoil::Error,
    Spoil::TooMany,
    Spoil::Garbage,
    Spoil::Hang,
];

/// The proxy; the replicas take it for the bank.
pub struct BankLink {
    pub url: String,
    link: Arc<Link>,
}

struct Link {
    bank: Url,
    http: reqwest::Client,
    random: Mutex<StdRng>,
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
            calls: AtomicUsize::new(0),
            spoiled: Default::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        tokio::spawn(serve(listener, Arc::clone(&link)));
        Self { url, link }
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
        let spoil = self.draw(&body);
        match spoil {
            Some(Spoil::CutBefore) => return Err(io::Error::other("cut before")),
            Some(Spoil::TooMany) => return Ok(answer(StatusCode::TOO_MANY_REQUESTS, "slow down")),
            _ => {}
        }
        let mut url = self.bank.clone();
        url.set_query(head.uri.query());
        let mut headers = head.headers;
        headers.remove(header::HOST);
        let sent = self.http.request(head.method, url).headers(headers);
        let there = sent.body(body).send().await.map_err(io::Error::other)?;
        let Some(spoil) = spoil else {
            return Ok(relay(there));
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
            Spoil::Error => Ok(answer(StatusCode::INTERNAL_SERVER_ERROR, "out of order")),
            Spoil::Garbage => Ok(answer(StatusCode::OK, "{\"jsonrpc\": \"2.0\", \"id\": ")),
            _ => Err(io::Error::other("cut after")),
        }
    }

    /// What happens to this request: one of six calls of tools is spoiled, and nothing else.
    fn draw(&self, body: &[u8]) -> Option<Spoil> {
        let message: serde_json::Value = serde_json::from_slice(body).ok()?;
        if message["method"] != "tools/call" {
            return None;
        }
        self.calls.fetch_add(1, Relaxed);
        let mut random = self.random.lock().unwrap();
        if !random.random_bool(1.0 / 6.0) {
            return None;
        }
        let at = random.random_range(0..SPOILS.len());
        self.spoiled[at].fetch_add(1, Relaxed);
        Some(SPOILS[at])
    }
}

fn answer(status: StatusCode, body: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
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
