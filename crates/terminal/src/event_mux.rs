//! Merges two event streams, of the conversation and of the user, and keeps the set of active runs.

use std::{collections::HashSet, future::pending};

use super::{
    client::{Client, is_signed_out},
    event::ConversationEvent,
    event_stream::{Stream, StreamItem},
    notices::Notices,
};

pub enum Update {
    ConversationEvent(ConversationEvent),
    /// A line for the person.
    Notice(String),
    /// The number of requests that wait for the person's decision.
    Badge(usize),
    /// Some deltas were missed.
    Missed,
    /// The stream of the conversation has been broken for long. The client still tries to reconnect.
    Lost(anyhow::Error),
    /// The conversation's stream has ended for good.
    Gone(anyhow::Error),
    Nothing,
}

pub struct EventMux {
    conversation: Option<Stream>,
    user_events: Option<Stream>,
    notices: Notices,
    active_runs: HashSet<String>,
    ended: HashSet<String>,
}

impl EventMux {
    /// Opens the stream of the user. A conversation is added later.
    pub async fn open(client: &Client, me: String) -> anyhow::Result<Self> {
        // The chat works without this stream, which an older server lacks or a token may not open.
        let user_events = match client.open_user_events().await {
            Err(error) if is_signed_out(&error) => return Err(error),
            opened => opened.ok(),
        };
        Ok(Self {
            conversation: None,
            user_events,
            notices: Notices::new(me),
            active_runs: HashSet::new(),
            ended: HashSet::new(),
        })
    }

    pub fn switch_to(&mut self, conversation: Stream) {
        self.conversation = Some(conversation);
        self.active_runs.clear();
        self.ended.clear();
    }

    /// The runs of the conversation that have not ended, as far as is known.
    pub fn active_runs(&self) -> &HashSet<String> {
        &self.active_runs
    }

    /// Waits for the next update. The future may be dropped at any time. An error means that the user is
    /// signed out.
    pub async fn receive(&mut self) -> anyhow::Result<Update> {
        tokio::select! {
            item = next(&mut self.conversation) => match item {
                // How an approved call ended is told by the user's events, which miss nothing while the line is down.
                Ok(StreamItem::Event { name, data }) if name == "notice" => {
                    let waits = data["code"] == "approval_waits";
                    let line = waits.then(|| self.notices.receive_waiting(&data)).flatten();
                    Ok(line.map_or(Update::Nothing, Update::Notice))
                }
                Ok(StreamItem::Event { name, data }) => {
                    let event = ConversationEvent::parse(&name, &data);
                    self.track_runs(&event);
                    Ok(Update::ConversationEvent(event))
                }
                Ok(StreamItem::Gap) => Ok(Update::Missed),
                Ok(StreamItem::Lost(error)) => Ok(Update::Lost(error)),
                Err(error) if is_signed_out(&error) => Err(error),
                Err(error) => {
                    self.conversation = None;
                    self.active_runs.clear();
                    Ok(Update::Gone(error.context("this conversation is over; /new begins another")))
                }
            },
            item = next(&mut self.user_events) => match item {
                Ok(StreamItem::Event { name, data }) => Ok(match name.as_str() {
                    "badge" => {
                        let waiting = data["pending_approvals"].as_u64().unwrap_or_default();
                        Update::Badge(usize::try_from(waiting).unwrap_or(usize::MAX))
                    }
                    "approval" => self.notices.receive(&data).map_or(Update::Nothing, Update::Notice),
                    _ => Update::Nothing,
                }),
                Ok(StreamItem::Gap | StreamItem::Lost(_)) => Ok(Update::Nothing),
                Err(error) if is_signed_out(&error) => Err(error),
                Err(_) => {
                    self.user_events = None;
                    Ok(Update::Nothing)
                }
            },
        }
    }

    fn track_runs(&mut self, event: &ConversationEvent) {
        match event {
            ConversationEvent::Begun { run } | ConversationEvent::Message { run, .. }
                if !run.is_empty() && !self.ended.contains(run) =>
            {
                self.active_runs.insert(run.clone());
            }
            ConversationEvent::Ended { run, .. } => {
                self.active_runs.remove(run);
                self.ended.insert(run.clone());
            }
            _ => {}
        }
    }
}

async fn next(stream: &mut Option<Stream>) -> anyhow::Result<StreamItem> {
    match stream {
        Some(stream) => stream.next().await,
        None => pending().await,
    }
}
