//! Runs: started by programs and by agents, looked at, waited for, cancelled. A run is a turn of a conversation like
//! any other; a session is a conversation.
//!
//! What the servers of a run may be told and its model may not (`scope`) is sealed on the row of the run that began
//! the tree, serves all of the tree, and is forgotten when the tree is over.

pub mod creation;
pub mod ending;
pub(super) mod orchestrator_tools;
pub mod repeats;
pub mod run_slots;
pub mod scheduler;
pub mod sign_outs;
pub mod starting;
pub mod tenant_admin;
pub mod user_data;

use serde::Serialize;

use super::App;
pub use crate::store::runs::listing::RunFilter;
use crate::{
    domain::{
        audit::Fact,
        error::{Error, Result},
        event::Event,
        ids::{ConversationId, RunId, TenantId, UserId},
        message::Part,
        principal::Principal,
        run::{Run, RunKind, RunStatus},
    },
    store::{self, Tx, hints::Hint},
};

/// A run with what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct RunView {
    #[serde(flatten)]
    pub run: Run,
    /// The same as `conversation_id`.
    pub session_id: ConversationId,
    /// What the agent said last, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

/// A run of the principal.
pub async fn get(app: &App, principal: &Principal, id: RunId) -> Result<Run> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::runs::get(&mut tx, &principal.user, id).await
}

/// Runs of the principal, the newest first.
pub async fn list(app: &App, principal: &Principal, filter: RunFilter) -> Result<Vec<Run>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::runs::listing::list(&mut tx, &principal.user, filter).await
}

/// The same with its result.
pub async fn view(app: &App, principal: &Principal, id: RunId) -> Result<RunView> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let run = store::runs::get(&mut tx, &principal.user, id).await?;
    let result = if run.status.is_final() && run.kind == RunKind::Turn {
        ending::last_answer(&mut tx, id).await?
    } else {
        None
    };
    Ok(RunView {
        session_id: run.conversation_id,
        run,
        result,
    })
}

/// Asks a run to stop, and every run below it: those that it started, and that these started, on whichever replica.
/// What a tool is doing already is not undone; a run ends at its next step. What any of them has asked consent for is
/// taken back, or kept. Nobody is told of the end of those below: whoever would be was stopped.
///
/// One that is over can still be stopped for what it has left behind; `Conflict` when there is nothing of that.
pub async fn cancel(
    app: &App,
    principal: &Principal,
    id: RunId,
    requests: OpenRequests,
) -> Result<Run> {
    cancel_of(app, principal.tenant, &principal.user, id, requests).await
}

/// What becomes of the requests for consent that a stopped run has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenRequests {
    TakeBack,
    /// They wait on: whoever stops an answer has not said anything about them.
    Keep,
}

/// Cancels a run of a user who has not asked for it.
pub async fn cancel_of(
    app: &App,
    tenant: TenantId,
    user: &UserId,
    id: RunId,
    requests: OpenRequests,
) -> Result<Run> {
    let mut tx = app.db.tenant(tenant).await?;
    let run = store::runs::get(&mut tx, user, id).await?;
    // Requests first: whoever decides about one locks it before its conversation.
    let mut whole = store::trees::descendants(&mut tx, id).await?;
    whole.push(id);
    let mut withdrawn = match requests {
        OpenRequests::TakeBack => store::approvals::withdraw(&mut tx, &whole, user).await?,
        OpenRequests::Keep => Vec::new(),
    };
    store::conversations::get(&mut tx, user, run.conversation_id, true).await?;
    store::trees::lock(&mut tx, id).await?;
    let own = store::runs::request_cancel(&mut tx, user, id).await;
    let below = store::trees::descendants(&mut tx, id).await?;
    let open = store::trees::stop(&mut tx, &below).await?;
    let ended = match own {
        Err(Error::Conflict(..)) if !open.is_empty() || !withdrawn.is_empty() => false,
        own => own?,
    };
    // What was asked for between the two looks at the tree.
    if requests == OpenRequests::TakeBack {
        withdrawn.extend(store::approvals::withdraw(&mut tx, &below, user).await?);
    }
    let run = store::runs::get(&mut tx, user, id).await?;
    let event = if ended {
        Some(cancelled(&mut tx, &run).await?)
    } else {
        None
    };
    tx.commit().await?;
    stopped(app, tenant, &run, event).await;
    for approval in withdrawn {
        // The receiver lives as long as the process works; what is sent after that is found by another.
        let _ = app.approved.send((tenant, approval));
    }
    for below in open {
        // A failure here is handled by the process that claims the run, or by the one that works on it.
        if let Err(error) = end(app, tenant, user, below).await {
            tracing::warn!(run = %below, %error, "a run below one that was stopped ends a little later");
        }
    }
    Ok(run)
}

/// Ends a run that was asked to stop, if it waits; one at work ends itself.
async fn end(app: &App, tenant: TenantId, user: &UserId, id: RunId) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    let ended = match store::runs::request_cancel(&mut tx, user, id).await {
        Ok(ended) => ended,
        // By itself, meanwhile, or with its session.
        Err(Error::Conflict(..) | Error::NotFound(_)) => return Ok(()),
        Err(error) => return Err(error),
    };
    let run = store::runs::get(&mut tx, user, id).await?;
    let event = if ended {
        Some(cancelled(&mut tx, &run).await?)
    } else {
        None
    };
    tx.commit().await?;
    stopped(app, tenant, &run, event).await;
    Ok(())
}

async fn cancelled(tx: &mut Tx, run: &Run) -> Result<Event> {
    store::messages::append_run_event(tx, run.conversation_id, run.id, RunStatus::Cancelled, None)
        .await
}

/// Notifies the listeners, or the worker of the run. Call it after the commit.
async fn stopped(app: &App, tenant: TenantId, run: &Run, event: Option<Event>) {
    match event {
        Some(event) => {
            app.announce(tenant, run.conversation_id, event);
            ending::finalize(app, tenant, run.id).await;
        }
        None => app.running.cancel(run.id),
    }
}

/// Removes a conversation with everything in it, and the sessions that its runs have started, with everything in them.
/// Runs under way stop; what those sessions have asked consent for is taken back. A request of the conversation's own
/// stays: its user sees it in their list.
pub async fn delete_conversation(
    app: &App,
    principal: &Principal,
    id: ConversationId,
) -> Result<()> {
    let mut tries = 0;
    loop {
        match try_to_delete(app, principal, id).await {
            Err(error) if tries < 3 && store::is_deadlock(&error) => tries += 1,
            done => return done,
        }
    }
}

async fn try_to_delete(app: &App, principal: &Principal, id: ConversationId) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let runs = async |tx: &mut Tx, sessions: &[ConversationId]| {
        let runs = store::trees::runs_of(tx, sessions).await?;
        Ok::<_, Error>(runs.into_iter().map(|(run, _)| run).collect::<Vec<RunId>>())
    };
    // Requests first: whoever decides about one locks it before its conversation.
    let below = store::trees::sessions_below(&mut tx, &principal.user, id).await?;
    let asking = runs(&mut tx, &below).await?;
    let mut withdrawn = store::approvals::withdraw(&mut tx, &asking, &principal.user).await?;
    let below = store::trees::lock_sessions_below(&mut tx, &principal.user, id).await?;
    // What was asked for between the two looks.
    let asking = runs(&mut tx, &below).await?;
    withdrawn.extend(store::approvals::withdraw(&mut tx, &asking, &principal.user).await?);
    let open = store::trees::runs_of(&mut tx, &[&below[..], &[id]].concat()).await?;
    let agent = store::conversations::delete(&mut tx, &principal.user, id).await?;
    let detail = id.to_string();
    let fact = Fact::new(principal.user.as_str(), "conversation.deleted").detail(&detail);
    store::audit::record(
        &mut tx,
        principal.tenant,
        &Fact {
            agent: Some(&agent),
            ..fact
        },
    )
    .await?;
    tx.commit().await?;
    for (run, _) in open.into_iter().filter(|(_, open)| *open) {
        app.running.cancel(run);
    }
    for approval in withdrawn {
        // The receiver lives as long as the process works; what is sent after that is found by another.
        let _ = app.approved.send((principal.tenant, approval));
    }
    for gone in below.into_iter().chain([id]) {
        app.live.look(principal.tenant, gone);
        let _ = app.hints.send(Hint::Conversation {
            tenant: principal.tenant,
            conversation: gone,
        });
    }
    Ok(())
}

/// The text of an assistant's message, for programs.
fn words(parts: &[Part]) -> String {
    let said = parts.iter().filter_map(|part| match part {
        Part::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    said.collect::<Vec<_>>().join("\n")
}
