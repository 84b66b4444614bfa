//! Tools as servers describe them, and the catalog they are kept in.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};
use time::OffsetDateTime;

use super::{
    canonical::Hex, elicitation::InputRequired, hidden::one_line, ids::ServerId, pin::Pin,
    prompt::ServerPrompt,
};

/// One discovered tool. JSON that nobody judges stays raw.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tool {
    /// The name on its server; the key of policy, approvals and audit together with the server.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default)]
    pub description: String,
    /// JSON Schema of the arguments, always an object schema.
    pub input_schema: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Box<RawValue>>,
    /// The server's own hints (`readOnlyHint` …): shown to people, never part of a decision about access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icons: Option<Box<RawValue>>,
    /// `_meta` of the protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Box<RawValue>>,
    /// The [`fingerprint`](super::pin::fingerprint), made when the tool is listed. Absent for a tool of the program itself,
    /// and for one that an earlier release has listed; such a tool is not pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Hex>,
}

impl Tool {
    /// Whether its server says that a call changes nothing.
    pub fn is_read_only(&self) -> bool {
        self.has_hint("readOnlyHint")
    }

    /// Whether its server says that a second call with the same arguments changes nothing more.
    pub fn is_repeatable(&self) -> bool {
        self.is_read_only() || self.has_hint("idempotentHint")
    }

    fn has_hint(&self, hint: &str) -> bool {
        let hints = self.annotations.as_ref();
        let hints = hints.and_then(|hints| serde_json::from_str::<Map<_, _>>(hints.get()).ok());
        hints.is_some_and(|hints| hints.get(hint) == Some(&Value::Bool(true)))
    }
}

/// Characters of a server's title for a tool.
const TITLE: usize = 128;

/// The hints that are true or false.
const FLAGS: [&str; 4] = [
    "readOnlyHint",
    "destructiveHint",
    "idempotentHint",
    "openWorldHint",
];

/// Whether the protocol defines an annotation of this name.
pub fn is_hint(name: &str) -> bool {
    name == "title" || FLAGS.contains(&name)
}

/// A server's title for a tool in one line; `None` when nothing of it can be seen.
pub fn clean_title(title: &str) -> Option<String> {
    Some(one_line(title, TITLE)).filter(|title| !title.is_empty())
}

/// A server's hints without those that are not of their type: a reader may rely on it.
pub fn clean_hints(hints: Map<String, Value>) -> Map<String, Value> {
    let clean = |(name, value): (String, Value)| {
        let is_flag = FLAGS.contains(&name.as_str());
        let value = match value {
            Value::String(title) if name == "title" => Value::String(clean_title(&title)?),
            _ if name == "title" => return None,
            value if is_flag && !value.is_boolean() => return None,
            value => value,
        };
        Some((name, value))
    };
    hints.into_iter().filter_map(clean).collect()
}

/// The longest name of a tool.
pub const MAX_NAME: usize = 128;

/// A name stands in prompts, so it must not be able to hold a sentence.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:/-".contains(&byte);
    if name.is_empty() {
        return Err("the name is empty".to_owned());
    }
    if name.len() > MAX_NAME {
        return Err(format!("the name has more than {MAX_NAME} characters"));
    }
    if !name.bytes().all(is_legal) {
        return Err("the name has other characters than letters, digits and _.:/-".to_owned());
    }
    Ok(())
}

/// The oldest list by which a pinned tool is called that may change something. No list is asked for more often, but for an
/// announced change.
pub const SHORTEST_FRESH: Duration = Duration::from_secs(60);
/// A catalog is asked for again after this time even if the server says nothing. A server that changes a tool behind
/// somebody's back announces nothing, so where changed tools are held it is the shortest one.
const LONGEST_FRESH: Duration = Duration::from_secs(600);

/// The discovered tools of a server: an immutable snapshot.
#[derive(Clone, Debug)]
pub struct Catalog {
    pub server: ServerId,
    pub tools: Vec<Arc<Tool>>,
    /// What it offers as commands.
    pub prompts: Vec<Arc<ServerPrompt>>,
    /// What was left out at discovery and why, in the server's order (`tool "x": …`).
    pub dropped: Vec<String>,
    pub fetched_at: OffsetDateTime,
    pub cache: CacheHints,
    /// Changes whenever the content does: a SHA-256 of tools and prompts, in hex.
    pub version: String,
}

impl Catalog {
    pub fn tool_names(&self) -> Vec<&str> {
        self.tools.iter().map(|tool| tool.name.as_str()).collect()
    }
}

/// How a server says that its lists may be kept (2026-07-28).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheHints {
    /// For how long the lists are fresh.
    pub ttl: Option<Duration>,
    pub scope: Option<CacheScope>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum CacheScope {
    /// Users may share the lists.
    Public,
    /// The lists are only for the user who asked.
    Private,
}

impl CacheHints {
    /// The hints for two lists, or two pages of one, taken together: the stricter value of each.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let scope = match (self.scope, other.scope) {
            (Some(CacheScope::Private), _) | (_, Some(CacheScope::Private)) => {
                Some(CacheScope::Private)
            }
            (Some(CacheScope::Public), Some(CacheScope::Public)) => Some(CacheScope::Public),
            _ => None,
        };
        Self {
            ttl: self.ttl.into_iter().chain(other.ttl).min(),
            scope,
        }
    }
}

impl Catalog {
    /// The age at which a list is asked for again. A hint of the server counts between the two bounds, so
    /// that a list that is stale at once does not cause a request for each use.
    pub fn fresh_for(&self, pin: Pin) -> Duration {
        let longest = match pin {
            Pin::Hold => SHORTEST_FRESH,
            Pin::Tell | Pin::Off => LONGEST_FRESH,
        };
        let ttl = self.cache.ttl;
        ttl.map_or(longest, |ttl| ttl.clamp(SHORTEST_FRESH, longest))
    }

    /// Whether the server says that no other user may see it.
    pub fn is_private(&self) -> bool {
        self.cache.scope == Some(CacheScope::Private)
    }
}

/// What a call brought back, as the gate hands it on.
#[derive(Clone, Debug)]
pub struct ToolOutcome {
    /// The server's `CallToolResult` as it came: `content`, `structuredContent`, `isError`.
    pub raw: Box<RawValue>,
    pub is_error: bool,
    /// What the model reads: text of the content, and the structured content where the text does not say it, cut at 64 KiB
    /// with an explicit mark.
    pub text: String,
    /// The server needs input first; then this is not a result.
    pub input: Option<Box<InputRequired>>,
    /// What the server asked while the call was open, which was declined.
    pub declined: Vec<String>,
}
