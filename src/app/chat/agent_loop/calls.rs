//! The tool calls of a step. They are made in parallel through the gate, and each result is written as soon as it
//! comes.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::RunWorker;

use crate::app::{
    chat::{resources, tool_search},
    tools::{
        approvals,
        elicitations::ElicitationTarget,
        gate::{self, Call, CallTarget, reads::ReadContext},
        toolset::Toolset,
    },
};
use domain::{
    approval::Approval,
    canonical, clock,
    error::Result,
    event::Transient,
    ids::AuditId,
    json::Json,
    message::{CallStatus, Message, Part, Role, ToolCall, ToolResult},
    resource, skill,
};
use llm::{Reply, Stop};
use store::audit::AuditRow;

/// Calls of one step that run at the same time.
const MAX_PARALLEL_CALLS: usize = 8;
/// Calls that one step may make. Each further call is refused with a result that says so.
const MAX_CALLS_PER_STEP: usize = 32;

/// The result of a call that may have been sent before the service stopped.
pub(super) const INTERRUPTED: &str = "outcome unknown: the service stopped while this call was under way; it may or may \
     not have been done. It was not repeated. Check before trying again";

/// A call of a step, with its server and tool if they exist.
pub(super) struct StepCall {
    pub call: ToolCall,
    /// What is wrong with the text of the arguments, if anything is.
    flaw: Option<BadArguments>,
    /// Its line in the audit trail, if the call may be sent, from when its turn has come. The line is written before the
    /// call is sent: with the row of the call, or, for a call that waits for another one to end, with the result of that
    /// other call.
    line: Option<AuditRow>,
}

pub(super) enum BadArguments {
    /// The text of arguments that are not JSON.
    Unparsed(String),
    /// Why two parsers could read the arguments differently.
    Irregular(String),
}

/// Finds the server and the tool behind the name of each call. An id that the model gave twice is replaced by a new
/// one.
fn resolve(reply: &Reply, toolset: &Toolset) -> Vec<(ToolCall, Option<BadArguments>)> {
    let mut seen = HashSet::new();
    let calls = reply.calls.iter().enumerate().map(|(at, call)| {
        let mut call_id = call.call_id.clone();
        if call_id.is_empty() || !seen.insert(call_id.clone()) {
            call_id = format!("call_{}_{at}", uuid::Uuid::now_v7().simple());
            seen.insert(call_id.clone());
        }
        let found = toolset.by_name(&call.name);
        // At the length limit the arguments of the last call may be cut off: then the call is not one without
        // arguments.
        let is_cut = reply.stop == Stop::Length && at + 1 == reply.calls.len();
        let text = match call.arguments.trim() {
            "" | "{}" if is_cut => "",
            "" => "{}",
            text => text,
        };
        let parsed = Json::parse(text);
        let flaw = match &parsed {
            Ok(_) => canonical::ambiguity(text).map(BadArguments::Irregular),
            Err(_) => Some(BadArguments::Unparsed(text.to_owned())),
        };
        let call = ToolCall {
            call_id,
            name: call.name.clone(),
            server: found.map(|(spec, _)| spec.id.to_string()),
            tool: found.map(|(_, named)| named.tool.name.clone()),
            arguments: parsed
                .unwrap_or_else(|_| Json::Text(text.to_owned()))
                .to_raw(),
            audit_id: found.map(|_| AuditId::new()),
        };
        (call, flaw)
    });
    calls.collect()
}

/// The calls in a message.
pub(super) fn calls_of(message: &Message) -> Vec<&ToolCall> {
    let calls = message.parts.iter().map(|part| match part {
        Part::ToolCall(call) => Some(call),
        _ => None,
    });
    calls.flatten().collect()
}

/// The results in a message.
pub(super) fn results_of(message: &Message) -> impl Iterator<Item = &ToolResult> {
    message.parts.iter().filter_map(|part| match part {
        Part::ToolResult(result) => Some(result),
        _ => None,
    })
}

/// Whether this is the call of a skill.
pub(super) fn is_skill(call: &ToolCall) -> bool {
    skill::of_call(call).is_some()
}

/// The lines in the audit trail of the calls that begin at once.
pub(super) fn first_lines(calls: &[StepCall]) -> Vec<AuditRow> {
    calls.iter().filter_map(|call| call.line.clone()).collect()
}

/// The calls of one step while they are made.
struct Step<'a> {
    toolset: &'a Arc<Toolset>,
    for_model: bool,
    user: Option<ElicitationTarget>,
    /// The calls that begin when another call has ended.
    waiting: Mutex<VecDeque<StepCall>>,
}

impl StepCall {
    /// Its line in the audit trail, if the call may be sent.
    pub(super) fn line(&self) -> &[AuditRow] {
        self.line.as_slice()
    }
}

impl Step<'_> {
    fn next(&self) -> Option<StepCall> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.pop_front()
    }
}

impl RunWorker {
    /// The calls of a model's reply.
    pub(super) fn calls_of_reply(&self, reply: &Reply, toolset: &Toolset) -> Vec<StepCall> {
        let calls = resolve(reply, toolset).into_iter();
        let calls = calls.map(|(call, flaw)| StepCall {
            call,
            flaw,
            line: None,
        });
        let mut calls: Vec<_> = calls.collect();
        let first = calls.iter_mut().take(MAX_PARALLEL_CALLS);
        first.for_each(|call| self.open_line(toolset, call));
        calls
    }

    pub(super) fn step_call(
        &self,
        toolset: &Toolset,
        call: ToolCall,
        flaw: Option<BadArguments>,
    ) -> StepCall {
        let mut call = StepCall {
            call,
            flaw,
            line: None,
        };
        self.open_line(toolset, &mut call);
        call
    }

    /// Makes the line of a call whose turn has come.
    fn open_line(&self, toolset: &Toolset, of: &mut StepCall) {
        of.line = match of.flaw {
            Some(BadArguments::Unparsed(_)) => None,
            _ => gate::opening_line(&self.app, &self.run, toolset, &of.call),
        };
    }

    /// Makes the calls of one step, whose [`first_lines`] are written. Each call gets exactly one result.
    pub(super) async fn make_calls(
        &self,
        toolset: &Arc<Toolset>,
        mut calls: Vec<StepCall>,
        for_model: bool,
        user: Option<ElicitationTarget>,
    ) -> Result<Vec<ToolResult>> {
        let refused: Vec<_> = calls
            .split_off(calls.len().min(MAX_CALLS_PER_STEP))
            .into_iter()
            .map(|refused| {
                let text = format!("not executed: at most {MAX_CALLS_PER_STEP} calls fit in one step; make the rest in the next one");
                Part::ToolResult(ToolResult::new(&refused.call.call_id, CallStatus::Denied, text))
            })
            .collect();
        if !refused.is_empty() {
            self.append(Role::Tool, &refused, for_model).await?;
        }
        let mut first = VecDeque::from(calls);
        let step = Step {
            toolset,
            for_model,
            user,
            waiting: Mutex::new(first.split_off(first.len().min(MAX_PARALLEL_CALLS))),
        };
        let results: Vec<Vec<ToolResult>> = stream::iter(first)
            .map(|call| self.make_one_by_one(&step, call))
            .buffer_unordered(MAX_PARALLEL_CALLS)
            .try_collect()
            .await?;
        Ok(results.concat())
    }

    /// Makes one call, and then the waiting calls of the step, one after the other.
    async fn make_one_by_one(&self, step: &Step<'_>, first: StepCall) -> Result<Vec<ToolResult>> {
        let (mut results, mut next) = (Vec::new(), Some(first));
        while let Some(step_call) = next {
            let started = clock::instant();
            let mut result = self.make_call(step, &step_call).await?;
            result.took_ms = u64::try_from(started.elapsed().as_millis()).ok();
            if is_skill(&step_call.call) {
                // The text of a skill's result is the same wherever it is read.
                result.text = skill::result_text(&result).text;
            }
            next = step.next();
            if let Some(next) = &mut next
                && !self.cancel.is_cancelled()
            {
                self.open_line(step.toolset, next);
            }
            let line = next.as_ref().and_then(|next| next.line.as_ref());
            let role = self.role_of_result(&step_call.call, &result, step.for_model);
            let finished = Transient::ToolFinished {
                run_id: self.run.id,
                call_id: step_call.call.call_id.clone(),
                server: step_call.call.server.clone(),
                tool: step_call.call.tool.clone(),
                status: result.status,
            };
            // Clients show an answer to the user below the line that says how the call ended.
            if role == Role::System {
                self.send_transient(finished);
                self.keep_result(&step_call, &result, line, role, step.for_model)
                    .await?;
            } else {
                self.keep_result(&step_call, &result, line, role, step.for_model)
                    .await?;
                self.send_transient(finished);
            }
            results.push(result);
        }
        Ok(results)
    }

    async fn make_call(&self, step: &Step<'_>, step_call: &StepCall) -> Result<ToolResult> {
        let call = &step_call.call;
        if !self.cancel.is_cancelled() {
            return self.send_through_gate(step, step_call).await;
        }
        let what = match (&call.server, &call.tool) {
            (Some(server), Some(tool)) => format!("{server}.{tool}"),
            _ => call.name.clone(),
        };
        let text = format!("cancelled before {what} was sent");
        Ok(ToolResult::new(&call.call_id, CallStatus::Cancelled, text))
    }

    /// Writes a result, the resources that it links to, the end of its line in the audit trail, and the line of the
    /// call that begins next (`next`), in one transaction.
    async fn keep_result(
        &self,
        step_call: &StepCall,
        result: &ToolResult,
        next: Option<&AuditRow>,
        role: Role,
        for_model: bool,
    ) -> Result<()> {
        let links = result
            .raw
            .as_ref()
            .map(|raw| resource::links_in(raw))
            .unwrap_or_default();
        let tenant = self.run.tenant;
        let mut tx = self.app.db.tenant(tenant).await?;
        self.lock_run(&mut tx).await?;
        if let Some(line) = &step_call.line {
            store::audit::record_outcome(&mut tx, line.id, result.status.into_str()).await?;
        }
        if let Some(next) = next {
            store::audit::insert(&mut tx, tenant, std::slice::from_ref(next)).await?;
        }
        if let (Some(server), Some(tool)) = (&step_call.call.server, &step_call.call.tool) {
            let session = self.run.conversation;
            store::resources::insert(&mut tx, tenant, session, server.as_str(), tool, &links)
                .await?;
        }
        let parts = [Part::ToolResult(result.clone())];
        self.append_and_commit(tx, role, &parts, for_model).await?;
        if !links.is_empty() {
            // The store keeps only some of the links, so they are read again from the rows.
            *self.transcript() = None;
        }
        Ok(())
    }

    /// The role of the message with a result. The result of a call that the user typed is the program's answer to them,
    /// unless the user reads of it in another message: a question, a request for consent, or the error of a skill's
    /// run.
    fn role_of_result(&self, call: &ToolCall, result: &ToolResult, for_model: bool) -> Role {
        let is_in_other_message = match result.status {
            CallStatus::AwaitingInput | CallStatus::AwaitingApproval => true,
            CallStatus::Failed | CallStatus::Denied => is_skill(call),
            CallStatus::OutcomeUnknown => is_skill(call) && !self.cancel.is_cancelled(),
            CallStatus::Succeeded | CallStatus::Cancelled => false,
        };
        if for_model || is_in_other_message {
            Role::Tool
        } else {
            Role::System
        }
    }

    /// Tells the listeners that a call of a known tool begins. Returns the target of the call.
    fn announce_call<'a>(&self, call: &'a ToolCall) -> CallTarget<'a> {
        let (Some(server), Some(tool)) = (&call.server, &call.tool) else {
            return CallTarget::Name(&call.name);
        };
        self.send_transient(Transient::ToolStarted {
            run_id: self.run.id,
            call_id: call.call_id.clone(),
            server: server.clone(),
            tool: tool.clone(),
        });
        CallTarget::Pair { server, tool }
    }

    async fn send_through_gate(&self, step: &Step<'_>, step_call: &StepCall) -> Result<ToolResult> {
        let (toolset, user) = (step.toolset, step.user);
        let (call, flaw) = (&step_call.call, step_call.flaw.as_ref());
        let run_id = self.run.id;
        if call.server.is_none() && call.name == tool_search::TOOL {
            return tool_search::call(toolset, call);
        }
        if call.server.is_none() && call.name == resources::TOOL {
            let context = ReadContext {
                principal: &self.run.principal,
                toolset,
                run: Some(run_id),
            };
            return resources::call(&self.app, &context, self.run.conversation, call).await;
        }
        let target = self.announce_call(call);
        let (progress, mut reports) = mcp::progress_channel();
        let wanted = Call {
            principal: &self.run.principal,
            toolset,
            run: Some(run_id),
            call_id: &call.call_id,
            line: call.audit_id,
            is_recorded: step_call.line.is_some(),
            target,
            origin: self.run.origin_of(call),
            arguments: match flaw {
                Some(BadArguments::Unparsed(text)) => Err(text),
                _ => Ok(call.arguments()),
            },
            ambiguity: match flaw {
                Some(BadArguments::Irregular(why)) => Some(why),
                _ => None,
            },
            progress,
            cancel: self.cancel.clone(),
            elicitation: user,
            // A program that expects JSON, and the model of an agent above, show nobody a request.
            shows_requests: self.run.start.format.is_none() && !self.run.start.is_delegated,
        };
        let mut answer = std::pin::pin!(gate::call(&self.app, wanted));
        loop {
            tokio::select! {
                result = &mut answer => return Ok(result),
                Some(report) = reports.next() => self.send_transient(Transient::ToolProgress {
                    run_id,
                    call_id: call.call_id.clone(),
                    progress: report.progress,
                    total: report.total,
                    message: report.message,
                }),
            }
        }
    }

    /// Writes the one result of each call that an earlier attempt left without one.
    pub(super) async fn close_open_calls(&self, written: &[Message]) -> Result<()> {
        let closed: HashSet<&str> = written
            .iter()
            .flat_map(results_of)
            .map(|result| result.call_id.as_str())
            .collect();
        let open: Vec<_> = written
            .iter()
            .flat_map(calls_of)
            .filter(|call| !closed.contains(call.call_id.as_str()))
            .collect();
        if open.is_empty() {
            return Ok(());
        }
        let lines: Vec<AuditId> = open.iter().filter_map(|call| call.audit_id).collect();
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        let requests = store::approvals::list_of_run(&mut tx, self.run.id).await?;
        let sent = store::audit::list_written(&mut tx, &lines).await?;
        drop(tx);
        let for_model = self.run.kind == domain::run::RunKind::Turn;
        for call in open {
            let request = requests
                .iter()
                .find(|request| request.call_id == call.call_id);
            let result = result_of_interrupted(call, request, &sent);
            let role = self.role_of_result(call, &result, for_model);
            self.append(role, &[Part::ToolResult(result)], for_model)
                .await?;
        }
        Ok(())
    }
}

/// The result of a call that an earlier attempt left open. `sent` holds the audit lines of the calls that may have been
/// sent.
fn result_of_interrupted(
    call: &ToolCall,
    request: Option<&Approval>,
    sent: &HashSet<AuditId>,
) -> ToolResult {
    if let Some(request) = request {
        let (text, advice) = approvals::waiting_text(request, None);
        return ToolResult {
            advice: Some(advice.to_owned()),
            approval: Some(request.id),
            ..ToolResult::new(&call.call_id, CallStatus::AwaitingApproval, text)
        };
    }
    // A call without the id of a line was written by an old release, which wrote no line before it sent a call.
    if call.audit_id.is_some_and(|line| !sent.contains(&line)) {
        let text = "failed, nothing was sent: the service stopped before. Make the call again if it is still wanted";
        return ToolResult::new(&call.call_id, CallStatus::Failed, text);
    }
    ToolResult::new(&call.call_id, CallStatus::OutcomeUnknown, INTERRUPTED)
}
