//! The error of a failed request, and its making from an error of the HTTP client. Messages name the host and never the path,
//! the query or a header, since those may carry secrets.

use std::{error::Error as StdError, io, net::IpAddr, time::Duration};

use hyper_util::client::legacy;
use url::Url;

use super::{client, host_of};

/// A failed request.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{kind}")]
pub struct EgressError {
    pub kind: ErrorKind,
    /// Whether a server may have seen the request. If not, it is safe to repeat.
    pub sent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The policy refuses the URL. No name was resolved and no connection opened.
    #[error("egress rejected: {0}")]
    Rejected(String),
    /// The policy refuses the host because one of its addresses is not public.
    #[error("egress rejected: {host:?} resolves to a private address ({address})")]
    PrivateAddress { host: String, address: IpAddr },
    #[error("could not resolve {host:?}: {cause}")]
    Unresolved { host: String, cause: String },
    #[error("could not connect to {host:?}: {cause}")]
    Connect { host: String, cause: String },
    /// The host was reached, and TLS with it failed: its certificate is not trusted, or it does not speak TLS.
    #[error("could not connect to {host:?}: {cause}")]
    Tls { host: String, cause: String },
    #[error("could not connect to {host:?} within {} ms", .after.as_millis())]
    ConnectTimeout { host: String, after: Duration },
    /// The deadline of the request passed before the last byte of the body came.
    #[error("no complete answer within {} ms", .0.as_millis())]
    Deadline(Duration),
    /// No byte came for this long.
    #[error("the server was silent for {} ms", .0.as_millis())]
    Idle(Duration),
    #[error("exceeded {0} redirects")]
    TooManyRedirects(usize),
    #[error("redirect refused: {0}")]
    BadRedirect(String),
    #[error("response body exceeds {0} bytes")]
    TooLarge(usize),
    #[error("the response is compressed ({0:?}), which was not asked for")]
    Compressed(String),
    /// The connection broke, or the response was not HTTP.
    #[error("connection to {host:?} failed: {cause}")]
    Broken { host: String, cause: String },
}

impl ErrorKind {
    /// The error of a request that no server has seen.
    pub(super) fn unsent(self) -> EgressError {
        EgressError {
            kind: self,
            sent: false,
        }
    }

    /// The error of a request that a server may have seen.
    pub(super) fn sent(self) -> EgressError {
        EgressError {
            kind: self,
            sent: true,
        }
    }
}

impl EgressError {
    /// Whether the policy refused the request. Repeating it is pointless until a setting changes.
    pub fn is_rejected(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Rejected(_) | ErrorKind::PrivateAddress { .. }
        )
    }

    /// Whether the response was a redirect that must not be followed.
    pub fn is_redirect(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::TooManyRedirects(_) | ErrorKind::BadRedirect(_)
        )
    }

    /// Whether the request took too long to connect, to be answered, or to be read.
    pub fn is_timeout(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::ConnectTimeout { .. } | ErrorKind::Deadline(_) | ErrorKind::Idle(_)
        )
    }
}

/// The error for a request to `url` that the HTTP client could not complete.
pub(super) fn explain(error: &legacy::Error, url: &Url) -> EgressError {
    let host = host_of(url);
    if let Some(client::PrivateAddressError(address)) = find_cause(error) {
        return ErrorKind::PrivateAddress {
            host,
            address: *address,
        }
        .unsent();
    }
    if let Some(client::UnresolvedError(cause)) = find_cause(error) {
        return ErrorKind::Unresolved {
            host,
            cause: cause.to_string(),
        }
        .unsent();
    }
    if let Some(client::ConnectTimeoutError(after)) = find_cause(error) {
        return ErrorKind::ConnectTimeout {
            host,
            after: *after,
        }
        .unsent();
    }
    let cause = innermost_cause(error);
    if find_cause::<client::ConnectError>(error).is_some() {
        if is_tls(error) {
            return ErrorKind::Tls { host, cause }.unsent();
        }
        return ErrorKind::Connect { host, cause }.unsent();
    }
    EgressError {
        kind: ErrorKind::Broken { host, cause },
        sent: !was_closed_in_pool(error),
    }
}

/// Whether a connection had closed before it took the request, so that nothing of it has left.
pub(super) fn was_closed_in_pool(error: &legacy::Error) -> bool {
    let is_canceled = find_cause::<hyper::Error>(error).is_some_and(hyper::Error::is_canceled);
    is_canceled || (error.is_connect() && find_cause::<client::ConnectError>(error).is_none())
}

/// The first error of type `E` among an error and its causes.
fn find_cause<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    causes(error).find_map(<dyn StdError>::downcast_ref)
}

/// Why TLS with a host failed, if that is what an error of a client is about.
pub fn tls_failure(error: &(dyn StdError + 'static)) -> Option<String> {
    causes(error).any(holds_tls).then(|| innermost_cause(error))
}

/// Whether an error of TLS is among an error and its causes.
fn is_tls(error: &legacy::Error) -> bool {
    causes(error).any(holds_tls)
}

/// An error of the system that holds another one does not name it as its cause.
fn holds_tls(error: &(dyn StdError + 'static)) -> bool {
    let held = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    error.is::<rustls::Error>() || held.is_some_and(|held| holds_tls(held))
}

/// The text of the innermost cause, which tells best what happened.
pub(super) fn innermost_cause(error: &(dyn StdError + 'static)) -> String {
    causes(error)
        .last()
        .map(ToString::to_string)
        .unwrap_or_default()
}

fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}
