//! `skills`: named shortcuts to tools of the pack's servers.

use super::field::Field;
use crate::domain::{ids::ServerId, policy::ToolPattern, registry::ServerRef, server::ServerSpec, skill::Skill};

/// The skills of a pack whose servers these are.
pub(super) fn read(field: &Field, servers: &[ServerSpec], references: &[ServerRef]) -> Vec<Skill> {
    let mut skills: Vec<Skill> = Vec::new();
    for field in field.list().unwrap_or_default() {
        let Some(skill) = skill(&field, servers, references) else { continue };
        if skills.iter().any(|other| other.id == skill.id) {
            field.error(format!("the skill {:?} is there already", skill.id), "give each skill an id of its own");
        }
        skills.push(skill);
    }
    skills
}

fn skill(field: &Field, servers: &[ServerSpec], references: &[ServerRef]) -> Option<Skill> {
    let mut object = field.object()?;
    let id = object.required("id", "write what a user types after a slash, such as `id: web-search`");
    let id = id.and_then(|field| field.parsed(Skill::check_id));
    let name = object.optional("name").and_then(|field| field.filled()).map(|text| text.value);
    let about = object.optional("description").and_then(|field| field.text()).map(|text| text.value);
    let binding = object.required("mcpBinding", "write `mcpBinding: { server: …, tools: [ … ] }`");
    object.finish();
    let (server, tools) = bound(&binding?, servers, references)?;
    let id = id?;
    Some(Skill { name: name.unwrap_or_else(|| id.clone()), id, description: about.unwrap_or_default(), server, tools })
}

/// The server and its tools, of which the first is called.
fn bound(field: &Field, servers: &[ServerSpec], references: &[ServerRef]) -> Option<(ServerId, Vec<String>)> {
    let mut object = field.object()?;
    let server = object.required("server", "name one of the pack's servers");
    let tools = object.required("tools", "name the tool to call: `tools: [web_search]`");
    object.finish();
    let known = |id: &ServerId| -> Option<Option<&Vec<ToolPattern>>> {
        let own = servers.iter().find(|server| server.id == *id).map(|server| server.tools.as_ref());
        own.or_else(|| references.iter().find(|other| other.alias == *id).map(|other| other.tools.as_ref()))
    };
    let (at, server) = server.and_then(|field| Some((field.clone(), field.parsed(ServerId::parse)?)))?;
    let Some(allowed) = known(&server) else {
        at.error(format!("there is no server {:?} in this pack", server.as_str()), "name one of its servers");
        return None;
    };
    let field = tools?;
    let tools = field.words();
    if tools.is_empty() {
        field.error("there is no tool", "name the tool to call: `tools: [web_search]`");
    }
    for tool in &tools {
        if allowed.is_some_and(|patterns| !patterns.iter().any(|pattern| pattern.matches(tool))) {
            field.error(
                format!("the server's `tools` list does not allow {tool:?}"),
                "add it there, or bind the skill to another tool",
            );
        }
    }
    Some((server, tools))
}
