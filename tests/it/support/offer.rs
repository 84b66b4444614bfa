//! An agent `desk` whose one server, also `desk`, does what a test says ([`Scripted`]).

use domain::secret::Secret;
use serde_json::{Value, json};
use url::Url;

use super::{
    client::Client,
    scripted::{Reply, Scripted, Seen},
    wait::eventually,
    world::{Setup, World},
};

const PACK: &str = r#"
metadata: { id: desk, displayName: Desk, description: Desk, defaultLanguage: en }
languages: { en: { systemPrompt: "You are a desk." }, es: {} }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
flows: { authentication: { required: false, rolesAttribute: roles } }
mcp:
  servers:
    - name: desk
      transport: streamable-http
      url: "${DESK_URL}"
      timeouts: { connectSeconds: 3, requestSeconds: 10 }
      toolAccess: ACCESS
"#;

/// The agent, with this for its server's `toolAccess`.
pub fn pack(access: &str) -> (String, String) {
    ("desk".to_owned(), PACK.replace("ACCESS", access))
}

/// The discovery of a server of the newer era that has these capabilities.
pub fn discovered(seen: &Seen, capabilities: Value) -> Reply {
    let mut result = json!({
        "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
    });
    result["capabilities"] = capabilities;
    seen.result(result)
}

/// A world with that agent, whose server is known.
pub async fn world(server: &Url, access: &str) -> World {
    world_with(server, access, |_| {}).await
}

pub async fn world_with(server: &Url, access: &str, change: impl FnOnce(&mut Setup)) -> World {
    let world = World::with(|setup| {
        setup.env = setup.env.clone().with("DESK_URL", server.as_str());
        setup.packs = vec![pack(access)];
        change(setup);
    })
    .await;
    eventually(async || world.app().connections.count().0 == 1).await;
    world
}

/// What the parts of a run's answer say.
pub async fn answer(client: &Client, chat: &str, text: &str) -> Vec<Value> {
    let run = client.say_and_wait(chat, text).await;
    assert_eq!(run["status"], "succeeded", "{run}");
    parts_of(client, chat, run["id"].as_str().unwrap()).await
}

/// What was said in a run by anybody but the user.
pub async fn parts_of(client: &Client, chat: &str, run: &str) -> Vec<Value> {
    let messages = client.messages(chat).await;
    let answers = messages
        .iter()
        .filter(|message| message["run_id"] == run && message["role"] != "user");
    answers
        .flat_map(|message| message["parts"].as_array().unwrap().clone())
        .collect()
}

pub fn texts(parts: &[Value]) -> String {
    parts
        .iter()
        .filter_map(|part| part["text"].as_str())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The lines of the audit trail with this action, as `server tool outcome`.
pub async fn audited(world: &World, action: &str) -> Vec<String> {
    let admin = world.admin().await;
    let page = admin
        .get(&format!("/v1/admin/audit?action={action}&limit=100"))
        .await
        .expect(200);
    let member = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
    let line = |line: &Value| {
        format!(
            "{} {} {}",
            member(line, "server"),
            member(line, "tool"),
            member(line, "outcome")
        )
    };
    page["items"].as_array().unwrap().iter().map(line).collect()
}

/// Somebody who was here before a restart.
pub fn again(world: &World, client: &Client) -> Client {
    world.client(&Secret::new(client.token()))
}

/// What the server was asked with this method: the parameters without their `_meta`.
pub fn asked(server: &Scripted, method: &str) -> Vec<Value> {
    let params = server.requests(method).into_iter().map(|seen| {
        let mut params = seen.body["params"].clone();
        params.as_object_mut().unwrap().remove("_meta");
        params
    });
    params.collect()
}
