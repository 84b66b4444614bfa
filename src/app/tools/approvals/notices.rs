//! Notices for approvers: a request of another person waits for them, or a call that they approved has ended. A notice
//! names a request without its arguments, so it does not count as shown for `/approve`. No model reads a notice.
//!
//! An approver gets notices in two ways:
//! - A [`NoticeStream`] belongs to each open conversation. It tells the present state, so nothing is stored, and a page
//!   that is loaded again is told again of what still waits.
//! - A client that keeps its own transcript listens to nothing. So [`append_untold`] writes a message before the client's
//!   question, which stands at the head of the answer: once for each request and person, wherever they chat.

use std::{collections::HashSet, sync::Arc, time::Duration};

use serde::Serialize;
use time::OffsetDateTime;
use tokio::sync::watch;

use super::{
    App, approver_if_any,
    decision::{self, CountedVotes},
    delivery::state_text,
    link, link_to_list, served_packs,
};
use domain::{
    approval::{Approval, Approver, Choice},
    error::Result,
    ids::{ApprovalId, ConversationId},
    message::{Part, Role},
    pack::Pack,
    principal::Principal,
    texts::{self, Key},
};
use store::{
    Tx,
    approvals::{ApprovalOwner, ApprovalSelection, Waiting},
    messages::NewMessage,
};

/// Requests that are read at once. Of more the number is told.
const PAGE: i64 = 100;
/// Outcomes that a notice tells in words. Of more it names the codes.
const IN_WORDS: usize = 3;
/// Codes that a notice names.
const CODES: usize = 10;
/// How long changes are gathered into one notice.
const GATHER: Duration = Duration::from_millis(200);
/// How long a transaction may take to commit a change before a stream can miss it.
const OVERLAP: time::Duration = time::Duration::seconds(5);

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoticeCode {
    /// Requests wait for the reader's decision.
    ApprovalWaits,
    /// Calls that the reader approved have ended.
    ApprovedCallEnded,
}

impl NoticeCode {
    /// The code of the part that a conversation keeps.
    fn as_str(self) -> &'static str {
        match self {
            Self::ApprovalWaits => "approval_waits",
            Self::ApprovedCallEnded => "approved_call_ended",
        }
    }
}

/// An approver is told something about requests of other people.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ApprovalNotice {
    pub code: NoticeCode,
    /// In the reader's language.
    pub text: String,
    /// How many requests it is about.
    pub count: i64,
    /// The request that the text names, if it names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalId>,
    /// The address of the request, or of the list if there are several.
    pub link: String,
}

impl ApprovalNotice {
    /// Whether a part is a notice for an approver.
    pub fn is_in(part: &Part) -> bool {
        let codes = [NoticeCode::ApprovalWaits, NoticeCode::ApprovedCallEnded];
        matches!(part, Part::Notice { code, .. } if codes.iter().any(|own| own.as_str() == code))
    }

    /// The notice as a part of a message, which has no field for the address.
    fn part(self) -> Part {
        Part::Notice {
            code: self.code.as_str().to_owned(),
            text: format!("{}\n{}", self.text, self.link),
        }
    }
}

/// An approver who gets notices.
pub struct Reader {
    approver: Approver,
    /// They say which approvals of a request count.
    packs: Vec<Arc<Pack>>,
}

/// The approver who gets notices, if the principal is one. A key that names no person gets none: many people may read
/// its answers.
pub async fn reader(app: &App, principal: &Principal) -> Result<Option<Reader>> {
    if principal.names_nobody() {
        return Ok(None);
    }
    let Some(approver) = approver_if_any(app, principal).await? else {
        return Ok(None);
    };
    let packs = served_packs(app, principal.tenant).await?;
    Ok(Some(Reader { approver, packs }))
}

/// Writes what the approver was not told yet into a conversation whose lock the caller holds, and returns whether there
/// was something.
pub async fn append_untold(
    app: &App,
    tx: &mut Tx,
    reader: &Reader,
    conversation: ConversationId,
) -> Result<bool> {
    let approver = &reader.approver;
    let mut waiting = list_waiting(tx, approver, Waiting::Untold).await?;
    if !waiting.is_empty() {
        let ids: Vec<_> = waiting.iter().map(|request| request.id).collect();
        let claimed = store::approvals::claim_waiting(tx, approver.user(), &ids).await?;
        waiting.retain(|request| claimed.contains(&request.id));
    }
    let count = match waiting.len() {
        0 | 1 => waiting.len().try_into().unwrap_or_default(),
        _ => count_waiting(tx, approver, &waiting).await?,
    };
    let ended = store::approvals::claim_outcomes(tx, approver).await?;
    let votes = read_votes(tx, reader, &waiting, &ended).await?;
    let notices = [
        tell_ended(app, approver.principal(), &ended, &votes),
        tell_waiting(app, approver.principal(), &waiting, &votes, count),
    ];
    let parts: Vec<_> = notices
        .into_iter()
        .flatten()
        .map(ApprovalNotice::part)
        .collect();
    if parts.is_empty() {
        return Ok(false);
    }
    let message = NewMessage {
        run: None,
        run_ordinal: 0,
        role: Role::System,
        parts: &parts,
        for_model: false,
    };
    store::messages::append(tx, approver.tenant(), conversation, message).await?;
    Ok(true)
}

/// The requests that wait for the approver, the oldest first.
async fn list_waiting(tx: &mut Tx, reader: &Approver, waiting: Waiting) -> Result<Vec<Approval>> {
    let page = ApprovalSelection {
        waiting: Some(waiting),
        oldest_first: true,
        limit: PAGE,
        ..ApprovalSelection::default()
    };
    store::approvals::list(tx, ApprovalOwner::Approver(reader), page).await
}

/// How many requests wait: those that were read, or all if there may be more.
async fn count_waiting(tx: &mut Tx, reader: &Approver, read: &[Approval]) -> Result<i64> {
    let count = i64::try_from(read.len()).unwrap_or(i64::MAX);
    if count < PAGE {
        return Ok(count);
    }
    store::approvals::count_undecided(tx, reader).await
}

/// Reads the votes on requests that a notice tells in words.
async fn read_votes(
    tx: &mut Tx,
    reader: &Reader,
    waiting: &[Approval],
    ended: &[Approval],
) -> Result<CountedVotes> {
    let in_words = [(waiting, 1), (ended, IN_WORDS)];
    let in_words = in_words
        .iter()
        .filter(|(requests, most)| requests.len() <= *most);
    let requests: Vec<_> = in_words.flat_map(|(requests, _)| *requests).collect();
    decision::read_votes(tx, &reader.packs, &requests).await
}

fn tell_waiting(
    app: &App,
    reader: &Principal,
    requests: &[Approval],
    votes: &CountedVotes,
    count: i64,
) -> Option<ApprovalNotice> {
    let first = requests.first()?;
    let pack = app.packs.get(&first.agent);
    let texts = texts::for_optional_pack(pack.as_deref(), reader);
    let text = if requests.len() == 1 {
        let values = [
            (
                "request",
                &*state_text(app, first, reader, &votes.tally(first, true)),
            ),
            ("agent", first.agent.as_str()),
            ("code", &first.code),
        ];
        texts.render(Key::ApprovalNotice, &values)
    } else {
        texts.render(Key::ApprovalsNotice, &[("count", &count.to_string())])
    };
    Some(ApprovalNotice {
        code: NoticeCode::ApprovalWaits,
        text,
        count,
        approval: only(requests),
        link: link_to(app, requests)?,
    })
}

fn tell_ended(
    app: &App,
    reader: &Principal,
    requests: &[Approval],
    votes: &CountedVotes,
) -> Option<ApprovalNotice> {
    let first = requests.first()?;
    let pack = app.packs.get(&first.agent);
    let texts = texts::for_optional_pack(pack.as_deref(), reader);
    let text = if requests.len() <= IN_WORDS {
        let lines = requests
            .iter()
            .map(|request| state_text(app, request, reader, &votes.tally(request, false)));
        lines.collect::<Vec<_>>().join("\n")
    } else {
        let codes = requests.iter().take(CODES);
        let mut codes: Vec<_> = codes.map(|request| request.code.as_str()).collect();
        codes.extend((requests.len() > CODES).then_some("…"));
        let values = [
            ("count", &*requests.len().to_string()),
            ("codes", &codes.join(", ")),
        ];
        texts.render(Key::ApprovalsEnded, &values)
    };
    Some(ApprovalNotice {
        code: NoticeCode::ApprovedCallEnded,
        text,
        count: i64::try_from(requests.len()).unwrap_or(i64::MAX),
        approval: only(requests),
        link: link_to(app, requests)?,
    })
}

/// The request, if it is one.
fn only(requests: &[Approval]) -> Option<ApprovalId> {
    let [only] = requests else { return None };
    Some(only.id)
}

/// The address of a request, or of the list if there are several.
fn link_to(app: &App, requests: &[Approval]) -> Option<String> {
    match requests {
        [] => None,
        [only] => Some(link(app, only.id)),
        [first, ..] => Some(link_to_list(app, first.id)),
    }
}

/// The notices of one open conversation: first what waits now, then what begins to wait and what ends.
pub struct NoticeStream {
    app: Arc<App>,
    principal: Principal,
    changed: watch::Receiver<()>,
    has_begun: bool,
    /// When the stream first read for an approver: what ended before is no news.
    began: Option<OffsetDateTime>,
    /// The changes from this time on may be new.
    from: OffsetDateTime,
    /// The requests that wait, as far as the stream has told.
    waiting: HashSet<ApprovalId>,
    /// The outcomes that the stream has told.
    ended: HashSet<ApprovalId>,
}

/// Begins a stream of notices.
pub fn listen(app: &Arc<App>, principal: &Principal) -> NoticeStream {
    NoticeStream {
        app: app.clone(),
        principal: principal.clone(),
        changed: app.live.watch_approvals(principal.tenant),
        has_begun: false,
        began: None,
        from: OffsetDateTime::UNIX_EPOCH,
        waiting: HashSet::new(),
        ended: HashSet::new(),
    }
}

impl NoticeStream {
    /// The next notices; `None` when the process stops.
    pub async fn next(&mut self) -> Result<Option<Vec<ApprovalNotice>>> {
        loop {
            if std::mem::replace(&mut self.has_begun, true) {
                tokio::select! {
                    _ = self.changed.changed() => tokio::time::sleep(GATHER).await,
                    () = self.app.shutdown.cancelled() => return Ok(None),
                }
            }
            let notices = self.read().await?;
            if !notices.is_empty() {
                return Ok(Some(notices));
            }
        }
    }

    async fn read(&mut self) -> Result<Vec<ApprovalNotice>> {
        self.changed.mark_unchanged();
        let Some(reader) = reader(&self.app, &self.principal).await? else {
            return Ok(Vec::new());
        };
        let approver = &reader.approver;
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        if self.began.is_none() {
            let now = tx.now().await?;
            (self.began, self.from) = (Some(now), now);
        }
        let now_waiting = list_waiting(&mut tx, approver, Waiting::OfOthers).await?;
        let count = count_waiting(&mut tx, approver, &now_waiting).await?;
        let ids = now_waiting.iter().map(|request| request.id).collect();
        let told = std::mem::replace(&mut self.waiting, ids);
        let new: Vec<_> = now_waiting
            .into_iter()
            .filter(|request| !told.contains(&request.id))
            .collect();
        let ended = self.read_ended(&mut tx, approver).await?;
        let votes = read_votes(&mut tx, &reader, &new, &ended).await?;
        drop(tx);
        let notices = [
            tell_ended(&self.app, approver.principal(), &ended, &votes),
            tell_waiting(&self.app, approver.principal(), &new, &votes, count),
        ];
        Ok(notices.into_iter().flatten().collect())
    }

    /// Reads the calls of other people that the approver approved and that have ended since the stream began.
    async fn read_ended(&mut self, tx: &mut Tx, reader: &Approver) -> Result<Vec<Approval>> {
        let user = reader.user();
        let mut from = self.from;
        let mut ended = Vec::new();
        loop {
            let changed =
                store::approvals::list_changed(tx, user, Some(reader), from, PAGE).await?;
            let is_last = usize::try_from(PAGE).is_ok_and(|page| changed.len() < page);
            let newest = changed.last().map_or(from, |last| last.changed_at);
            let new = changed.into_iter().filter(|request| {
                request.finished_at >= self.began
                    && request.requester() != user
                    && reader.holds_role_for(request)
                    && !self.ended.contains(&request.id)
            });
            ended.extend(new);
            if is_last || newest == from {
                self.from = (newest - OVERLAP).max(self.from);
                break;
            }
            from = newest;
        }
        let ids: Vec<_> = ended.iter().map(|request| request.id).collect();
        let votes = store::approvals::list_votes(tx, &ids).await?;
        ended.retain(|request| {
            let approved = votes.iter().any(|vote| {
                vote.approval == request.id && vote.by() == user && vote.choice == Choice::Approve
            });
            // Of two pages the second may begin with the last of the first.
            approved && self.ended.insert(request.id)
        });
        Ok(ended)
    }
}
