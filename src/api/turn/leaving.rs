//! What happens to a run whose client leaves.

use std::sync::Arc;

use crate::{
    app::{App, accounts::Caller, runs::repeats},
    domain::{ids::RunId, principal::Principal},
};

/// What happens to the run when the client disconnects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::api) enum OnDisconnect {
    KeepRunning,
    Stop,
    /// Unless the client comes back.
    StopLater,
}

impl OnDisconnect {
    /// As the caller's key says.
    pub fn of(caller: &Caller) -> Self {
        if caller.chat.keep_running {
            Self::KeepRunning
        } else {
            Self::Stop
        }
    }
}

/// What is to be done when a client leaves.
pub(super) struct Leaving {
    pub app: Arc<App>,
    pub principal: Principal,
    pub run: RunId,
    pub on_disconnect: OnDisconnect,
    /// How often the client came back before.
    pub repeats: i32,
}

impl Leaving {
    pub fn stop(&self) {
        let later = match self.on_disconnect {
            OnDisconnect::KeepRunning => return,
            OnDisconnect::Stop => None,
            OnDisconnect::StopLater => Some(self.repeats),
        };
        repeats::stop_unless_repeated(&self.app, &self.principal, self.run, later);
    }
}
