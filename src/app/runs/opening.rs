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
        run::{Conversation, Run, RunKind},
    },
    store::{self, Tx, runs::NewRun, trees::Given},
};

/// A run to open. Its conversation is locked by the caller.
pub struct RunRequest<'a> {
    pub id: RunId,
    pub conversation: &'a Conversation,
    pub principal: &'a Principal,
    pub kind: RunKind,
    pub place: Place<'a>,
    /// What the run answers.
    pub role: Role,
    pub parts: &'a [Part],
    pub for_model: bool,
    /// The title of a conversation that has none.
    pub title: Option<&'a str>,
}

/// Where a run stands among others.
pub enum Place<'a> {
    /// For itself.
    Alone,
    /// In the tree of another one, if that has a tree.
    WithRun(RunId),
    /// At a place of a tree. If the run above waits for the end of this one, this one works without a permit of its own.
    InTree {
        given: Given<'a>,
        parent_waits: bool,
    },
}

/// A run that is written and not yet committed.
pub struct OpenedRun {
    /// A run that was waiting already, if the message joined it.
    pub run: Run,
    pub message: Message,
    tenant: TenantId,
    event: Event,
    claim: Option<Claim>,
}

/// Writes a run and the message that it answers.
pub async fn open(app: &App, tx: &mut Tx, request: &RunRequest<'_>) -> Result<OpenedRun> {
    let stopping = app.shutdown.is_cancelled();
    let permit = if stopping {
        None
    } else {
        app.places.clone().try_acquire_owned().ok()
    };
    let parent_waits =
        matches!(&request.place, Place::InTree { parent_waits, .. } if *parent_waits);
    let at_once = permit.is_some() || parent_waits && !stopping;
    let new = NewRun {
        id: request.id,
        conversation: request.conversation.id,
        agent: &request.conversation.agent,
        principal: request.principal,
        kind: request.kind,
        worker: at_once.then_some((app.replica, app.config.run_lease)),
        role: request.role,
        parts: request.parts,
        for_model: request.for_model,
        title: request.title,
    };
    let mut written = store::runs::create(tx, &new).await?;
    let is_delegated = match &request.place {
        Place::Alone => false,
        Place::WithRun(other) => store::trees::follow(tx, written.run.id, *other).await?,
        Place::InTree { given, .. } => {
            store::trees::plant(tx, written.run.id, given).await?;
            true
        }
    };
    if let Some(run) = &mut written.claimed {
        run.start.is_delegated = is_delegated;
    }
    Ok(OpenedRun {
        run: written.run,
        message: written.message,
        tenant: request.principal.tenant,
        event: written.event,
        claim: written.claimed.map(|run| (run, permit)),
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
