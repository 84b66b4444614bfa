//! An MCP server that changes its tools whenever a test says so, and tells whoever listens.

use futures_util::{StreamExt, stream};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::scripted::{Scripted, Seen, event, events};

pub struct Fickle {
    pub server: Scripted,
    tools: watch::Sender<Value>,
}

impl Fickle {
    pub async fn start(tools: Value) -> Self {
        Self::with(tools, true).await
    }

    /// One that tells nobody.
    pub async fn silent(tools: Value) -> Self {
        Self::with(tools, false).await
    }

    async fn with(tools: Value, announces: bool) -> Self {
        let (tools, listed) = watch::channel(tools);
        let server = Scripted::legacy(move |seen: Seen| {
            let listed = listed.clone();
            async move {
                match seen.method() {
                    "GET" if announces => {
                        let told = stream::unfold(listed, |mut listed| async move {
                            listed.changed().await.ok()?;
                            let method = "notifications/tools/list_changed";
                            let told = event(&json!({ "jsonrpc": "2.0", "method": method }));
                            Some((Ok(told), listed))
                        });
                        Some(events(told.boxed()))
                    }
                    "tools/list" if listed.borrow().is_null() => {
                        Some(seen.error(StatusCode::OK, -32603, "no list today"))
                    }
                    "tools/list" => Some(seen.result(json!({ "tools": *listed.borrow() }))),
                    _ => None,
                }
            }
        })
        .await;
        Self { server, tools }
    }

    /// `null`: it answers that it cannot list them.
    pub fn list(&self, tools: Value) {
        self.tools.send_replace(tools);
    }

    /// How often it was asked for its tools.
    pub fn listings(&self) -> usize {
        self.server.requests("tools/list").len()
    }

    /// The arguments of each call so far.
    pub fn calls(&self) -> Vec<Value> {
        let calls = self.server.requests("tools/call").into_iter();
        calls
            .map(|call| call.body["params"]["arguments"].clone())
            .collect()
    }
}

/// A tool that takes any arguments.
pub fn tool(name: &str, description: &str) -> Value {
    json!({ "name": name, "description": description, "inputSchema": { "type": "object" } })
}
