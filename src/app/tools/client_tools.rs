//! The toolset of clients that call tools themselves (`/mcp/{agent}`): the tools that the same person has in a chat,
//! without those that only a run can call. Every call passes the one gate.

mod open_calls;

use std::sync::Arc;

use serde_json::{Map, Value, value::RawValue};
use tokio_util::sync::CancellationToken;

pub use self::open_calls::{OpenCall, OpenCalls, cancel};
use super::{
    approvals::client_calls::{self, ClientCall},
    gate::{
        self, Call, CallTarget,
        reads::{self, ReadContext},
    },
    toolset::{self, NamedTool, Toolbox},
};
pub use crate::mcp::{ParamHeader, Progress, ProgressReports, ProgressSender, progress_channel};
use crate::{
    app::{App, servers::agents},
    domain::{
        canonical,
        error::{Error, Result},
        json::Json,
        message::{CallStatus, ToolResult},
        pack::Pack,
        principal::Principal,
        prompt::ServerPrompt,
        server::ServerSpec,
    },
    mcp::param_headers,
};

/// Bytes of a request's id that another replica is told.
const MAX_ID: usize = 256;

/// The tools of one principal at one agent, under the names that their client knows.
pub struct ClientTools {
    pub pack: Arc<Pack>,
    pub toolbox: Arc<Toolbox>,
    /// Tools have their servers' own names where these are unique.
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

/// What came of a call of a client.
pub enum ToolAnswer {
    /// The tool was called, or the call was refused for a reason that the caller may know.
    Result(ToolResult),
    /// Somebody else has to consent, or had to.
    Consent(Box<ClientCall>),
    /// There is no such tool for the caller.
    Unavailable(Unavailable),
}

/// Why a tool is not there for a caller.
pub struct Unavailable {
    pub text: String,
    /// The personal server that the caller has not connected, if that is the reason.
    pub server: Option<String>,
}

/// The tools of a principal now. From memory, unless nobody has asked for a while.
pub async fn of(app: &Arc<App>, principal: &Principal, agent: &str) -> Result<ClientTools> {
    let pack = agents::pack(app, principal, agent).await?;
    let toolbox = toolset::toolbox(app, principal, &pack).await?;
    let own_names = app.config.mcp_own_names.iter().any(|own| own == agent);
    Ok(ClientTools {
        pack,
        toolbox,
        own_names,
    })
}

impl ClientTools {
    /// The tools with their servers, in the pack's order.
    pub fn iter<'a>(
        &'a self,
        app: &'a App,
    ) -> impl Iterator<Item = (&'a Arc<ServerSpec>, &'a NamedTool)> {
        let tools = self.toolbox.iter();
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
        self.own_names && self.toolbox.is_own_name_unique(named)
    }

    fn find(&self, app: &App, name: &str) -> Option<(&Arc<ServerSpec>, &NamedTool)> {
        let own = self.own_names.then(|| self.toolbox.by_own_name(name));
        let found = own.flatten().or_else(|| self.toolbox.by_name(name));
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
        let listed = self.toolbox.pair_of(name);
        let (server, tool) = listed.or_else(|| self.toolbox.unlisted_pair_of(name))?;
        let is_unconnected =
            !self.toolbox.reaches(server) && self.toolbox.obstacle(server, tool, || None).is_some();
        is_unconnected.then(|| server.to_owned())
    }

    /// Whether both offer the same prompts.
    pub fn has_same_prompts(&self, other: &Self) -> bool {
        let prompts = |tools: &Self| -> Vec<_> {
            let named = tools.toolbox.prompts();
            named.map(|(_, prompt)| Arc::as_ptr(prompt)).collect()
        };
        self.toolbox.is_same(&other.toolbox) || prompts(self) == prompts(other)
    }

    fn find_prompt(
        &self,
        name: &str,
    ) -> std::result::Result<(&Arc<ServerSpec>, &Arc<ServerPrompt>), String> {
        let prompts = self.toolbox.named_prompts(self.own_names);
        let found = prompts.into_iter().find(|(known, ..)| known == name);
        let found = found.map(|(_, spec, prompt)| (spec, prompt));
        found.ok_or_else(|| {
            let name: String = name.chars().take(128).collect();
            format!("there is no prompt {name:?} for you")
        })
    }

    /// Values that an argument of a prompt may have, as its server answers; `None` when the server has none.
    pub async fn complete(
        &self,
        app: &Arc<App>,
        principal: &Principal,
        prompt: &str,
        argument: (&str, &str),
    ) -> std::result::Result<Option<Box<RawValue>>, String> {
        let found = self.find_prompt(prompt)?;
        let asking = ReadContext {
            principal,
            toolbox: &self.toolbox,
            run: None,
        };
        reads::completion(app, &asking, (found.0, found.1), argument).await
    }

    /// What a prompt comes to, as its server says it; the error is a sentence for the user.
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
        let asking = ReadContext {
            principal,
            toolbox: &self.toolbox,
            run: None,
        };
        let outcome = reads::prompt(app, &asking, spec, prompt, arguments).await?;
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
            toolbox: &self.toolbox,
            run: None,
            call_id: "",
            is_recorded: false,
            target,
            arguments,
            ambiguity: ambiguity.as_deref(),
            progress: request.progress,
            cancel: request.cancel,
            elicitation: None,
        };
        let result = gate::call(app, call).await;
        match (result.status, result.approval) {
            (CallStatus::AwaitingApproval, Some(id)) => {
                let agent = self.toolbox.agent();
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
