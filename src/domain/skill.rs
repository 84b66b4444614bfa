//! A skill is a named shortcut bound to a tool: running it calls the tool, and no model is involved.

use super::ids::ServerId;

/// One skill of an agent. Its server and tools are checked at load: the server is one of the pack, the tools
/// are within its allowlist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skill {
    /// What a person types after a slash. Lower case letters, digits and hyphens; unique in a pack.
    pub id: String,
    pub name: String,
    pub description: String,
    pub server: ServerId,
    /// Never empty. The first one is called.
    pub tools: Vec<String>,
}
