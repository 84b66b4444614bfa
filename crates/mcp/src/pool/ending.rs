//! The end of connections: idle ones, surplus ones, and all of them.

use std::{
    collections::HashMap,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::timeout;

use super::{Pool, Slot, same_connection};
use crate::{Key, interceptor::locked, session::Session};
use domain::{owner::ConnectionOwner, server::ServerSpec};

/// How long everything together may take to end.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// How often a connection that is to be closed is looked at.
const LOOK: Duration = Duration::from_millis(200);

impl Pool {
    pub(crate) fn personal_keys(&self) -> Vec<Key> {
        locked(&self.slots)
            .keys()
            .filter(|key| key.owner.credential().is_some())
            .cloned()
            .collect()
    }

    pub(crate) async fn close(&self, key: &Key) {
        let slots = locked(&self.slots).remove(key).unwrap_or_default();
        let sessions: Vec<_> = slots.iter().filter_map(|slot| slot.mark_closed()).collect();
        join_all(sessions.iter().map(|session| session.close())).await;
    }

    /// Waits for whoever uses the connection, so that no call is cut off.
    pub(crate) async fn close_when_unused(&self, key: &Key, spec: &Arc<ServerSpec>) {
        while self
            .closing
            .run_until_cancelled(tokio::time::sleep(LOOK))
            .await
            .is_some()
        {
            let mut slots = locked(&self.slots);
            let versions = slots.get(key).map(Vec::as_slice).unwrap_or_default();
            let Some(slot) = versions
                .iter()
                .find(|slot| same_connection(&slot.target.spec, spec))
                .cloned()
            else {
                return;
            };
            if slot.users.load(Ordering::SeqCst) == 0 {
                self.evict(&mut slots, &slot);
                return;
            }
        }
    }

    pub(crate) async fn shutdown(&self) {
        self.closing.cancel();
        self.tasks.close();
        let slots = std::mem::take(&mut *locked(&self.slots));
        let sessions: Vec<_> = slots
            .values()
            .flatten()
            .filter_map(|slot| slot.mark_closed())
            .collect();
        let all = async {
            join_all(sessions.iter().map(|session| session.close())).await;
            self.tasks.wait().await;
        };
        if timeout(SHUTDOWN, all).await.is_err() {
            tracing::warn!("some MCP servers did not end in time; they are killed");
        }
    }

    /// Closes the least recently used connections that nobody uses, until the cap is met.
    pub(super) fn evict_surplus(&self) {
        let mut slots = locked(&self.slots);
        let mut ready: Vec<_> = slots
            .values()
            .flatten()
            .filter(|slot| slot.is_ready())
            .cloned()
            .collect();
        let Some(surplus) = ready.len().checked_sub(self.options.max_connections.max(1)) else {
            return;
        };
        ready.retain(|slot| slot.users.load(Ordering::SeqCst) == 0);
        ready.sort_by_key(|slot| slot.used.load(Ordering::Relaxed));
        for slot in ready.into_iter().take(surplus) {
            self.evict(&mut slots, &slot);
        }
    }

    /// Closes what nobody used for its time.
    fn sweep(&self) {
        let now = Duration::from_micros(self.now());
        let mut slots = locked(&self.slots);
        let idle = |slot: &&Arc<Slot>| {
            let used = Duration::from_micros(slot.used.load(Ordering::Relaxed));
            slot.users.load(Ordering::SeqCst) == 0
                && now.saturating_sub(used) >= self.time_limit_with(slot)
        };
        let idle: Vec<_> = slots.values().flatten().filter(idle).cloned().collect();
        for slot in idle {
            self.evict(&mut slots, &slot);
        }
    }

    fn time_limit_with(&self, slot: &Slot) -> Duration {
        match slot.target.key.owner {
            ConnectionOwner::Shared => self.options.shared_idle_ttl,
            // It holds a user's credential, or values of runs, which may be secret.
            ConnectionOwner::Credential { .. }
            | ConnectionOwner::Run(_)
            | ConnectionOwner::RunConfig(_) => self.options.idle_ttl,
        }
    }

    fn evict(&self, slots: &mut HashMap<Key, Vec<Arc<Slot>>>, slot: &Arc<Slot>) {
        if let Some(versions) = slots.get_mut(&slot.target.key) {
            versions.retain(|other| !Arc::ptr_eq(other, slot));
            if versions.is_empty() {
                slots.remove(&slot.target.key);
            }
        }
        if let Some(session) = slot.mark_closed() {
            self.close_in_background(session);
        }
    }

    pub(super) fn close_in_background(&self, session: Arc<Session>) {
        self.tasks.spawn(async move { session.close().await });
    }

    /// Starts the sweeper with the first connection; it ends with the pool.
    pub(super) fn start_sweeper(self: &Arc<Self>) {
        if self.sweeping.swap(true, Ordering::SeqCst) {
            return;
        }
        let pause =
            (self.options.idle_ttl / 4).clamp(Duration::from_millis(10), Duration::from_secs(15));
        let (pool, closing): (Weak<Self>, _) = (Arc::downgrade(self), self.closing.clone());
        tokio::spawn(closing.run_until_cancelled_owned(async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(pool) = pool.upgrade() else { return };
                pool.sweep();
            }
        }));
    }
}
