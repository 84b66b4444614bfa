//! A model that says what a test tells it to: an OpenAI-compatible server on a port of its own.
//!
//! It is strict about what it is sent, so that every test of the product also checks the transcripts: each call
//! has its one result right after it, names and schemas are legal, no endpoint that speaks this protocol would refuse it
//! (`rules`), no forbidden secret is anywhere. What is wrong fails the test when the model is dropped (or at [`ScriptedModel::assert_clean`]). What it sends back may break
//! the protocol in every way that real endpoints do; see [`Reply`].
//!
//! ```ignore
//! let model = ScriptedModel::start().await;
//! model.reply(calls([("bank__get_balances", json!({}))]));           // the first request gets this
//! model.reply(text("You have 5 euros."));                            // the second one that
//! model.on(|request| said(request, "weather").then(|| text("Sun"))); // tried before the queue, for every request
//! ```

use std::{
    collections::VecDeque,
    fs::File,
    io::Write as _,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Response},
    routing::{get, post},
};
use domain::{
    config::Environment,
    pack::{Llm, Provider},
    secret::Secret,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

mod reply;
pub mod rules;
mod strict;
mod transcript;

pub use reply::{Call, Gate, Index, Reply, call, calls, error, events, raw, text};
pub use strict::StrictProvider;
pub use transcript::{last_user, results, said, text_of, tool_names};

/// How long a test waits for something that should happen at once.
const TIME_LIMIT: Duration = Duration::from_secs(20);

type Rule = Box<dyn Fn(&Value) -> Option<Reply> + Send + Sync>;

/// The server. Dropping it stops it and fails the test when a transcript was wrong.
pub struct ScriptedModel {
    inner: Arc<Inner>,
    /// What the server answers from: `inner`, until [`ScriptedModel::renewed`] takes its place.
    current: Current,
    address: SocketAddr,
    /// Absent where another value keeps the server.
    server: Option<JoinHandle<()>>,
}

#[derive(Clone, Default)]
struct Current(Arc<Mutex<Arc<Inner>>>);

#[derive(Default)]
struct Inner {
    queue: Mutex<VecDeque<Reply>>,
    rules: Mutex<Vec<Rule>>,
    journal: Mutex<Vec<Request>>,
    forbidden: Mutex<Vec<String>>,
    violations: Mutex<Vec<String>>,
    seen: watch::Sender<usize>,
    /// Answers that the client hung up on.
    dropped: watch::Sender<usize>,
    /// A request was answered with an error.
    has_refused: AtomicBool,
    keeps_no_journal: AtomicBool,
    next_id: AtomicUsize,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub headers: HeaderMap,
    pub body: Value,
}

impl ScriptedModel {
    pub async fn start() -> Self {
        let current = Current::default();
        let inner = current.get();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new()
            .route("/v1/chat/completions", post(complete))
            .route(
                "/v1/models",
                get(async || axum::Json(json!({ "object": "list", "data": [] }))),
            )
            .with_state(current.clone());
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            inner,
            current,
            address,
            server: Some(server),
        }
    }

    /// The same server for another test: it was told nothing, and has seen no request. It lives as long as before.
    pub fn renewed(&self) -> Self {
        let inner = Arc::new(Inner::default());
        *self.current.0.lock().unwrap() = inner.clone();
        Self {
            inner,
            current: self.current.clone(),
            address: self.address,
            server: None,
        }
    }

    /// What a pack's `llm.baseUrl` should be.
    pub fn base_url(&self) -> url::Url {
        format!("http://{}/v1", self.address).parse().unwrap()
    }

    /// A pack's `llm` for this model.
    pub fn llm(&self) -> Llm {
        Llm {
            provider: Provider::Openai,
            model: "scripted".to_owned(),
            base_url: Some(self.base_url()),
            api_key: Some(Secret::new("model-key-0123456789")),
            agent_prompt: None,
            temperature: None,
            max_tokens: None,
            max_steps: 16,
            reasoning_effort: None,
            fallback: Vec::new(),
        }
    }

    /// Answers the next request that no rule answers.
    pub fn reply(&self, reply: Reply) -> &Self {
        self.inner.queue.lock().unwrap().push_back(reply);
        self
    }

    /// Answers every request for which `rule` gives an answer; rules are tried in order, before the queue.
    pub fn on(&self, rule: impl Fn(&Value) -> Option<Reply> + Send + Sync + 'static) -> &Self {
        self.inner.rules.lock().unwrap().push(Box::new(rule));
        self
    }

    /// From now on no request may hold `secret`, in its body or in a header.
    pub fn forbid(&self, secret: impl Into<String>) -> &Self {
        self.inner.forbidden.lock().unwrap().push(secret.into());
        self
    }

    /// Keeps no request from now on, for a test with more of them than its memory has room for.
    pub fn keep_no_journal(&self) -> &Self {
        self.inner.keeps_no_journal.store(true, Ordering::Relaxed);
        self
    }

    /// Every request so far, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.inner.journal.lock().unwrap().clone()
    }

    /// The body of the newest request.
    pub fn last_request(&self) -> Value {
        self.requests().pop().expect("no request came").body
    }

    /// Waits until `count` requests came.
    pub async fn wait_for_requests(&self, count: usize) -> Vec<Request> {
        reached(&self.inner.seen, count, "requests").await;
        self.requests()
    }

    /// Waits until the client hung up on `count` answers before their end.
    pub async fn wait_for_hangups(&self, count: usize) {
        reached(&self.inner.dropped, count, "answers hung up on").await;
    }

    /// Whether the test that the server is for now has had a request refused. The product remembers what a model does not
    /// accept.
    pub fn has_refused(&self) -> bool {
        self.current.get().has_refused.load(Ordering::Relaxed)
    }

    /// Fails when a transcript was wrong.
    pub fn assert_clean(&self) {
        let violations = self.inner.violations.lock().unwrap();
        assert!(
            violations.is_empty(),
            "the model was sent wrong transcripts:\n{}",
            violations.join("\n")
        );
    }

    /// What is wrong so far, for tests of the model itself; they are then forgotten.
    pub fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut *self.inner.violations.lock().unwrap())
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.abort();
        }
        if !std::thread::panicking() {
            self.assert_clean();
        }
    }
}

async fn reached(counter: &watch::Sender<usize>, count: usize, what: &str) {
    let mut counter = counter.subscribe();
    let waited = tokio::time::timeout(TIME_LIMIT, counter.wait_for(|seen| *seen >= count))
        .await
        .is_ok();
    assert!(
        waited,
        "{} {what} in {TIME_LIMIT:?}, expected {count}",
        *counter.borrow()
    );
}

impl Current {
    fn get(&self) -> Arc<Inner> {
        self.0.lock().unwrap().clone()
    }
}

async fn complete(
    State(current): State<Current>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let inner = current.get();
    let body: Value = serde_json::from_slice(&body)
        .unwrap_or_else(|error| json!({ "not JSON": error.to_string() }));
    keep("Scripted", &body);
    let mut wrong = transcript::violations(&body);
    wrong.extend(rules::compatible_refusals(&body));
    for secret in inner.forbidden.lock().unwrap().iter() {
        let in_header = headers
            .values()
            .any(|value| String::from_utf8_lossy(value.as_bytes()).contains(secret));
        if in_header || body.to_string().contains(secret) {
            wrong.push("it holds a forbidden secret".to_owned());
        }
    }
    let rule = inner
        .rules
        .lock()
        .unwrap()
        .iter()
        .find_map(|rule| rule(&body));
    let reply = rule
        .or_else(|| inner.queue.lock().unwrap().pop_front())
        .unwrap_or_else(|| {
            wrong.push("no answer was scripted for it".to_owned());
            error(400, "no answer was scripted")
        });
    if !inner.keeps_no_journal.load(Ordering::Relaxed) {
        let mut journal = inner.journal.lock().unwrap();
        journal.push(Request { headers, body });
    }
    let number = *inner.seen.borrow() + 1;
    inner.violations.lock().unwrap().extend(
        wrong
            .into_iter()
            .map(|what| format!("request {number}: {what}")),
    );
    inner.seen.send_modify(|seen| *seen += 1);
    let serial = inner.next_id.fetch_add(1, Ordering::Relaxed);
    respond(reply, serial, &inner)
}

fn respond(reply: Reply, serial: usize, inner: &Arc<Inner>) -> Response<Body> {
    if reply.status >= 400 {
        inner.has_refused.store(true, Ordering::Relaxed);
    }
    let mut response = Response::builder().status(reply.status);
    for (name, value) in &reply.headers {
        response = response.header(name, value);
    }
    if !reply.headers.iter().any(|(name, _)| name == "content-type") {
        response = response.header("content-type", "text/event-stream");
    }
    let hangup = Hangup {
        inner: Arc::clone(inner),
        ended: false,
    };
    response
        .body(Body::from_stream(reply.stream(serial, hangup)))
        .unwrap()
}

/// Keeps a request of a kind of provider for `make sdks`, which names a folder.
fn keep(kind: &str, body: &Value) {
    static FOLDER: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let env = Environment::from_process();
        env.get("CHATELAINE_MODEL_REQUESTS").map(PathBuf::from)
    });
    let Some(folder) = &*FOLDER else { return };
    let mut options = File::options();
    options.create(true).append(true);
    let mut file = options.open(folder.join(kind)).unwrap();
    file.write_all(format!("{body}\n").as_bytes()).unwrap();
}

/// Notices that a client went away while an answer was being sent.
pub struct Hangup {
    inner: Arc<Inner>,
    pub ended: bool,
}

impl Drop for Hangup {
    fn drop(&mut self) {
        if !self.ended {
            self.inner.dropped.send_modify(|dropped| *dropped += 1);
        }
    }
}
