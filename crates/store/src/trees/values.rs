//! The values that a tree of runs was started with.

use sqlx::types::Json;

use crate::Tx;
use domain::{
    error::Result,
    ids::{ConversationId, RunId},
    json::Members,
    principal::Principal,
    run::Branch,
};

/// What a new run is given.
pub struct TreeValues<'a> {
    pub branch: Branch,
    pub params: &'a Members,
    /// Sealed; of a root.
    pub scope: Option<&'a [u8]>,
    pub callback: Option<ConversationId>,
}

/// Gives a run its place and its values, unless it has a place already.
pub async fn insert_values(tx: &mut Tx, run: RunId, given: &TreeValues<'_>) -> Result<()> {
    let params = given.params.to_string();
    sqlx::query!(
        "update runs
         set root_run = $2, parent_run = $3, depth = $4, params = $5::text::json, scope = $6, callback_session = $7
         where tenant_id = $8 and id = $1 and root_run is null",
        run.0,
        given.branch.root.0,
        given.branch.parent.map(|parent| parent.0),
        given.branch.depth,
        params,
        given.scope,
        given.callback.map(|session| session.0),
        tx.tenant()?.0,
    )
    .execute(tx.conn())
    .await?;
    Ok(())
}

/// The values of a run: its own parameters, and the sealed scope of its tree with the root that the scope was
/// sealed for.
pub struct StoredValues {
    pub params: Members,
    pub scope: Option<(RunId, Vec<u8>)>,
}

/// `None` when the run or the root of its tree is gone. Without its scope a run must not go on: a server that
/// receives fewer values may allow more.
pub async fn values(tx: &mut Tx, run: RunId) -> Result<Option<StoredValues>> {
    let row = sqlx::query!(
        r#"select r.params as "params: Json<Members>", root.id as "root?: RunId", root.scope as "scope?"
           from runs r left join runs root on root.tenant_id = r.tenant_id and root.id = r.root_run
           where r.tenant_id = $2 and r.id = $1 and (r.root_run is null or root.id is not null)"#,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| StoredValues {
        params: row.params.map(|params| params.0).unwrap_or_default(),
        scope: row.root.zip(row.scope),
    }))
}

/// The parameters that a session was given last.
pub async fn params_of(tx: &mut Tx, session: ConversationId) -> Result<Members> {
    let params = sqlx::query_scalar!(
        r#"select params as "params!: Json<Members>" from runs
           where tenant_id = $2 and conversation_id = $1 and params is not null and params::text <> '{}'
           order by ordinal desc limit 1"#,
        session.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(params.map(|params| params.0).unwrap_or_default())
}

/// The conversation and the principal of a run that calls a tool of the orchestrator.
pub async fn caller(tx: &mut Tx, run: RunId) -> Result<Option<(ConversationId, Principal)>> {
    let row = sqlx::query!(
        r#"select conversation_id as "conversation_id: ConversationId", principal as "principal: Json<Principal>"
           from runs where tenant_id = $2 and id = $1"#,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| (row.conversation_id, row.principal.0)))
}
