//! Lists and changes the conversations of a user.

use super::conversations;
use crate::Tx;
use domain::{
    error::{Error, Missing, Result},
    ids::{AgentId, ConversationId, UserId},
    run::{Conversation, ConversationChange},
};

/// Which conversations to list.
#[derive(Clone, Copy)]
pub struct ListFilter<'a> {
    pub agent: Option<&'a AgentId>,
    /// Whether to list the conversations that runs have started, too.
    pub children: bool,
    pub archived: bool,
    /// If given, only the pinned conversations, or only the others.
    pub pinned: Option<bool>,
    /// The last conversation of the page before.
    pub cursor: Option<ConversationId>,
    pub limit: i64,
}

/// The user's conversations: pinned ones first, then the newest.
pub async fn list(tx: &mut Tx, user: &UserId, filter: ListFilter<'_>) -> Result<Vec<Conversation>> {
    let listed = conversations!(
        "select",
        "from conversations
           where tenant_id = $1 and user_id = $2 and ($3::text is null or agent = $3)
             and ($4 or parent_session is null) and (archived_at is not null) = $5
             and ($6::bool is null or (pinned_at is not null) = $6)
             and ($7::uuid is null or (pinned_at is not null, id) < (coalesce(
               (select pinned_at is not null from conversations where tenant_id = $1 and id = $7), false), $7))
           order by (pinned_at is not null) desc, id desc limit $8",
        tx.tenant()?.0,
        user.as_str(),
        filter.agent.map(AgentId::as_str),
        filter.children,
        filter.archived,
        filter.pinned,
        filter.cursor.map(|id| id.0),
        filter.limit,
    );
    Ok(listed.fetch_all(tx.conn()).await?)
}

/// Changes a conversation of the user. A model never replaces a title that is set here.
pub async fn change(
    tx: &mut Tx,
    user: &UserId,
    id: ConversationId,
    change: ConversationChange<'_>,
) -> Result<Conversation> {
    let changed = conversations!(
        "update conversations
           set title = coalesce($4, title), titled_by = case when $4::text is null then titled_by else 'user' end,
               archived_at = case when coalesce($5, archived_at is not null) then coalesce(archived_at, clock.at) end,
               pinned_at = case when coalesce($6, pinned_at is not null) then coalesce(pinned_at, clock.at) end
           from (select statement_timestamp() as at) clock
           where tenant_id = $1 and id = $2 and user_id = $3
           returning",
        "",
        tx.tenant()?.0,
        id.0,
        user.as_str(),
        change.title,
        change.archived,
        change.pinned,
    );
    let changed = changed.fetch_optional(tx.conn()).await?;
    changed.ok_or_else(|| Error::NotFound(Missing::Conversation(id)))
}
