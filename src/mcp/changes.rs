//! Servers of the modern era push nothing: somebody must ask to be told, and ask again when the stream
//! ends.

use std::time::Duration;

use rmcp::{Peer, RoleClient, model::SubscriptionFilter};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::{Key, backoff};
use crate::domain::clock;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(120);
/// A stream that lasted this long was a good one.
const GOOD: Duration = Duration::from_secs(60);
/// A server that refuses this often in a row is not asked again on this connection.
const TRIES: u32 = 6;

/// Follows the changes of one server's tool list until the session ends.
pub(super) async fn follow(
    peer: Peer<RoleClient>,
    key: Key,
    changes: broadcast::Sender<Key>,
    session_ended: CancellationToken,
) {
    let _ = session_ended.run_until_cancelled(listen_again(&peer, &key, &changes)).await;
}

async fn listen_again(peer: &Peer<RoleClient>, key: &Key, changes: &broadcast::Sender<Key>) {
    let mut failures = 0;
    while failures < TRIES && !peer.is_transport_closed() {
        let opened = clock::instant();
        listen(peer, key, changes, failures > 0).await;
        failures = if opened.elapsed() >= GOOD { 1 } else { failures + 1 };
        tokio::time::sleep(backoff(FIRST, LONGEST, failures)).await;
    }
}

/// One stream. `missed`: there was none for a while, and a change may have been missed.
async fn listen(peer: &Peer<RoleClient>, key: &Key, changes: &broadcast::Sender<Key>, missed: bool) {
    let filter = SubscriptionFilter::builder().tools_list_changed().build();
    let Ok(mut stream) = peer.listen(filter).await else { return };
    if missed {
        let _ = changes.send(key.clone());
    }
    while let Ok(Some(_)) = stream.next().await {
        let _ = changes.send(key.clone());
    }
}
