//! How a new request is announced to its requester and its approvers.

use std::sync::Arc;

use crate::{
    app::tools::approvals::{App, AuditedStep, audit, changed, delivery, time_of},
    domain::{
        approval::{Approval, State},
        error::Result,
        message::{Part, Role},
    },
    store::{self, Tx, messages::NewMessage},
};

/// What is said of a call that waits, and what the model is to do.
pub fn waiting_text(approval: &Approval, is_new: bool) -> (String, &'static str) {
    let (code, approvers) = (&approval.code, approval.consent.approvers.join(" or "));
    match approval.state {
        State::Pending => {}
        State::Approved | State::Executing => {
            let text = format!(
                "not executed again: request {code} for this very call is approved and being carried out"
            );
            return (text, "do not retry");
        }
        ended => {
            let text = format!(
                "not executed again: request {code} for this very call is over ({}), and its outcome is told in the \
                 conversation",
                ended.as_str()
            );
            return (text, "do not retry");
        }
    }
    let again = if is_new { "" } else { "still " };
    let text = format!(
        "not executed: {again}waiting for approval {code} by {approvers} until {}",
        time_of(approval.expires_at)
    );
    let advice = "do not retry. Tell the user the code and who can approve it. You will be told the outcome.";
    (text, advice)
}

/// Shows a new request in its conversation and commits.
pub(super) async fn announce_request(
    app: &Arc<App>,
    mut tx: Tx,
    approval: &Approval,
    run_ordinal: i64,
) -> Result<()> {
    let mut event = None;
    if let Some(conversation) = approval.conversation {
        let parts = [Part::Approval(Box::new(delivery::note(
            app, approval, None,
        )))];
        let message = NewMessage {
            run: approval.run,
            run_ordinal,
            role: Role::System,
            parts: &parts,
            for_model: false,
        };
        let (_, added) =
            store::messages::append(&mut tx, approval.tenant, conversation, message).await?;
        event = Some((conversation, added));
    }
    let step = AuditedStep::new("approval.requested", approval.requester());
    audit(app, &mut tx, approval, step).await?;
    tx.commit().await?;
    if let Some((conversation, event)) = event {
        app.announce(approval.tenant, conversation, event);
    }
    changed(app, approval);
    metrics::counter!("chatelaine_approvals_requested_total").increment(1);
    Ok(())
}
