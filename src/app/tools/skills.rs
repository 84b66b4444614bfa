//! Skills: which of an agent's a principal may run, and running one. A run of a skill is a command line of a
//! conversation, whoever asked for it and how: `chat::agent_loop` makes its one call through the gate, without a model.
//!
//! A skill whose tool the principal may not call is not there for them. One whose server does not answer is, and
//! fails: nothing else is tried in its place.

pub mod cards;
pub mod outcome;

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};

use crate::app::{
    App,
    chat::conversations,
    runs::{repeats, starting::StartedRun},
    servers::{agents, connections, run_values},
    tools::toolset::{self, Toolbox},
};
use crate::{
    domain::{
        canonical,
        error::{Error, Result, Thing},
        ids::ConversationId,
        message::ToolCall,
        orchestrator::MAX_INPUT,
        pack::Pack,
        policy::{Decision, decide},
        principal::Principal,
        request_key::{self, RequestKey},
        run::ClaimedRun,
        server::AccessMode,
        skill::{self, Skill},
    },
    store,
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
    fn obstacle(&self, toolbox: &Toolbox) -> Option<String> {
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
                toolset::not_available(server)
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
    let needs_approval_by = match decide(spec, toolbox.standing(), skill.tool()) {
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
    if let Some(obstacle) = view.obstacle(&toolbox) {
        return Err(Error::Unavailable(obstacle));
    }
    Ok(Some(match skill::arguments(text) {
        Ok(read) => SkillCommand::Call(
            skill.call(format!("call_{}", run.id.0.simple()), read.given),
            read.ambiguity,
        ),
        Err(why) => SkillCommand::NotAnObject(why),
    }))
}

/// A run of a skill that a program wants.
pub struct SkillRunSpec<'a> {
    pub agent: &'a str,
    pub skill: &'a str,
    pub arguments: Map<String, Value>,
    /// Where it is written down; absent: in a conversation of its own.
    pub conversation: Option<ConversationId>,
    /// The request may be sent again.
    pub key: Option<&'a RequestKey>,
}

/// Begins a run of a skill. `NotFound` for a skill or a conversation that is not there for the principal, `Invalid`
/// when the arguments do not fit; then nothing was written.
pub async fn begin(
    app: &Arc<App>,
    principal: &Principal,
    wanted: &SkillRunSpec<'_>,
) -> Result<StartedRun> {
    let pack = agents::pack(app, principal, wanted.agent).await?;
    let unknown = || Error::NotFound(Thing::Skill(toolset::truncate_text(wanted.skill, 64)));
    let skill = pack
        .skills
        .iter()
        .find(|skill| skill.id == wanted.skill)
        .ok_or_else(unknown)?;
    connections::await_connecting(app, principal.tenant, &pack).await;
    let toolbox = toolset::toolbox(app, principal, &pack).await?;
    let view = view(&pack, &toolbox, skill).ok_or_else(unknown)?;
    fits(&toolbox, &view, &wanted.arguments).await?;
    let line = format!(
        "{} {}",
        view.command,
        Value::Object(wanted.arguments.clone())
    );
    if line.chars().count() > MAX_INPUT {
        return Err(Error::invalid(
            "arguments",
            format!("have more than {MAX_INPUT} characters"),
        ));
    }
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = match wanted.conversation {
        Some(id) => store::conversations::get(&mut tx, &principal.user, id, true).await?,
        None => conversations::open(&mut tx, principal, &pack, &skill.name, None).await?,
    };
    if conversation.agent != *pack.id() {
        return Err(Error::NotFound(Thing::ConversationWithAgent(
            conversation.id,
        )));
    }
    let said = conversations::append_user_message(
        app,
        &mut tx,
        principal,
        &conversation,
        (&line, &[]),
        None,
    )
    .await?;
    let begun = request_key::KeyedRun {
        conversation: conversation.id,
        run: Some(said.posted().run.id),
        message: None,
        repeats: 0,
    };
    repeats::remember(&mut tx, principal, wanted.key, begun).await?;
    tx.commit().await?;
    let posted = said.publish(app, principal);
    Ok(StartedRun {
        run: posted.run.id,
        session: conversation.id,
        agent: conversation.agent,
    })
}

/// Checks the arguments in advance as the gate will, for a caller who can correct them.
async fn fits(toolbox: &Toolbox, view: &SkillView, arguments: &Map<String, Value>) -> Result<()> {
    let Some((_, named)) = toolbox.by_pair(&view.server, &view.tool) else {
        return Ok(());
    };
    let given = Value::Object(arguments.clone());
    let checked = match view.needs_approval_by {
        Some(_) => {
            let given = canonical::with_defaults(&named.tool.input_schema, given);
            named.check(&given).await
        }
        None => named.check(&given).await,
    };
    checked.map_err(|problems| {
        Error::invalid(
            "arguments",
            format!("do not fit the tool {}: {problems}", view.tool),
        )
    })
}
