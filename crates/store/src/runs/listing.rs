//! Runs as their user lists them.

use super::runs;
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
    let rows = runs!(
        "select",
        "from runs
         where tenant_id = $1 and user_id = $2 and ($3::uuid is null or conversation_id = $3)
           and ($4::text is null or status = $4) and ($5::uuid is null or id < $5)
         order by id desc limit $6",
        tx.tenant()?.0,
        user.as_str(),
        filter.conversation.map(|id| id.0),
        filter.status.map(<&str>::from),
        filter.cursor.map(|id| id.0),
        filter.limit,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows.into_iter().map(Into::into).collect())
}
