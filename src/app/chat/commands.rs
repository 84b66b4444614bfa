//! Slash commands: handled before the model and never shown to it, so that they work with any frontend
//! and with `provider: none`.

mod approvals;

use std::{fmt::Write as _, sync::Arc};

use serde_json::{Map, Value};

use super::{flows, menu, prompts};
use crate::app::{
    App,
    runs::sign_outs,
    servers::{agents, connections::State, credentials},
    tools::{
        skills::{self, SkillCommand, SkillView},
        toolset,
    },
};
use crate::domain::{
    canonical,
    connection::DownCause,
    error::{Error, Result},
    ids::AuditId,
    message::{Choice, Part, ToolCall},
    run::ClaimedRun,
    texts::{self, Key},
};

/// What a command comes to.
pub enum Answer {
    Parts(Vec<Part>),
    /// A tool is to be called, through the gate like any other call; and why two readers could understand the
    /// text of its arguments differently.
    Call(ToolCall, Option<String>),
}

const HELP: &str = "\
/help – this list
/menu – what else you can do here; /menu ITEM does it
/tools – the tools you can use, by server
/prompts – what the servers offer as commands; /SERVER:PROMPT name=value … says it to the agent
/connections – the servers of this agent and how they are
/connect – connect a server that needs a credential of yours; /connect SERVER goes there directly
/disconnect SERVER – delete what you entered for it
/logout – sign out: what runs for you stops, your connections are closed
/approvals – what waits for your decision, and your own requests
/approve CODE, /reject CODE reason – decide about a request
/cancel – leave off connecting, or what a server asks you; /cancel CODE takes your own request back
/decline – say no to what a server asks you
/call SERVER TOOL {\"argument\": …} – call a tool directly, without the model
Anything else is said to the agent.";

/// Answers one command line of a run's user.
pub async fn answer(app: &Arc<App>, run: &ClaimedRun, line: &str) -> Result<Answer> {
    let line = line.trim();
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let text = match name {
        "/help" => help(app, run).await?,
        "/prompts" => match describe_prompts(app, run).await? {
            text if text.is_empty() => {
                return Ok(Answer::Parts(vec![
                    render(app, run, "no_prompts", Key::PromptsNone).await?,
                ]));
            }
            text => text,
        },
        "/menu" if rest.trim().is_empty() => {
            return describe_menu(app, run).await.map(Answer::Parts);
        }
        "/menu" => return choose(app, run, rest.trim()).await,
        "/authenticate" => return authenticate(app, run).await.map(Answer::Parts),
        "/logout" => {
            let ended = sign_outs::end(app, &run.principal, run.id).await?;
            let key = if ended {
                Key::LoggedOut
            } else {
                Key::LoggedOutOfKey
            };
            return Ok(Answer::Parts(vec![
                render(app, run, "logged_out", key).await?,
            ]));
        }
        "/tools" => describe_tools(app, run).await?,
        "/connections" => describe_connections(app, run).await?,
        "/connect" => return flows::begin(app, run, rest.trim()).await.map(Answer::Parts),
        "/disconnect" => {
            return flows::disconnect(app, run, rest.trim())
                .await
                .map(Answer::Parts);
        }
        "/cancel" if !rest.trim().is_empty() => {
            return approvals::answer(app, run, name, rest).await;
        }
        "/decline" => {
            return Ok(Answer::Parts(vec![
                render(app, run, "nothing_asked", Key::AskNone).await?,
            ]));
        }
        "/cancel" => return flows::cancel(app, run).await.map(Answer::Parts),
        // The prompt was withdrawn before this run could read the answer.
        answer if !answer.starts_with('/') => {
            return flows::answer_too_late(app, run).await.map(Answer::Parts);
        }
        "/call" => match parse_call(run, rest) {
            Ok((call, ambiguity)) => return Ok(Answer::Call(call, ambiguity)),
            Err(reason) => return Ok(Answer::Parts(vec![notice("bad_command", reason)])),
        },
        "/approvals" | "/approve" | "/reject" => {
            return approvals::answer(app, run, name, rest).await;
        }
        unknown => return skill(app, run, line, unknown).await,
    };
    Ok(Answer::Parts(vec![Part::text(text)]))
}

pub(in crate::app) fn notice(code: &str, text: impl Into<String>) -> Part {
    Part::Notice {
        code: code.to_owned(),
        text: text.into(),
    }
}

/// One of the program's own sentences, in the user's language.
async fn sentence(app: &App, run: &ClaimedRun, key: Key) -> Result<String> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    Ok(texts::of(&pack, &run.principal).render(key, &[]))
}

async fn render(app: &App, run: &ClaimedRun, code: &str, key: Key) -> Result<Part> {
    Ok(notice(code, sentence(app, run, key).await?))
}

/// Handles a line that is no built-in command: it may name a skill of the agent.
async fn skill(app: &Arc<App>, run: &ClaimedRun, line: &str, name: &str) -> Result<Answer> {
    match skills::parse_command(app, run, line).await? {
        Some(SkillCommand::Call(call, ambiguity)) => Ok(Answer::Call(call, ambiguity)),
        Some(SkillCommand::NotAnObject(why)) => {
            let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
            let values = [
                ("why", why.as_str()),
                ("command", name),
                ("example", "{\"argument\": \"value\"}"),
            ];
            let reason = texts::of(&pack, &run.principal).render(Key::SkillArguments, &values);
            Ok(Answer::Parts(vec![notice("bad_command", reason)]))
        }
        None => {
            let reason = format!("There is no command {name}. Type /help for the commands.");
            Ok(Answer::Parts(vec![notice("unknown_command", reason)]))
        }
    }
}

/// The commands, the agent's skills, and the commands that its servers bring.
async fn help(app: &Arc<App>, run: &ClaimedRun) -> Result<String> {
    let (skills, prompts) = (
        describe_skills(app, run).await?,
        describe_prompts(app, run).await?,
    );
    let prompts = if prompts.is_empty() {
        prompts
    } else {
        format!("\n\n{prompts}")
    };
    Ok(format!("{HELP}{skills}{prompts}"))
}

/// The skills that the user may run, a line each behind a heading; nothing when there are none.
async fn describe_skills(app: &Arc<App>, run: &ClaimedRun) -> Result<String> {
    let views = skills::list(app, &run.principal, run.agent.as_str()).await?;
    if views.is_empty() {
        return Ok(String::new());
    }
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let texts = texts::of(&pack, &run.principal);
    let mut text = format!("\n\n{}:", texts.render(Key::Skills, &[]));
    for view in &views {
        let approval = view.needs_approval_by.as_ref().map(|by| {
            format!(
                " ({})",
                texts.render(
                    Key::SkillNeedsApproval,
                    &[("approvers", by.join(", ").as_str())]
                )
            )
        });
        let approval = approval.unwrap_or_default();
        let _ = write!(text, "\n{} – {}{approval}", view.command, about(view));
    }
    Ok(text)
}

/// A skill in a line.
fn about(view: &SkillView) -> &str {
    view.description
        .lines()
        .next()
        .filter(|line| !line.trim().is_empty())
        .unwrap_or(&view.name)
}

/// `/menu`: every item with the command that does the same, and every skill.
async fn describe_menu(app: &Arc<App>, run: &ClaimedRun) -> Result<Vec<Part>> {
    let items = menu::list(
        app,
        &run.principal,
        run.agent.as_str(),
        Some(run.conversation),
    )
    .await?;
    let skills = skills::list(app, &run.principal, run.agent.as_str()).await?;
    if items.is_empty() && skills.is_empty() {
        return Ok(vec![render(app, run, "menu", Key::MenuEmpty).await?]);
    }
    let choice = |item: menu::ItemView| {
        let badge = item
            .badge
            .map(|count| format!(" ({count})"))
            .unwrap_or_default();
        Choice {
            label: format!("{}{badge} – {}", item.label, item.command),
            value: item.command.to_owned(),
        }
    };
    let skill = |view: SkillView| Choice {
        label: format!("{} – {}", view.name, view.command),
        value: view.command,
    };
    let choices = items
        .into_iter()
        .map(choice)
        .chain(skills.into_iter().map(skill))
        .collect();
    Ok(vec![Part::Choices {
        text: sentence(app, run, Key::Menu).await?,
        choices,
    }])
}

/// `/menu ITEM`.
async fn choose(app: &Arc<App>, run: &ClaimedRun, item: &str) -> Result<Answer> {
    match menu::choose(app, &run.principal, run.conversation, item).await {
        Ok(command) => Box::pin(answer(app, run, command)).await,
        Err(Error::NotFound(_)) => {
            let mut parts = vec![render(app, run, "unknown_item", Key::MenuUnknown).await?];
            parts.extend(describe_menu(app, run).await?);
            Ok(Answer::Parts(parts))
        }
        Err(error) => Err(error),
    }
}

/// How to sign in: only the frontend can start a sign-in.
async fn authenticate(app: &App, run: &ClaimedRun) -> Result<Vec<Part>> {
    let key = if run.principal.authenticated {
        Key::SignedInAlready
    } else {
        Key::SignIn
    };
    Ok(vec![render(app, run, "authenticate", key).await?])
}

async fn describe_tools(app: &Arc<App>, run: &ClaimedRun) -> Result<String> {
    let servers = toolset::list(app, &run.principal, run.agent.as_str()).await?;
    let mut text = String::new();
    for server in servers {
        let _ = writeln!(
            text,
            "{}{}",
            server.connection.server,
            remark(&server.connection.state, run)
        );
        for tool in &server.tools {
            let what = tool.description.lines().next().unwrap_or_default();
            let what = if what.is_empty() {
                String::new()
            } else {
                format!(" – {what}")
            };
            let approval = tool.needs_approval_by.as_ref();
            let approval = approval
                .map(|by| format!(" (needs approval by {})", by.join(" or ")))
                .unwrap_or_default();
            let _ = writeln!(text, "  {}{what}{approval}", tool.tool);
        }
    }
    let tools = if text.is_empty() {
        "There are no tools for you here."
    } else {
        text.trim_end()
    };
    Ok(format!("{tools}{}", describe_skills(app, run).await?))
}

async fn describe_prompts(app: &Arc<App>, run: &ClaimedRun) -> Result<String> {
    prompts::describe(app, &run.principal, run.agent.as_str()).await
}

async fn describe_connections(app: &App, run: &ClaimedRun) -> Result<String> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    if pack.servers.is_empty() {
        return Ok("This agent has no servers.".to_owned());
    }
    let views = credentials::list(app, &run.principal, run.agent.as_str(), false).await?;
    let lines = views.iter().map(|view| {
        let state = match &view.state {
            State::Ready { .. } | State::Configured => " – ready".to_owned(),
            other => remark(other, run),
        };
        format!("{} ({}){state}", view.server, view.kind.as_str())
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// The state of a server as a remark after its name; empty when it is ready. The reason of a failure is
/// shown to the operator only.
fn remark(state: &State, run: &ClaimedRun) -> String {
    match state {
        State::Ready { .. } | State::Configured => String::new(),
        State::Connecting => " – connecting".to_owned(),
        State::Down { cause, .. } if cause.is_lasting() => format!(" – {}", cause.sentence()),
        State::Down {
            cause: DownCause::RateLimited,
            ..
        } => " – busy at the moment; tried again by itself".to_owned(),
        State::Down { .. } => " – not reachable at the moment; tried again by itself".to_owned(),
        State::NotConfigured if !run.principal.authenticated => {
            " – for those who have signed in".to_owned()
        }
        State::NotConfigured => " – not configured: /connect asks you for a credential".to_owned(),
        State::NeedsAttention { .. } => {
            " – needs attention: enter your credential again with /connect".to_owned()
        }
    }
}

/// `SERVER TOOL {json}`; no arguments are an empty object.
fn parse_call(run: &ClaimedRun, rest: &str) -> Result<(ToolCall, Option<String>), String> {
    const USAGE: &str = "Write /call SERVER TOOL {\"argument\": \"value\"}, as /tools names them.";
    let word = |text: &'_ str| -> Option<(String, String)> {
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        (!word.is_empty()).then(|| (word.to_owned(), rest.trim().to_owned()))
    };
    let called = word(rest.trim())
        .and_then(|(server, rest)| word(&rest).map(|(tool, rest)| (server, tool, rest)));
    let Some((server, tool, text)) = called else {
        return Err(USAGE.to_owned());
    };
    let arguments = match text.as_str() {
        "" => Value::Object(Map::new()),
        text => serde_json::from_str::<Value>(text)
            .map_err(|error| format!("The arguments are not valid JSON ({error}). {USAGE}"))?,
    };
    if !arguments.is_object() {
        return Err(format!("The arguments must be one JSON object. {USAGE}"));
    }
    let call = ToolCall {
        call_id: format!("call_{}", run.id.0.simple()),
        name: format!("{server} {tool}"),
        server: Some(server),
        tool: Some(tool),
        arguments,
        audit_id: Some(AuditId::new()),
    };
    Ok((call, canonical::ambiguity(&text)))
}
