//! Keeps the client library's own log lines and spans away from ours.
//!
//! It writes whole requests and replies at `trace` and provider messages, which may quote the prompt, at `warn`.
//! No log filter may bring those out, so everything of it runs without a subscriber.

use std::{future::poll_fn, pin::pin};

use tracing::dispatcher::{Dispatch, with_default};

/// Runs `work` with nobody listening to its log lines.
pub(super) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    with_default(&Dispatch::none(), work)
}

/// The same for a future: each poll of it is quiet.
pub(super) async fn quiet<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| quietly(|| future.as_mut().poll(context))).await
}
