//! The title that a model gives a conversation, once. A title that a user gave is never replaced.

use crate::Tx;
use domain::{error::Result, ids::ConversationId};

/// Takes the one attempt to title a conversation; `false` when its title is a user's, or was made already.
pub async fn claim(tx: &mut Tx, id: ConversationId) -> Result<bool> {
    let claimed = sqlx::query!(
        "update conversations set titled_by = 'model'
         where tenant_id = $1 and id = $2 and titled_by = 'message'",
        tx.tenant()?.0,
        id.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(claimed.rows_affected() == 1)
}

/// Sets the title that the model made; `false` when the user has given one meanwhile.
pub async fn set(tx: &mut Tx, id: ConversationId, title: &str) -> Result<bool> {
    let set = sqlx::query!(
        "update conversations set title = $3 where tenant_id = $1 and id = $2 and titled_by = 'model'",
        tx.tenant()?.0,
        id.0,
        title,
    )
    .execute(tx.conn())
    .await?;
    Ok(set.rows_affected() == 1)
}
