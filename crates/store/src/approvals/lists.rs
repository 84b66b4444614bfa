//! Lists and counts requests, for requesters and for approvers.

use std::collections::HashMap;

use time::OffsetDateTime;

use super::rows;
use crate::Tx;
use domain::{
    approval::{Approval, Approver, State},
    error::Result,
    ids::{ApprovalId, TenantId, UserId},
};

/// The user whose requests are listed.
#[derive(Clone, Copy)]
pub enum ApprovalOwner<'a> {
    /// The requests that this user made.
    Requester(&'a UserId),
    /// The requests that this user's roles may decide.
    Approver(&'a Approver),
}

/// Which of the requests that an approver can decide now. Each is a part of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waiting {
    All,
    OfOthers,
    /// Those of others of which no answer has told the approver.
    Untold,
}

/// Which requests of a list are wanted: filters, and where the page begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApprovalSelection<'a> {
    pub state: Option<State>,
    pub tool: Option<&'a str>,
    /// The user who made the request.
    pub requester: Option<&'a str>,
    /// Only requests that wait for the caller, who is an approver.
    pub waiting: Option<Waiting>,
    /// The oldest first, instead of the newest.
    pub oldest_first: bool,
    /// The last request of the page before, in this order.
    pub after: Option<ApprovalId>,
    pub limit: i64,
}

/// Requests in the order of the page.
pub async fn list(
    tx: &mut Tx,
    whose: ApprovalOwner<'_>,
    page: ApprovalSelection<'_>,
) -> Result<Vec<Approval>> {
    let state = page.state.map(<&str>::from);
    let after = page.after.map(|id| id.0);
    let found = match whose {
        ApprovalOwner::Requester(user) => {
            rows!(
                "select",
                "from approvals a
                 where a.tenant_id = $5 and requester = $1 and ($2::text is null or state = $2)
                   and ($3::uuid is null or case when $8 then id > $3 else id < $3 end)
                   and ($6::text is null or tool = $6) and ($7::text is null or requester = $7)
                 order by case when $8 then id end, id desc limit $4",
                user.as_str(),
                state,
                after,
                page.limit,
                tx.tenant()?.0,
                page.tool,
                page.requester,
                page.oldest_first,
            )
            .fetch_all(tx.conn())
            .await?
        }
        ApprovalOwner::Approver(approver) => {
            let (agents, roles) = approver.columns();
            rows!(
                "select",
                "from approvals a
                 where a.tenant_id = $8 and agent = any($1) and ($3::text is null or state = $3)
                   and ($4::uuid is null or case when $11 then id > $4 else id < $4 end)
                   and ($9::text is null or tool = $9) and ($10::text is null or requester = $10)
                   and exists (select from unnest($1::text[], $2::text[]) held (agent, role)
                               where held.agent = a.agent and held.role = any(a.approvers))
                   and (not $6 or state = 'pending' and expires_at > statement_timestamp()
                        and (requester <> $7 or self_approval)
                        and not exists (select from approval_votes v
                                        where v.tenant_id = $8 and v.approval_id = a.id and v.approver = $7
                                          and not exists (select from sign_outs s
                                                          where s.tenant_id = $8 and s.user_id = $7
                                                            and s.others_at > v.at)))
                   and (not $12 or requester <> $7)
                   and (not $13 or not exists (select from approval_notices n
                                               where n.tenant_id = $8 and n.user_id = $7 and n.approval_id = a.id))
                 order by case when $11 then id end, id desc limit $5",
                &agents,
                &roles,
                state,
                after,
                page.limit,
                page.waiting.is_some(),
                approver.user().as_str(),
                tx.tenant()?.0,
                page.tool,
                page.requester,
                page.oldest_first,
                page.waiting >= Some(Waiting::OfOthers),
                page.waiting >= Some(Waiting::Untold),
            )
            .fetch_all(tx.conn())
            .await?
        }
    };
    found.into_iter().map(TryInto::try_into).collect()
}

/// Counts the requests that wait for this approver.
pub async fn count_undecided(tx: &mut Tx, approver: &Approver) -> Result<i64> {
    let (agents, roles) = approver.columns();
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!" from approvals a
           where a.tenant_id = $4 and agent = any($1) and state = 'pending'
             and expires_at > statement_timestamp()
             and exists (select from unnest($1::text[], $2::text[]) held (agent, role)
                         where held.agent = a.agent and held.role = any(a.approvers))
             and (requester <> $3 or self_approval)
             and not exists (select from approval_votes v
                             where v.tenant_id = $4 and v.approval_id = a.id and v.approver = $3
                               and not exists (select from sign_outs s
                                               where s.tenant_id = $4 and s.user_id = $3 and s.others_at > v.at))"#,
        &agents,
        &roles,
        approver.user().as_str(),
        tx.tenant()?.0,
    );
    Ok(count.fetch_one(tx.conn()).await?)
}

/// Counts the open requests of a user.
pub async fn count_open_of_requester(tx: &mut Tx, user: &UserId) -> Result<i64> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!" from approvals
           where tenant_id = $2 and requester = $1 and state in ('pending', 'approved', 'executing')"#,
        user.as_str(),
        tx.tenant()?.0,
    );
    Ok(count.fetch_one(tx.conn()).await?)
}

/// The requests of which this user is requester or approver and that have changed since a time, the oldest change
/// first.
pub async fn list_changed(
    tx: &mut Tx,
    user: &UserId,
    approver: Option<&Approver>,
    from: OffsetDateTime,
    limit: i64,
) -> Result<Vec<Approval>> {
    let (agents, roles) = approver.map(Approver::columns).unwrap_or_default();
    let found = rows!(
        "select",
        "from approvals a
         where a.tenant_id = $6 and changed_at >= $4
           and (requester = $1
                or exists (select from unnest($2::text[], $3::text[]) held (agent, role)
                           where held.agent = a.agent and held.role = any(a.approvers)))
         order by changed_at, id limit $5",
        user.as_str(),
        &agents,
        &roles,
        from,
        limit,
        tx.tenant()?.0,
    )
    .fetch_all(tx.conn())
    .await?;
    found.into_iter().map(TryInto::try_into).collect()
}

/// A value that differs after a change of a tenant's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastChange {
    /// The time of the newest change.
    pub at: Option<OffsetDateTime>,
    /// The number of changes in the last ten seconds. It shows a change that commits late and is not the newest.
    pub recent: i64,
}

/// The last change of the requests of each of these tenants. Needs the system role. The query begins at the tenants'
/// keys, a table of few rows that is sharded like the requests: a tenant without a key has no requests, because their
/// arguments are sealed.
pub async fn list_last_changes(
    tx: &mut Tx,
    tenants: &[TenantId],
) -> Result<Vec<(TenantId, LastChange)>> {
    let ids: Vec<_> = tenants.iter().map(|tenant| tenant.0).collect();
    let rows = sqlx::query!(
        r#"select k.tenant_id as "tenant_id!",
                  (select max(a.changed_at) from approvals a where a.tenant_id = k.tenant_id) as last,
                  (select count(*) from approvals a
                   where a.tenant_id = k.tenant_id
                     and a.changed_at > statement_timestamp() - interval '10 seconds') as "fresh!"
           from (select distinct tenant_id from tenant_keys where tenant_id = any($1)) k"#,
        &ids,
    )
    .fetch_all(tx.conn())
    .await?;
    let found: HashMap<_, _> = rows
        .into_iter()
        .map(|row| {
            let change = LastChange {
                at: row.last,
                recent: row.fresh,
            };
            (row.tenant_id, change)
        })
        .collect();
    let change_of = |tenant: &TenantId| found.get(&tenant.0).copied().unwrap_or_default();
    Ok(tenants
        .iter()
        .map(|tenant| (*tenant, change_of(tenant)))
        .collect())
}
