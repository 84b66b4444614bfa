//! The end of a run: waiting for the end, reading the result, notifying the session that waits for the run, and
//! deleting the values that only its tree needed.
//!
//! A session is notified in a transaction of its own that marks the run as settled, so it is notified once: by the
//! process that ended the run, or by the first process whose poll finds the run unsettled.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    creation::{self, RunPlacement, RunRequest},
    text_of,
};
use crate::{
    app::{
        App,
        platform::polls::POLL,
        tools::skills::outcome::{RequestOutcome, of_request},
    },
    live::LiveEvent,
};
use domain::{
    error::{Error, ErrorCode, Result},
    ids::{RunId, TenantId},
    json::Members,
    message::{Part, Role, called_tools},
    orchestrator::{Callback, cut, status_name},
    pack::Provider,
    principal::Principal,
    run::{Run, RunKind, RunStatus, TreePosition},
    texts::{self, Key},
};
use store::{
    Tx,
    messages::NewMessage,
    trees::{DueCallback, TreeValues},
};

/// Unsettled runs that are looked up at once.
const BATCH: i64 = 64;
/// Time between two polls for unsettled runs.
pub const PERIOD: Duration = Duration::from_secs(2);

/// The runs of this process whose clients wait for the whole answer, and repeat a request by themselves when they are told
/// that the model is busy. A process that does not know of one repeats as for any other run.
#[derive(Clone, Default)]
pub struct RepeatingClients(Arc<Mutex<HashSet<RunId>>>);

/// A client that waits, until this is dropped.
pub struct RepeatingClient {
    clients: RepeatingClients,
    run: RunId,
}

impl RepeatingClients {
    pub fn add(&self, run: RunId) -> RepeatingClient {
        self.runs().insert(run);
        let clients = self.clone();
        RepeatingClient { clients, run }
    }

    pub fn has(&self, run: RunId) -> bool {
        self.runs().contains(&run)
    }

    fn runs(&self) -> MutexGuard<'_, HashSet<RunId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RepeatingClient {
    fn drop(&mut self) {
        self.clients.runs().remove(&self.run);
    }
}

/// Waits until a run has ended, but no longer than the settings say. Returns the run as it is then.
pub async fn wait(
    app: &App,
    principal: &Principal,
    started: &super::starting::StartedRun,
) -> Result<Run> {
    // Listen before the first read, so that no event is missed in between.
    let mut listener = app.live.listen(principal.tenant, started.session);
    let until = tokio::time::Instant::now() + app.config.run_wait;
    loop {
        let run = super::get(app, principal, started.run).await?;
        if run.status.is_final() {
            return Ok(run);
        }
        let next_durable =
            async { while let LiveEvent::Transient { .. } = listener.next().await {} };
        tokio::select! {
            () = next_durable => {}
            () = tokio::time::sleep(POLL) => {}
            () = tokio::time::sleep_until(until) => return Ok(run),
            () = app.shutdown.cancelled() => return Ok(run),
        }
    }
}

/// The reason of a run that was about to call a tool when an equal request took its place.
pub const SUPERSEDED: &str =
    "the same request came again before the agent had called anything, and that one is answered";

/// Why a run has failed or was stopped.
pub struct RunFailure {
    pub reason: String,
    /// What kind of failure it is.
    pub code: ErrorCode,
    /// The tools that the run has called, as `server.tool`. An equal request would call them again.
    pub called: Vec<String>,
    /// Whether the run ended with [`SUPERSEDED`].
    pub is_superseded: bool,
    /// How long the model is not asked, if the run failed because the model did not answer.
    pub retry_after: Option<Duration>,
    /// The sentence at the end of an answer that people read.
    pub text: String,
}

/// Reads why a run of the principal has failed or was stopped, and which tools it has called.
pub async fn load_failure(app: &App, principal: &Principal, id: RunId) -> Result<RunFailure> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let run = store::runs::get(&mut tx, &principal.user, id).await?;
    let messages = store::messages::list_of_run(&mut tx, run.conversation_id, id).await?;
    let retry_after = store::runs::get_retry_after(&mut tx, id).await?;
    drop(tx);
    let reason = run.error.unwrap_or_else(|| match run.status {
        RunStatus::Cancelled => "the run was cancelled".to_owned(),
        _ => "the run failed".to_owned(),
    });
    let called = called_tools(&messages);
    let mut parts = messages.iter().flat_map(|message| &message.parts);
    let code = parts
        .find_map(Part::failure)
        .unwrap_or(ErrorCode::RunFailed);
    let is_superseded = reason == SUPERSEDED;
    let pack = app.packs.get(&run.agent);
    let texts = texts::for_optional_pack(pack.as_deref(), principal);
    let values = [
        ("reason", reason.trim_end_matches('.')),
        ("tools", &called.join(", ")),
    ];
    let text = if is_superseded {
        texts.render(Key::TurnSuperseded, &[])
    } else {
        texts.render(Key::TurnFailedAfterCall, &values)
    };
    Ok(RunFailure {
        reason,
        code,
        called,
        is_superseded,
        retry_after,
        text,
    })
}

/// Reads the outcome of each call of a run, and of the runs below it, that needed consent.
pub async fn list_request_outcomes(
    app: &App,
    principal: &Principal,
    id: RunId,
) -> Result<Vec<RequestOutcome>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let mut runs = vec![id];
    runs.extend(store::trees::list_descendants(&mut tx, id).await?);
    let mut approvals = Vec::new();
    for run in runs {
        let run = store::runs::get(&mut tx, &principal.user, run).await?;
        for message in store::messages::list_of_run(&mut tx, run.conversation_id, run.id).await? {
            approvals.extend(message.parts.iter().filter_map(|part| match part {
                Part::ToolResult(result) => result.approval,
                _ => None,
            }));
        }
    }
    drop(tx);
    let mut outcomes: Vec<RequestOutcome> = Vec::new();
    for approval in approvals {
        if outcomes.iter().all(|known| known.approval.id != approval) {
            outcomes.push(of_request(app, principal, approval).await?);
        }
    }
    Ok(outcomes)
}

/// Reads the last answer of the agent in a run; `None` when the answer is blank.
pub(super) async fn load_last_answer(tx: &mut Tx, run: RunId) -> Result<Option<String>> {
    let parts = store::trees::find_last_answer(tx, run).await?;
    Ok(parts
        .map(|parts| text_of(&parts))
        .filter(|text| !text.trim().is_empty())
        .map(|text| cut(&text)))
}

/// Reads the outcome of a run that has ended, as text for a model: its last answer, and why it ended early if it did.
pub(super) async fn load_outcome_text(
    tx: &mut Tx,
    run: RunId,
    status: RunStatus,
    error: Option<&str>,
) -> Result<String> {
    let answer = load_last_answer(tx, run).await?.unwrap_or_default();
    Ok(match (status, error) {
        (RunStatus::Failed, Some(error)) => cut(&format!("{answer}\n\nfailed: {error}"))
            .trim()
            .to_owned(),
        (RunStatus::Cancelled, _) => cut(&format!("{answer}\n\nstopped before its end"))
            .trim()
            .to_owned(),
        _ => answer,
    })
}

/// Settles a run that has ended or may have ended: notifies the session that waits for it, and closes its tree. After a
/// failure the next poll settles it.
pub async fn finalize(app: &App, tenant: TenantId, run: RunId) {
    if let Err(error) = try_to_finalize(app, tenant, run).await {
        tracing::warn!(%run, error = error.with_cause(), "the end of a run is not told at once; trying again");
    }
}

async fn try_to_finalize(app: &App, tenant: TenantId, run: RunId) -> Result<()> {
    notify_session(app, tenant, run).await?;
    let mut tx = app.db.tenant(tenant).await?;
    if store::trees::close(&mut tx, run).await? {
        tx.commit().await?;
    }
    Ok(())
}

/// Notifies the session that waits for a run. An idle session begins a turn at once. In a busy session the message
/// waits for the next turn, together with other messages that come meanwhile.
async fn notify_session(app: &App, tenant: TenantId, run: RunId) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    let Some((user, session)) = store::trees::find_callback_session(&mut tx, run).await? else {
        return Ok(());
    };
    let conversation = match store::conversations::get(&mut tx, &user, session, true).await {
        Ok(conversation) => Some(conversation),
        // The session is gone, so there is nothing to notify.
        Err(Error::NotFound(_)) => None,
        Err(error) => return Err(error),
    };
    let Some(due) = store::trees::take_callback(&mut tx, run).await? else {
        return Ok(());
    };
    let Some(conversation) = conversation else {
        return tx.commit().await;
    };
    let parts = [callback_part(&mut tx, run, &due).await?];
    let has_model = app
        .packs
        .get(&conversation.agent)
        .is_some_and(|pack| pack.llm.provider != Provider::None);
    if has_model {
        let params = Members::default();
        let request = RunRequest {
            id: RunId::new(),
            conversation: &conversation,
            principal: &due.principal,
            kind: RunKind::Turn,
            place: RunPlacement::InTree {
                values: continue_tree(&due, &params),
                parent_waits: false,
            },
            role: Role::System,
            parts: &parts,
            for_model: true,
            title: None,
            format: None,
            trace: None,
        };
        let created = creation::create(app, &mut tx, &request).await?;
        tx.commit().await?;
        created.publish(app);
        return Ok(());
    }
    let message = NewMessage {
        run: None,
        run_ordinal: 0,
        role: Role::System,
        parts: &parts,
        for_model: false,
    };
    let (_, event) = store::messages::append(&mut tx, tenant, conversation.id, message).await?;
    tx.commit().await?;
    app.announce(tenant, conversation.id, event);
    Ok(())
}

async fn callback_part(tx: &mut Tx, run: RunId, due: &DueCallback) -> Result<Part> {
    Ok(Part::AgentCallback(Callback {
        session: due.session,
        agent: due.agent.to_string(),
        status: status_name(due.status).to_owned(),
        text: load_outcome_text(tx, run, due.status, due.error.as_deref()).await?,
    }))
}

/// The position of the notified turn: it continues the tree of the run that has ended, unless it already stands in a
/// tree.
fn continue_tree<'a>(due: &DueCallback, params: &'a Members) -> TreeValues<'a> {
    TreeValues {
        position: TreePosition {
            root: due.position.root,
            parent: Some(due.run),
            depth: (due.position.depth - 1).max(0),
        },
        params,
        scope: None,
        callback: None,
    }
}

/// Settles the runs that have ended and that no process has settled.
pub async fn finalize_due(app: &Arc<App>) -> Result<()> {
    let due = app
        .db
        .look(|tx| Box::pin(store::trees::list_unsettled(tx, BATCH)));
    let due = due.await?;
    for (tenant, run) in due {
        finalize(app, tenant, run).await;
    }
    Ok(())
}
