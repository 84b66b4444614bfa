//! All data of one user: its deletion, and a copy of it as one JSON document.
//!
//! Rows that others need stay, and of the user they keep the id alone: lines of the audit trail, requests for approval
//! and votes, usage, and the end of the user's sessions.

use std::{path::PathBuf, sync::Arc, time::Duration};

use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::sync::mpsc;

use crate::app::{
    App,
    accounts::{self, users},
    platform::keys::Keys,
    runs::deletions::{self, Deletion},
    servers::credentials,
    tools::kept_calls::{self, KeptCall},
};
use domain::{
    approval::{Approval, State},
    audit::{Fact, Filter},
    clock::Clock,
    error::{Error, ErrorCode, Result},
    ids::{ApprovalId, ConversationId, RunId, TenantId, UserId},
    principal::{Admin, Principal},
    run::Conversation,
    session::SessionEnd,
};
use store::{
    Db, Tx, approvals::ApprovalOwner, conversations::listing::ListFilter, hints::Hint,
    kept_calls::Selection,
};

/// The most pieces of a copy that wait for a slow reader.
const AHEAD: usize = 4;
/// How long a reader may take for a copy.
const LIFETIME: Duration = Duration::from_secs(30 * 60);
/// How often a deletion that ran into a deadlock is tried again.
const TRIES: usize = 3;
/// Items read at once.
const PAGE: i64 = 100;

/// Pieces of a document, one after the other; an error is the last one.
pub type Pieces = mpsc::Sender<Result<String>>;

/// Deletes all data of the caller. The deletion goes on when the caller has left.
pub async fn delete_own(app: &Arc<App>, principal: &Principal) -> Result<()> {
    delete(app, principal.tenant, &principal.user, &principal.user).await
}

/// Deletes all data of a user by their id. `NotFound` for a user whom the tenant has never seen.
pub async fn delete_by_id(app: &Arc<App>, admin: &Admin, user: &str) -> Result<()> {
    let user = users::get(app, admin, user).await?.id;
    delete(app, admin.tenant(), &UserId(user.into()), admin.user()).await
}

async fn delete(app: &Arc<App>, tenant: TenantId, user: &UserId, by: &UserId) -> Result<()> {
    let (task_app, user, by) = (app.clone(), user.clone(), by.clone());
    let work = async move { delete_here(&task_app, tenant, &user, &by).await };
    app.tasks.spawn(work).await.map_err(Error::internal)?
}

async fn delete_here(app: &App, tenant: TenantId, user: &UserId, by: &UserId) -> Result<()> {
    credentials::remove_all(app, tenant, user, by).await?;
    let list = app.config.deletions_file.clone();
    let ended = end_sessions(&app.db, list, tenant, user, by).await?;
    for run in ended.runs {
        app.running.cancel(run);
    }
    app.settle_requests(tenant, ended.withdrawn);
    app.accounts.signed_out(tenant, user).await?;
    let _ = app.hints.send(Hint::SignedOut {
        tenant,
        user: user.clone(),
    });
    let deleted = delete_rows(&app.db, tenant, user, by).await;
    for conversation in deleted.conversations {
        app.live.refresh(tenant, conversation);
    }
    deleted.outcome
}

/// Deletes all data of a user for the command line, which has only the database. The replicas follow within seconds.
/// `list` gets a line, if there is one.
pub async fn delete_in_database(
    db: &Db,
    list: Option<PathBuf>,
    tenant: TenantId,
    user: &UserId,
    by: &UserId,
) -> Result<()> {
    end_sessions(db, list, tenant, user, by).await?;
    delete_rows(db, tenant, user, by).await.outcome
}

/// The runs that were asked to stop, and the requests that were withdrawn.
struct Ended {
    runs: Vec<RunId>,
    withdrawn: Vec<ApprovalId>,
}

/// Ends the user's sessions: their tokens are refused, their runs are asked to stop, and their requests are withdrawn.
/// The deletion is first written into `list`, so that no deletion is missing there.
async fn end_sessions(
    db: &Db,
    list: Option<PathBuf>,
    tenant: TenantId,
    user: &UserId,
    by: &UserId,
) -> Result<Ended> {
    if let Some(list) = list {
        let (at, user) = (Clock::System.now(), user.clone());
        deletions::append(list, Deletion { at, tenant, user }).await?;
    }
    let mut tx = db.tenant(tenant).await?;
    accounts::end_sessions(&mut tx, tenant, user).await?;
    let withdrawn =
        store::approvals::withdraw_of_user(&mut tx, user, by, SessionEnd::SignedOut).await?;
    let runs = store::runs::list_open_of_user(&mut tx, user).await?;
    store::trees::stop(&mut tx, &runs).await?;
    let fact = Fact::new(by.as_str(), "user.deleted").detail(user.as_str());
    store::audit::record(&mut tx, tenant, &fact).await?;
    tx.commit().await?;
    Ok(Ended { runs, withdrawn })
}

/// The conversations that were deleted, also when a later step failed.
struct Deleted {
    conversations: Vec<ConversationId>,
    outcome: Result<()>,
}

/// Deletes the rows, some at a time. A deletion that broke off can be repeated.
async fn delete_rows(db: &Db, tenant: TenantId, user: &UserId, by: &UserId) -> Deleted {
    let (mut conversations, mut tries) = (Vec::new(), 0);
    let outcome = loop {
        match delete_some_conversations(db, tenant, user).await {
            Ok(some) if some.is_empty() => break delete_rest(db, tenant, user, by).await,
            Ok(some) => conversations.extend(some),
            Err(Error::Collided) if tries < TRIES => tries += 1,
            Err(error) => break Err(error),
        }
    };
    Deleted {
        conversations,
        outcome,
    }
}

async fn delete_some_conversations(
    db: &Db,
    tenant: TenantId,
    user: &UserId,
) -> Result<Vec<ConversationId>> {
    let mut tx = db.tenant(tenant).await?;
    let some = store::retention::delete_of_user(&mut tx, user).await?;
    tx.commit().await?;
    Ok(some)
}

async fn delete_rest(db: &Db, tenant: TenantId, user: &UserId, by: &UserId) -> Result<()> {
    let mut tx = db.tenant(tenant).await?;
    store::oauth_sign_ins::end(&mut tx, Some(user), None).await?;
    for removed in store::credentials::delete(&mut tx, user, None).await? {
        let credential = removed.credential;
        let (agent, server) = (&credential.agent, &credential.server);
        store::catalogs::delete(&mut tx, agent, server, credential.id).await?;
        let fact = Fact::new(by.as_str(), "credential.removed").at(agent.as_str(), server.as_str());
        store::audit::record(&mut tx, tenant, &fact).await?;
    }
    let all = store::user_data::delete(&mut tx, user).await?;
    tx.commit().await?;
    if all {
        return Ok(());
    }
    Err(Error::conflict(
        ErrorCode::CallInProgress,
        "a call of this user that was approved is being made at the moment, so its record is left; \
         everything else is deleted; delete the user again in a minute",
    ))
}

/// Copies all data of the caller into one JSON document, which comes in pieces.
pub fn export_own(app: &Arc<App>, principal: &Principal) -> mpsc::Receiver<Result<String>> {
    let (tenant, user) = (principal.tenant, principal.user.clone());
    start_export(app, tenant, user.clone(), user)
}

/// Copies all data of a user by their id. `NotFound` for a user whom the tenant has never seen.
pub async fn export_by_id(
    app: &Arc<App>,
    admin: &Admin,
    user: &str,
) -> Result<mpsc::Receiver<Result<String>>> {
    let user = UserId(users::get(app, admin, user).await?.id.into());
    Ok(start_export(
        app,
        admin.tenant(),
        user,
        admin.user().clone(),
    ))
}

fn start_export(
    app: &Arc<App>,
    tenant: TenantId,
    user: UserId,
    by: UserId,
) -> mpsc::Receiver<Result<String>> {
    let (pieces, inbox) = mpsc::channel(AHEAD);
    let (db, keys) = (app.db.clone(), app.keys.clone());
    app.tasks.spawn(async move {
        let write = export(&db, &keys, tenant, &user, &by, pieces);
        let _ = tokio::time::timeout(LIFETIME, write).await;
    });
    inbox
}

/// Copies all data of a user; needs only the database and the keys. An error is the last piece, so that a reader cannot take a part
/// for the whole.
pub async fn export(
    db: &Db,
    keys: &Keys,
    tenant: TenantId,
    user: &UserId,
    by: &UserId,
    pieces: Pieces,
) {
    let mut export = Export {
        db,
        keys,
        tenant,
        user,
        pieces: &pieces,
        separator: "",
    };
    match export.write(by).await {
        // A reader who has gone needs no error.
        Ok(()) | Err(ExportEnd::Gone) => {}
        Err(ExportEnd::Failed(error)) => {
            let _ = pieces.send(Err(error)).await;
        }
    }
}

/// Why a document is incomplete.
enum ExportEnd {
    Gone,
    Failed(Error),
}

impl From<Error> for ExportEnd {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A document that is being written: a page of rows at a time. No transaction is open while the reader takes a piece.
struct Export<'a> {
    db: &'a Db,
    keys: &'a Keys,
    tenant: TenantId,
    user: &'a UserId,
    pieces: &'a Pieces,
    /// The text before the next item of a list: none before the first one.
    separator: &'static str,
}

impl Export<'_> {
    async fn write(&mut self, by: &UserId) -> std::result::Result<(), ExportEnd> {
        self.write_head(by).await?;
        self.begin_list("approvals").await?;
        self.write_approvals().await?;
        self.begin_list("audit").await?;
        self.write_audit().await?;
        self.begin_list("kept_calls").await?;
        self.write_kept_calls().await?;
        self.begin_list("conversations").await?;
        self.write_conversations().await?;
        self.write_text("]}\n".to_owned()).await
    }

    async fn tx(&self) -> Result<Tx> {
        self.db.tenant(self.tenant).await
    }

    async fn write_text(&self, text: String) -> std::result::Result<(), ExportEnd> {
        let sent = self.pieces.send(Ok(text)).await;
        sent.map_err(|_| ExportEnd::Gone)
    }

    /// Ends the list that is being written, and begins another one.
    async fn begin_list(&mut self, name: &str) -> std::result::Result<(), ExportEnd> {
        self.separator = "";
        self.write_text(format!("],\n\"{name}\":[")).await
    }

    async fn write_item(&mut self, item: &impl Serialize) -> std::result::Result<(), ExportEnd> {
        let json = serde_json::to_string(item).map_err(Error::internal)?;
        let separator = std::mem::replace(&mut self.separator, ",\n");
        self.write_text(format!("{separator}{json}")).await
    }

    /// Writes the user's account and usage, which are short.
    async fn write_head(&mut self, by: &UserId) -> std::result::Result<(), ExportEnd> {
        let mut tx = self.tx().await?;
        let known = store::users::list_principals(&mut tx, std::slice::from_ref(self.user)).await?;
        let seen = store::users::get(&mut tx, self.user).await?;
        let usage = store::user_data::list_usage(&mut tx, self.user).await?;
        let exported_at = time_of(tx.now().await?);
        let fact = Fact::new(by.as_str(), "user.exported").detail(self.user.as_str());
        store::audit::record(&mut tx, self.tenant, &fact).await?;
        tx.commit().await?;
        let known = known.into_iter().next();
        let claims: Map<String, Value> = known
            .as_ref()
            .map(|known| (*known.claims).clone())
            .unwrap_or_default();
        let head = json!({
            "format": "chatelaine.user-data.v1",
            "exported_at": exported_at,
            "tenant": self.tenant,
            "user": self.user,
            "claims": claims,
            "locale": known.and_then(|known| known.locale),
            "connections": seen.map(|seen| seen.credentials).unwrap_or_default(),
        });
        let head = head.to_string();
        let open = head.strip_suffix('}').unwrap_or(&head);
        self.write_text(format!("{open},\n\"usage\":[")).await?;
        for day in &usage {
            self.write_item(day).await?;
        }
        Ok(())
    }

    async fn write_approvals(&mut self) -> std::result::Result<(), ExportEnd> {
        let mut after = None;
        loop {
            let mut tx = self.tx().await?;
            let page = store::approvals::ApprovalSelection {
                after,
                limit: PAGE,
                ..Default::default()
            };
            let page =
                store::approvals::list(&mut tx, ApprovalOwner::Requester(self.user), page).await?;
            drop(tx);
            for approval in &page {
                self.write_item(&ExportedApproval::new(approval)).await?;
            }
            after = page.last().map(|approval| approval.id);
            if is_last(&page) {
                return Ok(());
            }
        }
    }

    async fn write_audit(&mut self) -> std::result::Result<(), ExportEnd> {
        let filter = Filter {
            actor: Some(self.user.to_string()),
            ..Filter::default()
        };
        let mut before = None;
        loop {
            let mut tx = self.tx().await?;
            let page = store::audit::list(&mut tx, self.tenant, &filter, before, PAGE).await?;
            drop(tx);
            for line in &page {
                self.write_item(line).await?;
            }
            before = page.last().map(|line| line.id);
            if is_last(&page) {
                return Ok(());
            }
        }
    }

    async fn write_kept_calls(&mut self) -> std::result::Result<(), ExportEnd> {
        let mut after = None;
        loop {
            let which = Selection {
                agent: None,
                user: Some(self.user),
                since: OffsetDateTime::UNIX_EPOCH,
                after,
                before: None,
                limit: PAGE,
            };
            let page = kept_calls::list(self.db, self.keys, self.tenant, which).await?;
            for call in &page.calls {
                self.write_item(&ExportedCall::new(call)).await?;
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn write_conversations(&mut self) -> std::result::Result<(), ExportEnd> {
        for archived in [false, true] {
            let mut cursor = None;
            loop {
                let filter = ListFilter {
                    agent: None,
                    children: true,
                    archived,
                    pinned: None,
                    cursor,
                    limit: PAGE,
                };
                let mut tx = self.tx().await?;
                let page = store::conversations::listing::list(&mut tx, self.user, filter).await?;
                drop(tx);
                for conversation in &page {
                    self.write_conversation(conversation).await?;
                }
                cursor = page.last().map(|conversation| conversation.id);
                if is_last(&page) {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn write_conversation(
        &mut self,
        conversation: &Conversation,
    ) -> std::result::Result<(), ExportEnd> {
        let head = serde_json::to_string(conversation).map_err(Error::internal)?;
        let open = head.strip_suffix('}').unwrap_or(&head);
        let separator = std::mem::take(&mut self.separator);
        self.write_text(format!("{separator}{open},\n\"messages\":["))
            .await?;
        let mut after = 0;
        loop {
            let mut tx = self.tx().await?;
            let page =
                store::messages::list_all_branches(&mut tx, conversation.id, after, PAGE).await?;
            drop(tx);
            for message in &page {
                self.write_item(message).await?;
            }
            after = page.last().map_or(after, |message| message.seq);
            if is_last(&page) {
                break;
            }
        }
        self.separator = ",\n";
        self.write_text("]}".to_owned()).await
    }
}

fn is_last<T>(page: &[T]) -> bool {
    i64::try_from(page.len()).is_ok_and(|count| count < PAGE)
}

fn time_of(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_default()
}

/// A call that the tenant keeps with its arguments.
#[derive(Serialize)]
struct ExportedCall<'a> {
    at: String,
    agent: &'a str,
    server: &'a str,
    tool: &'a str,
    arguments: Box<RawValue>,
}

impl<'a> ExportedCall<'a> {
    fn new(call: &'a KeptCall) -> Self {
        Self {
            at: time_of(call.at),
            agent: call.agent.as_str(),
            server: call.server.as_str(),
            tool: &call.tool,
            arguments: call.arguments.to_raw(),
        }
    }
}

/// A request for approval without its arguments, which are in the message that made it.
#[derive(Serialize)]
struct ExportedApproval<'a> {
    id: ApprovalId,
    code: &'a str,
    state: State,
    agent: &'a str,
    server: &'a str,
    tool: &'a str,
    conversation_id: Option<ConversationId>,
    created_at: String,
    decided_at: Option<String>,
    reason: Option<&'a str>,
}

impl<'a> ExportedApproval<'a> {
    fn new(approval: &'a Approval) -> Self {
        Self {
            id: approval.id,
            code: &approval.code,
            state: approval.state,
            agent: approval.agent.as_str(),
            server: approval.server.as_str(),
            tool: &approval.tool,
            conversation_id: approval.conversation,
            created_at: time_of(approval.created_at),
            decided_at: approval.decided_at.map(time_of),
            reason: approval.reason.as_deref(),
        }
    }
}
