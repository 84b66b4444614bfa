//! Decisions about requests: votes, taking a request back, revoking requests whose call has changed, and records about
//! calls of unknown outcome. It also says which votes count. That is asked when a vote arrives, and again before the
//! call is sent.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::app::{
    App,
    accounts::newest_claims,
    tools::approvals::{
        AuditedStep, audit, closed_reason,
        delivery::{self, OutcomeMessage, REASON},
        execution::{self, Recheck},
        name_of, publish_outcome, refusal, served_packs, time_of, unknown_request,
    },
};
use domain::{
    approval::{Approval, Approver, Choice, Kind, State, Vote},
    audit::SYSTEM,
    canonical::Hash,
    error::{Error, ErrorCode, Result},
    hidden::one_line,
    ids::{ApprovalId, TenantId, UserId},
    lookalike::{are_lookalikes, skeleton, spell_out},
    pack::Pack,
    principal::Principal,
    session::{ActKind, PastAct},
};
use store::{
    Tx,
    approvals::{ApprovalOwner, ApprovalSelection, Transition, TransitionGuard},
};

/// An approver's decision about a request.
pub struct Ballot {
    pub choice: Choice,
    pub reason: Option<String>,
    /// The hash of the arguments that the approver saw.
    pub args_sha256: Hash,
}

/// Records a decision.
pub async fn decide(
    app: &Arc<App>,
    approver: &Approver,
    id: ApprovalId,
    ballot: Ballot,
) -> Result<Approval> {
    let decision = PreparedDecision::new(app, approver, id, ballot).await?;
    let mut tx = app.db.tenant(approver.tenant()).await?;
    let change = decision.write(app, &mut tx).await?;
    tx.commit().await?;
    change.publish(app).into_result()
}

/// A decision with what must be known before its transaction begins.
pub(super) struct PreparedDecision {
    approver: Approver,
    id: ApprovalId,
    ballot: Ballot,
    packs: Vec<Arc<Pack>>,
    /// Why the request must not be approved.
    obstacle: Option<String>,
}

/// What a transaction does to a request. It is published after the commit.
pub(super) struct RequestChange {
    approval: Approval,
    delivered: Option<OutcomeMessage>,
    /// Why the request was ended instead of decided.
    refusal: Option<Error>,
    /// Whether the request was changed at all.
    is_new: bool,
}

impl RequestChange {
    fn new(approval: Approval, delivered: Option<OutcomeMessage>) -> Self {
        Self {
            approval,
            delivered,
            refusal: None,
            is_new: true,
        }
    }

    /// The request stays as it is.
    pub fn none(approval: Approval) -> Self {
        Self {
            is_new: false,
            ..Self::new(approval, None)
        }
    }

    /// Publishes the change after its commit. A call that is approved by it is made.
    pub fn publish(mut self, app: &Arc<App>) -> Self {
        if self.is_new {
            publish_outcome(app, &self.approval, self.delivered.take());
            if self.approval.state == State::Approved {
                // The receiver lives as long as the process works; after that, another replica finds the request.
                let due = (self.approval.tenant, self.approval.id);
                let _ = app.due_approvals.send(due);
            }
        }
        self
    }

    /// The request as it stands after the change.
    pub fn into_approval(self) -> Approval {
        self.approval
    }

    fn into_result(self) -> Result<Approval> {
        self.refusal.map_or(Ok(self.approval), Err)
    }
}

impl PreparedDecision {
    pub async fn new(
        app: &Arc<App>,
        approver: &Approver,
        id: ApprovalId,
        ballot: Ballot,
    ) -> Result<Self> {
        Ok(Self {
            obstacle: precheck(app, approver, id, &ballot).await?,
            packs: served_packs(app, approver.tenant()).await?,
            approver: approver.clone(),
            id,
            ballot,
        })
    }

    /// Writes the decision. The row is locked first, and everything that counts is read after that: waiting for the lock
    /// may have lasted past the expiry. After an error nothing was written.
    pub async fn write(&self, app: &Arc<App>, tx: &mut Tx) -> Result<RequestChange> {
        let Self {
            approver,
            id,
            ballot,
            packs,
            obstacle,
        } = self;
        let id = *id;
        let approval = lock(tx, approver, id, ballot).await?;
        let votes = store::approvals::list_votes(tx, &[id]).await?;
        let mine = votes.iter().find(|vote| vote.by() == approver.user());
        let counted = count_votes(tx, packs, &[&approval], &votes).await?;
        // An approval that no longer counts can be given again, or turned into a rejection.
        let is_void = |vote: &Vote| {
            approval.state == State::Pending && !counted.iter().any(|other| other.by() == vote.by())
        };
        if let Some(mine) = mine.filter(|mine| !is_void(mine)) {
            return repeat_vote(approval, mine, ballot).map(RequestChange::none);
        }
        if !store::approvals::is_live(tx, id).await? {
            return Err(Error::conflict(
                ErrorCode::AlreadyDecided,
                closed_reason(&approval),
            ));
        }
        if let Some(reason) = obstacle {
            let revoked = revoke(app, tx, &approval, reason).await?;
            let refusal = format!(
                "{} cannot be approved any more and was revoked: {reason}",
                approval.code
            );
            return Ok(RequestChange {
                refusal: Some(Error::conflict(ErrorCode::ApprovalRevoked, refusal)),
                ..revoked
            });
        }
        let approver = &approver_now(tx, packs, approver, &approval).await?;
        if !approver.may_decide(&approval) {
            return Err(refusal(approver, &approval));
        }
        if ballot.choice == Choice::Approve {
            refuse_lookalike(approver, &approval, &counted)?;
        }
        let vote = Vote {
            approval: id,
            voter: approver.principal().clone(),
            choice: ballot.choice,
            reason: ballot.reason.as_deref().map(|said| one_line(said, REASON)),
            at: app.clock.now(),
        };
        store::approvals::add_vote(tx, approver.tenant(), &vote).await?;
        let enough = are_enough(counted.len() + 1, &approval);
        let (to, action) = outcome_of(ballot.choice, enough);
        let (approval, delivered) = match to {
            Some(to) => apply_vote(app, tx, id, to, &vote, approver.name()).await?,
            None => (get(tx, id, &approval.code).await?, None),
        };
        let (by, reason) = (approver.user(), vote.reason.as_deref());
        let step = AuditedStep::new(action, by).because(reason);
        audit(app, tx, &approval, step).await?;
        Ok(RequestChange::new(approval, delivered))
    }
}

/// The state after a vote, if the vote changes it, and the name of the vote in the audit trail.
fn outcome_of(choice: Choice, enough: bool) -> (Option<State>, &'static str) {
    match choice {
        Choice::Reject => (Some(State::Rejected), "approval.rejected"),
        Choice::Approve => (enough.then_some(State::Approved), "approval.approved"),
    }
}

async fn get(tx: &mut Tx, id: ApprovalId, name: &str) -> Result<Approval> {
    let approval = store::approvals::get(tx, id).await?;
    approval.ok_or_else(|| unknown_request(name))
}

/// Locks the row and reads it. Refuses an approver who may not decide, and one who saw other arguments.
async fn lock(
    tx: &mut Tx,
    approver: &Approver,
    id: ApprovalId,
    ballot: &Ballot,
) -> Result<Approval> {
    store::approvals::lock(tx, id).await?;
    let approval = get(tx, id, &id.to_string()).await?;
    if !approver.may_decide(&approval) {
        return Err(refusal(approver, &approval));
    }
    if ballot.args_sha256 != approval.args_sha256 {
        return Err(other_arguments(&approval));
    }
    let is_confirmation = approval.rule.kind() == Kind::Confirmation;
    if is_confirmation && ballot.choice == Choice::Approve && ballot.reason.is_some() {
        let why = "goes with declining only; nothing is decided, confirm without words or decline with them";
        return Err(Error::invalid("reason", why));
    }
    Ok(approval)
}

/// The error for a decision about other arguments than those of the request.
pub(super) fn other_arguments(approval: &Approval) -> Error {
    let why = format!(
        "these are not the arguments of {}; look at it again and decide anew",
        approval.code
    );
    Error::conflict(ErrorCode::ArgumentsChanged, why)
}

/// Answers a second vote of the same person: the same vote changes nothing, and another vote is refused.
fn repeat_vote(approval: Approval, mine: &Vote, ballot: &Ballot) -> Result<Approval> {
    if mine.choice == ballot.choice {
        return Ok(approval);
    }
    Err(Error::conflict(
        ErrorCode::AlreadyVoted,
        format!(
            "you {} {} at {}",
            mine.choice.done(approval.rule.kind()),
            approval.code,
            time_of(mine.at)
        ),
    ))
}

/// Why a pending request must not be approved. Called before the row is locked, because it may ask the server.
async fn precheck(
    app: &Arc<App>,
    approver: &Approver,
    id: ApprovalId,
    ballot: &Ballot,
) -> Result<Option<String>> {
    if ballot.choice == Choice::Reject {
        return Ok(None);
    }
    let mut tx = app.db.tenant(approver.tenant()).await?;
    let approval = store::approvals::get(&mut tx, id).await?;
    drop(tx);
    match approval
        .filter(|approval| approval.state == State::Pending && approver.may_decide(approval))
    {
        Some(approval) => {
            // It stays: what cannot be read now can be rejected, or approved once it was restored.
            execution::open_arguments(app, &approval).await?;
            execution::find_obstacle(app, &approval).await
        }
        None => Ok(None),
    }
}

/// Refuses an approval with which one person could count as two: the approver's id looks like that of another voter,
/// or like that of a requester who may not approve their own request.
fn refuse_lookalike(approver: &Approver, approval: &Approval, counted: &[Vote]) -> Result<()> {
    let me = approver.user().as_str();
    let requester = approval.requester().as_str();
    let (other, did) = if !approval.rule.self_approval && are_lookalikes(me, requester) {
        (requester, "asked for it")
    } else {
        let same = counted
            .iter()
            .find(|vote| are_lookalikes(me, vote.by().as_str()));
        let Some(same) = same else { return Ok(()) };
        (same.by().as_str(), "has approved it already")
    };
    Err(Error::conflict(
        ErrorCode::LookalikeUser,
        format!(
            "your user id {} looks like {}, whose owner {did}, so {} wants the approval of somebody else",
            spell_out(me),
            spell_out(other),
            approval.code
        ),
    ))
}

/// Takes back the principal's own request.
pub async fn cancel(app: &Arc<App>, principal: &Principal, id: ApprovalId) -> Result<Approval> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let change = write_cancel(app, &mut tx, principal, id).await?;
    tx.commit().await?;
    change.publish(app).into_result()
}

/// The same in a transaction. After an error nothing was written.
pub(super) async fn write_cancel(
    app: &Arc<App>,
    tx: &mut Tx,
    principal: &Principal,
    id: ApprovalId,
) -> Result<RequestChange> {
    store::approvals::lock(tx, id).await?;
    let approval = store::approvals::get(tx, id)
        .await?
        .filter(|found| *found.requester() == principal.user);
    let approval = approval.ok_or_else(|| unknown_request(&id.to_string()))?;
    if approval.state == State::Cancelled {
        return Ok(RequestChange::none(approval));
    }
    if !store::approvals::is_live(tx, id).await? {
        return Err(Error::conflict(
            ErrorCode::AlreadyDecided,
            closed_reason(&approval),
        ));
    }
    let vote = Vote {
        approval: id,
        voter: principal.clone(),
        choice: Choice::Reject,
        reason: None,
        at: app.clock.now(),
    };
    let name = principal.display_name();
    let (approval, delivered) = apply_vote(app, tx, id, State::Cancelled, &vote, &name).await?;
    let step = AuditedStep::new("approval.cancelled", &principal.user);
    audit(app, tx, &approval, step).await?;
    Ok(RequestChange::new(approval, delivered))
}

/// Revokes the pending requests that a user may no longer make, by their newest claims.
pub async fn revoke_unpermitted(app: &Arc<App>, tenant: TenantId, user: &UserId) -> Result<()> {
    let page = ApprovalSelection {
        state: Some(State::Pending),
        limit: i64::from(app.config.approvals_per_tenant),
        ..ApprovalSelection::default()
    };
    let mut tx = app.db.tenant(tenant).await?;
    let waiting = store::approvals::list(&mut tx, ApprovalOwner::Requester(user), page).await?;
    drop(tx);
    for approval in waiting {
        let reason = match execution::permitted_server(app, &approval).await {
            Ok(Recheck::Outdated(reason)) => reason,
            // Of what cannot be read nothing can be said. It is not approved before it can be.
            Ok(Recheck::Permitted(_) | Recheck::RulesUnknown)
            | Err(Error::KeysUnreadable | Error::Conflict(ErrorCode::ArgumentsUnreadable, _)) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut tx = app.db.tenant(tenant).await?;
        store::approvals::lock(&mut tx, approval.id).await?;
        match revoke(app, &mut tx, &approval, &reason).await {
            Ok(revoked) => {
                tx.commit().await?;
                revoked.publish(app);
            }
            // It was decided meanwhile; the execution checks again.
            Err(Error::Conflict(..)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Ends a pending request whose call has changed. The caller has locked it in this transaction.
async fn revoke(
    app: &Arc<App>,
    tx: &mut Tx,
    approval: &Approval,
    reason: &str,
) -> Result<RequestChange> {
    let (from, to, when) = (State::Pending, State::Revoked, TransitionGuard::Locked);
    let change = Transition {
        from,
        to,
        when,
        reason: Some(reason),
        by: None,
        window: Duration::ZERO,
    };
    let ended = store::approvals::change(tx, approval.id, &change).await?;
    let ended =
        ended.ok_or_else(|| Error::conflict(ErrorCode::AlreadyDecided, closed_reason(approval)))?;
    let delivered = delivery::deliver(app, tx, &ended, None).await?;
    let program = UserId(SYSTEM.into());
    let step = AuditedStep::new("approval.revoked", &program).because(Some(reason));
    audit(app, tx, &ended, step).await?;
    Ok(RequestChange::new(ended, delivered))
}

/// Makes the transition that a vote causes.
pub(super) async fn apply_vote(
    app: &Arc<App>,
    tx: &mut Tx,
    id: ApprovalId,
    to: State,
    vote: &Vote,
    name: &str,
) -> Result<(Approval, Option<OutcomeMessage>)> {
    let change = Transition {
        from: State::Pending,
        to,
        when: TransitionGuard::Locked,
        reason: vote.reason.as_deref(),
        by: Some((vote.by(), name)),
        window: app.config.approval_window,
    };
    let approval = store::approvals::change(tx, id, &change).await?;
    let approval = approval.ok_or_else(|| {
        Error::conflict(
            ErrorCode::AlreadyDecided,
            "it was decided meanwhile; look again",
        )
    })?;
    let delivered = if to.is_open() {
        None
    } else {
        delivery::deliver(app, tx, &approval, None).await?
    };
    Ok((approval, delivered))
}

/// Records what really happened to a call of unknown outcome. This changes no state and runs nothing.
pub async fn record(
    app: &Arc<App>,
    approver: &Approver,
    id: ApprovalId,
    happened: bool,
    note: Option<&str>,
) -> Result<Approval> {
    let mut tx = app.db.tenant(approver.tenant()).await?;
    store::approvals::lock(&mut tx, id).await?;
    let approval = store::approvals::get(&mut tx, id)
        .await?
        .ok_or_else(|| unknown_request(&id.to_string()))?;
    if !approver.holds_role_for(&approval) && !approval.asks_requester(approver.user()) {
        return Err(refusal(approver, &approval));
    }
    if let Some(recorded) = &approval.recorded {
        if recorded.by == *approver.user() && recorded.happened == happened {
            return Ok(approval);
        }
        let (by, at) = (name_of(&approval, &recorded.by), time_of(recorded.at));
        return Err(Error::conflict(
            ErrorCode::OutcomeKnown,
            format!("{by} recorded what happened to {} at {at}", approval.code),
        ));
    }
    let note = note.map(|note| one_line(note, REASON));
    let user = approver.user();
    let recorded =
        store::approvals::record_outcome(&mut tx, id, happened, note.as_deref(), user).await?;
    let recorded = recorded.ok_or_else(|| {
        Error::conflict(
            ErrorCode::OutcomeKnown,
            format!(
                "{}; only an unknown outcome can be recorded",
                closed_reason(&approval)
            ),
        )
    })?;
    let delivered = delivery::deliver(app, &mut tx, &recorded, None).await?;
    let detail = if happened {
        "it was carried out"
    } else {
        "it was not carried out"
    };
    let step = AuditedStep::new("approval.recorded", approver.user()).because(Some(detail));
    audit(app, &mut tx, &recorded, step).await?;
    tx.commit().await?;
    publish_outcome(app, &recorded, delivered);
    Ok(recorded)
}

/// The approvals among the votes that count. Since their vote, their voters were not signed out by others, blocked or
/// deleted; their issuers or keys are still valid; and by their newest claims they may decide the request. Voters
/// whose ids look the same count as one person.
pub(super) async fn count_votes(
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
                let decider = voter.decider(packs, request);
                decider.is_ok_and(|decider| decider.may_decide(request))
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

/// What the votes on a request come to, as its texts say it.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// How many have approved it; of a pending request, as far as they count.
    pub given: usize,
    /// What to call those who have approved a request that is no longer pending, where it needed more than one.
    pub names: Vec<String>,
    /// Whether the reader's approval would be the last one.
    pub is_last: bool,
}

/// The votes on some requests, and what they come to.
pub(super) struct CountedVotes {
    pub all: Vec<Vote>,
    /// The approvals of pending requests that count.
    pub counted: Vec<Vote>,
    tallies: HashMap<ApprovalId, Tally>,
}

impl CountedVotes {
    /// The tally of a request, for a reader who may decide it or not.
    pub fn tally(&self, approval: &Approval, may_decide: bool) -> Tally {
        let tally = self.tallies.get(&approval.id).cloned().unwrap_or_default();
        Tally {
            is_last: may_decide && are_enough(tally.given + 1, approval),
            ..tally
        }
    }
}

/// Reads the votes on some requests. Of pending ones the packs say which count.
pub(super) async fn read_votes(
    tx: &mut Tx,
    packs: &[Arc<Pack>],
    approvals: &[&Approval],
) -> Result<CountedVotes> {
    let ids: Vec<_> = approvals.iter().map(|approval| approval.id).collect();
    let all = store::approvals::list_votes(tx, &ids).await?;
    let (pending, decided): (Vec<&Approval>, Vec<&Approval>) = approvals
        .iter()
        .partition(|approval| approval.state == State::Pending);
    let is_of = |vote: &Vote, requests: &[&Approval]| {
        requests.iter().any(|request| request.id == vote.approval)
    };
    let open = all.iter().filter(|vote| is_of(vote, &pending)).cloned();
    let open: Vec<Vote> = open.collect();
    let counted = count_votes(tx, packs, &pending, &open).await?;
    let several = decided
        .iter()
        .copied()
        .filter(|request| request.rule.min_approvals > 1);
    let several: Vec<_> = several.collect();
    let approves = |vote: &&Vote| vote.choice == Choice::Approve;
    let voters: Vec<UserId> = all
        .iter()
        .filter(approves)
        .filter(|vote| is_of(vote, &several))
        .map(|vote| vote.by().clone())
        .collect();
    let people = if voters.is_empty() {
        Vec::new()
    } else {
        store::users::list_principals(tx, &voters).await?
    };
    let mut tallies = HashMap::<_, Tally>::new();
    for vote in &counted {
        tallies.entry(vote.approval).or_default().given += 1;
    }
    for request in decided {
        let given = all.iter().filter(approves);
        let given: Vec<_> = given.filter(|vote| vote.approval == request.id).collect();
        let names = given.iter().map(|vote| {
            let person = people.iter().find(|person| person.user == *vote.by());
            match person.filter(|_| request.decided_by.as_ref() != Some(vote.by())) {
                Some(person) => person.display_name(),
                None => name_of(request, vote.by()),
            }
        });
        let tally = Tally {
            given: given.len(),
            names: if request.rule.min_approvals > 1 {
                names.collect()
            } else {
                Vec::new()
            },
            is_last: false,
        };
        tallies.insert(request.id, tally);
    }
    Ok(CountedVotes {
        all,
        counted,
        tallies,
    })
}

/// Whether this many approvals satisfy the policy.
pub(super) fn are_enough(count: usize, approval: &Approval) -> bool {
    count >= usize::try_from(approval.rule.min_approvals).unwrap_or(usize::MAX)
}

/// Whether an approved request is still approved by enough people.
pub(super) async fn is_approved(
    tx: &mut Tx,
    packs: &[Arc<Pack>],
    approval: &Approval,
) -> Result<bool> {
    let votes = store::approvals::list_votes(tx, &[approval.id]).await?;
    let counted = count_votes(tx, packs, &[approval], &votes).await?;
    Ok(are_enough(counted.len(), approval))
}

/// A voter with their newest claims, read in this transaction.
pub(super) async fn approver_now(
    tx: &mut Tx,
    packs: &[Arc<Pack>],
    approver: &Approver,
    approval: &Approval,
) -> Result<Approver> {
    let act = PastAct {
        who: approver.principal(),
        at: tx.now().await?,
        kind: ActKind::Request,
    };
    match newest_claims::current(tx, act).await? {
        Ok(now) => now.decider(packs, approval),
        Err(end) => Err(Error::Unauthenticated(end.refusal().to_owned())),
    }
}
