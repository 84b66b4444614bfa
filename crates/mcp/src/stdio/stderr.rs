//! Logs the lines that a child writes to its standard error, cut and limited in number.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::ChildStderr,
};

use crate::lock;
use domain::{clock, ids::ServerId, secret::Secret};

/// The most bytes of a logged line.
const MAX_LINE: usize = 1024;
/// The most lines that are logged in one window, for all children of one server together.
const LINES_PER_WINDOW: usize = 50;
/// The most bytes of these lines.
const BYTES_PER_WINDOW: usize = 8 * 1024;
const WINDOW: Duration = Duration::from_secs(10);
/// Shorter values are not masked, since that would hide ordinary words.
const SHORTEST_SECRET: usize = 4;

/// How many of the last lines are kept. The reason often comes some lines before the end.
const KEPT_LINES: usize = 6;
/// The most characters of a kept line.
const KEPT_CHARACTERS: usize = 300;

/// The last lines a child wrote.
#[derive(Default)]
pub(super) struct Tail(Mutex<VecDeque<String>>);

impl Tail {
    /// The lines as one text; `None` when there are none.
    pub(super) fn join(&self) -> Option<String> {
        let lines = lock(&self.0);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        (!lines.is_empty()).then(|| lines.join(" / "))
    }

    fn push(&self, mut line: String) {
        if let Some((end, _)) = line.char_indices().nth(KEPT_CHARACTERS) {
            line.truncate(end);
            line.push('…');
        }
        let mut lines = lock(&self.0);
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

/// Logs and keeps lines until the child closes its standard error.
pub(super) async fn drain(
    stderr: ChildStderr,
    server: ServerId,
    secrets: Vec<Secret>,
    tail: Arc<Tail>,
    quota: Arc<LineQuota>,
) {
    let mut stderr = BufReader::new(stderr);
    let mut bytes = Vec::new();
    while let Some(whole) = next_line(&mut stderr, &mut bytes).await {
        let line = clean_line(&bytes, whole, &secrets);
        if line.is_empty() {
            continue;
        }
        if let Some(left_out) = quota.admit(line.len()) {
            if left_out > 0 {
                tracing::info!(target: "chatelaine::mcp::stderr", %server, left_out, "lines left out");
            }
            tracing::info!(target: "chatelaine::mcp::stderr", %server, "{line}");
        }
        tail.push(line);
    }
}

/// Reads the beginning of the next line into `bytes`. Returns whether that is the whole line; `None` at the end.
async fn next_line(stderr: &mut BufReader<ChildStderr>, bytes: &mut Vec<u8>) -> Option<bool> {
    bytes.clear();
    let count = stderr
        .take(MAX_LINE as u64)
        .read_until(b'\n', bytes)
        .await
        .ok()?;
    if count == 0 {
        return None;
    }
    let whole = bytes.ends_with(b"\n") || count < MAX_LINE;
    if !whole {
        skip_line(stderr).await?;
    }
    Some(whole)
}

async fn skip_line(stderr: &mut BufReader<ChildStderr>) -> Option<()> {
    loop {
        let buffer = stderr.fill_buf().await.ok()?;
        if buffer.is_empty() {
            return Some(());
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(buffer.len(), |end| end + 1);
        stderr.consume(used);
        if end.is_some() {
            return Some(());
        }
    }
}

/// A line without the secrets of the server and without control characters. The end of a line that was cut could hold a part
/// of a secret, so as many bytes as the longest secret has are removed from it.
fn clean_line(bytes: &[u8], whole: bool, secrets: &[Secret]) -> String {
    let mut line = String::from_utf8_lossy(bytes).into_owned();
    let secrets = || {
        secrets
            .iter()
            .map(Secret::expose)
            .filter(|secret| secret.len() >= SHORTEST_SECRET)
    };
    for secret in secrets() {
        if line.contains(secret) {
            line = line.replace(secret, "[secret]");
        }
    }
    if !whole {
        let longest = secrets().map(str::len).max().unwrap_or(0);
        line.truncate(line.floor_char_boundary(line.len().saturating_sub(longest)));
        line.push('…');
    }
    let line = strip_colours(&line);
    line.trim_end()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Removes terminal control sequences (colours, cursor): an escape character, `[`, and everything up to a letter.
fn strip_colours(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| ('@'..='~').contains(&c));
        clean.push_str(end.map_or("", |end| &part[end + 1..]));
    }
    clean
}

/// Limits the logged lines of one server, for all its children together.
#[derive(Default)]
pub(crate) struct LineQuota(Mutex<LineCounts>);

#[derive(Default)]
struct LineCounts {
    window: Option<Instant>,
    logged: usize,
    bytes: usize,
    left_out: usize,
}

impl LineQuota {
    /// Counts a line of so many bytes. `None`: it must not be logged. Otherwise the number of lines that were left out before
    /// it.
    fn admit(&self, bytes: usize) -> Option<usize> {
        let mut lines = lock(&self.0);
        if lines.window.is_none_or(|begun| begun.elapsed() >= WINDOW) {
            (lines.window, lines.logged, lines.bytes) = (Some(clock::instant()), 0, 0);
        }
        if lines.logged == LINES_PER_WINDOW || lines.bytes + bytes > BYTES_PER_WINDOW {
            lines.left_out += 1;
            return None;
        }
        lines.logged += 1;
        lines.bytes += bytes;
        Some(std::mem::take(&mut lines.left_out))
    }
}
