//! Servers of the modern era do not push changes: a client subscribes to them, and again when the stream
//! ends.

use std::time::Duration;

use rmcp::{Peer, RoleClient, model::SubscriptionFilter};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::Key;
use domain::{backoff, clock};

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(120);
/// A stream that lasted this long was a good one.
const GOOD: Duration = Duration::from_secs(60);
/// A server that refuses this often in a row is not asked again on this connection.
const TRIES: u32 = 6;

/// What to be told of.
pub(super) fn filter(tools: bool, prompts: bool) -> SubscriptionFilter {
    let mut filter = SubscriptionFilter::builder();
    if tools {
        filter = filter.tools_list_changed();
    }
    if prompts {
        filter = filter.prompts_list_changed();
    }
    filter.build()
}

/// Follows the changes of one server's lists until the session ends.
pub(super) async fn follow(
    peer: Peer<RoleClient>,
    filter: SubscriptionFilter,
    key: Key,
    changes: broadcast::Sender<Key>,
    session_ended: CancellationToken,
) {
    let _ = session_ended
        .run_until_cancelled(listen_again(&peer, &filter, &key, &changes))
        .await;
}

async fn listen_again(
    peer: &Peer<RoleClient>,
    filter: &SubscriptionFilter,
    key: &Key,
    changes: &broadcast::Sender<Key>,
) {
    let mut failures = 0;
    while failures < TRIES && !peer.is_transport_closed() {
        let opened = clock::instant();
        listen(peer, filter, key, changes, failures > 0).await;
        failures = if opened.elapsed() >= GOOD {
            1
        } else {
            failures + 1
        };
        let pause = backoff::delay(FIRST, LONGEST, failures, rand::random());
        tokio::time::sleep(pause).await;
    }
}

/// One stream. `missed`: there was none for a while, and a change may have been missed.
async fn listen(
    peer: &Peer<RoleClient>,
    filter: &SubscriptionFilter,
    key: &Key,
    changes: &broadcast::Sender<Key>,
    missed: bool,
) {
    let Ok(mut stream) = peer.listen(filter.clone()).await else {
        return;
    };
    if missed {
        let _ = changes.send(key.clone());
    }
    while let Ok(Some(_)) = stream.next().await {
        let _ = changes.send(key.clone());
    }
}
