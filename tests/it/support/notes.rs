//! `tests/servers/notes.py`: a server where everybody has a token and notes of their own, and packs that use it.

use std::{collections::BTreeMap, path::PathBuf};

use domain::config::{Config, Environment};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    servers::{Server, fastmcp},
    world::{Setup, World},
};

/// 64 hex digits.
pub const KEY: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0";

const PACK: &str = r#"
metadata: { id: ID, displayName: Notes, description: Notes, defaultLanguage: en }
languages:
  en: { systemPrompt: "You keep notes." }
  es: { systemPrompt: "Guardas notas.", strings: { MCP_CONFIG_SAVED: "Hecho: {server}." } }
llm: { provider: openai, model: scripted, baseUrl: "${MODEL_URL}", apiKey: model-key-0123456789 }
flows: { authentication: { required: true, adminUsers: [root] } }
mcp:
  servers:
    - name: notes
      transport: streamable-http
      url: "${NOTES_URL}"
      accessMode: user-controlled
      catalog: CATALOG
      timeouts: { connectSeconds: 3, requestSeconds: 10 }
      userConfig:
        fields:
          - name: token
            type: secret
            label: { en: "Your token of Notes?", es: "¿Tu token de Notas?" }
            headerTemplate: "Bearer {value}"
      toolAccess: { default: public }
"#;

pub struct Notes {
    pub server: Server,
    files: TempDir,
}

impl Notes {
    /// Knows `reader-token-1`, `reader-token-2` (who may read) and `writer-token-1`.
    pub async fn start() -> Self {
        let files = tempfile::tempdir().unwrap();
        let (tokens, log) = (files.path().join("tokens.json"), files.path().join("log"));
        std::fs::write(&log, "").unwrap();
        std::fs::write(&tokens, "{}").unwrap();
        let arguments = [&tokens, &log].map(|path| path.to_str().unwrap());
        let server = fastmcp("notes.py", &arguments).await;
        let notes = Self { server, files };
        for (token, user, scopes) in [
            ("reader-token-1", "reader1", &["read"][..]),
            ("reader-token-2", "reader2", &["read"]),
            ("writer-token-1", "writer1", &["read", "write"]),
        ] {
            notes.grant(token, user, scopes);
        }
        notes
    }

    fn tokens(&self) -> PathBuf {
        self.files.path().join("tokens.json")
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Value>)) {
        let mut tokens =
            serde_json::from_str(&std::fs::read_to_string(self.tokens()).unwrap()).unwrap();
        change(&mut tokens);
        let new = self.files.path().join("new");
        std::fs::write(&new, serde_json::to_string(&tokens).unwrap()).unwrap();
        std::fs::rename(new, self.tokens()).unwrap();
    }

    pub fn grant(&self, token: &str, user: &str, scopes: &[&str]) {
        self.change(|tokens| {
            drop(tokens.insert(token.to_owned(), json!({ "user": user, "scopes": scopes })));
        });
    }

    pub fn revoke(&self, token: &str) {
        self.change(|tokens| drop(tokens.remove(token)));
    }

    /// How often the server was asked for this.
    pub fn count(&self, method: &str) -> usize {
        let log = std::fs::read_to_string(self.files.path().join("log")).unwrap();
        log.lines().filter(|line| line.starts_with(method)).count()
    }

    /// A world with the agents `notes` (shared catalog) and `private` (per user).
    pub async fn world(&self) -> World {
        self.world_with(|_| {}).await
    }

    pub async fn world_with(&self, change: impl FnOnce(&mut Setup)) -> World {
        World::with(|setup| {
            setup.env = setup
                .env
                .clone()
                .with("NOTES_URL", self.server.url.as_str());
            setup.config.ring = ring();
            setup.packs = vec![pack("notes", "shared"), pack("private", "per-user")];
            change(setup);
        })
        .await
    }
}

/// A pack whose one server is [`Notes`] at `${NOTES_URL}`.
pub fn pack(id: &str, catalog: &str) -> (String, String) {
    (
        id.to_owned(),
        PACK.replace("ID", id).replace("CATALOG", catalog),
    )
}

pub fn ring() -> Option<domain::ring::KeyRing> {
    let env = Environment::default().with("MCP_CONFIG_ENCRYPTION_KEY", KEY);
    Config::from_environment(&env).unwrap().ring
}
