//! Pinned tools: a tool is what its server said of it when somebody accepted it. A server that says something else later,
//! or lists one more tool that only a wildcard lets in, has to wait until somebody accepts that, too.
//!
//! Pure: what is known of the tools of an agent's servers is passed in. [`Pins::judge`] says what becomes of a definition,
//! and [`Pins::held`] which tools the policy denies ([`ServerSpec::held`]).

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Write as _,
};

use serde::Serialize;

use super::{
    canonical::{Hash, Hex},
    hidden::escape_hidden,
    ids::ServerId,
    json::{Json, quoted},
    orchestrator,
    server::ServerSpec,
    tool::{Catalog, Tool},
};

/// What becomes of a tool that is not as somebody accepted it: `pin` of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Pin {
    /// It is neither listed nor called until somebody accepts it.
    #[default]
    Hold,
    /// It is used, and the admins are told.
    Tell,
    /// Nobody looks.
    Off,
}

/// What is known of the tools of one agent's servers, as it counts for one tenant.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pins(HashMap<ServerId, HashMap<String, KnownDefinitions>>);

/// The hashes of a tool's definitions. Several count where users see different ones, or where a server is replaced bit by
/// bit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KnownDefinitions {
    accepted: BTreeSet<Hash>,
    waiting: BTreeSet<Hash>,
}

/// What becomes of a definition that a server lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is accepted already, waits already, or is not pinned.
    Known,
    /// It is accepted now: nobody has seen tools of the server before, or the pack names the tool and nobody has seen it
    /// before.
    Accept,
    /// It waits until somebody accepts it.
    Wait,
}

impl Pins {
    pub fn add(&mut self, server: ServerId, tool: String, hash: Hash, is_accepted: bool) {
        let known = self.0.entry(server).or_default().entry(tool).or_default();
        let hashes = if is_accepted {
            &mut known.accepted
        } else {
            &mut known.waiting
        };
        hashes.insert(hash);
    }

    /// Whether anything is known of the server's tools.
    pub fn has_server(&self, server: &ServerId) -> bool {
        self.0.contains_key(server)
    }

    /// Whether some definition of the tool was accepted.
    pub fn has_accepted(&self, server: &ServerId, tool: &str) -> bool {
        let known = self.known(server, tool);
        known.is_some_and(|known| !known.accepted.is_empty())
    }

    fn known(&self, server: &ServerId, tool: &str) -> Option<&KnownDefinitions> {
        self.0.get(server)?.get(tool)
    }

    /// Judges a tool that a server lists.
    pub fn judge(&self, server: &ServerSpec, tool: &Tool) -> Standing {
        let Some(Hex(hash)) = tool.hash.filter(|_| server.is_pinned()) else {
            return Standing::Known;
        };
        let Some(tools) = self.0.get(&server.id) else {
            return Standing::Accept;
        };
        let known = tools.get(&tool.name);
        let is_accepted = known.is_some_and(|known| known.accepted.contains(&hash));
        let was_accepted = known.is_some_and(|known| !known.accepted.is_empty());
        let is_waiting = known.is_some_and(|known| known.waiting.contains(&hash));
        match (is_accepted, was_accepted) {
            (true, _) => Standing::Known,
            (false, false) if known.is_none() && server.grants_by_name(&tool.name) => {
                Standing::Accept
            }
            _ if is_waiting => Standing::Known,
            _ => Standing::Wait,
        }
    }

    /// Whether somebody has accepted the tool as it is, or nobody needs to.
    pub fn accepts(&self, server: &ServerSpec, tool: &Tool) -> bool {
        let Some(Hex(hash)) = tool.hash.filter(|_| server.is_pinned()) else {
            return true;
        };
        let known = self.known(&server.id, &tool.name);
        known.is_some_and(|known| known.accepted.contains(&hash))
    }

    /// The tools of a server that the policy denies until somebody accepts them as they are.
    pub fn held(&self, server: &ServerSpec, catalog: &Catalog) -> BTreeSet<String> {
        if server.pin != Pin::Hold {
            return BTreeSet::new();
        }
        let held = catalog.tools.iter();
        held.filter(|tool| !self.accepts(server, tool))
            .map(|tool| tool.name.clone())
            .collect()
    }
}

impl ServerSpec {
    /// Whether anybody looks whether its tools change. Those of the program itself change with its release.
    pub fn is_pinned(&self) -> bool {
        self.pin != Pin::Off && !orchestrator::is_built_in(self)
    }
}

/// The members of a definition as people read them.
const IN_ORDER: [&str; 8] = [
    "name",
    "title",
    "description",
    "inputSchema",
    "outputSchema",
    "annotations",
    "icons",
    "_meta",
];

/// A definition in lines for people, so that two of them can be compared: texts as they are, JSON with one member a line.
/// Characters that nobody sees stand as `\u202e`. Unlike the definition it is not for machines. What cannot be read, because
/// it is nested too deeply, stands as it is, after a line that says so.
pub fn to_lines(definition: &str) -> String {
    let mut lines = String::new();
    let parsed = match Json::parse(definition) {
        Ok(parsed) => parsed,
        Err(why) => {
            let text = format!("(not in lines, because {why})\n{definition}\n");
            return escape_hidden(&text);
        }
    };
    for name in IN_ORDER {
        let Some(value) = parsed.get(name) else {
            continue;
        };
        match value {
            Json::Text(text) if text.contains('\n') => {
                let text = text.replace('\n', "\n  ");
                let _ = write!(lines, "{name}:\n  {text}");
            }
            Json::Text(text) => {
                let _ = write!(lines, "{name}: {text}");
            }
            value => {
                let _ = write!(lines, "{name}: ");
                push_json(&mut lines, value, 0);
            }
        }
        lines.push('\n');
    }
    escape_hidden(&lines)
}

fn push_json(lines: &mut String, value: &Json, depth: usize) {
    let new_line = |lines: &mut String, depth: usize| {
        lines.push('\n');
        lines.push_str(&"  ".repeat(depth));
    };
    match value {
        Json::Object(members) if members.iter().next().is_some() => {
            lines.push('{');
            for (at, (name, member)) in members.iter().enumerate() {
                lines.push_str(if at == 0 { "" } else { "," });
                new_line(lines, depth + 1);
                let _ = write!(lines, "{}: ", quoted(name));
                push_json(lines, member, depth + 1);
            }
            new_line(lines, depth);
            lines.push('}');
        }
        Json::List(items) if !items.is_empty() => {
            lines.push('[');
            for (at, item) in items.iter().enumerate() {
                lines.push_str(if at == 0 { "" } else { "," });
                new_line(lines, depth + 1);
                push_json(lines, item, depth + 1);
            }
            new_line(lines, depth);
            lines.push(']');
        }
        value => lines.push_str(&value.to_string()),
    }
}
