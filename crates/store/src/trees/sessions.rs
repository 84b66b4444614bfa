//! Sessions that runs have started: the sessions of a tree, and the runs in them.

use time::OffsetDateTime;

use crate::Tx;
use domain::{
    error::{Error, ErrorCode, Result},
    ids::{AgentId, ConversationId, RunId, UserId},
    run::RunStatus,
};

/// The sessions below one, and those below these.
pub async fn sessions_below(
    tx: &mut Tx,
    user: &UserId,
    session: ConversationId,
) -> Result<Vec<ConversationId>> {
    let ids = sqlx::query_scalar!(
        r#"with recursive below as (
             select c.tenant_id, c.id from conversations c
             join conversations p on p.tenant_id = c.tenant_id and p.id = c.parent_session
             where c.tenant_id = $3 and p.id = $1 and p.user_id = $2
             union
             select c.tenant_id, c.id from conversations c
             join below b on c.tenant_id = b.tenant_id and c.parent_session = b.id
             where c.tenant_id = $3
           )
           select id as "id!: ConversationId" from below"#,
        session.0,
        user.as_str(),
        tx.tenant()?.0,
    );
    Ok(ids.fetch_all(tx.conn()).await?)
}

/// The same, all of them locked with the session itself: nothing is added below it until the end of the transaction,
/// and whoever works there has finished what it writes.
pub async fn lock_sessions_below(
    tx: &mut Tx,
    user: &UserId,
    session: ConversationId,
) -> Result<Vec<ConversationId>> {
    let mut below = Vec::new();
    loop {
        let ids: Vec<_> = below
            .iter()
            .chain([&session])
            .map(|id: &ConversationId| id.0)
            .collect();
        sqlx::query!(
            "select 1 as one from conversations where tenant_id = $2 and id = any($1)
             order by id for update",
            &ids,
            tx.tenant()?.0,
        )
        .fetch_all(tx.conn())
        .await?;
        let now = sessions_below(tx, user, session).await?;
        if now.len() == below.len() {
            return Ok(below);
        }
        below = now;
    }
}

/// The runs of sessions, and which of them are open.
pub async fn runs_of(tx: &mut Tx, sessions: &[ConversationId]) -> Result<Vec<(RunId, bool)>> {
    let sessions: Vec<_> = sessions.iter().map(|session| session.0).collect();
    let rows = sqlx::query!(
        r#"select id as "id: RunId", status in ('queued', 'running') as "open!" from runs
           where tenant_id = $2 and conversation_id = any($1)"#,
        &sessions,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.open)).collect())
}

/// A session that a run started, as it stands.
#[derive(Clone, Debug)]
pub struct Child {
    pub session: ConversationId,
    pub agent: AgentId,
    /// Its newest turn.
    pub run: RunId,
    pub status: RunStatus,
    pub error: Option<String>,
    pub created_at: OffsetDateTime,
}

/// The sessions that one has started, the oldest first.
pub async fn children(tx: &mut Tx, user: &UserId, session: ConversationId) -> Result<Vec<Child>> {
    let children = sqlx::query_as!(
        Child,
        r#"select c.id as "session: _", c.agent as "agent: _", r.id as "run!: _", r.status as "status!: _", r.error,
                  c.created_at
           from conversations c
           join lateral (
             select id, status, error from runs
             where tenant_id = $3 and conversation_id = c.id and kind = 'turn'
             order by ordinal desc limit 1
           ) r on true
           where c.tenant_id = $3 and c.parent_session = $1 and c.user_id = $2 order by c.id"#,
        session.0,
        user.as_str(),
        tx.tenant()?.0,
    );
    Ok(children.fetch_all(tx.conn()).await?)
}

/// Sets the parent of a session.
pub async fn set_parent(
    tx: &mut Tx,
    session: ConversationId,
    parent: ConversationId,
) -> Result<()> {
    let done = sqlx::query!(
        "update conversations set parent_session = $2 where tenant_id = $3 and id = $1",
        session.0,
        parent.0,
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await;
    if let Err(sqlx::Error::Database(error)) = &done
        && error.is_foreign_key_violation()
    {
        return Err(Error::conflict(
            ErrorCode::RunOver,
            "not started: the session that wants it was deleted",
        ));
    }
    done?;
    Ok(())
}
