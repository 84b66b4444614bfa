//! The calls of clients that are open, so that a client can cancel one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

use super::MAX_ID;
use crate::{
    app::App,
    domain::{
        ids::{AgentId, TenantId, UserId},
        principal::Principal,
    },
    store::hints::Hint,
};

/// The calls of clients that this process is making, by whom and by the client's own id of the call.
#[derive(Default)]
pub struct OpenCalls(Mutex<HashMap<CallKey, Vec<CancellationToken>>>);

/// Tenant, user, agent, and the id of the request as the client wrote it.
type CallKey = (TenantId, UserId, AgentId, String);

/// A call that can be cancelled from another request, until this is dropped. Then the call is given up if it is not over.
pub struct OpenCall {
    pub(super) app: Arc<App>,
    key: CallKey,
    pub cancel: CancellationToken,
}

impl OpenCalls {
    fn lock(&self) -> MutexGuard<'_, HashMap<CallKey, Vec<CancellationToken>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels the user's call with this id. Of two clients of one user that chose the same id, neither is cancelled.
    pub(in crate::app) fn cancel(
        &self,
        tenant: TenantId,
        user: &UserId,
        agent: &AgentId,
        id: &str,
    ) {
        let key = (tenant, user.clone(), agent.clone(), id.to_owned());
        if let Some([cancel]) = self.lock().get(&key).map(Vec::as_slice) {
            cancel.cancel();
        }
    }
}

impl OpenCall {
    pub fn begin(app: &Arc<App>, principal: &Principal, agent: &AgentId, id: &str) -> Self {
        let user = principal.user.clone();
        let key = (principal.tenant, user, agent.clone(), id.to_owned());
        let cancel = CancellationToken::new();
        let mut calls = app.client_calls.lock();
        calls.entry(key.clone()).or_default().push(cancel.clone());
        drop(calls);
        Self {
            app: app.clone(),
            key,
            cancel,
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.cancel.cancel();
        let mut calls = self.app.client_calls.lock();
        if let Some(open) = calls.get_mut(&self.key) {
            // This one is cancelled now. One that another request cancelled leaves with its own drop or with this.
            open.retain(|call| !call.is_cancelled());
            if open.is_empty() {
                calls.remove(&self.key);
            }
        }
    }
}

/// Cancels a call of the principal's client, on whichever replica it is made.
pub fn cancel(app: &App, principal: &Principal, agent: &AgentId, id: &str) {
    app.client_calls
        .cancel(principal.tenant, &principal.user, agent, id);
    if id.len() <= MAX_ID {
        let _ = app.hints.send(Hint::CallCancelled {
            tenant: principal.tenant,
            agent: agent.clone(),
            id: id.to_owned(),
            user: principal.user.clone(),
        });
    }
}
