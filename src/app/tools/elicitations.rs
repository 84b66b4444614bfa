//! Questions of servers to the user of a call: opening one, waiting for its answer, and ending it. A question is a row
//! and a prompt in the conversation, written in one transaction; the user's answer closes the row.
//!
//! In the newer revision of the protocol a call is answered with a question and is over: nothing waits, and the run that
//! is given the answer makes the call again. In the older one the server asks while the call is open: the same row then
//! has a waiter, whose lease it is and whose time is bounded ([`LIVE_PATIENCE`]). That is the only case in which anything
//! in memory waits for a person. A row whose waiter is gone ends by the clock; the answer may come in at any replica.

use std::{sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use crate::{
    app::{
        App,
        platform::keys::{
            OpenError,
            contexts::{self, ElicitationValue},
        },
    },
    domain::{
        elicitation::{Answer, Dismissal, Elicitation, Entered, Request, State, prompt},
        error::{Error, Result},
        event::Event,
        ids::{ConversationId, TenantId},
        message::{Part, Role},
        principal::Principal,
        run::ClaimedRun,
        secret::Secret,
        texts::{self, Key},
    },
    live::{Listener, LiveEvent},
    mcp::LIVE_PATIENCE,
    store::{self, Tx, messages::NewMessage},
    vault::Context,
};

/// How long the user may think about one question.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
/// How long a question stands whose waiter does not renew its lease.
const LIVE_LEASE: Duration = Duration::from_secs(15);
/// How often the waiter reads the row although no listener woke it: a hint may be lost.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often questions that were not answered in time are looked for.
pub const EXPIRY_INTERVAL: Duration = Duration::from_secs(30);

/// Where the user of a call can be asked.
#[derive(Clone, Copy, Debug)]
pub struct ElicitationTarget {
    pub conversation: ConversationId,
    /// Whether a model waits for the outcome.
    pub for_model: bool,
    /// Whether the user can answer while the call is open.
    pub live: bool,
}

/// Where the user of a run can be asked. `None` when they are not in the conversation, or when an answer cannot be kept
/// sealed.
pub fn target_of(app: &App, run: &ClaimedRun, for_model: bool) -> Option<ElicitationTarget> {
    let can_ask = app.keys.has_ring() && !run.start.is_delegated;
    can_ask.then_some(ElicitationTarget {
        conversation: run.conversation,
        for_model,
        // A client that keeps the transcript cannot speak before it has its answer.
        live: !run.start.is_of_client,
    })
}

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
        PATIENCE
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
        patience_of(elicitation),
    ))
}

/// How long the user has for the answer.
pub fn patience_of(elicitation: &Elicitation) -> Duration {
    if elicitation.live {
        LIVE_PATIENCE
    } else {
        PATIENCE
    }
}

/// Writes an answer into the row, in the caller's transaction. `run`: the run that goes on with it; a question with a
/// waiter has none. `Conflict` when the question was answered or ended meanwhile.
pub async fn record_answer(
    tx: &mut Tx,
    seen: &Elicitation,
    next: &store::elicitations::NextStep<'_>,
) -> Result<()> {
    let life = if seen.live { LIVE_LEASE } else { PATIENCE };
    if store::elicitations::answer(tx, seen, next, life).await? {
        return Ok(());
    }
    Err(Error::Conflict(
        "the question was answered or withdrawn meanwhile; look at the conversation".to_owned(),
    ))
}

/// Ends a question whose answer has no waiter any more. Its user is told, unless it was answered or never opened.
async fn withdraw(app: &App, principal: &Principal, elicitation: &Elicitation) -> Result<()> {
    let pack = app.library.get(&elicitation.agent);
    let texts = texts::for_optional_pack(pack.as_deref(), principal);
    let server = ("server", elicitation.server.as_str());
    let text = texts.render(Key::AskWithdrawn, &[server]);
    let mut tx = app.db.tenant(principal.tenant).await?;
    let event = append(
        &mut tx,
        principal.tenant,
        elicitation,
        notice("input_withdrawn", text),
    )
    .await?;
    if store::elicitations::end(&mut tx, elicitation.id).await? {
        tx.commit().await?;
        app.announce(principal.tenant, elicitation.conversation, event);
    }
    Ok(())
}

/// Tells the user of a question that they were not asked. A failure is only logged.
pub async fn notify_declined(
    app: &App,
    principal: &Principal,
    elicitation: &Elicitation,
    key: Key,
    what: &str,
) {
    let pack = app.library.get(&elicitation.agent);
    let texts = texts::for_optional_pack(pack.as_deref(), principal);
    let (server, tool) = (elicitation.server.as_str(), elicitation.tool.as_str());
    let text = texts.render(key, &[("server", server), ("tool", tool), ("what", what)]);
    let written = async {
        let mut tx = app.db.tenant(principal.tenant).await?;
        let part = notice("input_declined", text);
        let event = append(&mut tx, principal.tenant, elicitation, part).await?;
        tx.commit().await?;
        app.announce(principal.tenant, elicitation.conversation, event);
        Ok::<_, Error>(())
    };
    if let Err(error) = written.await {
        tracing::warn!(%error, server, "a user could not be told what a server asked");
    }
}

fn notice(code: &str, text: String) -> Part {
    Part::Notice {
        code: code.to_owned(),
        text,
    }
}

/// Writes a message of the program into the run in which the server asked.
async fn append(
    tx: &mut Tx,
    tenant: TenantId,
    elicitation: &Elicitation,
    part: Part,
) -> Result<Event> {
    let message = NewMessage {
        run: Some(elicitation.run),
        run_ordinal: 0,
        role: Role::System,
        parts: &[part],
        for_model: false,
    };
    let written = store::messages::append(tx, tenant, elicitation.conversation, message);
    Ok(written.await?.1)
}

/// What is asked and what was answered so far; `None` when it cannot be opened any more.
pub async fn unseal(
    app: &App,
    tenant: TenantId,
    elicitation: &Elicitation,
) -> Result<Option<(Request, Entered)>> {
    let of = |which| context(tenant, elicitation, which);
    let Some(request) =
        open_sealed(app, &of(ElicitationValue::Asked), &elicitation.request).await?
    else {
        return Ok(None);
    };
    let entered = match &elicitation.entered {
        Some(sealed) => open_sealed(app, &of(ElicitationValue::Entered), sealed).await?,
        None => Some(Entered::default()),
    };
    Ok(entered.map(|entered| (request, entered)))
}

/// Seals what was answered so far.
pub async fn seal_entered(
    app: &App,
    tenant: TenantId,
    elicitation: &Elicitation,
    entered: &Entered,
) -> Result<Vec<u8>> {
    let context = context(tenant, elicitation, ElicitationValue::Entered);
    seal(app, &context, entered).await
}

fn context(tenant: TenantId, elicitation: &Elicitation, which: ElicitationValue) -> Context {
    let place = (elicitation.agent.as_str(), elicitation.server.as_str());
    contexts::of_elicitation(tenant, &elicitation.user, place, elicitation.id, which)
}

async fn seal(app: &App, context: &Context, value: &impl Serialize) -> Result<Vec<u8>> {
    let text = Secret::new(serde_json::to_string(value).map_err(Error::internal)?);
    app.keys.seal(context.tenant, context, &text).await
}

async fn open_sealed<T: DeserializeOwned>(
    app: &App,
    context: &Context,
    sealed: &[u8],
) -> Result<Option<T>> {
    match app.keys.open(context.tenant, context, sealed).await {
        Ok(text) => serde_json::from_str(text.expose())
            .map(Some)
            .map_err(Error::internal),
        Err(OpenError::Unopenable(_)) => Ok(None),
        Err(OpenError::Failed(error)) => Err(error),
    }
}

/// Ends the questions whose time is over; their users are told.
pub async fn expire_overdue(app: &Arc<App>) -> Result<()> {
    let mut tx = app.db.system().await?;
    let tenants = store::elicitations::tenants_with_overdue(&mut tx).await?;
    drop(tx);
    for tenant in tenants {
        let mut tx = app.db.tenant(tenant).await?;
        let mut events = Vec::new();
        for expired in store::elicitations::expire(&mut tx).await? {
            let (user, conversation) = (&expired.user, expired.conversation);
            let found = store::conversations::get(&mut tx, user, conversation, true).await;
            if let Err(Error::NotFound(_)) = found {
                continue;
            }
            let (key, code) = if expired.live {
                (Key::AskWithdrawn, "input_withdrawn")
            } else {
                (Key::AskExpired, "input_expired")
            };
            let pack = app.library.get(&expired.agent);
            let texts = texts::default_texts(pack.as_deref());
            let part = notice(
                code,
                texts.render(key, &[("server", expired.server.as_str())]),
            );
            let event = append(&mut tx, tenant, &expired, part).await?;
            events.push((conversation, event));
        }
        tx.commit().await?;
        for (conversation, event) in events {
            app.announce(tenant, conversation, event);
        }
    }
    Ok(())
}
