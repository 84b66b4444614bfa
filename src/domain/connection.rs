//! What may be wrong with a connection that a user tests.

use serde::Serialize;

/// Why a connection test failed. The names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// The server does not accept what was entered.
    Unauthorized,
    /// Nobody answers there, or only with errors of its own.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// What was entered does not fit where the pack puts it.
    BadTemplate,
    /// Somebody answers, and it is no MCP server.
    NotMcp,
}

impl Trouble {
    /// The stable name.
    pub fn code(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::BadTemplate => "bad_template",
            Self::NotMcp => "not_mcp",
        }
    }

    /// For people who read English; the chat says it in the user's language.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Unauthorized => {
                "the server does not accept what was entered; check it and enter it again"
            }
            Self::Unreachable => "the server cannot be reached; try again later",
            Self::Timeout => "the server did not answer in time; try again later",
            Self::BadTemplate => {
                "what was entered does not fit where the server wants it; check it, or ask the operator"
            }
            Self::NotMcp => {
                "what answers there is not an MCP server; ask the operator to check its address"
            }
        }
    }
}
