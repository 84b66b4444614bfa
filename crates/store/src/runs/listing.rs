//! Runs as their user lists them.

use super::Row;
use crate::Tx;
use domain::{
    error::Result,
    ids::{ConversationId, RunId, UserId},
    run::{Run, RunStatus},
};

/// Which runs to list.
#[derive(Clone, Copy)]
pub struct RunFilter {
    pub conversation: Option<ConversationId>,
    pub status: Option<RunStatus>,
    /// Only those that come after this one in the list.
    pub cursor: Option<RunId>,
    pub limit: i64,
}

/// The user's runs, the newest first.
pub async fn list(tx: &mut Tx, user: &UserId, filter: RunFilter) -> Result<Vec<Run>> {
    let rows = sqlx::query_as!(
        Row,
        "select id, conversation_id, agent, kind, status, error, steps, input_tokens, cached_input_tokens,
                output_tokens, usage_estimated, created_at, finished_at
         from runs
         where tenant_id = $1 and user_id = $2 and ($3::uuid is null or conversation_id = $3)
           and ($4::text is null or status = $4) and ($5::uuid is null or id < $5)
         order by id desc limit $6",
        tx.tenant()?.0,
        user.as_str(),
        filter.conversation.map(|id| id.0),
        filter.status.map(RunStatus::as_str),
        filter.cursor.map(|id| id.0),
        filter.limit,
    )
    .fetch_all(tx.conn())
    .await?;
    rows.into_iter().map(TryInto::try_into).collect()
}
