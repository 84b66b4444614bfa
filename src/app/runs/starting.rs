//! Runs that a program or an agent (by the orchestrator) starts. A session that a run starts in another
//! session belongs to that run; its scope is that of the tree.

use std::sync::Arc;

use serde::Serialize;

use super::{
    creation::{self, RunPlacement, RunRequest},
    repeats,
};
use crate::{
    app::{
        App,
        accounts::usage,
        servers::{agents, credentials, orchestrator::RunCaller, run_values},
    },
    domain::{
        error::{Error, ErrorCode, Reason, Result, Thing},
        ids::{AgentId, ConversationId, RunId},
        json::Members,
        message::{Part, Role},
        orchestrator::MAX_INPUT,
        pack::{Pack, Provider},
        params,
        principal::Principal,
        request_key::{self, RequestKey},
        run::{Branch, Conversation, RunKind, RunValues},
        server::{AccessMode, ServerSpec},
    },
    store::{self, Tx, trees::TreeValues},
};

/// What is to be run.
pub enum RunTarget {
    /// An agent, in a session of its own.
    Start { agent: String },
    /// What follows in a session.
    Resume { session: ConversationId },
}

/// A run that somebody wants.
pub struct RunSpec {
    pub target: RunTarget,
    pub prompt: String,
    pub params: Members,
    /// Of a program; a run that another run starts has that one's.
    pub scope: Members,
    /// The session that is told when it has ended.
    pub callback: Option<ConversationId>,
    /// The session that a new one belongs to.
    pub parent_session: Option<ConversationId>,
    /// The request may be sent again.
    pub key: Option<RequestKey>,
}

/// Who wants it.
#[derive(Clone, Copy)]
pub enum RunInitiator<'a> {
    Program(&'a Principal),
    /// `waits`: it does nothing else until the new run has ended, which therefore works in its place.
    Run {
        caller: &'a RunCaller,
        waits: bool,
    },
}

/// A run that was created.
#[derive(Clone, Debug)]
pub struct StartedRun {
    pub run: RunId,
    pub session: ConversationId,
    pub agent: AgentId,
}

impl<'a> RunInitiator<'a> {
    fn principal(self) -> &'a Principal {
        match self {
            Self::Program(principal) => principal,
            Self::Run { caller, .. } => &caller.principal,
        }
    }
}

/// A run that may be started.
struct CheckedRun {
    pack: Arc<Pack>,
    old: Option<ConversationId>,
    text: String,
    params: Members,
}

impl CheckedRun {
    fn values(&self, run_id: RunId, wanted: &RunSpec) -> RunValues {
        RunValues {
            scope: wanted.scope.clone(),
            params: self.params.clone(),
            run_id,
            // For a session that does not exist yet, any id will do.
            session_id: self.old.unwrap_or_else(ConversationId::new),
        }
    }
}

/// What would be started.
#[derive(Debug, Serialize)]
pub struct RunCheck {
    pub agent_name: String,
    /// What the model would read.
    pub message: String,
    /// The servers that the run would have, whether or not they can be reached now.
    pub servers: Vec<String>,
    /// Personal servers that it would have if its user had connected them.
    pub not_connected: Vec<String>,
}

/// Checks everything that [`begin`] does, and creates nothing.
pub async fn check(app: &Arc<App>, by: RunInitiator<'_>, wanted: &RunSpec) -> Result<RunCheck> {
    let found = checked_spec(app, by, wanted).await?;
    let values = found.values(RunId::new(), wanted);
    let (pack, _) = checked(app, by, &found.pack, values).await?;
    let own = credentials::of_user(app, by.principal(), pack.id()).await?;
    let is_usable = |server: &&ServerSpec| {
        server.access_mode == AccessMode::AdminControlled || own.active(&server.id).is_some()
    };
    let (usable, others): (Vec<_>, Vec<_>) = pack.servers.iter().partition(is_usable);
    let ids = |servers: Vec<&ServerSpec>| -> Vec<String> {
        let ids = servers.iter().map(|server| server.id.to_string());
        ids.collect()
    };
    Ok(RunCheck {
        agent_name: pack.id().to_string(),
        message: found.text,
        servers: ids(usable),
        not_connected: ids(others),
    })
}

async fn checked_spec(
    app: &Arc<App>,
    by: RunInitiator<'_>,
    wanted: &RunSpec,
) -> Result<CheckedRun> {
    let principal = by.principal();
    let (agent, old) = match &wanted.target {
        RunTarget::Start { agent } => (agent.clone(), None),
        RunTarget::Resume { session } => {
            let session = session_of(app, by, *session).await?;
            (session.agent.to_string(), Some(session.id))
        }
    };
    if let Some(parent) = wanted.parent_session {
        own(app, principal, parent).await?;
    }
    let pack = agents::pack(app, principal, &agent).await?;
    let text = message(&pack, wanted)?;
    let params = match old {
        Some(session) if wanted.params.is_empty() => {
            params_of_session(app, principal, session).await?
        }
        _ => wanted.params.clone(),
    };
    Ok(CheckedRun {
        pack,
        old,
        text,
        params,
    })
}

/// Creates a run, or says why not; then nothing was created.
pub async fn begin(app: &Arc<App>, by: RunInitiator<'_>, wanted: RunSpec) -> Result<StartedRun> {
    let principal = by.principal();
    let found = checked_spec(app, by, &wanted).await?;
    let id = RunId::new();
    let (_, scope) = checked(app, by, &found.pack, found.values(id, &wanted)).await?;
    let CheckedRun {
        pack,
        old,
        text,
        params,
    } = found;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = conversation(&mut tx, principal, &pack, old, &text).await?;
    if let (None, Some(parent)) = (old, wanted.parent_session) {
        store::trees::set_parent(&mut tx, conversation.id, parent).await?;
    }
    usage::require_space(app, &mut tx, principal, text.len()).await?;
    usage::admit(app, &mut tx, principal).await?;
    let branch = branch(app, &mut tx, by, id).await?;
    let given = TreeValues {
        branch,
        params: &params,
        scope: scope.as_deref(),
        callback: wanted.callback,
    };
    let request = RunRequest {
        id,
        conversation: &conversation,
        principal,
        kind: RunKind::Turn,
        place: RunPlacement::InTree {
            given,
            parent_waits: matches!(by, RunInitiator::Run { waits: true, .. }),
        },
        role: Role::User,
        parts: &[Part::text(text)],
        for_model: true,
        title: None,
        format: None,
    };
    let opened = creation::open(app, &mut tx, &request).await?;
    let begun = request_key::KeyedRun {
        conversation: conversation.id,
        run: Some(id),
        message: None,
        repeats: 0,
    };
    repeats::remember(&mut tx, principal, wanted.key.as_ref(), begun).await?;
    tx.commit().await?;
    opened.publish(app);
    Ok(StartedRun {
        run: id,
        session: conversation.id,
        agent: conversation.agent,
    })
}

/// The run that an earlier request began.
pub async fn load_started(
    app: &App,
    principal: &Principal,
    earlier: request_key::KeyedRun,
) -> Result<StartedRun> {
    let own = own(app, principal, earlier.conversation).await?;
    let run = earlier
        .run
        .ok_or_else(|| Error::NotFound(Thing::Conversation(own.id)))?;
    Ok(StartedRun {
        run,
        session: own.id,
        agent: own.agent,
    })
}

/// The message that a run answers.
fn message(pack: &Pack, wanted: &RunSpec) -> Result<String> {
    let agent = pack.id();
    if pack.llm.provider == Provider::None {
        return Err(Error::conflict(
            ErrorCode::AgentHasNoModel,
            format!("agent {agent} has no model, so it can neither be started nor resumed"),
        ));
    }
    let prompt = wanted.prompt.replace('\0', "");
    let text = params::message(&prompt, &wanted.params);
    if text.trim().is_empty() {
        return Err(Error::invalid(
            "prompt",
            "is empty; say what the agent is to do",
        ));
    }
    check_size(&prompt, &wanted.params)?;
    // A session was given what it needs when it was started.
    if matches!(wanted.target, RunTarget::Start { .. }) || !wanted.params.is_empty() {
        params::check(pack.params.as_ref(), &wanted.params).map_err(|unfit| {
            Error::invalid(
                format!("params.{}", unfit.name),
                Reason::Sentence(unfit.reason),
            )
        })?;
    }
    Ok(text)
}

fn check_size(prompt: &str, params: &Members) -> Result<()> {
    let size = prompt.chars().count() + params.to_string().chars().count();
    if size > MAX_INPUT {
        return Err(Error::unfit(
            ErrorCode::TooLong,
            "params",
            Reason::Sentence(format!(
                "Parameters too large: {size} characters (max {MAX_INPUT})"
            )),
        ));
    }
    Ok(())
}

/// The pack with the servers that it has with what the run is given, and the run's scope, sealed.
async fn checked(
    app: &App,
    by: RunInitiator<'_>,
    pack: &Arc<Pack>,
    mut values: RunValues,
) -> Result<(Arc<Pack>, Option<Vec<u8>>)> {
    let tenant = by.principal().tenant;
    if let RunInitiator::Run { caller, .. } = by {
        values.scope = run_values::stored(app, tenant, caller.run).await?.0;
    }
    let filled = run_values::filled_in(app, tenant, pack, &values).await?;
    let scope = match by {
        RunInitiator::Program(_) => {
            run_values::sealed(app, tenant, values.run_id, &values.scope).await?
        }
        RunInitiator::Run { .. } => None,
    };
    Ok((filled, scope))
}

/// The parameters of a session, when a run names none: its servers may need them again.
async fn params_of_session(
    app: &App,
    principal: &Principal,
    session: ConversationId,
) -> Result<Members> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::trees::params_of(&mut tx, session).await
}

/// A session that may be resumed: one of the program's own user, or one that the calling session started.
async fn session_of(
    app: &App,
    by: RunInitiator<'_>,
    session: ConversationId,
) -> Result<Conversation> {
    let conversation = own(app, by.principal(), session).await?;
    if let RunInitiator::Run { caller, .. } = by {
        let mut tx = app.db.tenant(caller.principal.tenant).await?;
        let children =
            store::trees::children(&mut tx, &caller.principal.user, caller.session).await?;
        if children.iter().all(|child| child.session != session) {
            return Err(Error::SessionNotFound(session.to_string()));
        }
    }
    Ok(conversation)
}

async fn own(app: &App, principal: &Principal, session: ConversationId) -> Result<Conversation> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::conversations::get(&mut tx, &principal.user, session, false)
        .await
        .map_err(|error| match error {
            Error::NotFound(_) => Error::SessionNotFound(session.to_string()),
            error => error,
        })
}

/// The conversation, locked. A run has values of its own, so it joins none that waits already.
async fn conversation(
    tx: &mut Tx,
    principal: &Principal,
    pack: &Pack,
    old: Option<ConversationId>,
    text: &str,
) -> Result<Conversation> {
    let Some(id) = old else {
        let title = Conversation::title_from(text);
        let user = &principal.user;
        return store::conversations::insert(tx, user, pack.id(), &title, None).await;
    };
    let found = store::conversations::get(tx, &principal.user, id, true).await;
    let conversation = found.map_err(|_| Error::SessionNotFound(id.to_string()))?;
    if store::runs::waiting(tx, id).await?.is_some() {
        return Err(Error::conflict(
            ErrorCode::SessionBusy,
            format!("Session not finished: {id} (status: pending)"),
        ));
    }
    Ok(conversation)
}

/// The place of a new run. One that another run starts is counted, under the lock of their tree.
async fn branch(app: &App, tx: &mut Tx, by: RunInitiator<'_>, id: RunId) -> Result<Branch> {
    let RunInitiator::Run { caller, .. } = by else {
        return Ok(Branch {
            root: id,
            parent: None,
            depth: 0,
        });
    };
    let gone = || Error::NotFound(Thing::Run(caller.run));
    let parent = store::trees::branch_of(tx, caller.run)
        .await?
        .ok_or_else(gone)?;
    let store::trees::Count {
        all,
        children,
        stopping,
    } = store::trees::count(tx, parent.root, caller.run).await?;
    let (deepest, widest, most) = (
        app.config.run_depth,
        app.config.run_children,
        app.config.run_tree,
    );
    let depth = parent.depth + 1;
    let refused = |code, why: String| Err(Error::conflict(code, format!("not started: {why}")));
    if stopping {
        return refused(
            ErrorCode::RunOver,
            "the run that wants it is being stopped".to_owned(),
        );
    }
    if i64::from(depth) > i64::from(deepest) {
        return refused(
            ErrorCode::LimitReached,
            format!("agents may start agents {deepest} generations deep at most; do this yourself"),
        );
    }
    if children >= i64::from(widest) {
        return refused(
            ErrorCode::LimitReached,
            format!("one run may start {widest} runs at most; use what those have found"),
        );
    }
    if all >= i64::from(most) {
        return refused(
            ErrorCode::LimitReached,
            format!("a tree of runs may have {most} runs at most; finish with what there is"),
        );
    }
    Ok(Branch {
        root: parent.root,
        parent: Some(caller.run),
        depth,
    })
}
