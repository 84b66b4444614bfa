//! One run: what the agent does about a message. Each step is durable before the next begins, so that a
//! run can be stopped between any two of them and taken up by another replica.
//!
//! The crash rule: the assistant's calls are a row before the first is sent. Whoever takes the run up
//! finds calls without a result; they may have been sent, so they are marked `OutcomeUnknown` and never
//! repeated.

mod answered_calls;
mod calls;
mod ending;
mod format;
mod history;
mod opening;
mod persistence;
mod prompt;
mod servers;
mod skill;

use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicI64, Ordering},
};

use futures_util::{StreamExt, future::BoxFuture};
use tokio_util::sync::CancellationToken;

use self::{
    ending::{Ending, ending_of},
    format::RejectedAnswer,
    history::ModelTranscript,
};
use super::{commands, titles};
use crate::app::{
    App,
    runs::scheduler::RunEnd,
    servers::{agents, connections, credentials, run_values},
    tools::{
        approvals,
        elicitations::{ElicitationTarget, target_of},
        toolset,
    },
};
use crate::{
    domain::{
        error::{Error, ErrorCode, Result},
        event::Transient,
        message::{Message, Part, Role, ToolCall, ToolResult},
        pack::{Pack, Provider},
        run::{ClaimedRun, RunKind, RunStatus},
        texts::{self, Key},
    },
    llm::{Delta, Reply, StepRequest},
    store,
};

/// A run that has broken off more often than this is given up.
const MOST_ATTEMPTS: i32 = 5;

/// A run at work in this process.
struct RunWorker {
    app: Arc<App>,
    run: ClaimedRun,
    /// The user asked to stop.
    cancel: CancellationToken,
    /// The last durable event that this worker knows.
    last_event: AtomicI64,
    /// What the model reads; absent until it was read from rows.
    transcript: Mutex<Option<ModelTranscript>>,
    /// What was so of the user's servers in the first step.
    first_state: OnceLock<Option<String>>,
}

/// Works a claimed run to its end.
pub fn work(
    app: Arc<App>,
    run: ClaimedRun,
    cancel: CancellationToken,
) -> BoxFuture<'static, Result<RunEnd>> {
    let only_message = run.start.only_message.clone();
    let work = RunWorker {
        app,
        cancel,
        last_event: AtomicI64::new(run.start.last_event),
        transcript: Mutex::new(only_message.map(ModelTranscript::beginning)),
        first_state: OnceLock::new(),
        run,
    };
    Box::pin(async move {
        let (live, place) = (
            work.app.live.clone(),
            (work.run.tenant, work.run.conversation),
        );
        let id = work.run.id;
        let end = work.finish().await;
        live.forget_step(place, id);
        end
    })
}

impl RunWorker {
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
                | Error::Blocked(_)
                | Error::Invalid { .. }
                | Error::Unavailable(_)),
            ) => Ending::failed(error.to_string()),
            Err(error) => return Err(error),
        };
        let (status, is_answer) = (ending.status, ending.is_answer());
        let (end, events) = self.end(ending).await?;
        metrics::counter!("chatelaine_runs_total", "status" => status.as_str()).increment(1);
        for event in events {
            self.announce(event);
        }
        if is_answer {
            let follows = self.last_event.load(Ordering::Relaxed);
            titles::make(&self.app, &self.run, follows);
        }
        Ok(end)
    }

    async fn proceed(&self) -> Result<Ending> {
        // A run that follows from something else may begin after its user was blocked.
        self.app
            .accounts
            .require_unblocked(&self.run.principal)
            .await?;
        let again = self.run.attempt > 1;
        if again {
            self.transient(Transient::Reset {
                run_id: self.run.id,
            });
            let taken_up = self.resume_after_crash().await;
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
        if self.run.kind == RunKind::Turn {
            connections::await_connecting(&self.app, self.run.tenant, &pack).await;
        }
        match self.run.kind {
            RunKind::Command => self.command(&pack, &written).await,
            RunKind::Turn if pack.llm.provider == Provider::None => {
                let text = texts::of(&pack, &self.run.principal).render(Key::AgentHasNoModel, &[]);
                Ok(Ending::succeeded().with_notices(vec![commands::notice("no_model", text)]))
            }
            RunKind::Turn => match self.open(&pack).await? {
                Some(ending) => Ok(ending),
                None => self.converse(&pack, &written).await,
            },
        }
    }

    /// Puts in order what an earlier attempt left: its open calls, a wish to cancel that it has not heard.
    async fn resume_after_crash(&self) -> Result<()> {
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
        let target = target_of(&self.app, &self.run, false);
        if let Some(ending) = self.take_in_answers(pack, written, target).await? {
            return Ok(ending);
        }
        let is_called = |message: &Message| message.role == Role::Assistant;
        let (call, results) = if written.iter().any(is_called) {
            let results = written.iter().flat_map(calls::results_of).cloned();
            let call = written.iter().flat_map(calls::of).next().cloned();
            (call, results.collect())
        } else {
            let line = written.first().map(Message::plain).unwrap_or_default();
            match commands::answer(&self.app, &self.run, &line).await? {
                commands::Answer::Parts(parts) => {
                    return Ok(Ending::succeeded().with_notices(parts));
                }
                commands::Answer::Call(call, ambiguity) => {
                    // A skill is one call from beginning to end: nobody is asked in the middle.
                    let target = target.filter(|_| !skill::is_one(&call));
                    let flaw = ambiguity.map(calls::BadArguments::Irregular);
                    let made = (call.clone(), flaw);
                    let results = self.make_typed_call(pack, made, target).await?;
                    (Some(call), results)
                }
            }
        };
        let is_cancelled = self.cancel.is_cancelled();
        let ending = match &call {
            Some(call) if skill::is_one(call) => skill::ending(results.first(), is_cancelled),
            _ if is_cancelled => Ending::cancelled(),
            _ => Ending::succeeded(),
        };
        let mut parts = Vec::new();
        for result in &results {
            parts.extend(self.explain_request(result).await?);
        }
        parts.extend(self.credentials_to_report(pack).await?);
        Ok(if parts.is_empty() {
            ending
        } else {
            ending.with_notices(parts)
        })
    }

    /// The request for consent that a typed call waits for, in the user's language, unless this run has told it already.
    async fn explain_request(&self, result: &ToolResult) -> Result<Option<Part>> {
        let Some(id) = result.approval else {
            return Ok(None);
        };
        let is_it = |part: &Part| matches!(part, Part::Approval(note) if note.id == id);
        let written = self.written().await?;
        if written.iter().flat_map(|message| &message.parts).any(is_it) {
            return Ok(None);
        }
        let request = approvals::get(&self.app, &self.run.principal, &id.to_string()).await?;
        Ok(Some(Part::text(request.text)))
    }

    /// Makes the call that a user typed, or that a skill is.
    async fn make_typed_call(
        &self,
        pack: &Arc<Pack>,
        call: (ToolCall, Option<calls::BadArguments>),
        target: Option<ElicitationTarget>,
    ) -> Result<Vec<ToolResult>> {
        connections::await_connecting(&self.app, self.run.tenant, pack).await;
        let toolbox = toolset::toolbox(&self.app, &self.run.principal, pack).await?;
        let calls = vec![call];
        let lines = self.first_lines(&toolbox, &calls);
        self.append_call(&calls[0].0, &lines).await?;
        let results = self.make_calls(&toolbox, calls, false, target).await?;
        self.report_credentials(pack).await?;
        Ok(results)
    }

    /// Model and tools in turn, until the model has nothing more to call.
    async fn converse(&self, pack: &Arc<Pack>, written: &[Message]) -> Result<Ending> {
        let target = target_of(&self.app, &self.run, true);
        let is_step =
            |message: &&Message| message.role == Role::Assistant && !opening::is_of_prompt(message);
        let done = written.iter().filter(is_step).count();
        self.report_credentials(pack).await?;
        self.report_servers(pack).await?;
        // An answer that is not in its format is asked for once more.
        let mut rejected: Option<RejectedAnswer> = None;
        for _ in done..usize::try_from(pack.llm.max_steps).unwrap_or(usize::MAX) {
            let toolbox = toolset::toolbox(&self.app, &self.run.principal, pack).await?;
            let reply = match self.step(pack, &toolbox, rejected.as_ref()).await? {
                StepOutcome::Replied(reply) => reply,
                StepOutcome::Ended(ending) => return Ok(ending),
            };
            if let Some(ending) = ending_of(&reply) {
                if ending.status != RunStatus::Succeeded {
                    return Ok(ending.with_text(reply.text, Some(reply.usage)));
                }
                match self.in_format(&reply.text).await {
                    Ok(text) => return Ok(ending.with_text(text, Some(reply.usage))),
                    Err(why) if rejected.is_none() => {
                        self.count_step(reply.usage).await?;
                        rejected = Some(RejectedAnswer {
                            text: reply.text,
                            why,
                        });
                        continue;
                    }
                    Err(why) => return Ok(format::not_held(&why, reply.usage)),
                }
            }
            let calls = calls::resolve(&reply, &toolbox);
            let lines = self.first_lines(&toolbox, &calls);
            self.append_reply(&reply, &calls, &lines).await?;
            self.make_calls(&toolbox, calls, true, target).await?;
            self.report_credentials(pack).await?;
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
    async fn report_credentials(&self, pack: &Pack) -> Result<()> {
        let parts = self.credentials_to_report(pack).await?;
        if parts.is_empty() {
            Ok(())
        } else {
            self.append(Role::System, &parts, false).await
        }
    }

    /// What the user has to be told of their credentials; each of it once.
    async fn credentials_to_report(&self, pack: &Pack) -> Result<Vec<Part>> {
        let reports =
            credentials::credentials_to_report(&self.app, &self.run.principal, pack).await?;
        let texts = texts::of(pack, &self.run.principal);
        let tell = |report: &credentials::CredentialReport| {
            let (code, key) = if report.keeps_old {
                ("credential_refused", Key::McpConfigStoredRefused)
            } else {
                ("credential_rejected", Key::McpConfigRejected)
            };
            commands::notice(code, texts.render(key, &[("server", &report.server)]))
        };
        Ok(reports.iter().map(tell).collect())
    }

    /// One step of the model, streamed to whoever listens.
    async fn step(
        &self,
        pack: &Arc<Pack>,
        toolbox: &Arc<toolset::Toolbox>,
        rejected: Option<&RejectedAnswer>,
    ) -> Result<StepOutcome> {
        let (mut history, mut tools) = self.read_transcript(pack.memory.window, toolbox).await?;
        if let Some(rejected) = rejected {
            rejected.add_to(&mut history);
            // These providers hold a format only where there are no tools.
            if matches!(pack.llm.provider, Provider::Gemini | Provider::Ollama) {
                tools.clear();
            }
        }
        let format = self.run.start.format.clone();
        let most_tools = self.app.config.tools_per_request;
        let connections = &self.app.connections;
        let down = |server: &str| connections.down_cause(self.run.tenant, pack.id(), server);
        let state = prompt::state(toolbox, down);
        let first_state = self.first_state.get_or_init(|| state.clone());
        prompt::tell_state(&mut history, first_state.as_deref(), state.as_deref());
        let request = StepRequest {
            tenant: Some(self.run.tenant),
            user: Some(self.run.principal.user.clone()),
            system: self.with_format(prompt::system(
                pack,
                &self.run.principal,
                toolbox,
                most_tools,
            )),
            history,
            tools,
            format,
        };
        // What is checked before it is shown is not shown as it comes.
        let is_streamed = request.format.is_none();
        let mut stream = std::pin::pin!(self.app.models.step(&pack.llm, request));
        let mut shown = String::new();
        loop {
            let next = tokio::select! {
                biased;
                () = self.cancel.cancelled() => {
                    return Ok(StepOutcome::Ended(Ending::cancelled().with_text(shown, None)));
                }
                // What was shown of this step is shown anew by whoever takes the run up.
                () = self.app.shutdown.cancelled() => {
                    return Err(Error::conflict(ErrorCode::Conflict, "the process is stopping"));
                }
                next = stream.next() => next,
            };
            match next {
                Some(Ok(Delta::Text(_))) if !is_streamed => {}
                Some(Ok(Delta::Text(text))) => {
                    shown.push_str(&text);
                    self.transient(Transient::Delta {
                        run_id: self.run.id,
                        text,
                    });
                }
                Some(Ok(Delta::Done(reply))) => return Ok(StepOutcome::Replied(reply)),
                Some(Err(error)) => {
                    return Ok(StepOutcome::Ended(
                        Ending::without_answer(&error).with_text(shown, None),
                    ));
                }
                None => {
                    let ending = Ending::failed("the model's answer broke off; try again");
                    return Ok(StepOutcome::Ended(ending.with_text(shown, None)));
                }
            }
        }
    }
}

/// What one model step came to.
enum StepOutcome {
    Replied(Reply),
    Ended(Ending),
}
