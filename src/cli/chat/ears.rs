//! Both streams at once: the conversation, and what concerns the user outside of it. Knows which runs are under
//! way. What is heard is told in words that a person is to read, or as news of the conversation.

use std::{collections::HashSet, future::pending};

use super::{
    client::{Client, signed_out},
    listening::{Heard, Stream},
    news::News,
    notices::Notices,
};

pub enum Told {
    News(News),
    /// A line for the person.
    Notice(String),
    /// So many requests wait for the person's decision.
    Badge(usize),
    /// Some of what was said in passing was not heard.
    Missed,
    /// The conversation has not been heard for long; it is still being tried.
    Lost(anyhow::Error),
    /// The conversation will not be heard any more.
    Gone(anyhow::Error),
    Nothing,
}

pub struct Ears {
    conversation: Option<Stream>,
    news: Option<Stream>,
    notices: Notices,
    under_way: HashSet<String>,
    ended: HashSet<String>,
}

impl Ears {
    /// Listens to what concerns the user, and later to a conversation.
    pub async fn open(client: &Client, me: String) -> anyhow::Result<(Self, Option<String>)> {
        // A server or a token may have no news, or no more streams: that is no reason not to talk.
        let news = match client.listen_to_news().await {
            Err(error) if signed_out(&error) => return Err(error),
            opened => opened.ok(),
        };
        let mut notices = Notices::new(me);
        // Listen first, look second: what comes in between is known twice and told once.
        let waiting = if news.is_some() {
            client.waiting().await.ok()
        } else {
            None
        };
        let before = waiting.and_then(|(waiting, more)| notices.begin(&waiting, more));
        let ears = Self {
            conversation: None,
            news,
            notices,
            under_way: HashSet::new(),
            ended: HashSet::new(),
        };
        Ok((ears, before))
    }

    pub fn turn_to(&mut self, conversation: Stream) {
        self.conversation = Some(conversation);
        self.under_way.clear();
        self.ended.clear();
    }

    /// The runs of the conversation that have not ended, as far as is known.
    pub fn under_way(&self) -> &HashSet<String> {
        &self.under_way
    }

    /// What comes next; may be dropped at any time. An error: the user is signed out.
    pub async fn hear(&mut self) -> anyhow::Result<Told> {
        tokio::select! {
            heard = next(&mut self.conversation) => match heard {
                Ok(Heard::Event { name, data }) => {
                    let news = News::of(&name, &data);
                    self.follow(&news);
                    Ok(Told::News(news))
                }
                Ok(Heard::Gap) => Ok(Told::Missed),
                Ok(Heard::Lost(error)) => Ok(Told::Lost(error)),
                Err(error) if signed_out(&error) => Err(error),
                Err(error) => {
                    self.conversation = None;
                    self.under_way.clear();
                    Ok(Told::Gone(error.context("this conversation is over; /new begins another")))
                }
            },
            heard = next(&mut self.news) => match heard {
                Ok(Heard::Event { name, data }) => Ok(match name.as_str() {
                    "badge" => {
                        let waiting = data["pending_approvals"].as_u64().unwrap_or_default();
                        Told::Badge(usize::try_from(waiting).unwrap_or(usize::MAX))
                    }
                    "approval" => self.notices.hear(&data).map_or(Told::Nothing, Told::Notice),
                    _ => Told::Nothing,
                }),
                Ok(Heard::Gap | Heard::Lost(_)) => Ok(Told::Nothing),
                Err(error) if signed_out(&error) => Err(error),
                Err(_) => {
                    self.news = None;
                    Ok(Told::Nothing)
                }
            },
        }
    }

    fn follow(&mut self, news: &News) {
        match news {
            News::Begun { run } | News::Message { run, .. }
                if !run.is_empty() && !self.ended.contains(run) =>
            {
                self.under_way.insert(run.clone());
            }
            News::Ended { run } => {
                self.under_way.remove(run);
                self.ended.insert(run.clone());
            }
            _ => {}
        }
    }
}

async fn next(stream: &mut Option<Stream>) -> anyhow::Result<Heard> {
    match stream {
        Some(stream) => stream.next().await,
        None => pending().await,
    }
}
