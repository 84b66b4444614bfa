//! Questions of servers to the user of a call: opening one, waiting for its answer, and ending it. A question is a row
//! and a prompt in the conversation, written in one transaction; the user's answer closes the row.
//!
//! In the newer revision of the protocol a call is answered with a question and is over: nothing waits, and the run that
//! is given the answer makes the call again. In the older one the server asks while the call is open: the same row then
//! has a waiter, whose lease it is and whose time is bounded ([`LIVE_TIME_LIMIT`]). That is the only case in which anything
//! in memory waits for a person. A row whose waiter is gone ends by the clock; the answer may come in at any replica.

mod asking;
mod sealing;

use std::{sync::Arc, time::Duration};

pub use self::{
    asking::{ask, ask_and_wait},
    sealing::{seal_entered, unseal},
};
use crate::{
    app::App,
    domain::{
        elicitation::Elicitation,
        error::{Error, ErrorCode, Result},
        event::Event,
        ids::{ConversationId, TenantId},
        message::{Part, Role},
        principal::Principal,
        run::ClaimedRun,
        texts::{self, Key},
    },
    mcp::LIVE_TIME_LIMIT,
    store::{self, Tx, messages::NewMessage},
};

/// How long the user may think about one question.
const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);
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
    // A program that reads JSON alone cannot be asked either.
    let can_ask = app.keys.has_ring() && !run.start.is_delegated && run.start.format.is_none();
    can_ask.then_some(ElicitationTarget {
        conversation: run.conversation,
        for_model,
        // A client that keeps the transcript cannot speak before it has its answer.
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

/// Writes an answer into the row, in the caller's transaction. `run`: the run that goes on with it; a question with a
/// waiter has none. `Conflict` when the question was answered or ended meanwhile.
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
