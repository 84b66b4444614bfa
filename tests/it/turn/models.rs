//! Models of every provider in the whole product, as stubs that hold to their providers' rules.

use serde_json::{Value, json};

use crate::{
    runs::stopping::approve,
    support::{
        client::plain,
        many::{entry, pack},
        model::{
            StrictProvider, error,
            rules::{Kind, tools},
        },
        scripted::{Scripted, Seen},
        wait::eventually,
        world::World,
    },
};

/// A pack whose model is this stub.
fn pack_of(stub: &StrictProvider, servers: &str) -> (String, String) {
    let (id, yaml) = pack(servers);
    let provider = match stub.provider() {
        domain::pack::Provider::Anthropic => "anthropic",
        domain::pack::Provider::Gemini => "gemini",
        domain::pack::Provider::Ollama => "ollama",
        _ => "openai",
    };
    let llm = format!(
        "llm: {{ provider: {provider}, model: {}, baseUrl: \"{}\", apiKey: strict-key-0123456789 }}",
        stub.model(),
        stub.base_url(),
    );
    let line = yaml
        .lines()
        .find(|line| line.starts_with("llm:"))
        .unwrap()
        .to_owned();
    (id, yaml.replace(&line, &llm))
}

/// Tools with schemas that some provider refuses: of Google, of zod 4, of hand.
async fn odd_server() -> Scripted {
    Scripted::modern(async |seen: Seen| {
        let email = "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$";
        let tools = json!({ "tools": [
            { "name": "google_list", "inputSchema": { "type": "object", "properties": { "$.xgafv": { "type": "string" }, "q": { "type": "string" } }, "required": ["$.xgafv"], "additionalProperties": false } },
            { "name": "tag_droplets", "inputSchema": { "type": "object", "properties": { "ids": { "type": "array", "description": "ids" } } } },
            { "name": "send_email", "inputSchema": { "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": { "to": { "type": "string", "format": "email", "pattern": email } } } },
            { "name": "union", "inputSchema": { "type": "object", "anyOf": [{ "properties": { "a": { "type": "string" } }, "required": ["a"] }, { "properties": { "b": { "type": "integer" } }, "required": ["b"] }] } },
        ] });
        match seen.method() {
            "tools/list" => Some(seen.result(tools)),
            "tools/call" => Some(seen.result(json!({ "resultType": "complete", "content": [
                { "type": "text", "text": "done" },
                { "type": "image", "mimeType": "image/png", "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg==" },
            ] }))),
            _ => None,
        }
    })
    .await
}

async fn ready(world: &World) {
    let ann = world.user("ann", &[]).await;
    eventually(async || {
        let listed = ann.get("/v1/agents/many/connections").await.expect(200);
        listed.to_string().contains("\"ready\"")
    })
    .await;
}

/// Calls with arguments under the names that the model sees, then a question after a stopped turn and one more.
#[tokio::test]
async fn a_conversation_with_odd_tools_goes_on_with_every_provider() {
    for kind in Kind::ALL {
        let server = odd_server().await;
        let stub = StrictProvider::start(kind).await;
        let entries = entry("desk", &server.url, "");
        let world = World::with(|setup| setup.packs.push(pack_of(&stub, &entries))).await;
        ready(&world).await;
        let ann = world.user("ann", &[]).await;
        let chat = ann.open("many").await;
        ann.say_and_wait(&chat, "hi").await;
        let sent = tools(&stub.last_request());
        assert_eq!(sent.len(), 4, "{kind:?}");
        let google = sent
            .iter()
            .find(|tool| tool.name == "desk__google_list")
            .unwrap();
        let names = google.schema["properties"].as_object().unwrap().keys();
        let name = names.into_iter().find(|name| *name != "q").unwrap().clone();
        stub.call([
            ("desk__google_list", json!({ name: "1" })),
            ("desk__union", json!({ "a": "x" })),
        ]);
        stub.fail(400, "the step after the results fails");
        let run = ann.say_and_wait(&chat, "list").await;
        assert_eq!(run["status"], "failed", "{kind:?}: {run}");
        let called = server.requests("tools/call");
        let arguments: Vec<&Value> = called
            .iter()
            .map(|call| &call.body["params"]["arguments"])
            .collect();
        assert!(
            arguments.contains(&&json!({ "$.xgafv": "1" })),
            "{kind:?}: {arguments:?}"
        );
        // The turn ended behind a result; the conversation is alive.
        stub.say("Here.");
        let run = ann.say_and_wait(&chat, "and now?").await;
        assert_eq!(run["status"], "succeeded", "{kind:?}: {run}");
        assert!(
            stub.last_request().to_string().contains("iVBORw0KGgo"),
            "{kind:?}: the image of the tool is shown"
        );
        assert_eq!(plain(ann.messages(&chat).await.last().unwrap()), "Here.");
    }
}

/// The odd server, one of whose tools needs an approval.
async fn guarded(tool: &str, kind: Kind) -> (Scripted, StrictProvider, World) {
    let server = odd_server().await;
    let stub = StrictProvider::start(kind).await;
    let rules =
        format!("{{ default: public, approval: [{{ tools: [{tool}], approvers: [boss] }}] }}");
    let entries = entry("desk", &server.url, "").replace("{ default: public }", &rules);
    let world = World::with(|setup| {
        let (id, yaml) = pack_of(&stub, &entries);
        setup.packs.push((
            id,
            yaml.replace("required: false", "required: false, rolesAttribute: roles"),
        ));
    })
    .await;
    ready(&world).await;
    (server, stub, world)
}

#[tokio::test]
async fn the_image_of_an_approved_call_reaches_the_model_with_its_outcome() {
    for kind in Kind::ALL {
        let (_server, stub, world) = guarded("union", kind).await;
        stub.call([("desk__union", json!({ "a": "x" }))])
            .say("It waits.")
            .say("A dot.");
        let ann = world.user("ann", &[]).await;
        let chat = ann.open("many").await;
        ann.say_and_wait(&chat, "draw").await;
        let boss = world.user("bo", &["boss"]).await;
        let waiting = boss.get("/v1/approvals").await.expect(200);
        assert_eq!(approve(&boss, &waiting["items"][0]).await, 200);
        eventually(async || plain(ann.messages(&chat).await.last().unwrap()) == "A dot.").await;
        let sent = stub.last_request().to_string();
        assert!(sent.contains("iVBORw0KGgo"), "{kind:?}: {sent}");
        // It is shown in later turns, too.
        stub.say("Black.");
        ann.say_and_wait(&chat, "which colour?").await;
        let sent = stub.last_request().to_string();
        assert!(sent.contains("iVBORw0KGgo"), "{kind:?}: {sent}");
    }
}

#[tokio::test]
async fn an_approver_reads_the_names_that_the_server_knows() {
    let (_server, stub, world) = guarded("google_list", Kind::Anthropic).await;
    stub.call([("desk__google_list", json!({ "_.xgafv": "1" }))])
        .say("It waits.");
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("many").await;
    ann.say_and_wait(&chat, "list").await;
    let boss = world.user("bo", &["boss"]).await;
    let waiting = boss.get("/v1/approvals").await.expect(200);
    let id = waiting["items"][0]["id"].as_str().unwrap();
    let shown = boss
        .get(&format!("/v1/approvals/{id}"))
        .await
        .expect(200)
        .to_string();
    assert!(
        shown.contains("$.xgafv") && !shown.contains("_.xgafv"),
        "{shown}"
    );
}

#[tokio::test]
async fn cached_tokens_are_shown_apart_wherever_tokens_are_counted() {
    let stub = StrictProvider::start(Kind::Anthropic).await;
    let world = World::with(|setup| setup.packs.push(pack_of(&stub, "    []"))).await;
    let ann = world.user("ann", &[]).await;
    let chat = ann.open("many").await;
    let run = ann.say_and_wait(&chat, "hi").await;
    let expected = json!({ "input_tokens": 100, "cached_input_tokens": 60, "output_tokens": 7, "estimated": false });
    assert_eq!(run["usage"], expected);
    let admin = world.admin().await;
    let lines = admin.get("/v1/admin/usage").await.expect(200);
    assert!(
        lines.to_string().contains("\"cached_input_tokens\":60"),
        "{lines}"
    );
    // Within a limit of tokens they count like others.
    let me = ann.get("/v1/me").await.expect(200);
    assert_eq!(me["usage"]["tokens"], 107);
    let body = json!({ "model": "many", "messages": [{ "role": "user", "content": "hi" }] });
    let answer = ann.post("/v1/chat/completions", body).await.expect(200);
    assert_eq!(
        answer["usage"]["prompt_tokens_details"]["cached_tokens"],
        60
    );
    let metrics = world
        .nobody()
        .request(reqwest::Method::GET, "/metrics")
        .send()
        .await
        .unwrap();
    let metrics = metrics.text().await.unwrap();
    assert!(
        metrics.contains("chatelaine_model_tokens_total{kind=\"cached_input\"}"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_pack_with_another_model_answers_when_the_first_is_away() {
    let stub = StrictProvider::start(Kind::Gemini).await;
    let world = World::with(|setup| {
        let (id, yaml) = pack("    []");
        let fallback = format!(
            "apiKey: model-key-0123456789, fallback: [{{ provider: gemini, model: {}, baseUrl: \"{}\", apiKey: strict-key-0123456789 }}]",
            stub.model(),
            stub.base_url(),
        );
        setup.packs.push((id, yaml.replace("apiKey: model-key-0123456789", &fallback)));
    })
    .await;
    world.model.on(|_| Some(error(401, "the key is gone")));
    stub.say("Hello.");
    let ann = world.user("ann", &[]).await;
    assert_eq!(ann.ask("many", "hi").await, "Hello.");
}
