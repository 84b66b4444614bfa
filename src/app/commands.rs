//! Slash commands: handled before the model and never shown to it, so that they work with any frontend
//! and with `provider: none`.

mod approvals;

use std::{fmt::Write as _, sync::Arc};

use serde_json::{Map, Value};

use super::{App, agents, connections::State, credentials, tools};
use crate::domain::{
    canonical,
    error::Result,
    message::{Part, ToolCall},
    run::ClaimedRun,
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
/tools – the tools you can use, by server
/connections – the servers of this agent and how they are
/approvals – what waits for your decision, and your own requests
/approve CODE, /reject CODE reason – decide about a request
/cancel CODE – take your own request back
/call SERVER TOOL {\"argument\": …} – call a tool directly, without the model
Anything else is said to the agent.";

/// Answers one command line of a run's user.
pub async fn answer(app: &Arc<App>, run: &ClaimedRun, line: &str) -> Result<Answer> {
    let line = line.trim();
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let text = match name {
        "/help" => HELP.to_owned(),
        "/tools" => describe_tools(app, run).await?,
        "/connections" => describe_connections(app, run).await?,
        "/call" => match parse_call(run, rest) {
            Ok((call, irregularity)) => return Ok(Answer::Call(call, irregularity)),
            Err(reason) => return Ok(Answer::Parts(vec![notice("bad_command", reason)])),
        },
        "/approvals" | "/approve" | "/reject" => return approvals::answer(app, run, name, rest).await,
        "/cancel" if !rest.trim().is_empty() => return approvals::answer(app, run, name, rest).await,
        unknown => {
            let reason = format!("There is no command {unknown}. Type /help for the commands.");
            return Ok(Answer::Parts(vec![notice("unknown_command", reason)]));
        }
    };
    Ok(Answer::Parts(vec![Part::text(text)]))
}

pub(super) fn notice(code: &str, text: impl Into<String>) -> Part {
    Part::Notice { code: code.to_owned(), text: text.into() }
}

async fn describe_tools(app: &Arc<App>, run: &ClaimedRun) -> Result<String> {
    let servers = tools::list(app, &run.principal, run.agent.as_str()).await?;
    let mut text = String::new();
    for server in servers {
        let _ = writeln!(text, "{}{}", server.connection.server, remark(&server.connection.state));
        for tool in &server.tools {
            let what = tool.description.lines().next().unwrap_or_default();
            let what = if what.is_empty() { String::new() } else { format!(" – {what}") };
            let approval = tool.needs_approval_by.as_ref();
            let approval = approval.map(|by| format!(" (needs approval by {})", by.join(" or "))).unwrap_or_default();
            let _ = writeln!(text, "  {}{what}{approval}", tool.tool);
        }
    }
    Ok(if text.is_empty() { "There are no tools for you here.".to_owned() } else { text.trim_end().to_owned() })
}

async fn describe_connections(app: &App, run: &ClaimedRun) -> Result<String> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    if pack.servers.is_empty() {
        return Ok("This agent has no servers.".to_owned());
    }
    let views = credentials::list(app, &run.principal, run.agent.as_str()).await?;
    let lines = views.iter().map(|view| {
        let state = match &view.state {
            State::Ready { .. } | State::Configured => " – ready".to_owned(),
            other => remark(other),
        };
        format!("{} ({}){state}", view.server, view.kind)
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// How a server is, behind its name; nothing when all is well. The reason stays with the operator.
fn remark(state: &State) -> String {
    match state {
        State::Ready { .. } | State::Configured => String::new(),
        State::Connecting => " – connecting".to_owned(),
        State::Down { .. } => " – not reachable at the moment; tried again by itself".to_owned(),
        State::NotConfigured => " – not configured: /connect asks you for a credential".to_owned(),
        State::NeedsAttention { .. } => " – needs attention: enter your credential again with /connect".to_owned(),
    }
}

/// `SERVER TOOL {json}`; no arguments are an empty object.
fn parse_call(run: &ClaimedRun, rest: &str) -> Result<(ToolCall, Option<String>), String> {
    const USAGE: &str = "Write /call SERVER TOOL {\"argument\": \"value\"}, as /tools names them.";
    let word = |text: &'_ str| -> Option<(String, String)> {
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        (!word.is_empty()).then(|| (word.to_owned(), rest.trim().to_owned()))
    };
    let called = word(rest.trim()).and_then(|(server, rest)| word(&rest).map(|(tool, rest)| (server, tool, rest)));
    let Some((server, tool, text)) = called else { return Err(USAGE.to_owned()) };
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
    };
    Ok((call, canonical::irregularity(&text)))
}
