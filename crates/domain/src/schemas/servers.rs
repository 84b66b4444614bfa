//! Schemas of agents, servers and the registry.

use crate::{connection, schemas};

schemas! {
    /// Why a connection test failed. The names are stable.
    #[serde(rename_all = "snake_case")]
    enum Trouble for connection::ConnectionTestError {
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
    /// Why a server cannot be used. The names are stable.
    #[serde(rename_all = "snake_case")]
    enum DownCause for connection::DownCause {
        /// Nobody answers there, or only with errors of its own.
        Unreachable,
        /// No answer in time.
        Timeout,
        /// The server wants a sign-in (OAuth) or a token, and none is set up.
        SignInRequired,
        /// The server does not accept the credential that it is sent.
        CredentialRefused,
        /// The server answers 429.
        RateLimited,
        /// The address leads to another one.
        Redirected,
        /// A web page answers there.
        WebPage,
        /// Somebody answers, and it is no MCP server that can be used.
        NotMcp,
        /// What the pack says of it cannot work.
        Misconfigured,
    }
}
