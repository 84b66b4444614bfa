//! Streams of the events of a conversation. Durable events arrive once and in order, even when the listener missed the
//! announcement of some: the rows are the truth, and an announcement only saves reading them. Transient events (deltas,
//! progress) come only from the process of the worker. A transient event names the durable event that it follows, so a
//! listener that has read later rows drops it.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::listing::close_old_prompts;
use crate::{
    app::App,
    live::{self, Listener},
};
use domain::{
    error::Result,
    event::{Event, EventKind, Transient},
    ids::{ConversationId, RunId},
    principal::Principal,
};
use store::Tx;

/// Events that are read at once.
const PAGE: i64 = 200;

/// An event of a conversation, as a listener gets it.
pub enum ConversationEvent {
    Durable(Arc<Event>),
    Transient(Arc<Transient>),
}

/// A stream of events: each durable event from a start on, once and in order, and the transient events meanwhile.
pub struct ConversationStream {
    app: Arc<App>,
    principal: Principal,
    conversation: ConversationId,
    listener: Listener,
    /// The last durable event that was handed out.
    last: i64,
    /// Events that were read and not handed out yet.
    ready: VecDeque<Event>,
    /// Rows must be read before the next announcement is used.
    is_stale: bool,
    /// For each run, the newest event of its worker that was read from rows.
    newest_of_run: HashMap<RunId, i64>,
}

/// Listens to the events of a conversation that come after the durable event `after`; absent: from now on.
pub async fn listen(
    app: &Arc<App>,
    principal: &Principal,
    id: ConversationId,
    after: Option<i64>,
) -> Result<ConversationStream> {
    // Listen before the first read, so that no event is missed in between.
    let mut stream = ConversationStream::new(app, principal, id, 0);
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = store::conversations::get(&mut tx, &principal.user, id, false).await?;
    let newest = conversation.last_event;
    stream.last = after.unwrap_or(newest).clamp(0, newest);
    if stream.last < newest {
        stream.read_rows(&mut tx).await?;
        let messages = stream
            .ready
            .iter_mut()
            .filter_map(|event| match &mut event.kind {
                EventKind::Message(message) => Some(message),
                EventKind::Run { .. } => None,
            });
        close_old_prompts(app, &mut tx, id, messages.collect()).await?;
    }
    Ok(stream)
}

impl ConversationStream {
    /// Listens to the events after `last`, which the caller knows to be the last committed event.
    pub(in crate::app) fn new(
        app: &Arc<App>,
        principal: &Principal,
        conversation: ConversationId,
        last: i64,
    ) -> Self {
        Self {
            listener: app.live.listen(principal.tenant, conversation),
            app: app.clone(),
            principal: principal.clone(),
            conversation,
            last,
            ready: VecDeque::new(),
            is_stale: false,
            newest_of_run: HashMap::new(),
        }
    }

    /// With `is_behind`, the stream begins with the events that are already rows.
    pub(in crate::app) fn with_rows(mut self, is_behind: bool) -> Self {
        self.is_stale = is_behind;
        self
    }

    /// The next event; `None` when the process stops. `NotFound` once the conversation was deleted.
    pub async fn next(&mut self) -> Result<Option<ConversationEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.last = event.seq;
                return Ok(Some(ConversationEvent::Durable(Arc::new(event))));
            }
            if self.is_stale {
                self.read_conversation().await?;
                continue;
            }
            let announced = tokio::select! {
                announced = self.listener.next() => announced,
                () = self.app.shutdown.cancelled() => return Ok(None),
            };
            match announced {
                live::LiveEvent::Transient { follows, event } => {
                    let newest = self.newest_of_run.get(&event.run());
                    if newest.is_none_or(|newest| follows >= *newest) {
                        return Ok(Some(ConversationEvent::Transient(event)));
                    }
                }
                live::LiveEvent::Durable(event) if event.seq == self.last + 1 => {
                    self.last = event.seq;
                    return Ok(Some(ConversationEvent::Durable(event)));
                }
                live::LiveEvent::Durable(event) if event.seq <= self.last => {}
                live::LiveEvent::Durable(_)
                | live::LiveEvent::Missed
                | live::LiveEvent::Refresh => {
                    self.is_stale = true;
                }
            }
        }
    }

    /// The number of the last durable event that was handed out.
    pub fn last(&self) -> i64 {
        self.last
    }

    async fn read_conversation(&mut self) -> Result<()> {
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        store::conversations::get(&mut tx, &self.principal.user, self.conversation, false).await?;
        self.read_rows(&mut tx).await
    }

    async fn read_rows(&mut self, tx: &mut Tx) -> Result<()> {
        let events = store::messages::list_events(tx, self.conversation, self.last, PAGE).await?;
        self.is_stale = events.len() == usize::try_from(PAGE).unwrap_or(usize::MAX);
        for event in &events {
            if let Some(run) = event.worker() {
                self.newest_of_run.insert(run, event.seq);
            }
        }
        self.ready.extend(events);
        Ok(())
    }
}
