//! Changes of the state of a request, each with the old state as its guard.

use std::time::Duration;

use super::rows;
use crate::Tx;
use domain::{
    approval::{Approval, State},
    error::{Error, Result},
    ids::{ApprovalId, UserId},
};

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

impl TransitionGuard {
    /// Its word in the statement, and the fence.
    fn columns(self) -> (&'static str, i64) {
        match self {
            Self::Locked => ("locked", 0),
            Self::Overdue => ("overdue", 0),
            Self::Stale => ("stale", 0),
            Self::Lost => ("lost", 0),
            Self::Held(fence) => ("held", fence),
        }
    }
}

/// A transition, with what belongs to it.
pub struct Transition<'a> {
    pub from: State,
    pub to: State,
    pub when: TransitionGuard,
    pub reason: Option<&'a str>,
    /// The person who does it, and what to call them.
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
    let (when, fence) = when.columns();
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
        from.into_str(),
        to.into_str(),
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
