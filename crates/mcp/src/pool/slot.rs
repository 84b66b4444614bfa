//! One place of the pool: what its connection is doing, and how often that failed.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{Slot, State};
use crate::{
    ConnectionState, McpError, Options, error::McpErrorKind, interceptor::locked, session::Session,
};
use domain::{backoff, clock, server::Endpoint};

/// A child that ends within this time has exited early. The first early exits are followed by a new start at once, the
/// later ones by a growing pause.
const EARLY_EXIT: Duration = Duration::from_secs(30);
const IMMEDIATE_RESTARTS: u32 = 2;
/// A server that sends too much only after this time is connected again as if it were the first time.
const PATIENCE: Duration = Duration::from_secs(600);
/// A session that was lost within this time is one of several in a row. The first ones are replaced at once.
const SOON_LOST: Duration = Duration::from_secs(60);
const IMMEDIATE_RENEWALS: u32 = 3;

impl Slot {
    pub(super) fn is_ready(&self) -> bool {
        matches!(&*locked(&self.state), State::Ready(_))
    }

    /// Marks the slot as gone; its session, if it had one.
    pub(super) fn mark_closed(&self) -> Option<Arc<Session>> {
        match std::mem::replace(&mut *locked(&self.state), State::Closed) {
            State::Ready(session) => Some(session),
            _ => None,
        }
    }

    /// A session is gone. Why it is not opened again at once: it was closed for what the server sent, or its child
    /// dies again and again.
    pub(super) fn count_early_exit(
        &self,
        session: &Session,
        options: &Options,
    ) -> Option<McpError> {
        if let Some(reason) = session.overrun_reason() {
            if session.since.elapsed() >= PATIENCE {
                self.deaths.store(0, Ordering::Relaxed);
            }
            let overruns = self
                .deaths
                .fetch_add(1, Ordering::Relaxed)
                .saturating_add(1);
            return Some(McpError {
                retry_in: Some(pause(options, overruns)),
                ..McpError::new(McpErrorKind::Protocol, reason)
            });
        }
        if !matches!(self.target.spec.endpoint, Endpoint::Stdio { .. })
            || session.since.elapsed() >= EARLY_EXIT
        {
            self.deaths.store(0, Ordering::Relaxed);
            return None;
        }
        let deaths = self
            .deaths
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        let pause = pause(
            options,
            deaths.checked_sub(IMMEDIATE_RESTARTS).filter(|n| *n > 0)?,
        );
        let message = format!("the server ended {deaths} times in a row soon after its start");
        Some(McpError {
            retry_in: Some(pause),
            ..McpError::new(McpErrorKind::Unreachable, message)
        })
    }

    /// The server answered a request in a session with the credential of this slot.
    pub(crate) fn prove(&self) {
        self.is_proven.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Relaxed)
    }

    /// A session is in doubt. Whether it may be replaced by a new one at once; sessions that are in doubt one soon after
    /// the other may be so only a few times.
    pub(super) fn may_renew(&self, session: &Session) -> bool {
        if session.since.elapsed() >= SOON_LOST {
            self.losses.store(0, Ordering::Relaxed);
        }
        self.losses
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |losses| {
                (losses < IMMEDIATE_RENEWALS).then_some(losses + 1)
            })
            .is_ok()
    }

    pub(super) fn forget_losses(&self) {
        self.losses.store(0, Ordering::Relaxed);
    }

    /// A session that could not be replaced at once is lost: how long its server is left alone.
    pub(super) fn count_loss(&self, options: &Options) -> McpError {
        let losses = self
            .losses
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        let times = losses.saturating_sub(IMMEDIATE_RENEWALS).max(1);
        McpError {
            retry_in: Some(pause(options, times)),
            ..McpError::new(
                McpErrorKind::Unreachable,
                "the server loses one session after the other",
            )
        }
    }

    /// One failure more, and how long the server is left alone for it.
    pub(super) fn count_failure(&self, error: McpError, options: &Options) -> McpError {
        let failures = self
            .failures
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        let pause = pause(options, failures);
        McpError {
            retry_in: Some(pause.max(error.retry_in.unwrap_or_default())),
            ..error
        }
    }

    pub(super) fn connection_state(&self) -> ConnectionState {
        match &*locked(&self.state) {
            State::Connecting(_) => ConnectionState::Connecting,
            State::Ready(session) if !session.is_dead() => ConnectionState::Ready {
                era: session.era,
                since: session.since,
            },
            State::Down { error, until } => ConnectionState::Down {
                error: McpError {
                    retry_in: None,
                    ..error.clone()
                },
                retry_in: until.saturating_duration_since(clock::instant()),
            },
            State::Ready(_) | State::Idle | State::Closed => ConnectionState::Idle,
        }
    }
}

/// How long a server is left alone after so many failures in a row.
fn pause(options: &Options, failures: u32) -> Duration {
    let chance = rand::random();
    backoff::delay(options.first_pause, options.longest_pause, failures, chance)
}
