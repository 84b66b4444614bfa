//! What an error of the database means. This is here because an [`Error`] is made from it.

use std::time::Duration;

use super::Error;

/// When a request that the database could not serve may be made again.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Whether the database cannot do its work at the moment, whatever it is asked.
pub fn is_away(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => true,
        // Connections lost or refused, no room, errors of its disk, the server stopping or starting, sessions that it
        // ended, read-only, a database that takes no connections, and statements that took too long.
        _ => code(error).is_some_and(|code| {
            ["08", "53", "57P", "58"]
                .iter()
                .any(|class| code.starts_with(class))
                || matches!(
                    &*code,
                    "25006" | "25P03" | "25P04" | "55000" | "57014" | "55P03"
                )
        }),
    }
}

/// The `SQLSTATE` of an error that the database itself reported.
pub fn code(error: &sqlx::Error) -> Option<String> {
    let code = error.as_database_error()?.code()?;
    Some(code.into_owned())
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        // A deadlock; on Citus also a shard that moved. The transaction was rolled back as a whole.
        if matches!(code(&error).as_deref(), Some("40P01" | "40001")) {
            tracing::warn!(%error, "a transaction was in the way of another one");
            return Self::Collided;
        }
        let reason = match &error {
            sqlx::Error::RowNotFound => return Self::not_found("row"),
            sqlx::Error::PoolTimedOut => "the database has no free connection; try again",
            error if is_away(error) => {
                tracing::warn!(%error, "the database cannot be used at the moment");
                "the database cannot be used at the moment; try again"
            }
            _ => return Self::Internal(error.into()),
        };
        Self::Busy {
            reason: reason.to_owned(),
            retry_after: RETRY_AFTER,
        }
    }
}
