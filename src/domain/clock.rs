//! The only place that asks the time. A test passes its own clock and moves it.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};
use std::time::Instant;

use time::{Duration, OffsetDateTime, UtcOffset};

/// Tells the time: the machine's, or a test's.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    #[default]
    System,
    /// Milliseconds since the Unix epoch, moved by [`Clock::advance`].
    Manual(Arc<AtomicI64>),
}

impl Clock {
    pub fn manual(start: OffsetDateTime) -> Self {
        Self::Manual(Arc::new(AtomicI64::new(millis(start))))
    }

    /// In microseconds, as Postgres keeps it, so that an answer says what is read later.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn now(&self) -> OffsetDateTime {
        match self {
            Self::System => in_microseconds(OffsetDateTime::now_utc()),
            Self::Manual(at) => {
                OffsetDateTime::UNIX_EPOCH + Duration::milliseconds(at.load(Ordering::SeqCst))
            }
        }
    }

    /// Moves a manual clock forward; the system clock cannot be moved and stays as it is.
    pub fn advance(&self, by: Duration) {
        if let Self::Manual(at) = self {
            at.fetch_add(
                i64::try_from(by.whole_milliseconds()).unwrap_or(i64::MAX),
                Ordering::SeqCst,
            );
        }
    }
}

/// A time as Postgres keeps it, in UTC.
pub fn in_microseconds(at: OffsetDateTime) -> OffsetDateTime {
    let at = at.to_offset(UtcOffset::UTC);
    let whole = at.nanosecond() / 1000 * 1000;
    at.replace_nanosecond(whole).unwrap_or(at)
}

fn millis(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

/// A monotonic instant, for measuring how long something took. Never for deadlines of rows.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn instant() -> Instant {
    Instant::now()
}
