//! One run: what the agent does about a message. Each step is durable before the next begins, so that a
//! run can be stopped between any two of them and taken up by another replica.
//!
//! The crash rule: the assistant's calls are a row before the first is sent. Whoever takes the run up
//! finds calls without a result; they may have been sent, so they are marked `OutcomeUnknown` and never
//! repeated.

mod calls;
mod history;
mod prompt;

use std::sync::Arc;

use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use super::{App, agents, commands, credentials, tools};
use crate::{
    domain::{
        error::{Error, Result},
        event::Transient,
        message::{Message, Part, Role, ToolCall},
        pack::{Pack, Provider},
        run::{ClaimedRun, RunKind, RunStatus, Usage},
        texts::{self, Key},
    },
    llm::{Delta, Reply, StepRequest, Stop},
    store::{self, messages::NewMessage},
};

/// A run that has broken off more often than this is given up.
const MOST_ATTEMPTS: i32 = 5;

/// A run at work in this process.
pub struct Work {
    pub app: Arc<App>,
    pub run: ClaimedRun,
    /// The user asked to stop.
    pub cancel: CancellationToken,
}

/// How a run ended, for its row and its user.
pub struct Ending {
    pub status: RunStatus,
    pub error: Option<String>,
}

impl Ending {
    fn succeeded() -> Self {
        Self { status: RunStatus::Succeeded, error: None }
    }

    fn failed(error: impl Into<String>) -> Self {
        Self { status: RunStatus::Failed, error: Some(error.into()) }
    }

    fn cancelled() -> Self {
        Self { status: RunStatus::Cancelled, error: None }
    }
}

impl Work {
    /// Works the run to its end. `Err` when the run could not be ended here: its lease was lost, or the
    /// database is away; then another replica takes it up.
    pub async fn finish(self) -> Result<()> {
        let ending = match self.proceed().await {
            Ok(ending) => ending,
            Err(Error::Conflict(reason)) => return Err(Error::Conflict(reason)),
            Err(Error::Internal(cause)) => return Err(Error::Internal(cause)),
            Err(error) => Ending::failed(error.to_string()),
        };
        if let Some(reason) = &ending.error {
            let notice = commands::notice("run_failed", reason.clone());
            self.append(Role::System, &[notice], false).await?;
        }
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        store::runs::finish(&mut tx, &self.run, ending.status, ending.error.as_deref()).await?;
        let event = store::messages::append_run_event(
            &mut tx,
            self.run.tenant,
            self.run.conversation,
            self.run.id,
            ending.status,
            ending.error.as_deref(),
        )
        .await?;
        tx.commit().await?;
        metrics::counter!("chatelaine_runs_total", "status" => ending.status.as_str()).increment(1);
        self.app.announce(self.run.tenant, self.run.conversation, event);
        Ok(())
    }

    async fn proceed(&self) -> Result<Ending> {
        let pack = agents::pack(&self.app, &self.run.principal, self.run.agent.as_str()).await?;
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        let written = store::messages::of_run(&mut tx, &self.run).await?;
        drop(tx);
        if self.run.attempt > MOST_ATTEMPTS {
            return Ok(Ending::failed("the service broke off several times while working on this; ask again"));
        }
        if self.run.attempt > 1 {
            self.transient(Transient::Reset { run_id: self.run.id });
            self.close_open_calls(&written).await?;
        }
        match self.run.kind {
            RunKind::Command => self.command(&pack, &written).await,
            RunKind::Turn if pack.llm.provider == Provider::None => self.without_model().await,
            RunKind::Turn => self.converse(&pack, &written).await,
        }
    }

    /// A slash command. One that was interrupted after its call is not begun again.
    async fn command(&self, pack: &Arc<Pack>, written: &[Message]) -> Result<Ending> {
        if written.iter().any(|message| message.role != Role::User) {
            return Ok(Ending::succeeded());
        }
        let line = written.iter().map(Message::plain).next().unwrap_or_default();
        match commands::answer(&self.app, &self.run, &line).await? {
            commands::Answer::Parts(parts) => {
                self.append(Role::System, &parts, false).await?;
            }
            commands::Answer::Call(call) => {
                let toolbox = tools::toolbox(&self.app, &self.run.principal, pack).await?;
                self.append(Role::Assistant, &[Part::ToolCall(call.clone())], false).await?;
                // For frontends that show text and know nothing of tool results.
                for result in self.make_calls(&toolbox, vec![(call, None)], false).await? {
                    self.append(Role::System, &[Part::text(result.text)], false).await?;
                }
                self.tell_of_credentials(pack).await?;
            }
        }
        Ok(if self.cancel.is_cancelled() { Ending::cancelled() } else { Ending::succeeded() })
    }

    async fn without_model(&self) -> Result<Ending> {
        let text = "This agent has no model. Commands work: type /help.";
        self.append(Role::System, &[commands::notice("no_model", text)], false).await?;
        Ok(Ending::succeeded())
    }

    /// Model and tools in turn, until the model has nothing more to call.
    async fn converse(&self, pack: &Arc<Pack>, written: &[Message]) -> Result<Ending> {
        let done = written.iter().filter(|message| message.role == Role::Assistant).count();
        let answered = written.iter().rev().find(|message| matches!(message.role, Role::Assistant | Role::Tool));
        if answered.is_some_and(|message| message.role == Role::Assistant && calls::of(message).is_empty()) {
            return Ok(Ending::succeeded());
        }
        self.tell_of_credentials(pack).await?;
        for _ in done..usize::try_from(pack.llm.max_steps).unwrap_or(usize::MAX) {
            let toolbox = tools::toolbox(&self.app, &self.run.principal, pack).await?;
            let reply = match self.step(pack, &toolbox).await? {
                Step::Replied(reply) => reply,
                Step::Ended(ending) => return Ok(ending),
            };
            let calls = calls::resolve(&reply.calls, &toolbox);
            self.append_reply(&reply, &calls).await?;
            if let Some(ending) = ending_of(&reply) {
                return Ok(ending);
            }
            self.make_calls(&toolbox, calls, true).await?;
            self.tell_of_credentials(pack).await?;
            if self.cancel.is_cancelled() {
                return Ok(Ending::cancelled());
            }
        }
        let steps = pack.llm.max_steps;
        Ok(Ending::failed(format!(
            "the agent stopped after {steps} steps without an answer; ask again, or for less at once"
        )))
    }

    /// Tells the user, once, that a server does not accept their credential any more.
    async fn tell_of_credentials(&self, pack: &Pack) -> Result<()> {
        for server in credentials::untold(&self.app, &self.run.principal, pack).await? {
            let text = texts::of(pack, &self.run.principal).say(Key::Rejected, &[("server", &server)]);
            self.append(Role::System, &[commands::notice("credential_rejected", text)], false).await?;
        }
        Ok(())
    }

    /// One step of the model, streamed to whoever listens.
    async fn step(&self, pack: &Arc<Pack>, toolbox: &Arc<tools::Toolbox>) -> Result<Step> {
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        let messages = store::messages::for_model(&mut tx, &self.run, history::enough(pack.memory.window)).await?;
        drop(tx);
        let request = StepRequest {
            system: prompt::system(pack, &self.run.principal, toolbox),
            history: history::turns(&messages, pack.memory.window, self.run.id),
            tools: prompt::definitions(toolbox),
        };
        let mut stream = std::pin::pin!(self.app.models.step(&pack.llm, request));
        let mut shown = String::new();
        loop {
            let next = tokio::select! {
                next = stream.next() => next,
                () = self.cancel.cancelled() => {
                    self.keep(shown).await?;
                    return Ok(Step::Ended(Ending::cancelled()));
                }
                // What was shown of this step is shown anew by whoever takes the run up.
                () = self.app.shutdown.cancelled() => {
                    return Err(Error::Conflict("the process is stopping".to_owned()));
                }
            };
            match next {
                Some(Ok(Delta::Text(text))) => {
                    shown.push_str(&text);
                    self.transient(Transient::Delta { run_id: self.run.id, text });
                }
                Some(Ok(Delta::Done(reply))) => return Ok(Step::Replied(reply)),
                Some(Err(error)) => {
                    self.keep(shown).await?;
                    return Ok(Step::Ended(Ending::failed(error.to_string())));
                }
                None => return Ok(Step::Ended(Ending::failed("the model's answer broke off; try again"))),
            }
        }
    }

    /// Keeps a partial answer that was shown already.
    async fn keep(&self, shown: String) -> Result<()> {
        if shown.trim().is_empty() {
            return Ok(());
        }
        self.append(Role::Assistant, &[Part::text(shown)], true).await?;
        Ok(())
    }

    /// The reply as a row, with its usage, in one transaction.
    async fn append_reply(&self, reply: &Reply, calls: &[(ToolCall, Option<String>)]) -> Result<()> {
        let mut parts = Vec::new();
        if !reply.text.is_empty() {
            parts.push(Part::text(reply.text.clone()));
        }
        parts.extend(calls.iter().map(|(call, _)| Part::ToolCall(call.clone())));
        self.append_with(Role::Assistant, &parts, true, Some(reply.usage)).await
    }

    async fn append(&self, role: Role, parts: &[Part], for_model: bool) -> Result<()> {
        self.append_with(role, parts, for_model, None).await
    }

    /// Adds a message of this run, if the run is still ours, and tells the listeners.
    async fn append_with(&self, role: Role, parts: &[Part], for_model: bool, step: Option<Usage>) -> Result<()> {
        let run = &self.run;
        let mut tx = self.app.db.tenant(run.tenant).await?;
        match step {
            Some(usage) => store::runs::add_step(&mut tx, run, usage).await?,
            None => store::runs::assert_held(&mut tx, run).await?,
        }
        let message = NewMessage { run: Some(run.id), run_ordinal: run.ordinal, role, parts, for_model };
        let (_, event) = store::messages::append(&mut tx, run.tenant, run.conversation, message).await?;
        tx.commit().await?;
        self.app.announce(run.tenant, run.conversation, event);
        Ok(())
    }

    fn transient(&self, event: Transient) {
        self.app.live.transient(self.run.tenant, self.run.conversation, event);
    }
}

/// What one model step came to.
enum Step {
    Replied(Reply),
    Ended(Ending),
}

/// Whether the run ends with this reply.
fn ending_of(reply: &Reply) -> Option<Ending> {
    match (&reply.stop, reply.calls.is_empty()) {
        (Stop::ContentFilter, _) => Some(Ending::failed("the model's provider withheld the answer; ask differently")),
        (Stop::Length, true) => {
            Some(Ending::failed("the answer was cut at the model's length limit; ask for less, or raise llm.maxTokens"))
        }
        (_, true) if reply.text.trim().is_empty() => Some(Ending::failed("the model gave an empty answer; ask again")),
        (_, true) => Some(Ending::succeeded()),
        (_, false) => None,
    }
}
