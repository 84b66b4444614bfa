//! What a worker writes while its run goes on, each step durable before the next, and what it tells the listeners.

use std::sync::{MutexGuard, PoisonError, atomic::Ordering};

use super::{RunWorker, calls, history::ModelTranscript};
use crate::{
    domain::{
        error::Result,
        event::{Event, Transient},
        message::{Part, Role, ToolCall},
    },
    llm::Reply,
    store::{self, Tx, audit::AuditRow, messages::NewMessage},
};

impl RunWorker {
    /// A reply that calls tools as a row, with its usage and the lines of the audit trail for the calls that begin at once,
    /// in one transaction.
    pub(super) async fn append_reply(
        &self,
        reply: &Reply,
        calls: &[calls::ResolvedCall],
        lines: &[AuditRow],
    ) -> Result<()> {
        let mut parts = Vec::new();
        if !reply.text.trim().is_empty() {
            parts.push(Part::text(reply.text.clone()));
        }
        parts.extend(calls.iter().map(|(call, _)| Part::ToolCall(call.clone())));
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        store::runs::add_step(&mut tx, &self.run, reply.usage).await?;
        store::audit::insert(&mut tx, self.run.tenant, lines).await?;
        self.commit(tx, Role::Assistant, &parts, true).await
    }

    /// The call of a command as a row, with its line of the audit trail.
    pub(super) async fn append_call(&self, call: &ToolCall, lines: &[AuditRow]) -> Result<()> {
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        self.hold(&mut tx).await?;
        store::audit::insert(&mut tx, self.run.tenant, lines).await?;
        let parts = [Part::ToolCall(call.clone())];
        self.commit(tx, Role::Assistant, &parts, false).await
    }

    /// Adds a message of this run, if the run is still ours, and tells the listeners.
    pub(super) async fn append(&self, role: Role, parts: &[Part], for_model: bool) -> Result<()> {
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        self.hold(&mut tx).await?;
        self.commit(tx, role, parts, for_model).await
    }

    /// Locks the run, if it is still ours. A wish to stop it is heard before anything follows from what is written:
    /// the result of a child that was stopped with it is there earlier than the next heartbeat.
    pub(super) async fn hold(&self, tx: &mut Tx) -> Result<()> {
        if store::runs::assert_held(tx, &self.run).await? {
            self.cancel.cancel();
        }
        Ok(())
    }

    pub(super) async fn commit(
        &self,
        mut tx: Tx,
        role: Role,
        parts: &[Part],
        for_model: bool,
    ) -> Result<()> {
        let event = self.write(&mut tx, role, parts, for_model).await?;
        tx.commit().await?;
        self.announce(event);
        Ok(())
    }

    /// After the commit: tells everybody who listens.
    pub(super) fn announce(&self, event: Event) {
        self.last_event.fetch_max(event.seq, Ordering::Relaxed);
        self.app
            .announce(self.run.tenant, self.run.conversation, event);
    }

    pub(super) async fn write(
        &self,
        tx: &mut Tx,
        role: Role,
        parts: &[Part],
        for_model: bool,
    ) -> Result<Event> {
        let run = &self.run;
        let message = NewMessage {
            run: Some(run.id),
            run_ordinal: run.ordinal,
            role,
            parts,
            for_model,
        };
        let (message, event) =
            store::messages::append(tx, run.tenant, run.conversation, message).await?;
        if for_model && let Some(transcript) = &mut *self.transcript() {
            transcript.messages.push(message);
        }
        Ok(event)
    }

    pub(super) fn transient(&self, event: Transient) {
        let follows = self.last_event.load(Ordering::Relaxed);
        let place = (self.run.tenant, self.run.conversation);
        self.app.live.transient(place, follows, event);
    }

    pub(super) fn transcript(&self) -> MutexGuard<'_, Option<ModelTranscript>> {
        self.transcript
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
