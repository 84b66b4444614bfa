//! A conversation as a document: Markdown for people, JSON for programs. It has the messages of the active branch.

use std::fmt::Write as _;

use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    app::App,
    domain::{
        error::Result,
        ids::ConversationId,
        message::{Message, MessageRange, Part, Role},
        principal::Principal,
        run::Conversation,
    },
    store,
};

/// Messages that are read at once.
const PAGE: i64 = 200;

/// A conversation with its messages.
#[derive(Debug, Serialize)]
pub struct ConversationExport {
    pub conversation: Conversation,
    /// Oldest first.
    pub messages: Vec<Message>,
}

/// A whole conversation of the principal.
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
            let who = match message.role {
                Role::User => principal.display_name(),
                Role::Assistant => agent.to_owned(),
                Role::Tool => String::new(),
                Role::System => "Notice".to_owned(),
            };
            if !who.is_empty() {
                let _ = write!(text, "\n## {who}, {}\n", minute(message.created_at));
            }
            for part in &message.parts {
                write_part(&mut text, part);
            }
        }
        text
    }
}

fn minute(at: OffsetDateTime) -> String {
    let text = at.format(&Rfc3339).unwrap_or_default();
    format!(
        "{} UTC",
        text.get(..16).unwrap_or_default().replace('T', " ")
    )
}

fn write_part(text: &mut String, part: &Part) {
    match part {
        Part::ToolCall(call) => {
            let name = match (&call.server, &call.tool) {
                (Some(server), Some(tool)) => format!("{server}: {tool}"),
                _ => call.name.clone(),
            };
            let _ = write!(text, "\n**Call of {name}**\n");
            let arguments = serde_json::to_string_pretty(&call.arguments).unwrap_or_default();
            write_block(text, "json", &arguments);
        }
        Part::ToolResult(result) => {
            let _ = write!(
                text,
                "\n**Result: {}**\n",
                result.status.as_str().replace('_', " ")
            );
            write_block(text, "", &result.text);
        }
        part => {
            let _ = write!(text, "\n{}\n", part.plain());
        }
    }
}

/// A fenced block, with a fence that is not in the content.
fn write_block(text: &mut String, language: &str, content: &str) {
    let longest = content
        .split(|c| c != '`')
        .map(str::len)
        .max()
        .unwrap_or_default();
    let fence = "`".repeat(longest.max(2) + 1);
    let _ = write!(
        text,
        "\n{fence}{language}\n{}\n{fence}\n",
        content.trim_end()
    );
}
