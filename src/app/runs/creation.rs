//! Opening a run. The run and the message that it answers are written in one transaction; after the commit the listeners
//! are told, and the run starts in this process if there is a place for it.

use std::time::Duration;

use super::scheduler::Claim;
use crate::{
    app::App,
    domain::{
        answer_format::AnswerFormat,
        error::{Error, ErrorCode, Result},
        event::Event,
        ids::{RunId, TenantId},
        message::{Message, Part, Role},
        principal::Principal,
        run::{Conversation, Run, RunKind},
    },
    store::{
        self, Tx,
        runs::{NewRun, OpenRuns},
        trees::TreeValues,
    },
};

/// When somebody with too many open runs may ask again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A run to open. Its conversation is locked by the caller.
pub struct RunRequest<'a> {
    pub id: RunId,
    pub conversation: &'a Conversation,
    pub principal: &'a Principal,
    pub kind: RunKind,
    pub place: RunPlacement<'a>,
    /// What the run answers.
    pub role: Role,
    pub parts: &'a [Part],
    pub for_model: bool,
    /// The title of a conversation that has none.
    pub title: Option<&'a str>,
    /// The form that the answer must have.
    pub format: Option<&'a AnswerFormat>,
}

/// Where a run stands among others.
pub enum RunPlacement<'a> {
    /// For itself.
    Alone,
    /// In the tree of another one, if that has a tree.
    WithRun(RunId),
    /// At a place of a tree. If the run above waits for the end of this one, this one works without a permit of its own.
    InTree {
        given: TreeValues<'a>,
        parent_waits: bool,
    },
}

/// A run that is written and not yet committed.
pub struct OpenedRun {
    /// A run that was waiting already, if the message joined it.
    pub run: Run,
    pub message: Message,
    tenant: TenantId,
    event: Event,
    claim: Option<Claim>,
}

/// Writes a run and the message that it answers.
pub async fn open(app: &App, tx: &mut Tx, request: &RunRequest<'_>) -> Result<OpenedRun> {
    let stopping = app.shutdown.is_cancelled();
    let permit = if stopping {
        None
    } else {
        app.run_slots.take(&request.principal.sharer())
    };
    let parent_waits =
        matches!(&request.place, RunPlacement::InTree { parent_waits, .. } if *parent_waits);
    let at_once = permit.is_some() || parent_waits && !stopping;
    let new = NewRun {
        id: request.id,
        conversation: request.conversation.id,
        agent: &request.conversation.agent,
        principal: request.principal,
        kind: request.kind,
        worker: at_once.then_some((app.replica, app.config.run_lease)),
        role: request.role,
        parts: request.parts,
        for_model: request.for_model,
        title: request.title,
        format: request.format,
    };
    let mut written = store::runs::create(tx, &new).await?;
    if let (true, Some(open)) = (request.is_asked_for(), written.open_before) {
        admit(app, request.principal, open)?;
    }
    let is_delegated = match &request.place {
        RunPlacement::Alone => false,
        RunPlacement::WithRun(other) => store::trees::join_tree(tx, written.run.id, *other).await?,
        RunPlacement::InTree { given, .. } => {
            store::trees::insert_values(tx, written.run.id, given).await?;
            true
        }
    };
    if let Some(run) = &mut written.claimed {
        run.start.is_delegated = is_delegated;
    }
    Ok(OpenedRun {
        run: written.run,
        message: written.message,
        tenant: request.principal.tenant,
        event: written.event,
        claim: written.claimed.map(|run| (run, permit)),
    })
}

impl RunRequest<'_> {
    /// Whether a user or a program asks for it. What follows from earlier work is never refused, and a tree of runs has
    /// limits of its own.
    fn is_asked_for(&self) -> bool {
        let is_child = matches!(&self.place, RunPlacement::InTree { given, .. } if given.branch.parent.is_some());
        self.role == Role::User && !is_child
    }
}

/// Refuses one more run of a user or a tenant that has too many open. The guests of a tenant have a quarter of what the
/// tenant has.
fn admit(app: &App, principal: &Principal, open: OpenRuns) -> Result<()> {
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

impl OpenedRun {
    /// After the commit: tells the listeners and starts the run.
    pub fn publish(self, app: &App) {
        app.announce(self.tenant, self.message.conversation_id, self.event);
        if let Some(claim) = self.claim {
            // The receiver lives as long as the process works; a run sent after that is claimed by another.
            let _ = app.work.send(claim);
        }
    }
}
