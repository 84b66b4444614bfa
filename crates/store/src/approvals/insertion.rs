//! Writes new requests, and finds open requests for the same call.

use std::time::Duration;

use super::rows;
use crate::Tx;
use domain::{
    approval::{About, Approval, ApprovalRule},
    canonical::Hash,
    error::{Error, Result},
    ids::{AgentId, ApprovalId, ConversationId, RunId, ServerId, UserId},
    policy::Origin,
    principal::Principal,
    trace_context::TraceContext,
};

/// A request to add. Its id is chosen before, because the arguments are sealed for it.
pub struct NewApproval<'a> {
    pub id: ApprovalId,
    pub principal: &'a Principal,
    pub requester_name: &'a str,
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
    pub origin: Origin,
    pub follow_up: bool,
    pub rule: &'a ApprovalRule,
    pub timeout: Duration,
    /// The span in which it is asked for, if there are traces.
    pub trace: Option<&'a TraceContext>,
}

/// Adds a request. `None` if its code is taken or the same call waits already. The code of a closed request stays
/// taken for a day, so that a late decision cannot decide another request.
pub async fn insert(tx: &mut Tx, new: &NewApproval<'_>, code: &str) -> Result<Option<Approval>> {
    let row = rows!(
        "with a as (insert into approvals (tenant_id, id, code, state, agent, server, tool, about, fingerprint, args_sha256,
                                     sealed, credential, requester, principal, conversation_id, run_id, call_id,
                                     follow_up, approvers, min_approvals, self_approval, expires_at, requester_name,
                                     origin, trace)
         select $1, $2, $3, 'pending', $4, $5, $6, $7::text::json, $8, $9, $10, $11, $12, $13::text::json, $14, $15,
                $16, $17, $18, $19, $20, statement_timestamp() + make_interval(secs => $21), $22, $23,
                $24::text::json
         where not exists (select 1 from approvals other
                           where other.tenant_id = $1 and other.code = $3
                             and other.changed_at > statement_timestamp() - interval '24 hours')
         on conflict do nothing
         returning *)
         select",
        "from a",
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
        &new.rule.approvers,
        new.rule.min_approvals.cast_signed(),
        new.rule.self_approval,
        new.timeout.as_secs_f64(),
        new.requester_name,
        new.origin.into_str(),
        new.trace
            .map(serde_json::to_string)
            .transpose()
            .map_err(Error::internal)?,
    )
    .fetch_optional(tx.conn())
    .await?;
    row.map(TryInto::try_into).transpose()
}

/// Finds the open request for the same call of the same person in the same conversation.
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

/// Finds an open request for the same call of the same person in another conversation. Returns its code.
pub async fn find_elsewhere(tx: &mut Tx, new: &NewApproval<'_>) -> Result<Option<String>> {
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

/// Open requests: of a user, and those of the tenant that wait for others.
pub struct OpenRequests {
    pub own: i64,
    pub for_others: i64,
}

/// Counts the open requests of a user, and of the tenant. What users are asked about their own calls takes nobody else's
/// place.
pub async fn count_open(tx: &mut Tx, requester: &UserId) -> Result<OpenRequests> {
    let counted = sqlx::query_as!(
        OpenRequests,
        r#"select count(*) filter (where requester = $1) as "own!",
                  count(*) filter (where cardinality(approvers) > 0) as "for_others!"
           from approvals where tenant_id = $2 and state in ('pending', 'approved', 'executing')"#,
        requester.as_str(),
        tx.tenant()?.0,
    )
    .fetch_one(tx.conn());
    Ok(counted.await?)
}
