//! Rows of approvals: requests for consent to a call. Every transition names the state that it starts from, so that
//! of two transitions at once only one changes the row. The execution of a call also carries its fence. A writer that
//! locks an approval and a conversation locks the approval first.

mod insertion;
mod lists;
mod notices;
mod results;
mod shown;
mod transitions;
mod votes;

use sqlx::types::Json;
use time::OffsetDateTime;

pub use self::{
    insertion::{NewApproval, OpenRequests, count_open, find_elsewhere, find_same, insert},
    lists::{
        ApprovalOwner, ApprovalSelection, LastChange, Waiting, count_open_of_requester,
        count_undecided, list, list_changed, list_last_changes,
    },
    notices::{claim_outcomes, claim_waiting},
    results::{await_result, find_uncollected, get_result, keep_result, mark_collected},
    shown::{LastShown, find_last_shown, forget_shown, forget_undelivered, remember_shown},
    transitions::{
        Transition, TransitionGuard, change, claim, heartbeat, list_due, release, withdraw,
        withdraw_of_key, withdraw_of_user, withdraw_restored,
    },
    votes::{add_evidence, add_vote, list_votes, record_outcome},
};
use super::Tx;
use domain::{
    approval::{About, Approval, ApprovalRule, Recorded, State},
    canonical,
    error::{Error, Result},
    ids::{AgentId, ApprovalId, ConversationId, RunId, ServerId, TenantId, UserId},
    policy::Origin,
    principal::Principal,
    run::RunKind,
    trace_context::TraceContext,
};

struct Row {
    tenant_id: TenantId,
    id: ApprovalId,
    code: String,
    state: State,
    agent: AgentId,
    server: ServerId,
    tool: String,
    about: Json<About>,
    fingerprint: Vec<u8>,
    args_sha256: Vec<u8>,
    sealed: Vec<u8>,
    credential: String,
    principal: Json<Principal>,
    requester_name: Option<String>,
    conversation_id: Option<ConversationId>,
    run_id: Option<RunId>,
    call_id: String,
    origin: Origin,
    follow_up: bool,
    withdrawn_by: Option<UserId>,
    withdrawn_cause: Option<String>,
    approvers: Vec<String>,
    min_approvals: i32,
    self_approval: bool,
    reason: Option<String>,
    decided_by: Option<UserId>,
    by_name: Option<String>,
    decided_at: Option<OffsetDateTime>,
    created_at: OffsetDateTime,
    expires_at: OffsetDateTime,
    changed_at: OffsetDateTime,
    finished_at: Option<OffsetDateTime>,
    evidence: Option<String>,
    recorded_happened: Option<bool>,
    recorded_note: Option<String>,
    recorded_by: Option<UserId>,
    recorded_at: Option<OffsetDateTime>,
    fence: i64,
    trace: Option<Json<TraceContext>>,
}

/// A query for whole rows: the SQL before and after the columns, and its values.
macro_rules! rows {
    ($before:literal, $after:literal $(, $value:expr)* $(,)?) => {
        sqlx::query_as!(
            $crate::approvals::Row,
            $before
                + r#" a.tenant_id as "tenant_id: _", a.id as "id: _", a.code, a.state as "state: _", a.agent as "agent: _",
                      a.server as "server: _", a.tool, a.about as "about: _", a.fingerprint, a.args_sha256, a.sealed,
                      a.credential, a.principal as "principal: _", a.requester_name,
                      a.conversation_id as "conversation_id: _", a.run_id as "run_id: _", a.call_id,
                      a.origin as "origin: _", a.follow_up,
                      a.withdrawn_by as "withdrawn_by: _", a.withdrawn_cause, a.approvers, a.min_approvals,
                      a.self_approval, a.reason, a.decided_by as "decided_by: _", a.by_name, a.decided_at,
                      a.created_at, a.expires_at, a.changed_at, a.finished_at, a.evidence, a.recorded_happened,
                      a.recorded_note, a.recorded_by as "recorded_by: _", a.recorded_at, a.fence,
                      a.trace as "trace: _" "#
                + $after
            $(, $value)*
        )
    };
}
use rows;

impl TryFrom<Row> for Approval {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        let broken = |what: String| Error::Internal(anyhow::anyhow!("approval {}: {what}", row.id));
        let recorded = row
            .recorded_happened
            .zip(row.recorded_by)
            .zip(row.recorded_at);
        Ok(Self {
            tenant: row.tenant_id,
            id: row.id,
            code: row.code,
            state: row.state,
            agent: row.agent,
            server: row.server,
            tool: row.tool,
            about: row.about.0,
            fingerprint: canonical::hash_of_row(row.fingerprint).map_err(broken)?,
            args_sha256: canonical::hash_of_row(row.args_sha256).map_err(broken)?,
            sealed: row.sealed,
            credential: row.credential,
            requester_name: row
                .requester_name
                .unwrap_or_else(|| row.principal.0.display_name()),
            principal: row.principal.0,
            conversation: row.conversation_id,
            run: row.run_id,
            call_id: row.call_id,
            origin: row.origin,
            follow_up: row.follow_up,
            withdrawn_by: row.withdrawn_by,
            // A later release may know more.
            withdrawn_cause: row.withdrawn_cause.and_then(|cause| cause.parse().ok()),
            rule: ApprovalRule {
                approvers: row.approvers,
                min_approvals: row.min_approvals.cast_unsigned(),
                self_approval: row.self_approval,
            },
            reason: row.reason,
            decided_by: row.decided_by,
            by_name: row.by_name,
            decided_at: row.decided_at,
            created_at: row.created_at,
            expires_at: row.expires_at,
            changed_at: row.changed_at,
            finished_at: row.finished_at,
            evidence: row.evidence,
            recorded: recorded.map(|((happened, by), at)| Recorded {
                happened,
                note: row.recorded_note,
                by,
                at,
            }),
            fence: row.fence,
            trace: row.trace.map(|trace| trace.0),
        })
    }
}

/// The conversation of a run, its number there, and its kind.
pub async fn get_run_origin(
    tx: &mut Tx,
    run: RunId,
) -> Result<Option<(ConversationId, i64, RunKind)>> {
    let row = sqlx::query!(
        r#"select conversation_id as "conversation_id: ConversationId", ordinal, kind as "kind: RunKind"
           from runs where tenant_id = $2 and id = $1"#,
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(row.map(|row| (row.conversation_id, row.ordinal, row.kind)))
}

pub async fn get(tx: &mut Tx, id: ApprovalId) -> Result<Option<Approval>> {
    let row = rows!(
        "select",
        "from approvals a where a.tenant_id = $2 and id = $1",
        id.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// The requests of a run.
pub async fn list_of_run(tx: &mut Tx, run: RunId) -> Result<Vec<Approval>> {
    let rows = rows!(
        "select",
        "from approvals a where a.tenant_id = $2 and run_id = $1",
        run.0,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    rows.into_iter().map(TryInto::try_into).collect()
}

/// The request with a code: the open one, else the newest one.
pub async fn find_by_code(tx: &mut Tx, code: &str) -> Result<Option<Approval>> {
    let row = rows!(
        "select",
        "from approvals a where a.tenant_id = $2 and code = $1
         order by state in ('pending', 'approved', 'executing') desc, id desc limit 1",
        code,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// Locks a request until the end of `tx`. `false` if there is none. Read its state with a later statement ([`get`],
/// [`is_live`]), because this statement may have waited for the lock.
pub async fn lock(tx: &mut Tx, id: ApprovalId) -> Result<bool> {
    let found = sqlx::query!(
        "select id from approvals where tenant_id = $2 and id = $1 for update",
        id.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn());
    Ok(found.await?.is_some())
}

/// Whether a request is pending, was not withdrawn, and has not expired by the clock of the database.
pub async fn is_live(tx: &mut Tx, id: ApprovalId) -> Result<bool> {
    let live = sqlx::query_scalar!(
        r#"select (state = 'pending' and not withdrawn and statement_timestamp() < expires_at) as "live!"
           from approvals where tenant_id = $2 and id = $1"#,
        id.0,
        tx.tenant()?.0,
    );
    Ok(live.fetch_optional(tx.conn()).await?.unwrap_or(false))
}
