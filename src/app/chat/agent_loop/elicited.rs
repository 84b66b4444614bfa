//! Calls whose user has answered their server's question: made again with the answer, once. Marked before they are
//! sent, so that whoever takes the run up does not send them a second time.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc;

use super::Work;
use crate::{
    app::{
        chat::elicitations::{self, Asker},
        tools::{
            gate::{
                Call, Target,
                input::{self, Answered},
            },
            toolset,
        },
    },
    domain::{
        elicitation::{Asked, Entered, Pending, State},
        error::Result,
        message::{CallOutcome, CallStatus, Part, Role, ToolResult},
        pack::Pack,
        resource,
    },
    store,
};

impl Work {
    /// Makes the calls that this run was given the answer for; what came of those that are over. `None` when it was
    /// given none.
    pub(super) async fn resume_calls(
        &self,
        pack: &Arc<Pack>,
        asker: Option<Asker>,
    ) -> Result<Option<Vec<ToolResult>>> {
        if !self.app.keys.has_ring() {
            return Ok(None);
        }
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        let mut given = store::elicitations::given_to(&mut tx, self.run.id).await?;
        drop(tx);
        given.retain(|pending| pending.state != State::Open);
        if given.is_empty() {
            return Ok(None);
        }
        let mut results = Vec::new();
        for pending in given {
            let result = self.resume_call(pack, &pending, asker).await?;
            self.keep_outcome(&pending, &result).await?;
            if result.status != CallStatus::AwaitingInput {
                results.push(result);
            }
        }
        Ok(Some(results))
    }

    async fn resume_call(
        &self,
        pack: &Arc<Pack>,
        pending: &Pending,
        asker: Option<Asker>,
    ) -> Result<ToolResult> {
        let result = |status, text: &str| ToolResult {
            call_id: pending.call_id.clone(),
            status,
            text: text.to_owned(),
            raw: None,
            approval: None,
        };
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        store::runs::assert_held(&mut tx, &self.run).await?;
        let first = store::elicitations::mark_sent(&mut tx, pending.id).await?;
        tx.commit().await?;
        if !first {
            let text = "outcome unknown: the service stopped while this call was under way; it may or may not have been \
                        done. It was not repeated. Check before trying again";
            return Ok(result(CallStatus::OutcomeUnknown, text));
        }
        let Some((form, entered)) =
            elicitations::opened(&self.app, self.run.tenant, pending).await?
        else {
            return Ok(result(
                CallStatus::Denied,
                "not executed: what the user answered cannot be opened any more",
            ));
        };
        if self.cancel.is_cancelled() {
            return Ok(result(
                CallStatus::Cancelled,
                "cancelled before it was sent",
            ));
        }
        self.send_answer(pack, pending, form, &entered, asker).await
    }

    async fn send_answer(
        &self,
        pack: &Arc<Pack>,
        pending: &Pending,
        form: Asked,
        entered: &Entered,
        asker: Option<Asker>,
    ) -> Result<ToolResult> {
        let toolbox = toolset::toolbox(&self.app, &self.run.principal, pack).await?;
        let arguments: Value = serde_json::from_str(form.arguments.get()).unwrap_or_default();
        // Nobody shows progress of a call that has no row of its own any more.
        let (progress, _) = mpsc::unbounded_channel();
        let call = Call {
            principal: &self.run.principal,
            toolbox: &toolbox,
            run: self.run.id,
            call_id: &pending.call_id,
            target: Target::Pair {
                server: pending.server.as_str(),
                tool: &pending.tool,
            },
            arguments: Ok(arguments),
            irregularity: None,
            progress,
            cancel: self.cancel.clone(),
            asker: asker.map(|asker| Asker {
                for_model: pending.for_model,
                ..asker
            }),
        };
        let answer = form.answer(entered);
        let credential = pending.credential.clone();
        let answered = Answered {
            credential,
            arguments: form.arguments,
            answer,
            rounds: pending.round,
        };
        Ok(input::resume(&self.app, &call, answered).await)
    }

    /// What came of a call as a row, for the model if one waits for it. One that waits again is told of later.
    async fn keep_outcome(&self, pending: &Pending, result: &ToolResult) -> Result<()> {
        let mut tx = self.app.db.tenant(self.run.tenant).await?;
        store::runs::assert_held(&mut tx, &self.run).await?;
        store::elicitations::end(&mut tx, pending.id).await?;
        if result.status == CallStatus::AwaitingInput {
            return tx.commit().await;
        }
        let links = result
            .raw
            .as_ref()
            .map(|raw| resource::links_in(raw))
            .unwrap_or_default();
        let whose = (pending.server.as_str(), pending.tool.as_str());
        store::resources::keep(
            &mut tx,
            self.run.tenant,
            self.run.conversation,
            whose,
            &links,
        )
        .await?;
        let outcome = CallOutcome {
            call_id: pending.call_id.clone(),
            server: pending.server.to_string(),
            tool: pending.tool.clone(),
            status: result.status,
            text: result.text.clone(),
            raw: result.raw.clone(),
        };
        self.commit(
            tx,
            Role::System,
            &[Part::CallOutcome(Box::new(outcome))],
            pending.for_model,
        )
        .await
    }
}
