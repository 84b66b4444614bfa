//! The registry of servers: its document, its admins' API, and servers that are reached through it.

mod address; // a value cannot leave its place
mod api; // create, read, update, delete
pub mod document; // the document's examples, word for word
mod limits; // how much, and what is for later
mod packs; // what a pack may write
mod reached; // a server that is told what it was configured with
mod runs; // values of a run
mod sensitive; // what never comes back
mod settings; // what admins set for the servers of agents and capabilities
mod shared_tokens; // the same for more than one process
pub mod tokens; // OAuth client credentials
mod values; // what becomes of a configured value

use std::sync::{Arc, Mutex};

use axum::{
    extract::Request,
    middleware,
    response::{IntoResponse, Response},
};
use chatelaine::app::accounts::{self, NewKey};
use domain::{
    account::KeyKind,
    principal::{Scope, Scopes},
};
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};

use crate::support::{
    bank::{books::Books, http::router, tools::Bank},
    client::Client,
    world::{Setup, TIME_LIMIT, World},
};

/// A bank that remembers what it was sent, and may want a bearer token.
pub struct Watched {
    /// `http://127.0.0.1:…/mcp`
    pub url: String,
    seen: Arc<Mutex<Vec<HeaderMap>>>,
    /// The only token that it takes; absent: it takes everybody.
    token: Arc<Mutex<Option<String>>>,
    books: Arc<Books>,
}

impl Watched {
    pub async fn start() -> Self {
        Self::with(false).await
    }

    /// One that says in its answers what it was sent.
    pub async fn echoing() -> Self {
        Self::with(true).await
    }

    async fn with(echo: bool) -> Self {
        let books = Arc::new(Books::open(None).unwrap());
        let (seen, token) = (
            Arc::<Mutex<Vec<HeaderMap>>>::default(),
            Arc::<Mutex<Option<String>>>::default(),
        );
        let (log, expected) = (seen.clone(), token.clone());
        let watch = move |request: Request, next: middleware::Next| {
            log.lock().unwrap().push(request.headers().clone());
            let post = request.method() == http::Method::POST;
            let sent =
                format!("{:?}", request.headers().values().collect::<Vec<_>>()).replace('"', " ");
            let given = request
                .headers()
                .get(header::AUTHORIZATION)
                .map(|value| value.to_str().unwrap().to_owned());
            let wanted = expected
                .lock()
                .unwrap()
                .clone()
                .map(|token| format!("Bearer {token}"));
            async move {
                match wanted {
                    Some(wanted) if given.as_ref() != Some(&wanted) => {
                        StatusCode::UNAUTHORIZED.into_response()
                    }
                    _ if echo && post => echoed(next.run(request).await, &sent).await,
                    _ => next.run(request).await,
                }
            }
        };
        let bank = Bank::new(books.clone(), std::time::Duration::ZERO);
        let router = router(bank, books.clone(), None, &[]).layer(middleware::from_fn(watch));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            url,
            seen,
            token,
            books,
        }
    }

    /// A header of the latest request that had it.
    pub fn last(&self, name: &str) -> Option<String> {
        let seen = self.seen.lock().unwrap();
        seen.iter()
            .rev()
            .find_map(|headers| Some(headers.get(name)?.to_str().unwrap().to_owned()))
    }

    /// The latest request with this header.
    pub fn request_with(&self, name: &str, value: &str) -> HeaderMap {
        let seen = self.seen.lock().unwrap();
        let has = |headers: &&HeaderMap| headers.get(name).is_some_and(|it| it == value);
        let found = seen.iter().rev().find(has);
        found.expect("a request with this header").clone()
    }

    /// Every value of a header so far.
    pub fn all(&self, name: &str) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        let mut all: Vec<_> = seen
            .iter()
            .filter_map(|headers| Some(headers.get(name)?.to_str().unwrap().to_owned()))
            .collect();
        all.sort();
        all.dedup();
        all
    }

    pub fn executions(&self) -> usize {
        self.books.entries().len()
    }
}

/// An answer with the exchange rate, and with all that was sent beside it.
async fn echoed(answer: Response, sent: &str) -> Response {
    let (mut parts, body) = answer.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let text = String::from_utf8(body.to_vec())
        .unwrap()
        .replace("1.085", &format!("1.085 {sent}"));
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, text.into())
}

/// An agent that takes servers from the registry; `below` is the rest of its pack.
fn pack(id: &str, below: &str) -> (String, String) {
    let yaml = format!(
        r#"
metadata: {{ id: {id}, displayName: {id}, description: {id}, defaultLanguage: en }}
languages: {{ en: {{ systemPrompt: "You are {id}." }} }}
llm: {{ provider: openai, model: scripted, baseUrl: "${{MODEL_URL}}", apiKey: model-key-0123456789 }}
flows: {{ authentication: {{ required: true, adminUsers: [root] }} }}
{below}
"#
    );
    (id.to_owned(), yaml)
}

/// The document's own addresses are this machine's.
pub fn open_localhost(setup: &mut Setup) {
    setup.config.egress_allow.push("localhost".to_owned());
    setup
        .config
        .tenant_egress_allow
        .push("localhost".to_owned());
    setup.config.registry_env = vec!["ATLASSIAN_*@*".to_owned(), "GRANTED@*".to_owned()];
    setup.env = setup
        .env
        .clone()
        .with("ATLASSIAN_API_KEY", "sk-atlassian-0123456789")
        .with("GRANTED", "granted-1");
    setup.env = setup
        .env
        .clone()
        .with("OPERATORS_OWN", "operator-0123456789");
}

async fn world() -> World {
    World::with(open_localhost).await
}

/// Somebody with the power to manage the other tenant.
pub async fn other_admin(world: &World) -> Client {
    let new = NewKey {
        source: domain::account::SourceSettings::default(),
        name: "admin".to_owned(),
        scopes: Scopes::new([Scope::Admin, Scope::Chat]),
        speaker: KeyKind::Service(serde_json::Map::new()),
        chat: domain::account::ChatSettings::default(),
        expires_at: None,
    };
    let key = accounts::create_key(&world.db.db, &world.app().clock, world.other.id, new)
        .await
        .unwrap();
    world.client(&key.secret)
}

pub fn entry(id: &str, url: &str, schema: Value, defaults: Value) -> Value {
    let mut entry = json!({ "id": id, "name": id, "description": "", "url": url });
    (entry["config_schema"], entry["default_config"]) = (schema, defaults);
    entry
}

async fn put(client: &Client, path: &str, body: &Value) -> crate::support::client::Answer {
    client
        .send(client.request(http::Method::PUT, path).json(body))
        .await
}

/// Polls until it holds, for what follows from a change of the registry.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIME_LIMIT, wait)
        .await
        .unwrap_or_else(|_| panic!("it did not come to pass: {what}"));
}

/// Waits until a user of an agent is offered tools of this server.
async fn offered(client: &Client, agent: &str, server: &str) {
    eventually("the tools are offered", async || {
        let tools = client
            .get(&format!("/v1/agents/{agent}/tools"))
            .await
            .expect(200);
        let mut items = tools["items"].as_array().unwrap().iter();
        items.any(|item| item["server"] == server && !item["tools"].as_array().unwrap().is_empty())
    })
    .await;
}
