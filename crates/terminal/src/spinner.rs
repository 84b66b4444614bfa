//! The line that moves while the client waits for an answer: a sign, the seconds, and the tool that is being called.

use std::time::Duration;

use tokio::time::Instant;

const FRAMES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
const FRAME_INTERVAL: Duration = Duration::from_millis(120);

#[derive(Default)]
pub struct Spinner {
    since: Option<Instant>,
    frames_shown: usize,
    is_shown: bool,
}

impl Spinner {
    /// Starts for a new answer.
    pub fn restart(&mut self) {
        (self.since, self.frames_shown) = (Some(Instant::now()), 0);
    }

    /// Waits for the next frame.
    pub fn tick() -> impl Future<Output = ()> {
        tokio::time::sleep(FRAME_INTERVAL)
    }

    pub fn frame(&mut self, call: Option<&str>) -> String {
        self.is_shown = true;
        self.frames_shown += 1;
        let seconds = self.since.map_or(0, |since| since.elapsed().as_secs());
        let sign = FRAMES[self.frames_shown % FRAMES.len()];
        match call {
            Some(call) => format!("{sign} {call} · {seconds} s · Ctrl-C stops"),
            None => format!("{sign} {seconds} s · Ctrl-C stops"),
        }
    }

    /// Hides the spinner. Returns whether a frame is on the line, which must be erased.
    pub fn hide(&mut self) -> bool {
        std::mem::take(&mut self.is_shown)
    }
}
