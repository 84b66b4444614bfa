//! Messages of a transcript that a client brings along.

use uuid::Uuid;

use crate::Tx;
use domain::{
    error::{Error, Result},
    ids::ConversationId,
    message::{Part, Role},
};

/// Adds messages that no run wrote, in their order. Locks the conversation until the end of `tx`.
pub async fn import(
    tx: &mut Tx,
    conversation: ConversationId,
    messages: &[(Role, Vec<Part>)],
) -> Result<()> {
    let ids: Vec<Uuid> = messages.iter().map(|_| Uuid::now_v7()).collect();
    let events: Vec<Uuid> = messages.iter().map(|_| Uuid::now_v7()).collect();
    let roles: Vec<String> = messages
        .iter()
        .map(|(role, _)| role.into_str().to_owned())
        .collect();
    let parts = messages
        .iter()
        .map(|(_, parts)| serde_json::to_string(parts).map_err(Error::internal))
        .collect::<Result<Vec<_>>>()?;
    let tenant = tx.tenant()?.0;
    let counted = sqlx::query!(
        r#"update conversations set last_seq = last_seq + $3, last_event = last_event + $3
           where tenant_id = $1 and id = $2
           returning last_seq - $3 as "seq!", last_event - $3 as "event!", last_run"#,
        tenant,
        conversation.0,
        i64::try_from(messages.len()).map_err(Error::internal)?,
    );
    let counted = counted.fetch_one(tx.conn()).await?;
    sqlx::query!(
        "insert into messages (tenant_id, id, conversation_id, seq, run_ordinal, role, parts, for_model)
         select $1, id, $2, $3::bigint + place, $7, role, parts::json, true
         from unnest($4::uuid[], $5::text[], $6::text[]) with ordinality as given (id, role, parts, place)",
        tenant,
        conversation.0,
        counted.seq,
        &ids,
        &roles,
        &parts,
        counted.last_run,
    )
    .execute(tx.conn())
    .await?;
    sqlx::query!(
        "insert into events (tenant_id, id, conversation_id, seq, kind, message_id)
         select $1, id, $2, $3::bigint + place, 'message', message
         from unnest($4::uuid[], $5::uuid[]) with ordinality as given (id, message, place)",
        tenant,
        conversation.0,
        counted.event,
        &events,
        &ids,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}
