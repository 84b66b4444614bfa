//! Keeps the client library's own log lines and spans away from ours.
//!
//! It writes whole requests and replies at `trace` and provider messages, which may quote the prompt, at `warn`.
//! No log filter may bring those out, so everything of it runs without a subscriber. The HTTP client below it is
//! given ours back ([`aloud`]): it logs no bodies, and which of its lines are enabled is remembered per process.

use tracing::{
    dispatcher::{Dispatch, get_default, with_default},
    instrument::WithSubscriber,
};

/// Runs `work` with nobody listening to its log lines.
pub(super) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    with_default(&Dispatch::none(), work)
}

/// The same for a future: each poll of it is quiet.
pub(super) fn quiet<F: Future>(future: F) -> impl Future<Output = F::Output> {
    future.with_subscriber(Dispatch::none())
}

/// Whoever listens to our log lines now.
pub(super) fn listener() -> Dispatch {
    get_default(Clone::clone)
}

/// Runs a future inside a quiet one with `listener` listening.
pub(super) fn aloud<F: Future>(future: F, listener: &Dispatch) -> impl Future<Output = F::Output> {
    future.with_subscriber(listener.clone())
}
