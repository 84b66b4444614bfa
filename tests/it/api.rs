//! REST and SSE: what it says to bad input, how much it takes at once, pages, events.

mod attachments; // images and text files
mod branches; // editing and asking again
mod codes; // the codes of errors
mod document; // what the OpenAPI document promises
mod edge; // headers, limits, stopping
mod events; // SSE
mod history; // messages from the end, titles
mod host; // a request that does not name its host once
mod input; // everything malformed
mod keeping; // export, feedback, tickets, runs, who may do what
mod lists; // pages
mod once; // requests that are sent again
mod rules; // what is true of every route
mod search; // conversations by the words in them
mod walk; // bad input to every route

use std::collections::BTreeSet;

use chatelaine::api;
use http::Method;
use serde_json::{Value, json};

use super::support::{
    client::plain,
    has::Has,
    model::{Gate, text},
    wait::ended,
    world::World,
};

#[tokio::test]
async fn a_message_is_answered_and_both_are_kept() {
    let world = World::shared().await;
    world.model.reply(text("You have 5 euros."));
    let ann = world.user("ann", &["employee"]).await;
    let conversation = ann.open("bank").await;
    let run = ann.say_and_wait(&conversation, "How much do I have?").await;
    assert_eq!(run["status"], "succeeded");
    let messages = ann.messages(&conversation).await;
    let said: Vec<_> = messages
        .iter()
        .map(|message| (message["role"].as_str().unwrap(), plain(message)))
        .collect();
    let greeting = ("system", "Hello ann!".to_owned());
    let expected = [
        greeting,
        ("user", "How much do I have?".to_owned()),
        ("assistant", "You have 5 euros.".to_owned()),
    ];
    assert_eq!(said, expected);
    assert_eq!(run["id"], messages[2]["run_id"]);
}

#[tokio::test]
async fn a_run_that_waits_for_its_model_can_be_cancelled() {
    let world = World::shared().await;
    let gate = Gate::new();
    world.model.reply(text("never to be heard").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let conversation = ann.open("bank").await;
    let mut events = ann.listen(&conversation, None).await;
    let run = ann.say(&conversation, "hi").await;
    gate.reached().await;
    ann.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect(202);
    let heard = events.until_run_ends(&run).await;
    assert_eq!(heard.last().unwrap().data["status"], "cancelled");
}

#[tokio::test]
async fn a_deleted_conversation_is_gone_and_its_listeners_are_let_go() {
    let world = World::shared().await;
    let ann = world.user("ann", &[]).await;
    let conversation = ann.open("bank").await;
    let events = ann.listen(&conversation, None).await;
    assert_eq!(
        ann.delete(&format!("/v1/conversations/{conversation}"))
            .await
            .status,
        204
    );
    ann.get(&format!("/v1/conversations/{conversation}"))
        .await
        .expect(404);
    let rest = events.rest().await;
    assert_eq!(rest.len(), 1);
    rest[0].data.has(json!({ "reason": "deleted" }));
}

#[tokio::test]
async fn the_document_is_served_and_describes_every_answer() {
    let world = World::shared().await;
    let served = world.nobody().get("/openapi.json").await.expect(200);
    let built: Value = api::openapi();
    assert_eq!(served, built);
    let packed = world.nobody().with_header("accept-encoding", "gzip");
    let packed = packed.request(Method::GET, "/openapi.json");
    let packed = packed.send().await.unwrap();
    assert_eq!(packed.headers()["content-encoding"], "gzip");
    assert!(packed.bytes().await.unwrap().len() * 4 < built.to_string().len());
    let mut ids = BTreeSet::new();
    for (path, item) in served["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap();
            assert!(
                responses.contains_key("default"),
                "{method} {path} does not say how it fails"
            );
            assert!(
                responses.keys().any(|status| status.starts_with('2')),
                "{method} {path}"
            );
            assert!(
                operation["summary"].is_string(),
                "{method} {path} has no summary"
            );
            assert!(
                ids.insert(operation["operationId"].to_string()),
                "{method} {path}: the operationId is taken"
            );
        }
    }
    let missing = dangling(&served, &served);
    assert!(
        missing.is_empty(),
        "schemas that are named and not there: {missing:?}"
    );
}

/// The names under which the types of a source file stand in the document.
fn schema_names(text: &str) -> Vec<String> {
    let (mut names, mut is_next, mut other) = (Vec::new(), false, None);
    for line in text.lines().map(str::trim) {
        is_next |= line.contains("derive(") && line.contains("ToSchema");
        if let Some((_, name)) = line.split_once("schema(as = ") {
            other = name.split(')').next().map(str::to_owned);
        }
        let words: Vec<_> = line.split([' ', '<', '(', ';']).collect();
        let kind = words
            .iter()
            .position(|word| ["struct", "enum"].contains(word));
        let Some(kind) = kind.filter(|at| *at < 3) else {
            continue;
        };
        if is_next {
            let name = other.take().unwrap_or_else(|| words[kind + 1].to_owned());
            names.push(name);
        }
        (is_next, other) = (false, None);
    }
    names
}

fn sources(folder: &std::path::Path, read: &mut impl FnMut(&str)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, read);
        } else {
            read(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn no_two_types_share_a_schema_name() {
    let mut names = BTreeSet::new();
    for folder in ["src/api", "src/app", "crates/domain/src"] {
        sources(std::path::Path::new(folder), &mut |text| {
            for name in schema_names(text) {
                let is_new = name == "$name" || names.insert(name.clone());
                assert!(
                    is_new,
                    "two types are named {name}; write #[schema(as = …)]"
                );
            }
        });
    }
    for name in ["ApprovalState", "ApprovalView", "RunRequest", "UsageLine"] {
        assert!(names.contains(name), "{name}");
    }
}

/// Every `oneOf` and `anyOf` of a document, with its place.
fn unions(part: &Value, place: &str, found: &mut Vec<(String, Value)>) {
    match part {
        Value::Object(fields) => {
            if fields.contains_key("oneOf") || fields.contains_key("anyOf") {
                found.push((place.to_owned(), part.clone()));
            }
            for (name, field) in fields {
                unions(field, &format!("{place}/{name}"), found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| unions(item, place, found)),
        _ => {}
    }
}

#[test]
fn every_union_of_the_document_names_its_variants_and_tells_them_apart() {
    let document = api::openapi();
    let schemas = &document["components"]["schemas"];
    let (mut found, mut told) = (Vec::new(), BTreeSet::new());
    unions(&document, "", &mut found);
    for (place, union) in found {
        let variants = union["oneOf"]
            .as_array()
            .unwrap_or_else(|| panic!("{place}"));
        let is_optional =
            variants.len() == 2 && variants[0]["$ref"].is_string() && variants[1]["type"] == "null";
        // A number or a word.
        if is_optional || place.ends_with("/Limit") {
            continue;
        }
        let about = &union["discriminator"];
        let member = about["propertyName"]
            .as_str()
            .unwrap_or_else(|| panic!("{place}"));
        let mapping = about["mapping"].as_object().unwrap();
        assert_eq!(mapping.len(), variants.len(), "{place}");
        for (value, reference) in mapping {
            assert!(
                variants.iter().any(|variant| variant["$ref"] == *reference),
                "{place}"
            );
            let name = reference.as_str().unwrap().rsplit('/').next().unwrap();
            let variant = &schemas[name];
            assert_eq!(
                variant["properties"][member]["enum"],
                json!([value]),
                "{name}"
            );
            assert!(
                variant["required"]
                    .as_array()
                    .unwrap()
                    .contains(&json!(member)),
                "{name}"
            );
        }
        told.insert(place.rsplit('/').next().unwrap().to_owned());
    }
    for name in [
        "Part",
        "ResponseEvent",
        "ConversationEvent",
        "UserEvent",
        "UiChunk",
        "AguiEvent",
        "ServerTools",
    ] {
        assert!(told.contains(name), "{name}");
    }
    // As they are on the wire.
    assert_eq!(
        schemas["ConnectionKind"]["enum"],
        json!(["shared", "personal"])
    );
    let definition = &schemas["Definition"];
    definition.has(json!({
        "properties": { "updated_at": { "format": "date-time" } },
        "required": ["url"],
    }));
    let text = &schemas["AguiEventTextMessageContent"]["properties"];
    assert!(text["messageId"].is_object(), "{text}");
    let upload =
        &document["paths"]["/v1/conversations/{id}/attachments"]["post"]["requestBody"]["content"];
    let file = json!({ "type": "string", "format": "binary" });
    assert_eq!(upload["application/octet-stream"]["schema"], file);
    assert_eq!(
        upload["multipart/form-data"]["schema"]["properties"]["file"]["format"],
        "binary"
    );
}

/// What `tests/servers/install.sh` installs, as `make test` does.
const NODE_MODULES: &str = "tests/servers/node_modules";

/// Runs a program of npm in a folder.
pub async fn npm(folder: &std::path::Path, program: &str, arguments: &[&str]) -> String {
    let programs = std::path::Path::new(NODE_MODULES).join(".bin");
    let program = std::fs::canonicalize(programs.join(program))
        .expect("not installed; run tests/servers/install.sh");
    let output = tokio::process::Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("REDOCLY_TELEMETRY", "off")
        .env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true")
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    said.into_owned()
}

#[tokio::test]
async fn the_document_has_no_error_and_a_typed_client_compiles() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("openapi.json"), api::openapi().to_string()).unwrap();
    npm(folder.path(), "redocly", &["lint", "openapi.json"]).await;
    let types = ["openapi.json", "-o", "api.d.ts"];
    npm(folder.path(), "openapi-typescript", &types).await;
    std::fs::copy("tests/it/api/client.ts", at("client.ts")).unwrap();
    let strict = "--strict --noEmit --target es2022 --module esnext --moduleResolution bundler";
    let arguments: Vec<_> = strict.split(' ').chain(["client.ts"]).collect();
    npm(folder.path(), "tsc", &arguments).await;
}

/// References into the document that lead nowhere.
fn dangling(document: &Value, part: &Value) -> Vec<String> {
    match part {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(key, value)| match value.as_str() {
                Some(to) if key == "$ref" => document
                    .pointer(&to[1..])
                    .is_none()
                    .then(|| to.to_owned())
                    .into_iter()
                    .collect(),
                _ => dangling(document, value),
            })
            .collect(),
        Value::Array(items) => items
            .iter()
            .flat_map(|item| dangling(document, item))
            .collect(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn measurements_name_routes_and_no_ids() {
    let world = World::start().await;
    let ann = world.user("ann", &[]).await;
    let conversation = ann.open("bank").await;
    ann.get(&format!("/v1/conversations/{conversation}"))
        .await
        .expect(200);
    let measured = world.nobody().get("/metrics").await;
    assert_eq!(measured.status, 200);
    let route = r#"chatelaine_request_seconds_count{method="GET",route="/v1/conversations/{id}",status="200"}"#;
    assert!(measured.text.contains(route), "{}", measured.text);
    assert!(!measured.text.contains(&conversation));
}

#[tokio::test]
async fn every_metric_is_explained_and_there_from_the_start() {
    let world = World::start().await;
    world.nobody().get("/v1/agents").await;
    let measured = world.nobody().get("/metrics").await.text;
    let named = |word: &str| -> BTreeSet<String> {
        let lines = measured.lines().filter_map(|line| line.strip_prefix(word));
        lines
            .filter_map(|line| Some(line.split_once(' ')?.0.to_owned()))
            .collect()
    };
    let metrics = named("# TYPE ");
    assert_eq!(metrics, named("# HELP "));
    let page = include_str!("../../docs/operators.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let explained = rows
        .map(|(name, _)| name.to_owned())
        .filter(|name| name.starts_with("chatelaine_") || name.starts_with("process_"));
    assert_eq!(metrics, explained.collect());
    for series in [
        r#"chatelaine_model_failures_total{code="timed_out"} "#,
        r#"chatelaine_model_request_seconds_count{provider="gemini"} "#,
        r#"chatelaine_tool_calls_total{outcome="outcome_unknown"} "#,
        "chatelaine_run_takeovers_total ",
        r#"chatelaine_tool_call_seconds_count{server="registry"} "#,
        "chatelaine_transaction_seconds_count ",
        "chatelaine_database_up 1",
        "chatelaine_runs_waiting ",
    ] {
        assert!(measured.contains(series), "{series}: {measured}");
    }
}

#[tokio::test]
async fn what_waits_is_measured() {
    let world = World::start().await;
    let gate = Gate::new();
    world.model.reply(text("Later.").gate(0, &gate));
    let ann = world.user("ann", &[]).await;
    let conversation = ann.open("bank").await;
    let working = ann.say(&conversation, "hi").await;
    gate.reached().await;
    ann.say(&conversation, "and then?").await;
    let measured = world.nobody().get("/metrics").await.text;
    assert!(
        measured.contains("chatelaine_runs_waiting 1\n"),
        "{measured}"
    );
    let age = measured
        .lines()
        .find_map(|line| line.strip_prefix("chatelaine_runs_oldest_waiting_seconds "));
    assert!(age.unwrap().parse::<f64>().unwrap() > 0.0, "{measured}");
    world.model.reply(text("Now."));
    gate.open();
    ended(&ann, &working).await;
}

#[tokio::test]
async fn readiness_says_what_is_missing() {
    let world = World::start().await;
    world.app().started.cancelled().await;
    let ready = world.nobody().get("/readyz").await.expect(200);
    ready.has(json!({ "ready": true, "database": true }));
    world.db.db.close().await;
    let unready = world.nobody().get("/readyz").await.expect(503);
    unready.has(json!({ "ready": false, "database": false }));
    assert_eq!(world.nobody().get("/healthz").await.status, 200);
}
