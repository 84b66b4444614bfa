//! Limits the time of statements, and classifies errors of the database.
//!
//! Postgres itself ends a statement that takes too long. If the connection is silent, the program does not hear of
//! it, so each statement also has a limit here, which is a little longer.

use std::{
    io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream, stream::BoxStream};
use sqlx::{
    Either, Execute, Executor, PgConnection, Postgres, SqlStr,
    postgres::{PgQueryResult, PgRow, PgStatement, PgTypeInfo},
};
use tracing::Span;

use domain::{clock, error::database::code};

/// The longest time of an answer of Postgres. After it the connection counts as lost.
const SILENCE: Duration = Duration::from_secs(12);
/// How long the database counts as not writable after a write has failed because it is full or read-only.
const UNWRITABLE: Duration = Duration::from_secs(30);

/// The state of the database, as the errors of statements show it.
#[derive(Debug, Default)]
pub struct Health {
    /// The last time when a write failed because the database accepts none.
    unwritable: Mutex<Option<Instant>>,
    troubles: AtomicU64,
    /// Whether it gave no answer, or took no writes, when it was asked last.
    is_away: AtomicBool,
}

impl Health {
    fn note(&self, error: &sqlx::Error) {
        let is_unwritable = is_unwritable(error);
        if is_unwritable {
            *self.last_unwritable() = Some(clock::instant());
        }
        let is_silent = matches!(error, sqlx::Error::Io(_));
        if is_unwritable || is_silent || is_closed(error) {
            self.troubles.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a write has failed lately because the database accepts none.
    pub fn is_unwritable(&self) -> bool {
        let last = *self.last_unwritable();
        last.is_some_and(|at| at.elapsed() < UNWRITABLE)
    }

    /// How often a connection was lost or accepted no writes. After a new trouble, other connections may have the
    /// same fault.
    pub fn troubles(&self) -> u64 {
        self.troubles.load(Ordering::Relaxed)
    }

    /// Whether it answered and took writes when it was asked last.
    pub fn answers(&self) -> bool {
        !self.is_away.load(Ordering::Relaxed)
    }

    pub fn set_answers(&self, answers: bool) {
        self.is_away.store(!answers, Ordering::Relaxed);
    }

    fn last_unwritable(&self) -> MutexGuard<'_, Option<Instant>> {
        self.unwritable
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection whose statements have a time limit.
#[derive(Debug)]
pub struct Limited<'c> {
    connection: &'c mut PgConnection,
    observer: Observer<'c>,
}

/// Who is told of the errors of statements.
#[derive(Clone, Copy, Debug)]
struct Observer<'c> {
    health: &'c Health,
    /// The span of the transaction.
    span: &'c Span,
}

impl Observer<'_> {
    fn note(self, error: &sqlx::Error) {
        self.health.note(error);
        let state = code(error);
        let kind = if state.is_some() {
            "sql_error"
        } else {
            "connection_error"
        };
        self.span.record("sqlstate", state.as_deref());
        self.span.record("code", kind);
    }
}

impl<'c> Limited<'c> {
    pub fn new(connection: &'c mut PgConnection, health: &'c Health, span: &'c Span) -> Self {
        Self {
            connection,
            observer: Observer { health, span },
        }
    }
}

impl<'c> Executor<'c> for Limited<'c> {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let (rows, observer) = (self.connection.fetch_many(query), self.observer);
        stream::unfold(Some(rows), move |rows| async move {
            let mut rows = rows?;
            match in_time(async { rows.next().await.transpose() }).await {
                Ok(row) => row.map(|row| (Ok(row), Some(rows))),
                Err(error) => {
                    observer.note(&error);
                    Some((Err(error), None))
                }
            }
        })
        .boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let (fetched, observer) = (self.connection.fetch_optional(query), self.observer);
        in_time(fetched)
            .inspect(move |fetched| {
                if let Err(error) = fetched {
                    observer.note(error);
                }
            })
            .boxed()
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        self.connection.prepare_with(sql, parameters)
    }

    fn describe<'e>(
        self,
        sql: SqlStr,
    ) -> BoxFuture<'e, Result<sqlx::Describe<Postgres>, sqlx::Error>>
    where
        'c: 'e,
    {
        self.connection.describe(sql)
    }
}

/// Waits for an answer of Postgres. After a long silence the connection counts as lost.
pub async fn in_time<T>(answer: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    within(SILENCE, answer).await
}

/// Like [`in_time`], with another limit.
pub async fn within<T>(
    time: Duration,
    answer: impl Future<Output = sqlx::Result<T>>,
) -> sqlx::Result<T> {
    tokio::time::timeout(time, answer)
        .await
        .unwrap_or_else(|_| {
            let silent = "the database has not answered in time";
            Err(io::Error::new(io::ErrorKind::TimedOut, silent).into())
        })
}

/// Whether the other end has closed the connection. A silent connection does not count.
pub fn is_closed(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() != io::ErrorKind::TimedOut,
        _ => code(error).is_some_and(|code| {
            code.starts_with("08") || code.starts_with("57P") || matches!(&*code, "25P03" | "25P04")
        }),
    }
}

/// Whether the database accepts no writes, because it is full or read-only.
fn is_unwritable(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("25006" | "53100"))
}

/// Whether a connection could not be opened because the database starts, stops, or has too many connections.
pub fn is_starting(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        _ => matches!(code(error).as_deref(), Some("53300" | "57P03")),
    }
}

/// Turns an error before the session begins into "connection refused", so that the caller tries again. An error that
/// Postgres itself sent stays. A proxy in front of a database that does not run accepts a connection and closes it,
/// or answers in another protocol.
pub fn without_session(error: sqlx::Error) -> sqlx::Error {
    match error {
        sqlx::Error::Protocol(_) | sqlx::Error::Tls(_) | sqlx::Error::Io(_) if !matches!(&error, sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut) => {
            io::Error::new(io::ErrorKind::ConnectionRefused, error.to_string()).into()
        }
        error => error,
    }
}
