//! Indexes the words of what was said, for the search. Any replica does this; two that do it at once share the
//! conversations.

use std::{sync::Arc, time::Duration};

use crate::app::App;
use domain::{error::Result, ids::TenantId};

/// How often a replica looks for words to index.
pub const PERIOD: Duration = Duration::from_secs(60);
/// How long a message waits, so that the words of many messages are indexed at once. The search reads messages that wait.
const AGE: Duration = Duration::from_secs(600);
/// The most conversations that are indexed in one transaction.
const CONVERSATIONS: i64 = 50;

/// Indexes what was said longer than ten minutes ago.
pub async fn index(app: &Arc<App>) -> Result<()> {
    let tenants = app
        .db
        .look(|tx| Box::pin(store::words::list_tenants_to_index(tx)));
    let tenants = tenants.await?;
    for tenant in tenants {
        if let Err(error) = index_tenant(app, tenant).await {
            // The search reads what is not indexed. Other tenants do not wait for this one.
            tracing::warn!(error = error.with_cause(), %tenant, "messages could not be indexed for the search; trying again");
        }
    }
    Ok(())
}

async fn index_tenant(app: &App, tenant: TenantId) -> Result<()> {
    let mut after = None;
    while !app.shutdown.is_cancelled() {
        let mut tx = app.db.tenant(tenant).await?;
        after = store::words::index(&mut tx, AGE, after, CONVERSATIONS).await?;
        tx.commit().await?;
        if after.is_none() {
            break;
        }
    }
    Ok(())
}
