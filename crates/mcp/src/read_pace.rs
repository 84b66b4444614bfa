//! Limits how fast a connection is read, so that a server that sends without end uses only a part of one processor, and
//! other tasks have their turn.

use std::time::{Duration, Instant};

use tokio::{task::yield_now, time::sleep};

use domain::clock;

/// The time that each byte takes: about 16 MB in a second.
const PER_BYTE: Duration = Duration::from_nanos(60);
/// How far reading may run ahead of the pace: about 16 MB, more than the largest result.
const BURST: Duration = Duration::from_secs(1);
/// Each message counts as at least this many bytes.
pub(super) const MIN_MESSAGE: usize = 1024;
/// After this many bytes, other tasks get a turn.
const BYTES_PER_TURN: usize = 256 * 1024;
/// Shorter pauses are not worth a timer.
const SHORTEST: Duration = Duration::from_millis(10);

/// The pace of one connection.
pub(super) struct ReadPace {
    /// The time at which everything read so far would have come at the allowed pace.
    due: Instant,
    /// Bytes since other tasks last had a turn.
    in_turn: usize,
}

impl ReadPace {
    pub(super) fn new() -> Self {
        let now = clock::instant();
        Self {
            due: now.checked_sub(BURST).unwrap_or(now),
            in_turn: 0,
        }
    }

    /// Counts bytes that were read, and waits as long as reading is ahead of the pace.
    pub(super) async fn count(&mut self, bytes: usize) {
        self.in_turn += bytes;
        if self.in_turn >= BYTES_PER_TURN {
            self.in_turn = 0;
            yield_now().await;
        }
        let cost = PER_BYTE * u32::try_from(bytes).unwrap_or(u32::MAX);
        let now = clock::instant();
        self.due = self.due.max(now.checked_sub(BURST).unwrap_or(now)) + cost;
        let ahead = self.due.saturating_duration_since(now);
        if ahead >= SHORTEST {
            sleep(ahead).await;
        }
    }
}
