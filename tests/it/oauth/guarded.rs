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
    response::{Html, IntoResponse, Redirect, Response},
    routing::{get, post},
};
use domain::clock;
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
    /// The issuer has a last slash in its own metadata, and none in the server's.
    Slash,
    /// The same, and the answer to a sign-in has none.
    AnswerSlash,
    /// Pages for a browser, and redirects, at the first places.
    Pages,
    /// The server's metadata is at the authorization server, and only the challenge says so.
    MetadataElsewhere,
    /// The metadata does not say whether there is PKCE.
    SilentPkce,
    /// The answer with a token has no type.
    NoTokenType,
    /// The answer with a token is a form, and its scopes have commas between them.
    Form,
    /// The scopes of a token are a list.
    ScopeList,
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
    /// What a refresh is answered with.
    pub refusal: Option<(u16, &'static str)>,
    /// Clients up to this number are not known any more.
    pub forgotten: usize,
    /// When the secrets of clients end.
    pub secret_ends_at: i64,
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
    /// The clients of token requests, in order.
    pub clients: Vec<String>,
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
                    refusal: None,
                    forgotten: 0,
                    secret_ends_at: 0,
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
            .route(
                "/.well-known/oauth-protected-resource/mcp",
                get(protected_first),
            )
            .route("/.well-known/oauth-protected-resource", get(protected))
            .with_state(guarded.clone());
        let authorization = Router::new()
            .route(
                "/.well-known/oauth-authorization-server",
                get(metadata_first),
            )
            .route("/.well-known/openid-configuration", get(metadata))
            .route("/elsewhere", get(protected))
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

    /// No client that was registered so far is known any more.
    pub fn forget_clients(&self) {
        let mut inner = self.inner();
        inner.knobs.forgotten = inner.seen.registrations;
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
    fn is_forgotten(&self, client: &str) -> bool {
        let number = client
            .strip_prefix("client-")
            .and_then(|number| number.parse::<usize>().ok());
        number.is_some_and(|number| number <= self.knobs.forgotten)
    }

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

/// The place that is asked first.
async fn protected_first(State(guarded): State<Guarded>) -> Response {
    let wrong = guarded.inner().knobs.wrong;
    match wrong {
        Wrong::Pages => Html("<h1>Welcome</h1>").into_response(),
        Wrong::MetadataElsewhere => StatusCode::NOT_FOUND.into_response(),
        _ => protected(State(guarded)).await.into_response(),
    }
}

async fn metadata_first(State(guarded): State<Guarded>) -> Response {
    let wrong = guarded.inner().knobs.wrong;
    match wrong {
        Wrong::Pages => Redirect::temporary("/login").into_response(),
        _ => metadata(State(guarded)).await,
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
        Wrong::Slash | Wrong::AnswerSlash => metadata["issuer"] = format!("{issuer}/").into(),
        Wrong::SilentPkce => drop(
            metadata
                .as_object_mut()
                .unwrap()
                .remove("code_challenge_methods_supported"),
        ),
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
                         "client_secret_expires_at": inner.knobs.secret_ends_at,
                         "token_endpoint_auth_method": "client_secret_post" });
    (StatusCode::CREATED, Json(client)).into_response()
}

async fn authorize(State(guarded): State<Guarded>, Query(asked): Query<Fields>) -> Response {
    let mut inner = guarded.inner();
    if inner.is_forgotten(&asked["client_id"]) {
        return (StatusCode::BAD_REQUEST, "Unrecognized client_id").into_response();
    }
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
        Wrong::Slash => say("iss", &format!("{}/", guarded.issuer)),
        _ => say("iss", &guarded.issuer),
    }
    Redirect::to(back.as_str()).into_response()
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
    let client = asked["client_id"].clone();
    let is_forgotten = inner.is_forgotten(&client);
    inner.seen.clients.push(client);
    if is_forgotten
        || asked.get("client_secret").map(String::as_str) != Some("client-secret-canary")
    {
        return refused("invalid_client");
    }
    if let Some((status, body)) = inner
        .knobs
        .refusal
        .filter(|_| asked["grant_type"] == "refresh_token")
    {
        let status = StatusCode::from_u16(status).unwrap();
        return (status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
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
    let mut tokens = inner.issue(&scopes);
    match inner.knobs.wrong {
        Wrong::NoTokenType => drop(tokens.as_object_mut().unwrap().remove("token_type")),
        Wrong::ScopeList => tokens["scope"] = scopes.split(' ').collect(),
        Wrong::Form => {
            let mut form = url::form_urlencoded::Serializer::new(String::new());
            for (name, value) in tokens.as_object().unwrap() {
                let text = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                form.append_pair(name, &text.replace(' ', ","));
            }
            let kind = "application/x-www-form-urlencoded";
            return ([(header::CONTENT_TYPE, kind)], form.finish()).into_response();
        }
        _ => {}
    }
    Json(tokens).into_response()
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
        let metadata = match inner.knobs.wrong {
            Wrong::MetadataElsewhere => format!("{}/elsewhere", guarded.issuer),
            _ => format!("{origin}/.well-known/oauth-protected-resource/mcp"),
        };
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
