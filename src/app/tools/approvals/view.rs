//! A request as the people whom it concerns see it.

use std::{collections::HashMap, sync::Arc};

use serde::Serialize;
use serde_json::value::RawValue;
use time::OffsetDateTime;

use super::{App, delivery, news, packs, power, standing};
use crate::{
    domain::{
        approval::{Approval, Choice, Recorded, State, Vote},
        canonical::Hex,
        error::Result,
        ids::{ApprovalId, ConversationId, UserId},
        pack::Pack,
        principal::Principal,
    },
    store::{self, Tx},
};

#[derive(Debug, Serialize)]
pub struct ApprovalView {
    pub id: ApprovalId,
    /// What people type.
    pub code: String,
    pub state: State,
    pub agent: String,
    pub server: String,
    pub tool: String,
    /// How the server describes the tool. The description is not verified.
    pub server_says: ServerSays,
    pub requester: Person,
    /// Exactly what runs when it is approved. Only when one request is looked at; absent when it is closed and its
    /// arguments were erased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<RawValue>>,
    /// SHA-256 over the canonical arguments (RFC 8785), in hex; a decision repeats it.
    pub args_sha256: String,
    /// The roles that may decide.
    pub approvers: Vec<String>,
    /// How many people must approve.
    pub min_approvals: u32,
    /// Whether its requester may decide it, holding one of the roles.
    pub self_approval: bool,
    pub votes: Vec<VoteView>,
    /// Whether the caller may decide it now.
    pub decidable: bool,
    /// Whether the caller made it.
    pub own: bool,
    /// Where its outcome is told; only its requester sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<ConversationId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<UserId>,
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub decided_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// From this moment on it cannot be approved.
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub changed_at: OffsetDateTime,
    #[serde(
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub finished_at: Option<OffsetDateTime>,
    /// What arrived after the outcome was given up for unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recorded>,
    /// Its state, in words for the caller.
    pub text: String,
    /// The address of the request, for people.
    pub link: String,
}

/// A server's own words. Nobody has checked them, so that no heading or sentence of ours is made of them.
#[derive(Debug, Serialize)]
pub struct ServerSays {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub description: String,
    /// Such as `destructiveHint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<serde_json::Value>,
}

#[derive(Debug, Serialize)]
pub struct Person {
    pub user: UserId,
    pub name: String,
}

#[derive(Debug, Serialize)]
pub struct VoteView {
    pub by: UserId,
    pub decision: Choice,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Of an approval while the request waits: whether it counts. The vote of somebody who is gone does not, nor does the
    /// second one of ids that look the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<bool>,
}

/// Requests with what was said about them, for `reader`.
pub(super) async fn of(
    app: &App,
    reader: &Principal,
    approvals: Vec<Approval>,
) -> Result<Vec<ApprovalView>> {
    if approvals.is_empty() {
        return Ok(Vec::new());
    }
    let power = power(app, reader).await?;
    let mut tx = app.db.tenant(reader.tenant).await?;
    let packs = packs(app, reader.tenant).await?;
    let mut votes = votes_by_request(&mut tx, &packs, &approvals).await?;
    let now = tx.now().await?;
    drop(tx);
    let view = |approval: Approval| {
        let votes = votes.remove(&approval.id).unwrap_or_default();
        let open = approval.state == State::Pending && now < approval.expires_at;
        let spoken = votes
            .iter()
            .any(|vote| vote.by == reader.user && vote.counts != Some(false));
        let decidable = open
            && !spoken
            && power
                .as_ref()
                .is_some_and(|power| power.may_decide(&approval));
        build_view(app, reader, approval, votes, decidable)
    };
    Ok(approvals.into_iter().map(view).collect())
}

async fn votes_by_request(
    tx: &mut Tx,
    packs: &[Arc<Pack>],
    approvals: &[Approval],
) -> Result<HashMap<ApprovalId, Vec<VoteView>>> {
    let ids: Vec<_> = approvals.iter().map(|approval| approval.id).collect();
    let given = store::approvals::votes(tx, &ids).await?;
    let pending: Vec<&Approval> = approvals
        .iter()
        .filter(|approval| approval.state == State::Pending)
        .collect();
    let is_pending = |vote: &Vote| pending.iter().any(|request| request.id == vote.approval);
    let open: Vec<Vote> = given
        .iter()
        .filter(|vote| is_pending(vote))
        .cloned()
        .collect();
    let counted = standing::counted_votes(tx, packs, &pending, &open).await?;
    let mut votes: HashMap<_, Vec<_>> = HashMap::new();
    for vote in given {
        let counts = (vote.choice == Choice::Approve && is_pending(&vote)).then(|| {
            counted
                .iter()
                .any(|other| other.approval == vote.approval && other.by() == vote.by())
        });
        votes.entry(vote.approval).or_default().push(VoteView {
            by: vote.by().clone(),
            decision: vote.choice,
            reason: vote.reason,
            at: vote.at,
            counts,
        });
    }
    Ok(votes)
}

fn build_view(
    app: &App,
    reader: &Principal,
    approval: Approval,
    votes: Vec<VoteView>,
    decidable: bool,
) -> ApprovalView {
    let own = reader.user == *approval.requester();
    let about = approval.about.clone().cleaned();
    let mut text = delivery::said(app, &approval, reader);
    if approval.state == State::Pending && approval.consent.min_approvals > 1 {
        let given = votes
            .iter()
            .filter(|vote| vote.counts == Some(true))
            .count();
        text.push(' ');
        text.push_str(&delivery::counted_votes(app, &approval, reader, given));
    }
    ApprovalView {
        text,
        link: news::link(app, approval.id),
        id: approval.id,
        code: approval.code,
        state: approval.state,
        agent: approval.agent.to_string(),
        server: approval.server.to_string(),
        tool: approval.tool,
        server_says: ServerSays {
            title: about.title,
            description: about.description,
            hints: about.annotations,
        },
        requester: Person {
            user: approval.principal.user.clone(),
            name: approval.requester_name.clone(),
        },
        arguments: None,
        args_sha256: Hex(approval.args_sha256).to_string(),
        approvers: approval.consent.approvers,
        min_approvals: approval.consent.min_approvals,
        self_approval: approval.consent.self_approval,
        votes,
        decidable,
        own,
        conversation_id: approval.conversation.filter(|_| own),
        reason: approval.reason,
        decided_by: approval.decided_by,
        decided_at: approval.decided_at,
        created_at: approval.created_at,
        expires_at: approval.expires_at,
        changed_at: approval.changed_at,
        finished_at: approval.finished_at,
        evidence: approval.evidence,
        recorded: approval.recorded,
    }
}
