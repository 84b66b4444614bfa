//! The tool calls of a step: made in parallel through the gate, each result a row as soon as it is there.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::RunWorker;

use crate::{
    app::{
        chat::{resources, tool_search},
        tools::{
            approvals,
            elicitations::ElicitationTarget,
            gate::{self, Call, CallTarget, reads::ReadContext},
            toolset::Toolbox,
        },
    },
    domain::{
        approval::Approval,
        canonical, clock,
        error::Result,
        event::Transient,
        ids::AuditId,
        json::Json,
        message::{CallStatus, Message, Part, Role, ToolCall, ToolResult},
        resource, skill,
    },
    llm::{Reply, Stop},
    store::{self, audit::AuditRow},
};

/// Calls of one step that run at the same time.
const MAX_PARALLEL_CALLS: usize = 8;
/// Calls that one step may make; the rest is refused with a result that says so.
const MAX_CALLS_PER_STEP: usize = 32;

/// A call and what is wrong with the text of its arguments.
pub(super) type ResolvedCall = (ToolCall, Option<BadArguments>);

pub(super) enum BadArguments {
    /// This is not JSON.
    Unparsed(String),
    /// Two parsers could read it differently; the text says why.
    Irregular(String),
}

/// Finds server and tool behind each name. Ids that the model gave twice are made unique.
pub(super) fn resolve(reply: &Reply, toolbox: &Toolbox) -> Vec<ResolvedCall> {
    let mut seen = HashSet::new();
    let calls = reply.calls.iter().enumerate().map(|(at, call)| {
        let mut call_id = call.call_id.clone();
        if call_id.is_empty() || !seen.insert(call_id.clone()) {
            call_id = format!("call_{}_{at}", uuid::Uuid::now_v7().simple());
            seen.insert(call_id.clone());
        }
        let found = toolbox.by_name(&call.name);
        // At the length limit the last call may lack its arguments; that is not a call without any.
        let cut = reply.stop == Stop::Length && at + 1 == reply.calls.len();
        let text = match call.arguments.trim() {
            "" | "{}" if cut => "",
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
pub(super) fn of(message: &Message) -> Vec<&ToolCall> {
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

/// A call that is begun, and its line in the audit trail if it may be sent. The line is written before the call is sent:
/// with the row of the call, or with the result of the call whose place it takes.
struct Begun {
    call: ToolCall,
    flaw: Option<BadArguments>,
    line: Option<AuditRow>,
}

/// One step at work.
struct Step<'a> {
    toolbox: &'a Arc<Toolbox>,
    for_model: bool,
    user: Option<ElicitationTarget>,
    /// Calls that wait for a place.
    waiting: Mutex<VecDeque<Begun>>,
}

impl Step<'_> {
    fn next(&self) -> Option<Begun> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.pop_front()
    }
}

impl RunWorker {
    /// The lines of the audit trail for the calls of a step that begin at once.
    pub(super) fn first_lines(&self, toolbox: &Toolbox, calls: &[ResolvedCall]) -> Vec<AuditRow> {
        let first = calls.iter().take(MAX_PARALLEL_CALLS);
        first
            .filter_map(|(call, flaw)| self.line_of(toolbox, call, flaw.as_ref()))
            .collect()
    }

    fn line_of(
        &self,
        toolbox: &Toolbox,
        call: &ToolCall,
        flaw: Option<&BadArguments>,
    ) -> Option<AuditRow> {
        match flaw {
            Some(BadArguments::Unparsed(_)) => None,
            _ => gate::opening_line(&self.app, &self.run, toolbox, call),
        }
    }

    /// Makes the calls of one step, whose [`RunWorker::first_lines`] are written. Every call gets exactly one result.
    pub(super) async fn make_calls(
        &self,
        toolbox: &Arc<Toolbox>,
        mut calls: Vec<ResolvedCall>,
        for_model: bool,
        user: Option<ElicitationTarget>,
    ) -> Result<Vec<ToolResult>> {
        let refused: Vec<_> = calls
            .split_off(calls.len().min(MAX_CALLS_PER_STEP))
            .into_iter()
            .map(|(call, _)| {
                let text = format!("not executed: at most {MAX_CALLS_PER_STEP} calls fit in one step; make the rest in the next one");
                Part::ToolResult(result_of(&call, CallStatus::Denied, text))
            })
            .collect();
        if !refused.is_empty() {
            self.append(Role::Tool, &refused, for_model).await?;
        }
        let begin = |(call, flaw): ResolvedCall| Begun {
            line: self.line_of(toolbox, &call, flaw.as_ref()),
            call,
            flaw,
        };
        let mut first: VecDeque<Begun> = calls.into_iter().map(begin).collect();
        let step = Step {
            toolbox,
            for_model,
            user,
            waiting: Mutex::new(first.split_off(first.len().min(MAX_PARALLEL_CALLS))),
        };
        let results: Vec<Vec<ToolResult>> = stream::iter(first)
            .map(|begun| self.work_off(&step, begun))
            .buffer_unordered(MAX_PARALLEL_CALLS)
            .try_collect()
            .await?;
        Ok(results.concat())
    }

    /// Makes a call, and one after the other those that wait.
    async fn work_off(&self, step: &Step<'_>, first: Begun) -> Result<Vec<ToolResult>> {
        let (mut results, mut next) = (Vec::new(), Some(first));
        while let Some(begun) = next {
            let started = clock::instant();
            let mut result = self.make_call(step, &begun).await?;
            result.took_ms = u64::try_from(started.elapsed().as_millis()).ok();
            if is_skill(&begun.call) {
                // What the skill says, wherever its result is read.
                result.text = skill::result_text(&result).text;
            }
            next = step.next();
            if let Some(next) = &mut next
                && self.cancel.is_cancelled()
            {
                next.line = None;
            }
            let line = next.as_ref().and_then(|next| next.line.as_ref());
            let role = self.speaker(&begun.call, &result, step.for_model);
            let finished = Transient::ToolFinished {
                run_id: self.run.id,
                call_id: begun.call.call_id.clone(),
                server: begun.call.server.clone(),
                tool: begun.call.tool.clone(),
                status: result.status,
            };
            // An answer to the user is shown below the line that says how the call ended.
            if role == Role::System {
                self.transient(finished);
                self.keep_result(&begun, &result, line, (role, step.for_model))
                    .await?;
            } else {
                self.keep_result(&begun, &result, line, (role, step.for_model))
                    .await?;
                self.transient(finished);
            }
            results.push(result);
        }
        Ok(results)
    }

    async fn make_call(&self, step: &Step<'_>, begun: &Begun) -> Result<ToolResult> {
        let call = &begun.call;
        if !self.cancel.is_cancelled() {
            return self.through_the_gate(step, begun).await;
        }
        let what = match (&call.server, &call.tool) {
            (Some(server), Some(tool)) => format!("{server}.{tool}"),
            _ => call.name.clone(),
        };
        let text = format!("cancelled before {what} was sent");
        Ok(result_of(call, CallStatus::Cancelled, text))
    }

    /// A result as a row, with what it links to, how its line in the audit trail ends, and the line of the call that is
    /// begun next.
    async fn keep_result(
        &self,
        begun: &Begun,
        result: &ToolResult,
        next: Option<&AuditRow>,
        (role, for_model): (Role, bool),
    ) -> Result<()> {
        let links = result
            .raw
            .as_ref()
            .map(|raw| resource::links_in(raw))
            .unwrap_or_default();
        let tenant = self.run.tenant;
        let mut tx = self.app.db.tenant(tenant).await?;
        self.hold(&mut tx).await?;
        if let Some(line) = &begun.line {
            store::audit::end(&mut tx, line.id, result.status.as_str()).await?;
        }
        if let Some(next) = next {
            store::audit::insert(&mut tx, tenant, std::slice::from_ref(next)).await?;
        }
        if let (Some(server), Some(tool)) = (&begun.call.server, &begun.call.tool) {
            let whose = (server.as_str(), tool.as_str());
            store::resources::insert(&mut tx, tenant, self.run.conversation, whose, &links).await?;
        }
        let parts = [Part::ToolResult(result.clone())];
        self.commit(tx, role, &parts, for_model).await?;
        if !links.is_empty() {
            // The rows decide which links are kept.
            *self.transcript() = None;
        }
        Ok(())
    }

    /// Who says a result. The result of a call that its user typed is the program's answer to them, unless they are told
    /// in another way: they are asked something, consent is asked for, or the run of a skill fails with these words.
    fn speaker(&self, call: &ToolCall, result: &ToolResult, for_model: bool) -> Role {
        let is_told_otherwise = match result.status {
            CallStatus::AwaitingInput | CallStatus::AwaitingApproval => true,
            CallStatus::Failed | CallStatus::Denied => is_skill(call),
            CallStatus::OutcomeUnknown => is_skill(call) && !self.cancel.is_cancelled(),
            CallStatus::Succeeded | CallStatus::Cancelled => false,
        };
        if for_model || is_told_otherwise {
            Role::Tool
        } else {
            Role::System
        }
    }

    /// What a call is for. Listeners are told when that is a tool that is known.
    fn announce_call<'a>(&self, call: &'a ToolCall) -> CallTarget<'a> {
        let (Some(server), Some(tool)) = (&call.server, &call.tool) else {
            return CallTarget::Name(&call.name);
        };
        self.transient(Transient::ToolStarted {
            run_id: self.run.id,
            call_id: call.call_id.clone(),
            server: server.clone(),
            tool: tool.clone(),
        });
        CallTarget::Pair { server, tool }
    }

    async fn through_the_gate(&self, step: &Step<'_>, begun: &Begun) -> Result<ToolResult> {
        let (toolbox, user) = (step.toolbox, step.user);
        let (call, flaw) = (&begun.call, begun.flaw.as_ref());
        let run_id = self.run.id;
        if call.server.is_none() && call.name == tool_search::TOOL {
            return tool_search::call(toolbox, call);
        }
        if call.server.is_none() && call.name == resources::TOOL {
            let asking = ReadContext {
                principal: &self.run.principal,
                toolbox,
                run: Some(run_id),
            };
            return resources::call(&self.app, &asking, self.run.conversation, run_id, call).await;
        }
        let target = self.announce_call(call);
        let (progress, mut reports) = crate::mcp::progress_channel();
        let wanted = Call {
            principal: &self.run.principal,
            toolbox,
            run: Some(run_id),
            call_id: &call.call_id,
            is_recorded: begun.line.is_some(),
            target,
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
        };
        let mut answer = std::pin::pin!(gate::call(&self.app, wanted));
        loop {
            tokio::select! {
                result = &mut answer => return Ok(result),
                Some(report) = reports.next() => self.transient(Transient::ToolProgress {
                    run_id,
                    call_id: call.call_id.clone(),
                    progress: report.progress,
                    total: report.total,
                    message: report.message,
                }),
            }
        }
    }

    /// Gives every call that an earlier attempt left open its one result.
    pub(super) async fn close_open_calls(&self, written: &[Message]) -> Result<()> {
        let closed: HashSet<&str> = written
            .iter()
            .flat_map(results_of)
            .map(|result| result.call_id.as_str())
            .collect();
        let open: Vec<_> = written
            .iter()
            .flat_map(of)
            .filter(|call| !closed.contains(call.call_id.as_str()))
            .collect();
        if open.is_empty() {
            return Ok(());
        }
        let lines: Vec<AuditId> = open.iter().filter_map(|call| call.audit_id).collect();
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        let requests = store::approvals::of_run(&mut tx, self.run.id).await?;
        let sent = store::audit::written(&mut tx, &lines).await?;
        drop(tx);
        let for_model = self.run.kind == crate::domain::run::RunKind::Turn;
        for call in open {
            let request = requests
                .iter()
                .find(|request| request.call_id == call.call_id);
            let result = interrupted(call, request, &sent);
            let role = self.speaker(call, &result, for_model);
            self.append(role, &[Part::ToolResult(result)], for_model)
                .await?;
        }
        Ok(())
    }
}

/// What is known of a call that an earlier attempt left open; `sent` are the lines of those that may have been sent.
fn interrupted(call: &ToolCall, request: Option<&Approval>, sent: &HashSet<AuditId>) -> ToolResult {
    if let Some(request) = request {
        let (text, advice) = approvals::waiting_text(request, false);
        return ToolResult {
            advice: Some(advice.to_owned()),
            approval: Some(request.id),
            ..result_of(call, CallStatus::AwaitingApproval, text)
        };
    }
    // A call without the id of a line is of a release that wrote none before it sent.
    if call.audit_id.is_some_and(|line| !sent.contains(&line)) {
        let text = "failed, nothing was sent: the service stopped before. Make the call again if it is still wanted";
        return result_of(call, CallStatus::Failed, text.to_owned());
    }
    let text = "outcome unknown: the service stopped while this call was under way; it may or may not have been done. \
                It was not repeated. Check before trying again";
    result_of(call, CallStatus::OutcomeUnknown, text.to_owned())
}

fn result_of(call: &ToolCall, status: CallStatus, text: String) -> ToolResult {
    ToolResult {
        call_id: call.call_id.clone(),
        status,
        text,
        raw: None,
        advice: None,
        approval: None,
        took_ms: None,
    }
}
