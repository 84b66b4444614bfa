//! Rows of approvals. Every transition names the state that it starts from, so when two transitions race, one
//! of them changes nothing. The execution of a call also carries its fence. A writer that locks an approval
//! and a conversation locks the approval first.

mod lists;
mod results;
mod votes;
mod work;

pub use lists::{
    ApprovalOwner, Page, badge_of_approver, changed, changed_last, list, open_of_requester,
};
pub use results::{await_result, collect, find_uncollected, keep_result, result};
pub use votes::{add_evidence, record, vote, votes};
pub use work::{claim, due, heartbeat, release, withdraw, withdraw_of_key, withdraw_of_user};

use std::time::Duration;

use sqlx::types::Json;
use time::OffsetDateTime;
use uuid::Uuid;

use super::Tx;
use crate::domain::{
    approval::{About, Approval, Consent, Recorded, State},
    canonical::{self, Hash},
    error::{Error, Result},
    ids::{AgentId, ApprovalId, ConversationId, RunId, ServerId, TenantId, UserId},
    principal::Principal,
    run::RunKind,
    session::SessionEnd,
};

/// A request to keep. Its id is chosen before, because the arguments are sealed for it.
pub struct NewApproval<'a> {
    pub id: ApprovalId,
    pub principal: &'a Principal,
    pub agent: &'a AgentId,
    pub server: &'a ServerId,
    pub tool: &'a str,
    pub about: &'a About,
    pub fingerprint: Hash,
    pub args_sha256: Hash,
    pub sealed: &'a [u8],
    pub credential: &'a str,
    pub run: Option<RunId>,
    pub conversation: Option<ConversationId>,
    pub call_id: &'a str,
    pub follow_up: bool,
    pub consent: &'a Consent,
    pub timeout: Duration,
}

struct Row {
    tenant_id: Uuid,
    id: Uuid,
    code: String,
    state: String,
    agent: String,
    server: String,
    tool: String,
    about: Json<About>,
    fingerprint: Vec<u8>,
    args_sha256: Vec<u8>,
    sealed: Vec<u8>,
    credential: String,
    principal: Json<Principal>,
    conversation_id: Option<Uuid>,
    run_id: Option<Uuid>,
    call_id: String,
    follow_up: bool,
    withdrawn_by: Option<String>,
    withdrawn_cause: Option<String>,
    approvers: Vec<String>,
    min_approvals: i32,
    self_approval: bool,
    reason: Option<String>,
    decided_by: Option<String>,
    by_name: Option<String>,
    decided_at: Option<OffsetDateTime>,
    created_at: OffsetDateTime,
    expires_at: OffsetDateTime,
    changed_at: OffsetDateTime,
    finished_at: Option<OffsetDateTime>,
    evidence: Option<String>,
    recorded_happened: Option<bool>,
    recorded_note: Option<String>,
    recorded_by: Option<String>,
    recorded_at: Option<OffsetDateTime>,
    fence: i64,
}

/// A query that answers whole rows. The columns stand behind what comes before them.
macro_rules! rows {
    ($before:literal, $after:literal $(, $value:expr)* $(,)?) => {
        sqlx::query_as!(
            $crate::store::approvals::Row,
            $before
                + r#" a.tenant_id, a.id, a.code, a.state, a.agent, a.server, a.tool, a.about as "about: Json<About>",
                      a.fingerprint, a.args_sha256, a.sealed, a.credential, a.principal as "principal: Json<Principal>",
                      a.conversation_id, a.run_id, a.call_id, a.follow_up, a.withdrawn_by, a.withdrawn_cause, a.approvers, a.min_approvals,
                      a.self_approval, a.reason, a.decided_by, a.by_name, a.decided_at, a.created_at, a.expires_at, a.changed_at, a.finished_at,
                      a.evidence, a.recorded_happened, a.recorded_note, a.recorded_by, a.recorded_at, a.fence "#
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
            tenant: TenantId(row.tenant_id),
            id: ApprovalId(row.id),
            code: row.code,
            state: State::parse(&row.state).ok_or_else(|| broken("unknown state".to_owned()))?,
            agent: AgentId::parse(&row.agent).map_err(broken)?,
            server: ServerId::parse(&row.server).map_err(broken)?,
            tool: row.tool,
            about: row.about.0,
            fingerprint: canonical::hash_of_row(row.fingerprint).map_err(broken)?,
            args_sha256: canonical::hash_of_row(row.args_sha256).map_err(broken)?,
            sealed: row.sealed,
            credential: row.credential,
            principal: row.principal.0,
            conversation: row.conversation_id.map(ConversationId),
            run: row.run_id.map(RunId),
            call_id: row.call_id,
            follow_up: row.follow_up,
            withdrawn_by: row.withdrawn_by.map(|user| UserId(user.into())),
            withdrawn_cause: row.withdrawn_cause.as_deref().and_then(SessionEnd::parse),
            consent: Consent {
                approvers: row.approvers,
                min_approvals: row.min_approvals.cast_unsigned(),
                self_approval: row.self_approval,
            },
            reason: row.reason,
            decided_by: row.decided_by.map(|user| UserId(user.into())),
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
                by: UserId(by.into()),
                at,
            }),
            fence: row.fence,
        })
    }
}

/// Keeps a request; `None` when its code is taken or the same call waits already.
pub async fn insert(tx: &mut Tx, new: &NewApproval<'_>, code: &str) -> Result<Option<Approval>> {
    let row = rows!(
        "insert into approvals as a (tenant_id, id, code, state, agent, server, tool, about, fingerprint, args_sha256,
                                     sealed, credential, requester, principal, conversation_id, run_id, call_id,
                                     follow_up, approvers, min_approvals, self_approval, expires_at)
         values ($1, $2, $3, 'pending', $4, $5, $6, $7::text::json, $8, $9, $10, $11, $12, $13::text::json, $14, $15,
                 $16, $17, $18, $19, $20, statement_timestamp() + make_interval(secs => $21))
         on conflict do nothing
         returning",
        "",
        new.principal.tenant.0,
        new.id.0,
        code,
        new.agent.as_str(),
        new.server.as_str(),
        new.tool,
        serde_json::to_string(new.about).map_err(Error::internal)?,
        &new.fingerprint[..],
        &new.args_sha256[..],
        new.sealed,
        new.credential,
        new.principal.user.as_str(),
        serde_json::to_string(new.principal).map_err(Error::internal)?,
        new.conversation.map(|id| id.0),
        new.run.map(|id| id.0),
        new.call_id,
        new.follow_up,
        &new.consent.approvers,
        new.consent.min_approvals.cast_signed(),
        new.consent.self_approval,
        new.timeout.as_secs_f64(),
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// The open request for the same call of the same person in the same conversation.
pub async fn find_same(tx: &mut Tx, new: &NewApproval<'_>) -> Result<Option<Approval>> {
    let row = rows!(
        "select",
        "from approvals a
         where a.tenant_id = $6 and requester = $1 and agent = $2 and server = $3 and tool = $4
           and args_sha256 = $5 and conversation_id is not distinct from $7
           and state in ('pending', 'approved', 'executing')",
        new.principal.user.as_str(),
        new.agent.as_str(),
        new.server.as_str(),
        new.tool,
        &new.args_sha256[..],
        tx.tenant()?.0,
        new.conversation.map(|id| id.0),
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// The code of an open request for the same call of the same person in another conversation.
pub async fn equal_elsewhere(tx: &mut Tx, new: &NewApproval<'_>) -> Result<Option<String>> {
    let code = sqlx::query_scalar!(
        "select code from approvals
         where tenant_id = $1 and requester = $2 and agent = $3 and server = $4 and tool = $5
           and args_sha256 = $6 and conversation_id is distinct from $7
           and state in ('pending', 'approved', 'executing')
         order by id limit 1",
        tx.tenant()?.0,
        new.principal.user.as_str(),
        new.agent.as_str(),
        new.server.as_str(),
        new.tool,
        &new.args_sha256[..],
        new.conversation.map(|id| id.0),
    )
    .fetch_optional(tx.conn())
    .await?;
    Ok(code)
}

/// How many requests are open: of this user, and of the tenant.
pub async fn count_open(tx: &mut Tx, requester: &UserId) -> Result<(i64, i64)> {
    let row = sqlx::query!(
        r#"select count(*) filter (where requester = $1) as "own!", count(*) as "all!"
           from approvals where tenant_id = $2 and state in ('pending', 'approved', 'executing')"#,
        requester.as_str(),
        tx.tenant()?.0,
    )
    .fetch_one(tx.conn())
    .await?;
    Ok((row.own, row.all))
}

/// Where a run takes place: its conversation, its position there, and of which kind it is.
pub async fn run_origin(tx: &mut Tx, run: RunId) -> Result<Option<(ConversationId, i64, RunKind)>> {
    let row = sqlx::query!(
        "select conversation_id, ordinal, kind from runs where tenant_id = $2 and id = $1",
        run.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn())
    .await?;
    let kind = |kind: &str| {
        if kind == RunKind::Turn.as_str() {
            RunKind::Turn
        } else {
            RunKind::Command
        }
    };
    Ok(row.map(|row| {
        (
            ConversationId(row.conversation_id),
            row.ordinal,
            kind(&row.kind),
        )
    }))
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

/// What a run has asked for.
pub async fn of_run(tx: &mut Tx, run: RunId) -> Result<Vec<Approval>> {
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

/// By its code: the open one, else the newest that had it.
pub async fn by_code(tx: &mut Tx, code: &str) -> Result<Option<Approval>> {
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

/// Locks a request until the end of `tx`. Read its state, and whether it may still be approved, in a
/// statement of its own ([`get`], [`is_live`]): this statement may have waited for the lock.
pub async fn lock(tx: &mut Tx, id: ApprovalId) -> Result<bool> {
    let found = sqlx::query!(
        "select id from approvals where tenant_id = $2 and id = $1 for update",
        id.0,
        tx.tenant()?.0,
    )
    .fetch_optional(tx.conn());
    Ok(found.await?.is_some())
}

/// Whether it is pending, was not cancelled, and has not expired by the clock of the database.
pub async fn is_live(tx: &mut Tx, id: ApprovalId) -> Result<bool> {
    let live = sqlx::query_scalar!(
        r#"select (state = 'pending' and not withdrawn and statement_timestamp() < expires_at) as "live!"
           from approvals where tenant_id = $2 and id = $1"#,
        id.0,
        tx.tenant()?.0,
    );
    Ok(live.fetch_optional(tx.conn()).await?.unwrap_or(false))
}

/// What must be true besides the state, for a transition.
#[derive(Clone, Copy, Debug)]
pub enum TransitionGuard {
    /// The caller has locked the row and checked it.
    Locked,
    /// It is past its expiry.
    Overdue,
    /// The time for the start of the call is over, and no replica has claimed it.
    Stale,
    /// The replica that executed it has not renewed its lease in time.
    Lost,
    /// The worker with this fence makes the transition.
    Held(i64),
}

/// A transition, with what belongs to it.
pub struct Transition<'a> {
    pub from: State,
    pub to: State,
    pub when: TransitionGuard,
    pub reason: Option<&'a str>,
    /// The person who does it.
    /// Who, and what to call them.
    pub by: Option<(&'a UserId, &'a str)>,
    /// An approved call must be begun within this time.
    pub window: Duration,
}

/// Makes a transition; `None` when the row is not (or no longer) in the state it comes from. What was taken back is
/// never executed.
pub async fn change(
    tx: &mut Tx,
    id: ApprovalId,
    change: &Transition<'_>,
) -> Result<Option<Approval>> {
    let Transition {
        from,
        to,
        when,
        reason,
        by,
        window,
    } = change;
    if !from.can_become(*to) {
        return Err(Error::Internal(anyhow::anyhow!(
            "an approval never becomes {to:?} when it is {from:?}"
        )));
    }
    let (when, fence) = match when {
        TransitionGuard::Locked => ("locked", 0),
        TransitionGuard::Overdue => ("overdue", 0),
        TransitionGuard::Stale => ("stale", 0),
        TransitionGuard::Lost => ("lost", 0),
        TransitionGuard::Held(fence) => ("held", *fence),
    };
    let row = rows!(
        "update approvals a
         set state = $3, reason = coalesce($4, reason), decided_by = coalesce($5, decided_by),
             by_name = coalesce($10, by_name),
             decided_at = case when $3 in ('approved', 'rejected', 'cancelled') then clock.at else decided_at end,
             lapses_at = case when $3 = 'approved' then clock.at + make_interval(secs => $8) else lapses_at end,
             lease_until = case when $3 = 'executing' then lease_until end,
             lease_owner = case when $3 = 'executing' then lease_owner end,
             finished_at = case when $3 not in ('approved', 'executing') then clock.at end,
             changed_at = clock.at
         from (select statement_timestamp() as at) clock
         where a.tenant_id = $9 and id = $1 and state = $2
           and ($3 <> 'executing' or not withdrawn)
           and case
                 when $6 = 'overdue' then expires_at <= clock.at
                 when $6 = 'stale' then lapses_at <= clock.at and (lease_until is null or lease_until < clock.at)
                 when $6 = 'lost' then lease_until < clock.at
                 when $6 = 'held' then fence = $7
                 else true
               end
         returning",
        "",
        id.0,
        from.as_str(),
        to.as_str(),
        *reason,
        by.map(|(user, _)| user.as_str()),
        when,
        fence,
        window.as_secs_f64(),
        tx.tenant()?.0,
        by.map(|(_, name)| name),
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}
