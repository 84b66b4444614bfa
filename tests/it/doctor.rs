//! `chatelaine doctor`: each fault is planted for real and found by its code alone; a healthy installation has none.

mod faults;
mod pages;

use std::collections::BTreeMap;

use chatelaine::app::platform::keys::{Keys, replica_keys};
use domain::{ids::ReplicaId, ring::KeyRing};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::support::{
    db::TestDb,
    origin::{Origin, ok},
    packs::write_pack,
    program::chatelaine,
    world::World,
};

const KEY: &str = "5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e";
const MODEL_KEY: &str = "model-key-0123456789";

/// An installation that a test breaks: a database, a pack with a server and a model, and the settings.
struct Site {
    db: TestDb,
    packs: TempDir,
    /// The model and the server of the pack, which answer anything.
    origin: Origin,
    variables: BTreeMap<&'static str, String>,
}

/// What the command said.
struct Said {
    status: i32,
    text: String,
}

impl Site {
    async fn new() -> Self {
        let origin = Origin::start(|_| ok(json!({ "data": [{ "id": "scripted" }] }).to_string()));
        let (db, origin) = (TestDb::new().await, origin.await);
        let packs = tempfile::tempdir().unwrap();
        let variables = [
            ("DATABASE_URL", db.url.expose().to_owned()),
            ("MCP_CONFIG_ENCRYPTION_KEY", KEY.to_owned()),
            ("CHATELAINE_PACKS", packs.path().display().to_string()),
            ("CHATELAINE_LISTEN", "127.0.0.1:0".to_owned()),
            ("CHATELAINE_EGRESS_ALLOW", "127.0.0.1".to_owned()),
            ("CHATELAINE_MAX_CONNECTIONS", "100".to_owned()),
            ("MODEL_URL", origin.url("/v1").to_string()),
            ("SERVER_URL", origin.url("/mcp").to_string()),
        ];
        let site = Self {
            db,
            packs,
            origin,
            variables: variables.into_iter().collect(),
        };
        site.write(&pack());
        site
    }

    fn write(&self, pack: &Value) {
        write_pack(self.packs.path(), "desk", &pack.to_string());
    }

    fn set(&mut self, name: &'static str, value: impl Into<String>) -> &mut Self {
        self.variables.insert(name, value.into());
        self
    }

    fn unset(&mut self, name: &str) -> &mut Self {
        self.variables.remove(name);
        self
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = chatelaine(arguments);
        command.envs(&self.variables);
        command
    }

    async fn doctor(&self, arguments: &[&str]) -> Said {
        let mut command = self.command(&[&["doctor"], arguments].concat());
        Said::by(&mut command).await
    }

    /// The findings as JSON.
    async fn findings(&self) -> Vec<Value> {
        self.doctor(&["--json"]).await.findings()
    }

    /// The code of each finding.
    async fn codes(&self) -> Vec<String> {
        codes(&self.findings().await)
    }

    /// Why `serve` does not start.
    async fn refusal(&self) -> String {
        let output = self.command(&["serve"]).output().await.unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    }

    /// A replica with this ring that has started and not stopped.
    async fn register(&self, ring: &str) -> (Keys, ReplicaId) {
        let ring = KeyRing::parse(ring).unwrap();
        let (keys, id) = (Keys::new(self.db.db.clone(), Some(ring)), ReplicaId::new());
        replica_keys::register(&keys, id).await.unwrap();
        (keys, id)
    }
}

impl Said {
    async fn by(command: &mut Command) -> Self {
        let output = command.output().await.unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(error, "", "nothing but the findings is said");
        Self {
            status: output.status.code().unwrap(),
            text: String::from_utf8(output.stdout).unwrap(),
        }
    }

    fn findings(&self) -> Vec<Value> {
        let said: Value = serde_json::from_str(&self.text).unwrap();
        said["findings"].as_array().unwrap().clone()
    }
}

fn codes(findings: &[Value]) -> Vec<String> {
    let codes = findings.iter().map(|one| one["code"].as_str().unwrap());
    codes.map(ToOwned::to_owned).collect()
}

/// A pack with one server and one model.
fn pack() -> Value {
    json!({
        "metadata": { "id": "desk", "displayName": "Desk", "description": "Papers", "defaultLanguage": "en" },
        "languages": { "en": { "systemPrompt": "You are a desk." } },
        "llm": { "provider": "openai", "model": "scripted", "baseUrl": "${MODEL_URL}", "apiKey": MODEL_KEY },
        "mcp": { "servers": [{
            "name": "desk", "transport": "streamable-http", "url": "${SERVER_URL}",
            "toolAccess": { "default": "all" },
        }] },
    })
}

#[tokio::test]
async fn a_healthy_installation_has_nothing_and_is_left_as_it_was() {
    let site = Site::new().await;
    let (_keys, _id) = site.register(&format!("k1:{KEY}")).await;
    let rows = async || {
        let mut tables = String::new();
        for table in ["keks", "key_holders", "_sqlx_migrations", "operator_audit"] {
            let sql = format!("select coalesce(string_agg(t::text, ','), '') from {table} t");
            let mut owner = match table {
                "_sqlx_migrations" => site.db.as_owner().await,
                _ => site.db.as_system().await,
            };
            let text: String = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                .fetch_one(&mut owner)
                .await
                .unwrap();
            tables += &text;
        }
        tables
    };
    let before = rows().await;
    let said = site.doctor(&[]).await;
    assert!(
        said.text.starts_with("errors: 0, warnings: 0, skipped: 0"),
        "{}",
        said.text
    );
    assert_eq!(said.status, 0);
    assert_eq!(rows().await, before);
    // Nobody was asked for tools, and the model for nothing but its list.
    let mut asked: Vec<_> = site
        .origin
        .seen()
        .into_iter()
        .map(|seen| (seen.method.to_string(), seen.path))
        .collect();
    asked.sort();
    let get = |path: &str| ("GET".to_owned(), path.to_owned());
    assert_eq!(asked, [get("/"), get("/v1/models")]);
}

#[tokio::test]
async fn a_service_that_runs_is_no_fault() {
    let world = World::start().await;
    let mut command = chatelaine(&["doctor"]);
    command
        .env("DATABASE_URL", world.db.url.expose())
        .env("MCP_CONFIG_ENCRYPTION_KEY", KEY)
        .env("CHATELAINE_PACKS", &world.config.packs)
        .env("CHATELAINE_EGRESS_ALLOW", "127.0.0.1")
        .env("CHATELAINE_MAX_CONNECTIONS", "100")
        .env("CHATELAINE_LISTEN", world.url.trim_start_matches("http://"))
        .env("CHATELAINE_PUBLIC_URL", &world.url)
        .env("MODEL_URL", world.model.base_url().as_str())
        .env("BANK_URL", &world.bank.url);
    let said = Said::by(&mut command).await;
    assert!(
        said.text.starts_with("errors: 0, warnings: 0, skipped: 0"),
        "{}",
        said.text
    );
}

#[tokio::test]
async fn the_status_says_how_bad_it_is() {
    let mut site = Site::new().await;
    site.set("CHATELAINE_RUNS_AT_ONC", "5");
    let said = site.doctor(&[]).await;
    assert_eq!(said.status, 1, "{}", said.text);
    let line = "warning settings.unknown: CHATELAINE_RUNS_AT_ONC is no setting; did you mean CHATELAINE_RUNS_AT_ONCE?";
    assert!(said.text.starts_with(line), "{}", said.text);
    site.set("CHATELAINE_RUN_DEPTH", "deep");
    let said = site.doctor(&["--json"]).await;
    assert_eq!(said.status, 2, "{}", said.text);
    let findings = said.findings();
    assert_eq!(codes(&findings), ["settings.value", "settings.unknown"]);
    assert_eq!(findings[0]["severity"], "error");
    assert_eq!(findings[1]["severity"], "warning");
}
