//! Reads `skills`: named shortcuts to a tool. A skill that could never run is refused.

use super::{access, field::Field, personal};
use domain::{
    command,
    ids::ServerId,
    json::{Json, Members},
    policy::ToolPattern,
    registry::ServerRef,
    server::ServerSpec,
    skill::Skill,
};

/// Reads a list of skills. `servers` and `references` are those of the pack. `named` has the names of all its
/// servers, also of those with errors, so that a skill of such a server has no second error. `language` is the default one.
pub(super) fn read(
    field: &Field,
    servers: &[ServerSpec],
    references: &[ServerRef],
    named: &[String],
    language: &str,
) -> Vec<Skill> {
    let mut skills: Vec<Skill> = Vec::new();
    for item in field.list().unwrap_or_default() {
        let Some(skill) = read_skill(&item, servers, references, named, language) else {
            continue;
        };
        if skills.iter().any(|other| other.id == skill.id) {
            item.error(
                format!("the skill {:?} is there already", skill.id),
                "give each skill an id of its own",
            );
        }
        skills.push(skill);
    }
    skills
}

fn read_skill(
    item: &Field,
    servers: &[ServerSpec],
    references: &[ServerRef],
    named: &[String],
    language: &str,
) -> Option<Skill> {
    let mut object = item.object()?;
    let id = object.required(
        "id",
        "write what a person types after the slash, such as `id: web-search`",
    );
    let id = id.and_then(|field| field.parse_with(check_id));
    let mut texts = |name| {
        let field = object.optional(name);
        field.and_then(|field| personal::read_label(&field, language))
    };
    let (name, description) = (texts("name"), texts("description"));
    let binding = object.required(
        "mcpBinding",
        "write `mcpBinding: { server: search, tools: [web_search] }`",
    );
    let defaults = object
        .optional("defaults")
        .map(|field| read_defaults(&field));
    object.finish();
    let (server, tools) =
        binding.and_then(|field| read_binding(&field, servers, references, named))?;
    let id = id?;
    Some(Skill {
        id,
        name: name.unwrap_or_default(),
        description: description.unwrap_or_default(),
        server,
        tools,
        defaults: defaults.unwrap_or_default(),
    })
}

/// Reads the values of arguments that a caller may leave out, in their order.
fn read_defaults(field: &Field) -> Members {
    let mut defaults = Members::default();
    for (name, value) in field.entries().unwrap_or_default() {
        defaults.add(name, Json::from(&value.to_json()));
    }
    defaults
}

/// Checks the id of a skill: `[a-z0-9][a-z0-9-]*`, at most 64 characters, and no command of the program.
fn check_id(text: &str) -> Result<String, String> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if !(1..=64).contains(&text.len()) || text.starts_with('-') || !text.bytes().all(fits) {
        return Err(format!(
            "{text:?} is not the id of a skill; use lower-case letters, digits and `-`, at most 64"
        ));
    }
    if command::is_command(&format!("/{text}")) {
        return Err(format!(
            "/{text} is a command of the program; choose another id"
        ));
    }
    Ok(text.to_owned())
}

/// Reads `mcpBinding`. Returns the server and its tools.
fn read_binding(
    field: &Field,
    servers: &[ServerSpec],
    references: &[ServerRef],
    named: &[String],
) -> Option<(ServerId, Vec<String>)> {
    let mut object = field.object()?;
    let server = object
        .required("server", "name one of the pack's servers")
        .and_then(|field| {
            let text = field.non_blank_text()?;
            let own = servers.iter().map(|server| (&server.id, &server.tools));
            let mut known = own.chain(
                references
                    .iter()
                    .map(|reference| (&reference.alias, &reference.tools)),
            );
            let found = known.find(|(id, _)| id.as_str() == text.value);
            if found.is_none() && !named.contains(&text.value) {
                field.error(
                    format!("there is no server {}", text.shown),
                    "name one of the pack's servers",
                );
            }
            found
        });
    let tools = object.required("tools", "name the tool: `tools: [web_search]`");
    object.finish();
    let listed = access::read_patterns(tools.as_ref()?);
    if listed.is_empty() && tools.as_ref()?.list().is_some_and(|items| items.is_empty()) {
        tools?.error("the list is empty", "name the tool that the skill calls");
        return None;
    }
    let (id, allowlist) = server?;
    for tool in &listed {
        if tool.pattern.has_wildcard() {
            tool.at.error(
                format!("{} names no one tool", tool.shown),
                "write the name of the tool",
            );
        } else if !is_allowed(allowlist.as_deref(), &tool.pattern.0) {
            let message = format!(
                "Tool {} is not allowlisted for MCP server \"{id}\"",
                tool.shown
            );
            tool.at.error(
                message,
                "add it to the allowlist of the server, or name another one here",
            );
        }
    }
    Some((
        id.clone(),
        listed.into_iter().map(|tool| tool.pattern.0).collect(),
    ))
}

fn is_allowed(allowlist: Option<&[ToolPattern]>, tool: &str) -> bool {
    allowlist.is_none_or(|allowlist| allowlist.iter().any(|pattern| pattern.matches(tool)))
}
