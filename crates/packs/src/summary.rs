//! Summarizes a pack in a few lines, for `check`.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use super::{
    dialect::{Dialect, servers_of},
    field::boolean_word,
    yaml::Node,
};
use domain::{
    pack::Pack,
    policy::{DefaultAccess, ToolAccess, ToolPattern},
    principal::GUEST,
    registry::ServerRef,
};

/// The summary of a pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PackSummary {
    pub id: String,
    /// The name of its format.
    pub dialect: String,
    pub servers: Vec<ServerSummary>,
    pub skills: Vec<SkillSummary>,
    /// The roles that rules and approval policies name.
    pub roles: Vec<String>,
    /// The claim that holds the roles of a user.
    #[serde(skip)]
    pub roles_attribute: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerSummary {
    pub id: String,
    /// `registry` for a server of the registry.
    pub transport: String,
    /// The address, the program, or the entry of the registry.
    pub at: String,
    /// The allowlist. Absent if every discovered tool is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// A text that says who may call the tools.
    pub access: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkillSummary {
    pub id: String,
    pub server: String,
    pub tool: String,
}

const USERS: &str = "every user, not guests";

/// Summarizes a pack from its tree. The references come from `pack`, because several files define them.
pub(super) fn summarize(dialect: Dialect, root: &Node, pack: Option<&Pack>) -> PackSummary {
    let id = root
        .get_path(&["metadata", "id"])
        .map(scalar_or_empty)
        .unwrap_or_default();
    let mut servers: Vec<ServerSummary> = servers_of(root).iter().map(summarize_server).collect();
    let references = pack.map(|pack| &pack.references[..]).unwrap_or_default();
    servers.extend(references.iter().map(summarize_reference));
    let skills = root.get("skills").map(Node::items).unwrap_or_default();
    PackSummary {
        id,
        dialect: dialect.name().to_owned(),
        servers,
        skills: skills.iter().map(summarize_skill).collect(),
        roles: list_roles(root, references),
        roles_attribute: pack.and_then(|pack| pack.flows.authentication.roles_attribute.clone()),
    }
}

/// The tools that guests may call in a pack that lets them in, by server, as a part of a sentence.
pub(super) fn describe_guest_access(servers: &[Node], references: &[ServerRef]) -> String {
    let servers = servers.iter().filter_map(|server| {
        let text = |name| server.get(name).and_then(Node::scalar_text);
        // A personal server needs a user, and a server whose tools are not loaded has none.
        let is_closed = text("accessMode") == Some("user-controlled")
            || text("loadTools").and_then(boolean_word) == Some(false);
        let rules = server.get("toolAccess").filter(|_| !is_closed)?;
        let default = rules.get("default").and_then(Node::scalar_text);
        let default = match default {
            Some("public") => DefaultAccess::Public,
            Some("all") => DefaultAccess::All,
            _ => DefaultAccess::None,
        };
        let guest = |roles: &Node| roles.get(GUEST).map(list_texts).unwrap_or_default();
        let public = rules.get("public").map(list_texts).unwrap_or_default();
        let tools = server.get("tools").map(list_texts);
        let reached = list_guest_tools(default, public, rules.get("roles").map(guest), tools);
        Some((text("name").unwrap_or_default().to_owned(), reached))
    });
    let taken = references.iter().filter_map(|reference| {
        let access = reference.tool_access.as_ref()?;
        let names = |tools: &[ToolPattern]| tools.iter().map(|tool| tool.0.clone()).collect();
        let guest = access.roles.as_ref().map(|roles| {
            let guest = roles.get(GUEST).map(Vec::as_slice);
            names(guest.unwrap_or_default())
        });
        let (public, tools) = (names(&access.public), reference.tools.as_deref().map(names));
        let reached = list_guest_tools(access.default, public, guest, tools);
        Some((reference.alias.to_string(), reached))
    });
    let all = servers.chain(taken).filter(|(_, tools)| !tools.is_empty());
    let all: Vec<_> = all
        .map(|(server, tools)| format!("{server} {}", tools.join(", ")))
        .collect();
    if all.is_empty() {
        "no tool".to_owned()
    } else {
        all.join("; ")
    }
}

/// The tools of one server that guests may call. `guest` are the tools of their role, if the server has roles.
fn list_guest_tools(
    default: DefaultAccess,
    public: Vec<String>,
    guest: Option<Vec<String>>,
    allowlist: Option<Vec<String>>,
) -> Vec<String> {
    let every = || allowlist.unwrap_or_else(|| vec!["every tool".to_owned()]);
    match (guest, default) {
        (Some(mut listed), DefaultAccess::All) => {
            listed.push("every tool that no role lists".to_owned());
            listed
        }
        (Some(listed), _) => listed,
        (None, DefaultAccess::Public | DefaultAccess::All) => every(),
        (None, DefaultAccess::Users | DefaultAccess::Admin | DefaultAccess::None) => public,
    }
}

fn summarize_skill(skill: &Node) -> SkillSummary {
    SkillSummary {
        id: skill.get("id").map(scalar_or_empty).unwrap_or_default(),
        server: skill
            .get_path(&["mcpBinding", "server"])
            .map(scalar_or_empty)
            .unwrap_or_default(),
        tool: skill
            .get_path(&["mcpBinding", "tools"])
            .and_then(|tools| tools.items().first())
            .map(scalar_or_empty)
            .unwrap_or_default(),
    }
}

/// The roles that rules and approval policies name, sorted.
fn list_roles(root: &Node, references: &[ServerRef]) -> Vec<String> {
    let mut roles = Vec::new();
    for access in references
        .iter()
        .filter_map(|reference| reference.tool_access.as_ref())
    {
        roles.extend(access.roles.iter().flat_map(BTreeMap::keys).cloned());
        let policies = access.approval.iter();
        roles.extend(policies.flat_map(|policy| &policy.approvers).cloned());
    }
    for node in servers_of(root) {
        let named = node
            .get_path(&["toolAccess", "roles"])
            .map(Node::entries)
            .unwrap_or_default();
        roles.extend(named.iter().map(|(role, _)| role.text.clone()));
        let policies = node
            .get_path(&["toolAccess", "approval"])
            .map(Node::items)
            .unwrap_or_default();
        let approvers = policies.iter().filter_map(|policy| policy.get("approvers"));
        roles.extend(approvers.flat_map(list_texts));
    }
    roles.sort();
    roles.dedup();
    roles
}

fn summarize_server(node: &Node) -> ServerSummary {
    let text = |name: &str| node.get(name).map(scalar_or_empty);
    let at = text("url").or_else(|| text("command")).unwrap_or_default();
    ServerSummary {
        id: text("name").unwrap_or_default(),
        transport: text("transport").unwrap_or_default(),
        // The query may be secret.
        at: at.split('?').next().unwrap_or_default().to_owned(),
        tools: if text("loadTools").as_deref() == Some("false") {
            Some(Vec::new())
        } else {
            node.get("tools").map(list_texts)
        },
        access: describe_access(node),
    }
}

/// Summarizes a server of the registry, with the settings of its capabilities and the agent merged.
fn summarize_reference(reference: &ServerRef) -> ServerSummary {
    let texts = |tools: &Vec<_>| {
        tools
            .iter()
            .map(|tool: &ToolPattern| tool.0.clone())
            .collect()
    };
    let access = match &reference.tool_access {
        None => "admins only",
        Some(ToolAccess { roles: Some(_), .. }) => "by role",
        Some(ToolAccess {
            default: DefaultAccess::Public | DefaultAccess::All,
            ..
        }) => "everyone",
        Some(ToolAccess {
            default: DefaultAccess::Users,
            ..
        }) => USERS,
        Some(access) if access.public.is_empty() => "admins only",
        Some(_) => "what is public",
    };
    let policies = reference
        .tool_access
        .iter()
        .flat_map(|access| &access.approval);
    let asked: Vec<String> = policies.flat_map(|policy| texts(&policy.tools)).collect();
    ServerSummary {
        id: reference.alias.to_string(),
        transport: "registry".to_owned(),
        at: reference.entry.to_string(),
        tools: reference.tools.as_ref().map(texts),
        access: add_approval(access, &asked),
    }
}

/// Says which calls need approval, after `who` may call the tools.
fn add_approval(who: &str, asked: &[String]) -> String {
    if asked.is_empty() {
        return who.to_owned();
    }
    // Several policies may be about one tool.
    let mut once: Vec<&str> = Vec::new();
    for tool in asked {
        if !once.contains(&tool.as_str()) {
            once.push(tool);
        }
    }
    format!("{who}, with approval for {}", once.join(", "))
}

/// Says who may call the tools of a server.
fn describe_access(node: &Node) -> String {
    let personal = node.get("accessMode").and_then(Node::scalar_text) == Some("user-controlled");
    let rules = node.get("toolAccess");
    let default = rules
        .and_then(|rules| rules.get("default"))
        .and_then(Node::scalar_text);
    let who = match rules {
        None => "admins only",
        Some(rules) if rules.get("roles").is_some() => "by role",
        Some(_) if matches!(default, Some("public" | "all")) => "everyone",
        Some(_) if default == Some("users") => USERS,
        Some(rules)
            if rules
                .get("public")
                .is_none_or(|public| public.items().is_empty()) =>
        {
            "admins only"
        }
        Some(_) => "what is public",
    };
    let policies = rules.and_then(|rules| rules.get("approval"));
    let policies = policies.map(Node::items).unwrap_or_default();
    let asked = policies.iter().filter_map(|policy| policy.get("tools"));
    let asked: Vec<String> = asked.flat_map(list_texts).collect();
    let who = add_approval(who, &asked);
    if personal {
        format!("{who}, with a credential of their own")
    } else {
        who
    }
}

fn scalar_or_empty(node: &Node) -> String {
    node.scalar_text().unwrap_or_default().to_owned()
}

fn list_texts(node: &Node) -> Vec<String> {
    node.items().iter().map(scalar_or_empty).collect()
}

/// A head line, then a line for each server, one for the skills and one for the roles.
impl fmt::Display for PackSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.id, self.dialect)?;
        let width = self
            .servers
            .iter()
            .map(|server| server.id.len())
            .max()
            .unwrap_or_default();
        for ServerSummary {
            id,
            transport,
            at,
            tools,
            access,
        } in &self.servers
        {
            let tools = match tools {
                None => "all tools".to_owned(),
                Some(tools) if tools.is_empty() => "no tools".to_owned(),
                Some(tools) => tools.join(", "),
            };
            write!(f, "\n  {id:width$}  {transport} {at}: {tools}; {access}")?;
        }
        if !self.skills.is_empty() {
            let skill = |skill: &SkillSummary| {
                format!("/{} calls {} {}", skill.id, skill.server, skill.tool)
            };
            write!(
                f,
                "\n  skills: {}",
                self.skills.iter().map(skill).collect::<Vec<_>>().join(", ")
            )?;
        }
        if !self.roles.is_empty() {
            write!(f, "\n  roles: {}", self.roles.join(", "))?;
        }
        Ok(())
    }
}
