//! A skill is a named shortcut bound to a tool: running it calls the tool, and no model is involved.
//!
//! A skill is always a command line of a conversation (`/web-search {"input":"rust"}`), whether it is run in
//! chat, by REST or by A2A. So the rules of commands hold for it: rows, events, leases, and no call is sent
//! twice. The result has the form of the AOS document: the structured content as JSON, else the text of the
//! content.

pub mod words;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    canonical, command,
    hidden::escape_hidden,
    ids::{AuditId, ServerId},
    json::{Json, Members},
    message::{ToolCall, ToolResult},
    pack::Pack,
};

/// Where the free text goes among the arguments.
const INPUT: &str = "input";

/// One skill of an agent. Its server and tools are checked at load: the server is one of the pack, the tools
/// are within its allowlist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skill {
    /// What a person types after a slash. Lower case letters, digits and hyphens; unique in a pack.
    pub id: String,
    /// What people call it, by language.
    pub name: BTreeMap<String, String>,
    pub description: BTreeMap<String, String>,
    pub server: ServerId,
    /// Never empty. The first one is called.
    pub tools: Vec<String>,
    /// The values of arguments that the caller leaves out.
    pub defaults: Members,
}

impl Skill {
    /// What runs it in a chat.
    pub fn command(&self) -> String {
        format!("/{}", self.id)
    }

    /// What it is called in a language, or its id.
    pub fn name<'s>(&'s self, pack: &'s Pack, locale: Option<&str>) -> &'s str {
        pack.text(&self.name, locale).unwrap_or(&self.id)
    }

    /// What it does, in a language; empty if the pack does not say.
    pub fn description<'s>(&'s self, pack: &'s Pack, locale: Option<&str>) -> &'s str {
        pack.text(&self.description, locale).unwrap_or_default()
    }

    /// The tool that it calls.
    pub fn tool(&self) -> &str {
        self.tools.first().map_or("", String::as_str)
    }

    /// The arguments with the skill's own values for those that are left out.
    pub fn complete(&self, mut arguments: Members) -> Members {
        for (name, value) in self.defaults.iter() {
            arguments.add(name, value.clone());
        }
        arguments
    }

    /// The call, for a run that may make one.
    pub fn call(&self, call_id: String, arguments: Members) -> ToolCall {
        ToolCall {
            call_id,
            name: self.command(),
            server: Some(self.server.to_string()),
            tool: Some(self.tool().to_owned()),
            arguments: Json::Object(self.complete(arguments)).to_raw(),
            audit_id: Some(AuditId::new()),
        }
    }
}

/// The skill that a text names, and the text after its name. The program's own commands are not skills.
pub fn find_in_text<'p, 't>(pack: &'p Pack, text: &'t str) -> Option<(&'p Skill, &'t str)> {
    let text = text.trim();
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let id = word
        .strip_prefix('/')
        .filter(|_| !command::is_command(text))?;
    pack.skills
        .iter()
        .find(|skill| skill.id == id)
        .map(|skill| (skill, rest.trim()))
}

/// The skill that made a call, by its id; `None` for any other call.
pub fn of_call(call: &ToolCall) -> Option<&str> {
    call.name.strip_prefix('/')
}

/// The arguments of a skill, and why two JSON readers could understand their text differently.
#[derive(Debug, PartialEq)]
pub struct Arguments {
    pub given: Members,
    pub ambiguity: Option<String>,
}

/// The arguments that a text in `{…}` is; `None` for any other text. The error says why `{…}` is not a JSON object.
pub fn arguments(text: &str) -> Option<Result<Arguments, String>> {
    let text = text.trim();
    let read = || {
        let Json::Object(given) = Json::parse(text)? else {
            return Err("is not one JSON object".to_owned());
        };
        Ok(Arguments {
            given,
            ambiguity: canonical::ambiguity(text),
        })
    };
    (text.starts_with('{') && text.ends_with('}')).then(read)
}

/// The arguments with the free text added to them. Blank text adds nothing.
pub fn with_input(mut given: Members, text: &str) -> Result<Members, String> {
    if text.trim().is_empty() {
        return Ok(given);
    }
    if given.add(INPUT, Json::Text(text.to_owned())) {
        Ok(given)
    } else {
        Err("stands among the arguments already; send one of the two".to_owned())
    }
}

/// What a skill says.
#[derive(Clone, Debug)]
pub struct SkillText {
    pub text: String,
    /// The server's `structuredContent` as it came.
    pub structured: Option<Box<RawValue>>,
}

/// The text and the structured content of a result.
pub fn result_text(result: &ToolResult) -> SkillText {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Outcome<'a> {
        #[serde(borrow, default)]
        structured_content: Option<&'a RawValue>,
    }
    let outcome = result
        .raw
        .as_ref()
        .and_then(|raw| serde_json::from_str::<Outcome>(raw.get()).ok());
    let structured = outcome
        .and_then(|outcome| outcome.structured_content)
        .map(ToOwned::to_owned);
    let text = structured.as_ref().map_or_else(
        || result.text.clone(),
        |content| escape_hidden(content.get()),
    );
    SkillText { text, structured }
}
