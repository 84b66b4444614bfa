//! `/connect`: configuring a personal server in a conversation. List → pick → a question for each field →
//! test → result; `/cancel` at every step.
//!
//! A secret answer is taken out before anything is stored ([`catch`]): the message says `••••`, the value
//! travels sealed to the run that takes it in ([`resume`]). A client that keeps what is typed (any OpenAI client)
//! gets a one-time link to a page of ours instead ([`page`]), and typing is refused. Whoever opened the page
//! proves to be the same user by naming the code it shows in the conversation.

mod answers;
pub mod page;

use std::{sync::Arc, time::Duration};

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::app::{
    App,
    platform::keys::contexts::{self, OfFlow},
    servers::{
        agents,
        connections::{ConnectionKind, ConnectionView, State},
        credentials,
    },
};
use crate::{
    domain::{
        command,
        error::{Error, Result},
        flow::{Flow, Step},
        ids::{AgentId, ConversationId, RunId, ServerId},
        message::{Choice, Part, Prompt},
        pack::Pack,
        personal::Values,
        principal::Principal,
        run::ClaimedRun,
        scrub::MASK,
        secret::Secret,
        server::{AccessMode, FieldKind, ServerSpec, UserField},
        skill,
        texts::{self, Key, Texts},
    },
    store::{self, Tx},
    vault::Context,
};

/// How long somebody may think about one step, and how long a link is good.
const LIFE: Duration = Duration::from_secs(600);
/// For so long after its end a question may still be answered by mistake.
const LATE: Duration = Duration::from_secs(3600);
/// How often what was left lying is deleted.
pub const FORGET: Duration = Duration::from_secs(300);
/// Wrong codes before a flow ends.
const TRIES: i32 = 5;

/// A text that is an answer to a flow.
pub struct Caught {
    flow: Flow,
    /// What is kept of it in the conversation.
    pub shown: String,
    answer: Vec<u8>,
}

impl Caught {
    /// Hands the answer to its run, in the transaction that stores the message.
    pub async fn deliver(&self, tx: &mut Tx, run: RunId) -> Result<()> {
        if store::flows::answer(tx, &self.flow, run, &self.answer).await? {
            return Ok(());
        }
        Err(Error::Conflict(
            "the question was answered or cancelled meanwhile; look at the conversation".to_owned(),
        ))
    }
}

/// Deletes the flows that ended an hour ago.
pub async fn forget_old(app: &Arc<App>) -> Result<()> {
    let mut tx = app.db.system().await?;
    let tenants = store::flows::tenants_with_old(&mut tx, LATE).await?;
    drop(tx);
    for tenant in tenants {
        let mut tx = app.db.tenant(tenant).await?;
        store::flows::forget_old(&mut tx, LATE).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// Whether the principal is configuring a server of an agent; in one conversation, where it is said which.
pub async fn is_open(
    app: &App,
    principal: &Principal,
    agent: &AgentId,
    conversation: Option<ConversationId>,
) -> Result<bool> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::flows::is_open(&mut tx, &principal.user, agent, conversation).await
}

/// Whether a text is an answer to a flow of its conversation, or to the prompt for one `field`. Asked before anything of it is stored.
pub async fn catch(
    app: &App,
    principal: &Principal,
    pack: &Pack,
    conversation: ConversationId,
    text: &str,
    field: Option<&str>,
) -> Result<Option<Caught>> {
    let flow = if has_personal(pack) {
        let mut tx = app.db.tenant(principal.tenant).await?;
        store::flows::get(&mut tx, conversation)
            .await?
            .filter(|flow| flow.user == principal.user)
    } else {
        None
    };
    let text = text.trim();
    if let Some(field) = field {
        let asked =
            flow.filter(|flow| flow.expires_at > app.clock.now() && asks_for(pack, flow, field));
        let Some(flow) = asked else {
            return Err(Error::Conflict(format!(
                "nobody asks for {field:?} here at the moment; look at the conversation's last messages"
            )));
        };
        return caught(app, principal, flow, text).await.map(Some);
    }
    let Some(flow) = flow else { return Ok(None) };
    // Commands keep their meaning in the middle of a flow; anything else is its answer.
    if command::is_one(text) || skill::asked(pack, text).is_some() {
        return Ok(None);
    }
    let over = flow.expires_at <= app.clock.now();
    match flow.step {
        // Too late, and it may be a secret all the same: neither kept nor shown to a model.
        _ if over && flow.secret && app.clock.now() - flow.expires_at < LATE => Ok(Some(Caught {
            flow,
            shown: MASK.to_owned(),
            answer: Vec::new(),
        })),
        _ if over => Ok(None),
        // Somebody who says something else than a server has left the list alone.
        Step::Pick if answers::picked(pack, text).is_none() => Ok(None),
        _ => caught(app, principal, flow, text).await.map(Some),
    }
}

/// An answer on its way: a code is judged here, anything else is sealed.
async fn caught(app: &App, principal: &Principal, flow: Flow, text: &str) -> Result<Caught> {
    let shown = if flow.secret {
        MASK.to_owned()
    } else {
        text.to_owned()
    };
    let answer = match flow.step {
        Step::Page | Step::Confirm => vec![u8::from(is_code(&flow, text))],
        Step::Pick | Step::Field(_) => {
            app.keys
                .seal(
                    principal.tenant,
                    &context(principal, &flow, OfFlow::Answer),
                    &Secret::new(text),
                )
                .await?
        }
    };
    Ok(Caught {
        flow,
        shown,
        answer,
    })
}

/// Whether the flow waits for this field.
fn asks_for(pack: &Pack, flow: &Flow, field: &str) -> bool {
    let Step::Field(at) = flow.step else {
        return false;
    };
    let spec = flow
        .server
        .as_deref()
        .and_then(|server| pack.server(server));
    spec.and_then(|spec| spec.user_config.get(at))
        .is_some_and(|asked| asked.name == field)
}

/// Takes in the answer that was handed to this run; `None` when none was.
pub async fn resume(app: &Arc<App>, run: &ClaimedRun) -> Result<Option<Vec<Part>>> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    if !has_personal(&pack) {
        return Ok(None);
    }
    let mut tx = app.db.tenant(run.tenant).await?;
    let flow = store::flows::get(&mut tx, run.conversation).await?;
    drop(tx);
    let Some(flow) = flow.filter(|flow| flow.answer_run == Some(run.id)) else {
        return Ok(None);
    };
    let scene = Scene {
        app,
        principal: &run.principal,
        pack: &pack,
        conversation: run.conversation,
    };
    scene.take_in(flow).await.map(Some)
}

/// `/connect` and `/connect SERVER`.
pub async fn begin(app: &Arc<App>, run: &ClaimedRun, server: &str) -> Result<Vec<Part>> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let scene = Scene {
        app,
        principal: &run.principal,
        pack: &pack,
        conversation: run.conversation,
    };
    if !has_personal(&pack) {
        return Ok(vec![scene.say("no_servers", Key::NoServers, &[])]);
    }
    if !run.principal.authenticated {
        return Ok(vec![scene.say("sign_in", Key::Guest, &[])]);
    }
    if server.is_empty() {
        let list = scene.list().await?;
        scene.start(Step::Pick, None).await?;
        return Ok(vec![list]);
    }
    match answers::picked(&pack, server) {
        Some(spec) => scene.ask_for(spec).await,
        None => scene.unknown(server).await,
    }
}

/// `/disconnect SERVER`.
pub async fn disconnect(app: &Arc<App>, run: &ClaimedRun, server: &str) -> Result<Vec<Part>> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let scene = Scene {
        app,
        principal: &run.principal,
        pack: &pack,
        conversation: run.conversation,
    };
    let Some(spec) = answers::picked(&pack, server) else {
        return scene.unknown(server).await;
    };
    let removed =
        credentials::remove(app, &run.principal, pack.id().as_str(), spec.id.as_str()).await?;
    let key = if removed {
        Key::Removed
    } else {
        Key::NothingToRemove
    };
    Ok(vec![scene.say(
        "connection_removed",
        key,
        &[("server", spec.id.as_str())],
    )])
}

/// `/cancel`.
pub async fn cancel(app: &Arc<App>, run: &ClaimedRun) -> Result<Vec<Part>> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let scene = Scene {
        app,
        principal: &run.principal,
        pack: &pack,
        conversation: run.conversation,
    };
    let ended = scene.end().await?;
    let key = if ended {
        Key::Cancelled
    } else {
        Key::NothingToCancel
    };
    Ok(vec![scene.say("cancelled", key, &[])])
}

/// An answer to a question that was taken back before it was read.
pub async fn late(app: &Arc<App>, run: &ClaimedRun) -> Result<Vec<Part>> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let scene = Scene {
        app,
        principal: &run.principal,
        pack: &pack,
        conversation: run.conversation,
    };
    Ok(vec![scene.say("flow_expired", Key::Expired, &[])])
}

fn has_personal(pack: &Pack) -> bool {
    pack.servers
        .iter()
        .any(|server| server.access_mode == AccessMode::UserControlled)
}

fn context(principal: &Principal, flow: &Flow, which: OfFlow) -> Context {
    contexts::of_flow(
        principal.tenant,
        &principal.user,
        flow.agent.as_str(),
        flow.id,
        which,
    )
}

fn hash(text: &str) -> Vec<u8> {
    Sha256::digest(text).to_vec()
}

/// Six digits, however they are set apart.
fn is_code(flow: &Flow, text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    flow.step == Step::Confirm
        && digits.len() == 6
        && flow.code_hash.as_deref() == Some(&*hash(&digits))
}

/// Somebody in a conversation with an agent.
struct Scene<'a> {
    app: &'a Arc<App>,
    principal: &'a Principal,
    pack: &'a Pack,
    conversation: ConversationId,
}

impl Scene<'_> {
    fn texts(&self) -> Texts<'_> {
        texts::of(self.pack, self.principal)
    }

    fn say(&self, code: &str, key: Key, values: &[(&str, &str)]) -> Part {
        Part::Notice {
            code: code.to_owned(),
            text: self.texts().say(key, values),
        }
    }

    /// The personal servers with how each is.
    async fn list(&self) -> Result<Part> {
        let views = credentials::views(self.app, self.principal, self.pack).await?;
        let choice = |view: ConnectionView| {
            let (mark, key) = match view.state {
                State::NotConfigured => ("⚠️", Key::NotConfigured),
                State::NeedsAttention { .. } => ("⚠️", Key::NeedsAttention),
                _ => ("✅", Key::Configured),
            };
            Choice {
                label: format!("{mark} {} – {}", view.server, self.texts().say(key, &[])),
                value: view.server,
            }
        };
        let choices = views
            .into_iter()
            .filter(|view| view.kind == ConnectionKind::Personal)
            .map(choice)
            .collect();
        Ok(Part::Choices {
            text: self.texts().say(Key::List, &[]),
            choices,
        })
    }

    /// A name that is none of the personal servers.
    async fn unknown(&self, server: &str) -> Result<Vec<Part>> {
        let shared = self
            .pack
            .servers
            .iter()
            .any(|spec| spec.id.as_str().eq_ignore_ascii_case(server.trim()));
        if shared {
            return Ok(vec![self.say(
                "shared_server",
                Key::SharedServer,
                &[("server", server.trim())],
            )]);
        }
        let list = self.list().await?;
        self.start(Step::Pick, None).await?;
        Ok(vec![
            self.say("unknown_server", Key::UnknownServer, &[("list", "")]),
            list,
        ])
    }

    async fn start(&self, step: Step, server: Option<&ServerId>) -> Result<()> {
        self.start_with(step, server, false, None).await
    }

    async fn start_with(
        &self,
        step: Step,
        server: Option<&ServerId>,
        secret: bool,
        link: Option<&str>,
    ) -> Result<()> {
        let flow = Flow {
            id: Uuid::now_v7(),
            conversation: self.conversation,
            user: self.principal.user.clone(),
            locale: self.principal.locale.clone(),
            agent: self.pack.id().clone(),
            step,
            server: server.map(ToString::to_string),
            secret,
            entered: None,
            answer: None,
            answer_run: None,
            code_hash: None,
            tries: 0,
            expires_at: self.app.clock.now() + LIFE,
        };
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        let link = link.map(hash);
        store::flows::begin(&mut tx, self.principal.tenant, &flow, link.as_deref(), LIFE).await?;
        tx.commit().await
    }

    async fn end(&self) -> Result<bool> {
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        let ended = store::flows::end(&mut tx, self.conversation).await?;
        tx.commit().await?;
        Ok(ended)
    }

    /// The first question for a server: its first field, or the link to the page.
    async fn ask_for(&self, spec: &ServerSpec) -> Result<Vec<Part>> {
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        let of_client = store::flows::is_of_client(&mut tx, self.conversation).await?;
        drop(tx);
        if of_client {
            let token = page::token();
            self.start_with(Step::Page, Some(&spec.id), true, Some(&token))
                .await?;
            let prompt = Prompt {
                text: self
                    .texts()
                    .say(Key::OpenLink, &[("server", spec.id.as_str())]),
                field: String::new(),
                kind: FieldKind::Secret,
                secret: true,
                url: Some(page::address(self.app, &token)),
                options: Vec::new(),
                asking: None,
            };
            return Ok(vec![Part::Prompt(prompt)]);
        }
        let first = &spec.user_config[0];
        self.start_with(Step::Field(0), Some(&spec.id), is_secret(first), None)
            .await?;
        Ok(vec![self.prompt(spec, first)])
    }

    /// The question for one field.
    fn prompt(&self, spec: &ServerSpec, field: &UserField) -> Part {
        let locale = self.principal.locale.as_deref();
        let label = self.pack.text(&field.label, locale).unwrap_or(&field.name);
        let mut text = self.texts().say(
            Key::Prompt,
            &[("server", spec.id.as_str()), ("label", label)],
        );
        let options: Vec<Choice> = answers::options(self.pack, locale, field);
        if !options.is_empty() {
            let labels: Vec<_> = options.iter().map(|option| option.label.as_str()).collect();
            text = format!(
                "{text}\n{}",
                self.texts()
                    .say(Key::Options, &[("options", &labels.join(", "))])
            );
        }
        if !field.required {
            text = format!("{text} {}", self.texts().say(Key::Optional, &[]));
        }
        if is_secret(field) {
            text = format!("{text}\n{}", self.texts().say(Key::SecretHint, &[]));
        }
        let (kind, secret) = (field.kind, is_secret(field));
        Part::Prompt(Prompt {
            text,
            field: field.name.clone(),
            kind,
            secret,
            url: None,
            options,
            asking: None,
        })
    }

    /// Tests what was entered and says how it went. The flow is over.
    async fn finish(&self, spec: &ServerSpec, values: &Values) -> Result<Vec<Part>> {
        let held = credentials::holdings(self.app, self.principal, self.pack.id())
            .await?
            .of(&spec.id)
            .is_some();
        let spec = Arc::new(spec.clone());
        let tested =
            credentials::put_checked(self.app, self.principal, self.pack, &spec, values).await;
        self.end().await?;
        let server = ("server", spec.id.as_str());
        Ok(vec![match tested?.reason {
            None => self.say("connection_saved", Key::Saved, &[server]),
            Some(trouble) => {
                let reason = self.texts().say(answers::words_for(trouble), &[]);
                let key = if held { Key::KeptOld } else { Key::Failed };
                self.say(
                    "connection_failed",
                    key,
                    &[server, ("code", trouble.code()), ("reason", &reason)],
                )
            }
        }])
    }
}

fn is_secret(field: &UserField) -> bool {
    field.kind == FieldKind::Secret
}
