//! The toolset of a person as an MCP server, for clients of the protocol.

mod calls; // through the gate, with a line in the trail
mod clients; // the official ones
mod consent; // calls that wait for somebody
mod lists; // who sees what, in both eras
mod protocol; // what a request must look like
mod sign_in; // where a client gets a token

use http::Method;
use serde_json::{Value, json};

use super::support::{
    client::{Answer, Client},
    has::Has,
};

/// The path of the bank's endpoint.
const BANK: &str = "/mcp/bank";

/// One request of revision 2025-11-25; the whole answer.
async fn legacy(client: &Client, method: &str, params: Value) -> Value {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let request = client
        .request(Method::POST, BANK)
        .header("mcp-protocol-version", "2025-11-25")
        .json(&body);
    let answer = client.send(request).await.expect(200);
    answer.has(json!({ "jsonrpc": "2.0", "id": 1 }));
    answer
}

/// One request of revision 2026-07-28.
async fn modern(client: &Client, method: &str, params: Value) -> Answer {
    modern_with(client, method, params, json!({})).await
}

/// The same of a client with these capabilities.
async fn modern_with(
    client: &Client,
    method: &str,
    mut params: Value,
    capabilities: Value,
) -> Answer {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    });
    let name = ["name", "uri", "taskId"]
        .into_iter()
        .find_map(|key| params[key].as_str().map(str::to_owned));
    let body = json!({ "jsonrpc": "2.0", "id": "m1", "method": method, "params": params });
    let mut request = client
        .request(Method::POST, BANK)
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", method)
        .json(&body);
    if let Some(name) = name {
        request = request.header("mcp-name", name);
    }
    client.send(request).await
}

/// The result of such a request.
async fn modern_result(client: &Client, method: &str, params: Value) -> Value {
    let answer = modern(client, method, params).await.expect(200);
    assert!(answer["result"].is_object(), "{answer}");
    answer["result"].clone()
}

/// Calls a tool as a client of 2025-11-25; the whole answer.
async fn call(client: &Client, name: &str, arguments: Value) -> Value {
    let params = json!({ "name": name, "arguments": arguments });
    legacy(client, "tools/call", params).await
}

/// The names of the tools that a client sees.
async fn names(client: &Client) -> Vec<String> {
    let listed = legacy(client, "tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect()
}
