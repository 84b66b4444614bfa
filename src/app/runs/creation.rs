//! Creating the row of a run. The run and the message that it answers are written in one transaction. After the commit
//! the listeners are told, and the run starts in this process if a slot is free.

use std::time::Duration;

use super::scheduler::Claim;
use crate::app::{App, platform::request_id};
use domain::{
    answer_format::AnswerFormat,
    error::{Error, ErrorCode, Result},
    event::Event,
    ids::{RunId, TenantId},
    message::{Message, Part, Role},
    principal::Principal,
    run::{Conversation, Run, RunKind},
    trace_context::TraceContext,
};
use store::{
    Tx,
    runs::{NewRun, OpenRuns},
    trees::TreeValues,
};

/// How long a user with too many open runs is asked to wait.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A run to create. The caller holds the lock of its conversation.
pub struct RunRequest<'a> {
    pub id: RunId,
    pub conversation: &'a Conversation,
    pub principal: &'a Principal,
    pub kind: RunKind,
    pub place: RunPlacement<'a>,
    /// The role and the parts of the message that the run answers.
    pub role: Role,
    pub parts: &'a [Part],
    pub for_model: bool,
    /// The title for a conversation that has none.
    pub title: Option<&'a str>,
    /// The format that the answer must have.
    pub format: Option<&'a AnswerFormat>,
    /// The span that the run belongs to, if it is not the present one.
    pub trace: Option<&'a TraceContext>,
}

/// The place of a run in a tree of runs.
pub enum RunPlacement<'a> {
    /// The run is in no tree.
    Alone,
    /// The run joins the tree of another run, if that run is in one.
    WithRun(RunId),
    /// The run has a place of its own in a tree. If the parent waits for the end of this run, this run works in the
    /// slot of the parent.
    InTree {
        values: TreeValues<'a>,
        parent_waits: bool,
    },
}

/// A run that is written and not yet committed.
pub struct CreatedRun {
    /// The new run, or a waiting run that the message has joined.
    pub run: Run,
    pub message: Message,
    tenant: TenantId,
    event: Event,
    claim: Option<Claim>,
}

/// Writes a run and the message that it answers.
pub async fn create(app: &App, tx: &mut Tx, request: &RunRequest<'_>) -> Result<CreatedRun> {
    let stopping = app.shutdown.is_cancelled();
    let slot = if stopping {
        None
    } else {
        app.run_slots.take(&request.principal.fair_share_key())
    };
    let parent_waits =
        matches!(&request.place, RunPlacement::InTree { parent_waits, .. } if *parent_waits);
    let starts_here = slot.is_some() || parent_waits && !stopping;
    let request_id = request_id::current();
    let trace = request.trace.cloned().or_else(telemetry::current);
    let new = NewRun {
        id: request.id,
        conversation: request.conversation.id,
        agent: &request.conversation.agent,
        principal: request.principal,
        kind: request.kind,
        worker: starts_here.then_some((app.replica, app.config.run_lease)),
        role: request.role,
        parts: request.parts,
        for_model: request.for_model,
        title: request.title,
        format: request.format,
        request: request_id.as_deref(),
        trace: trace.as_ref(),
    };
    let mut written = store::runs::create(tx, &new).await?;
    if let (true, Some(open)) = (request.is_asked_for(), written.open_before) {
        check_open_runs(app, request.principal, open)?;
    }
    let is_delegated = match &request.place {
        RunPlacement::Alone => false,
        RunPlacement::WithRun(other) => store::trees::join_tree(tx, written.run.id, *other).await?,
        RunPlacement::InTree { values, .. } => {
            store::trees::insert_values(tx, written.run.id, values).await?;
            true
        }
    };
    if let Some(run) = &mut written.claimed {
        run.start.is_delegated = is_delegated;
    }
    Ok(CreatedRun {
        run: written.run,
        message: written.message,
        tenant: request.principal.tenant,
        event: written.event,
        claim: written.claimed.map(|run| Claim { run, slot }),
    })
}

impl RunRequest<'_> {
    /// Whether a user or a program asks for this run. A run that follows from earlier work is never refused for too
    /// many open runs, and a tree of runs has limits of its own.
    fn is_asked_for(&self) -> bool {
        let is_child = matches!(&self.place, RunPlacement::InTree { values, .. } if values.position.parent.is_some());
        self.role == Role::User && !is_child
    }
}

/// Refuses one more run of a user or a tenant with too many open runs. All guests of a tenant together have a quarter
/// of the tenant's limit.
fn check_open_runs(app: &App, principal: &Principal, open: OpenRuns) -> Result<()> {
    let refuse = |who: &str, count: i64| {
        Err(Error::Limited {
            code: ErrorCode::TooManyRuns,
            reason: format!(
                "{who} {count} runs open already; wait until one has ended, or cancel one"
            ),
            retry_after: RETRY_AFTER,
        })
    };
    let config = &app.config;
    let of_user = if principal.authenticated {
        config.open_runs_per_user
    } else {
        config.open_runs_per_guest
    };
    if open.of_user >= i64::from(of_user) {
        return refuse("you have", open.of_user);
    }
    if open.of_tenant >= i64::from(config.open_runs_per_tenant) {
        return refuse("this tenant has", open.of_tenant);
    }
    if !principal.authenticated && open.of_guests >= i64::from(config.open_runs_per_tenant / 4) {
        return refuse("the guests of this tenant have", open.of_guests);
    }
    Ok(())
}

impl CreatedRun {
    /// After the commit: tells the listeners and starts the run.
    pub fn publish(self, app: &App) {
        app.announce(self.tenant, self.message.conversation_id, self.event);
        if let Some(claim) = self.claim {
            // The receiver lives as long as the process works. Another process claims a run that is sent later.
            let _ = app.claimed_runs.send(claim);
        }
    }
}
