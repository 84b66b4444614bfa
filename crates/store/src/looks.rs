//! Looks: what the program itself asks the database again and again, to see whether there is work or news. Looks that
//! are taken at the same time share one transaction, so that an idle replica costs the database little. Those about access
//! that has ended come first in it, so that no slow look delays them.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use sqlx::Executor as _;
use tokio::sync::oneshot;

use super::{Db, Tx};
use domain::error::{Error, Result};

/// How long the first look waits for others.
const TOGETHER: Duration = Duration::from_millis(10);

/// Asks its question, unless there is no transaction. Returns whether the transaction is still good for the next one.
type Look = Box<dyn for<'a> FnOnce(Result<&'a mut Tx>) -> BoxFuture<'a, bool> + Send>;

/// What a look is about. What comes first is asked first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// Sign-outs, revoked keys, and changed claims, tenants and issuers.
    Access,
    Work,
}

/// The looks that wait for the next transaction.
#[derive(Default)]
pub(super) struct Waiting(Mutex<Vec<(Subject, Look)>>);

impl Waiting {
    /// Adds a look. Returns whether it is the first.
    fn push(&self, subject: Subject, look: Look) -> bool {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        looks.push((subject, look));
        looks.len() == 1
    }

    /// The looks in the order in which they are asked.
    fn take(&self) -> impl Iterator<Item = Look> + Send + use<> {
        let mut looks = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        looks.sort_by_key(|(subject, _)| *subject);
        looks.into_iter().map(|(_, look)| look)
    }
}

impl Db {
    /// Reads something in a transaction of the program itself, shared with the other looks of the same moment. What is
    /// read must not depend on other looks, and nothing is written. A failed look fails no other.
    pub async fn look<T: Send + 'static>(
        &self,
        question: impl for<'a> FnOnce(&'a mut Tx) -> BoxFuture<'a, Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.look_about(Subject::Work, question).await
    }

    /// Like [`Db::look`], for access that has ended. Such looks wait for each other, and for no other look.
    pub async fn look_at_access<T: Send + 'static>(
        &self,
        question: impl for<'a> FnOnce(&'a mut Tx) -> BoxFuture<'a, Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.look_about(Subject::Access, question).await
    }

    async fn look_about<T: Send + 'static>(
        &self,
        subject: Subject,
        question: impl for<'a> FnOnce(&'a mut Tx) -> BoxFuture<'a, Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let look: Look = Box::new(move |tx| {
            Box::pin(async move {
                let found = match tx {
                    Ok(tx) => question(tx).await,
                    Err(error) => Err(error),
                };
                let is_good = found.is_ok();
                // Who asked may have gone.
                let _ = answer.send(found);
                is_good
            })
        });
        if self.looks.push(subject, look) {
            let db = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(TOGETHER).await;
                db.take_looks().await;
            });
        }
        let lost = |_| Error::Internal(anyhow::anyhow!("a look of the database ended early"));
        answered.await.map_err(lost)?
    }

    async fn take_looks(&self) {
        let (mut looks, mut open) = (self.looks.take(), None);
        while let Some(look) = looks.next() {
            let begun = match open.take() {
                Some(tx) => Ok(tx),
                None => self.system().await,
            };
            match begun {
                Ok(mut tx) => open = look(Ok(&mut tx)).await.then_some(tx),
                Err(error) => {
                    // The others would wait for the same database, one after the other.
                    let reason = error.to_string();
                    look(Err(error)).await;
                    for look in looks {
                        look(Err(Error::Unavailable(reason.clone()))).await;
                    }
                    return;
                }
            }
        }
        if let Some(mut tx) = open {
            // Nothing was written, so that it does not matter how the transaction ends.
            match tx.conn().execute(sqlx::raw_sql("commit")).await {
                Ok(_) => tx.connection.give_back(),
                Err(error) => tracing::debug!(%error, "a transaction of looks was not ended"),
            }
        }
    }
}
