//! Lists of conversations and messages, the search, and the changes that a user makes to a conversation in a list.

use serde::Serialize;

use crate::app::{App, chat::branches};
use domain::{
    error::{Error, ErrorCode, Result},
    ids::{AgentId, ConversationId},
    message::{Message, MessageRange, Part, close_prompts},
    principal::Principal,
    run::{Conversation, ConversationChange},
};
use store::{
    Tx,
    conversations::{listing::ListFilter, search::SearchHit},
};

/// The most characters of an excerpt.
const EXCERPT: usize = 160;
/// Characters of an excerpt before the first of the words that were searched for.
const LEAD: usize = 40;

/// Which conversations to list.
#[derive(Clone, Copy, Default)]
pub struct ConversationFilter<'a> {
    /// Only conversations with this agent.
    pub agent: Option<&'a str>,
    /// Also conversations that runs have started.
    pub children: bool,
    /// Only archived conversations, or only the others.
    pub archived: bool,
    pub pinned: Option<bool>,
    /// Only conversations with these words in the title or in a message.
    pub search: Option<&'a str>,
    /// The last conversation of the page before.
    pub cursor: Option<ConversationId>,
}

/// A conversation in a list.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ListedConversation {
    #[serde(flatten)]
    pub conversation: Conversation,
    /// The message in which a search found its words, unless it found them in the title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<FoundMessage>,
}

/// A message with the words of a search.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct FoundMessage {
    /// The number of the message.
    pub seq: i64,
    /// The text around the first of the words.
    pub text: String,
}

/// Lists the principal's conversations: pinned ones first, then the newest.
pub async fn list(
    app: &App,
    principal: &Principal,
    query: ConversationFilter<'_>,
    limit: i64,
) -> Result<Vec<ListedConversation>> {
    let agent = query
        .agent
        .map(AgentId::parse)
        .transpose()
        .map_err(|reason| Error::invalid("agent", reason))?;
    let filter = ListFilter {
        agent: agent.as_ref(),
        children: query.children,
        archived: query.archived,
        pinned: query.pinned,
        cursor: query.cursor,
        limit,
    };
    let (tenant, user) = (principal.tenant, &principal.user);
    let to_item = |conversation, found| ListedConversation {
        conversation,
        found,
    };
    let Some(words) = query.search else {
        let mut tx = app.db.tenant(tenant).await?;
        let rows = store::conversations::listing::list(&mut tx, user, filter).await?;
        return Ok(rows.into_iter().map(|row| to_item(row, None)).collect());
    };
    let rows = store::conversations::search::search(&app.db, tenant, user, filter, words).await?;
    let to_found = |hit: SearchHit| FoundMessage {
        seq: hit.seq,
        text: excerpt(&text_of(&hit.parts), words),
    };
    Ok(rows
        .into_iter()
        .map(|(conversation, hit)| to_item(conversation, hit.map(to_found)))
        .collect())
}

fn text_of(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join(" ")
}

/// A part of a text around the first of the words, as one line.
fn excerpt(text: &str, words: &str) -> String {
    let line: Vec<char> = text
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .collect();
    // Each character becomes one character, so that a position in the lower-case text is the same position in the text.
    let lower = |text: &[char]| -> Vec<char> {
        let first = |c: &char| c.to_lowercase().next().unwrap_or(*c);
        text.iter().map(first).collect()
    };
    let folded = lower(&line);
    let search_words = words
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty());
    let positions = search_words.filter_map(|word| {
        let word = lower(&word.chars().collect::<Vec<_>>());
        folded.windows(word.len()).position(|at| at == word)
    });
    let start = positions.min().unwrap_or_default().saturating_sub(LEAD);
    let end = line.len().min(start + EXCERPT);
    let mut excerpt: String = line[start..end].iter().collect();
    if start > 0 {
        excerpt.insert(0, '…');
    }
    if end < line.len() {
        excerpt.push('…');
    }
    excerpt
}

/// Which messages of a conversation to list.
pub struct MessageSelection {
    /// Absent: the active branch.
    pub branch: Option<i32>,
    pub range: MessageRange,
    pub limit: i64,
}

/// Lists messages of a branch: those after a number, the oldest first, or those before a number, the newest first.
pub async fn messages(
    app: &App,
    principal: &Principal,
    id: ConversationId,
    selection: MessageSelection,
) -> Result<Vec<Message>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::conversations::get(&mut tx, &principal.user, id, false).await?;
    let mut messages = store::messages::list(
        &mut tx,
        id,
        selection.branch,
        selection.range,
        selection.limit,
    )
    .await?;
    close_old_prompts(app, &mut tx, id, messages.iter_mut().collect()).await?;
    Ok(messages)
}

/// The newest messages among which a prompt stands that is open.
const NEWEST: i64 = 20;

/// Marks the prompts in messages of a conversation that are over, so that nobody draws a field for them.
pub(super) async fn close_old_prompts(
    app: &App,
    tx: &mut Tx,
    id: ConversationId,
    messages: Vec<&mut Message>,
) -> Result<()> {
    let has_prompt = |message: &Message| {
        message
            .parts
            .iter()
            .any(|part| matches!(part, Part::Prompt(_)))
    };
    if !messages.iter().any(|message| has_prompt(message)) {
        return Ok(());
    }
    let flow = store::flows::get(tx, id).await?;
    let is_open = flow.is_some_and(|flow| flow.expires_at > app.clock.now())
        || store::elicitations::get_open(tx, id).await?.is_some();
    let mut open = None;
    if is_open {
        let before = MessageRange::Before(i64::MAX);
        let newest = store::messages::list(tx, id, None, before, NEWEST).await?;
        open = newest
            .iter()
            .find(|message| has_prompt(message))
            .map(|message| message.id);
    }
    close_prompts(messages, open);
    Ok(())
}

/// Renames, archives or pins a conversation, or switches to another of its branches.
pub async fn change(
    app: &App,
    principal: &Principal,
    id: ConversationId,
    change: ConversationChange<'_>,
) -> Result<Conversation> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    if let Some(branch) = change.branch {
        branches::lock_idle(&mut tx, principal, id).await?;
        if !store::branches::switch(&mut tx, id, branch).await? {
            return Err(Error::unfit(
                ErrorCode::UnknownReference,
                "branch",
                "is no branch of this conversation",
            ));
        }
    }
    let changed =
        store::conversations::listing::change(&mut tx, &principal.user, id, change).await?;
    tx.commit().await?;
    Ok(changed)
}
