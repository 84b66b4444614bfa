//! What only servers may be told is planted in every place that holds such things, everything is done with it, by the
//! real program at its most talkative, and everything that was written anywhere is searched.

use serde_json::{Value, json};

use super::{obedient, start};
use crate::{
    registry::{
        Watched, open_localhost,
        tokens::{endpoint, external},
    },
    support::{
        canary::{everything_stored, spellings},
        client::Client,
        model::{Reply, calls, text, text_of},
        program::Program,
        wait::ended,
        world::World,
    },
};

/// A value of the scope, a secret of the tenant, a variable that was granted, a secret of OAuth, and the token that it
/// is good for.
const SCOPE: &str = "scope+canary/8d1f";
const SECRET: &str = "tenant+secret/52aa";
const GRANTED: &str = "granted+value/c03e";
const CLIENT: &str = "client+secret/97b1";
const TOKEN: &str = "token-1-0123456789";

const SPY: &str = r#"
metadata: { id: spy, displayName: Spy, description: Looks, defaultLanguage: en }
languages: { en: { systemPrompt: "You look." } }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
mcp:
  servers:
    - { name: orchestrator, transport: streamable-http, url: "${runner.orchestrator_mcp_url}", toolAccess: { default: public } }
mcpServers:
  docs:
    ref: external-api
    config: { context_id: "${scope.context_id}", grant: "${env.GRANTED}", key: { $secret: store-key } }
    toolAccess: { default: public }
"#;

fn search(place: &str, found: &str, control: &str) {
    assert!(
        found.contains(control),
        "{place} was not read; {control:?} is not in it:\n{found:.3000}"
    );
    for canary in [SCOPE, SECRET, GRANTED, CLIENT, TOKEN] {
        for spelling in spellings(canary) {
            let at = found.find(&spelling);
            let around = at.map(|at| {
                found[at.saturating_sub(200)..]
                    .chars()
                    .take(500)
                    .collect::<String>()
            });
            assert!(
                around.is_none(),
                "{place} holds {canary} as {spelling:?}: {around:?}"
            );
        }
    }
}

fn looks(request: &Value) -> Option<Reply> {
    let last = request["messages"].as_array()?.last()?;
    if last["role"] == "user" && text_of(last) == "rate?" {
        return Some(calls([(
            "docs__get_exchange_rate",
            json!({ "from": "EUR", "to": "USD" }),
        )]));
    }
    if last["role"] == "tool" && !last.to_string().contains("session_id") {
        return Some(text("Looked up."));
    }
    obedient(request)
}

/// Everything that is refused, with one of them in it.
async fn errors(ann: &Client, admin: &Client) -> String {
    let mut bodies = String::new();
    let run = |scope: Value| json!({ "agent_name": "spy", "prompt": "rate?", "scope": scope });
    for scope in [
        json!(SCOPE),
        json!([SCOPE]),
        json!({ "context_id": format!("{SCOPE}\r\nX-Admin: 1") }),
        json!({ "context_id": null, "else": SCOPE }),
        json!({ "context_id": SCOPE.repeat(10_000) }),
    ] {
        let refused = ann.post("/runs", run(scope)).await;
        refused.expect(400);
        bodies += &refused.text;
    }
    let schema = |kind: &str| json!({ "k": { "type": kind, "sensitive": true } });
    let entry = |schema: Value, default: &str| json!({ "id": "two", "url": "https://two.example.org/mcp", "config_schema": schema, "default_config": { "k": default } });
    for body in [
        entry(schema("number"), SECRET),
        entry(schema("string"), &format!("{SECRET}${{vault.x}}")),
        entry(json!({}), SECRET),
        json!({ "id": "two", "url": format!("ftp://{SECRET}@two.example.org") }),
    ] {
        let refused = admin.post("/mcp-servers", body).await;
        refused.expect(400);
        bodies += &refused.text;
    }
    for body in [
        json!({ "value": [SECRET] }),
        json!({ "value": "", "else": SECRET }),
        json!({ "value": SECRET.repeat(1000) }),
    ] {
        let request = admin
            .request(http::Method::PUT, "/v1/secrets/store-key")
            .json(&body);
        let refused = admin.send(request).await;
        refused.expect(400);
        bodies += &refused.text;
    }
    bodies
}

/// The world before the program serves it: what its admins have defined.
async fn defined(bank: &Watched) -> (crate::support::world::Stopped, Client, Client) {
    let (endpoint, _) = endpoint(bank, 3600).await;
    let world = World::with(|setup| {
        open_localhost(setup);
        setup.packs.push(("spy".to_owned(), SPY.to_owned()));
        setup.config.registry_env = vec!["EXTERNAL_*@*".to_owned(), "GRANTED@*".to_owned()];
        let env = setup
            .env
            .clone()
            .with("EXTERNAL_CLIENT_ID", "client-1")
            .with("EXTERNAL_CLIENT_SECRET", CLIENT);
        setup.env = env
            .with("GRANTED", GRANTED)
            .with("CHATELAINE_REGISTRY_ENV", "EXTERNAL_*@*,GRANTED@*");
    })
    .await;
    let (admin, ann) = (world.admin().await, world.user("ann", &[]).await);
    let secret = admin
        .request(http::Method::PUT, "/v1/secrets/store-key")
        .json(&json!({ "value": SECRET }));
    admin.send(secret).await.expect(204);
    let mut entry = external(bank, &endpoint);
    entry["config_schema"] = json!({
        "context_id": { "type": "string", "required": true }, "grant": { "type": "string" },
        "key": { "type": "string", "sensitive": true, "required": true },
    });
    admin.post("/mcp-servers", entry).await.expect(201);
    world.model.on(looks);
    (world.stop().await, admin, ann)
}

#[tokio::test]
async fn what_only_servers_may_know_is_in_nothing_that_the_program_writes_even_at_trace() {
    let bank = Watched::echoing().await;
    let (world, admin, ann) = defined(&bank).await;
    let variables = [
        "MODEL_URL",
        "BANK_URL",
        "GRANTED",
        "EXTERNAL_CLIENT_ID",
        "EXTERNAL_CLIENT_SECRET",
        "CHATELAINE_REGISTRY_ENV",
    ];
    let program = Program::serve(&world, &"5e".repeat(32), &variables).await;
    let (admin, ann) = (admin.at(&program.url), ann.at(&program.url));
    let errors = errors(&ann, &admin).await;
    search(
        "an error",
        &errors,
        "Missing required value: scope.context_id",
    );

    let mut heard = String::new();
    for prompt in [
        "rate?".to_owned(),
        start("spy", "rate?", "sync"),
        start("spy", "rate?", "async_callback"),
    ] {
        let body = json!({ "agent_name": "spy", "prompt": prompt, "scope": { "context_id": SCOPE, "deep": { "k": SCOPE } } });
        let begun = ann.post("/runs", body).await;
        let (run, session) = (
            begun.expect(202)["run_id"].clone(),
            begun.json()["session_id"].clone(),
        );
        let (run, session) = (run.as_str().unwrap(), session.as_str().unwrap());
        let events = ann.listen(session, Some(0)).await.until_run_ends(run).await;
        heard.extend(events.into_iter().map(|event| event.text));
        let ran = ended(&ann, run).await;
        assert_eq!(ran["status"], "succeeded", "{ran}");
        search("a run", &ran.to_string(), "result");
    }
    let told = ["x-context-id", "x-grant", "x-key"].map(|name| bank.last(name).unwrap_or_default());
    assert_eq!(told, [SCOPE, GRANTED, SECRET], "the server does know");
    assert_eq!(bank.last("authorization"), Some(format!("Bearer {TOKEN}")));
    assert!(
        heard.matches("••••").count() >= 4,
        "the server did give them back: {heard}"
    );
    search("an event", &heard, "Looked up.");
    for request in world.model.requests() {
        search("a model request", &request.body.to_string(), "\"messages\"");
    }
    for path in [
        "/v1/conversations?include=children",
        "/mcp-servers",
        "/v1/secrets",
        "/v1/agents/spy/servers?explain=true",
        "/v1/admin/audit",
        "/metrics",
    ] {
        let answer = admin.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        search(path, &answer.text, "");
    }
    search("the log", &program.stop().await, " TRACE ");
    let stored = everything_stored(&world.db).await;
    search("the database", &stored, "access_tokens: [\"");
    assert!(
        stored.contains("external-api") && stored.contains("get_exchange_rate"),
        "the rows were read"
    );
}
