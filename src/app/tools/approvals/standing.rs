//! Which votes count: of those who still stand, asked when a vote arrives and again when the call is about to be sent.

use std::sync::Arc;

use crate::{
    app::accounts::newest_claims,
    domain::{
        approval::{Approval, Approver, Choice, Vote},
        error::{Error, Result},
        lookalike::skeleton,
        pack::Pack,
        session::{ActKind, PastAct},
    },
    store::{self, Tx},
};

/// The approvals among the votes that count. Their givers were not signed out by others, blocked or deleted since, whoever
/// vouched for them still does, and they may decide the request by their newest claims. Those whose ids look the same
/// are one person.
pub(super) async fn counted_votes(
    tx: &mut Tx,
    packs: &[Arc<Pack>],
    approvals: &[&Approval],
    votes: &[Vote],
) -> Result<Vec<Vote>> {
    let given: Vec<&Vote> = votes
        .iter()
        .filter(|vote| vote.choice == Choice::Approve)
        .collect();
    if given.is_empty() {
        return Ok(Vec::new());
    }
    let acts: Vec<PastAct<'_>> = given.iter().map(|vote| vote.as_act()).collect();
    let judged = newest_claims::judge(tx, &acts).await?;
    let mut counted: Vec<Vote> = Vec::new();
    for (vote, standing) in given.into_iter().zip(judged) {
        let request = approvals.iter().find(|request| request.id == vote.approval);
        let may_decide = request.is_some_and(|request| {
            standing.is_ok_and(|voter| {
                voter
                    .approver(packs)
                    .is_ok_and(|approver| approver.may_decide(request))
            })
        });
        let look = skeleton(vote.by().as_str());
        let is_new = !counted
            .iter()
            .any(|other| other.approval == vote.approval && skeleton(other.by().as_str()) == look);
        if may_decide && is_new {
            counted.push(vote.clone());
        }
    }
    Ok(counted)
}

/// Whether so many approvals are what the policy wants.
pub(super) fn are_enough(count: usize, approval: &Approval) -> bool {
    count >= usize::try_from(approval.consent.min_approvals).unwrap_or(usize::MAX)
}

/// Whether an approved request is still approved by enough people.
pub(super) async fn is_approved(
    tx: &mut Tx,
    packs: &[Arc<Pack>],
    approval: &Approval,
) -> Result<bool> {
    let votes = store::approvals::votes(tx, &[approval.id]).await?;
    let counted = counted_votes(tx, packs, &[approval], &votes).await?;
    Ok(are_enough(counted.len(), approval))
}

/// Somebody who is about to vote, as they are in this transaction.
pub(super) async fn approver_now(
    tx: &mut Tx,
    packs: &[Arc<Pack>],
    approver: &Approver,
) -> Result<Approver> {
    let act = PastAct {
        who: approver.principal(),
        at: tx.now().await?,
        kind: ActKind::Request,
    };
    match newest_claims::current(tx, act).await? {
        Ok(now) => now.approver(packs),
        Err(end) => Err(Error::Unauthenticated(end.refusal().to_owned())),
    }
}
