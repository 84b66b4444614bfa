//! Prompts of servers as commands: which ones a principal has, and what one comes to when it is used. The text of a
//! prompt is its server's; it opens a turn as if the user had said it, under a mark that says whose it is.

use std::{fmt::Write as _, sync::Arc};

use serde::Serialize;

use crate::app::{
    App,
    servers::agents,
    tools::{
        gate::reads::{self, ReadContext},
        toolset,
    },
};
use crate::domain::{
    error::Result,
    ids::{RunId, ServerId},
    message::{Part, Role, ServerText},
    pack::Pack,
    principal::Principal,
    prompt::{self, ArgumentsError, PromptArgument, PromptRole},
    texts::{self, Key},
};

/// A prompt as a frontend lists it.
#[derive(Clone, Debug, Serialize)]
pub struct PromptView {
    pub server: String,
    /// The server's own name of the prompt.
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub description: String,
    pub arguments: Vec<PromptArgument>,
    /// What to say in a conversation to use it, followed by `name=value` for each argument.
    pub command: String,
    #[serde(skip)]
    pub usage: String,
}

/// What a command that names a prompt comes to.
pub enum PromptOutcome {
    /// Messages for the model.
    Messages(Vec<(Role, Part)>),
    /// A notice for the user: the model is not asked.
    Notice(Box<Part>),
}

/// The prompts that the principal may use at an agent.
pub async fn list(app: &Arc<App>, principal: &Principal, agent: &str) -> Result<Vec<PromptView>> {
    let pack = agents::pack(app, principal, agent).await?;
    let toolbox = toolset::toolbox(app, principal, &pack).await?;
    let views = toolbox.prompts().map(|(spec, prompt)| PromptView {
        server: spec.id.to_string(),
        name: prompt.name.clone(),
        title: prompt.title.clone(),
        description: prompt.description.clone(),
        arguments: prompt.arguments.clone(),
        command: prompt::command_of(&spec.id, prompt),
        usage: prompt::usage(&spec.id, prompt),
    });
    Ok(views.collect())
}

/// The same for reading; empty when there are none.
pub async fn describe(app: &Arc<App>, principal: &Principal, agent: &str) -> Result<String> {
    let mut text = String::new();
    for view in list(app, principal, agent).await? {
        let what = Some(&view.description)
            .filter(|what| !what.is_empty())
            .or(view.title.as_ref());
        let what = what
            .and_then(|what| what.lines().next())
            .map(|what| format!(" – {what}"))
            .unwrap_or_default();
        let _ = writeln!(text, "{}{what}", view.usage);
    }
    Ok(text.trim_end().to_owned())
}

/// Uses the prompt that a message names.
pub async fn use_one(
    app: &Arc<App>,
    principal: &Principal,
    pack: &Arc<Pack>,
    run: RunId,
    command: prompt::Command<'_>,
) -> Result<PromptOutcome> {
    let texts = texts::of(pack, principal);
    let toolbox = toolset::toolbox(app, principal, pack).await?;
    let named = format!("/{}:{}", command.server, command.prompt);
    let tell = |code: &str, key: Key, values: &[(&str, &str)]| {
        let text = texts.render(key, &[&[("command", named.as_str())], values].concat());
        PromptOutcome::Notice(Box::new(Part::Notice {
            code: code.to_owned(),
            text,
        }))
    };
    let Some((spec, found)) = toolbox.prompt(command.server, command.prompt) else {
        return Ok(tell("unknown_prompt", Key::PromptUnknown, &[]));
    };
    let arguments = match prompt::arguments(found, command.rest) {
        Ok(arguments) => arguments,
        Err(unfit) => {
            let (key, name, value) = match unfit {
                ArgumentsError::Missing(absent) => {
                    (Key::PromptMissing, "missing", absent.join(", "))
                }
                ArgumentsError::Extra(text) => (Key::PromptExtra, "text", text),
            };
            let usage = prompt::usage(&spec.id, found);
            let values = [(name, value.as_str()), ("usage", &*usage)];
            return Ok(tell("bad_prompt", key, &values));
        }
    };
    let asking = ReadContext {
        principal,
        toolbox: &toolbox,
        run: Some(run),
    };
    let said = match reads::prompt(app, &asking, spec, found, &arguments).await {
        Ok(said) => said,
        Err(reason) => {
            let values = [("reason", reason.as_str())];
            return Ok(tell("prompt_failed", Key::PromptFailed, &values));
        }
    };
    let message = |said: &prompt::PromptMessage| message_of_prompt(&spec.id, &found.name, said);
    Ok(PromptOutcome::Messages(
        said.messages.iter().map(message).collect(),
    ))
}

fn message_of_prompt(
    server: &ServerId,
    prompt: &str,
    said: &prompt::PromptMessage,
) -> (Role, Part) {
    let role = match said.by {
        PromptRole::User => Role::User,
        PromptRole::Assistant => Role::Assistant,
    };
    let text = ServerText {
        server: server.to_string(),
        prompt: prompt.to_owned(),
        text: said.text.replace('\0', "\u{fffd}"),
    };
    (role, Part::ServerPrompt(text))
}
