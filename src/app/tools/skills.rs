//! Skills: which of an agent's a principal may run, and running one. A run of a skill is a command line of a
//! conversation, whoever asked for it and how: `chat::agent_loop` makes its one call through the gate, without a model.
//!
//! A skill whose tool the principal may not call is not there for them. One whose server does not answer is, and
//! fails: nothing else is tried in its place.

pub mod cards;
pub mod outcome;
mod start;

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

pub use self::start::{SkillRunSpec, begin};
use crate::{
    app::{
        App,
        servers::{agents, connections, run_values},
        tools::toolset::{self, Toolbox},
    },
    domain::{
        connection::DownCause,
        error::{Error, Result},
        message::ToolCall,
        pack::Pack,
        policy::{Decision, decide},
        principal::Principal,
        run::ClaimedRun,
        server::AccessMode,
        skill::{self, Skill},
    },
};

/// A skill as those see it who may run it.
#[derive(Clone, Debug, Serialize)]
pub struct SkillView {
    pub id: String,
    pub name: String,
    pub description: String,
    /// What runs it in a chat; arguments follow, as one JSON object or as text.
    pub command: String,
    pub server: String,
    pub tool: String,
    pub state: SkillAvailability,
    /// JSON Schema of the arguments, when the tool is known. Free text is the argument `input`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Box<RawValue>>,
    /// Its calls wait for one of these roles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs_approval_by: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SkillAvailability {
    Ready,
    /// Its server needs a credential of the user's own: `/connect`.
    NotConnected,
    /// Its server has not answered yet, or does not have the tool.
    Unavailable,
}

impl SkillView {
    /// Why it cannot run now. The sentence about the server is the AOS document's.
    fn obstacle(&self, toolbox: &Toolbox, cause: Option<DownCause>) -> Option<String> {
        let Self { server, tool, .. } = self;
        match self.state {
            SkillAvailability::Unavailable
                if toolbox.iter().any(|(spec, _)| spec.id.as_str() == server) =>
            {
                Some(format!(
                    "MCP server {server:?} has no tool {tool:?}, so nothing was called"
                ))
            }
            SkillAvailability::Ready => None,
            SkillAvailability::NotConnected => {
                Some(format!("{server} is not connected; type /connect {server}"))
            }
            SkillAvailability::Unavailable => Some(format!(
                "{}, so its tool {tool:?} was not called",
                toolset::not_available(server, cause)
            )),
        }
    }
}

/// The skills of an agent that the principal may run, in the pack's order.
pub async fn list(app: &Arc<App>, principal: &Principal, agent: &str) -> Result<Vec<SkillView>> {
    let pack = agents::pack(app, principal, agent).await?;
    of_pack(app, principal, &pack).await
}

async fn of_pack(
    app: &Arc<App>,
    principal: &Principal,
    pack: &Arc<Pack>,
) -> Result<Vec<SkillView>> {
    if pack.skills.is_empty() {
        return Ok(Vec::new());
    }
    let toolbox = toolset::toolbox(app, principal, pack).await?;
    Ok(pack
        .skills
        .iter()
        .filter_map(|skill| view(pack, &toolbox, skill))
        .collect())
}

/// `None` for somebody who may not call its tool. Asked of the pack rather than of the toolbox: which tools a server
/// has is not known while it is down.
fn view(pack: &Pack, toolbox: &Toolbox, skill: &Skill) -> Option<SkillView> {
    let spec = pack.server(skill.server.as_str())?;
    let needs_approval_by = match decide(spec, toolbox.access(), skill.tool()) {
        Decision::Deny(_) => return None,
        Decision::Allow(_) => None,
        Decision::Approve(policy) => Some(policy.approvers.clone()),
    };
    let found = toolbox.by_pair(spec.id.as_str(), skill.tool());
    let state = match found {
        Some(_) => SkillAvailability::Ready,
        None if spec.access_mode == AccessMode::UserControlled
            && !toolbox.reaches(spec.id.as_str()) =>
        {
            SkillAvailability::NotConnected
        }
        None => SkillAvailability::Unavailable,
    };
    Some(SkillView {
        id: skill.id.clone(),
        name: skill.name.clone(),
        description: skill.description.clone(),
        command: skill.command(),
        server: spec.id.to_string(),
        tool: skill.tool().to_owned(),
        state,
        input_schema: found.map(|(_, named)| named.tool.input_schema.clone()),
        needs_approval_by,
    })
}

/// What a command line comes to that asks for a skill.
pub enum SkillCommand {
    /// A call through the gate; and why two readers could understand its arguments differently.
    Call(ToolCall, Option<String>),
    /// What stands in `{…}` is no JSON object, and why.
    NotAnObject(String),
}

/// The call of a command line; `None` when it asks for no skill that there is for the run's user. `Unavailable`
/// when its server is.
pub async fn parse_command(
    app: &Arc<App>,
    run: &ClaimedRun,
    line: &str,
) -> Result<Option<SkillCommand>> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let Some((skill, text)) = skill::find_in_text(&pack, line) else {
        return Ok(None);
    };
    // Its servers may be other ones in each run.
    let there =
        run_values::pack_for_run(app, run.tenant, run.id, run.conversation, pack.clone()).await?;
    connections::await_connecting(app, run.tenant, &there).await;
    let toolbox = toolset::toolbox(app, &run.principal, &there).await?;
    let Some(view) = view(&there, &toolbox, skill) else {
        return Ok(None);
    };
    let connections = &app.connections;
    let cause = connections.down_cause(run.tenant, there.id(), &view.server);
    if let Some(obstacle) = view.obstacle(&toolbox, cause) {
        return Err(Error::Unavailable(obstacle));
    }
    Ok(Some(match skill::arguments(text) {
        Ok(read) => SkillCommand::Call(
            skill.call(ToolCall::id_of_command(run.id), read.given),
            read.ambiguity,
        ),
        Err(why) => SkillCommand::NotAnObject(why),
    }))
}
