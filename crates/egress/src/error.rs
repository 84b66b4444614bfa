//! Why a request was not made or brought no answer. Messages name the host and never the path, the
//! query or a header, since those may carry secrets.

use std::{net::IpAddr, time::Duration};

/// A failed request. `sent`: a server may have seen it. If not, the request is safe to repeat.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{kind}")]
pub struct EgressError {
    pub kind: ErrorKind,
    pub sent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The guard refused; nothing was tried.
    #[error("egress rejected: {0}")]
    Rejected(String),
    /// The guard refused: a name with any address that is not public.
    #[error("egress rejected: {host:?} resolves to a private address ({address})")]
    PrivateAddress { host: String, address: IpAddr },
    #[error("could not resolve {host:?}: {cause}")]
    Unresolved { host: String, cause: String },
    #[error("could not connect to {host:?}: {cause}")]
    Connect { host: String, cause: String },
    #[error("could not connect to {host:?} within {} ms", .after.as_millis())]
    ConnectTimeout { host: String, after: Duration },
    /// The deadline passed, which covers everything from the look-up to the last byte of the body.
    #[error("no complete answer within {} ms", .0.as_millis())]
    Deadline(Duration),
    /// Nothing came for this long.
    #[error("the server was silent for {} ms", .0.as_millis())]
    Idle(Duration),
    #[error("MCP server exceeded {0} redirects")]
    TooManyRedirects(usize),
    #[error("redirect refused: {0}")]
    BadRedirect(String),
    #[error("response body exceeds {0} bytes")]
    TooLarge(usize),
    #[error("the response is compressed ({0:?}), which was not asked for")]
    Compressed(String),
    /// The connection broke, or what came over it was not HTTP.
    #[error("connection to {host:?} failed: {cause}")]
    Broken { host: String, cause: String },
}

impl ErrorKind {
    pub(super) fn unsent(self) -> EgressError {
        EgressError {
            kind: self,
            sent: false,
        }
    }

    pub(super) fn sent(self) -> EgressError {
        EgressError {
            kind: self,
            sent: true,
        }
    }
}

impl EgressError {
    /// Whether the guard refused the request. Then repeating is pointless until a setting changes.
    pub fn is_rejected(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Rejected(_) | ErrorKind::PrivateAddress { .. }
        )
    }

    /// Whether the answer led elsewhere, where it was not followed.
    pub fn is_redirect(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::TooManyRedirects(_) | ErrorKind::BadRedirect(_)
        )
    }

    /// Whether time ran out: connecting, waiting, or reading.
    pub fn is_timeout(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::ConnectTimeout { .. } | ErrorKind::Deadline(_) | ErrorKind::Idle(_)
        )
    }
}
