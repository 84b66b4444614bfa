//! The descriptions of agents for other programs. An authenticated caller sees the skills that they may
//! run; any other caller sees what a guest may run, and only agents that accept guests.

use std::sync::Arc;

use super::{App, SkillView, agents};
use crate::app::servers::agents::AgentView;
use domain::{
    error::{Error, Result},
    pack::{Pack, Provider},
    policy::{EffectiveAccess, is_offered},
    principal::{GUEST, Principal},
    skill::Skill,
};

/// An agent with its skills.
#[derive(Clone, Debug)]
pub struct Card {
    pub agent: AgentView,
    /// Changes whenever the agent's pack does.
    pub version: String,
    /// Whether the agent also answers when no skill is named.
    pub talks: bool,
    pub skills: Vec<CardSkill>,
}

/// A skill on a card.
#[derive(Clone, Debug)]
pub struct CardSkill {
    pub id: String,
    pub name: String,
    pub description: String,
}

impl From<SkillView> for CardSkill {
    fn from(view: SkillView) -> Self {
        Self {
            id: view.id,
            name: view.name,
            description: view.description,
        }
    }
}

/// The card of one agent.
pub async fn get(app: &Arc<App>, principal: Option<&Principal>, agent: &str) -> Result<Card> {
    match principal {
        Some(principal) => card_for(app, principal, agent).await,
        None => {
            let open = open_packs(app).await?;
            let pack = open.iter().find(|pack| pack.id().as_str() == agent);
            pack.map(|pack| public_card(pack)).ok_or_else(|| {
                Error::Unauthenticated(
                    "sign in to see this agent: send `Authorization: Bearer <token or key>`"
                        .to_owned(),
                )
            })
        }
    }
}

/// The cards of all agents, by id.
pub async fn all(app: &Arc<App>, principal: Option<&Principal>) -> Result<Vec<Card>> {
    let Some(principal) = principal else {
        let open = open_packs(app).await?;
        return Ok(open.iter().map(|pack| public_card(pack)).collect());
    };
    let mut cards = Vec::new();
    for agent in agents::list(app, principal).await? {
        cards.push(card_for(app, principal, &agent.id).await?);
    }
    Ok(cards)
}

async fn card_for(app: &Arc<App>, principal: &Principal, agent: &str) -> Result<Card> {
    let pack = agents::pack(app, principal, agent).await?;
    let skills = super::list_of_pack(app, principal, &pack).await?;
    Ok(card(
        &pack,
        skills.into_iter().map(CardSkill::from).collect(),
    ))
}

/// The public packs: those that guests may talk to, at a tenant that accepts guests.
async fn open_packs(app: &App) -> Result<Vec<Arc<Pack>>> {
    let mut tenants = app.accounts.tenants().await?;
    tenants.retain(|tenant| tenant.guests);
    let is_open = |pack: &&Arc<Pack>| {
        !pack.flows.authentication.required && tenants.iter().any(|tenant| tenant.serves(pack.id()))
    };
    let packs = app.packs.snapshot();
    Ok(packs.packs().filter(is_open).cloned().collect())
}

fn public_card(pack: &Pack) -> Card {
    let guest = EffectiveAccess {
        roles: [GUEST.to_owned()].into(),
        admin: false,
        is_guest: true,
    };
    let may = |skill: &&Skill| {
        let spec = pack.server(skill.server.as_str());
        spec.is_some_and(|spec| is_offered(spec, &guest, skill.tool()))
    };
    card(
        pack,
        pack.skills
            .iter()
            .filter(may)
            .map(|skill| CardSkill {
                id: skill.id.clone(),
                name: skill.name(pack, None).to_owned(),
                description: skill.description(pack, None).to_owned(),
            })
            .collect(),
    )
}

fn card(pack: &Pack, skills: Vec<CardSkill>) -> Card {
    let talks = pack.llm.provider != Provider::None;
    Card {
        agent: AgentView::from(pack),
        version: pack.version.chars().take(12).collect(),
        talks,
        skills,
    }
}
