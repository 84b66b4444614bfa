//! How far it is, on a terminal's standard error; nothing elsewhere.

use std::{
    io::{self, Write as _},
    time::{Duration, Instant},
};

use crate::{app::platform::keys::rewrap::Progress, domain::clock};

const WIDTH: u64 = 30;
const REDRAW: Duration = Duration::from_millis(100);

pub struct Bar {
    shown: bool,
    started: Instant,
    drawn: Option<Instant>,
}

impl Bar {
    pub fn new(shown: bool) -> Self {
        Self {
            shown,
            started: clock::instant(),
            drawn: None,
        }
    }

    pub fn show(&mut self, progress: &Progress) {
        let now = clock::instant();
        let last = progress.seen >= progress.total;
        if !self.shown || (!last && self.drawn.is_some_and(|drawn| now < drawn + REDRAW)) {
            return;
        }
        self.drawn = Some(now);
        let mut stderr = io::stderr().lock();
        let _ = write!(stderr, "\r{}\x1b[K", line(progress, now - self.started))
            .and_then(|()| stderr.flush());
    }

    /// Leaves the last line standing; says how long it took.
    pub fn end(&self) -> Duration {
        if self.drawn.is_some() {
            let _ = writeln!(io::stderr());
        }
        clock::instant() - self.started
    }
}

/// `[######------] 1200 of 5000 records, 2400 a second, 2 s to go`
fn line(progress: &Progress, since: Duration) -> String {
    // Records that came in meanwhile are seen too.
    let (seen, total) = (progress.seen, progress.total.max(progress.seen));
    let filled = (seen * WIDTH).checked_div(total).unwrap_or(WIDTH);
    let bar: String = (0..WIDTH)
        .map(|at| if at < filled { '#' } else { '-' })
        .collect();
    let per_second = u128::from(seen) * 1000 / since.as_millis().max(1);
    let left = u128::from(total - seen)
        .checked_div(per_second)
        .map_or(String::new(), |left| format!(", {left} s to go"));
    format!("[{bar}] {seen} of {total} records, {per_second} a second{left}")
}
