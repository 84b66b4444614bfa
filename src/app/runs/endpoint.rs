//! The door of the orchestrator: MCP over streamable HTTP, for both eras of the protocol, on this machine's loopback
//! only. Every request must show the token of a run; without one nothing is told, not even which tools there are.

use std::{net::TcpListener, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use serde_json::Value;

use super::tools;
use crate::app::{
    App,
    servers::orchestrator::{Speaker, authenticate},
};

#[derive(Clone)]
struct Door {
    app: Arc<App>,
}

/// Answers until the process stops.
pub async fn serve(app: Arc<App>, listener: TcpListener) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true);
    let (door, shutdown) = (Door { app: app.clone() }, app.shutdown.clone());
    let mcp = StreamableHttpService::new(
        move || Ok(door.clone()),
        Arc::new(LocalSessionManager::default()),
        config,
    );
    let router = Router::new()
        .fallback_service(mcp)
        .layer(middleware::from_fn_with_state(app, admit));
    tokio::select! {
        served = async { axum::serve(listener, router).await } => Ok(served?),
        () = shutdown.cancelled() => Ok(()),
    }
}

/// Finds out for which run a request speaks.
async fn admit(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let token = given
        .and_then(|value| value.strip_prefix("Bearer "))
        .unwrap_or_default();
    match authenticate(&app, token).await {
        Ok(Some(speaker)) => {
            request.extensions_mut().insert(speaker);
            next.run(request).await
        }
        Ok(None) => (
            StatusCode::UNAUTHORIZED,
            [(header::WWW_AUTHENTICATE, "Bearer")],
        )
            .into_response(),
        Err(error) => {
            tracing::warn!(%error, "the orchestrator cannot tell who asks");
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}

impl ServerHandler for Door {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.app.orchestrator.tools().iter().map(|tool| {
            let read = |raw: &serde_json::value::RawValue| serde_json::from_str::<Value>(raw.get());
            let described = serde_json::json!({
                "name": tool.name,
                "description": tool.description,
                "inputSchema": read(&tool.input_schema)?,
                "annotations": tool.annotations.as_deref().map(read).transpose()?,
            });
            serde_json::from_value::<Tool>(described)
        });
        let tools = tools.collect::<Result<Vec<_>, _>>();
        let tools = tools.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let parts = context.extensions.get::<axum::http::request::Parts>();
        let speaker = parts.and_then(|parts| parts.extensions.get::<Speaker>());
        let speaker = speaker.ok_or_else(|| ErrorData::invalid_request("no run speaks", None))?;
        let made = tools::call(
            &self.app,
            speaker,
            &request.name,
            request.arguments.unwrap_or_default(),
        )
        .await;
        let result = match made {
            Ok(value) => CallToolResult::success(vec![ContentBlock::text(value.to_string())]),
            Err(text) => CallToolResult::error(vec![ContentBlock::text(text)]),
        };
        Ok(result.into())
    }
}
