//! Why the test of a connection fails.

use serde::Serialize;

use super::error::ErrorCode;

/// Why a connection test failed. The names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Trouble))]
#[serde(rename_all = "snake_case")]
pub enum ConnectionTestError {
    /// The server does not accept what was entered.
    Unauthorized,
    /// Nothing answers at the address, or only with server errors.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// The user's value cannot be put where the pack puts it.
    BadTemplate,
    /// Something answers, and it is not an MCP server.
    NotMcp,
}

impl ConnectionTestError {
    /// The stable name.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::Unauthorized => ErrorCode::Unauthorized,
            Self::Unreachable => ErrorCode::Unreachable,
            Self::Timeout => ErrorCode::Timeout,
            Self::BadTemplate => ErrorCode::BadTemplate,
            Self::NotMcp => ErrorCode::NotMcp,
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

/// Why a server cannot be used. The names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DownCause {
    /// Nothing answers at the address, or only with server errors.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// The server wants a sign-in (OAuth) or a token, and none is set up.
    SignInRequired,
    /// The server does not accept the credential.
    CredentialRefused,
    /// The server answers with the status 429.
    RateLimited,
    /// The server redirects to another address.
    Redirected,
    /// A web page is at the address.
    WebPage,
    /// Something answers, and it is not an MCP server that can be used.
    NotMcp,
    /// The pack's settings of the server cannot work.
    Misconfigured,
}

impl DownCause {
    /// Whether it stays until somebody changes something, so that asking often is of no use.
    pub fn is_lasting(self) -> bool {
        !matches!(self, Self::Unreachable | Self::Timeout | Self::RateLimited)
    }

    /// For users, who are not told what is said where the server should be.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Unreachable | Self::Timeout => "the server cannot be reached at the moment",
            Self::SignInRequired => {
                "the server wants a sign-in (OAuth) or a token, and none is set up; tell whoever runs this service"
            }
            Self::CredentialRefused => {
                "the server refuses the credential of this service; tell whoever runs it"
            }
            Self::RateLimited => "the server is busy and asks to wait (HTTP 429)",
            Self::Redirected => {
                "the server leads to another address; tell whoever runs this service"
            }
            Self::WebPage => {
                "a web page answers where the server should be; tell whoever runs this service"
            }
            Self::NotMcp => {
                "what answers there is no MCP server that can be used; tell whoever runs this service"
            }
            Self::Misconfigured => {
                "the server is not set up correctly; tell whoever runs this service"
            }
        }
    }
}
