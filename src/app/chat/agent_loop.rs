//! One run: what the agent does about a message. Each step is durable before the next begins, so that a
//! run can be stopped between any two of them and taken up by another replica.
//!
//! The crash rule: the assistant's calls are a row before the first is sent. Whoever takes the run up
//! finds calls without a result; they may have been sent, so they are marked `OutcomeUnknown` and never
//! repeated.

mod calls;
mod elicited;
mod history;
mod opening;
mod prompt;
mod servers;
mod skill;

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicI64, Ordering},
};

use futures_util::{StreamExt, future::BoxFuture};
use tokio_util::sync::CancellationToken;

use self::history::Transcript;
use super::{commands, elicitations};
use crate::app::{
    App,
    runs::scheduler::RunEnd,
    servers::{agents, credentials, run_values},
    tools::toolset,
};
use crate::{
    domain::{
        error::{Error, Result},
        event::{Event, Transient},
        message::{CallStatus, Message, Part, Role},
        pack::{Pack, Provider},
        run::{ClaimedRun, RunKind, RunStatus, Usage},
        texts::{self, Key},
    },
    llm::{Delta, Reply, StepRequest, Stop},
    store::{self, Tx, messages::NewMessage},
};

/// A run that has broken off more often than this is given up.
const MOST_ATTEMPTS: i32 = 5;

/// A run at work in this process.
struct Work {
    app: Arc<App>,
    run: ClaimedRun,
    /// The user asked to stop.
    cancel: CancellationToken,
    /// The last durable event that this worker knows.
    last_event: AtomicI64,
    /// What the model reads; absent until it was read from rows.
    transcript: Mutex<Option<Transcript>>,
}

/// Works a claimed run to its end.
pub fn work(
    app: Arc<App>,
    run: ClaimedRun,
    cancel: CancellationToken,
) -> BoxFuture<'static, Result<RunEnd>> {
    let only_message = run.start.only_message.clone();
    let work = Work {
        app,
        cancel,
        last_event: AtomicI64::new(run.start.last_event),
        transcript: Mutex::new(only_message.map(Transcript::beginning)),
        run,
    };
    Box::pin(work.finish())
}

/// How a run ends. All of it is written at once, so that a run taken up again never says its last words twice.
struct Ending {
    status: RunStatus,
    error: Option<String>,
    /// The last words: the answer or the part of it that was shown, a notice, what a command came to.
    last: Vec<Last>,
    /// What the model's last step took, when it is known.
    usage: Option<Usage>,
}

struct Last {
    role: Role,
    parts: Vec<Part>,
    for_model: bool,
}

impl Ending {
    fn of(status: RunStatus, error: Option<String>) -> Self {
        Self {
            status,
            error,
            last: Vec::new(),
            usage: None,
        }
    }

    fn succeeded() -> Self {
        Self::of(RunStatus::Succeeded, None)
    }

    fn failed(error: impl Into<String>) -> Self {
        Self::of(RunStatus::Failed, Some(error.into()))
    }

    fn cancelled() -> Self {
        Self::of(RunStatus::Cancelled, None)
    }

    /// With what the model has said, which is nothing when it is blank.
    fn saying(mut self, text: String, usage: Option<Usage>) -> Self {
        if !text.trim().is_empty() {
            self.last.push(Last {
                role: Role::Assistant,
                parts: vec![Part::text(text)],
                for_model: true,
            });
        }
        self.usage = usage;
        self
    }

    /// With words of the program for the user.
    fn telling(mut self, parts: Vec<Part>) -> Self {
        self.last.push(Last {
            role: Role::System,
            parts,
            for_model: false,
        });
        self
    }
}

impl Work {
    /// Works the run to its end. `Err` when the run could not be ended here: its lease was lost, or the
    /// database is away; then it is taken up again from its last row.
    async fn finish(self) -> Result<RunEnd> {
        let ending = match self.proceed().await {
            Ok(ending) => ending,
            // What can be told to the user and will not be otherwise in a moment.
            Err(
                error @ (Error::NotFound(_)
                | Error::Forbidden(_)
                | Error::Suspended(_)
                | Error::Invalid { .. }
                | Error::Unavailable(_)),
            ) => Ending::failed(error.to_string()),
            Err(error) => return Err(error),
        };
        let status = ending.status;
        let (end, events) = self.end(ending).await?;
        metrics::counter!("chatelaine_runs_total", "status" => status.as_str()).increment(1);
        for event in events {
            self.announce(event);
        }
        Ok(end)
    }

    /// The end as rows: the last words, why it failed, the status.
    async fn end(&self, ending: Ending) -> Result<(RunEnd, Vec<Event>)> {
        let run = &self.run;
        let Ending {
            status,
            error,
            mut last,
            usage,
        } = ending;
        if let Some(reason) = &error {
            let notice = commands::notice("run_failed", reason.clone());
            last.push(Last {
                role: Role::System,
                parts: vec![notice],
                for_model: false,
            });
        }
        let (error, mut events) = (error.as_deref(), Vec::new());
        let mut tx = self.app.db.tenant(run.tenant).await?;
        let in_tree = store::runs::finish(&mut tx, run, status, error, usage).await?;
        for Last {
            role,
            parts,
            for_model,
        } in &last
        {
            events.push(self.write(&mut tx, *role, parts, *for_model).await?);
        }
        let (ended, next) = store::messages::append_run_event(
            &mut tx,
            run.tenant,
            run.conversation,
            run.id,
            status,
            error,
        )
        .await?;
        events.push(ended);
        tx.commit().await?;
        Ok((RunEnd { next, in_tree }, events))
    }

    async fn proceed(&self) -> Result<Ending> {
        let again = self.run.attempt > 1;
        if again {
            self.transient(Transient::Reset {
                run_id: self.run.id,
            });
            let taken_up = self.take_up().await;
            if self.run.attempt > MOST_ATTEMPTS {
                return Ok(Ending::failed(
                    "the service broke off several times while working on this; ask again",
                ));
            }
            taken_up?;
        }
        let pack = agents::pack(&self.app, &self.run.principal, self.run.agent.as_str()).await?;
        let pack = run_values::pack_for_run(
            &self.app,
            self.run.tenant,
            self.run.id,
            self.run.conversation,
            pack,
        )
        .await?;
        let written = if again || self.run.kind == RunKind::Command {
            self.written().await?
        } else {
            Vec::new()
        };
        match self.run.kind {
            RunKind::Command => self.command(&pack, &written).await,
            RunKind::Turn if pack.llm.provider == Provider::None => {
                let text = "This agent has no model. Commands work: type /help.";
                Ok(Ending::succeeded().telling(vec![commands::notice("no_model", text)]))
            }
            RunKind::Turn => match self.open(&pack).await? {
                Some(ending) => Ok(ending),
                None => self.converse(&pack, &written).await,
            },
        }
    }

    /// Puts in order what an earlier attempt left: its open calls, a wish to cancel that it has not heard.
    async fn take_up(&self) -> Result<()> {
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        let cancelled =
            store::runs::heartbeat(&mut tx, &self.run, self.app.config.run_lease).await?;
        tx.commit().await?;
        if cancelled {
            self.cancel.cancel();
        }
        self.close_open_calls(&self.written().await?).await
    }

    /// What this run has written so far, and what it answers.
    async fn written(&self) -> Result<Vec<Message>> {
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        store::messages::of_run(&mut tx, self.run.conversation, self.run.id).await
    }

    /// A slash command. One that was interrupted after its call is not begun again.
    async fn command(&self, pack: &Arc<Pack>, written: &[Message]) -> Result<Ending> {
        let asker = elicitations::asker(&self.app, &self.run, false);
        let resumed = written
            .iter()
            .flat_map(|message| &message.parts)
            .any(|part| matches!(part, Part::CallOutcome(_)));
        if resumed || self.resume_calls(pack, asker).await?.is_some() {
            self.tell_of_credentials(pack).await?;
            return Ok(if self.cancel.is_cancelled() {
                Ending::cancelled()
            } else {
                Ending::succeeded()
            });
        }
        let (results, of_skill) = if written
            .iter()
            .any(|message| message.role == Role::Assistant)
        {
            let calls = written.iter().flat_map(calls::of);
            (
                written
                    .iter()
                    .flat_map(calls::results_of)
                    .cloned()
                    .collect(),
                skill::is_one(calls),
            )
        } else {
            let line = written
                .iter()
                .map(Message::plain)
                .next()
                .unwrap_or_default();
            match commands::answer(&self.app, &self.run, &line).await? {
                commands::Answer::Parts(parts) => return Ok(Ending::succeeded().telling(parts)),
                commands::Answer::Call(call, irregularity) => {
                    let of_skill = skill::is_one([&call]);
                    let toolbox = toolset::toolbox(&self.app, &self.run.principal, pack).await?;
                    self.append(Role::Assistant, &[Part::ToolCall(call.clone())], false)
                        .await?;
                    // A skill is one call from beginning to end: nobody is asked in the middle.
                    let asker = asker.filter(|_| !of_skill);
                    let results = self
                        .make_calls(
                            &toolbox,
                            vec![(call, irregularity.map(calls::Flaw::Irregular))],
                            false,
                            asker,
                        )
                        .await?;
                    self.tell_of_credentials(pack).await?;
                    (results, of_skill)
                }
            }
        };
        if of_skill {
            return Ok(skill::ending(
                results.first(),
                self.cancel.is_cancelled(),
                self.untold(pack).await?,
            ));
        }
        let ending = if self.cancel.is_cancelled() {
            Ending::cancelled()
        } else {
            Ending::succeeded()
        };
        // For frontends that show text and know nothing of tool results.
        // One that waits for its user has asked them already.
        let told = results
            .into_iter()
            .filter(|result| result.status != CallStatus::AwaitingInput);
        let mut parts: Vec<_> = told.map(|result| Part::text(result.text)).collect();
        parts.extend(self.untold(pack).await?);
        Ok(if parts.is_empty() {
            ending
        } else {
            ending.telling(parts)
        })
    }

    /// Model and tools in turn, until the model has nothing more to call.
    async fn converse(&self, pack: &Arc<Pack>, written: &[Message]) -> Result<Ending> {
        let asker = elicitations::asker(&self.app, &self.run, true);
        let is_step =
            |message: &&Message| message.role == Role::Assistant && !opening::is_of_prompt(message);
        let done = written.iter().filter(is_step).count();
        self.tell_of_credentials(pack).await?;
        self.tell_of_servers(pack).await?;
        for _ in done..usize::try_from(pack.llm.max_steps).unwrap_or(usize::MAX) {
            let toolbox = toolset::toolbox(&self.app, &self.run.principal, pack).await?;
            let reply = match self.step(pack, &toolbox).await? {
                Step::Replied(reply) => reply,
                Step::Ended(ending) => return Ok(ending),
            };
            if let Some(ending) = ending_of(&reply) {
                return Ok(ending.saying(reply.text, Some(reply.usage)));
            }
            let calls = calls::resolve(&reply, &toolbox);
            self.append_reply(&reply, &calls).await?;
            self.make_calls(&toolbox, calls, true, asker).await?;
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

    /// Tells the user that a server does not accept their credential any more.
    async fn tell_of_credentials(&self, pack: &Pack) -> Result<()> {
        let parts = self.untold(pack).await?;
        if parts.is_empty() {
            Ok(())
        } else {
            self.append(Role::System, &parts, false).await
        }
    }

    /// What the user has to be told of their credentials; each of it once.
    async fn untold(&self, pack: &Pack) -> Result<Vec<Part>> {
        let servers = credentials::untold(&self.app, &self.run.principal, pack).await?;
        let texts = texts::of(pack, &self.run.principal);
        let tell = |server: &String| {
            commands::notice(
                "credential_rejected",
                texts.say(Key::Rejected, &[("server", server)]),
            )
        };
        Ok(servers.iter().map(tell).collect())
    }

    /// One step of the model, streamed to whoever listens.
    async fn step(&self, pack: &Arc<Pack>, toolbox: &Arc<toolset::Toolbox>) -> Result<Step> {
        let (history, reading) = self.read_transcript(pack.memory.window, toolbox).await?;
        let request = StepRequest {
            system: prompt::system(pack, &self.run.principal, toolbox),
            history,
            tools: prompt::definitions(toolbox)
                .into_iter()
                .chain(reading)
                .collect(),
        };
        let mut stream = std::pin::pin!(self.app.models.step(&pack.llm, request));
        let mut shown = String::new();
        loop {
            let next = tokio::select! {
                biased;
                () = self.cancel.cancelled() => {
                    return Ok(Step::Ended(Ending::cancelled().saying(shown, None)));
                }
                // What was shown of this step is shown anew by whoever takes the run up.
                () = self.app.shutdown.cancelled() => {
                    return Err(Error::Conflict("the process is stopping".to_owned()));
                }
                next = stream.next() => next,
            };
            match next {
                Some(Ok(Delta::Text(text))) => {
                    shown.push_str(&text);
                    self.transient(Transient::Delta {
                        run_id: self.run.id,
                        text,
                    });
                }
                Some(Ok(Delta::Done(reply))) => return Ok(Step::Replied(reply)),
                Some(Err(error)) => {
                    return Ok(Step::Ended(
                        Ending::failed(error.to_string()).saying(shown, None),
                    ));
                }
                None => {
                    let ending = Ending::failed("the model's answer broke off; try again");
                    return Ok(Step::Ended(ending.saying(shown, None)));
                }
            }
        }
    }

    /// A reply that calls tools as a row, with its usage, in one transaction.
    async fn append_reply(&self, reply: &Reply, calls: &[calls::Resolved]) -> Result<()> {
        let mut parts = Vec::new();
        if !reply.text.trim().is_empty() {
            parts.push(Part::text(reply.text.clone()));
        }
        parts.extend(calls.iter().map(|(call, _)| Part::ToolCall(call.clone())));
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        store::runs::add_step(&mut tx, &self.run, reply.usage).await?;
        self.commit(tx, Role::Assistant, &parts, true).await
    }

    /// Adds a message of this run, if the run is still ours, and tells the listeners.
    async fn append(&self, role: Role, parts: &[Part], for_model: bool) -> Result<()> {
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        self.hold(&mut tx).await?;
        self.commit(tx, role, parts, for_model).await
    }

    /// Locks the run, if it is still ours. A wish to stop it is heard before anything follows from what is written:
    /// the result of a child that was stopped with it is there earlier than the next heartbeat.
    async fn hold(&self, tx: &mut Tx) -> Result<()> {
        if store::runs::assert_held(tx, &self.run).await? {
            self.cancel.cancel();
        }
        Ok(())
    }

    async fn commit(&self, mut tx: Tx, role: Role, parts: &[Part], for_model: bool) -> Result<()> {
        let event = self.write(&mut tx, role, parts, for_model).await?;
        tx.commit().await?;
        self.announce(event);
        Ok(())
    }

    /// After the commit: tells everybody who listens.
    fn announce(&self, event: Event) {
        self.last_event.fetch_max(event.seq, Ordering::Relaxed);
        self.app
            .announce(self.run.tenant, self.run.conversation, event);
    }

    async fn write(
        &self,
        tx: &mut Tx,
        role: Role,
        parts: &[Part],
        for_model: bool,
    ) -> Result<Event> {
        let run = &self.run;
        let message = NewMessage {
            run: Some(run.id),
            run_ordinal: run.ordinal,
            role,
            parts,
            for_model,
        };
        let (message, event) =
            store::messages::append(tx, run.tenant, run.conversation, message).await?;
        if for_model && let Some(transcript) = &mut *self.transcript() {
            transcript.messages.push(message);
        }
        Ok(event)
    }

    fn transient(&self, event: Transient) {
        let follows = self.last_event.load(Ordering::Relaxed);
        let place = (self.run.tenant, self.run.conversation);
        self.app.live.transient(place, follows, event);
    }

    fn transcript(&self) -> MutexGuard<'_, Option<Transcript>> {
        self.transcript
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
        (Stop::ContentFilter, _) => Some(Ending::failed(
            "the model's provider withheld the answer; ask differently",
        )),
        (Stop::Length, true) => Some(Ending::failed(
            "the answer was cut at the model's length limit; ask for less, or raise llm.maxTokens",
        )),
        (_, true) if reply.text.trim().is_empty() => {
            Some(Ending::failed("the model gave an empty answer; ask again"))
        }
        (_, true) => Some(Ending::succeeded()),
        (_, false) => None,
    }
}
