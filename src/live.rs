//! Which listeners follow which conversation, in this process.
//!
//! Publishing never waits and never fails: a listener that falls behind is told to look at the rows again
//! ([`LiveEvent::Missed`]), which are the truth. Another replica's news arrives as a look, too.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{broadcast, watch};

use crate::domain::{
    event::{Event, Transient},
    ids::{ConversationId, TenantId},
};

/// The number of events that a slow listener may be behind before it must read the rows again.
const BACKLOG: usize = 128;

/// What a listener hears.
#[derive(Clone, Debug)]
pub enum LiveEvent {
    /// A row was written; listeners that already know a later one ignore it.
    Durable(Arc<Event>),
    /// Said after the run's worker had written durable event `follows`.
    Transient { follows: i64, event: Arc<Transient> },
    /// This listener fell behind and has missed something: read the rows.
    Missed,
    /// Something happened elsewhere: read the rows.
    Look,
}

type Key = (TenantId, ConversationId);

/// The listeners of this process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Live {
    channels: Arc<Mutex<HashMap<Key, broadcast::Sender<LiveEvent>>>>,
    /// The listeners that wait for a change of an approval, by tenant.
    approvals: Arc<Mutex<HashMap<TenantId, watch::Sender<()>>>>,
}

/// The receiving end of a listener. Dropping it ends the subscription.
pub struct Listener {
    receiver: broadcast::Receiver<LiveEvent>,
}

impl Live {
    /// Subscribes to a conversation. Subscribe first and read the rows afterwards; then no event is lost.
    pub fn listen(&self, tenant: TenantId, conversation: ConversationId) -> Listener {
        let mut channels = self.channels();
        let sender = channels
            .entry((tenant, conversation))
            .or_insert_with(|| broadcast::channel(BACKLOG).0);
        Listener {
            receiver: sender.subscribe(),
        }
    }

    pub fn durable(&self, tenant: TenantId, conversation: ConversationId, event: Event) {
        self.send((tenant, conversation), LiveEvent::Durable(Arc::new(event)));
    }

    pub fn transient(
        &self,
        (tenant, conversation): (TenantId, ConversationId),
        follows: i64,
        event: Transient,
    ) {
        let event = Arc::new(event);
        self.send(
            (tenant, conversation),
            LiveEvent::Transient { follows, event },
        );
    }

    /// Tells the listeners of a conversation that its rows have changed elsewhere.
    pub fn look(&self, tenant: TenantId, conversation: ConversationId) {
        self.send((tenant, conversation), LiveEvent::Look);
    }

    /// The conversations that have listeners. The call also forgets conversations whose last listener has
    /// left; it is made once a second.
    pub fn listened_conversations(&self) -> Vec<(TenantId, ConversationId)> {
        let mut channels = self.channels();
        channels.retain(|_, sender| sender.receiver_count() > 0);
        channels.keys().copied().collect()
    }

    /// A receiver that is marked as changed when an approval of the tenant changes. Subscribe first, then
    /// read the rows.
    pub fn watch_approvals(&self, tenant: TenantId) -> watch::Receiver<()> {
        let mut watched = self
            .approvals
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        watched
            .entry(tenant)
            .or_insert_with(|| watch::channel(()).0)
            .subscribe()
    }

    /// Notifies the listeners of a tenant's approvals that an approval has changed.
    pub fn approvals_changed(&self, tenant: TenantId) {
        if let Some(sender) = self
            .approvals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&tenant)
        {
            sender.send_replace(());
        }
    }

    /// The tenants whose approvals have listeners. Tenants without listeners are forgotten.
    pub fn watched_approvals(&self) -> Vec<TenantId> {
        let mut watched = self
            .approvals
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        watched.retain(|_, sender| sender.receiver_count() > 0);
        watched.keys().copied().collect()
    }

    fn send(&self, key: Key, heard: LiveEvent) {
        if let Some(sender) = self.channels().get(&key) {
            // An error means that the last listener is just leaving.
            let _ = sender.send(heard);
        }
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<Key, broadcast::Sender<LiveEvent>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    /// The next event; waits until there is one.
    pub async fn next(&mut self) -> LiveEvent {
        match self.receiver.recv().await {
            Ok(heard) => heard,
            Err(broadcast::error::RecvError::Lagged(_)) => LiveEvent::Missed,
            // The sender stays in the map as long as a listener is there.
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}
