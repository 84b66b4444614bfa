//! Prompts that servers offer, and the command that uses one: `/<server>:<prompt> name=value …`. All text
//! here is a server's or a user's own; it is never scanned again after it was read.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};

use super::ids::ServerId;

/// A prompt as its server describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerPrompt {
    /// The name on its server.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub arguments: Vec<PromptArgument>,
}

/// What a prompt may or must be given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PromptArgument {
    pub name: String,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub required: bool,
}

/// The role of a message of a prompt. The protocol has no other roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptRole {
    User,
    Assistant,
}

/// A piece of what a prompt comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptMessage {
    pub by: PromptRole,
    pub text: String,
}

/// What a prompt comes to.
#[derive(Clone, Debug)]
pub struct PromptOutcome {
    /// The texts, for a model.
    pub messages: Vec<PromptMessage>,
    /// The server's own result, for a client of the protocol.
    pub raw: Box<RawValue>,
}

/// A command that names a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    pub server: &'a str,
    /// The prompt's name, or how [`word`] spells it.
    pub prompt: &'a str,
    pub rest: &'a str,
}

/// Why arguments do not fit a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgumentsError {
    /// These are required and were not given.
    Missing(Vec<String>),
    /// No argument is left that this text could be.
    Extra(String),
}

/// Reads a message as a command that names a prompt; `None` for anything else.
pub fn command(text: &str) -> Option<Command<'_>> {
    let line = text.trim().strip_prefix('/')?;
    let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let (server, prompt) = first.split_once(':')?;
    (ServerId::parse(server).is_ok() && !prompt.is_empty()).then(|| Command {
        server,
        prompt,
        rest: rest.trim(),
    })
}

/// A prompt's name as one word that can be typed.
pub fn word(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_whitespace() { '_' } else { c })
        .collect()
}

/// The command that uses a prompt.
pub fn command_of(server: &ServerId, prompt: &ServerPrompt) -> String {
    format!("/{server}:{}", word(&prompt.name))
}

/// How to write it, with its arguments: `/docs:summarise url=… [length=…]`.
pub fn usage(server: &ServerId, prompt: &ServerPrompt) -> String {
    prompt
        .arguments
        .iter()
        .fold(command_of(server, prompt), |all, argument| {
            let name = &argument.name;
            if argument.required {
                format!("{all} {name}=…")
            } else {
                format!("{all} [{name}=…]")
            }
        })
}

/// Reads `name=value` pairs; a value with blanks stands in double quotes. What names no argument of the prompt is
/// free text: it is the first required argument that was not given, or else the first optional one.
pub fn arguments(prompt: &ServerPrompt, rest: &str) -> Result<Map<String, Value>, ArgumentsError> {
    let mut given = Map::new();
    let mut free: Vec<String> = Vec::new();
    for word in words(rest) {
        let named = word
            .split_once('=')
            .filter(|(name, _)| prompt.arguments.iter().any(|a| a.name == *name));
        match named {
            Some((name, value)) => {
                drop(given.insert(name.to_owned(), Value::String(value.to_owned())));
            }
            None => free.push(word),
        }
    }
    if !free.is_empty() {
        let free = free.join(" ");
        let open = |required: bool| {
            let mut left = prompt
                .arguments
                .iter()
                .filter(|argument| !given.contains_key(&argument.name));
            left.find(|argument| argument.required == required)
        };
        let Some(argument) = open(true).or_else(|| open(false)) else {
            return Err(ArgumentsError::Extra(free));
        };
        given.insert(argument.name.clone(), Value::String(free));
    }
    let required = prompt.arguments.iter().filter(|argument| argument.required);
    let missing: Vec<String> = required
        .filter(|argument| !given.contains_key(&argument.name))
        .map(|argument| argument.name.clone())
        .collect();
    if missing.is_empty() {
        Ok(given)
    } else {
        Err(ArgumentsError::Missing(missing))
    }
}

/// Words set apart by blanks outside of double quotes; `\"` and `\\` within them stand for themselves.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quoted, mut begun) = (String::new(), false, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if quoted && matches!(chars.peek(), Some('"' | '\\')) => word.extend(chars.next()),
            // Only where a value begins or ends: an inch sign within a word is no quote.
            '"' if quoted || word.is_empty() || word.ends_with('=') => {
                (quoted, begun) = (!quoted, true);
            }
            c if c.is_whitespace() && !quoted => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            c => {
                word.push(c);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}
