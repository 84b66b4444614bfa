//! Agent cards: one for each agent, and one for all agents together. Clients of both versions can read them, because a
//! member that 1.0 and 0.3 name differently is written under both names.

use std::{collections::HashMap, sync::Arc};

use ::a2a::{
    AgentCapabilities, AgentCard, AgentInterface, AgentSkill, HttpAuthSecurityScheme,
    SecurityScheme, TRANSPORT_PROTOCOL_JSONRPC,
};
use serde_json::{Value, json};

use crate::app::{
    App,
    tools::skills::cards::{self, Card, CardSkill},
};
use domain::{
    error::{Error, Result},
    principal::Principal,
};
const BEARER: &str = "bearer";
const LEGACY_VERSION: &str = "0.3.0";

/// The card of one agent, with what the caller may see.
pub(super) async fn agent_card(
    app: &Arc<App>,
    principal: Option<&Principal>,
    agent: &str,
) -> Result<Value> {
    let card = cards::get(app, principal, agent).await?;
    let Card {
        agent,
        version,
        talks,
        skills,
    } = card;
    let about = if agent.description.trim().is_empty() {
        agent.display_name.clone()
    } else {
        agent.description
    };
    let how = if talks {
        "A message is answered by the agent; one that names a skill in `metadata.skillId` calls that skill's tool directly."
    } else {
        "Name a skill in `metadata.skillId`: its tool is called directly. There is nobody here to talk to."
    };
    let skills = skills
        .into_iter()
        .map(|skill| write_skill(skill, None))
        .collect();
    let path = format!("/a2a/{}", agent.id);
    let about = CardText {
        name: agent.display_name,
        description: format!("{about}\n\n{how}"),
        version,
    };
    build_card(app, &path, about, skills)
}

/// The card of all agents, with what the caller may see.
pub(super) async fn combined_card(app: &Arc<App>, principal: Option<&Principal>) -> Result<Value> {
    let cards = cards::all(app, principal).await?;
    let agents: Vec<_> = cards.iter().map(|card| card.agent.id.clone()).collect();
    let skills = cards.into_iter().flat_map(|card| {
        let agent = card.agent.id;
        card.skills
            .into_iter()
            .map(move |skill| write_skill(skill, Some(&agent)))
    });
    let about = format!(
        "The skills of all agents here ({}). Each agent has a card of its own at /a2a/AGENT.",
        if agents.is_empty() {
            "none for you".to_owned()
        } else {
            agents.join(", ")
        }
    );
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let about = CardText {
        name: "Chatelaine".to_owned(),
        description: about,
        version,
    };
    build_card(app, "/a2a", about, skills.collect())
}

/// Writes a skill. `agent` is part of its id when the card holds the skills of several agents.
fn write_skill(skill: CardSkill, agent: Option<&str>) -> AgentSkill {
    let CardSkill {
        id,
        name,
        description,
    } = skill;
    AgentSkill {
        id: agent.map_or_else(|| id.clone(), |agent| format!("{agent}/{id}")),
        description: if description.trim().is_empty() {
            name.clone()
        } else {
            description
        },
        name,
        tags: std::iter::once("tool")
            .chain(agent)
            .map(str::to_owned)
            .collect(),
        examples: None,
        input_modes: None,
        output_modes: None,
        security_requirements: None,
    }
}

/// The texts of a card about its agent, or about all agents.
struct CardText {
    name: String,
    description: String,
    version: String,
}

fn build_card(app: &App, path: &str, about: CardText, skills: Vec<AgentSkill>) -> Result<Value> {
    let CardText {
        name,
        description,
        version,
    } = about;
    let url = format!("{}{path}", app.config.public_url.trim_end_matches('/'));
    let current = AgentInterface::new(url.clone(), TRANSPORT_PROTOCOL_JSONRPC);
    let legacy = AgentInterface {
        protocol_version: "0.3".to_owned(),
        ..current.clone()
    };
    let scheme = HttpAuthSecurityScheme {
        scheme: BEARER.to_owned(),
        description: None,
        bearer_format: None,
    };
    let modes = || vec!["text/plain".to_owned(), "application/json".to_owned()];
    let card = AgentCard {
        name,
        description,
        version,
        supported_interfaces: vec![current, legacy],
        capabilities: AgentCapabilities {
            streaming: Some(false),
            push_notifications: Some(false),
            extensions: None,
            extended_agent_card: Some(true),
        },
        default_input_modes: modes(),
        default_output_modes: modes(),
        skills,
        provider: None,
        documentation_url: None,
        icon_url: None,
        security_schemes: Some(HashMap::from([(
            BEARER.to_owned(),
            SecurityScheme::HttpAuth(scheme),
        )])),
        security_requirements: Some(vec![HashMap::from([(BEARER.to_owned(), Vec::new())])]),
        signatures: None,
    };
    let mut card = serde_json::to_value(card).map_err(Error::internal)?;
    card["url"] = Value::String(url);
    card["preferredTransport"] = json!(TRANSPORT_PROTOCOL_JSONRPC);
    card["protocolVersion"] = json!(LEGACY_VERSION);
    card["supportsAuthenticatedExtendedCard"] = json!(true);
    card["security"] = json!([{ BEARER: [] }]);
    card["securitySchemes"][BEARER]["type"] = json!("http");
    card["securitySchemes"][BEARER]["scheme"] = json!(BEARER);
    Ok(card)
}
