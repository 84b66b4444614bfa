//! Slash commands. They are answered before the model is asked, and the model never reads them, so they work with any
//! frontend and with `provider: none`.

use std::{fmt::Write as _, sync::Arc};

use super::{approval_commands, flows, menu, prompts, skill_forms};
use crate::app::{
    App,
    runs::sign_outs,
    servers::{
        agents,
        connections::{ConnectionKind, State},
        credentials,
    },
    tools::{
        skills::{self, SkillCommand, SkillView},
        toolset,
    },
};
use domain::{
    canonical,
    command::ConsentCommand,
    connection::DownCause,
    error::{Error, Result},
    ids::AuditId,
    json::Json,
    message::{Choice, Part, ToolCall},
    run::ClaimedRun,
    texts::{self, Key, Texts},
};

/// The answer to a command.
pub enum Answer {
    Parts(Vec<Part>),
    /// The command calls a tool, through the gate like any other call.
    Call {
        call: ToolCall,
        /// Why two readers could understand the text of the arguments differently, if they could.
        ambiguity: Option<String>,
    },
}

/// Answers one command line of a run's user.
pub async fn answer(app: &Arc<App>, run: &ClaimedRun, line: &str) -> Result<Answer> {
    if let Some(command) = ConsentCommand::read(line) {
        return approval_commands::answer(app, run, command).await;
    }
    let line = line.trim();
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let text = match name {
        "/help" => describe_commands(app, run).await?,
        "/prompts" => match describe_prompts(app, run).await? {
            text if text.is_empty() => {
                return answer_notice(app, run, "no_prompts", Key::PromptsNone).await;
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
            return answer_notice(app, run, "logged_out", key).await;
        }
        "/tools" => describe_tools(app, run).await?,
        "/connections" => describe_connections(app, run).await?,
        "/connect" => return flows::begin(app, run, rest.trim()).await.map(Answer::Parts),
        "/disconnect" => {
            return flows::disconnect(app, run, rest.trim())
                .await
                .map(Answer::Parts);
        }
        "/decline" => {
            return answer_notice(app, run, "nothing_asked", Key::AskNone).await;
        }
        "/cancel" => return flows::cancel(app, run).await.map(Answer::Parts),
        // The text answered a prompt that was withdrawn before this run could read the answer.
        answer if !answer.starts_with('/') => {
            return flows::answer_too_late(app, run).await.map(Answer::Parts);
        }
        "/call" => match parse_call(run, rest) {
            Ok((call, ambiguity)) => return Ok(Answer::Call { call, ambiguity }),
            Err(unusable) => return refuse_call(app, run, unusable).await,
        },
        unknown => return answer_skill(app, run, line, unknown).await,
    };
    Ok(Answer::Parts(vec![Part::text(text)]))
}

/// Answers with one notice in the language of the user.
async fn answer_notice(app: &App, run: &ClaimedRun, code: &str, key: Key) -> Result<Answer> {
    Ok(Answer::Parts(vec![
        render_notice(app, run, code, key).await?,
    ]))
}

pub(in crate::app) fn notice(code: &str, text: impl Into<String>) -> Part {
    Part::Notice {
        code: code.to_owned(),
        text: text.into(),
    }
}

/// One of the program's own texts, in the user's language.
async fn render_text(app: &App, run: &ClaimedRun, key: Key) -> Result<String> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    Ok(texts::of(&pack, &run.principal).render(key, &[]))
}

async fn render_notice(app: &App, run: &ClaimedRun, code: &str, key: Key) -> Result<Part> {
    Ok(notice(code, render_text(app, run, key).await?))
}

/// Answers a line that is no built-in command: it may name a skill of the agent.
async fn answer_skill(app: &Arc<App>, run: &ClaimedRun, line: &str, name: &str) -> Result<Answer> {
    match skills::parse_command(app, run, line).await? {
        Some(SkillCommand::Call(call, ambiguity)) => Ok(Answer::Call { call, ambiguity }),
        Some(SkillCommand::Incomplete(incomplete)) => {
            let parts = skill_forms::begin(app, run, *incomplete).await?;
            Ok(Answer::Parts(parts))
        }
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
            let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
            let texts = texts::of(&pack, &run.principal);
            let text = texts.render(Key::CommandUnknown, &[("command", name)]);
            Ok(Answer::Parts(vec![notice("unknown_command", text)]))
        }
    }
}

/// `/help`: the built-in commands, the agent's skills, and the prompts of its servers.
async fn describe_commands(app: &Arc<App>, run: &ClaimedRun) -> Result<String> {
    let (skills, prompts) = (
        describe_skills(app, run).await?,
        describe_prompts(app, run).await?,
    );
    let prompts = if prompts.is_empty() {
        prompts
    } else {
        format!("\n\n{prompts}")
    };
    let help = render_text(app, run, Key::Help).await?;
    Ok(format!("{help}{skills}{prompts}"))
}

/// The skills that the user may run: a heading and a line for each. Empty when there are none.
async fn describe_skills(app: &Arc<App>, run: &ClaimedRun) -> Result<String> {
    let views = skills::list(app, &run.principal, run.agent.as_str()).await?;
    if views.is_empty() {
        return Ok(String::new());
    }
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let texts = texts::of(&pack, &run.principal);
    let mut text = format!("\n\n{}:", texts.render(Key::Skills, &[]));
    for view in &views {
        let by = view.needs_approval_by.as_deref();
        let consent = describe_consent(&texts, by, view.needs_confirmation);
        let _ = write!(text, "\n{} – {}{consent}", view.command, first_line(view));
    }
    Ok(text)
}

/// The first line of a skill's description, or its name.
fn first_line(view: &SkillView) -> &str {
    view.description
        .lines()
        .next()
        .filter(|line| !line.trim().is_empty())
        .unwrap_or(&view.name)
}

/// `/menu`: each item with the command of the same effect, and each skill.
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
        return Ok(vec![render_notice(app, run, "menu", Key::MenuEmpty).await?]);
    }
    let choice = |item: menu::ItemView| {
        let badge = item.badge.map(|count| format!("({count}) "));
        let badge = badge.unwrap_or_default();
        Choice {
            label: format!("{badge}{} – {}", item.label, item.command),
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
        text: render_text(app, run, Key::Menu).await?,
        choices,
    }])
}

/// `/menu ITEM`: runs the command of the item.
async fn choose(app: &Arc<App>, run: &ClaimedRun, item: &str) -> Result<Answer> {
    match menu::choose(app, &run.principal, run.conversation, item).await {
        Ok(command) => Box::pin(answer(app, run, command)).await,
        Err(Error::NotFound(_)) => {
            let mut parts = vec![render_notice(app, run, "unknown_item", Key::MenuUnknown).await?];
            parts.extend(describe_menu(app, run).await?);
            Ok(Answer::Parts(parts))
        }
        Err(error) => Err(error),
    }
}

/// `/authenticate`: says how to sign in, since only the frontend can start a sign-in.
async fn authenticate(app: &App, run: &ClaimedRun) -> Result<Vec<Part>> {
    let key = if run.principal.authenticated {
        Key::SignedInAlready
    } else {
        Key::SignIn
    };
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let name = run.principal.display_name();
    let text = texts::of(&pack, &run.principal).render(key, &[("name", &name)]);
    Ok(vec![notice("authenticate", text)])
}

async fn describe_tools(app: &Arc<App>, run: &ClaimedRun) -> Result<String> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let texts = texts::of(&pack, &run.principal);
    let servers = toolset::list(app, &run.principal, run.agent.as_str()).await?;
    let mut text = String::new();
    for server in servers {
        let state = describe_state(&texts, &server.state, run)
            .map(|state| format!(" – {state}"))
            .unwrap_or_default();
        let _ = writeln!(text, "{}{state}", server.server);
        for tool in &server.tools {
            let words: Vec<_> = tool.description.split_whitespace().collect();
            let description = if words.is_empty() {
                String::new()
            } else {
                format!(" – {}", words.join(" "))
            };
            let by = tool.needs_approval_by.as_deref();
            let consent = describe_consent(&texts, by, tool.needs_confirmation);
            let _ = writeln!(text, "  {}{description}{consent}", tool.tool);
        }
    }
    if text.is_empty() {
        text = texts.render(Key::ToolsNone, &[]);
    }
    let skills = describe_skills(app, run).await?;
    Ok(format!("{}{skills}", text.trim_end()))
}

/// A remark in brackets that says whose consent a call needs; empty if it needs none.
fn describe_consent(texts: &Texts<'_>, approvers: Option<&[String]>, confirms: bool) -> String {
    let remark = match approvers {
        Some(approvers) => {
            let approvers = approvers.join(", ");
            texts.render(Key::SkillNeedsApproval, &[("approvers", &approvers)])
        }
        None if confirms => texts.render(Key::NeedsConfirmation, &[]),
        None => return String::new(),
    };
    format!(" ({remark})")
}

async fn describe_prompts(app: &Arc<App>, run: &ClaimedRun) -> Result<String> {
    prompts::describe(app, &run.principal, run.agent.as_str()).await
}

async fn describe_connections(app: &App, run: &ClaimedRun) -> Result<String> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let texts = texts::of(&pack, &run.principal);
    if pack.servers.is_empty() {
        return Ok(texts.render(Key::ServersNone, &[]));
    }
    let views = credentials::list(app, &run.principal, run.agent.as_str(), false).await?;
    let lines = views.iter().map(|view| {
        let kind = match view.kind {
            ConnectionKind::Shared => Key::ServerShared,
            ConnectionKind::Personal => Key::ServerPersonal,
        };
        let state = describe_state(&texts, &view.state, run);
        format!(
            "{} ({}) – {}",
            view.server,
            texts.render(kind, &[]),
            state.unwrap_or_else(|| texts.render(Key::ServerReady, &[]))
        )
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// Says why a server cannot be used; absent when it is ready. The cause alone is named: the full reason of a failure is
/// for the operator.
pub(super) fn describe_state(texts: &Texts<'_>, state: &State, run: &ClaimedRun) -> Option<String> {
    let key = match state {
        State::Ready { .. } | State::Configured => return None,
        State::Saved => Key::McpConfigFirstCall,
        State::Connecting => Key::ServerConnecting,
        State::Down { cause, .. } => match cause {
            DownCause::Unreachable | DownCause::Timeout => Key::ServerUnreachable,
            DownCause::RateLimited => Key::ServerBusy,
            DownCause::SignInRequired => Key::ServerSignInRequired,
            DownCause::CredentialRefused => Key::ServerCredentialRefused,
            DownCause::Redirected => Key::ServerRedirected,
            DownCause::WebPage => Key::ServerWebPage,
            DownCause::NotMcp => Key::ServerNotMcp,
            DownCause::Misconfigured => Key::ServerMisconfigured,
        },
        State::NotConfigured if !run.principal.authenticated => Key::ServerForSignedIn,
        State::NotConfigured => Key::ServerNotConfigured,
        State::NeedsAttention { .. } => Key::ServerNeedsAttention,
    };
    Some(texts.render(key, &[]))
}

/// Why the text after `/call` cannot be read as a call.
enum UnusableCall {
    Incomplete,
    BadJson(String),
    NotAnObject,
}

/// The answer to a `/call` that cannot be made.
async fn refuse_call(app: &App, run: &ClaimedRun, unusable: UnusableCall) -> Result<Answer> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let texts = texts::of(&pack, &run.principal);
    let usage = texts.render(Key::CallUsage, &[("example", "{\"argument\": \"value\"}")]);
    let text = match unusable {
        UnusableCall::Incomplete => usage,
        UnusableCall::BadJson(why) => {
            texts.render(Key::CallBadJson, &[("why", &why), ("usage", &usage)])
        }
        UnusableCall::NotAnObject => texts.render(Key::CallNotAnObject, &[("usage", &usage)]),
    };
    Ok(Answer::Parts(vec![notice("bad_command", text)]))
}

/// Parses `SERVER TOOL {json}`. Without JSON the arguments are an empty object. Also returns why two readers could
/// understand the JSON differently, if they could.
fn parse_call(run: &ClaimedRun, rest: &str) -> Result<(ToolCall, Option<String>), UnusableCall> {
    let word = |text: &'_ str| -> Option<(String, String)> {
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        (!word.is_empty()).then(|| (word.to_owned(), rest.trim().to_owned()))
    };
    let called = word(rest.trim())
        .and_then(|(server, rest)| word(&rest).map(|(tool, rest)| (server, tool, rest)));
    let Some((server, tool, text)) = called else {
        return Err(UnusableCall::Incomplete);
    };
    let text = if text.is_empty() { "{}" } else { &text };
    let arguments = Json::parse(text).map_err(UnusableCall::BadJson)?;
    if arguments.as_object().is_none() {
        return Err(UnusableCall::NotAnObject);
    }
    let call = ToolCall {
        call_id: ToolCall::id_of_command(run.id),
        name: format!("{server} {tool}"),
        server: Some(server),
        tool: Some(tool),
        arguments: arguments.to_raw(),
        audit_id: Some(AuditId::new()),
    };
    Ok((call, canonical::ambiguity(text)))
}
