//! Conversations: open, read, say something, listen. A message opens a run; the run is worked on by
//! [`super::jobs`], in this process if it has a place.

mod answers;

use std::{collections::VecDeque, sync::Arc};

use serde::Serialize;

pub(in crate::app) use self::answers::{Caught, catch};
use crate::app::{
    App,
    accounts::usage,
    runs::opening::{self, OpenedRun, RunRequest},
    servers::agents,
};
use crate::{
    domain::{
        audit::Fact,
        error::{Error, Result},
        event::{Event, Transient},
        ids::{AgentId, ConversationId, RunId, TenantId},
        message::{Message, Part, Role},
        pack::Pack,
        principal::Principal,
        prompt,
        run::{Conversation, Run, RunKind},
    },
    live::{self, Listener},
    store::{self, Tx, hints::Hint, messages::NewMessage},
};

/// Characters of one message.
pub const MAX_MESSAGE: usize = 32_768;
const PAGE: i64 = 200;

/// What became of a message: where it stands and the run that answers it.
#[derive(Debug, Serialize)]
pub struct Posted {
    pub message: Message,
    pub run: Run,
}

/// Opens a conversation; the pack's welcome, if it has one, is its first message.
pub async fn create(
    app: &App,
    principal: &Principal,
    agent: &str,
    title: Option<String>,
) -> Result<Conversation> {
    let pack = agents::pack(app, principal, agent).await?;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let title = title
        .map(|title| Conversation::title_from(&title))
        .unwrap_or_default();
    let conversation = open(&mut tx, principal, &pack, &title, None).await?;
    if let Some(text) = greeting(&pack, principal) {
        let greeting = NewMessage {
            run: None,
            run_ordinal: 0,
            role: Role::System,
            parts: &[Part::text(text)],
            for_model: false,
        };
        store::messages::append(&mut tx, principal.tenant, conversation.id, greeting).await?;
    }
    let conversation =
        store::conversations::get(&mut tx, &principal.user, conversation.id, false).await?;
    tx.commit().await?;
    Ok(conversation)
}

/// The row of a new conversation.
pub(in crate::app) async fn open(
    tx: &mut Tx,
    principal: &Principal,
    pack: &Pack,
    title: &str,
    external_key: Option<&str>,
) -> Result<Conversation> {
    store::conversations::insert(
        tx,
        principal.tenant,
        &principal.user,
        pack.id(),
        title,
        external_key,
    )
    .await
}

/// The pack's welcome in the user's language. `{userName}` is replaced once, literally.
fn greeting(pack: &Pack, principal: &Principal) -> Option<String> {
    let welcome = &pack.flows.welcome;
    if !welcome.enabled {
        return None;
    }
    let in_language = |language: &crate::domain::pack::Language| match welcome.template_key.as_str()
    {
        "greetingMessage" => language.greeting_message.clone(),
        key => language.strings.get(key).cloned(),
    };
    let text = in_language(pack.language(principal.locale.as_deref()))
        .or_else(|| in_language(pack.language(None)))?;
    Some(text.replace("{userName}", &principal.display_name()))
}

/// Which conversations to list.
#[derive(Clone, Copy, Default)]
pub struct Which<'a> {
    /// Only those with this agent.
    pub agent: Option<&'a str>,
    /// Also those that runs have started.
    pub children: bool,
    /// Only those before this one.
    pub before: Option<ConversationId>,
}

/// The principal's conversations, newest first.
pub async fn list(
    app: &App,
    principal: &Principal,
    which: Which<'_>,
    limit: i64,
) -> Result<Vec<Conversation>> {
    let agent = which
        .agent
        .map(AgentId::parse)
        .transpose()
        .map_err(|reason| Error::invalid("agent", reason))?;
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::conversations::list(
        &mut tx,
        &principal.user,
        agent.as_ref(),
        which.children,
        which.before,
        limit,
    )
    .await
}

pub async fn get(app: &App, principal: &Principal, id: ConversationId) -> Result<Conversation> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::conversations::get(&mut tx, &principal.user, id, false).await
}

/// Removes a conversation with everything in it, and the sessions that its runs have started, with everything in them.
/// Runs under way stop; what those sessions have asked consent for is taken back. A request of the conversation's own
/// stays: its user sees it in their list.
pub async fn delete(app: &App, principal: &Principal, id: ConversationId) -> Result<()> {
    let mut tries = 0;
    loop {
        match delete_once(app, principal, id).await {
            Err(error) if tries < 3 && store::deadlocked(&error) => tries += 1,
            done => return done,
        }
    }
}

async fn delete_once(app: &App, principal: &Principal, id: ConversationId) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let runs = async |tx: &mut Tx, sessions: &[ConversationId]| {
        let runs = store::trees::runs_of(tx, sessions).await?;
        Ok::<_, Error>(runs.into_iter().map(|(run, _)| run).collect::<Vec<RunId>>())
    };
    // Requests first: whoever decides about one locks it before its conversation.
    let below = store::trees::sessions_below(&mut tx, &principal.user, id).await?;
    let asking = runs(&mut tx, &below).await?;
    let mut withdrawn = store::approvals::withdraw(&mut tx, &asking, &principal.user).await?;
    let below = store::trees::lock_sessions_below(&mut tx, &principal.user, id).await?;
    // What was asked for between the two looks.
    let asking = runs(&mut tx, &below).await?;
    withdrawn.extend(store::approvals::withdraw(&mut tx, &asking, &principal.user).await?);
    let open = store::trees::runs_of(&mut tx, &[&below[..], &[id]].concat()).await?;
    let agent = store::conversations::delete(&mut tx, &principal.user, id).await?;
    let detail = id.to_string();
    let fact = Fact::new(principal.user.as_str(), "conversation.deleted").detail(&detail);
    store::audit::record(
        &mut tx,
        principal.tenant,
        &Fact {
            agent: Some(&agent),
            ..fact
        },
    )
    .await?;
    tx.commit().await?;
    for (run, _) in open.into_iter().filter(|(_, open)| *open) {
        app.running.cancel(run);
    }
    for approval in withdrawn {
        // The receiver lives as long as the process works; what is sent after that is found by another.
        let _ = app.approved.send((principal.tenant, approval));
    }
    for gone in below.into_iter().chain([id]) {
        app.live.look(principal.tenant, gone);
        let _ = app.hints.send(Hint::Conversation {
            tenant: principal.tenant,
            conversation: gone,
        });
    }
    Ok(())
}

/// Messages after number `after`, oldest first.
pub async fn messages(
    app: &App,
    principal: &Principal,
    id: ConversationId,
    after: i64,
    limit: i64,
) -> Result<Vec<Message>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::conversations::get(&mut tx, &principal.user, id, false).await?;
    store::messages::list(&mut tx, id, after, limit).await
}

/// Says something. A text that starts with `/` is a command and is answered without the model, unless it names a
/// prompt of a server (`/<server>:<prompt>`): what that comes to is said to the model. A text
/// that comes while a turn is under way waits for the next one, together with others that wait.
/// What answers a question that a run waits for is said in that run, which goes on with it.
/// With `field` it answers the prompt for that field and nothing else; `Conflict` when nobody asks for it now.
pub async fn post(
    app: &App,
    principal: &Principal,
    id: ConversationId,
    text: String,
    field: Option<&str>,
) -> Result<Posted> {
    let text = checked(&text)?;
    let conversation = get(app, principal, id).await?;
    let pack = agents::pack(app, principal, conversation.agent.as_str()).await?;
    let caught = catch(app, principal, &pack, id, &text, field).await?;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = store::conversations::get(&mut tx, &principal.user, id, true).await?;
    let said = say(
        app,
        &mut tx,
        principal,
        &conversation,
        &text,
        caught.as_ref(),
    )
    .await?;
    tx.commit().await?;
    Ok(said.publish(app, principal))
}

/// A text that can be a message.
pub(in crate::app) fn checked(text: &str) -> Result<String> {
    // Nobody types one, and many programs do not expect one.
    let text = text.replace('\0', "");
    if text.trim().is_empty() {
        return Err(Error::invalid("text", "is empty; say something"));
    }
    if text.chars().count() > MAX_MESSAGE {
        return Err(Error::invalid(
            "text",
            format!("is longer than {MAX_MESSAGE} characters; send less at once"),
        ));
    }
    Ok(text)
}

/// A message and its run, written but not yet committed.
pub(in crate::app) struct PendingPost {
    posted: Posted,
    unpublished: Unpublished,
}

enum Unpublished {
    Run(OpenedRun),
    /// An answer went to a run that is at work already.
    Events(Vec<Event>),
}

impl PendingPost {
    /// After the commit: tells the listeners and starts the run.
    pub(in crate::app) fn publish(self, app: &App, principal: &Principal) -> Posted {
        match self.unpublished {
            Unpublished::Run(opened) => opened.publish(app),
            Unpublished::Events(events) => {
                for event in events {
                    app.announce(principal.tenant, self.posted.message.conversation_id, event);
                }
            }
        }
        self.posted
    }
}

/// Writes a user's message and the run that answers it. The conversation is locked. Of an answer to a question
/// only what may be shown is written.
pub(in crate::app) async fn say(
    app: &App,
    tx: &mut Tx,
    principal: &Principal,
    conversation: &Conversation,
    text: &str,
    caught: Option<&Caught>,
) -> Result<PendingPost> {
    if let Some((answer, run)) = caught.and_then(Caught::live) {
        return answers::hand_over(tx, principal, conversation.id, answer, run).await;
    }
    let text = caught.map_or(text, Caught::shown);
    // A prompt opens a turn, with what it comes to instead of what was said.
    let names_prompt = caught.is_none() && prompt::command(text).is_some();
    let command = text.trim_start().starts_with('/') && !names_prompt;
    let kind = caught.map_or(
        if command {
            RunKind::Command
        } else {
            RunKind::Turn
        },
        Caught::kind,
    );
    if kind == RunKind::Turn {
        usage::admit(app, tx, principal).await?;
    }
    let request = RunRequest {
        id: RunId::new(),
        conversation,
        principal,
        kind,
        takes_place_of_parent: false,
        role: Role::User,
        parts: &[Part::text(text)],
        for_model: kind == RunKind::Turn && !names_prompt && caught.is_none(),
    };
    let opened = opening::open(app, tx, &request).await?;
    if let Some(caught) = caught {
        caught.deliver(tx, opened.id).await?;
    }
    if conversation.title.is_empty() && kind == RunKind::Turn {
        let title = Conversation::title_from(text);
        store::conversations::set_title(tx, conversation.id, &title).await?;
    }
    let run = store::runs::get(tx, &principal.user, opened.id).await?;
    Ok(PendingPost {
        posted: Posted {
            message: opened.message.clone(),
            run,
        },
        unpublished: Unpublished::Run(opened),
    })
}

/// What a listener of one conversation gets.
pub enum Heard {
    Durable(Arc<Event>),
    Transient(Arc<Transient>),
}

/// A listener's place: every durable event after `after` once and in order, and what is said meanwhile.
pub struct Listening {
    app: Arc<App>,
    tenant: TenantId,
    principal: Principal,
    conversation: ConversationId,
    listener: Listener,
    last: i64,
    ready: VecDeque<Event>,
    look: bool,
    /// The newest event that was known without being announced to this listener.
    known: i64,
    /// The event whose announcement is still to come although it was read: what is said before that led to
    /// it, and would be said twice.
    awaited: Option<i64>,
    /// The next read is for what happened on another replica, which is never announced here.
    elsewhere: bool,
}

/// Listens to a conversation from durable event `after` on; absent: from now on.
pub async fn listen(
    app: &Arc<App>,
    principal: &Principal,
    id: ConversationId,
    after: Option<i64>,
) -> Result<Listening> {
    // Listen first, look second: nothing falls in between.
    let listener = app.live.listen(principal.tenant, id);
    let conversation = get(app, principal, id).await?;
    let mut listening = Listening {
        app: app.clone(),
        tenant: principal.tenant,
        principal: principal.clone(),
        conversation: id,
        listener,
        last: after
            .unwrap_or(conversation.last_event)
            .clamp(0, conversation.last_event),
        ready: VecDeque::new(),
        look: false,
        known: conversation.last_event,
        awaited: None,
        elsewhere: false,
    };
    // Now rather than at the first `next`: a run that starts after this is heard as it speaks.
    listening.read().await?;
    Ok(listening)
}

impl Listening {
    /// The next piece of news; `None` when the process stops. `NotFound` once the conversation is gone.
    pub async fn next(&mut self) -> Result<Option<Heard>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.last = event.seq;
                return Ok(Some(Heard::Durable(Arc::new(event))));
            }
            if self.look {
                self.read().await?;
                continue;
            }
            let heard = tokio::select! {
                heard = self.listener.next() => heard,
                () = self.app.shutdown.cancelled() => return Ok(None),
            };
            if let live::Heard::Durable(event) = &heard {
                self.awaited = self.awaited.filter(|awaited| event.seq < *awaited);
            }
            match heard {
                live::Heard::Transient(_) if self.awaited.is_some() => {}
                live::Heard::Transient(event) => return Ok(Some(Heard::Transient(event))),
                live::Heard::Durable(event) if event.seq == self.last + 1 => {
                    self.last = event.seq;
                    return Ok(Some(Heard::Durable(event)));
                }
                live::Heard::Durable(event) if event.seq <= self.last => {}
                live::Heard::Durable(_) | live::Heard::Missed => self.look = true,
                live::Heard::Look => (self.look, self.elsewhere) = (true, true),
            }
        }
    }

    /// The number of the last durable event that was heard.
    pub fn last(&self) -> i64 {
        self.last
    }

    async fn read(&mut self) -> Result<()> {
        let mut tx = self.app.db.tenant(self.tenant).await?;
        store::conversations::get(&mut tx, &self.principal.user, self.conversation, false).await?;
        let events = store::messages::events(&mut tx, self.conversation, self.last, PAGE).await?;
        self.look = events.len() == usize::try_from(PAGE).unwrap_or(usize::MAX);
        if let Some(newest) = events
            .last()
            .map(|event| event.seq)
            .filter(|seq| *seq > self.known)
        {
            self.known = newest;
            self.awaited = Some(newest);
        }
        if std::mem::take(&mut self.elsewhere) {
            self.awaited = None;
        }
        self.ready.extend(events);
        Ok(())
    }
}

impl App {
    /// Tells everybody who listens, here and on the other replicas. After the commit.
    pub(crate) fn announce(&self, tenant: TenantId, conversation: ConversationId, event: Event) {
        self.live.durable(tenant, conversation, event);
        let _ = self.hints.send(Hint::Conversation {
            tenant,
            conversation,
        });
    }
}
