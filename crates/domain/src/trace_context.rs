//! The place in a distributed trace that work belongs to, as W3C Trace Context writes it. It travels with a request from
//! the client, in the row of a run or an approval to whichever replica goes on, and with a call to an MCP server.

use serde::{Deserialize, Serialize};

/// The target of spans that only traces need. While traces are off, these spans do not exist.
pub const TRACES: &str = "chatelaine::traces";

/// A span of a trace, which may be another program's. Its `tracestate` is dropped, as section 3.3 allows: it is free text of
/// the client, and would get into rows, to the collector and to servers of others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    /// `00-<trace id>-<span id>-<flags>`
    pub traceparent: String,
}

impl TraceContext {
    /// Reads the header. `None` for one that is not written by the rules, which is then as good as none at all (section
    /// 3.2).
    pub fn parse(traceparent: &str) -> Option<Self> {
        let mut parts = traceparent.splitn(5, '-');
        let version = hex(parts.next()?, 2)?;
        let (trace, span) = (hex(parts.next()?, 32)?, hex(parts.next()?, 16)?);
        hex(parts.next()?, 2)?;
        // A later version may have more parts.
        let has_more = parts.next().is_some();
        let is_zero = |id: &str| id.bytes().all(|digit| digit == b'0');
        if version == "ff" || version == "00" && has_more || is_zero(trace) || is_zero(span) {
            return None;
        }
        Some(Self {
            traceparent: traceparent.to_owned(),
        })
    }

    /// The id of the trace: 32 hex digits.
    pub fn trace_id(&self) -> &str {
        self.traceparent.split('-').nth(1).unwrap_or_default()
    }
}

/// A part of a `traceparent`: so many lower-case hex digits.
fn hex(part: &str, digits: usize) -> Option<&str> {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (part.len() == digits && part.bytes().all(is_hex)).then_some(part)
}
