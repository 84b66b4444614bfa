//! A conversation as a document: Markdown for people, JSON for programs. The document holds the active branch.

use std::fmt::Write as _;

use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::app::App;
use domain::{
    error::Result,
    hidden::{fence, remove_hidden},
    ids::ConversationId,
    message::{Message, MessageRange, Part, Role, TextSource},
    principal::Principal,
    run::Conversation,
};

/// Messages that are read at once.
const PAGE: i64 = 200;

/// A conversation with its messages.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ConversationExport {
    pub conversation: Conversation,
    /// The oldest first.
    pub messages: Vec<Message>,
}

/// Reads a whole conversation of the principal.
pub async fn export(
    app: &App,
    principal: &Principal,
    id: ConversationId,
) -> Result<ConversationExport> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = store::conversations::get(&mut tx, &principal.user, id, false).await?;
    let (mut messages, mut after) = (Vec::new(), 0);
    let branch = Some(conversation.branch);
    loop {
        let range = MessageRange::After(after);
        let page = store::messages::list(&mut tx, id, branch, range, PAGE).await?;
        let Some(last) = page.last() else { break };
        after = last.seq;
        messages.extend(page);
    }
    Ok(ConversationExport {
        conversation,
        messages,
    })
}

impl ConversationExport {
    pub fn markdown(&self, principal: &Principal) -> String {
        let title = Some(self.conversation.title.as_str()).filter(|title| !title.is_empty());
        let mut text = format!("# {}\n", title.unwrap_or("Conversation"));
        for message in &self.messages {
            let agent = self.conversation.agent.as_str();
            let speaker = match message.role {
                Role::User => principal.display_name(),
                Role::Assistant => agent.to_owned(),
                Role::Tool => String::new(),
                // A result belongs to the call above it and needs no heading.
                Role::System if is_result(message) => String::new(),
                Role::System => match source_of(message) {
                    Some(source) => format!("{} {}", source.server, source.tool),
                    None => "Notice".to_owned(),
                },
            };
            if !speaker.is_empty() {
                let time = format_minute(message.created_at);
                let _ = write!(text, "\n## {speaker}, {time}\n");
            }
            for part in &message.parts {
                write_part(&mut text, part);
            }
        }
        text
    }
}

fn format_minute(at: OffsetDateTime) -> String {
    let text = at.format(&Rfc3339).unwrap_or_default();
    format!(
        "{} UTC",
        text.get(..16).unwrap_or_default().replace('T', " ")
    )
}

fn is_result(message: &Message) -> bool {
    let mut parts = message.parts.iter();
    parts.all(|part| matches!(part, Part::ToolResult(_)))
}

/// The tool that wrote all texts of a message; `None` when the program or several tools wrote them.
fn source_of(message: &Message) -> Option<&TextSource> {
    let mut sources = message.parts.iter().map(|part| match part {
        Part::Text { source, .. } => source.as_deref(),
        _ => None,
    });
    let first = sources.next()??;
    sources.all(|other| other == Some(first)).then_some(first)
}

/// Writes a part of a message. Texts of servers stand in blocks under the names of the servers, so that no reader loads a
/// server's picture or takes a server's words for those of the program.
fn write_part(text: &mut String, part: &Part) {
    let _ = match part {
        Part::ToolCall(call) => {
            let name = match (&call.server, &call.tool) {
                (Some(server), Some(tool)) => format!("{server}: {tool}"),
                _ => escape_markdown(&call.name),
            };
            let arguments = call.arguments().pretty();
            write!(
                text,
                "\n**Call of {name}**\n\n{}\n",
                fence("json", &arguments)
            )
        }
        Part::ToolResult(result) => {
            let status = result.status.into_str().replace('_', " ");
            write!(
                text,
                "\n**Result: {status}**\n\n{}\n",
                fence("", &result.text)
            )
        }
        Part::Text {
            text: server_text,
            source: Some(source),
        } => {
            let (server, tool) = (&source.server, &source.tool);
            write!(
                text,
                "\n**{server}: {tool}**\n\n{}\n",
                fence("", server_text)
            )
        }
        Part::CallOutcome(outcome) => {
            let (server, tool) = (&outcome.server, &outcome.tool);
            let status = outcome.status.into_str().replace('_', " ");
            let block = fence("", &outcome.text);
            write!(
                text,
                "\n**Result of {server}: {tool}: {status}**\n\n{block}\n"
            )
        }
        Part::ServerPrompt(part) => {
            let (server, prompt) = (&part.server, escape_markdown(&part.prompt));
            let block = fence("", &part.text);
            write!(text, "\n**Prompt {prompt} of {server}**\n\n{block}\n")
        }
        Part::Approval(note) => {
            let _ = write!(text, "\n{}\n", escape_markdown(&note.text));
            let Some(result) = &note.result else { return };
            let (server, tool) = (&note.server, &note.tool);
            let block = fence("", result);
            write!(text, "\n**Result of {server}: {tool}**\n\n{block}\n")
        }
        // The program's own sentences may quote servers, such as the reason of a failure or a question.
        Part::Notice { .. } | Part::Prompt(_) | Part::AgentCallback(_) | Part::Choices { .. } => {
            write!(text, "\n{}\n", escape_markdown(&part.plain()))
        }
        Part::Text { .. } | Part::Attachment(_) => write!(text, "\n{}\n", part.plain()),
    };
}

/// Escapes a text for Markdown, so that no part of it is a picture, a link, a tag or a heading.
fn escape_markdown(words: &str) -> String {
    let mut text = String::with_capacity(words.len());
    let clean = remove_hidden(words);
    let mut is_start = true;
    for c in clean.chars() {
        let is_mark = matches!(c, '\\' | '`' | '[' | ']' | '<' | '>')
            || is_start && matches!(c, '#' | '=' | '-' | '~');
        if is_mark {
            text.push('\\');
        }
        text.push(c);
        is_start = c == '\n' || is_start && c == ' ';
    }
    text
}
