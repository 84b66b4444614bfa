//! The input of a run that is more than a message for the model.
//!
//! A message may name a prompt of a server. The messages of the prompt then stand in its place. They are written in one
//! transaction, so that a run that is taken up again does not write them twice.
//!
//! A message may answer a prompt of the program: the next step of a flow, the next question of a server's form, or the
//! last question of a form. After the last answer the server's call is made again with the answers, once. The call is
//! marked before it is sent, so that a replica that takes the run up does not send it a second time.

use std::sync::Arc;

use super::{Ending, RunWorker, calls::INTERRUPTED};
use crate::app::{
    chat::{
        elicitations as questions, flows,
        prompt_answers::{self, RunInput},
        prompts::{self, PromptOutcome},
        skill_forms,
    },
    tools::{
        elicitations::{self, ElicitationTarget},
        gate::{self, AnsweredCall, Call, CallTarget},
        toolset,
    },
};
use domain::{
    elicitation::{Elicitation, Entered, Request},
    error::Result,
    ids::AuditId,
    json::Json,
    message::{CallOutcome, CallStatus, Message, Part, Role, ToolResult},
    pack::Pack,
    policy::Origin,
    prompt, resource, texts,
};

impl RunWorker {
    /// Prepares a turn before the model is asked. `Some` when there is nothing left to ask the model.
    pub(super) async fn prepare_turn(&self, pack: &Arc<Pack>) -> Result<Option<Ending>> {
        let start = &self.run.start;
        if !start.needs_preparation {
            return Ok(None);
        }
        let written = self.load_messages().await?;
        let (mut messages, mut notices) = (Vec::new(), Vec::new());
        if !written.iter().any(is_of_server_prompt) {
            // A message of the user after the first reply answers a server's question.
            let asked = written
                .iter()
                .take_while(|message| message.role != Role::Assistant);
            for message in asked.filter(|message| message.role == Role::User) {
                let text = message.plain();
                let Some(command) = prompt::command(&text) else {
                    continue;
                };
                match prompts::use_prompt(
                    &self.app,
                    &self.run.principal,
                    pack,
                    self.run.id,
                    command,
                )
                .await?
                {
                    PromptOutcome::Messages(of_prompt) => messages.extend(of_prompt),
                    PromptOutcome::Notice(notice) => notices.push(*notice),
                }
            }
        }
        let mut has_input = start.has_input || !messages.is_empty();
        if let RunInput::Calls(calls) = prompt_answers::load_input(&self.app, &self.run).await? {
            let target = elicitations::target_of(&self.app, &self.run, true);
            has_input |= self.repeat_calls(pack, calls, target).await?;
        }
        self.write_prompt_messages(messages).await?;
        if !has_input {
            let ending = Ending::succeeded();
            return Ok(Some(if notices.is_empty() {
                ending
            } else {
                ending.with_notices(notices)
            }));
        }
        if !notices.is_empty() {
            self.append(Role::System, &notices, false).await?;
        }
        Ok(None)
    }

    async fn write_prompt_messages(&self, messages: Vec<(Role, Part)>) -> Result<()> {
        if messages.is_empty() {
            return Ok(());
        }
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        store::runs::assert_held(&mut tx, &self.run).await?;
        let mut events = Vec::new();
        for (role, part) in messages {
            events.push(self.write(&mut tx, role, &[part], true).await?);
        }
        tx.commit().await?;
        for event in events {
            self.announce(event);
        }
        Ok(())
    }
}

/// Whether a message is the text of a server's prompt rather than a message of the user or the model.
pub(super) fn is_of_server_prompt(message: &Message) -> bool {
    message
        .parts
        .iter()
        .any(|part| matches!(part, Part::ServerPrompt(_)))
}

impl RunWorker {
    /// Continues with the answers that this run was given. `None` when the run was given none.
    pub(super) async fn continue_with_answers(
        &self,
        pack: &Arc<Pack>,
        written: &[Message],
        target: Option<ElicitationTarget>,
    ) -> Result<Option<Ending>> {
        let is_sent = written
            .iter()
            .flat_map(|message| &message.parts)
            .any(|part| matches!(part, Part::CallOutcome(_)));
        if !is_sent {
            let (app, run) = (&self.app, &self.run);
            let parts = match prompt_answers::load_input(app, run).await? {
                RunInput::Nothing => return Ok(None),
                RunInput::Flow(flow) => Some(flows::apply_answer(app, run, *flow).await?),
                RunInput::Question(elicitation) => {
                    let texts = texts::of(pack, &run.principal);
                    Some(questions::ask_next(app, run, &texts, &elicitation).await?)
                }
                RunInput::Command(answered) => {
                    let answer = skill_forms::finish(app, run, &answered).await?;
                    let ending = self.apply_command(pack, answer, target).await?;
                    let mut tx = app.db.tenant(run.tenant).await?;
                    store::elicitations::end(&mut tx, answered.id).await?;
                    tx.commit().await?;
                    return Ok(Some(ending));
                }
                RunInput::Calls(calls) => {
                    self.repeat_calls(pack, calls, target).await?;
                    None
                }
            };
            if let Some(parts) = parts {
                return Ok(Some(Ending::succeeded().with_notices(parts)));
            }
        }
        self.report_credentials(pack).await?;
        Ok(Some(if self.cancel.is_cancelled() {
            Ending::cancelled()
        } else {
            Ending::succeeded()
        }))
    }

    /// Makes the calls again whose questions were answered in this run. Returns whether at least one of the calls has ended;
    /// the others wait for their user again.
    async fn repeat_calls(
        &self,
        pack: &Arc<Pack>,
        answered: Vec<Elicitation>,
        user: Option<ElicitationTarget>,
    ) -> Result<bool> {
        let mut is_any_over = false;
        for elicitation in answered {
            let (result, line) = self.repeat_call_once(pack, &elicitation, user).await?;
            self.keep_outcome(&elicitation, &result, line).await?;
            is_any_over |= result.status != CallStatus::AwaitingInput;
        }
        Ok(is_any_over)
    }

    /// Makes a call again with its answers, unless it was made again before. Returns the result, and the line in the audit
    /// trail that the result ends.
    async fn repeat_call_once(
        &self,
        pack: &Arc<Pack>,
        elicitation: &Elicitation,
        user: Option<ElicitationTarget>,
    ) -> Result<(ToolResult, Option<AuditId>)> {
        let result = |status, text: &str| ToolResult::new(&elicitation.call_id, status, text);
        let unsealed = elicitations::unseal(&self.app, self.run.tenant, elicitation).await?;
        let line = unsealed.as_ref().map(|(request, _)| {
            gate::opening_line_of_answered(&self.app, &self.run, elicitation, &request.arguments)
        });
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        store::runs::assert_held(&mut tx, &self.run).await?;
        let is_first = store::elicitations::mark_sent(&mut tx, elicitation.id).await?;
        if is_first {
            store::audit::insert(&mut tx, self.run.tenant, line.as_slice()).await?;
        }
        tx.commit().await?;
        if !is_first {
            return Ok((result(CallStatus::OutcomeUnknown, INTERRUPTED), None));
        }
        let line = line.map(|line| line.id);
        let Some((request, entered)) = unsealed else {
            let text = "not executed: what the user answered cannot be opened any more";
            return Ok((result(CallStatus::Denied, text), None));
        };
        if self.cancel.is_cancelled() {
            let text = "cancelled before it was sent";
            return Ok((result(CallStatus::Cancelled, text), line));
        }
        let result = self.repeat_call(pack, elicitation, request, &entered, user);
        Ok((result.await?, line))
    }

    async fn repeat_call(
        &self,
        pack: &Arc<Pack>,
        elicitation: &Elicitation,
        request: Request,
        entered: &Entered,
        user: Option<ElicitationTarget>,
    ) -> Result<ToolResult> {
        let toolset = toolset::select(&self.app, &self.run.principal, pack).await?;
        // The call has no row of its own any more at which a client could show progress.
        let (progress, _) = mcp::progress_channel();
        let call = Call {
            principal: &self.run.principal,
            toolset: &toolset,
            run: Some(self.run.id),
            call_id: &elicitation.call_id,
            line: None,
            is_recorded: true,
            target: CallTarget::Pair {
                server: elicitation.server.as_str(),
                tool: &elicitation.tool,
            },
            origin: if elicitation.for_model {
                Origin::Chat
            } else {
                Origin::Command
            },
            arguments: Ok(Json::parse(request.arguments.get()).unwrap_or(Json::Null)),
            ambiguity: None,
            progress,
            cancel: self.cancel.clone(),
            elicitation: user.map(|user| ElicitationTarget {
                for_model: elicitation.for_model,
                ..user
            }),
            shows_requests: false,
        };
        let answer = request.answer(entered);
        let credential = elicitation.credential.clone();
        let answered = AnsweredCall {
            credential,
            answer,
            rounds: elicitation.round,
            taken: request.taken,
        };
        Ok(gate::call_with_answer(&self.app, &call, answered).await)
    }

    /// Stores the result of a call, for the model if the model waits for it. A call that waits again for its user has no
    /// result yet.
    async fn keep_outcome(
        &self,
        elicitation: &Elicitation,
        result: &ToolResult,
        line: Option<AuditId>,
    ) -> Result<()> {
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        store::runs::assert_held(&mut tx, &self.run).await?;
        if let Some(line) = line {
            store::audit::record_outcome(&mut tx, line, result.status.into_str()).await?;
        }
        store::elicitations::end(&mut tx, elicitation.id).await?;
        if result.status == CallStatus::AwaitingInput {
            return tx.commit().await;
        }
        let links = result
            .raw
            .as_ref()
            .map(|raw| resource::links_in(raw))
            .unwrap_or_default();
        store::resources::insert(
            &mut tx,
            self.run.tenant,
            self.run.conversation,
            elicitation.server.as_str(),
            &elicitation.tool,
            &links,
        )
        .await?;
        let outcome = CallOutcome {
            call_id: elicitation.call_id.clone(),
            server: elicitation.server.to_string(),
            tool: elicitation.tool.clone(),
            status: result.status,
            text: result.text.clone(),
            raw: result.raw.clone(),
        };
        self.append_and_commit(
            tx,
            Role::System,
            &[Part::CallOutcome(Box::new(outcome))],
            elicitation.for_model,
        )
        .await
    }
}
