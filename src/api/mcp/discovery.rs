//! What a client learns of the server before its first call: name, versions, capabilities.

use serde_json::json;

use super::{Client, RpcRequest, era, message::Failure, tasks};

impl Client {
    pub(super) fn initialize(&self, request: &RpcRequest<'_>) -> Result<String, Failure> {
        let version = era::negotiate(request.params)?;
        let mut result = json!({
            "protocolVersion": version,
            "capabilities": {
                "tools": { "listChanged": true },
                "prompts": { "listChanged": true },
                "completions": {},
            },
            "serverInfo": self.server_info(),
        });
        if let Some(text) = self.instructions() {
            result["instructions"] = text.into();
        }
        Ok(result.to_string())
    }

    pub(super) fn discover(&self) -> String {
        let mut result = json!({
            "resultType": "complete",
            "supportedVersions": era::SUPPORTED,
            "capabilities": {
                "tools": { "listChanged": true },
                "prompts": { "listChanged": true },
                "completions": {},
                "extensions": { tasks::EXTENSION: {} },
            },
            "ttlMs": era::TTL_MS,
            "cacheScope": "private",
            "_meta": { "io.modelcontextprotocol/serverInfo": self.server_info() },
        });
        if let Some(text) = self.instructions() {
            result["instructions"] = text.into();
        }
        result.to_string()
    }

    fn server_info(&self) -> serde_json::Value {
        let metadata = &self.tools.pack.metadata;
        json!({
            "name": metadata.id,
            "title": metadata.display_name,
            "version": env!("CARGO_PKG_VERSION"),
        })
    }

    fn instructions(&self) -> Option<&str> {
        let text = self.tools.pack.metadata.description.trim();
        (!text.is_empty()).then_some(text)
    }
}
