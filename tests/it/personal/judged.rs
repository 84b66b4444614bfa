//! Servers that look at a credential where they like: at every request, at a call only, or at nothing but one tool.

use std::sync::{Arc, Mutex};

use axum::{Json, Router, extract::State, response::IntoResponse, routing::post};
use base64::{Engine, prelude::BASE64_STANDARD};
use chatelaine::app::accounts::development::DevelopmentUser;
use domain::{personal::Values, secret::Secret};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use url::Url;

use super::{connection, enter, tools};
use crate::support::{
    client::Client,
    notes::ring,
    packs::{env, load_files},
    servers::until,
    wait::eventually,
    world::{Setup, World},
};

const PACK: &str = r#"
metadata: { id: ID, displayName: Notes, description: Notes, defaultLanguage: en }
languages: { en: { systemPrompt: "You keep notes." }, es: {}, fr: {} }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
flows: { authentication: { required: true, adminUsers: [root] } }
mcp:
  servers:
    - name: notes
      transport: streamable-http
      url: "${SERVER_URL}"
      accessMode: user-controlled
      timeouts: { connectSeconds: 10, requestSeconds: 20 }
      toolAccess: { default: public }
"#;

const TOKEN: &str =
    "userConfig: { fields: [{ name: token, type: secret, headerTemplate: \"Bearer {value}\" }] }";
const TEST: &str = "/v1/agents/notes/connections/notes/test";

/// A request as it came in.
#[derive(Clone, Debug)]
struct Asked {
    method: String,
    tool: String,
    authorization: String,
    headers: HeaderMap,
}

struct Inner {
    /// Values of `Authorization` that are good.
    good: Vec<String>,
    /// Methods, or tools, in which it is looked at.
    guards: Vec<&'static str>,
    /// A refusal is a result of the tool, and no status.
    says_so_in_results: bool,
    asked: Vec<Asked>,
}

#[derive(Clone)]
struct Lenient {
    url: Url,
    inner: Arc<Mutex<Inner>>,
}

impl Lenient {
    /// Knows `Bearer good-token-1` and `Bearer good-token-2`.
    async fn start(guards: &[&'static str]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let lenient = Self {
            url: Url::parse(&format!("http://{}/mcp", listener.local_addr().unwrap())).unwrap(),
            inner: Arc::new(Mutex::new(Inner {
                good: vec!["Bearer good-token-1".into(), "Bearer good-token-2".into()],
                guards: guards.to_vec(),
                says_so_in_results: false,
                asked: Vec::new(),
            })),
        };
        let router = Router::new()
            .route("/mcp", post(answer))
            .with_state(lenient.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        lenient
    }

    fn turn(&self, change: impl FnOnce(&mut Inner)) {
        change(&mut self.inner.lock().unwrap());
    }

    /// The values of `Authorization` that came with a method, in order.
    fn authorizations(&self, method: &str) -> Vec<String> {
        let inner = self.inner.lock().unwrap();
        let asked = inner.asked.iter().filter(|asked| asked.method == method);
        asked.map(|asked| asked.authorization.clone()).collect()
    }

    fn asked(&self) -> Vec<Asked> {
        self.inner.lock().unwrap().asked.clone()
    }

    /// A world whose agent `notes` has this server with these lines in its pack.
    async fn world(&self, lines: &str) -> World {
        self.world_with(lines, |_| {}).await
    }

    async fn world_with(&self, lines: &str, change: impl FnOnce(&mut Setup)) -> World {
        World::with(|setup| {
            setup.env = setup.env.clone().with("SERVER_URL", self.url.as_str());
            setup.config.ring = ring();
            let pack = format!("{}      {lines}\n", PACK.replace("ID", "notes"));
            setup.packs = vec![("notes".to_owned(), pack)];
            change(setup);
        })
        .await
    }
}

async fn answer(
    State(lenient): State<Lenient>,
    headers: HeaderMap,
    Json(message): Json<Value>,
) -> axum::response::Response {
    let mut inner = lenient.inner.lock().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let asked = Asked {
        method: text(&message["method"]),
        tool: text(&message["params"]["name"]),
        authorization: headers
            .get("authorization")
            .map_or(String::new(), |value| value.to_str().unwrap().to_owned()),
        headers,
    };
    inner.asked.push(asked.clone());
    let guarded = [&asked.method, &asked.tool].map(String::as_str);
    let is_guarded = inner.guards.iter().any(|guard| guarded.contains(guard));
    let is_refused = is_guarded && !inner.good.contains(&asked.authorization);
    if is_refused && !inner.says_so_in_results {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let result = match asked.method.as_str() {
        "initialize" => json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
                                "serverInfo": { "name": "lenient", "version": "1" } }),
        "tools/list" => {
            let schema = json!({ "type": "object" });
            json!({ "tools": [{ "name": "whoami", "inputSchema": schema },
                              { "name": "repeat", "inputSchema": schema }] })
        }
        "tools/call" => {
            let values = asked.headers.iter().map(|(name, value)| {
                let value = value.to_str().unwrap_or_default();
                let form: String = url::form_urlencoded::byte_serialize(value.as_bytes()).collect();
                format!(
                    "{name}: {value} {} {} {form}",
                    BASE64_STANDARD.encode(value),
                    hex::encode(value)
                )
            });
            let said = match asked.tool.as_str() {
                "repeat" => values.collect::<Vec<_>>().join("\n"),
                _ => "you are somebody".to_owned(),
            };
            json!({ "content": [{ "type": "text", "text": said }], "isError": is_refused })
        }
        _ if message.get("id").is_none() => return StatusCode::ACCEPTED.into_response(),
        _ => {
            let error = json!({ "code": -32601, "message": "not here" });
            return Json(json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }))
                .into_response();
        }
    };
    Json(json!({ "jsonrpc": "2.0", "id": message["id"], "result": result })).into_response()
}

/// What the program says to a text in a conversation.
async fn said(client: &Client, chat: &str, text: &str) -> String {
    let run = client.say_and_wait(chat, text).await;
    let messages = client.messages(chat).await;
    let answers = messages
        .iter()
        .filter(|message| message["run_id"] == run["id"] && message["role"] != "user");
    answers
        .map(|message| message["parts"].to_string())
        .collect::<Vec<_>>()
        .join("\n")
}

#[tokio::test]
async fn a_wrong_token_is_refused_although_the_handshake_is_open_and_the_list_is_known() {
    let server = Lenient::start(&["tools/list", "tools/call"]).await;
    let world = server.world(TOKEN).await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    let entered = enter(&ann, "notes", "good-token-1").await.expect(200);
    assert_eq!(entered["state"], "configured");
    let refused = enter(&bob, "notes", "totally-wrong").await;
    assert_eq!(refused.expect(422)["code"], "unauthorized");
    assert_eq!(connection(&bob, "notes").await["state"], "not_configured");
    enter(&ann, "notes", "another-wrong").await.expect(422);
    ann.ask("notes", "/call notes whoami").await;
    assert_eq!(server.authorizations("tools/call"), ["Bearer good-token-1"]);
}

#[tokio::test]
async fn where_nothing_judges_before_a_call_a_credential_is_saved_and_not_called_good() {
    let server = Lenient::start(&["tools/call"]).await;
    let world = server.world(TOKEN).await;
    let ann = world.user("ann", &[]).await;
    let entered = enter(&ann, "notes", "good-token-1").await.expect(200);
    assert_eq!(entered["state"], "saved");
    let tested = ann.post(TEST, json!({})).await.expect(200);
    assert_eq!(tested["ok"], false);
    assert_eq!(
        tested.get("reason"),
        None,
        "it does not fail either: {tested}"
    );
    assert!(
        tested["message"]
            .as_str()
            .unwrap()
            .starts_with("saved; its first call will show")
    );
    assert!(tools(&ann, "notes").await.contains(&"whoami".to_owned()));
    let chat = ann.open("notes").await;
    let listed = said(&ann, &chat, "/connect").await;
    assert!(
        listed.contains("saved; its first call will show"),
        "{listed}"
    );
    assert!(!listed.contains('✅'), "{listed}");
    ann.ask("notes", "/call notes whoami").await;
    assert_eq!(connection(&ann, "notes").await["state"], "configured");
}

#[tokio::test]
async fn the_chat_says_that_the_first_call_will_show_in_three_languages() {
    for (language, words) in [
        ("en", "saved; its first call will show"),
        ("es", "guardado; su primera llamada dirá"),
        ("fr", "enregistré ; son premier appel dira"),
    ] {
        let server = Lenient::start(&["tools/call"]).await;
        let world = server.world(TOKEN).await;
        let person = DevelopmentUser {
            user: "ann".to_owned(),
            locale: Some(language.to_owned()),
            ..DevelopmentUser::default()
        };
        let ann = world.someone(&person).await;
        let chat = ann.open("notes").await;
        said(&ann, &chat, "/connect notes").await;
        let answer = said(&ann, &chat, "good-token-1").await;
        assert!(answer.contains(words), "{language}: {answer}");
        assert!(!answer.contains('✅'), "{language}: {answer}");
    }
}

#[tokio::test]
async fn a_good_credential_stays_until_the_first_call_with_another_one_succeeds() {
    let server = Lenient::start(&["tools/call"]).await;
    let world = server.world(TOKEN).await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", "good-token-1").await.expect(200);
    ann.ask("notes", "/call notes whoami").await;
    let chat = ann.open("notes").await;
    said(&ann, &chat, "/connect notes").await;
    let answer = said(&ann, &chat, "good-token-2").await;
    assert!(
        answer.contains("What you entered before is kept until then"),
        "{answer}"
    );
    assert_eq!(connection(&ann, "notes").await["state"], "saved");
    ann.ask("notes", "/call notes whoami").await;
    ann.ask("notes", "/call notes whoami").await;
    let calls = server.authorizations("tools/call");
    let [one, two] = ["Bearer good-token-1", "Bearer good-token-2"];
    assert_eq!(calls, [one, two, two]);
    assert_eq!(connection(&ann, "notes").await["state"], "configured");
}

#[tokio::test]
async fn a_first_call_that_is_refused_brings_the_old_credential_back_and_its_user_is_told_once() {
    let server = Lenient::start(&["tools/call"]).await;
    let world = server.world(TOKEN).await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", "good-token-1").await.expect(200);
    ann.ask("notes", "/call notes whoami").await;
    let entered = enter(&ann, "notes", "wrong-token-1").await.expect(200);
    assert_eq!(entered["state"], "saved");
    let chat = ann.open("notes").await;
    let refused = said(&ann, &chat, "/call notes whoami").await;
    assert!(
        refused.contains("does not accept what you entered last"),
        "{refused}"
    );
    let again = said(&ann, &chat, "/call notes whoami").await;
    assert!(again.contains("you are somebody"), "{again}");
    assert!(!again.contains("does not accept"), "{again}");
    let calls = server.authorizations("tools/call");
    let (good, wrong) = ("Bearer good-token-1", "Bearer wrong-token-1");
    assert_eq!(calls, [good, wrong, good]);
    assert_eq!(connection(&ann, "notes").await["state"], "configured");
}

#[tokio::test]
async fn a_result_that_is_an_error_proves_nothing() {
    let server = Lenient::start(&["tools/call"]).await;
    server.turn(|inner| inner.says_so_in_results = true);
    let world = server.world(TOKEN).await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", "wrong-token-1").await.expect(200);
    ann.ask("notes", "/call notes whoami").await;
    assert_eq!(connection(&ann, "notes").await["state"], "saved");
}

#[tokio::test]
async fn a_server_is_asked_once_with_a_false_credential_that_looks_like_the_right_one() {
    let server = Lenient::start(&["tools/list"]).await;
    let world = server.world(TOKEN).await;
    let tokens = [
        "good-0a1b2c3d4e5f6a7b8c9d0e-1",
        "good-0a1b2c3d4e5f6a7b8c9d0e-2",
    ];
    server.turn(|inner| inner.good = tokens.map(|token| format!("Bearer {token}")).to_vec());
    for (user, token) in ["ann", "bob"].into_iter().zip(tokens) {
        let user = world.user(user, &[]).await;
        let entered = enter(&user, "notes", token).await.expect(200);
        assert_eq!(entered["state"], "configured");
    }
    let mut asked = server.authorizations("tools/list");
    asked.retain(|value| !tokens.iter().any(|token| value.ends_with(token)));
    let [falsified] = &asked[..] else {
        panic!("{asked:?}")
    };
    let falsified = falsified.strip_prefix("Bearer good-").unwrap();
    assert_eq!(falsified.len(), "0a1b2c3d4e5f6a7b8c9d0e-1".len());
    assert!(falsified.ends_with(|last: char| last.is_ascii_digit()));
}

#[tokio::test]
async fn no_false_credential_is_one_that_somebody_could_have() {
    for (token, mark) in [("5", ""), ("1234", ""), ("ghp_12", "ghp_")] {
        let server = Lenient::start(&["initialize", "tools/list"]).await;
        server.turn(|inner| {
            inner.good = (0..10).map(|digit| format!("Bearer {digit}")).collect();
            inner.good.push(format!("Bearer {token}"));
        });
        let world = server.world(TOKEN).await;
        let ann = world.user("ann", &[]).await;
        let entered = enter(&ann, "notes", token).await.expect(200);
        assert_eq!(entered["state"], "configured", "{token}");
        for asked in server.asked() {
            let seen = asked.authorization.strip_prefix("Bearer ").unwrap();
            let is_random = |text: &str| text.len() == 32 && hex::decode(text).is_ok();
            let is_false = seen.strip_prefix(mark).is_some_and(is_random);
            assert!(seen == token || is_false, "{token}: {seen}");
        }
    }
}

#[test]
fn a_false_secret_of_a_few_digits_never_has_their_length() {
    let pack = format!("{}      {TOKEN}\n", PACK.replace("ID", "notes"));
    let env = env(&[
        ("MODEL_URL", "http://m"),
        ("SERVER_URL", "https://s.example.org/mcp"),
    ]);
    let pack = load_files(&[("agent-pack.yaml", &pack)], &env);
    let fields = &pack.servers[0].user_config;
    for _ in 0..10_000 {
        let length = rand::random_range(1..=8);
        let digits = |_| char::from(b'0' + rand::random_range(0..10_u8));
        let secret: String = (0..length).map(digits).collect();
        let entered = [("token".to_owned(), Secret::new(secret))].into();
        let values = Values::check(fields, &entered).unwrap();
        let falsified = values.falsify(fields).unwrap().to_sealable();
        let falsified: Value = serde_json::from_str(falsified.expose()).unwrap();
        assert_eq!(
            falsified["token"].as_str().unwrap().len(),
            32,
            "not {length}"
        );
    }
}

#[tokio::test]
async fn no_account_is_tried_with_a_false_secret() {
    let basic = "userConfig: { fields: [{ name: user, type: text, headerTemplate: \"Basic {base64(user:token)}\" }, { name: token, type: secret }] }";
    let apart = "userConfig: { fields: [{ name: user, type: text, headerName: X-User }, { name: token, type: secret, headerTemplate: \"Bearer {value}\" }] }";
    for (lines, state) in [(basic, "configured"), (apart, "saved")] {
        let server = Lenient::start(&["tools/list"]).await;
        let pair = format!("Basic {}", BASE64_STANDARD.encode("ann.lee:good-token-1"));
        server.turn(|inner| inner.good.push(pair));
        let world = server.world(lines).await;
        let ann = world.user("ann", &[]).await;
        let path = "/v1/agents/notes/connections/notes";
        let fields = json!({ "fields": { "user": "ann.lee", "token": "good-token-1" } });
        let entered = ann.request(http::Method::PUT, path).json(&fields);
        assert_eq!(ann.send(entered).await.expect(200)["state"], state);
        for asked in server.asked() {
            let pair = asked.authorization.strip_prefix("Basic ");
            let pair =
                pair.map(|pair| String::from_utf8(BASE64_STANDARD.decode(pair).unwrap()).unwrap());
            let pair = pair.unwrap_or_else(|| {
                format!("{:?}:{}", asked.headers.get("x-user"), asked.authorization)
            });
            assert!(
                !pair.contains("ann.lee") || pair.ends_with("good-token-1"),
                "{pair}"
            );
        }
    }
}

#[tokio::test]
async fn the_tool_that_a_pack_names_judges_a_credential() {
    let test = TOKEN.replace("userConfig: {", "userConfig: { test: whoami,");
    let server = Lenient::start(&["whoami"]).await;
    let world = server.world(&test).await;
    let ann = world.user("ann", &[]).await;
    enter(&ann, "notes", "wrong-token-1").await.expect(422);
    let entered = enter(&ann, "notes", "good-token-1").await.expect(200);
    assert_eq!(entered["state"], "configured");
    // A server that refuses in the result of the tool judges as well.
    server.turn(|inner| inner.says_so_in_results = true);
    enter(&ann, "notes", "wrong-token-1").await.expect(422);
    assert_eq!(ann.post(TEST, json!({})).await.expect(200)["ok"], true);
}

#[tokio::test]
async fn a_value_of_a_variable_is_hidden_whatever_header_carries_it() {
    let server = Lenient::start(&[]).await;
    let lines = "headers: { X-Op: \"${OP_TOKEN}\", X-Region: eu-west-1, X-Short: \"${SHORT}\" }";
    let world = server
        .world_with("", |setup| {
            let (id, pack) = setup.packs.pop().unwrap();
            let pack = pack.replace("accessMode: user-controlled", lines);
            setup.packs = vec![(id, pack)];
            setup.env = setup
                .env
                .clone()
                .with("OP_TOKEN", "operators own value")
                .with("SHORT", "EU");
        })
        .await;
    let ann = world.user("ann", &[]).await;
    eventually(async || connection(&ann, "notes").await["state"] == "ready").await;
    let answer = ann.ask("notes", "/call notes repeat").await;
    let secret = "operators own value";
    let form = "operators+own+value";
    for spelling in [
        secret.to_owned(),
        BASE64_STANDARD.encode(secret),
        hex::encode(secret),
        form.to_owned(),
    ] {
        assert!(!answer.contains(&spelling), "{spelling} is in {answer}");
    }
    assert!(answer.contains("x-op: ••••"), "{answer}");
    assert!(
        answer.contains("x-region: eu-west-1") && answer.contains("x-short: EU"),
        "{answer}"
    );
}

/// What a personal server with headers of the operator has in its pack.
const WITH_OPERATOR: &str = r#"headers: { Authorization: "Bearer ${ADMIN_TOKEN}", X-Op: "${OP}", X-Tenant: { value: "${T}", shared: true }, X-Plain: plain }
      userConfig: { fields: [{ name: token, type: secret, headerTemplate: "Bearer {value}" }] }"#;

async fn with_operator(server: &Lenient) -> World {
    server.turn(|inner| inner.good.push("Bearer admin-token".into()));
    let set = |setup: &mut Setup| {
        let env = setup.env.clone().with("ADMIN_TOKEN", "admin-token");
        setup.env = env
            .with("OP", "operators own value")
            .with("T", "tenant-seven");
    };
    server.world_with(WITH_OPERATOR, set).await
}

#[tokio::test]
async fn the_operators_headers_discover_a_personal_server_and_go_with_no_users_call() {
    let server = Lenient::start(&["initialize", "tools/list", "tools/call"]).await;
    let world = with_operator(&server).await;
    let (ann, bob) = (world.user("ann", &[]).await, world.user("bob", &[]).await);
    until(|| !server.authorizations("tools/list").is_empty()).await;
    assert_eq!(server.authorizations("tools/list"), ["Bearer admin-token"]);
    assert_eq!(connection(&ann, "notes").await["state"], "not_configured");
    assert_eq!(tools(&ann, "notes").await, [""; 0]);
    let entered = enter(&ann, "notes", "good-token-1").await.expect(200);
    assert_eq!(entered["state"], "configured");
    assert!(tools(&ann, "notes").await.contains(&"whoami".to_owned()));
    assert_eq!(tools(&bob, "notes").await, [""; 0], "whatever is known");
    ann.ask("notes", "/call notes whoami").await;
    let asked = server.asked();
    let header = |asked: &Asked, name: &str| {
        let value = asked.headers.get(name);
        value.map(|value| value.to_str().unwrap().to_owned())
    };
    let of_users = asked
        .iter()
        .filter(|asked| asked.authorization != "Bearer admin-token");
    for asked in of_users {
        assert_eq!(header(asked, "x-op"), None, "{asked:?}");
        assert_eq!(header(asked, "x-tenant").as_deref(), Some("tenant-seven"));
        assert_eq!(header(asked, "x-plain").as_deref(), Some("plain"));
    }
    let first = asked.first().unwrap();
    assert_eq!(
        header(first, "x-op").as_deref(),
        Some("operators own value")
    );
    assert!(
        asked
            .iter()
            .all(|asked| asked.method != "tools/call"
                || asked.authorization == "Bearer good-token-1")
    );
}

#[tokio::test]
async fn without_the_operators_variable_a_personal_server_waits_for_its_first_user() {
    let server = Lenient::start(&["initialize", "tools/list", "tools/call"]).await;
    let one = "headers: { Authorization: \"Bearer ${ADMIN_TOKEN}\" }\n      ";
    let world = server.world(&format!("{one}{TOKEN}")).await;
    let ann = world.user("ann", &[]).await;
    assert_eq!(tools(&ann, "notes").await, [""; 0]);
    assert!(
        server.asked().is_empty(),
        "nobody connects without a credential"
    );
    enter(&ann, "notes", "good-token-1").await.expect(200);
    assert!(tools(&ann, "notes").await.contains(&"whoami".to_owned()));
}
