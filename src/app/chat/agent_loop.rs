//! One run: the agent answers a message. Each step is durable before the next begins, so a run can be stopped between any
//! two steps, and another replica can take it up.
//!
//! The crash rule: the assistant's calls are a row before the first call is sent. A worker that takes the run up finds
//! calls without a result. They may have been sent, so they are marked `OutcomeUnknown` and never repeated.

mod calls;
mod ending;
mod input;
mod model_input;

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicI64, Ordering},
};

use futures_util::{StreamExt, future::BoxFuture};
use serde_json::value::to_raw_value;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use self::{
    calls::{StepCall, first_lines},
    ending::{Ending, ending_of_reply},
    model_input::ModelTranscript,
};
use super::{commands, titles};
use crate::app::{
    App,
    runs::{ending::SUPERSEDED, scheduler::RunEnd},
    servers::{
        agents,
        connections::{self, State},
        credentials::{self, CredentialTrouble},
        run_values,
    },
    tools::{
        approvals,
        elicitations::{ElicitationTarget, target_of},
        toolset,
    },
};
use domain::{
    answer_format::{correction, object_in},
    clock,
    error::{Error, ErrorCode, Result},
    event::{Event, Transient},
    message::{Message, Part, Role, ToolCall, ToolResult},
    pack::{Pack, Provider},
    run::{ClaimedRun, RunKind, RunStatus, Usage},
    texts::{self, Key, Texts},
};
use llm::{Delta, ModelError, Reply, StepRequest, Turn};
use mcp::schemas;
use store::{Tx, messages::NewMessage};

/// A run that has broken off more often than this fails.
const MOST_ATTEMPTS: i32 = 5;

/// A run that this process works on.
struct RunWorker {
    app: Arc<App>,
    run: ClaimedRun,
    /// Cancelled when the user asks to stop.
    cancel: CancellationToken,
    /// The last durable event that this worker knows.
    last_event: AtomicI64,
    /// The messages that the model reads; absent until they were read from rows.
    transcript: Mutex<Option<ModelTranscript>>,
    /// The note on unavailable servers in the first step.
    first_note: OnceLock<Option<String>>,
}

/// Works on a claimed run until its end.
pub fn work_on(
    app: Arc<App>,
    run: ClaimedRun,
    cancel: CancellationToken,
) -> BoxFuture<'static, Result<RunEnd>> {
    let only_message = run.start.only_message.clone();
    let worker = RunWorker {
        app,
        cancel,
        last_event: AtomicI64::new(run.start.last_event),
        transcript: Mutex::new(only_message.map(ModelTranscript::of_first_message)),
        first_note: OnceLock::new(),
        run,
    };
    Box::pin(async move {
        let (live, place) = (
            worker.app.live.clone(),
            (worker.run.tenant, worker.run.conversation),
        );
        let id = worker.run.id;
        let end = worker.run_to_end().await;
        live.forget_step(place, id);
        end
    })
}

impl RunWorker {
    /// Works on the run and writes its end. `Err` when the run could not be ended here: its lease was lost, or the
    /// database is away. Then the run is taken up again from its last row.
    async fn run_to_end(self) -> Result<RunEnd> {
        let began = clock::instant();
        let ending = match self.proceed().await {
            Ok(ending) => ending,
            // These errors are meant for the user, and a retry would not help.
            Err(
                error @ (Error::NotFound(_)
                | Error::Forbidden(_)
                | Error::Suspended(_)
                | Error::Blocked(_)
                | Error::Invalid { .. }
                | Error::Unavailable(_)
                | Error::KeysUnreadable),
            ) => {
                let pack = self.app.packs.get(&self.run.agent);
                let texts = texts::for_optional_pack(pack.as_deref(), &self.run.principal);
                Ending::failed(texts.explain(&error))
            }
            Err(error) => return Err(error),
        };
        let (status, is_answer) = (ending.status, ending.is_answer());
        let (end, events) = self.write_end(ending).await?;
        metrics::counter!("chatelaine_runs_total", "status" => status.into_str()).increment(1);
        let took = began.elapsed();
        metrics::histogram!("chatelaine_run_seconds").record(took.as_secs_f64());
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        tracing::info!(status = status.into_str(), ms, "run ended");
        Span::current().record("status", status.into_str());
        for event in events {
            self.announce(event);
        }
        if is_answer {
            let follows = self.last_event.load(Ordering::Relaxed);
            titles::make_title(&self.app, &self.run, follows);
        }
        Ok(end)
    }

    async fn proceed(&self) -> Result<Ending> {
        // A run that no request of the user began may begin after the user was blocked.
        self.app
            .accounts
            .require_unblocked(&self.run.principal)
            .await?;
        let again = self.run.attempt > 1;
        if again {
            self.send_transient(Transient::Reset {
                run_id: self.run.id,
            });
            let taken_up = self.resume_after_crash().await;
            if self.run.attempt > MOST_ATTEMPTS {
                let pack = self.app.packs.get(&self.run.agent);
                let texts = texts::for_optional_pack(pack.as_deref(), &self.run.principal);
                return Ok(Ending::failed(texts.render(Key::RunBrokeOff, &[])));
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
            self.load_messages().await?
        } else {
            Vec::new()
        };
        if self.run.kind == RunKind::Turn {
            connections::await_connecting(&self.app, self.run.tenant, &pack).await;
        }
        match self.run.kind {
            RunKind::Command => self.run_command(&pack, &written).await,
            RunKind::Turn if pack.llm.provider == Provider::None => {
                let text = texts::of(&pack, &self.run.principal).render(Key::AgentHasNoModel, &[]);
                Ok(Ending::succeeded().with_notices(vec![commands::notice("no_model", text)]))
            }
            RunKind::Turn => match self.prepare_turn(&pack).await? {
                Some(ending) => Ok(ending),
                None => self.converse(&pack, &written).await,
            },
        }
    }

    /// Finishes what an earlier attempt left: calls without a result, and a request to cancel that it has not seen.
    async fn resume_after_crash(&self) -> Result<()> {
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        let cancelled =
            store::runs::heartbeat(&mut tx, &self.run, self.app.config.run_lease).await?;
        tx.commit().await?;
        if cancelled {
            self.cancel.cancel();
        }
        self.close_open_calls(&self.load_messages().await?).await
    }

    /// Reads the messages of this run: the messages that it answers, and the messages that it has written so far.
    async fn load_messages(&self) -> Result<Vec<Message>> {
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        store::messages::list_of_run(&mut tx, self.run.conversation, self.run.id).await
    }

    /// Runs a slash command, or continues with an answer to a prompt. A command that was interrupted after its call is not
    /// begun again.
    async fn run_command(&self, pack: &Arc<Pack>, written: &[Message]) -> Result<Ending> {
        let is_called = |message: &Message| message.role == Role::Assistant;
        if written.iter().any(is_called) {
            let results: Vec<_> = written
                .iter()
                .flat_map(calls::results_of)
                .cloned()
                .collect();
            let call = written.iter().flat_map(calls::calls_of).next();
            return self.end_typed_call(pack, call, &results).await;
        }
        let target = target_of(&self.app, &self.run, false);
        if let Some(ending) = self.continue_with_answers(pack, written, target).await? {
            return Ok(ending);
        }
        let line = written.first().map(Message::plain).unwrap_or_default();
        let answer = commands::answer(&self.app, &self.run, &line).await?;
        self.apply_command(pack, answer, target).await
    }

    /// Says what a command answers, or makes its call.
    async fn apply_command(
        &self,
        pack: &Arc<Pack>,
        answer: commands::Answer,
        target: Option<ElicitationTarget>,
    ) -> Result<Ending> {
        let (call, ambiguity) = match answer {
            commands::Answer::Parts(parts) => return Ok(Ending::succeeded().with_notices(parts)),
            commands::Answer::Call { call, ambiguity } => (call, ambiguity),
        };
        // A skill is one call from beginning to end, so its server may ask the user nothing in between.
        let target = target.filter(|_| !calls::is_skill(&call));
        let flaw = ambiguity.map(calls::BadArguments::Irregular);
        let results = self
            .make_typed_call(pack, call.clone(), flaw, target)
            .await?;
        self.end_typed_call(pack, Some(&call), &results).await
    }

    /// The end of a run whose command has made its call.
    async fn end_typed_call(
        &self,
        pack: &Pack,
        call: Option<&ToolCall>,
        results: &[ToolResult],
    ) -> Result<Ending> {
        let is_cancelled = self.cancel.is_cancelled();
        let ending = match call {
            Some(call) if calls::is_skill(call) => {
                ending::ending_of_skill(results.first(), is_cancelled)
            }
            _ if is_cancelled => Ending::cancelled(),
            _ => Ending::succeeded(),
        };
        let mut parts = Vec::new();
        for result in results {
            parts.extend(self.explain_request(result).await?);
        }
        parts.extend(self.credentials_to_report(pack).await?);
        Ok(if parts.is_empty() {
            ending
        } else {
            ending.with_notices(parts)
        })
    }

    /// Describes the request for consent that a typed call waits for, in the user's language, unless this run has described
    /// it already.
    async fn explain_request(&self, result: &ToolResult) -> Result<Option<Part>> {
        let Some(id) = result.approval else {
            return Ok(None);
        };
        let is_described = |part: &Part| matches!(part, Part::Approval(note) if note.id == id);
        let messages = self.load_messages().await?;
        let mut parts = messages.iter().flat_map(|message| &message.parts);
        if parts.any(is_described) {
            return Ok(None);
        }
        let request = approvals::get(&self.app, &self.run.principal, &id.to_string()).await?;
        Ok(Some(Part::text(request.text)))
    }

    /// Makes the one call of a command: a call that the user typed, or the call of a skill.
    async fn make_typed_call(
        &self,
        pack: &Arc<Pack>,
        call: ToolCall,
        flaw: Option<calls::BadArguments>,
        target: Option<ElicitationTarget>,
    ) -> Result<Vec<ToolResult>> {
        connections::await_connecting(&self.app, self.run.tenant, pack).await;
        let toolset = toolset::select(&self.app, &self.run.principal, pack).await?;
        let call = self.step_call(&toolset, call, flaw);
        self.append_call(&call).await?;
        let calls = vec![call];
        let results = self.make_calls(&toolset, calls, false, target).await?;
        self.report_credentials(pack).await?;
        Ok(results)
    }

    /// Asks the model and makes the calls of its reply, step by step, until a reply has no calls.
    async fn converse(&self, pack: &Arc<Pack>, written: &[Message]) -> Result<Ending> {
        let target = target_of(&self.app, &self.run, true);
        let is_step = |message: &&Message| {
            message.role == Role::Assistant && !input::is_of_server_prompt(message)
        };
        let done = written.iter().filter(is_step).count();
        self.report_credentials(pack).await?;
        self.report_servers(pack).await?;
        let _held = self.app.connections.hold(self.run.tenant, pack);
        // The model is asked once more after an answer that is not in the format.
        let mut rejected: Option<RejectedAnswer> = None;
        for step in done..usize::try_from(pack.llm.max_steps).unwrap_or(usize::MAX) {
            let toolset = toolset::select(&self.app, &self.run.principal, pack).await?;
            let reply = match self
                .ask_model(pack, &toolset, rejected.as_ref(), step == 0)
                .await?
            {
                StepOutcome::Replied(reply) => reply,
                StepOutcome::Ended(ending) => return Ok(ending),
            };
            let texts = texts::of(pack, &self.run.principal);
            if let Some(ending) = ending_of_reply(&reply, &texts) {
                if ending.status != RunStatus::Succeeded {
                    return Ok(ending.with_text(reply.text, Some(reply.usage)));
                }
                match self.check_format(&reply.text).await {
                    Ok(text) => return Ok(ending.with_text(text, Some(reply.usage))),
                    Err(why) if rejected.is_none() => {
                        self.count_step(reply.usage).await?;
                        rejected = Some(RejectedAnswer {
                            text: reply.text,
                            why,
                        });
                        continue;
                    }
                    Err(why) => return Ok(ending_without_format(&texts, &why, reply.usage)),
                }
            }
            let calls = self.calls_of_reply(&reply, &toolset);
            if !self.append_reply(&reply, &calls).await? {
                return Ok(Ending::failed(SUPERSEDED).with_text(String::new(), Some(reply.usage)));
            }
            self.make_calls(&toolset, calls, true, target).await?;
            self.report_credentials(pack).await?;
            if self.cancel.is_cancelled() {
                return Ok(Ending::cancelled());
            }
        }
        let steps = pack.llm.max_steps.to_string();
        let texts = texts::of(pack, &self.run.principal);
        let reason = texts.render(Key::RunTooManySteps, &[("steps", &steps)]);
        Ok(Ending::failed(reason))
    }

    /// Writes a notice for the user for each server that has begun to refuse their credential.
    async fn report_credentials(&self, pack: &Pack) -> Result<()> {
        let parts = self.credentials_to_report(pack).await?;
        if parts.is_empty() {
            Ok(())
        } else {
            self.append(Role::System, &parts, false).await
        }
    }

    /// The notices about refused credentials. Each is returned once.
    async fn credentials_to_report(&self, pack: &Pack) -> Result<Vec<Part>> {
        let reports =
            credentials::credentials_to_report(&self.app, &self.run.principal, pack).await?;
        let texts = texts::of(pack, &self.run.principal);
        let to_notice = |report: &credentials::CredentialReport| {
            let (code, key) = match report.what {
                CredentialTrouble::NewestRefused => {
                    ("credential_refused", Key::McpConfigStoredRefused)
                }
                CredentialTrouble::Refused => ("credential_rejected", Key::McpConfigRejected),
                CredentialTrouble::Unreadable => {
                    ("credential_unreadable", Key::McpConfigUnreadable)
                }
            };
            commands::notice(code, texts.render(key, &[("server", &report.server)]))
        };
        Ok(reports.iter().map(to_notice).collect())
    }

    /// Tells the listeners of the conversation which servers take part in the run, and which do not and why. A server that
    /// is down, or that lacks a tool of its allowlist, costs the run only what is missing.
    async fn report_servers(&self, pack: &Arc<Pack>) -> Result<()> {
        let run_id = self.run.id;
        let views = credentials::views(&self.app, &self.run.principal, pack).await?;
        let toolset = toolset::select(&self.app, &self.run.principal, pack).await?;
        let texts = texts::of(pack, &self.run.principal);
        let is_admin = self.run.principal.access(pack).admin;
        for (spec, view) in pack.servers.iter().zip(views) {
            let server = view.server;
            let reason = match view.state {
                State::Ready { .. } | State::Configured | State::Saved => {
                    let tools = toolset.iter().filter(|(of, _)| of.id == spec.id).count();
                    let transport = spec.endpoint.transport();
                    self.send_transient(Transient::ServerStarted {
                        run_id,
                        server: server.clone(),
                        transport,
                        tools,
                    });
                    if view.missing.is_empty() {
                        continue;
                    }
                    format!("Tools not discovered: {}", view.missing.join(", "))
                }
                State::Down { reason, .. } if is_admin => reason,
                state @ State::Down { .. } => {
                    commands::describe_state(&texts, &state, &self.run).unwrap_or_default()
                }
                State::Connecting if view.tools == 0 => texts.render(Key::ServerConnecting, &[]),
                // The user must act first or has not connected the server, which is reported elsewhere.
                State::Connecting | State::NotConfigured | State::NeedsAttention { .. } => continue,
            };
            let missing_tools = view.missing;
            self.send_transient(Transient::ServerUnavailable {
                run_id,
                server,
                reason,
                missing_tools,
            });
        }
        Ok(())
    }

    /// Asks the model for one step and streams its text to the listeners.
    async fn ask_model(
        &self,
        pack: &Arc<Pack>,
        toolset: &Arc<toolset::Toolset>,
        rejected: Option<&RejectedAnswer>,
        is_first: bool,
    ) -> Result<StepOutcome> {
        let (mut history, mut tools) = self.read_transcript(pack.memory.window, toolset).await?;
        if let Some(rejected) = rejected {
            rejected.add_to(&mut history);
            // These providers keep to a format only in a request without tools.
            if matches!(pack.llm.provider, Provider::Gemini | Provider::Ollama) {
                tools.clear();
            }
        }
        let format = self.run.start.format.clone();
        let most_tools = self.app.config.tools_per_request;
        let connections = &self.app.connections;
        let down = |server: &str| {
            let spec = pack.server(server)?;
            connections.down_cause(self.run.tenant, spec)
        };
        let note = model_input::note_of_unavailable_servers(toolset, down);
        let first_note = self.first_note.get_or_init(|| note.clone());
        model_input::add_note(&mut history, first_note.as_deref(), note.as_deref());
        let request = StepRequest {
            tenant: Some(self.run.tenant),
            user: Some(self.run.principal.user.clone()),
            system: self.add_format(model_input::system_prompt(
                pack,
                &self.run.principal,
                toolset,
                most_tools,
            )),
            history,
            tools,
            format,
            is_repeated_by_client: is_first && self.app.repeating_clients.has(self.run.id),
        };
        // An answer with a format is checked before it is shown, so it is not streamed.
        let is_streamed = request.format.is_none();
        let mut stream = std::pin::pin!(self.app.models.step(&pack.llm, request));
        let mut shown = String::new();
        loop {
            let next = tokio::select! {
                biased;
                () = self.cancel.cancelled() => {
                    return Ok(StepOutcome::Ended(Ending::cancelled().with_text(shown, None)));
                }
                // The worker that takes the run up streams this step again from its beginning.
                () = self.app.shutdown.cancelled() => {
                    return Err(Error::conflict(ErrorCode::Conflict, "the process is stopping"));
                }
                next = stream.next() => next,
            };
            match next {
                Some(Ok(Delta::Text(_))) if !is_streamed => {}
                Some(Ok(Delta::Text(text))) => {
                    shown.push_str(&text);
                    self.send_transient(Transient::Delta {
                        run_id: self.run.id,
                        text,
                    });
                }
                Some(Ok(Delta::Done(reply))) => return Ok(StepOutcome::Replied(reply)),
                Some(Err(error)) => {
                    return Ok(StepOutcome::Ended(
                        self.without_answer(pack, &error).with_text(shown, None),
                    ));
                }
                None => {
                    let ending = self.without_answer(pack, &ModelError::Truncated);
                    return Ok(StepOutcome::Ended(ending.with_text(shown, None)));
                }
            }
        }
    }
}

/// The outcome of one step of the model.
enum StepOutcome {
    Replied(Reply),
    Ended(Ending),
}

/// An answer of the model that is not in the format that the client asked for. It is not stored as a message: only the
/// model reads it again.
struct RejectedAnswer {
    text: String,
    why: String,
}

impl RejectedAnswer {
    /// Adds the answer, and why it was rejected, at the end of the history.
    fn add_to(&self, history: &mut Vec<Turn>) {
        history.push(Turn::Assistant {
            text: self.text.clone(),
            calls: Vec::new(),
        });
        history.push(Turn::User(correction(&self.why)));
    }
}

/// The end of a run whose model did not keep to the format.
fn ending_without_format(texts: &Texts<'_>, why: &str, usage: Usage) -> Ending {
    let reason = texts.render(Key::AnswerNotInFormat, &[("why", why)]);
    Ending::without_format(reason).with_text(String::new(), Some(usage))
}

/// The format of an answer that the client asked for. The client gets an answer in the format, or learns that the model
/// did not give one.
impl RunWorker {
    /// Adds the instruction about the format at the end of the system prompt.
    fn add_format(&self, mut system: String) -> String {
        if let Some(format) = &self.run.start.format {
            system.push_str("\n\n");
            system.push_str(&format.instruction());
        }
        system
    }

    /// Checks an answer against the format of this run. Returns the text to send, or why the answer does not fit.
    async fn check_format(&self, answer: &str) -> Result<String, String> {
        let Some(format) = &self.run.start.format else {
            return Ok(answer.to_owned());
        };
        let (json, text) = object_in(answer)?;
        if let Some(schema) = format.schema() {
            let raw = to_raw_value(schema).map_err(|error| error.to_string())?;
            let schema = schemas::compile_format(raw).await?;
            schemas::check(schema, &json).await?;
        }
        Ok(text)
    }

    /// Counts the tokens of a step whose reply is not stored.
    async fn count_step(&self, usage: Usage) -> Result<()> {
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        store::runs::add_step(&mut tx, &self.run, usage).await?;
        tx.commit().await
    }
}

/// The rows that a worker writes while its run goes on, and the events that it sends to the listeners.
impl RunWorker {
    /// Writes a reply that calls tools, its usage, and the lines of the audit trail for the calls that begin at once, in one
    /// transaction. Writes nothing, and returns false, if an equal request has taken the place of this run.
    async fn append_reply(&self, reply: &Reply, calls: &[StepCall]) -> Result<bool> {
        let mut parts = Vec::new();
        if !reply.text.trim().is_empty() {
            parts.push(Part::text(reply.text.clone()));
        }
        parts.extend(calls.iter().map(|one| Part::ToolCall(one.call.clone())));
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        if store::runs::add_step(&mut tx, &self.run, reply.usage).await? {
            return Ok(false);
        }
        store::audit::insert(&mut tx, self.run.tenant, &first_lines(calls)).await?;
        self.append_and_commit(tx, Role::Assistant, &parts, true)
            .await?;
        Ok(true)
    }

    /// Writes the call of a command with its line of the audit trail.
    async fn append_call(&self, call: &StepCall) -> Result<()> {
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        self.lock_run(&mut tx).await?;
        store::audit::insert(&mut tx, self.run.tenant, call.line()).await?;
        let parts = [Part::ToolCall(call.call.clone())];
        self.append_and_commit(tx, Role::Assistant, &parts, false)
            .await
    }

    /// Writes a message of this run, if this worker still holds the run, and tells the listeners.
    async fn append(&self, role: Role, parts: &[Part], for_model: bool) -> Result<()> {
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        self.lock_run(&mut tx).await?;
        self.append_and_commit(tx, role, parts, for_model).await
    }

    /// Locks the run, if this worker still holds it. A request to stop is noticed here, before anything follows from the
    /// message that is written: the result of a child that was stopped together with this run arrives earlier than the next
    /// heartbeat.
    async fn lock_run(&self, tx: &mut Tx) -> Result<()> {
        if store::runs::assert_held(tx, &self.run).await? {
            self.cancel.cancel();
        }
        Ok(())
    }

    /// Writes a message, commits the transaction, and tells the listeners.
    async fn append_and_commit(
        &self,
        mut tx: Tx,
        role: Role,
        parts: &[Part],
        for_model: bool,
    ) -> Result<()> {
        let event = self.write(&mut tx, role, parts, for_model).await?;
        tx.commit().await?;
        self.announce(event);
        Ok(())
    }

    /// Tells the listeners of a message that was written. Call it after the commit.
    fn announce(&self, event: Event) {
        self.last_event.fetch_max(event.seq, Ordering::Relaxed);
        self.app
            .announce(self.run.tenant, self.run.conversation, event);
    }

    /// Writes a message in the caller's transaction. If it is for the model, it also becomes part of the transcript.
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

    /// Sends an event to the listeners that is not stored.
    fn send_transient(&self, event: Transient) {
        let follows = self.last_event.load(Ordering::Relaxed);
        let place = (self.run.tenant, self.run.conversation);
        self.app.live.transient(place, follows, event);
    }

    fn transcript(&self) -> MutexGuard<'_, Option<ModelTranscript>> {
        self.transcript
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
