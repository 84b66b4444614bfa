//! The end of a run: waiting for it, what came of it, telling the session that wants to know, and forgetting what
//! only the tree needed. Telling is a transaction of its own that marks the run as told, so it is done once, by
//! whoever comes first: the process that ended the run, or any that looks by the clock.

use std::{sync::Arc, time::Duration};

use super::{
    creation::{self, RunPlacement, RunRequest},
    words,
};
use crate::{
    app::{
        App,
        platform::polls::POLL,
        tools::skills::outcome::{RequestOutcome, of_request},
    },
    domain::{
        error::{Error, Result},
        ids::{RunId, TenantId},
        json::Members,
        message::{Part, Role, called_tools},
        orchestrator::{Callback, cut, status_name},
        pack::Provider,
        principal::Principal,
        run::{Branch, Run, RunKind, RunStatus},
        texts::{self, Key},
    },
    live::LiveEvent,
    store::{
        self, Tx,
        messages::NewMessage,
        trees::{DueCallback, TreeValues},
    },
};

/// Runs looked up at once, and how often.
const BATCH: i64 = 64;
pub const PERIOD: Duration = Duration::from_secs(2);

/// Waits for the end of a run, no longer than the settings say; the run as it is then.
pub async fn wait(
    app: &App,
    principal: &Principal,
    begun: &super::starting::StartedRun,
) -> Result<Run> {
    // Listen first, look second: nothing falls in between.
    let mut listener = app.live.listen(principal.tenant, begun.session);
    let until = tokio::time::Instant::now() + app.config.run_wait;
    loop {
        let run = super::get(app, principal, begun.run).await?;
        if run.status.is_final() {
            return Ok(run);
        }
        let news = async { while let LiveEvent::Transient { .. } = listener.next().await {} };
        tokio::select! {
            () = news => {}
            () = tokio::time::sleep(POLL) => {}
            () = tokio::time::sleep_until(until) => return Ok(run),
            () = app.shutdown.cancelled() => return Ok(run),
        }
    }
}

/// Why a run has failed or was stopped.
pub struct RunFailure {
    pub reason: String,
    /// The tools that it has called before, as `server.tool`. An equal request would call them again.
    pub called: Vec<String>,
    /// How long nobody asks the model, when its silence is the reason.
    pub retry_after: Option<Duration>,
    /// For people who read an answer that ends with this.
    pub text: String,
}

/// Why a run of the principal has failed or was stopped, and what it has done before.
pub async fn failure(app: &App, principal: &Principal, id: RunId) -> Result<RunFailure> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let run = store::runs::get(&mut tx, &principal.user, id).await?;
    let written = store::messages::of_run(&mut tx, run.conversation_id, id).await?;
    let retry_after = store::runs::retry_after(&mut tx, id).await?;
    drop(tx);
    let reason = run.error.unwrap_or_else(|| match run.status {
        RunStatus::Cancelled => "the run was cancelled".to_owned(),
        _ => "the run failed".to_owned(),
    });
    let called = called_tools(&written);
    let pack = app.library.get(&run.agent);
    let texts = texts::for_optional_pack(pack.as_deref(), principal);
    let values = [("reason", reason.as_str()), ("tools", &called.join(", "))];
    let text = texts.render(Key::TurnFailedAfterCall, &values);
    Ok(RunFailure {
        reason,
        called,
        retry_after,
        text,
    })
}

/// What became of the calls of a run that needed consent, and of those of the runs below it.
pub async fn requests(app: &App, principal: &Principal, id: RunId) -> Result<Vec<RequestOutcome>> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    let mut runs = vec![id];
    runs.extend(store::trees::descendants(&mut tx, id).await?);
    let mut asked = Vec::new();
    for run in runs {
        let run = store::runs::get(&mut tx, &principal.user, run).await?;
        for message in store::messages::of_run(&mut tx, run.conversation_id, run.id).await? {
            asked.extend(message.parts.iter().filter_map(|part| match part {
                Part::ToolResult(result) => result.approval,
                _ => None,
            }));
        }
    }
    drop(tx);
    let mut outcomes: Vec<RequestOutcome> = Vec::new();
    for approval in asked {
        if outcomes.iter().all(|known| known.approval.id != approval) {
            outcomes.push(of_request(app, principal, approval).await?);
        }
    }
    Ok(outcomes)
}

/// What the agent said last.
pub(super) async fn last_answer(tx: &mut Tx, run: RunId) -> Result<Option<String>> {
    let parts = store::trees::last_answer(tx, run).await?;
    Ok(parts
        .map(|parts| words(&parts))
        .filter(|text| !text.trim().is_empty())
        .map(|text| cut(&text)))
}

/// What a run that has ended came to, in words.
pub(super) async fn outcome(
    tx: &mut Tx,
    run: RunId,
    status: RunStatus,
    error: Option<&str>,
) -> Result<String> {
    let said = last_answer(tx, run).await?.unwrap_or_default();
    Ok(match (status, error) {
        (RunStatus::Failed, Some(error)) => {
            cut(&format!("{said}\n\nfailed: {error}")).trim().to_owned()
        }
        (RunStatus::Cancelled, _) => cut(&format!("{said}\n\nstopped before its end"))
            .trim()
            .to_owned(),
        _ => said,
    })
}

/// After a run has ended, or might have. What cannot be done now is done by the clock.
pub async fn finalize(app: &App, tenant: TenantId, run: RunId) {
    if let Err(error) = try_to_finalize(app, tenant, run).await {
        tracing::warn!(%run, %error, "the end of a run is not told at once; trying again");
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

/// Tells the session that waits for a run. If it is idle it goes on at once; if it is busy what it is told waits,
/// together with whatever else comes, for its next turn.
async fn notify_session(app: &App, tenant: TenantId, run: RunId) -> Result<()> {
    let mut tx = app.db.tenant(tenant).await?;
    let Some((user, session)) = store::trees::awaiting(&mut tx, run).await? else {
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
        .library
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
                given: continue_tree(&due, &params),
                parent_waits: false,
            },
            role: Role::System,
            parts: &parts,
            for_model: true,
            title: None,
            format: None,
        };
        let opened = creation::open(app, &mut tx, &request).await?;
        tx.commit().await?;
        opened.publish(app);
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
        text: outcome(tx, run, due.status, due.error.as_deref()).await?,
    }))
}

/// The notified turn continues the tree of the run that has ended, unless it has a tree of its own.
fn continue_tree<'a>(due: &DueCallback, params: &'a Members) -> TreeValues<'a> {
    TreeValues {
        branch: Branch {
            root: due.branch.root,
            parent: Some(due.run),
            depth: (due.branch.depth - 1).max(0),
        },
        params,
        scope: None,
        callback: None,
    }
}

/// Settles the runs that no process has settled.
pub async fn finalize_due(app: &Arc<App>) -> Result<()> {
    let mut tx = app.db.system().await?;
    let due = store::trees::list_unsettled(&mut tx, BATCH).await?;
    drop(tx);
    for (tenant, run) in due {
        finalize(app, tenant, run).await;
    }
    Ok(())
}
