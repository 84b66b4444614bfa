//! Opening a run. The run and the message that it answers are written in one transaction; after the commit the listeners
//! are told, and the run starts in this process if there is a place for it.

use super::scheduler::Claim;
use crate::{
    app::App,
    domain::{
        error::Result,
        event::Event,
        ids::{RunId, TenantId},
        message::{Message, Part, Role},
        principal::Principal,
        run::{Conversation, RunKind},
    },
    store::{
        self, Tx,
        messages::NewMessage,
        runs::{Enqueued, NewRun},
    },
};

/// A run to open. Its conversation is locked by the caller.
pub struct RunRequest<'a> {
    pub id: RunId,
    pub conversation: &'a Conversation,
    pub principal: &'a Principal,
    pub kind: RunKind,
    /// A run waits for the end of this one, which therefore needs no place of its own.
    pub takes_place_of_parent: bool,
    /// What the run answers.
    pub role: Role,
    pub parts: &'a [Part],
    pub for_model: bool,
}

/// A run that is written and not yet committed.
pub struct OpenedRun {
    /// A run that was waiting already, if the message joined it.
    pub id: RunId,
    pub message: Message,
    tenant: TenantId,
    event: Event,
    claim: Option<Claim>,
}

/// Writes a run and the message that it answers.
pub async fn open(app: &App, tx: &mut Tx, request: &RunRequest<'_>) -> Result<OpenedRun> {
    let tenant = request.principal.tenant;
    let stopping = app.shutdown.is_cancelled();
    let permit = if stopping {
        None
    } else {
        app.places.clone().try_acquire_owned().ok()
    };
    let at_once = permit.is_some() || request.takes_place_of_parent && !stopping;
    let new = NewRun {
        id: request.id,
        conversation: request.conversation.id,
        agent: &request.conversation.agent,
        principal: request.principal,
        kind: request.kind,
        worker: at_once.then_some((app.replica, app.config.run_lease)),
    };
    let (id, run_ordinal, claimed) = match store::runs::enqueue(tx, tenant, &new).await? {
        Enqueued::Claimed(run) => (run.id, run.ordinal, Some(run)),
        Enqueued::Queued { id, ordinal } => (id, ordinal, None),
    };
    let message = NewMessage {
        run: Some(id),
        run_ordinal,
        role: request.role,
        parts: request.parts,
        for_model: request.for_model,
    };
    let (message, event) =
        store::messages::append(tx, tenant, request.conversation.id, message).await?;
    Ok(OpenedRun {
        id,
        message,
        tenant,
        event,
        claim: claimed.map(|run| (run, permit)),
    })
}

impl OpenedRun {
    /// After the commit: tells the listeners and starts the run.
    pub fn publish(self, app: &App) {
        app.announce(self.tenant, self.message.conversation_id, self.event);
        if let Some(claim) = self.claim {
            // The receiver lives as long as the process works; a run sent after that is claimed by another.
            let _ = app.work.send(claim);
        }
    }
}
