//! What shared servers offer: each discovery as a catalog, in force in memory and kept in Postgres.

use std::{sync::Arc, time::Duration};

use sha2::{Digest, Sha256};

use super::{SharedServerKey, State};
use crate::{
    app::{App, servers::credentials},
    domain::{
        error::Result, ids::ServerId, owner::CatalogOwner, server::ServerSpec, tool::Catalog,
    },
    mcp::{Discovery, Key},
    store,
};

/// A list that could not be stored is asked for again after this time.
const UNSTORED: Duration = Duration::from_secs(30);

/// Takes over what an earlier process discovered, so that its tools are listed at once.
pub(super) async fn load_stored(
    app: &App,
    place: &SharedServerKey,
    spec: &Arc<ServerSpec>,
) -> Result<()> {
    let mut tx = app.db.tenant(place.0).await?;
    let stored = store::catalogs::get(
        &mut tx,
        &place.1,
        &[(place.2.clone(), CatalogOwner::Shared)],
    )
    .await?
    .pop();
    app.connections.update(place, spec, |server| {
        if server.catalog.is_none() {
            server.catalog = stored.map(|(catalog, _)| Arc::new(catalog));
        }
    });
    Ok(())
}

/// Puts a discovery in force and stores it when it says something new. For how long it is fresh.
pub(super) async fn put_in_force(
    app: &App,
    place: &SharedServerKey,
    spec: &Arc<ServerSpec>,
    discovery: Discovery,
) -> Duration {
    let catalog = Arc::new(catalog(app, &place.2, &discovery));
    let mut news = false;
    app.connections.update(place, spec, |server| {
        server.state = State::Ready {
            protocol: discovery.protocol.clone(),
        };
        news = server
            .catalog
            .as_ref()
            .is_none_or(|known| (&known.version, known.cache) != (&catalog.version, catalog.cache));
        if news {
            server.catalog = Some(catalog.clone());
        }
    });
    if !news {
        return catalog.fresh_for();
    }
    tracing::info!(server = %place.2, agent = %place.1, tools = catalog.tools.len(), "tools discovered");
    let pack = app.library.get(&place.1);
    let unmatched = pack.map(|pack| pack.unmatched_names(spec, &catalog.tool_names()));
    for unmatched in unmatched.unwrap_or_default() {
        tracing::warn!(server = %place.2, agent = %place.1, unmatched, "the names in the pack and those of the tools need a look");
    }
    for dropped in &catalog.dropped {
        tracing::warn!(server = %place.2, dropped, "a tool was left out");
    }
    let stored = async {
        let mut tx = app.db.tenant(place.0).await?;
        store::catalogs::put(&mut tx, place.0, &place.1, CatalogOwner::Shared, &catalog).await?;
        tx.commit().await
    };
    if let Err(error) = stored.await {
        tracing::warn!(%error, server = %place.2, "the catalog cannot be stored; it is kept in memory");
    }
    catalog.fresh_for()
}

/// The same for a personal server that was asked with the operator's headers: its list is for the users who have a
/// credential of their own.
pub(super) async fn learn_for_users(
    app: &App,
    key: &Key,
    place: &SharedServerKey,
    spec: &Arc<ServerSpec>,
    discovery: &Discovery,
) -> Duration {
    app.connections.update(place, spec, |server| {
        server.state = State::Ready {
            protocol: discovery.protocol.clone(),
        };
    });
    credentials::learn(app, key, spec, discovery).await.unwrap_or_else(|error| {
        tracing::warn!(%error, server = %spec.id, "what a server said of its tools cannot be stored");
        UNSTORED
    })
}

/// What a discovery comes to.
pub(in crate::app) fn catalog(app: &App, server: &ServerId, discovery: &Discovery) -> Catalog {
    Catalog {
        server: server.clone(),
        tools: discovery.tools.clone(),
        prompts: discovery.prompts.clone(),
        dropped: discovery.dropped.clone(),
        fetched_at: app.clock.now(),
        cache: discovery.cache,
        version: fingerprint(discovery),
    }
}

/// SHA-256 over everything that a server's lists say, in hex.
fn fingerprint(discovery: &Discovery) -> String {
    let mut digest = Sha256::new();
    for tool in &discovery.tools {
        digest.update(serde_json::to_vec(&**tool).expect("a tool is plain JSON"));
        digest.update([0]);
    }
    for prompt in &discovery.prompts {
        digest.update(serde_json::to_vec(&**prompt).expect("a prompt is plain JSON"));
        digest.update([1]);
    }
    hex::encode(digest.finalize())
}
