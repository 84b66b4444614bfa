//! Why a request failed, in words for the reader of a log and for a user.

use std::error::Error as StdError;

use url::Url;

use super::{
    client,
    error::{EgressError, ErrorKind},
    host_of,
};

pub(super) fn explain(error: reqwest::Error, url: &Url) -> EgressError {
    let host = host_of(url);
    let error = error.without_url();
    if let Some(client::PrivateAddressError(address)) = found_in(&error) {
        return ErrorKind::PrivateAddress {
            host,
            address: *address,
        }
        .unsent();
    }
    if let Some(client::Unresolved(cause)) = found_in(&error) {
        return ErrorKind::Unresolved {
            host,
            cause: cause.to_string(),
        }
        .unsent();
    }
    if let Some(client::ConnectTimeoutError(after)) = found_in(&error) {
        return ErrorKind::ConnectTimeout {
            host,
            after: *after,
        }
        .unsent();
    }
    let cause = cause_of(&error);
    if error.is_connect() {
        return ErrorKind::Connect { host, cause }.unsent();
    }
    // Cancelled by hyper: the connection was gone before the request was handed to it.
    let unsent = error.is_builder()
        || found_in::<hyper::Error>(&error).is_some_and(hyper::Error::is_canceled);
    EgressError {
        kind: ErrorKind::Broken { host, cause },
        sent: !unsent,
    }
}

fn found_in<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    chain(error).find_map(<dyn StdError>::downcast_ref)
}

/// The innermost cause, which says what happened.
pub(super) fn cause_of(error: &(dyn StdError + 'static)) -> String {
    chain(error)
        .last()
        .map(ToString::to_string)
        .unwrap_or_default()
}

fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}
