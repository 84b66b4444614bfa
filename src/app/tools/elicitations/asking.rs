//! A question is stored, sealed and shown, and its answer awaited.

use std::sync::Arc;

use tokio::time::timeout;

use super::{
    LIVE_LEASE, POLL_INTERVAL, TIME_LIMIT, append,
    sealing::{context, seal, unseal},
    time_limit_of, withdraw,
};
use crate::{
    app::{App, platform::keys::contexts::ElicitationValue},
    domain::{
        elicitation::{Answer, Dismissal, Elicitation, Request, State, prompt},
        error::Result,
        ids::TenantId,
        message::Part,
        principal::Principal,
        texts,
    },
    live::{Listener, LiveEvent},
    store,
};

/// Asks the user; the call is over, and the answer opens a run that makes it again. `false` when another question is
/// open in the conversation.
pub async fn ask(
    app: &Arc<App>,
    principal: &Principal,
    mut elicitation: Elicitation,
    request: &Request,
) -> Result<bool> {
    let part = prepare(app, principal, &mut elicitation, request).await?;
    let opened = open(app, principal.tenant, &elicitation, &part).await?;
    Ok(matches!(opened, OpenOutcome::Open))
}

/// Asks the user and waits for the answer while the call is open; `None` when a question without a waiter is open in
/// the conversation. A question of another open call comes first. The question is withdrawn when `abandoned` ends.
pub async fn ask_and_wait(
    app: &Arc<App>,
    principal: &Principal,
    mut elicitation: Elicitation,
    request: &Request,
    abandoned: impl Future<Output = ()>,
) -> Result<Option<Answer>> {
    elicitation.live = true;
    let part = prepare(app, principal, &mut elicitation, request).await?;
    let answered = tokio::select! {
        answered = open_and_wait(app, principal.tenant, &elicitation, &part) => answered,
        () = abandoned => Ok(Some(None)),
    };
    if let Ok(Some(Some(answer))) = answered {
        return Ok(Some(answer));
    }
    // It deletes no row that was answered, expired or never opened.
    if let Err(error) = withdraw(app, principal, &elicitation).await {
        tracing::warn!(%error, server = %elicitation.server, "a question could not be withdrawn; it ends by the clock");
    }
    let cancelled = Answer::dismissed(&request.keys, Dismissal::Cancel, None);
    Ok(answered?.map(|_| cancelled))
}

/// Opens the question and waits. The inner `None` means that the question ended without an answer.
async fn open_and_wait(
    app: &App,
    tenant: TenantId,
    elicitation: &Elicitation,
    part: &Part,
) -> Result<Option<Option<Answer>>> {
    // Listen first, read second: nothing falls in between.
    let mut listener = app.live.listen(tenant, elicitation.conversation);
    loop {
        match open(app, tenant, elicitation, part).await? {
            OpenOutcome::Open => break,
            OpenOutcome::Busy { live: false } => return Ok(None),
            OpenOutcome::Busy { live: true } => next_event(&mut listener).await,
        }
    }
    loop {
        let mut tx = app.db.tenant(tenant).await?;
        let renewed = store::elicitations::renew_lease(&mut tx, elicitation.id, LIVE_LEASE).await?;
        let Some(current) = renewed else {
            return Ok(Some(None));
        };
        if current.state != State::Open {
            store::elicitations::end(&mut tx, current.id).await?;
            tx.commit().await?;
            let unsealed = unseal(app, tenant, &current).await?;
            return Ok(Some(
                unsealed.map(|(request, entered)| request.answer(&entered)),
            ));
        }
        tx.commit().await?;
        next_event(&mut listener).await;
    }
}

/// Waits until something was written into the conversation, or for a moment.
async fn next_event(listener: &mut Listener) {
    let durable = async { while let LiveEvent::Transient { .. } = listener.next().await {} };
    // On a timeout the poll is due.
    let _ = timeout(POLL_INTERVAL, durable).await;
}

/// What came of opening a question.
enum OpenOutcome {
    Open,
    /// Another question is open in the conversation.
    Busy {
        live: bool,
    },
}

/// Writes the row and the prompt.
async fn open(
    app: &App,
    tenant: TenantId,
    elicitation: &Elicitation,
    part: &Part,
) -> Result<OpenOutcome> {
    let mut tx = app.db.tenant(tenant).await?;
    if let Some(other) = store::elicitations::open(&mut tx, elicitation.conversation).await? {
        return Ok(OpenOutcome::Busy { live: other.live });
    }
    let life = if elicitation.live {
        LIVE_LEASE
    } else {
        TIME_LIMIT
    };
    let event = append(&mut tx, tenant, elicitation, part.clone()).await?;
    if !store::elicitations::begin(&mut tx, tenant, elicitation, life).await? {
        // Opened by another call between the two statements: only a waiter tries again.
        return Ok(OpenOutcome::Busy { live: true });
    }
    tx.commit().await?;
    app.announce(tenant, elicitation.conversation, event);
    metrics::counter!("chatelaine_elicitations_total").increment(1);
    Ok(OpenOutcome::Open)
}

/// Seals the request into the row; its prompt.
async fn prepare(
    app: &App,
    principal: &Principal,
    elicitation: &mut Elicitation,
    request: &Request,
) -> Result<Part> {
    let context = context(principal.tenant, elicitation, ElicitationValue::Asked);
    elicitation.request = seal(app, &context, request).await?;
    let pack = app.library.get(&elicitation.agent);
    let texts = texts::for_optional_pack(pack.as_deref(), principal);
    Ok(prompt(
        &texts,
        elicitation,
        request,
        time_limit_of(elicitation),
    ))
}
