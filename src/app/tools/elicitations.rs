//! Questions of servers to the user of a call: opening one, waiting for its answer, and ending it. A question is a row
//! and a prompt in the conversation, written in one transaction; the user's answer closes the row.
//!
//! In the newer revision of the protocol, a call ends with a question. Nothing waits in memory, and the run that
//! receives the answer makes the call again. In the older revision, the server asks while the call is open. The row of
//! such a question has a waiter, which holds a lease on it and waits for a bounded time ([`LIVE_TIME_LIMIT`]). Nothing
//! else in memory waits for a person. When the waiter is gone, the row ends by the clock. The answer may reach any
//! replica.

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
    live::{Listener, LiveEvent},
};
use domain::{
    elicitation::{Answer, Dismissal, Elicitation, Entered, Request, State, prompt},
    error::{Error, ErrorCode, Result},
    event::Event,
    ids::{ConversationId, TenantId},
    message::{Part, Role},
    principal::Principal,
    run::ClaimedRun,
    secret::Secret,
    texts::{self, Key},
};
use mcp::LIVE_TIME_LIMIT;
use store::{Tx, messages::NewMessage, vault::Context};

/// How long the user may think about one question.
const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);
/// How long a question stays open when its waiter does not renew the lease.
const LIVE_LEASE: Duration = Duration::from_secs(15);
/// How often a waiter reads the row without a notification, because a hint may be lost.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often the program looks for questions that were not answered in time.
pub const EXPIRY_INTERVAL: Duration = Duration::from_secs(30);

/// The conversation in which the user of a call can be asked.
#[derive(Clone, Copy, Debug)]
pub struct ElicitationTarget {
    pub conversation: ConversationId,
    /// Whether a model waits for the outcome.
    pub for_model: bool,
    /// Whether the user can answer while the call is open.
    pub live: bool,
}

/// The conversation in which the user of a run can be asked. `None` when they are not in the conversation, or when
/// there is no key to seal the answer with.
pub fn target_of(app: &App, run: &ClaimedRun, for_model: bool) -> Option<ElicitationTarget> {
    // A program that expects JSON cannot answer questions either.
    let can_ask = app.keys.has_ring() && !run.start.is_delegated && run.start.format.is_none();
    can_ask.then_some(ElicitationTarget {
        conversation: run.conversation,
        for_model,
        // A client that keeps the transcript sends its next message only after it has this answer.
        live: !run.start.is_of_client,
    })
}

/// How long the user has for the answer.
pub fn time_limit_of(elicitation: &Elicitation) -> Duration {
    if elicitation.live {
        LIVE_TIME_LIMIT
    } else {
        TIME_LIMIT
    }
}

/// Writes an answer into the row, in the caller's transaction. `Conflict` when the question was answered or ended
/// meanwhile.
pub async fn record_answer(
    tx: &mut Tx,
    seen: &Elicitation,
    next: &store::elicitations::NextStep<'_>,
) -> Result<()> {
    let life = if seen.live { LIVE_LEASE } else { TIME_LIMIT };
    if store::elicitations::answer(tx, seen, next, life).await? {
        return Ok(());
    }
    Err(Error::conflict(
        ErrorCode::QuestionClosed,
        "the question was answered or withdrawn meanwhile; look at the conversation",
    ))
}

/// Ends a question that no longer has a waiter. A message tells its user, unless it was answered or never opened.
async fn withdraw(app: &App, principal: &Principal, elicitation: &Elicitation) -> Result<()> {
    let pack = app.packs.get(&elicitation.agent);
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
    let pack = app.packs.get(&elicitation.agent);
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
        tracing::warn!(
            error = error.with_cause(),
            server,
            "a user could not be told what a server asked"
        );
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

/// Ends the questions whose time is over and tells their users.
pub async fn expire_overdue(app: &Arc<App>) -> Result<()> {
    let tenants = app
        .db
        .look(|tx| Box::pin(store::elicitations::list_tenants_with_overdue(tx)));
    let tenants = tenants.await?;
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
            } else if expired.is_of_command() {
                (Key::SkillAskEnded, "input_expired")
            } else {
                (Key::AskExpired, "input_expired")
            };
            let pack = app.packs.get(&expired.agent);
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

/// Asks the user after a call has ended with a question; the answer opens a run that makes the call again. `false`
/// when another question is open in the conversation.
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

/// Asks the user for what a command of theirs lacks, in place of what an earlier command lacked. The caller shows the
/// prompt. `None` when a question of a server is open in the conversation.
pub async fn ask_for_command(
    app: &App,
    principal: &Principal,
    mut elicitation: Elicitation,
    request: &Request,
) -> Result<Option<Part>> {
    let part = prepare(app, principal, &mut elicitation, request).await?;
    let mut tx = app.db.tenant(principal.tenant).await?;
    if let Some(other) = store::elicitations::get_open(&mut tx, elicitation.conversation).await? {
        if !other.is_of_command() {
            return Ok(None);
        }
        store::elicitations::end(&mut tx, other.id).await?;
    }
    let is_open =
        store::elicitations::begin(&mut tx, principal.tenant, &elicitation, TIME_LIMIT).await?;
    tx.commit().await?;
    Ok(is_open.then_some(part))
}

/// Asks the user and waits for the answer while the call is open. `None` when a question without a waiter is open in
/// the conversation; a question of another open call is waited for. The question is withdrawn when `abandoned`
/// completes.
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
    // This has no effect on a question that was answered, has expired or was never opened.
    if let Err(error) = withdraw(app, principal, &elicitation).await {
        tracing::warn!(error = error.with_cause(), server = %elicitation.server, "a question could not be withdrawn; it ends by the clock");
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
    // Subscribe before the first read, so that no answer is missed.
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

/// Waits until a message is written into the conversation, or until the next poll.
async fn next_event(listener: &mut Listener) {
    let durable = async { while let LiveEvent::Transient { .. } = listener.next().await {} };
    // On a timeout the poll is due.
    let _ = timeout(POLL_INTERVAL, durable).await;
}

/// The outcome of opening a question.
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
    if let Some(other) = store::elicitations::get_open(&mut tx, elicitation.conversation).await? {
        return Ok(OpenOutcome::Busy { live: other.live });
    }
    let life = if elicitation.live {
        LIVE_LEASE
    } else {
        TIME_LIMIT
    };
    let event = append(&mut tx, tenant, elicitation, part.clone()).await?;
    if !store::elicitations::begin(&mut tx, tenant, elicitation, life).await? {
        // Another call has opened a question between the two statements. Only a waiter tries again.
        return Ok(OpenOutcome::Busy { live: true });
    }
    tx.commit().await?;
    app.announce(tenant, elicitation.conversation, event);
    metrics::counter!("chatelaine_elicitations_total").increment(1);
    Ok(OpenOutcome::Open)
}

/// Seals the request into the row and returns its prompt.
async fn prepare(
    app: &App,
    principal: &Principal,
    elicitation: &mut Elicitation,
    request: &Request,
) -> Result<Part> {
    let context = context(principal.tenant, elicitation, ElicitationValue::Asked);
    elicitation.request = seal(app, &context, request).await?;
    let pack = app.packs.get(&elicitation.agent);
    let texts = texts::for_optional_pack(pack.as_deref(), principal);
    Ok(prompt(
        &texts,
        elicitation,
        request,
        time_limit_of(elicitation),
    ))
}

/// Decrypts the request of a question and the answers so far; `None` when they can no longer be opened.
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

/// Seals the answers so far.
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
    let (agent, server) = (elicitation.agent.as_str(), elicitation.server.as_str());
    contexts::of_elicitation(
        tenant,
        &elicitation.user,
        agent,
        server,
        elicitation.id,
        which,
    )
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
