//! A small MCP server behind an authorization server of ours, which does what a test wants it to: right or wrong. Its
//! refresh tokens rotate, and one that is used twice ends the authorization.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    extract::{Query, State},
    response::{IntoResponse, Redirect, Response},
    routing::{get, post},
};
use chatelaine::domain::clock;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};
use url::Url;

type Fields = HashMap<String, String>;

/// What an authorization server of ours does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Nothing,
    /// Its metadata names another issuer.
    Issuer,
    /// The answer to a sign-in names another issuer.
    AnswerIssuer,
    /// The answer to a sign-in names no issuer, although the metadata says it would.
    NoAnswerIssuer,
    /// The server's metadata is of another resource.
    Resource,
    /// The challenge leads to metadata at another origin.
    ForeignMetadata,
    /// The token endpoint is at a private address that nobody allowed.
    PrivateTokenEndpoint,
    /// Users are sent to something that is no web page.
    Script,
    /// The metadata leads round in a circle.
    Circle,
    /// The metadata is larger than anything.
    Huge,
    /// There is no PKCE.
    NoPkce,
    /// The user says no.
    Declines,
}

pub struct Knobs {
    pub wrong: Wrong,
    /// Seconds that an access token lives.
    pub life: u64,
    /// The authorization server answers nothing but 503.
    pub away: bool,
    /// What the tool `write` needs.
    pub write_scope: String,
    /// Tokens are issued, and the answers that bring them wait.
    pub hold: bool,
    /// For how long the MCP server does nothing before it looks at a token.
    pub slow: Duration,
    /// For how long a refresh token is good for another time, as some authorization servers have it.
    pub grace: Duration,
}

#[derive(Default)]
pub struct Seen {
    pub registrations: usize,
    pub refreshes: usize,
    /// Refresh tokens that came twice, and were refused.
    pub replays: usize,
    /// After how long a refresh token came twice, and was taken.
    pub repeats: Vec<Duration>,
    /// Calls with a token that had ended.
    pub late: usize,
    pub revoked: Vec<String>,
    /// Paths of the authorization server, in order.
    pub asked: Vec<String>,
    /// Scopes of the sign-ins, in order.
    pub scopes: Vec<String>,
    /// Codes that were sent to the token endpoint.
    pub codes: Vec<String>,
    pub calls: usize,
    pub secrets: Vec<String>,
}

struct Token {
    scopes: String,
    until: Instant,
}

struct Inner {
    knobs: Knobs,
    seen: Seen,
    number: usize,
    codes: HashMap<String, (String, String)>,
    tokens: HashMap<String, Token>,
    /// Refresh tokens with their scopes, and since when they are used.
    refresh: HashMap<String, (String, Option<Instant>)>,
}

#[derive(Clone)]
pub struct Guarded {
    /// The MCP server.
    pub url: Url,
    pub issuer: String,
    inner: Arc<Mutex<Inner>>,
}

impl Guarded {
    pub async fn start() -> Self {
        let mcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let guarded = Self {
            url: Url::parse(&format!("http://{}/mcp", mcp.local_addr().unwrap())).unwrap(),
            issuer: format!("http://{}", issuer.local_addr().unwrap()),
            inner: Arc::new(Mutex::new(Inner {
                knobs: Knobs {
                    wrong: Wrong::Nothing,
                    life: 3600,
                    away: false,
                    write_scope: "notes:write".to_owned(),
                    hold: false,
                    slow: Duration::ZERO,
                    grace: Duration::ZERO,
                },
                seen: Seen::default(),
                number: 0,
                codes: HashMap::new(),
                tokens: HashMap::new(),
                refresh: HashMap::new(),
            })),
        };
        let server = Router::new()
            .route("/mcp", post(call))
            .route("/.well-known/oauth-protected-resource/mcp", get(protected))
            .with_state(guarded.clone());
        let authorization = Router::new()
            .route("/.well-known/oauth-authorization-server", get(metadata))
            .route("/circle", get(|| async { Redirect::temporary("/circle") }))
            .route("/register", post(register))
            .route("/authorize", get(authorize))
            .route("/token", post(token))
            .route("/revoke", post(revoke))
            .with_state(guarded.clone());
        tokio::spawn(async move { axum::serve(mcp, server).await });
        tokio::spawn(async move { axum::serve(issuer, authorization).await });
        guarded
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub fn turn(&self, change: impl FnOnce(&mut Knobs)) {
        change(&mut self.inner().knobs);
    }

    pub fn seen<T>(&self, read: impl FnOnce(&Seen) -> T) -> T {
        read(&self.inner().seen)
    }

    /// All access tokens end at once, before their time.
    pub fn end_access_tokens(&self) {
        self.inner().tokens.clear();
    }

    /// All refresh tokens are refused from here on.
    pub fn end_authorizations(&self) {
        let mut inner = self.inner();
        inner.refresh.clear();
        inner.tokens.clear();
    }
}

impl Inner {
    fn issue(&mut self, scopes: &str) -> Value {
        self.number += 1;
        let access = format!("access-canary-{:06}", self.number);
        let refresh = format!("refresh-canary-{:06}", self.number);
        let life = Duration::from_secs(self.knobs.life);
        let token = Token {
            scopes: scopes.to_owned(),
            until: clock::instant() + life,
        };
        self.tokens.insert(access.clone(), token);
        self.refresh
            .insert(refresh.clone(), (scopes.to_owned(), None));
        self.seen.secrets.extend([access.clone(), refresh.clone()]);
        json!({ "access_token": access, "token_type": "Bearer", "expires_in": self.knobs.life,
                "refresh_token": refresh, "scope": scopes })
    }
}

async fn protected(State(guarded): State<Guarded>) -> Json<Value> {
    let wrong = guarded.inner().knobs.wrong;
    let resource = match wrong {
        Wrong::Resource => "https://elsewhere.example.org/mcp",
        _ => guarded.url.as_str(),
    };
    Json(
        json!({ "resource": resource, "authorization_servers": [guarded.issuer],
                 "scopes_supported": ["notes:read"] }),
    )
}

async fn metadata(State(guarded): State<Guarded>) -> Response {
    let mut inner = guarded.inner();
    inner.seen.asked.push("metadata".to_owned());
    if inner.knobs.away {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let issuer = &guarded.issuer;
    let mut metadata = json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "registration_endpoint": format!("{issuer}/register"),
        "revocation_endpoint": format!("{issuer}/revoke"),
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["client_secret_post"],
        "authorization_response_iss_parameter_supported": true,
    });
    match inner.knobs.wrong {
        Wrong::Issuer => metadata["issuer"] = "https://elsewhere.example.org".into(),
        Wrong::PrivateTokenEndpoint => metadata["token_endpoint"] = "http://10.0.0.1/token".into(),
        Wrong::Script => metadata["authorization_endpoint"] = "javascript:alert(1)".into(),
        Wrong::NoPkce => metadata["code_challenge_methods_supported"] = json!(["plain"]),
        Wrong::Circle => return Redirect::temporary("/circle").into_response(),
        Wrong::Huge => metadata["padding"] = "x".repeat(4_000_000).into(),
        _ => {}
    }
    Json(metadata).into_response()
}

async fn register(State(guarded): State<Guarded>, Json(asked): Json<Value>) -> Response {
    let mut inner = guarded.inner();
    inner.seen.registrations += 1;
    inner.seen.asked.push("register".to_owned());
    assert_eq!(asked["token_endpoint_auth_method"], "client_secret_post");
    let id = format!("client-{}", inner.seen.registrations);
    let client = json!({ "client_id": id, "client_secret": "client-secret-canary",
                         "token_endpoint_auth_method": "client_secret_post" });
    (StatusCode::CREATED, Json(client)).into_response()
}

async fn authorize(State(guarded): State<Guarded>, Query(asked): Query<Fields>) -> Redirect {
    let mut inner = guarded.inner();
    assert_eq!(asked["resource"], guarded.url.as_str());
    assert_eq!(asked["code_challenge_method"], "S256");
    let scopes = asked.get("scope").cloned().unwrap_or_default();
    inner.seen.scopes.push(scopes.clone());
    inner.number += 1;
    let code = format!("code-canary-{:06}", inner.number);
    inner.seen.secrets.push(code.clone());
    inner
        .codes
        .insert(code.clone(), (asked["code_challenge"].clone(), scopes));
    let mut back = Url::parse(&asked["redirect_uri"]).unwrap();
    back.query_pairs_mut().append_pair("state", &asked["state"]);
    let mut say = |name: &str, value: &str| {
        back.query_pairs_mut().append_pair(name, value);
    };
    match inner.knobs.wrong {
        Wrong::Declines => say("error", "access_denied"),
        _ => say("code", &code),
    }
    match inner.knobs.wrong {
        Wrong::NoAnswerIssuer => {}
        Wrong::AnswerIssuer => say("iss", "https://elsewhere.example.org"),
        _ => say("iss", &guarded.issuer),
    }
    Redirect::to(back.as_str())
}

async fn token(State(guarded): State<Guarded>, body: String) -> Response {
    let asked = fields(&body);
    let answer = tokens(&guarded, &asked);
    while guarded.inner().knobs.hold {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    answer
}

fn tokens(guarded: &Guarded, asked: &Fields) -> Response {
    let mut inner = guarded.inner();
    inner
        .seen
        .asked
        .push(format!("token {}", asked["grant_type"]));
    if inner.knobs.away {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let refused = |code: &str| {
        let body = Json(json!({ "error": code }));
        (StatusCode::BAD_REQUEST, body).into_response()
    };
    if asked.get("client_secret").map(String::as_str) != Some("client-secret-canary") {
        return refused("invalid_client");
    }
    assert_eq!(asked["resource"], guarded.url.as_str());
    let scopes = if asked["grant_type"] == "authorization_code" {
        inner.seen.codes.push(asked["code"].clone());
        let Some((challenge, scopes)) = inner.codes.remove(&asked["code"]) else {
            return refused("invalid_grant");
        };
        if challenge != super::s256(&asked["code_verifier"]) {
            return refused("invalid_grant");
        }
        inner.seen.secrets.push(asked["code_verifier"].clone());
        scopes
    } else {
        let (now, grace) = (clock::instant(), inner.knobs.grace);
        let known = inner.refresh.get_mut(&asked["refresh_token"]);
        let first = known.map(|(scopes, used)| (scopes.clone(), used.replace(now)));
        match first {
            Some((scopes, None)) => {
                inner.seen.refreshes += 1;
                scopes
            }
            Some((scopes, Some(used))) if now - used < grace => {
                inner.seen.repeats.push(now - used);
                scopes
            }
            _ => {
                inner.seen.replays += 1;
                return refused("invalid_grant");
            }
        }
    };
    Json(inner.issue(&scopes)).into_response()
}

fn fields(form: &str) -> Fields {
    url::form_urlencoded::parse(form.as_bytes())
        .into_owned()
        .collect()
}

async fn revoke(State(guarded): State<Guarded>, body: String) -> StatusCode {
    let asked = fields(&body);
    let mut inner = guarded.inner();
    inner.refresh.remove(&asked["token"]);
    inner.seen.revoked.push(asked["token"].clone());
    StatusCode::OK
}

/// The MCP server: two tools, one of which wants a scope of its own.
async fn call(State(guarded): State<Guarded>, headers: HeaderMap, body: String) -> Response {
    let slow = guarded.inner().knobs.slow;
    tokio::time::sleep(slow).await;
    answer(&guarded, &headers, &body)
}

fn answer(guarded: &Guarded, headers: &HeaderMap, body: &str) -> Response {
    let mut inner = guarded.inner();
    let given = headers.get(header::AUTHORIZATION);
    let given = given
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let given = given.strip_prefix("Bearer ").unwrap_or_default();
    let now = clock::instant();
    let known = inner.tokens.get(given);
    let is_late = known.is_some_and(|token| token.until <= now);
    let scopes = known.filter(|token| token.until > now);
    let Some(scopes) = scopes.map(|token| token.scopes.clone()) else {
        let is_away = inner.knobs.away;
        inner.seen.late += usize::from(is_late && !is_away);
        let origin = match inner.knobs.wrong {
            Wrong::ForeignMetadata => guarded.issuer.clone(),
            _ => guarded.url.origin().ascii_serialization(),
        };
        let metadata = format!("{origin}/.well-known/oauth-protected-resource/mcp");
        return challenge(
            StatusCode::UNAUTHORIZED,
            &format!("resource_metadata=\"{metadata}\""),
        );
    };
    let message: Value = serde_json::from_str(body).unwrap();
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
                                "serverInfo": { "name": "guarded", "version": "1" } }),
        "tools/list" => {
            let schema = json!({ "type": "object", "properties": {} });
            json!({ "tools": [{ "name": "read", "inputSchema": schema },
                              { "name": "write", "inputSchema": schema }] })
        }
        "tools/call" => {
            let needed = inner.knobs.write_scope.clone();
            let is_write = message["params"]["name"] == "write";
            if is_write && !scopes.split(' ').any(|scope| scope == needed) {
                let said = format!("error=\"insufficient_scope\", scope=\"{needed}\"");
                return challenge(StatusCode::FORBIDDEN, &said);
            }
            inner.seen.calls += 1;
            json!({ "content": [{ "type": "text", "text": "done" }] })
        }
        _ if message.get("id").is_none() => return StatusCode::ACCEPTED.into_response(),
        method => {
            let error = json!({ "code": -32601, "message": format!("no {method} here") });
            let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "error": error });
            return Json(answer).into_response();
        }
    };
    Json(json!({ "jsonrpc": "2.0", "id": message["id"], "result": result })).into_response()
}

fn challenge(status: StatusCode, said: &str) -> Response {
    let headers = [(header::WWW_AUTHENTICATE, format!("Bearer {said}"))];
    (status, headers).into_response()
}
