//! The messages that a model reads.

use super::Row;
use crate::Tx;
use domain::{
    error::Result,
    ids::{ConversationId, RunId},
    message::Message,
    run::ClaimedRun,
};

/// What the model may see: everything of this run, and the last `window` messages before it, oldest first.
/// Ordered by run and then by number: a message that came in during an earlier run stands after that run.
pub async fn for_model(tx: &mut Tx, run: &ClaimedRun, window: usize) -> Result<Vec<Message>> {
    let rows = sqlx::query_as!(
        Row,
        r#"with path as materialized (
             select branch, upto from branch_path($4, $1, (
               select branch from conversations where tenant_id = $4 and id = $1))
           )
           select id as "id!: _", branch as "branch!", seq as "seq!", role as "role!: _", parts as "parts!: _",
                  run_id as "run_id: _", created_at as "created_at!"
           from (
             select * from messages
             where tenant_id = $4 and conversation_id = $1 and for_model and run_ordinal = $2
             union all (
               select * from messages m
               where tenant_id = $4 and conversation_id = $1 and for_model and run_ordinal < $2
                 and exists (select 1 from path where path.branch = m.branch and m.seq < path.upto)
               order by run_ordinal desc, seq desc limit $3)
           ) shown
           order by run_ordinal, seq"#,
        run.conversation.0,
        run.ordinal,
        i64::try_from(window).unwrap_or(i64::MAX),
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| row.message(run.conversation))
        .collect())
}

/// Everything one run has written and what it answers, oldest first.
pub async fn of_run(tx: &mut Tx, conversation: ConversationId, run: RunId) -> Result<Vec<Message>> {
    let rows = sqlx::query_as!(
        Row,
        r#"select id as "id: _", branch, seq, role as "role: _", parts as "parts: _", run_id as "run_id: _", created_at
           from messages where tenant_id = $3 and conversation_id = $1 and run_id = $2 order by seq"#,
        conversation.0,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| row.message(conversation))
        .collect())
}
