//! The tree of a native pack, built from the parts that another format has.

use super::environment_model::model_of_environment;
use crate::{
    node_builder::{NodeBuilder, generated, generated_text},
    parse_context::ParseContext,
    yaml::{Node, Value},
};

/// The parts of a pack that come from its format. The other parts have defaults.
#[derive(Default)]
pub(crate) struct Parts {
    pub display_name: Option<Node>,
    pub description: Option<Node>,
    pub system_prompt: Option<Node>,
    pub llm: Option<Node>,
    pub servers: Vec<Node>,
    pub skills: Vec<Node>,
    /// What is worth knowing about the servers.
    pub note: Option<String>,
}

/// The tree of a native pack, but for its id.
pub(crate) fn assemble(parts: Parts, context: &ParseContext) -> Node {
    const NEUTRAL: &str = "default of imported packs";
    let mut metadata = NodeBuilder::default();
    metadata.put_some("displayName", parts.display_name);
    metadata.put_some("description", parts.description);
    metadata.put("defaultLanguage", generated_text(NEUTRAL, "en"));
    let mut english = NodeBuilder::default();
    english.put_some("systemPrompt", parts.system_prompt);
    let mut languages = NodeBuilder::default();
    languages.put("en", english.generated(NEUTRAL));
    let mut mcp = NodeBuilder::default();
    mcp.put("servers", generated(NEUTRAL, Value::List(parts.servers)));
    let mut root = NodeBuilder::default();
    root.put("metadata", metadata.generated(NEUTRAL));
    root.put("languages", languages.generated(NEUTRAL));
    root.put(
        "llm",
        parts.llm.unwrap_or_else(|| model_of_environment(context)),
    );
    root.put("mcp", mcp.generated(NEUTRAL).with_note(parts.note));
    if !parts.skills.is_empty() {
        root.put("skills", generated(NEUTRAL, Value::List(parts.skills)));
    }
    root.generated(NEUTRAL)
}

/// The access rule of an imported server: any user of the tenant may call any tool.
pub(crate) fn open_to_all() -> Node {
    const WHY: &str = "default of imported packs: every user of the tenant";
    let mut access = NodeBuilder::default();
    access.put("default", generated_text(WHY, "public"));
    access.generated(WHY)
}
