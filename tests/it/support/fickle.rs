//! An MCP server that changes its tools whenever a test says so, and tells whoever listens.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use domain::clock;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::scripted::{Scripted, Seen, event, events};

pub struct Fickle {
    pub server: Scripted,
    tools: watch::Sender<Value>,
    executed: Arc<Mutex<Vec<Execution>>>,
}

/// A call as it was executed.
#[derive(Clone)]
pub struct Execution {
    pub at: Instant,
    /// The tools as the server listed them then.
    pub listed: Value,
    pub tool: String,
    pub arguments: Value,
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
        let executed = Arc::<Mutex<Vec<Execution>>>::default();
        let ledger = executed.clone();
        let server = Scripted::legacy(move |seen: Seen| {
            let (listed, ledger) = (listed.clone(), ledger.clone());
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
                    "tools/call" => {
                        let params = &seen.body["params"];
                        ledger.lock().unwrap().push(Execution {
                            at: clock::instant(),
                            listed: listed.borrow().clone(),
                            tool: params["name"].as_str().unwrap_or_default().to_owned(),
                            arguments: params["arguments"].clone(),
                        });
                        None
                    }
                    _ => None,
                }
            }
        })
        .await;
        Self {
            server,
            tools,
            executed,
        }
    }

    pub fn executed(&self) -> Vec<Execution> {
        self.executed.lock().unwrap().clone()
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
        let executed = self.executed().into_iter();
        executed.map(|call| call.arguments).collect()
    }
}

/// A tool that takes any arguments.
pub fn tool(name: &str, description: &str) -> Value {
    json!({ "name": name, "description": description, "inputSchema": { "type": "object" } })
}
