//! What was shown of requests in a conversation.

use uuid::Uuid;

use crate::{
    domain::{
        canonical::{self, Hash},
        error::{Error, Result},
        ids::{ApprovalId, ConversationId, RunId},
    },
    store::Tx,
};

/// A request as it was shown: which one, and the hash of its arguments.
pub type ShownRequest = (ApprovalId, Hash);

/// Remembers what the answer of a run shows, in place of what earlier ones have shown of the same requests.
pub async fn remember_shown(
    tx: &mut Tx,
    conversation: ConversationId,
    run: RunId,
    shown: &[ShownRequest],
) -> Result<()> {
    let ids: Vec<_> = shown.iter().map(|_| Uuid::now_v7()).collect();
    let (requests, hashes): (Vec<_>, Vec<_>) = shown
        .iter()
        .map(|(request, hash)| (request.0, hash.to_vec()))
        .unzip();
    sqlx::query!(
        "insert into shown_requests (tenant_id, id, conversation_id, run_id, approval_id, args_sha256)
         select $1, s.id, $2, $3, s.approval_id, s.args_sha256
         from unnest($4::uuid[], $5::uuid[], $6::bytea[]) s (id, approval_id, args_sha256)
         on conflict (tenant_id, conversation_id, approval_id)
         do update set run_id = excluded.run_id, args_sha256 = excluded.args_sha256",
        tx.tenant()?.0,
        conversation.0,
        run.0,
        &ids,
        &requests,
        &hashes,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// Forgets what the answer of a run shows: its client did not get all of it.
pub async fn forget_shown(tx: &mut Tx, run: RunId) -> Result<()> {
    sqlx::query!(
        "delete from shown_requests where tenant_id = $1 and run_id = $2",
        tx.tenant()?.0,
        run.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The same if the key of its request says that the client left, or that it still waits.
pub async fn forget_undelivered(tx: &mut Tx, run: RunId) -> Result<()> {
    sqlx::query!(
        "delete from shown_requests s using request_keys k
         where s.tenant_id = $1 and s.run_id = $2 and k.tenant_id = $1 and k.conversation_id = s.conversation_id
           and k.run_id = $2 and (k.failed_at is not null or k.served_until is not null)",
        tx.tenant()?.0,
        run.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The hash of the arguments with which a request was last shown in a conversation, by an answer that was there before
/// `run` was wanted. A client that waits for its answers has it: it did not leave before the end.
pub async fn last_shown(
    tx: &mut Tx,
    conversation: ConversationId,
    run: RunId,
    request: ApprovalId,
) -> Result<Option<Hash>> {
    let hash = sqlx::query_scalar!(
        "select s.args_sha256 from shown_requests s
         join runs showing on showing.tenant_id = $1 and showing.id = s.run_id and showing.status = 'succeeded'
         join runs asking on asking.tenant_id = $1 and asking.id = $3
         where s.tenant_id = $1 and s.conversation_id = $2 and s.approval_id = $4
           and showing.finished_at < asking.created_at
           and not exists (
             select 1 from request_keys k
             where k.tenant_id = $1 and k.conversation_id = $2 and k.run_id = s.run_id
               and (k.failed_at is not null or k.served_until is not null))",
        tx.tenant()?.0,
        conversation.0,
        run.0,
        request.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    let broken = |what: String| Error::Internal(anyhow::anyhow!("shown request {request}: {what}"));
    hash.map(|hash| canonical::hash_of_row(hash).map_err(broken))
        .transpose()
}
