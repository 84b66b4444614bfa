//! The listeners of this process: which of them follow which conversation, and which wait for a change of an approval.
//!
//! The rows in the database are the truth; this module only says early that there is something to read. So publishing
//! never waits and never fails. A listener that falls behind is told to read the rows again ([`LiveEvent::Missed`]),
//! and so is one whose conversation was changed by another replica ([`LiveEvent::Refresh`]).

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{broadcast, watch};

use domain::{
    event::{Event, Transient},
    ids::{ConversationId, RunId, TenantId},
};

/// The number of events that a slow listener may be behind before it must read the rows again.
const BACKLOG: usize = 128;

/// An event as a listener receives it.
#[derive(Clone, Debug)]
pub enum LiveEvent {
    /// A row was written; listeners that already know a later one ignore it.
    Durable(Arc<Event>),
    /// An event that is not stored. The run's worker published it after it had written the durable event `follows`.
    Transient { follows: i64, event: Arc<Transient> },
    /// This listener fell behind and has missed events, so it must read the rows.
    Missed,
    /// Another replica or request has changed the conversation: read the rows.
    Refresh,
}

type Key = (TenantId, ConversationId);

/// The text so far of a step that is under way, for listeners that subscribe later.
struct StepText {
    run: RunId,
    follows: i64,
    text: String,
}

#[derive(Default)]
struct Channels {
    senders: HashMap<Key, broadcast::Sender<LiveEvent>>,
    steps: HashMap<Key, StepText>,
}

/// The listeners of this process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Live {
    channels: Arc<Mutex<Channels>>,
    /// The listeners that wait for a change of an approval, by tenant.
    approvals: Arc<Mutex<HashMap<TenantId, watch::Sender<()>>>>,
}

/// The receiving end of a listener. Dropping it ends the subscription.
pub struct Listener {
    /// The text of the step under way that was published before the subscription.
    earlier: VecDeque<LiveEvent>,
    receiver: broadcast::Receiver<LiveEvent>,
}

impl Live {
    /// Subscribes to a conversation. Subscribe first and read the rows afterwards; then no event is lost. The listener
    /// first receives the text so far of a step that is under way.
    pub fn listen(&self, tenant: TenantId, conversation: ConversationId) -> Listener {
        let mut channels = self.channels();
        let key = (tenant, conversation);
        let earlier = channels.steps.get(&key).map(StepText::events);
        let sender = channels
            .senders
            .entry(key)
            .or_insert_with(|| broadcast::channel(BACKLOG).0);
        Listener {
            earlier: earlier.into_iter().flatten().collect(),
            receiver: sender.subscribe(),
        }
    }

    /// Publishes an event that was written. The end of a step removes its text.
    pub fn durable(&self, tenant: TenantId, conversation: ConversationId, event: Event) {
        let (key, mut channels) = ((tenant, conversation), self.channels());
        if channels.steps.get(&key).map(|step| step.run) == event.worker() {
            channels.steps.remove(&key);
        }
        channels.send(&key, LiveEvent::Durable(Arc::new(event)));
    }

    /// Forgets the text of a run's step, when the worker of the run has stopped working on it.
    pub fn forget_step(&self, (tenant, conversation): (TenantId, ConversationId), run: RunId) {
        let (key, mut channels) = ((tenant, conversation), self.channels());
        if channels.steps.get(&key).is_some_and(|step| step.run == run) {
            channels.steps.remove(&key);
        }
    }

    /// Publishes an event that is not stored.
    pub fn transient(
        &self,
        (tenant, conversation): (TenantId, ConversationId),
        follows: i64,
        event: Transient,
    ) {
        let (key, mut channels) = ((tenant, conversation), self.channels());
        channels.note_step(key, follows, &event);
        let event = Arc::new(event);
        channels.send(&key, LiveEvent::Transient { follows, event });
    }

    /// Tells the listeners of a conversation to read its rows, because another replica or request has changed them.
    pub fn refresh(&self, tenant: TenantId, conversation: ConversationId) {
        self.channels()
            .send(&(tenant, conversation), LiveEvent::Refresh);
    }

    /// The conversations that have listeners. The caller asks once a second; the call also forgets conversations whose
    /// last listener has left.
    pub fn listened_conversations(&self) -> Vec<(TenantId, ConversationId)> {
        let mut channels = self.channels();
        channels
            .senders
            .retain(|_, sender| sender.receiver_count() > 0);
        channels.senders.keys().copied().collect()
    }

    /// Subscribes to changes of the tenant's approvals. The receiver is marked as changed when an approval has changed.
    /// Subscribe first, then read the rows.
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
    pub fn notify_approval_listeners(&self, tenant: TenantId) {
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

    fn channels(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channels {
    fn send(&self, key: &Key, event: LiveEvent) {
        if let Some(sender) = self.senders.get(key) {
            // An error means that the last listener is just leaving.
            let _ = sender.send(event);
        }
    }

    /// Adds a delta to the text of its step; a reset removes the text.
    fn note_step(&mut self, key: Key, follows: i64, event: &Transient) {
        match event {
            Transient::Delta { run_id, text } => {
                let begun = || StepText {
                    run: *run_id,
                    follows,
                    text: String::new(),
                };
                let step = self.steps.entry(key).or_insert_with(begun);
                if (step.run, step.follows) != (*run_id, follows) {
                    *step = begun();
                }
                step.text.push_str(text);
            }
            Transient::Reset { .. } => _ = self.steps.remove(&key),
            _ => {}
        }
    }
}

impl StepText {
    /// The text from its beginning, after a reset: a client that comes back may show a part of it already.
    fn events(&self) -> [LiveEvent; 2] {
        let (run_id, follows) = (self.run, self.follows);
        let text = self.text.clone();
        [
            Transient::Reset { run_id },
            Transient::Delta { run_id, text },
        ]
        .map(|event| LiveEvent::Transient {
            follows,
            event: Arc::new(event),
        })
    }
}

impl Listener {
    /// The next event; waits until there is one.
    pub async fn next(&mut self) -> LiveEvent {
        if let Some(earlier) = self.earlier.pop_front() {
            return earlier;
        }
        match self.receiver.recv().await {
            Ok(event) => event,
            Err(broadcast::error::RecvError::Lagged(_)) => LiveEvent::Missed,
            // The sender stays in the map as long as a listener is there.
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}
