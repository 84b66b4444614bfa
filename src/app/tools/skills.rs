//! Skills: which skills of an agent a principal may run, and how a run begins. Every run of a skill is a command line
//! in a conversation, also when a program starts it: `chat::agent_loop` makes its one call through the gate, without a
//! model.
//!
//! A skill whose tool the principal may not call is hidden from them. A skill whose server does not answer is shown,
//! and its run fails: nothing else is tried in its place.

pub mod cards;
pub mod outcome;

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::app::{
    App,
    chat::conversations,
    runs::{repeats, starting::StartedRun},
    servers::{agents, connections, run_values},
    tools::toolset::{self, Toolset},
};
use domain::{
    canonical,
    connection::DownCause,
    error::{Error, ErrorCode, Missing, Result},
    ids::ConversationId,
    json::{Json, Members},
    message::ToolCall,
    orchestrator::MAX_INPUT,
    pack::Pack,
    policy::{Offer, offer},
    principal::Principal,
    request_key::{self, RequestKey},
    run::ClaimedRun,
    server::AccessMode,
    skill::{
        self, Skill,
        words::{self, Reading},
    },
};

/// A skill, for the people who may run it.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct SkillView {
    pub id: String,
    pub name: String,
    pub description: String,
    /// The command that runs it in a chat; arguments follow, as one JSON object or as text.
    pub command: String,
    pub server: String,
    pub tool: String,
    pub state: SkillAvailability,
    /// JSON Schema of the arguments, when the tool is known. Free text is the argument `input`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Box<RawValue>>,
    /// Its calls wait for one of these roles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs_approval_by: Option<Vec<String>>,
    /// Its calls, or some of them, wait until their user confirms them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub needs_confirmation: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SkillReadiness)]
pub enum SkillAvailability {
    Ready,
    /// Its server needs a credential of the user's own: `/connect`.
    NotConnected,
    /// Its server has not answered yet, or does not have the tool.
    Unavailable,
}

impl SkillView {
    /// Why the skill cannot run now. The sentence about the server is the AOS document's.
    fn obstacle(&self, toolset: &Toolset, cause: Option<DownCause>) -> Option<String> {
        let Self { server, tool, .. } = self;
        match self.state {
            SkillAvailability::Unavailable
                if toolset.iter().any(|(spec, _)| spec.id.as_str() == server) =>
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
    list_of_pack(app, principal, &pack).await
}

async fn list_of_pack(
    app: &Arc<App>,
    principal: &Principal,
    pack: &Arc<Pack>,
) -> Result<Vec<SkillView>> {
    if pack.skills.is_empty() {
        return Ok(Vec::new());
    }
    let toolset = toolset::select(app, principal, pack).await?;
    Ok(pack
        .skills
        .iter()
        .filter_map(|skill| view(pack, &toolset, skill, principal.locale.as_deref()))
        .collect())
}

/// The view of a skill; `None` when the principal may not call its tool. The pack decides that and not the toolset,
/// because the tools of a server that is down are unknown.
fn view(pack: &Pack, toolset: &Toolset, skill: &Skill, locale: Option<&str>) -> Option<SkillView> {
    let spec = pack.server(skill.server.as_str())?;
    let offer = offer(spec, toolset.access(), skill.tool());
    if let Offer::Deny(_) = offer {
        return None;
    }
    let found = toolset.by_pair(spec.id.as_str(), skill.tool());
    let state = match found {
        Some(_) => SkillAvailability::Ready,
        None if spec.access_mode == AccessMode::UserControlled
            && !toolset.reaches(spec.id.as_str()) =>
        {
            SkillAvailability::NotConnected
        }
        None => SkillAvailability::Unavailable,
    };
    Some(SkillView {
        id: skill.id.clone(),
        name: skill.name(pack, locale).to_owned(),
        description: skill.description(pack, locale).to_owned(),
        command: skill.command(),
        server: spec.id.to_string(),
        tool: skill.tool().to_owned(),
        state,
        input_schema: found.map(|(_, named)| named.tool.input_schema.clone()),
        needs_approval_by: offer.approvers(),
        needs_confirmation: offer.needs_confirmation(),
    })
}

/// A command line that names a skill, parsed.
pub enum SkillCommand {
    /// A call through the gate, and why two readers could understand its arguments differently, if they could.
    Call(ToolCall, Option<String>),
    /// The words do not say all that the call needs.
    Incomplete(Box<IncompleteCommand>),
    /// The text in `{…}` is no JSON object, for this reason.
    NotAnObject(String),
}

/// A command whose arguments the user must be asked for.
pub struct IncompleteCommand {
    pub skill: Skill,
    pub reading: Reading,
}

/// Parses a command line; `None` when it names no skill that the run's user may run. `Unavailable` when the skill's
/// server is.
pub async fn parse_command(
    app: &Arc<App>,
    run: &ClaimedRun,
    line: &str,
) -> Result<Option<SkillCommand>> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let Some((skill, text)) = skill::find_in_text(&pack, line) else {
        return Ok(None);
    };
    // The servers of the pack may differ from run to run.
    let there =
        run_values::pack_for_run(app, run.tenant, run.id, run.conversation, pack.clone()).await?;
    connections::await_connecting(app, run.tenant, &there).await;
    let toolset = toolset::select(app, &run.principal, &there).await?;
    let locale = run.principal.locale.as_deref();
    let Some(view) = view(&there, &toolset, skill, locale) else {
        return Ok(None);
    };
    let connections = &app.connections;
    let spec = there.server(&view.server);
    let cause = spec.and_then(|spec| connections.down_cause(run.tenant, spec));
    if let Some(obstacle) = view.obstacle(&toolset, cause) {
        return Err(Error::Unavailable(obstacle));
    }
    let call = |given| skill.call(ToolCall::id_of_command(run.id), given);
    Ok(Some(match (skill::arguments(text), &view.input_schema) {
        (Some(Ok(read)), _) => SkillCommand::Call(call(read.given), read.ambiguity),
        (Some(Err(why)), _) => SkillCommand::NotAnObject(why),
        (None, schema) => {
            let schema = schema.as_deref().unwrap_or(RawValue::NULL);
            let reading = words::read(schema, &skill.defaults, text);
            if reading.is_complete() {
                SkillCommand::Call(call(reading.given), None)
            } else {
                let skill = skill.clone();
                SkillCommand::Incomplete(Box::new(IncompleteCommand { skill, reading }))
            }
        }
    }))
}

/// A run of a skill that a program requests.
pub struct SkillRunSpec<'a> {
    pub agent: &'a str,
    pub skill: &'a str,
    pub arguments: Members,
    /// The conversation of the run; `None`: a new one.
    pub conversation: Option<ConversationId>,
    /// The idempotency key of the request, if it has one.
    pub key: Option<&'a RequestKey>,
}

/// Begins a run of a skill. `NotFound` for a skill or a conversation that the principal does not have, `Invalid` for
/// arguments that do not fit. Then nothing is written.
pub async fn begin(
    app: &Arc<App>,
    principal: &Principal,
    wanted: &SkillRunSpec<'_>,
) -> Result<StartedRun> {
    let pack = agents::pack(app, principal, wanted.agent).await?;
    let unknown = || Error::NotFound(Missing::Skill(toolset::truncate_text(wanted.skill, 64)));
    let skill = pack
        .skills
        .iter()
        .find(|skill| skill.id == wanted.skill)
        .ok_or_else(unknown)?;
    connections::await_connecting(app, principal.tenant, &pack).await;
    let toolset = toolset::select(app, principal, &pack).await?;
    let locale = principal.locale.as_deref();
    let view = view(&pack, &toolset, skill, locale).ok_or_else(unknown)?;
    let arguments = skill.complete(wanted.arguments.clone());
    check_arguments(&toolset, &view, &arguments).await?;
    let line = command_line(&view, &wanted.arguments)?;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = match wanted.conversation {
        Some(id) => store::conversations::get(&mut tx, &principal.user, id, true).await?,
        None => conversations::insert(&mut tx, principal, &pack, &view.name, None).await?,
    };
    if conversation.agent != *pack.id() {
        return Err(Error::NotFound(Missing::ConversationWithAgent(
            conversation.id,
        )));
    }
    let message = conversations::UnwrittenMessage {
        conversation: &conversation,
        text: &line,
        attachments: &[],
        answer: None,
        format: None,
    };
    let said = conversations::append_user_message(app, &mut tx, principal, message).await?;
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

/// The command line of a skill with arguments, as a user would type it.
fn command_line(view: &SkillView, arguments: &Members) -> Result<String> {
    let line = format!("{} {}", view.command, Json::Object(arguments.clone()));
    if line.chars().count() > MAX_INPUT {
        return Err(Error::unfit(
            ErrorCode::TooLong,
            "arguments",
            format!("have more than {MAX_INPUT} characters"),
        ));
    }
    Ok(line)
}

/// Checks the arguments as the gate will do later, while the caller can still correct them.
async fn check_arguments(toolset: &Toolset, view: &SkillView, arguments: &Members) -> Result<()> {
    let Some((_, named)) = toolset.by_pair(&view.server, &view.tool) else {
        return Ok(());
    };
    let given = Json::Object(arguments.clone());
    let given = if view.needs_approval_by.is_some() || view.needs_confirmation {
        canonical::with_defaults(&named.tool.input_schema, given)
    } else {
        given
    };
    let checked = named.check(&given).await;
    checked.map_err(|problems| {
        Error::unfit(
            ErrorCode::ArgumentsUnfit,
            "arguments",
            format!("do not fit the tool {}: {problems}", view.tool),
        )
    })
}
