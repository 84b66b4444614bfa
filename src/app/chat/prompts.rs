//! Prompts of servers, which users type as commands. The text of a prompt comes from its server. It begins a turn as if
//! the user had written it, and is marked as the server's.

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
use domain::{
    error::Result,
    ids::{RunId, ServerId},
    message::{Part, Role, ServerText},
    pack::Pack,
    principal::Principal,
    prompt::{self, ArgumentsError, PromptArgument, PromptRole},
    texts::{self, Key},
};

/// A prompt as a frontend lists it.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct PromptView {
    pub server: String,
    /// The server's own name of the prompt.
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub description: String,
    pub arguments: Vec<PromptArgument>,
    /// The command to type in a conversation, followed by `name=value` for each argument.
    pub command: String,
    #[serde(skip)]
    pub usage: String,
}

/// The outcome of a command that names a prompt.
pub enum PromptOutcome {
    /// Messages for the model.
    Messages(Vec<(Role, Part)>),
    /// A notice for the user. The model is not asked.
    Notice(Box<Part>),
}

/// Lists the prompts that the principal may use at an agent.
pub async fn list(app: &Arc<App>, principal: &Principal, agent: &str) -> Result<Vec<PromptView>> {
    let pack = agents::pack(app, principal, agent).await?;
    let toolset = toolset::select(app, principal, &pack).await?;
    let views = toolset.prompts().map(|(spec, prompt)| PromptView {
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

/// Describes the prompts of [`list`] as text, a line each. Empty when there are none.
pub async fn describe(app: &Arc<App>, principal: &Principal, agent: &str) -> Result<String> {
    let mut text = String::new();
    for view in list(app, principal, agent).await? {
        let description = Some(&view.description)
            .filter(|text| !text.is_empty())
            .or(view.title.as_ref());
        let description = description
            .and_then(|text| text.lines().next())
            .map(|line| format!(" – {line}"))
            .unwrap_or_default();
        let _ = writeln!(text, "{}{description}", view.usage);
    }
    Ok(text.trim_end().to_owned())
}

/// Reads the prompt that a message names from its server.
pub async fn use_prompt(
    app: &Arc<App>,
    principal: &Principal,
    pack: &Arc<Pack>,
    run: RunId,
    command: prompt::Command<'_>,
) -> Result<PromptOutcome> {
    let texts = texts::of(pack, principal);
    let toolset = toolset::select(app, principal, pack).await?;
    let named = format!("/{}:{}", command.server, command.prompt);
    let notice = |code: &str, key: Key, values: &[(&str, &str)]| {
        let text = texts.render(key, &[&[("command", named.as_str())], values].concat());
        PromptOutcome::Notice(Box::new(Part::Notice {
            code: code.to_owned(),
            text,
        }))
    };
    let Some((spec, found)) = toolset.prompt(command.server, command.prompt) else {
        return Ok(notice("unknown_prompt", Key::PromptUnknown, &[]));
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
            return Ok(notice("bad_prompt", key, &values));
        }
    };
    let context = ReadContext {
        principal,
        toolset: &toolset,
        run: Some(run),
    };
    let result = match reads::prompt(app, &context, spec, found, &arguments).await {
        Ok(result) => result,
        Err(reason) => {
            let values = [("reason", reason.as_str())];
            return Ok(notice("prompt_failed", Key::PromptFailed, &values));
        }
    };
    let to_message =
        |message: &prompt::PromptMessage| message_of_prompt(&spec.id, &found.name, message);
    Ok(PromptOutcome::Messages(
        result.messages.iter().map(to_message).collect(),
    ))
}

fn message_of_prompt(
    server: &ServerId,
    prompt: &str,
    message: &prompt::PromptMessage,
) -> (Role, Part) {
    let role = match message.by {
        PromptRole::User => Role::User,
        PromptRole::Assistant => Role::Assistant,
    };
    let text = ServerText {
        server: server.to_string(),
        prompt: prompt.to_owned(),
        text: message.text.replace('\0', "\u{fffd}"),
    };
    (role, Part::ServerPrompt(text))
}
