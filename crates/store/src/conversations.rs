//! Rows of conversations. A conversation belongs to one user of one tenant, and every query names both.

pub mod keyed;
pub mod listing;
pub mod search;

use super::Tx;
use domain::{
    error::{Error, Missing, Result},
    ids::{AgentId, ConversationId, TenantId, UserId},
    run::Conversation,
};

/// A query for conversations: the SQL before and after the columns, and its values.
macro_rules! conversations {
    ($before:literal, $after:literal $(, $value:expr)* $(,)?) => {
        sqlx::query_as!(
            Conversation,
            $before
                + r#" id as "id: _", agent as "agent: _", title, parent_session as "parent_id: _", last_event,
                      archived_at is not null as "archived!", pinned_at is not null as "pinned!", branch, created_at,
                      updated_at "#
                + $after
            $(, $value)*
        )
    };
}
use conversations;

/// Takes the conversation out of a row that has more columns.
macro_rules! conversation_of {
    ($row:ident) => {
        Conversation {
            id: $row.id,
            agent: $row.agent,
            title: $row.title,
            parent_id: $row.parent_id,
            last_event: $row.last_event,
            archived: $row.archived,
            pinned: $row.pinned,
            branch: $row.branch,
            created_at: $row.created_at,
            updated_at: $row.updated_at,
        }
    };
}
use conversation_of;

/// Adds a conversation. `external_key` is the key by which a frontend finds it.
pub async fn insert(
    tx: &mut Tx,
    user: &UserId,
    agent: &AgentId,
    title: &str,
    external_key: Option<&str>,
) -> Result<Conversation> {
    let id = ConversationId::new();
    let inserted = conversations!(
        "insert into conversations (tenant_id, id, agent, user_id, title, external_key, titled_by)
         values ($1, $2, $3, $4, $5, $6, case when $5 = '' then 'message' else 'user' end) returning",
        "",
        tx.tenant()?.0,
        id.0,
        agent.as_str(),
        user.as_str(),
        title,
        external_key,
    );
    Ok(inserted.fetch_one(tx.conn()).await?)
}

/// A conversation of this user. `NotFound` for a conversation of another user. Locks its row if `lock` is set.
pub async fn get(
    tx: &mut Tx,
    user: &UserId,
    id: ConversationId,
    lock: bool,
) -> Result<Conversation> {
    let found = if lock {
        conversations!(
            "select",
            "from conversations where tenant_id = $3 and id = $1 and user_id = $2 for update",
            id.0,
            user.as_str(),
            tx.tenant()?.0,
        )
        .fetch_optional(tx.conn())
        .await?
    } else {
        conversations!(
            "select",
            "from conversations where tenant_id = $3 and id = $1 and user_id = $2",
            id.0,
            user.as_str(),
            tx.tenant()?.0,
        )
        .fetch_optional(tx.conn())
        .await?
    };
    found.ok_or_else(|| Error::NotFound(Missing::Conversation(id)))
}

/// Whether a flow or a question of a server may wait for an answer in a conversation.
pub async fn awaits_answer(tx: &mut Tx, id: ConversationId) -> Result<bool> {
    let awaits = sqlx::query_scalar!(
        r#"select exists(select 1 from flows where tenant_id = $1 and conversation_id = $2)
               or exists(select 1 from elicitations where tenant_id = $1 and conversation_id = $2) as "awaits!""#,
        tx.tenant()?.0,
        id.0,
    )
    .fetch_one(tx.conn())
    .await?;
    Ok(awaits)
}

/// Whether a conversation belongs to a client that keeps the transcript itself.
pub async fn is_of_client(tx: &mut Tx, conversation: ConversationId) -> Result<bool> {
    let external = sqlx::query_scalar!(
        r#"select external_key is not null as "external!" from conversations
           where tenant_id = $2 and id = $1"#,
        conversation.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(external.unwrap_or(false))
}

/// Deletes a conversation with everything in it. Returns the name of its agent.
pub async fn delete(tx: &mut Tx, user: &UserId, id: ConversationId) -> Result<String> {
    let agent = sqlx::query_scalar!(
        "delete from conversations where tenant_id = $3 and id = $1 and user_id = $2 returning agent",
        id.0,
        user.as_str(),
        tx.tenant()?.0,
    );
    let agent = agent.fetch_optional(tx.conn()).await?;
    agent.ok_or_else(|| Error::NotFound(Missing::Conversation(id)))
}

/// The number of the last durable event of each conversation, for listeners. Needs the system role.
pub async fn list_last_events(
    tx: &mut Tx,
    conversations: &[(TenantId, ConversationId)],
) -> Result<Vec<(ConversationId, i64)>> {
    let (tenants, ids): (Vec<_>, Vec<_>) = conversations
        .iter()
        .map(|(tenant, id)| (tenant.0, id.0))
        .unzip();
    let rows = sqlx::query!(
        r#"select c.id as "id: ConversationId", c.last_event
         from unnest($1::uuid[], $2::uuid[]) wanted (tenant_id, id)
         join conversations c on c.tenant_id = wanted.tenant_id and c.id = wanted.id"#,
        &tenants,
        &ids,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.id, row.last_event))
        .collect())
}

/// Claims the right to let a model title a conversation, which happens once. `false` if a user gave the title, or a
/// model was asked already.
pub async fn claim_title(tx: &mut Tx, id: ConversationId) -> Result<bool> {
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

/// Sets the title that a model made. `false` if the user has given one meanwhile.
pub async fn set_title(tx: &mut Tx, id: ConversationId, title: &str) -> Result<bool> {
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
