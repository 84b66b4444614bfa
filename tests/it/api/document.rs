//! What the OpenAPI document says of each operation, and what it promises, tried by `schemathesis` with what the document
//! itself describes. `make fuzz-api` is the same with more requests.

use std::collections::BTreeSet;

use chatelaine::api;
use domain::error::ErrorCode;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::{client::Answer, model::text, servers::venv, world::World};

/// Always the same, since nobody could find again what another seed found. `CHATELAINE_SEED` is another one.
const SEED: u64 = 4;

#[tokio::test]
async fn the_api_answers_as_its_document_says() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Yes.")));
    world.tools_ready().await;
    let (user, admin) = (world.user("ann", &["finance"]).await, world.admin().await);
    // The script says what to do when the program is missing; this says it in the words of the other tests.
    venv("st");
    let tried = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.ci/fuzz-api"))
        .args([&world.url, user.token(), admin.token()])
        .env("EXAMPLES", "2")
        .env("PHASES", "fuzzing")
        .env("SEED", crate::support::seed::of_run(SEED).to_string())
        .kill_on_drop(true)
        .output();
    let tried = tried.await.unwrap();
    let said = String::from_utf8_lossy(&tried.stderr);
    assert!(tried.status.success(), "{said}");
}

/// The operations of a document, with their method and path.
fn operations(document: &Value) -> impl Iterator<Item = (String, &Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    paths.flat_map(|(path, item)| {
        let operations = item.as_object().unwrap().iter();
        operations.map(move |(method, operation)| (format!("{method} {path}"), operation))
    })
}

/// The operation with an id.
fn operation<'a>(document: &'a Value, id: &str) -> &'a Value {
    let mut all = operations(document);
    let found = all.find(|(_, operation)| operation["operationId"] == id);
    found.unwrap_or_else(|| panic!("there is no {id}")).1
}

#[test]
fn every_operation_has_the_name_of_a_verb_and_its_object_and_a_description() {
    let document = api::openapi();
    for (what, operation) in operations(&document) {
        let id = operation["operationId"].as_str().unwrap();
        let is_plain = id.chars().all(|c| c.is_ascii_alphanumeric());
        let is_camel = id.starts_with(|c: char| c.is_ascii_lowercase())
            && id.contains(|c: char| c.is_ascii_uppercase());
        assert!(is_plain && is_camel, "{what} is named {id}");
        let text = |name: &str| operation[name].as_str().unwrap_or_default().to_owned();
        let (summary, description) = (text("summary"), text("description"));
        assert!(description.ends_with('.'), "{what}: {description:?}");
        assert!(
            summary.ends_with('.') && !summary.trim_end_matches('.').contains(". "),
            "the summary of {what} is one sentence: {summary}"
        );
    }
    for id in ["createResponse", "listenToEvents", "createEventTicket"] {
        operation(&document, id);
    }
    let twice = [
        "startRun",
        "startRegistryRun",
        "listMcpServers",
        "listRegistryMcpServers",
    ];
    for id in twice.into_iter().chain(["createKey", "createKeyForTenant"]) {
        operation(&document, id);
    }
    let key = operation(&document, "createKeyForTenant")["description"].as_str();
    assert!(key.unwrap().starts_with("For the operator"), "{key:?}");
}

/// The codes that an operation names at a status.
fn codes<'a>(operation: &'a Value, status: &str) -> BTreeSet<&'a str> {
    let codes = &operation["responses"][status]["x-error-codes"];
    let codes = codes.as_array().into_iter().flatten();
    codes.map(|code| code.as_str().unwrap()).collect()
}

#[test]
fn every_code_of_an_operation_exists_and_every_code_is_at_an_operation() {
    let document = api::openapi();
    let mut named = BTreeSet::new();
    for (what, operation) in operations(&document) {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let codes = codes(operation, status);
            assert_eq!(
                codes.is_empty(),
                response["x-error-codes"].is_null(),
                "{what} {status}"
            );
            named.extend(codes);
        }
    }
    // As OpenAI's clients read them.
    for of_openai in ["invalid_api_key", "rate_limit_exceeded"] {
        assert!(named.remove(of_openai), "{of_openai}");
    }
    let known: BTreeSet<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(named, known);

    let decide = operation(&document, "decideApproval");
    let own = [
        "already_decided",
        "already_voted",
        "approval_revoked",
        "arguments_changed",
        "arguments_unreadable",
        "conflict",
        "lookalike_user",
    ];
    assert_eq!(codes(decide, "409"), BTreeSet::from(own));
    let said = decide["responses"]["409"]["description"].as_str().unwrap();
    assert!(
        said.contains("`already_voted`") && !said.contains("`conflict`"),
        "{said}"
    );
    let keyed = codes(operation(&document, "createConversation"), "422");
    assert_eq!(keyed, BTreeSet::from(["idempotency_key_reused"]));
    let whole = operation(&document, "getConversation");
    assert!(whole["responses"]["422"].is_null(), "it has no key");
}

/// Checks that a document declares each header of an answer that has a description, and that those of all answers came.
fn check_headers(document: &Value, id: &str, answer: &Answer) {
    let declared = &operation(document, id)["responses"][answer.status.to_string()]["headers"];
    let described = document["components"]["headers"].as_object().unwrap();
    for name in described.keys() {
        let is_sent = answer.headers.contains_key(name.as_str());
        let is_declared = declared[name].is_object();
        assert!(
            !is_sent || is_declared,
            "{id} {} sends {name}",
            answer.status
        );
        let always = [
            "x-request-id",
            "RateLimit",
            "x-run-id",
            "Location",
            "Retry-After",
        ];
        let is_missing = is_declared && !is_sent && always.contains(&name.as_str());
        assert!(!is_missing, "{id} {} has no {name}", answer.status);
    }
}

#[tokio::test]
async fn every_header_is_declared_where_it_is_sent() {
    let world = World::with(|setup| setup.config.requests_per_minute = 6).await;
    world.model.on(|_| Some(text("Fine.")));
    let (ann, document) = (world.user("ann", &[]).await, api::openapi());
    let said = json!([{ "role": "user", "content": "hi" }]);
    let chat = json!({ "model": "bank", "messages": said, "n": 2 });
    let answer = ann.post("/v1/chat/completions", chat).await;
    assert_eq!(
        (answer.status, answer.header("x-ignored-parameters")),
        (200, "n")
    );
    check_headers(&document, "createChatCompletion", &answer);
    let answer = ann
        .post("/v1/responses", json!({ "model": "bank", "input": "hi" }))
        .await;
    check_headers(&document, "createResponse", &answer);
    let answer = ann
        .post("/v1/conversations", json!({ "agent": "bank" }))
        .await;
    check_headers(&document, "createConversation", &answer);
    check_headers(&document, "getMe", &world.nobody().get("/v1/me").await);
    check_headers(
        &document,
        "getConversation",
        &ann.get("/v1/conversations/none").await,
    );
    let admin = world.admin().await;
    let entry = json!({ "id": "docs", "url": "https://mcp.example.org/mcp" });
    check_headers(
        &document,
        "createMcpServer",
        &admin.post("/v1/mcp-servers", entry).await,
    );
    check_headers(
        &document,
        "getMcpServer",
        &admin.get("/v1/mcp-servers/docs").await,
    );
    let answer = loop {
        let answer = ann.get("/v1/me").await;
        if answer.status != 200 {
            break answer;
        }
    };
    assert_eq!(answer.status, 429);
    check_headers(&document, "getMe", &answer);
}

#[tokio::test]
async fn the_document_for_users_has_what_their_frontends_call_and_nothing_else() {
    let world = World::shared().await;
    let nobody = world.nobody();
    let document = nobody.get("/openapi.json?audience=user").await.expect(200);
    assert_eq!(document, api::openapi_for_users());
    let paths = document["paths"].as_object().unwrap();
    for path in [
        "/v1/conversations",
        "/v1/events",
        "/v1/responses",
        "/v1/runs/{id}/cancel",
    ] {
        assert!(paths.contains_key(path), "{path}");
    }
    for path in paths.keys() {
        let is_of_admins = [
            "admin",
            "mcp-servers",
            "secrets",
            "oauth-clients",
            "metrics",
        ];
        let is_of_admins = is_of_admins.iter().any(|word| path.contains(word));
        assert!(path.starts_with("/v1/") && !is_of_admins, "{path}");
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for (name, is_there) in [
        ("Message", true),
        ("ConversationEvent", true),
        ("TenantView", false),
    ] {
        assert_eq!(schemas.contains_key(name), is_there, "{name}");
    }
    let all = api::openapi();
    assert!(all["components"]["schemas"]["TenantView"].is_object());
    let text = document.to_string();
    for name in schemas.keys() {
        assert!(
            text.contains(&format!("schemas/{name}\"")),
            "nothing uses {name}"
        );
    }
    let refused = nobody.get("/openapi.json?audience=robot").await.expect(400);
    assert_eq!(refused["code"], "wrong_type", "{refused}");
}

/// Says where an example does not fit a schema of the document.
fn check_example(document: &Value, schema: &Value, example: &Value, what: &str) {
    let whole = json!({ "allOf": [schema], "components": document["components"] });
    let validator = jsonschema::draft202012::new(&whole).unwrap();
    let wrong = validator.iter_errors(example);
    let wrong: Vec<_> = wrong
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

#[test]
fn every_example_fits_its_schema_and_no_body_for_users_is_without_one() {
    let (document, for_users) = (api::openapi(), api::openapi_for_users());
    let mut checked = 0;
    for (what, operation) in operations(&document) {
        let path = what.split(' ').next_back().unwrap();
        let is_for_users = for_users["paths"][path].is_object();
        let responses = operation["responses"].as_object().unwrap().iter();
        let responses = responses.filter(|(status, _)| status.starts_with('2'));
        let bodies = [("request", &operation["requestBody"])];
        let bodies = bodies
            .into_iter()
            .chain(responses.map(|(status, one)| (status.as_str(), one)));
        for (of, body) in bodies {
            let content = &body["content"]["application/json"];
            let what = format!("{what} {of}");
            if content.is_object() && !content["example"].is_null() {
                assert!(content["schema"].is_object(), "{what} has no such body");
                check_example(&document, &content["schema"], &content["example"], &what);
                checked += 1;
            } else {
                assert!(
                    !content.is_object() || !is_for_users,
                    "{what} has no example"
                );
            }
        }
    }
    assert!(checked > 60, "{checked}");
}

#[test]
fn every_event_and_every_part_has_an_example_that_fits() {
    let document = api::openapi();
    let schemas = &document["components"]["schemas"];
    for name in ["ConversationEvent", "UserEvent", "Part"] {
        let kind = &schemas[name]["discriminator"];
        let member = kind["propertyName"].as_str().unwrap();
        let variants: BTreeSet<_> = kind["mapping"].as_object().unwrap().keys().collect();
        let examples = schemas[name]["examples"].as_array().unwrap();
        let shown = examples
            .iter()
            .map(|example| example[member].as_str().unwrap().to_owned());
        let shown: BTreeSet<_> = shown.collect();
        assert_eq!(shown.iter().collect::<BTreeSet<_>>(), variants, "{name}");
    }
    for (name, schema) in schemas.as_object().unwrap() {
        for example in schema["examples"].as_array().into_iter().flatten() {
            check_example(&document, schema, example, &format!("{name}: {example}"));
        }
    }
}
