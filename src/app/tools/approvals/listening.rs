//! Streams of approvals for one user. Each update is a state: a request as it is now, or how many requests wait.
//! Applying an update twice changes nothing. So a listener that resumes may get updates again (delivery is at least
//! once), and two changes of one request may arrive as one.
//!
//! Rows are found by the time of their change. A row that commits late has an earlier time than rows that were already
//! read, so each read overlaps the one before.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use serde::Serialize;
use time::OffsetDateTime;
use tokio::sync::watch;

use super::{App, approver_if_any, view, view::ApprovalView};
use domain::{
    approval::{Approval, Approver, State},
    error::Result,
    ids::ApprovalId,
    principal::Principal,
};
use store::{
    Tx,
    approvals::{ApprovalOwner, ApprovalSelection, Waiting},
};

/// How long a transaction may take to commit a change before a listener can miss it.
const OVERLAP: time::Duration = time::Duration::seconds(5);
/// Rows read at once.
const PAGE: i64 = 100;
/// How often a listener looks whether its user's roles have changed, by claims and packs in memory. Rows are read only
/// if they have, or when a request has changed: a listener to whom nothing happens costs no query.
const ROLES_CHECKED: Duration = Duration::from_secs(5);

/// How many requests concern a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Badge {
    /// Requests that wait for the user's decision.
    pub pending_approvals: i64,
    /// The user's own requests that are open.
    pub my_approval_requests: i64,
    /// For admins: changed and new tools that wait until somebody accepts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_tools: Option<i64>,
}

pub enum ApprovalUpdate {
    Badge(Badge),
    Approval(Box<ApprovalView>),
}

impl ApprovalUpdate {
    /// The id with which a client resumes the stream.
    pub fn id(&self) -> Option<String> {
        match self {
            Self::Badge(_) => None,
            Self::Approval(view) => {
                let micros = view.changed_at.unix_timestamp_nanos() / 1000;
                Some(format!("{micros}-{}", view.id))
            }
        }
    }
}

/// The stream of one listener.
pub struct ApprovalStream {
    app: Arc<App>,
    principal: Principal,
    is_admin: bool,
    changed: watch::Receiver<()>,
    /// The roles by which rows were read last.
    approver: Option<Approver>,
    /// The time of the newest change that was delivered.
    from: OffsetDateTime,
    /// The time of the next rows to read; `None` when all are read.
    unread_from: Option<OffsetDateTime>,
    /// The recently delivered changes, each with its time.
    delivered: HashMap<ApprovalId, OffsetDateTime>,
    badge: Option<Badge>,
    ready: VecDeque<ApprovalUpdate>,
}

/// Opens a stream that begins after the update with the id `last`, or without one with all open requests.
pub async fn listen(
    app: &Arc<App>,
    principal: &Principal,
    is_admin: bool,
    last: Option<&str>,
) -> Result<ApprovalStream> {
    // Subscribe before the first read, so that no change is missed.
    let changed = app.live.watch_approvals(principal.tenant);
    let mut listening = ApprovalStream {
        app: app.clone(),
        principal: principal.clone(),
        is_admin,
        changed,
        approver: None,
        from: OffsetDateTime::UNIX_EPOCH,
        unread_from: None,
        delivered: HashMap::new(),
        badge: None,
        ready: VecDeque::new(),
    };
    match last.and_then(time_of_id) {
        Some(time) => listening.from = time,
        None => listening.queue_open().await?,
    }
    listening.refresh().await?;
    Ok(listening)
}

/// The time in an id of [`ApprovalUpdate::id`]. The rest of the id only distinguishes changes of the same time.
pub fn time_of_id(id: &str) -> Option<OffsetDateTime> {
    let micros: i128 = id.split('-').next()?.parse().ok()?;
    OffsetDateTime::from_unix_timestamp_nanos(micros.checked_mul(1000)?).ok()
}

impl ApprovalStream {
    /// The next update; `None` when the process stops.
    pub async fn next(&mut self) -> Result<Option<ApprovalUpdate>> {
        loop {
            if let Some(update) = self.ready.pop_front() {
                return Ok(Some(update));
            }
            if let Some(from) = self.unread_from {
                self.read_page(from).await?;
                continue;
            }
            let is_changed = tokio::select! {
                // The sender stays in its map while there are listeners.
                changed = tokio::time::timeout(ROLES_CHECKED, self.changed.changed()) => changed.is_ok(),
                () = self.app.shutdown.cancelled() => return Ok(None),
            };
            if is_changed || self.has_other_roles().await? {
                self.refresh().await?;
            }
        }
    }

    /// Queues the open requests that concern the user, for a new listener.
    async fn queue_open(&mut self) -> Result<()> {
        let approver = approver_if_any(&self.app, &self.principal).await?;
        let page = |state| ApprovalSelection {
            state,
            limit: PAGE,
            ..ApprovalSelection::default()
        };
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        let mut open = Vec::new();
        for state in [State::Pending, State::Approved, State::Executing] {
            let own = ApprovalOwner::Requester(&self.principal.user);
            open.extend(store::approvals::list(&mut tx, own, page(Some(state))).await?);
        }
        if let Some(approver) = &approver {
            let undecided = ApprovalSelection {
                waiting: Some(Waiting::All),
                ..page(None)
            };
            open.extend(
                store::approvals::list(&mut tx, ApprovalOwner::Approver(approver), undecided)
                    .await?,
            );
        }
        let changed =
            store::approvals::list_last_changes(&mut tx, &[self.principal.tenant]).await?;
        let newest = changed.first().and_then(|(_, change)| change.at);
        self.from = newest.unwrap_or(OffsetDateTime::UNIX_EPOCH);
        drop(tx);
        open.sort_by_key(|approval| approval.changed_at);
        open.dedup_by_key(|approval| approval.id);
        self.queue(open).await
    }

    async fn has_other_roles(&self) -> Result<bool> {
        let now = approver_if_any(&self.app, &self.principal).await?;
        Ok(match (&now, &self.approver) {
            (Some(now), Some(before)) => !now.has_roles_of(before),
            (now, before) => now.is_some() != before.is_some(),
        })
    }

    /// Queues the counts, if they have changed, and the first page of changed rows.
    async fn refresh(&mut self) -> Result<()> {
        self.read_page(self.from.checked_sub(OVERLAP).unwrap_or(self.from))
            .await
    }

    async fn count(&self, tx: &mut Tx) -> Result<Badge> {
        let pending_approvals = match &self.approver {
            Some(approver) => store::approvals::count_undecided(tx, approver).await?,
            None => 0,
        };
        let changed_tools = if self.is_admin {
            let tenant = self.app.accounts.tenant(self.principal.tenant).await?;
            Some(store::pins::count_waiting(tx, tenant.agents.as_deref()).await?)
        } else {
            None
        };
        let user = &self.principal.user;
        Ok(Badge {
            changed_tools,
            pending_approvals,
            my_approval_requests: store::approvals::count_open_of_requester(tx, user).await?,
        })
    }

    /// Reads the counts and a page of changed rows. The next page is read after this one was delivered, so a listener
    /// that was away for long needs no more memory than any other.
    async fn read_page(&mut self, from: OffsetDateTime) -> Result<()> {
        self.approver = approver_if_any(&self.app, &self.principal).await?;
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        let badge = self.count(&mut tx).await?;
        let (user, approver) = (&self.principal.user, self.approver.as_ref());
        let found = store::approvals::list_changed(&mut tx, user, approver, from, PAGE).await?;
        drop(tx);
        if self.badge.replace(badge) != Some(badge) {
            self.ready.push_front(ApprovalUpdate::Badge(badge));
        }
        let is_last = usize::try_from(PAGE).is_ok_and(|page| found.len() < page);
        let last = found.last().filter(|_| !is_last);
        self.unread_from = last.map(|last| {
            if last.changed_at == from {
                from + time::Duration::microseconds(1)
            } else {
                last.changed_at
            }
        });
        self.queue(found).await?;
        let forget = self.from.checked_sub(OVERLAP * 2).unwrap_or(self.from);
        self.delivered.retain(|_, at| *at >= forget);
        Ok(())
    }

    /// Queues the changes that were not delivered yet.
    async fn queue(&mut self, mut found: Vec<Approval>) -> Result<()> {
        found.retain(|approval| self.delivered.get(&approval.id) != Some(&approval.changed_at));
        for approval in &found {
            self.delivered.insert(approval.id, approval.changed_at);
            self.from = self.from.max(approval.changed_at);
        }
        let views = view::build_views(&self.app, &self.principal, found).await?;
        self.ready.extend(
            views
                .into_iter()
                .map(|view| ApprovalUpdate::Approval(Box::new(view))),
        );
        Ok(())
    }
}
