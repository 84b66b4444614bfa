//! Streams of conversation events. Durable events arrive once and in order, even when a listener has missed
//! some: the rows are the truth, and announcements only save reading them. Transient events (deltas,
//! progress) come only from the process of the worker. Each names the durable event that it follows, so a
//! listener that has read later rows drops it.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use crate::{
    app::App,
    domain::{
        error::Result,
        event::{Event, Transient},
        ids::{ConversationId, RunId},
        principal::Principal,
    },
    live::{self, Listener},
    store::{self, Tx},
};

/// Events that are read at once.
const PAGE: i64 = 200;

/// What a listener of one conversation gets.
pub enum ConversationEvent {
    Durable(Arc<Event>),
    Transient(Arc<Transient>),
}

/// A listener's place: every durable event after `after` once and in order, and what is said meanwhile.
pub struct ConversationStream {
    app: Arc<App>,
    principal: Principal,
    conversation: ConversationId,
    listener: Listener,
    /// The last durable event that was handed out.
    last: i64,
    /// Events that were read and not handed out yet.
    ready: VecDeque<Event>,
    /// Rows are to be read before more is taken from the announcements.
    is_stale: bool,
    /// The newest event that each run's worker wrote, as far as it was learned from rows.
    read: HashMap<RunId, i64>,
}

/// Listens to a conversation from durable event `after` on; absent: from now on.
pub async fn listen(
    app: &Arc<App>,
    principal: &Principal,
    id: ConversationId,
    after: Option<i64>,
) -> Result<ConversationStream> {
    // Listen first, look second: nothing falls in between.
    let mut listening = ConversationStream::new(app, principal, id, 0);
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = store::conversations::get(&mut tx, &principal.user, id, false).await?;
    let newest = conversation.last_event;
    listening.last = after.unwrap_or(newest).clamp(0, newest);
    if listening.last < newest {
        listening.read_rows(&mut tx).await?;
    }
    Ok(listening)
}

impl ConversationStream {
    /// Listens from event `last` on, which the caller knows to be the last one that was committed.
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
            read: HashMap::new(),
        }
    }

    /// With `behind`, begins with the events that are rows already.
    pub(in crate::app) fn reading_rows(mut self, behind: bool) -> Self {
        self.is_stale = behind;
        self
    }

    /// The next piece of news; `None` when the process stops. `NotFound` once the conversation is gone.
    pub async fn next(&mut self) -> Result<Option<ConversationEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.last = event.seq;
                return Ok(Some(ConversationEvent::Durable(Arc::new(event))));
            }
            if self.is_stale {
                self.read().await?;
                continue;
            }
            let heard = tokio::select! {
                heard = self.listener.next() => heard,
                () = self.app.shutdown.cancelled() => return Ok(None),
            };
            match heard {
                live::LiveEvent::Transient { follows, event } => {
                    let read = self.read.get(&event.run());
                    if read.is_none_or(|read| follows >= *read) {
                        return Ok(Some(ConversationEvent::Transient(event)));
                    }
                }
                live::LiveEvent::Durable(event) if event.seq == self.last + 1 => {
                    self.last = event.seq;
                    return Ok(Some(ConversationEvent::Durable(event)));
                }
                live::LiveEvent::Durable(event) if event.seq <= self.last => {}
                live::LiveEvent::Durable(_) | live::LiveEvent::Missed | live::LiveEvent::Look => {
                    self.is_stale = true;
                }
            }
        }
    }

    /// The number of the last durable event that was heard.
    pub fn last(&self) -> i64 {
        self.last
    }

    async fn read(&mut self) -> Result<()> {
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        store::conversations::get(&mut tx, &self.principal.user, self.conversation, false).await?;
        self.read_rows(&mut tx).await
    }

    async fn read_rows(&mut self, tx: &mut Tx) -> Result<()> {
        let events = store::messages::events(tx, self.conversation, self.last, PAGE).await?;
        self.is_stale = events.len() == usize::try_from(PAGE).unwrap_or(usize::MAX);
        for event in &events {
            if let Some(run) = event.worker() {
                self.read.insert(run, event.seq);
            }
        }
        self.ready.extend(events);
        Ok(())
    }
}
