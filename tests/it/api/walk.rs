//! Bad input to every route of the OpenAPI document. Each answer is a problem with a code and a whole sentence.

use chatelaine::api;
use domain::secret::Secret;
use http::{Method, header};
use serde_json::{Value, json};

use crate::support::{
    client::{Answer, Client},
    world::World,
};

const OPERATOR: &str = "operator-token-of-the-tests-0123456789";
const METHODS: [Method; 5] = [
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
];

struct Route {
    method: Method,
    path: String,
    /// The media type of its body, if it has one.
    body: Option<String>,
    /// Its path with things that are there.
    filled: String,
}

fn routes(document: &Value, id: &str) -> Vec<Route> {
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let body = operation["requestBody"]["content"].as_object();
            let filled = path
                .replace("{id}", id)
                .replace("{agent}", "office")
                .replace("{model}", "office")
                .replace("{tenant}", "acme")
                .replace("{token}", "made-up");
            routes.push(Route {
                method: method.to_uppercase().parse().unwrap(),
                path: path.clone(),
                body: body.and_then(|content| content.keys().next().cloned()),
                filled,
            });
        }
    }
    routes
}

struct People {
    operator: Client,
    admin: Client,
    ann: Client,
    stranger: Client,
}

impl People {
    async fn of(world: &World) -> Self {
        Self {
            operator: world.client(&Secret::new(OPERATOR)),
            admin: world.admin().await,
            ann: world.user("ann", &[]).await,
            stranger: world.stranger("ann").await,
        }
    }

    /// Who may use this route.
    fn owner(&self, path: &str) -> &Client {
        let of_admins = [
            "/v1/admin",
            "/v1/secrets",
            "/v1/mcp-servers",
            "/mcp-servers",
        ];
        if path.starts_with("/v1/admin/tenants") {
            &self.operator
        } else if of_admins.iter().any(|start| path.starts_with(start)) {
            &self.admin
        } else {
            &self.ann
        }
    }
}

/// A problem, or OpenAI's error where its clients ask; a code, and a sentence that can be read alone.
fn check(what: &str, answer: &Answer, expected: &[u16], wrong: &mut Vec<String>) {
    let body: Value = serde_json::from_str(&answer.text).unwrap_or_default();
    let is_shown = answer.header("content-type").starts_with("text/plain");
    let (code, sentence) = match &body["error"] {
        // The status is the code.
        _ if is_shown => (json!(answer.status.to_string()), json!(answer.text)),
        Value::Object(error) => (error["code"].clone(), error["message"].clone()),
        _ => (body["code"].clone(), body["detail"].clone()),
    };
    let sentence = sentence.as_str().unwrap_or_default();
    // A subject and something said of it.
    let is_whole = sentence.split(' ').count() >= 3 && !sentence.contains("struct ");
    let is_named = code.as_str().is_some_and(|code| !code.is_empty());
    if !expected.contains(&answer.status) || !is_whole || !is_named {
        wrong.push(format!("{what}: {} {}", answer.status, answer.text));
    }
}

/// Bodies that no route takes, and what they are.
fn bodies() -> [(&'static str, String); 7] {
    let deep = 20_000;
    [
        ("malformed", "{\"a\": ".to_owned()),
        ("two values", "{} {}".to_owned()),
        ("a list", "[1]".to_owned()),
        ("a number", "7".to_owned()),
        ("a text", "\"x\"".to_owned()),
        ("nothing", "null".to_owned()),
        ("too deep", format!("{}{}", "{\"a\":".repeat(deep), "1")),
    ]
}

/// Protocols whose refusals have a form of their own (JSON-RPC), and a page. They have a walk of their own.
fn has_own_form(path: &str) -> bool {
    path.starts_with("/a2a") || path.starts_with("/mcp/") || path.starts_with("/connect/")
}

async fn world() -> World {
    World::with(|setup| {
        setup.config.operator_token = Some(Secret::new(OPERATOR));
        setup.config.max_body_bytes = 150_000;
        setup.config.requests_per_minute = 100_000;
    })
    .await
}

#[tokio::test]
async fn no_route_takes_a_body_that_is_not_what_it_says() {
    let world = world().await;
    let people = People::of(&world).await;
    let id = people.ann.open("office").await;
    let mut wrong = Vec::new();
    let mut walked = 0;
    for route in routes(&api::openapi(), &id) {
        let is_json = route.body.as_deref() == Some("application/json");
        if !is_json || has_own_form(&route.path) {
            continue;
        }
        walked += 1;
        let owner = people.owner(&route.path);
        for (kind, body) in bodies() {
            let request = owner
                .request(route.method.clone(), &route.filled)
                .header(header::CONTENT_TYPE, "application/json");
            let answer = owner.send(request.body(body)).await;
            let what = format!("{} {} with {kind}", route.method, route.path);
            check(&what, &answer, &[400, 404], &mut wrong);
        }
        let request = owner.request(route.method.clone(), &route.filled);
        let request = request.header(header::CONTENT_TYPE, "text/plain");
        let answer = owner.send(request.body("{}")).await;
        let what = format!("{} {} with text/plain", route.method, route.path);
        check(&what, &answer, &[415, 404], &mut wrong);
    }
    assert!(walked > 20, "only {walked} routes take a body");
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[tokio::test]
async fn no_route_takes_fields_of_another_type_or_too_much() {
    let world = world().await;
    let people = People::of(&world).await;
    let id = people.ann.open("office").await;
    let document = api::openapi();
    let mut wrong = Vec::new();
    for route in routes(&document, &id) {
        let is_json = route.body.as_deref() == Some("application/json");
        if !is_json || has_own_form(&route.path) {
            continue;
        }
        let owner = people.owner(&route.path);
        let operation = &document["paths"][&route.path][route.method.as_str().to_lowercase()];
        for field in required(&document, operation) {
            // An object where a text, a number or a list belongs, and a number where an object does.
            let mut fitting = false;
            for value in [json!({ "a": 1 }), json!(7), json!([[]])] {
                let request = owner.request(route.method.clone(), &route.filled);
                let answer = owner.send(request.json(&json!({ &field: value }))).await;
                if (400..=499).contains(&answer.status) {
                    let what = format!("{} {} with {field} {value}", route.method, route.path);
                    check(&what, &answer, &[400, 404], &mut wrong);
                    fitting = true;
                }
            }
            assert!(fitting, "{} takes anything for {field}", route.path);
        }
        // What holds images may be large.
        let large = [
            "/v1/chat/completions",
            "/v1/responses",
            "/v1/ui/chat",
            "/v1/agui/{agent}",
        ];
        if !large.contains(&route.path.as_str()) {
            let request = owner.request(route.method.clone(), &route.filled);
            let body = json!({ "a": "x".repeat(200_000) });
            let answer = owner.send(request.json(&body)).await;
            let what = format!("{} {} with too much", route.method, route.path);
            check(&what, &answer, &[413, 404], &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[tokio::test]
async fn protocols_and_pages_refuse_bad_input_in_their_own_form() {
    let world = world().await;
    let people = People::of(&world).await;
    let (mut wrong, mut walked) = (Vec::new(), 0);
    for route in routes(&api::openapi(), "none") {
        // A stream does not end.
        let is_stream = route.method == Method::GET && route.path.starts_with("/mcp/");
        if !has_own_form(&route.path) || is_stream {
            continue;
        }
        walked += 1;
        let (is_page, has_body) = (route.path.starts_with("/connect/"), route.body.is_some());
        let media = route.body.as_deref().unwrap_or("application/json");
        let wanted = [("application/json", "rpc"), ("text/plain", "problem")];
        for (kind, body) in bodies() {
            for (media, form) in
                wanted.map(|(is, form)| (if form == "rpc" { media } else { is }, form))
            {
                let request = people.ann.request(route.method.clone(), &route.filled);
                let request = request
                    .header(header::CONTENT_TYPE, media)
                    .header(header::ACCEPT, "application/json, text/event-stream");
                let answer = people.ann.send(request.body(body.clone())).await;
                let form = if is_page || !has_body { "any" } else { form };
                let what = format!("{} {} with {kind} as {media}", route.method, route.path);
                check_form(&what, &answer, form, &mut wrong);
            }
        }
    }
    assert!(walked >= 6, "only {walked} routes have a form of their own");
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

/// An error of JSON-RPC (`rpc`), a problem, or any of them or a page; never a failure of the program, and never nothing.
fn check_form(what: &str, answer: &Answer, form: &str, wrong: &mut Vec<String>) {
    let body: Value = serde_json::from_str(&answer.text).unwrap_or_default();
    // A list of messages is answered by a list.
    let body = body.get(0).cloned().unwrap_or(body);
    let is_sentence = |text: &Value| {
        text.as_str()
            .is_some_and(|text| text.split(' ').count() >= 2)
    };
    let is_rpc = body["error"]["code"].is_i64() && is_sentence(&body["error"]["message"]);
    let is_problem = body["code"].is_string() && is_sentence(&body["detail"]);
    let is_page = answer.header("content-type").starts_with("text/html");
    let fits = match form {
        "rpc" => is_rpc,
        "problem" => is_problem || is_rpc,
        _ => is_problem || is_rpc || is_page || answer.status == 200,
    };
    if !fits || answer.status >= 500 || answer.text.is_empty() {
        wrong.push(format!("{what}: {} {}", answer.status, answer.text));
    }
}

/// The schema behind a reference, or the schema itself.
fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(name) => document.pointer(name.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

/// The fields that the body of an operation must have.
fn required(document: &Value, operation: &Value) -> Vec<String> {
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let schema = resolve(document, schema);
    let names = schema["required"].as_array().into_iter().flatten();
    names
        .map(|name| name.as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn every_list_names_a_query_parameter_that_it_does_not_know() {
    let world = world().await;
    let people = People::of(&world).await;
    let id = people.ann.open("office").await;
    let document = api::openapi();
    let (mut wrong, mut lists) = (Vec::new(), 0);
    for route in routes(&document, &id) {
        let operation = &document["paths"][&route.path]["get"];
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        let items = &resolve(&document, schema)["properties"]["items"];
        if route.method != Method::GET || items["type"] != "array" {
            continue;
        }
        lists += 1;
        let path = format!("{}?limitt=1", route.filled);
        let answer = people.owner(&route.path).get(&path).await;
        check(&path, &answer, &[400], &mut wrong);
        let body: Value = serde_json::from_str(&answer.text).unwrap_or_default();
        if body["code"] != "unknown_field" || body["field"] != "limitt" {
            wrong.push(format!("{path}: {}", answer.text));
        }
    }
    assert!(lists > 18, "only {lists} routes answer with a list");
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[tokio::test]
async fn a_wrong_method_is_refused_everywhere() {
    let world = world().await;
    let people = People::of(&world).await;
    let document = api::openapi();
    let mut wrong = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let known = item.as_object().unwrap();
        let unknown = METHODS
            .into_iter()
            .find(|method| !known.contains_key(&method.as_str().to_lowercase()));
        let Some(method) = unknown else { continue };
        let filled = path.replace(['{', '}'], "");
        let owner = people.owner(path);
        let answer = owner.send(owner.request(method.clone(), &filled)).await;
        check(&format!("{method} {path}"), &answer, &[405], &mut wrong);
        for allowed in known.keys() {
            assert!(
                answer.header("allow").contains(&allowed.to_uppercase()),
                "{method} {path}: Allow is {:?}",
                answer.header("allow")
            );
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[tokio::test]
async fn what_belongs_to_another_tenant_is_not_there() {
    let world = world().await;
    let people = People::of(&world).await;
    let id = people.ann.open("office").await;
    let mut wrong = Vec::new();
    for route in routes(&api::openapi(), &id) {
        // `ann` of the other tenant, with an id of this one.
        let is_own = route.path.contains("{id}") && !route.path.starts_with("/v1/admin");
        // Both are the admins' alone.
        let is_of_admins = ["mcp-servers/{id}", "oauth-clients/{id}"];
        let is_of_admins = is_of_admins.iter().any(|end| route.path.ends_with(end));
        if !is_own || has_own_form(&route.path) || is_of_admins {
            continue;
        }
        let mut request = people.stranger.request(route.method.clone(), &route.filled);
        if route.body.as_deref() == Some("application/json") {
            request = request.json(&fitting(&route.path));
        }
        let answer = people.stranger.send(request).await;
        if answer.status == 204 && route.path == "/v1/ui/chat/{id}/stream" {
            continue;
        }
        let what = format!("{} {} by a stranger", route.method, route.path);
        check(&what, &answer, &[404], &mut wrong);
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
    people
        .ann
        .get(&format!("/v1/conversations/{id}"))
        .await
        .expect(200);
}

/// A body that the route would take.
fn fitting(path: &str) -> Value {
    match path.rsplit('/').next().unwrap_or_default() {
        "messages" => json!({ "text": "hi" }),
        "decision" => json!({ "decision": "approve", "args_sha256": "00".repeat(32) }),
        "outcome" => json!({ "happened": true }),
        "feedback" => json!({ "rating": "up" }),
        _ => json!({}),
    }
}
