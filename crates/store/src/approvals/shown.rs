//! Rows of requests that an answer in a conversation shows, so that a person decides only what they have seen.

use uuid::Uuid;

use crate::Tx;
use domain::{
    canonical::{self, Hash},
    error::{Error, Result},
    ids::{ApprovalId, ConversationId, RunId},
};

/// The time that a person needs to see an answer. A command that comes earlier was sent by a double click.
const SEEN_SECONDS: f64 = 1.0;

/// A request that an answer shows, and the hash of the arguments that it shows.
pub type ShownRequest = (ApprovalId, Hash);

/// Records the requests that the answer of a run shows. They replace the records of earlier answers.
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

/// Deletes the records of a run, because its client has not received the whole answer.
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

/// Like [`forget_shown`], but only if the key of the request says that the client has left or still waits.
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

/// A request as a conversation has shown it last.
pub struct LastShown {
    /// The hash of the arguments.
    pub hash: Hash,
    /// Whether the client has not read the answer that shows it to the end yet.
    pub is_underway: bool,
    /// Whether the answer was not complete a second before the run that asks was created.
    pub is_too_recent: bool,
}

/// Finds a request as a conversation has shown it last. An answer whose client left before its end does not count.
pub async fn find_last_shown(
    tx: &mut Tx,
    conversation: ConversationId,
    run: RunId,
    request: ApprovalId,
) -> Result<Option<LastShown>> {
    let row = sqlx::query!(
        r#"select s.args_sha256,
                  exists (
                    select 1 from request_keys k
                    where k.tenant_id = $1 and k.conversation_id = $2 and k.run_id = s.run_id
                      and k.served_until is not null) as "is_underway!",
                  showing.finished_at > asking.created_at - make_interval(secs => $5) as "is_too_recent!"
         from shown_requests s
         join runs showing on showing.tenant_id = $1 and showing.id = s.run_id and showing.status = 'succeeded'
         join runs asking on asking.tenant_id = $1 and asking.id = $3
         where s.tenant_id = $1 and s.conversation_id = $2 and s.approval_id = $4
           and not exists (
             select 1 from request_keys k
             where k.tenant_id = $1 and k.conversation_id = $2 and k.run_id = s.run_id
               and (k.failed_at is not null or k.served_until <= statement_timestamp()))"#,
        tx.tenant()?.0,
        conversation.0,
        run.0,
        request.0,
        SEEN_SECONDS,
    )
    .fetch_optional(tx.conn())
    .await?;
    let broken = |what: String| Error::Internal(anyhow::anyhow!("shown request {request}: {what}"));
    row.map(|row| {
        let hash = canonical::hash_of_row(row.args_sha256).map_err(broken)?;
        Ok(LastShown {
            hash,
            is_underway: row.is_underway,
            is_too_recent: row.is_too_recent,
        })
    })
    .transpose()
}
