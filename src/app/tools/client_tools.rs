//! The toolset of clients that call tools themselves (`/mcp/{agent}`): the tools that the same person has in a chat,
//! without those that only a run can call. Every call passes the one gate. A client can cancel its call on any
//! replica.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Map, Value, value::RawValue};
use tokio_util::sync::CancellationToken;

use crate::app::{
    App,
    servers::{agents, connections},
    tools::{
        approvals::client_calls::{self, ClientCall},
        gate::{
            self, Call, CallTarget,
            reads::{self, ReadContext},
        },
        toolset::{self, NamedTool, Toolset},
    },
};
use domain::{
    canonical,
    error::{Error, Result},
    ids::{AgentId, TenantId, UserId},
    json::Json,
    message::{CallStatus, ToolResult},
    pack::Pack,
    policy::Origin,
    principal::Principal,
    prompt::ServerPrompt,
    server::ServerSpec,
};
use mcp::param_headers;
pub use mcp::{ParamHeader, Progress, ProgressReports, ProgressSender, progress_channel};
use store::hints::Hint;

/// The most bytes of a request's id in a hint to other replicas.
const MAX_ID: usize = 256;

/// The tools of one principal at one agent, under the names that their client knows.
pub struct ClientTools {
    pub pack: Arc<Pack>,
    pub toolset: Arc<Toolset>,
    /// Whether tools have their servers' own names where these are unique.
    pub own_names: bool,
}

/// A call of a client.
pub struct ToolRequest<'a> {
    pub name: &'a str,
    /// The text of one JSON object.
    pub arguments: &'a str,
    pub progress: ProgressSender,
    pub cancel: CancellationToken,
}

/// The answer to a call of a client.
pub enum ToolAnswer {
    /// The tool was called, or the call was refused for a reason that the caller may know.
    Result(ToolResult),
    /// The call needs or needed consent.
    Consent(Box<ClientCall>),
    /// The caller has no such tool.
    Unavailable(Unavailable),
}

/// Why a caller does not have a tool.
pub struct Unavailable {
    pub text: String,
    /// The personal server that the caller has not connected, if that is the reason.
    pub server: Option<String>,
}

/// Loads the present tools of a principal, usually from memory. Waits for servers that are being connected for the
/// first time, because many clients list the tools once.
pub async fn load(app: &Arc<App>, principal: &Principal, agent: &str) -> Result<ClientTools> {
    let pack = agents::pack(app, principal, agent).await?;
    connections::await_connecting(app, principal.tenant, &pack).await;
    let toolset = toolset::select(app, principal, &pack).await?;
    let own_names = app.config.mcp_own_names.iter().any(|own| own == agent);
    Ok(ClientTools {
        pack,
        toolset,
        own_names,
    })
}

impl ClientTools {
    /// The tools with their servers, in the pack's order.
    pub fn iter<'a>(
        &'a self,
        app: &'a App,
    ) -> impl Iterator<Item = (&'a Arc<ServerSpec>, &'a NamedTool)> {
        let tools = self.toolset.iter();
        tools.filter(|(spec, _)| !app.orchestrator.is(spec))
    }

    /// The name of a tool for the client.
    pub fn name<'a>(&self, named: &'a NamedTool) -> &'a str {
        if self.uses_own_name(named) {
            &named.tool.name
        } else {
            &named.name
        }
    }

    pub fn uses_own_name(&self, named: &NamedTool) -> bool {
        self.own_names && self.toolset.is_own_name_unique(named)
    }

    fn find(&self, app: &App, name: &str) -> Option<(&Arc<ServerSpec>, &NamedTool)> {
        let own = self.own_names.then(|| self.toolset.by_own_name(name));
        let found = own.flatten().or_else(|| self.toolset.by_name(name));
        found.filter(|(spec, _)| !app.orchestrator.is(spec))
    }

    /// The headers that repeat arguments of this call, for clients that send them.
    pub fn param_headers(&self, app: &App, name: &str, arguments: &str) -> Vec<ParamHeader> {
        let found = self.find(app, name);
        found.map_or_else(Vec::new, |(_, named)| {
            param_headers(&named.tool.input_schema, arguments)
        })
    }

    /// The personal server of a tool that the principal could call if they had connected the server.
    fn unconnected_server(&self, name: &str) -> Option<String> {
        let listed = self.toolset.pair_of(name);
        let (server, tool) = listed.or_else(|| self.toolset.unlisted_pair_of(name))?;
        let is_unconnected = !self.toolset.reaches(server)
            && self.toolset.obstacle(server, tool, |_| None).is_some();
        is_unconnected.then(|| server.to_owned())
    }

    /// Whether both offer the same prompts.
    pub fn has_same_prompts(&self, other: &Self) -> bool {
        let prompts = |tools: &Self| -> Vec<_> {
            let named = tools.toolset.prompts();
            named.map(|(_, prompt)| Arc::as_ptr(prompt)).collect()
        };
        self.toolset.is_same(&other.toolset) || prompts(self) == prompts(other)
    }

    fn find_prompt(
        &self,
        name: &str,
    ) -> std::result::Result<(&Arc<ServerSpec>, &Arc<ServerPrompt>), String> {
        let prompts = self.toolset.named_prompts(self.own_names);
        let found = prompts.into_iter().find(|(known, ..)| known == name);
        let found = found.map(|(_, spec, prompt)| (spec, prompt));
        found.ok_or_else(|| {
            let name: String = name.chars().take(128).collect();
            format!("there is no prompt {name:?} for you")
        })
    }

    /// The server's completions for an argument of a prompt; `None` when the server offers none.
    pub async fn complete(
        &self,
        app: &Arc<App>,
        principal: &Principal,
        prompt: &str,
        argument: &str,
        value: &str,
    ) -> std::result::Result<Option<Box<RawValue>>, String> {
        let (spec, prompt) = self.find_prompt(prompt)?;
        let context = ReadContext {
            principal,
            toolset: &self.toolset,
            run: None,
        };
        reads::completion(app, &context, spec, prompt, argument, value).await
    }

    /// Gets a prompt with its arguments filled in; the error is a sentence for the user.
    pub async fn prompt(
        &self,
        app: &Arc<App>,
        principal: &Principal,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> std::result::Result<Box<RawValue>, String> {
        let (spec, prompt) = self.find_prompt(name)?;
        let missing = prompt
            .arguments
            .iter()
            .filter(|argument| argument.required && !arguments.contains_key(&argument.name));
        let missing: Vec<&str> = missing.map(|argument| argument.name.as_str()).collect();
        if !missing.is_empty() {
            return Err(format!("the prompt needs: {}", missing.join(", ")));
        }
        let context = ReadContext {
            principal,
            toolset: &self.toolset,
            run: None,
        };
        let outcome = reads::prompt(app, &context, spec, prompt, arguments).await?;
        Ok(outcome.raw)
    }

    /// Makes a call through the gate.
    pub async fn call(
        &self,
        app: &Arc<App>,
        principal: &Principal,
        request: ToolRequest<'_>,
    ) -> Result<ToolAnswer> {
        let found = self.find(app, request.name);
        let target = CallTarget::Name(found.map_or(request.name, |(_, named)| &named.name));
        let (arguments, ambiguity) = match Json::parse(request.arguments) {
            Ok(value) => (Ok(value), canonical::ambiguity(request.arguments)),
            Err(_) => (Err(request.arguments), None),
        };
        let call = Call {
            principal,
            toolset: &self.toolset,
            run: None,
            call_id: "",
            line: None,
            is_recorded: false,
            target,
            origin: Origin::Mcp,
            arguments,
            ambiguity: ambiguity.as_deref(),
            progress: request.progress,
            cancel: request.cancel,
            elicitation: None,
            shows_requests: false,
        };
        let result = gate::call(app, call).await;
        match (result.status, result.approval) {
            (CallStatus::AwaitingApproval, Some(id)) => {
                let agent = self.toolset.agent();
                let outcome = client_calls::outcome(app, principal, agent, id).await?;
                Ok(ToolAnswer::Consent(Box::new(outcome)))
            }
            (CallStatus::AwaitingApproval, None) => Err(Error::internal(anyhow::anyhow!(
                "a call waits for no approval"
            ))),
            (CallStatus::Denied, _) if found.is_none() => {
                let server = self.unconnected_server(request.name);
                let text = result.for_model();
                Ok(ToolAnswer::Unavailable(Unavailable { text, server }))
            }
            _ => Ok(ToolAnswer::Result(result)),
        }
    }
}

/// The calls of clients that this process is making, by caller and by the client's own id of the call.
#[derive(Default)]
pub struct OpenCalls(Mutex<HashMap<CallKey, Vec<CancellationToken>>>);

/// Tenant, user, agent, and the id of the request as the client wrote it.
type CallKey = (TenantId, UserId, AgentId, String);

/// A call that another request can cancel while this value lives. Dropping it cancels the call if it has not ended.
pub struct OpenCall {
    app: Arc<App>,
    key: CallKey,
    pub cancel: CancellationToken,
}

impl OpenCalls {
    fn lock(&self) -> MutexGuard<'_, HashMap<CallKey, Vec<CancellationToken>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels the user's call with this id. When two clients of the user have chosen the same id, neither is
    /// cancelled.
    pub(in crate::app) fn cancel(
        &self,
        tenant: TenantId,
        user: &UserId,
        agent: &AgentId,
        id: &str,
    ) {
        let key = (tenant, user.clone(), agent.clone(), id.to_owned());
        if let Some([cancel]) = self.lock().get(&key).map(Vec::as_slice) {
            cancel.cancel();
        }
    }
}

impl OpenCall {
    pub fn begin(app: &Arc<App>, principal: &Principal, agent: &AgentId, id: &str) -> Self {
        let user = principal.user.clone();
        let key = (principal.tenant, user, agent.clone(), id.to_owned());
        let cancel = CancellationToken::new();
        let mut calls = app.client_calls.lock();
        calls.entry(key.clone()).or_default().push(cancel.clone());
        drop(calls);
        Self {
            app: app.clone(),
            key,
            cancel,
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.cancel.cancel();
        let mut calls = self.app.client_calls.lock();
        if let Some(open) = calls.get_mut(&self.key) {
            // This removes this call, and also calls that another request has cancelled.
            open.retain(|call| !call.is_cancelled());
            if open.is_empty() {
                calls.remove(&self.key);
            }
        }
    }
}

/// Cancels a call of the principal's client on any replica.
pub fn cancel(app: &App, principal: &Principal, agent: &AgentId, id: &str) {
    app.client_calls
        .cancel(principal.tenant, &principal.user, agent, id);
    if id.len() <= MAX_ID {
        let _ = app.hints.send(Hint::CallCancelled {
            tenant: principal.tenant,
            agent: agent.clone(),
            id: id.to_owned(),
            user: principal.user.clone(),
        });
    }
}
