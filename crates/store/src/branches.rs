//! Rows of branches: versions of a conversation that begin where a message was edited or sent again.
//!
//! Which messages a branch shows is the `path` of some queries: of each branch on the way to the root, those with a number
//! below `upto`. It is no function, because Citus sends no query of a function to a shard.

use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use domain::{
    error::Result,
    ids::{ConversationId, MessageId, RunId},
    run::ConversationBranch,
};

/// The branches of a conversation in the order of their numbers, without the first branch, which has no row.
pub async fn list(tx: &mut Tx, conversation: ConversationId) -> Result<Vec<ConversationBranch>> {
    let rows = sqlx::query!(
        "select number, parent, from_seq, created_at from branches
         where tenant_id = $1 and conversation_id = $2 order by number",
        tx.tenant()?.0,
        conversation.0,
    )
    .fetch_all(tx.conn())
    .await?;
    let branch =
        |number: i32, parent: i32, from_seq: i64, created_at: OffsetDateTime| ConversationBranch {
            number,
            parent: Some(parent),
            from_seq,
            created_at,
            active: false,
        };
    Ok(rows
        .into_iter()
        .map(|row| branch(row.number, row.parent, row.from_seq, row.created_at))
        .collect())
}

/// Finds where a branch that replaces a message begins: the parent branch, and the number of the message. If the
/// message began a branch itself, the new branch begins at the same place.
pub async fn find_fork(
    tx: &mut Tx,
    conversation: ConversationId,
    message: MessageId,
) -> Result<Option<(i32, i64)>> {
    let row = sqlx::query!(
        r#"select coalesce(b.parent, m.branch) as "parent!", coalesce(b.from_seq, m.seq) as "from_seq!"
           from messages m
           left join branches b on b.tenant_id = m.tenant_id and b.conversation_id = m.conversation_id
             and b.number = m.branch and m.seq = (
               select min(seq) from messages
               where tenant_id = $1 and conversation_id = $2 and branch = m.branch)
           where m.tenant_id = $1 and m.conversation_id = $2 and m.id = $3"#,
        tx.tenant()?.0,
        conversation.0,
        message.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| (row.parent, row.from_seq)))
}

/// The runs of the messages of the active branch, from a message on.
pub async fn list_runs_from(
    tx: &mut Tx,
    conversation: ConversationId,
    message: MessageId,
) -> Result<Vec<RunId>> {
    let runs = sqlx::query_scalar!(
        r#"with recursive path (branch, upto) as (
             select (select branch from conversations where tenant_id = $1 and id = $2), 9223372036854775807
             union all
             select b.parent, b.from_seq from path
             join branches b on b.tenant_id = $1 and b.conversation_id = $2 and b.number = path.branch
           )
           select distinct m.run_id as "run_id!: RunId" from messages m
           where m.tenant_id = $1 and m.conversation_id = $2 and m.run_id is not null
             and m.seq >= (select seq from messages where tenant_id = $1 and conversation_id = $2 and id = $3)
             and exists (select 1 from path where path.branch = m.branch and m.seq < path.upto)"#,
        tx.tenant()?.0,
        conversation.0,
        message.0,
    );
    Ok(runs.fetch_all(tx.conn()).await?)
}

/// Adds a branch and makes it the active one. Returns its number. The caller has locked the conversation.
pub async fn insert(
    tx: &mut Tx,
    conversation: ConversationId,
    parent: i32,
    from_seq: i64,
) -> Result<i32> {
    let number = sqlx::query_scalar!(
        r#"with counted as (
           update conversations set last_branch = last_branch + 1, branch = last_branch + 1
           where tenant_id = $1 and id = $2 returning last_branch
         ), new as (
           insert into branches (tenant_id, id, conversation_id, number, parent, from_seq)
           select $1, $3, $2, last_branch, $4, $5 from counted returning number
         )
         select number as "number!" from new"#,
        tx.tenant()?.0,
        conversation.0,
        Uuid::now_v7(),
        parent,
        from_seq,
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(number)
}

/// Makes a branch the active one. `false` if there is none with this number.
pub async fn switch(tx: &mut Tx, conversation: ConversationId, number: i32) -> Result<bool> {
    let switched = sqlx::query!(
        "update conversations set branch = $3
         where tenant_id = $1 and id = $2 and ($3 = 0 or exists (
           select 1 from branches where tenant_id = $1 and conversation_id = $2 and number = $3))",
        tx.tenant()?.0,
        conversation.0,
        number,
    )
    .execute(tx.conn())
    .await?;
    Ok(switched.rows_affected() == 1)
}

/// Whether a turn of a conversation is queued or running. The caller has locked the conversation.
pub async fn has_open_turn(tx: &mut Tx, conversation: ConversationId) -> Result<bool> {
    let is_open = sqlx::query_scalar!(
        r#"select exists(
             select 1 from runs where tenant_id = $1 and conversation_id = $2
               and status in ('queued', 'running') and kind = 'turn') as "is_open!""#,
        tx.tenant()?.0,
        conversation.0,
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(is_open)
}
