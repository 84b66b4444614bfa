//! The revisions of MCP that this program speaks, as a client and as a server.

use crate::server::Lifecycle;

/// A revision of MCP. A later one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Revision {
    /// HTTP with SSE is the transport of this one alone.
    V2024_11_05,
    /// The only one over streamable HTTP that has batches.
    V2025_03_26,
    V2025_06_18,
    /// The last one with a handshake.
    V2025_11_25,
    /// The first one without sessions: every request is complete in itself.
    V2026_07_28,
}

impl Revision {
    /// All revisions, the newest first.
    pub const ALL: [Self; 5] = [
        Self::V2026_07_28,
        Self::V2025_11_25,
        Self::V2025_06_18,
        Self::V2025_03_26,
        Self::V2024_11_05,
    ];
    /// The one that a client asks for in a handshake.
    pub const LAST_HANDSHAKE: Self = Self::V2025_11_25;
    /// The one whose requests are complete in themselves.
    pub const STATELESS: Self = Self::V2026_07_28;

    /// The revision of a text such as `2026-07-28`; `None` for one that this program does not speak.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|revision| revision.as_str() == text)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    pub fn lifecycle(self) -> Lifecycle {
        if self >= Self::STATELESS {
            Lifecycle::Stateless
        } else {
            Lifecycle::Handshake
        }
    }
}
