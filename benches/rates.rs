//! A server with one tool that does nothing but answer, on rmcp like the demo's bank. The bank itself is no measure:
//! it copies its books for every call, and they grow.

use std::sync::Arc;

use axum::Router;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub const TOOL: &str = "get_exchange_rate";

struct Rates;

impl ServerHandler for Rates {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let currency = json!({ "type": "string", "enum": ["EUR", "USD", "GBP"] });
        let schema = json!({
            "type": "object",
            "properties": { "from": currency, "to": currency },
            "required": ["from", "to"],
            "additionalProperties": false,
        });
        let Value::Object(schema) = schema else {
            unreachable!("just made")
        };
        Ok(ListToolsResult::with_all_items(vec![Tool::new(
            TOOL,
            "What one unit of a currency buys of another.",
            schema,
        )]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let asked = request.arguments.unwrap_or_default();
        Ok(CallToolResult::structured(
            json!({ "from": asked["from"], "to": asked["to"], "rate": "1.085000" }),
        )
        .into())
    }
}

/// Starts the server in this process, for as long as that lives; answers its address.
pub async fn start() -> String {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true);
    let rates = StreamableHttpService::new(
        || Ok(Rates),
        Arc::new(LocalSessionManager::default()),
        config,
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let router = Router::new().nest_service("/mcp", rates);
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}
