//! A run that carries out a skill.

use std::sync::Arc;

use super::{SkillView, view};
use crate::{
    app::{
        App,
        chat::conversations,
        runs::{repeats, starting::StartedRun},
        servers::{agents, connections},
        tools::toolset::{self, Toolbox},
    },
    domain::{
        canonical,
        error::{Error, ErrorCode, Result, Thing},
        ids::ConversationId,
        json::{Json, Members},
        orchestrator::MAX_INPUT,
        principal::Principal,
        request_key::{self, RequestKey},
    },
    store,
};

/// A run of a skill that a program wants.
pub struct SkillRunSpec<'a> {
    pub agent: &'a str,
    pub skill: &'a str,
    pub arguments: Members,
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
    let line = command_line(&view, &wanted.arguments)?;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = match wanted.conversation {
        Some(id) => store::conversations::get(&mut tx, &principal.user, id, true).await?,
        None => conversations::insert(&mut tx, principal, &pack, &skill.name, None).await?,
    };
    if conversation.agent != *pack.id() {
        return Err(Error::NotFound(Thing::ConversationWithAgent(
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

/// The skill and its arguments as a user types them.
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

/// Checks the arguments in advance as the gate will, for a caller who can correct them.
async fn fits(toolbox: &Toolbox, view: &SkillView, arguments: &Members) -> Result<()> {
    let Some((_, named)) = toolbox.by_pair(&view.server, &view.tool) else {
        return Ok(());
    };
    let given = Json::Object(arguments.clone());
    let checked = match view.needs_approval_by {
        Some(_) => {
            let given = canonical::with_defaults(&named.tool.input_schema, given);
            named.check(&given).await
        }
        None => named.check(&given).await,
    };
    checked.map_err(|problems| {
        Error::unfit(
            ErrorCode::ArgumentsUnfit,
            "arguments",
            format!("do not fit the tool {}: {problems}", view.tool),
        )
    })
}
