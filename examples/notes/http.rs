//! HTTP for the notes: `/mcp` for clients of both eras, with a server for each request that knows its holder.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::any,
};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use serde::{Deserialize, Serialize};

use super::{book::Book, tools::Notes};

/// Whose token it is, and what it is good for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    pub name: String,
    pub scopes: Vec<Scope>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    Read,
    Write,
}

#[derive(Clone)]
struct HttpState {
    book: Arc<Book>,
    tokens: PathBuf,
    config: StreamableHttpServerConfig,
    sessions: Arc<LocalSessionManager>,
}

/// The whole server. Without sessions and with plain JSON answers, one endpoint serves both protocol eras.
pub fn router(book: Arc<Book>, tokens: PathBuf, hosts: &[String]) -> Router {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true);
    let hosts: Vec<String> = config.allowed_hosts.iter().chain(hosts).cloned().collect();
    let config = config.with_allowed_hosts(hosts);
    Router::new().route("/mcp", any(mcp)).with_state(HttpState {
        book,
        tokens,
        config,
        sessions: Arc::default(),
    })
}

/// The tokens that are good now.
pub fn holders(tokens: &Path) -> anyhow::Result<BTreeMap<String, Holder>> {
    let told = || format!("the file of tokens {}", tokens.display());
    serde_json::from_str(&fs::read_to_string(tokens).with_context(told)?).with_context(told)
}

async fn mcp(State(state): State<HttpState>, request: Request) -> Response {
    match state.holder(request.headers()) {
        Ok(Some(holder)) => {
            let notes = Notes::new(state.book, &holder);
            let service =
                StreamableHttpService::new(move || Ok(notes.clone()), state.sessions, state.config);
            service.handle(request).await.map(Body::new)
        }
        Ok(None) => {
            let asks = [(header::WWW_AUTHENTICATE, "Bearer")];
            (
                StatusCode::UNAUTHORIZED,
                asks,
                "a bearer token that is known here is needed",
            )
                .into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response(),
    }
}

impl HttpState {
    /// Who comes with these headers.
    fn holder(&self, headers: &HeaderMap) -> anyhow::Result<Option<Holder>> {
        let given = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let Some(token) = given.and_then(|value| value.strip_prefix("Bearer ")) else {
            return Ok(None);
        };
        Ok(holders(&self.tokens)?.remove(token))
    }
}
