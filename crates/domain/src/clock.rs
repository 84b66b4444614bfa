//! The only place that asks the time. A test passes its own clock and moves it.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};
use std::time::Instant;

use time::{Duration, OffsetDateTime, UtcOffset};

/// Microseconds by which the machine's clock is behind the database's, while it is wrong; 0 otherwise.
static CORRECTION: AtomicI64 = AtomicI64::new(0);

/// Clocks that differ by less are both right.
const MAX_DIFFERENCE: Duration = Duration::seconds(5);
/// A comparison that took longer says nothing.
const MAX_ROUND_TRIP: Duration = Duration::seconds(2);

/// How the machine's clock must be corrected by what the database said between two looks at it; `None` when that cannot be
/// said.
pub fn correction(
    before: OffsetDateTime,
    there: OffsetDateTime,
    after: OffsetDateTime,
) -> Option<Duration> {
    let took = after - before;
    if took.is_negative() || took > MAX_ROUND_TRIP {
        return None;
    }
    let behind: Duration = there - (before + took / 2);
    Some(if behind.abs() > MAX_DIFFERENCE {
        behind
    } else {
        Duration::ZERO
    })
}

/// How a clock that must be corrected by so much is told: `5 seconds behind`, or `5 seconds ahead of`.
pub fn describe(correction: Duration) -> String {
    let seconds = correction.whole_seconds();
    let direction = if seconds < 0 { "ahead of" } else { "behind" };
    format!("{} seconds {direction}", seconds.unsigned_abs())
}

/// From here on the system clock of this process is corrected by so much. The correction before.
pub fn correct(by: Duration) -> Duration {
    let micros = i64::try_from(by.whole_microseconds()).unwrap_or_default();
    Duration::microseconds(CORRECTION.swap(micros, Ordering::Relaxed))
}

/// The time by the machine's clock, right or wrong.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn machine_time() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// Tells the time: the machine's, corrected by the database's while it is wrong, or a test's.
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
    pub fn now(&self) -> OffsetDateTime {
        match self {
            Self::System => in_microseconds(
                machine_time() + Duration::microseconds(CORRECTION.load(Ordering::Relaxed)),
            ),
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
