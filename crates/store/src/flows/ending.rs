//! The ends of flows: refused, ended, or old.

use std::time::Duration;

use uuid::Uuid;

use crate::Tx;
use domain::{
    error::Result,
    ids::{ConversationId, TenantId},
};

/// The tenants with flows that ended this long ago; wants [`crate::Db::system`].
pub async fn tenants_with_old(tx: &mut Tx, age: Duration) -> Result<Vec<TenantId>> {
    let ids = sqlx::query_scalar!(
        r#"select distinct tenant_id as "id: TenantId" from flows
           where expires_at < now() - make_interval(secs => $1)"#,
        age.as_secs_f64(),
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// Deletes the tenant's flows that ended this long ago, with what was entered in them.
pub async fn forget_old(tx: &mut Tx, age: Duration) -> Result<()> {
    sqlx::query!(
        "delete from flows where tenant_id = $2 and expires_at < now() - make_interval(secs => $1)",
        age.as_secs_f64(),
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Ends the flow of a conversation; whether there was one.
pub async fn end(tx: &mut Tx, conversation: ConversationId) -> Result<bool> {
    let done = sqlx::query!(
        "delete from flows where tenant_id = $2 and conversation_id = $1",
        conversation.0,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Counts a wrong code. The time it has left stays as it is.
pub async fn refuse(tx: &mut Tx, id: Uuid) -> Result<()> {
    sqlx::query!(
        "update flows set tries = tries + 1, answer = null, answer_run = null
         where tenant_id = $2 and id = $1",
        id,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
