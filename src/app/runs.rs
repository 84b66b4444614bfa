//! Runs. Programs and agents start runs, read them, wait for them and cancel them. A run is a turn of a conversation
//! like any other; a session is a conversation.
//!
//! Runs that start runs form a tree. The `scope` holds values that the servers of a run may receive and its model may
//! not. It is sealed on the row of the first run of the tree, serves the whole tree, and is deleted when the tree ends.

pub mod creation;
pub mod deletions;
pub mod ending;
pub(super) mod orchestrator_tools;
pub mod repeats;
pub mod restored;
pub mod run_slots;
pub mod scheduler;
pub mod sign_outs;
pub mod starting;
pub mod tenant_admin;
pub mod user_data;

use serde::Serialize;

use super::App;
use domain::{
    audit::Fact,
    error::{Error, Result},
    event::Event,
    ids::{ApprovalId, ConversationId, RunId, TenantId, UserId},
    message::Part,
    principal::Principal,
    run::{Run, RunKind, RunStatus},
};
pub use store::runs::RunFilter;
use store::{Tx, hints::Hint};

/// A run with its result.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct RunView {
    #[serde(flatten)]
    pub run: Run,
    /// Equal to `conversation_id`: programs know the conversation as a session.
    pub session_id: ConversationId,
    /// The agent's last answer, once the run has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

/// Reads a run of the principal.
pub async fn get(app: &App, principal: &Principal, id: RunId) -> Result<Run> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::runs::get(&mut tx, &principal.user, id).await
}

/// Lists runs of the principal, the newest first.
pub async fn list(app: &App, principal: &Principal, filter: RunFilter) -> Result<Vec<Run>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::runs::list(&mut tx, &principal.user, filter).await
}

/// Reads a run of the principal with its result.
pub async fn view(app: &App, principal: &Principal, id: RunId) -> Result<RunView> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let run = store::runs::get(&mut tx, &principal.user, id).await?;
    let result = if run.status.is_final() && run.kind == RunKind::Turn {
        ending::load_last_answer(&mut tx, id).await?
    } else {
        None
    };
    Ok(RunView {
        session_id: run.conversation_id,
        run,
        result,
    })
}

/// Asks a run to stop, and every run below it in its tree, on any replica. A tool call that is under way is not undone:
/// a run ends at its next step. The end of a run below is reported to no session, because the session that waits for it
/// stops as well.
///
/// A run that has ended can still be stopped if runs below it are open or requests for consent are left. `Conflict`
/// when there are none.
pub async fn cancel(
    app: &App,
    principal: &Principal,
    id: RunId,
    requests: OpenRequests,
) -> Result<Run> {
    cancel_for_user(app, principal.tenant, &principal.user, id, requests).await
}

/// Whether the open requests for consent of a stopped run are withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenRequests {
    Withdraw,
    /// The requests stay open: a user who stops an answer has not decided about them.
    Keep,
}

/// Cancels a run of a user who has not asked for this: an admin signs them out, for example.
pub async fn cancel_for_user(
    app: &App,
    tenant: TenantId,
    user: &UserId,
    id: RunId,
    requests: OpenRequests,
) -> Result<Run> {
    let mut tx = app.db.tenant(tenant).await?;
    let run = store::runs::get(&mut tx, user, id).await?;
    // Requests are locked first, as a decision locks its request before the conversation.
    let mut run_and_below = store::trees::list_descendants(&mut tx, id).await?;
    run_and_below.push(id);
    let mut withdrawn = match requests {
        OpenRequests::Withdraw => store::approvals::withdraw(&mut tx, &run_and_below, user).await?,
        OpenRequests::Keep => Vec::new(),
    };
    store::conversations::get(&mut tx, user, run.conversation_id, true).await?;
    store::trees::lock(&mut tx, id).await?;
    let own = store::runs::request_cancel(&mut tx, user, id).await;
    let below = store::trees::list_descendants(&mut tx, id).await?;
    let open = store::trees::stop(&mut tx, &below).await?;
    let ended = match own {
        Err(Error::Conflict(..)) if !open.is_empty() || !withdrawn.is_empty() => false,
        own => own?,
    };
    // Withdraws the requests that were made between the two reads of the tree.
    if requests == OpenRequests::Withdraw {
        withdrawn.extend(store::approvals::withdraw(&mut tx, &below, user).await?);
    }
    let run = store::runs::get(&mut tx, user, id).await?;
    let event = if ended {
        Some(append_cancelled(&mut tx, &run).await?)
    } else {
        None
    };
    tx.commit().await?;
    publish_stop(app, tenant, &run, event).await;
    app.settle_requests(tenant, withdrawn);
    for below in open {
        // After a failure here, the process that works on the run or claims it ends the run.
        if let Err(error) = end_if_idle(app, tenant, user, below).await {
            tracing::warn!(run = %below, error = error.with_cause(), "a run below one that was stopped ends a little later");
        }
    }
    Ok(run)
}

/// Ends a run that was asked to stop and has no worker. A run with a worker ends by itself.
async fn end_if_idle(app: &App, tenant: TenantId, user: &UserId, id: RunId) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    let ended = match store::runs::request_cancel(&mut tx, user, id).await {
        Ok(ended) => ended,
        // The run has ended meanwhile, or its session was deleted.
        Err(Error::Conflict(..) | Error::NotFound(_)) => return Ok(()),
        Err(error) => return Err(error),
    };
    let run = store::runs::get(&mut tx, user, id).await?;
    let event = if ended {
        Some(append_cancelled(&mut tx, &run).await?)
    } else {
        None
    };
    tx.commit().await?;
    publish_stop(app, tenant, &run, event).await;
    Ok(())
}

async fn append_cancelled(tx: &mut Tx, run: &Run) -> Result<Event> {
    store::messages::append_run_event(tx, run.conversation_id, run.id, RunStatus::Cancelled, None)
        .await
}

/// Tells the listeners that the run has ended, or tells its worker to stop. Call it after the commit.
async fn publish_stop(app: &App, tenant: TenantId, run: &Run, event: Option<Event>) {
    match event {
        Some(event) => {
            app.announce(tenant, run.conversation_id, event);
            ending::finalize(app, tenant, run.id).await;
        }
        None => app.running.cancel(run.id),
    }
}

/// Deletes a conversation with everything in it, and in the same way the sessions that its runs have started. Runs under
/// way are stopped. The requests for consent of those sessions are withdrawn. A request of the conversation itself
/// stays: its user sees the request in their list.
pub async fn delete_conversation(
    app: &App,
    principal: &Principal,
    id: ConversationId,
) -> Result<()> {
    let mut tries = 0;
    loop {
        match try_to_delete(app, principal, id).await {
            Err(Error::Collided) if tries < 3 => tries += 1,
            done => return done,
        }
    }
}

async fn try_to_delete(app: &App, principal: &Principal, id: ConversationId) -> Result<()> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let runs_in = async |tx: &mut Tx, sessions: &[ConversationId]| {
        let runs = store::trees::list_runs(tx, sessions).await?;
        Ok::<_, Error>(runs.into_iter().map(|(run, _)| run).collect::<Vec<RunId>>())
    };
    // Requests are locked first, as a decision locks its request before the conversation.
    let below = store::trees::list_sessions_below(&mut tx, &principal.user, id).await?;
    let asking = runs_in(&mut tx, &below).await?;
    let mut withdrawn = store::approvals::withdraw(&mut tx, &asking, &principal.user).await?;
    let below = store::trees::lock_sessions_below(&mut tx, &principal.user, id).await?;
    // Withdraws the requests that were made between the two reads of the tree.
    let asking = runs_in(&mut tx, &below).await?;
    withdrawn.extend(store::approvals::withdraw(&mut tx, &asking, &principal.user).await?);
    let open = store::trees::list_runs(&mut tx, &[&below[..], &[id]].concat()).await?;
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
    app.settle_requests(principal.tenant, withdrawn);
    for deleted in below.into_iter().chain([id]) {
        app.live.refresh(principal.tenant, deleted);
        let _ = app.hints.send(Hint::Conversation {
            tenant: principal.tenant,
            conversation: deleted,
        });
    }
    Ok(())
}

impl App {
    /// Hands requests for consent that were withdrawn to [`scheduler::approvals`], which settles them. Call it after the
    /// commit.
    pub(in crate::app) fn settle_requests(&self, tenant: TenantId, withdrawn: Vec<ApprovalId>) {
        for approval in withdrawn {
            // The receiver lives as long as the process works. Another process finds a request that is sent later.
            let _ = self.due_approvals.send((tenant, approval));
        }
    }
}

/// The text of an assistant's message, for programs.
fn text_of(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}
