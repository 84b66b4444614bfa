//! HTTP for the bank: `/mcp` for clients of both eras, `/ledger` for whoever wants to know what was executed.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Json, Response},
    routing::get,
};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use serde::{Deserialize, Serialize};

use super::{
    books::{Books, Entry},
    tools::Bank,
};

/// What `GET /ledger` tells.
#[derive(Serialize, Deserialize)]
pub struct Ledger {
    pub total: usize,
    /// How often each tool was executed.
    pub executions: BTreeMap<String, usize>,
    pub entries: Vec<Entry>,
}

/// The whole bank. Without sessions and with plain JSON answers, one endpoint serves both protocol eras.
pub fn router(bank: Bank, books: Arc<Books>, token: Option<String>, hosts: &[String]) -> Router {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true);
    let hosts: Vec<String> = config.allowed_hosts.iter().chain(hosts).cloned().collect();
    let mcp = StreamableHttpService::new(
        move || Ok(bank.clone()),
        Arc::new(LocalSessionManager::default()),
        config.with_allowed_hosts(hosts),
    );
    let expected: Option<Arc<str>> = token.map(|token| format!("Bearer {token}").into());
    Router::new()
        .route("/ledger", get(ledger))
        .with_state(books)
        .nest_service("/mcp", mcp)
        .layer(middleware::from_fn_with_state(expected, ask_for_token))
}

async fn ledger(State(books): State<Arc<Books>>) -> Json<Ledger> {
    let entries = books.entries();
    let mut executions = BTreeMap::new();
    for entry in &entries {
        *executions.entry(entry.tool.clone()).or_default() += 1;
    }
    Json(Ledger {
        total: entries.len(),
        executions,
        entries,
    })
}

async fn ask_for_token(
    State(expected): State<Option<Arc<str>>>,
    request: Request,
    next: Next,
) -> Response {
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .map(header::HeaderValue::as_bytes);
    match expected {
        Some(expected) if given != Some(expected.as_bytes()) => (
            StatusCode::UNAUTHORIZED,
            [(header::WWW_AUTHENTICATE, "Bearer")],
            "a bearer token is needed",
        )
            .into_response(),
        _ => next.run(request).await,
    }
}
