//! Rows of results of approved calls, for clients that call tools themselves. Other requests have no row here.

use std::time::Duration;

use super::{NewApproval, rows};
use crate::Tx;
use domain::{approval::Approval, error::Result, ids::ApprovalId};

/// Marks a request whose client will ask for the result. Deletes results that are older than `age`.
pub async fn await_result(tx: &mut Tx, id: ApprovalId, age: Duration) -> Result<()> {
    sqlx::query!(
        "delete from approval_results r using approvals a
         where r.tenant_id = $1 and a.tenant_id = $1 and a.id = r.id
           and a.finished_at < statement_timestamp() - make_interval(secs => $2)",
        tx.tenant()?.0,
        age.as_secs_f64(),
    )
    .execute(tx.conn())
    .await?;
    sqlx::query!(
        "insert into approval_results (tenant_id, id) values ($1, $2) on conflict do nothing",
        tx.tenant()?.0,
        id.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Stores the answer of the server, if a client will ask for it.
pub async fn keep_result(tx: &mut Tx, id: ApprovalId, result: &str) -> Result<()> {
    sqlx::query!(
        "update approval_results set result = $3 where tenant_id = $1 and id = $2",
        tx.tenant()?.0,
        id.0,
        result,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The result of a request. The outer `None` if no client asks for it, the inner one if there is no result yet.
pub async fn get_result(tx: &mut Tx, id: ApprovalId) -> Result<Option<Option<String>>> {
    let found = sqlx::query_scalar!(
        "select result from approval_results where tenant_id = $1 and id = $2",
        tx.tenant()?.0,
        id.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(found)
}

/// Records that the client has received the end of a request.
pub async fn mark_collected(tx: &mut Tx, id: ApprovalId) -> Result<()> {
    sqlx::query!(
        "update approval_results set collected_at = statement_timestamp()
         where tenant_id = $1 and id = $2 and collected_at is null",
        tx.tenant()?.0,
        id.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Finds the newest request for the same call of the same client that ended within `age` and whose end the client has
/// not received, or has received within `grace`: that answer may have been lost.
pub async fn find_uncollected(
    tx: &mut Tx,
    new: &NewApproval<'_>,
    age: Duration,
    grace: Duration,
) -> Result<Option<Approval>> {
    let row = rows!(
        "select",
        "from approvals a join approval_results r on r.tenant_id = a.tenant_id and r.id = a.id
         where a.tenant_id = $1 and a.requester = $2 and a.agent = $3 and a.server = $4 and a.tool = $5
           and a.args_sha256 = $6 and a.conversation_id is null
           and a.finished_at > statement_timestamp() - make_interval(secs => $7)
           and (r.collected_at is null or r.collected_at > statement_timestamp() - make_interval(secs => $8))
         order by a.id desc limit 1",
        tx.tenant()?.0,
        new.principal.user.as_str(),
        new.agent.as_str(),
        new.server.as_str(),
        new.tool,
        &new.args_sha256[..],
        age.as_secs_f64(),
        grace.as_secs_f64(),
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}
