//! The document with all that is one user's, written a page of rows at a time.

mod approval;

use serde::Serialize;
use serde_json::{Map, Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::sync::mpsc;

use self::approval::ExportedApproval;
use crate::{
    domain::{
        audit::{Fact, Filter},
        error::{Error, Result},
        ids::{TenantId, UserId},
        run::Conversation,
    },
    store::{self, Db, Tx, approvals::ApprovalOwner, conversations::listing::ListFilter},
};

/// Items read at once.
const PAGE: i64 = 100;

/// Pieces of a document, one after the other; an error is the last one.
pub type Pieces = mpsc::Sender<Result<String>>;

/// A copy of all that is a user's, at the database. An error is the last piece, so that nobody takes a part for the whole.
pub async fn export(db: &Db, tenant: TenantId, user: &UserId, by: &UserId, pieces: Pieces) {
    let mut export = Export {
        db,
        tenant,
        user,
        pieces: &pieces,
        separator: "",
    };
    match export.write(by).await {
        // Whoever wanted it has gone.
        Ok(()) | Err(ExportEnd::Gone) => {}
        Err(ExportEnd::Failed(error)) => {
            let _ = pieces.send(Err(error)).await;
        }
    }
}

/// Why a document ends before its end.
enum ExportEnd {
    Gone,
    Failed(Error),
}

impl From<Error> for ExportEnd {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A document that is being written: a page of rows at a time, and no transaction while the reader is waited for.
struct Export<'a> {
    db: &'a Db,
    tenant: TenantId,
    user: &'a UserId,
    pieces: &'a Pieces,
    /// What stands before the next item of a list.
    separator: &'static str,
}

impl Export<'_> {
    async fn write(&mut self, by: &UserId) -> std::result::Result<(), ExportEnd> {
        self.head(by).await?;
        self.begin("approvals").await?;
        self.approvals().await?;
        self.begin("audit").await?;
        self.audit().await?;
        self.begin("conversations").await?;
        self.conversations().await?;
        self.text("]}\n".to_owned()).await
    }

    async fn tx(&self) -> Result<Tx> {
        self.db.tenant(self.tenant).await
    }

    async fn text(&self, text: String) -> std::result::Result<(), ExportEnd> {
        let sent = self.pieces.send(Ok(text)).await;
        sent.map_err(|_| ExportEnd::Gone)
    }

    /// Begins a list behind another one.
    async fn begin(&mut self, name: &str) -> std::result::Result<(), ExportEnd> {
        self.separator = "";
        self.text(format!("],\n\"{name}\":[")).await
    }

    async fn item(&mut self, item: &impl Serialize) -> std::result::Result<(), ExportEnd> {
        let json = serde_json::to_string(item).map_err(Error::internal)?;
        let separator = std::mem::replace(&mut self.separator, ",\n");
        self.text(format!("{separator}{json}")).await
    }

    /// Who they are, and what there is little of.
    async fn head(&mut self, by: &UserId) -> std::result::Result<(), ExportEnd> {
        let mut tx = self.tx().await?;
        let known = store::users::newest(&mut tx, std::slice::from_ref(self.user)).await?;
        let seen = store::users::get(&mut tx, self.user).await?;
        let usage = store::user_data::usage(&mut tx, self.user).await?;
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
        self.text(format!("{open},\n\"usage\":[")).await?;
        for day in &usage {
            self.item(day).await?;
        }
        Ok(())
    }

    async fn approvals(&mut self) -> std::result::Result<(), ExportEnd> {
        let mut after = None;
        loop {
            let mut tx = self.tx().await?;
            let page = store::approvals::Page {
                after,
                limit: PAGE,
                ..Default::default()
            };
            let page =
                store::approvals::list(&mut tx, ApprovalOwner::Requester(self.user), page).await?;
            drop(tx);
            for approval in &page {
                self.item(&ExportedApproval::of(approval)).await?;
            }
            after = page.last().map(|approval| approval.id);
            if is_last(&page) {
                return Ok(());
            }
        }
    }

    async fn audit(&mut self) -> std::result::Result<(), ExportEnd> {
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
                self.item(line).await?;
            }
            before = page.last().map(|line| line.id);
            if is_last(&page) {
                return Ok(());
            }
        }
    }

    async fn conversations(&mut self) -> std::result::Result<(), ExportEnd> {
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
                    self.conversation(conversation).await?;
                }
                cursor = page.last().map(|conversation| conversation.id);
                if is_last(&page) {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn conversation(&mut self, of: &Conversation) -> std::result::Result<(), ExportEnd> {
        let head = serde_json::to_string(of).map_err(Error::internal)?;
        let open = head.strip_suffix('}').unwrap_or(&head);
        let separator = std::mem::take(&mut self.separator);
        self.text(format!("{separator}{open},\n\"messages\":["))
            .await?;
        let mut after = 0;
        loop {
            let mut tx = self.tx().await?;
            let page = store::messages::list_all_branches(&mut tx, of.id, after, PAGE).await?;
            drop(tx);
            for message in &page {
                self.item(message).await?;
            }
            after = page.last().map_or(after, |message| message.seq);
            if is_last(&page) {
                break;
            }
        }
        self.separator = ",\n";
        self.text("]}".to_owned()).await
    }
}

fn is_last<T>(page: &[T]) -> bool {
    i64::try_from(page.len()).is_ok_and(|count| count < PAGE)
}

fn time_of(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_default()
}
