//! How fast a connection is read. A server that sends without end takes a share of one processor and no more: its
//! connection waits, and in between others have their turn.

use std::time::{Duration, Instant};

use tokio::{task::yield_now, time::sleep};

use domain::clock;

/// About 16 MB a second, and as many at once: more than the largest result.
const PER_BYTE: Duration = Duration::from_nanos(60);
const BURST: Duration = Duration::from_secs(1);
/// A message costs as much as so many bytes, however short it is.
pub(super) const MESSAGE: usize = 1024;
/// Bytes after which other tasks have their turn.
const TURN: usize = 256 * 1024;
/// Shorter pauses are not worth a timer.
const SHORTEST: Duration = Duration::from_millis(10);

pub(super) struct ReadPace {
    /// When as much as was read would have come at the pace.
    due: Instant,
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

    /// Counts what was read, and waits as long as it was too much.
    pub(super) async fn count(&mut self, bytes: usize) {
        self.in_turn += bytes;
        if self.in_turn >= TURN {
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
