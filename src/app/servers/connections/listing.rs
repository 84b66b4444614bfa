//! A server that lists fewer tools than its pack names may still be starting, so it is asked once more a
//! moment later. A tool that is still missing costs only itself, and each run without it says so.

use std::{sync::Arc, time::Duration};

use crate::{
    app::App,
    domain::server::ServerSpec,
    mcp::{Discovery, Key, McpError},
};

/// The moment between the two.
const AGAIN: Duration = Duration::from_millis(250);

/// What a server offers.
pub(in crate::app) async fn discover(
    app: &App,
    key: &Key,
    spec: &Arc<ServerSpec>,
) -> Result<Discovery, McpError> {
    let first = app.mcp.discover(key, spec).await?;
    if !spec.load_tools || spec.missing(&first.tools).is_empty() {
        return Ok(first);
    }
    tokio::time::sleep(AGAIN).await;
    // It has answered; what it said holds even if it does not say it twice.
    Ok(app.mcp.discover(key, spec).await.unwrap_or(first))
}
