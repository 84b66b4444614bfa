//! The tool calls of a step: made in parallel through the gate, each result a row as soon as it is there.

use std::{collections::HashSet, sync::Arc};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::Value;
use tokio::sync::mpsc;

use super::Work;
use crate::{
    app::{
        chat::{resources, tool_search},
        tools::{
            elicitations::ElicitationTarget,
            gate::{self, Call, Target, reading::Asking},
            toolset::Toolbox,
        },
    },
    domain::{
        canonical,
        error::Result,
        event::Transient,
        message::{CallStatus, Message, Part, Role, ToolCall, ToolResult},
        resource,
    },
    llm::{Reply, Stop},
    store,
};

/// Calls of one step that run at the same time.
const AT_ONCE: usize = 8;
/// Calls that one step may make; the rest is refused with a result that says so.
const MOST: usize = 32;

/// A call and what is wrong with the text of its arguments.
pub(super) type Resolved = (ToolCall, Option<Flaw>);

pub(super) enum Flaw {
    /// This is not JSON.
    Unparsed(String),
    /// Two readers could understand it differently, and why.
    Irregular(String),
}

/// Finds server and tool behind each name. Ids that the model gave twice are made unique.
pub(super) fn resolve(reply: &Reply, toolbox: &Toolbox) -> Vec<Resolved> {
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
        let parsed = serde_json::from_str::<Value>(text);
        let flaw = match &parsed {
            Ok(_) => canonical::irregularity(text).map(Flaw::Irregular),
            Err(_) => Some(Flaw::Unparsed(text.to_owned())),
        };
        let call = ToolCall {
            call_id,
            name: call.name.clone(),
            server: found.map(|(spec, _)| spec.id.to_string()),
            tool: found.map(|(_, named)| named.tool.name.clone()),
            arguments: parsed.unwrap_or_else(|_| Value::String(text.to_owned())),
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

impl Work {
    /// Makes the calls of one step. Every call gets exactly one result.
    pub(super) async fn make_calls(
        &self,
        toolbox: &Arc<Toolbox>,
        mut calls: Vec<Resolved>,
        for_model: bool,
        user: Option<ElicitationTarget>,
    ) -> Result<Vec<ToolResult>> {
        let refused: Vec<_> = calls
            .split_off(calls.len().min(MOST))
            .into_iter()
            .map(|(call, _)| {
                let text = format!("not executed: at most {MOST} calls fit in one step; make the rest in the next one");
                Part::ToolResult(ToolResult {
                    call_id: call.call_id,
                    status: CallStatus::Denied,
                    text,
                    raw: None,
                    approval: None,
                })
            })
            .collect();
        if !refused.is_empty() {
            self.append(Role::Tool, &refused, for_model).await?;
        }
        stream::iter(calls)
            .map(|call| self.make_call(toolbox, call, for_model, user))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    async fn make_call(
        &self,
        toolbox: &Arc<Toolbox>,
        call: Resolved,
        for_model: bool,
        user: Option<ElicitationTarget>,
    ) -> Result<ToolResult> {
        let (call, flaw) = call;
        let result = if self.cancel.is_cancelled() {
            let what = match (&call.server, &call.tool) {
                (Some(server), Some(tool)) => format!("{server}.{tool}"),
                _ => call.name.clone(),
            };
            let text = format!("cancelled before {what} was sent");
            ToolResult {
                call_id: call.call_id.clone(),
                status: CallStatus::Cancelled,
                text,
                raw: None,
                approval: None,
            }
        } else {
            self.through_the_gate(toolbox, &call, flaw.as_ref(), user)
                .await?
        };
        self.keep_result(&call, &result, for_model).await?;
        let (run_id, call_id, status) = (self.run.id, call.call_id, result.status);
        self.transient(Transient::ToolFinished {
            run_id,
            call_id,
            status,
        });
        Ok(result)
    }

    /// A result as a row, with what it links to.
    async fn keep_result(
        &self,
        call: &ToolCall,
        result: &ToolResult,
        for_model: bool,
    ) -> Result<()> {
        let links = result
            .raw
            .as_ref()
            .map(|raw| resource::links_in(raw))
            .unwrap_or_default();
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        self.hold(&mut tx).await?;
        if let (Some(server), Some(tool)) = (&call.server, &call.tool) {
            store::resources::keep(
                &mut tx,
                self.run.tenant,
                self.run.conversation,
                (server, tool),
                &links,
            )
            .await?;
        }
        self.commit(
            tx,
            Role::Tool,
            &[Part::ToolResult(result.clone())],
            for_model,
        )
        .await?;
        if !links.is_empty() {
            // Which of them are kept is for the rows to say.
            *self.transcript() = None;
        }
        Ok(())
    }

    async fn through_the_gate(
        &self,
        toolbox: &Arc<Toolbox>,
        call: &ToolCall,
        flaw: Option<&Flaw>,
        user: Option<ElicitationTarget>,
    ) -> Result<ToolResult> {
        let run_id = self.run.id;
        if call.server.is_none() && call.name == tool_search::TOOL {
            return tool_search::call(toolbox, call);
        }
        if call.server.is_none() && call.name == resources::TOOL {
            let asking = Asking {
                principal: &self.run.principal,
                toolbox,
                run: Some(run_id),
            };
            return resources::call(&self.app, &asking, self.run.conversation, run_id, call).await;
        }
        let target = match (&call.server, &call.tool) {
            (Some(server), Some(tool)) => {
                self.transient(Transient::ToolStarted {
                    run_id,
                    call_id: call.call_id.clone(),
                    server: server.clone(),
                    tool: tool.clone(),
                });
                Target::Pair { server, tool }
            }
            _ => Target::Name(&call.name),
        };
        let (progress, mut reports) = mpsc::unbounded_channel::<crate::mcp::Progress>();
        let wanted = Call {
            principal: &self.run.principal,
            toolbox,
            run: run_id,
            call_id: &call.call_id,
            target,
            arguments: match flaw {
                Some(Flaw::Unparsed(text)) => Err(text),
                _ => Ok(call.arguments.clone()),
            },
            irregularity: match flaw {
                Some(Flaw::Irregular(why)) => Some(why),
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
                Some(report) = reports.recv() => self.transient(Transient::ToolProgress {
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
        let open = written
            .iter()
            .flat_map(of)
            .filter(|call| !closed.contains(call.call_id.as_str()));
        for call in open {
            let result = ToolResult {
                call_id: call.call_id.clone(),
                status: CallStatus::OutcomeUnknown,
                text:
                    "outcome unknown: the service stopped while this call was under way; it may or may not have been \
                       done. It was not repeated. Check before trying again"
                        .to_owned(),
                raw: None,
                approval: None,
            };
            let for_model = self.run.kind == crate::domain::run::RunKind::Turn;
            self.append(Role::Tool, &[Part::ToolResult(result)], for_model)
                .await?;
        }
        Ok(())
    }
}
