//! Starting a run, for a program or for an agent that uses the orchestrator. A run stands in a session. A session that
//! a run starts belongs to the session of that run, and the new run has the scope of the tree.

use std::sync::Arc;

use serde::Serialize;

use super::{
    creation::{self, RunPlacement, RunRequest},
    repeats,
};
use crate::app::{
    App,
    accounts::usage,
    servers::{agents, credentials, orchestrator::RunCaller, run_values},
};
use domain::{
    error::{Error, ErrorCode, Missing, Reason, Result},
    ids::{AgentId, ConversationId, RunId},
    json::Members,
    message::{Part, Role},
    orchestrator::MAX_INPUT,
    pack::{Pack, Provider},
    params,
    principal::Principal,
    request_key::{self, RequestKey},
    run::{Conversation, RunKind, RunValues, TreePosition},
    server::{AccessMode, ServerSpec},
};
use store::{Tx, trees::TreeValues};

/// The agent or the session of a new run.
pub enum RunTarget {
    /// The run is the first of a new session with an agent.
    Start { agent: String },
    /// The run continues a session.
    Resume { session: ConversationId },
}

/// A run to start.
pub struct RunSpec {
    pub target: RunTarget,
    pub prompt: String,
    pub params: Members,
    /// The scope that a program gives. A run that another run starts has the scope of that run instead.
    pub scope: Members,
    /// The session that is notified when the run has ended.
    pub callback: Option<ConversationId>,
    /// The session that a new session belongs to.
    pub parent_session: Option<ConversationId>,
    /// The key under which the request may be sent again.
    pub key: Option<RequestKey>,
}

/// The program or the run that starts a run.
#[derive(Clone, Copy)]
pub enum RunInitiator<'a> {
    Program(&'a Principal),
    /// `waits`: the caller waits for the end of the new run, which therefore works in the caller's slot.
    Run {
        caller: &'a RunCaller,
        waits: bool,
    },
}

impl<'a> RunInitiator<'a> {
    fn principal(self) -> &'a Principal {
        match self {
            Self::Program(principal) => principal,
            Self::Run { caller, .. } => &caller.principal,
        }
    }
}

/// A run that was started.
#[derive(Clone, Debug)]
pub struct StartedRun {
    pub run: RunId,
    pub session: ConversationId,
    pub agent: AgentId,
}

/// Starts a run. After an error nothing was created.
pub async fn begin(
    app: &Arc<App>,
    initiator: RunInitiator<'_>,
    spec: RunSpec,
) -> Result<StartedRun> {
    let principal = initiator.principal();
    let checked = check_spec(app, initiator, &spec).await?;
    let id = RunId::new();
    let values = checked.values(id, &spec);
    let (_, scope) = fill_in(app, initiator, &checked.pack, values).await?;
    let CheckedSpec {
        pack,
        resumed,
        message,
        params,
    } = checked;
    let mut tx = app.db.tenant(principal.tenant).await?;
    let conversation = match resumed {
        Some(session) => lock_session(&mut tx, principal, session).await?,
        None => {
            let title = Conversation::title_from(&message);
            store::conversations::insert(&mut tx, &principal.user, pack.id(), &title, None).await?
        }
    };
    if let (None, Some(parent)) = (resumed, spec.parent_session) {
        store::trees::set_parent(&mut tx, conversation.id, parent).await?;
    }
    usage::require_space(app, &mut tx, principal, message.len()).await?;
    usage::require_run(app, &mut tx, principal).await?;
    let position = take_position(app, &mut tx, initiator, id).await?;
    let values = TreeValues {
        position,
        params: &params,
        scope: scope.as_deref(),
        callback: spec.callback,
    };
    let request = RunRequest {
        id,
        conversation: &conversation,
        principal,
        kind: RunKind::Turn,
        place: RunPlacement::InTree {
            values,
            parent_waits: matches!(initiator, RunInitiator::Run { waits: true, .. }),
        },
        role: Role::User,
        parts: &[Part::text(message)],
        for_model: true,
        title: None,
        format: None,
        trace: None,
    };
    let created = creation::create(app, &mut tx, &request).await?;
    let begun = request_key::KeyedRun {
        conversation: conversation.id,
        run: Some(id),
        message: None,
        repeats: 0,
    };
    repeats::remember(&mut tx, principal, spec.key.as_ref(), begun).await?;
    tx.commit().await?;
    created.publish(app);
    Ok(StartedRun {
        run: id,
        session: conversation.id,
        agent: conversation.agent,
    })
}

/// Reads the run that an earlier request with the same key started.
pub async fn load_started(
    app: &App,
    principal: &Principal,
    earlier: request_key::KeyedRun,
) -> Result<StartedRun> {
    let session = get_session(app, principal, earlier.conversation).await?;
    let run = earlier
        .run
        .ok_or_else(|| Error::NotFound(Missing::Conversation(session.id)))?;
    Ok(StartedRun {
        run,
        session: session.id,
        agent: session.agent,
    })
}

/// The run that would start.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RunCheck {
    pub agent_name: String,
    /// The message that the model would read.
    pub message: String,
    /// The servers that the run would have, whether or not they can be reached now.
    pub servers: Vec<String>,
    /// Personal servers that the run would have if its user had connected them.
    pub not_connected: Vec<String>,
}

/// Checks what [`begin`] checks, and creates nothing.
pub async fn check(
    app: &Arc<App>,
    initiator: RunInitiator<'_>,
    spec: &RunSpec,
) -> Result<RunCheck> {
    let checked = check_spec(app, initiator, spec).await?;
    let values = checked.values(RunId::new(), spec);
    let (pack, _) = fill_in(app, initiator, &checked.pack, values).await?;
    let own = credentials::of_user(app, initiator.principal(), pack.id()).await?;
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
        message: checked.message,
        servers: ids(usable),
        not_connected: ids(others),
    })
}

/// A spec that may be started, with what it refers to.
struct CheckedSpec {
    pack: Arc<Pack>,
    resumed: Option<ConversationId>,
    message: String,
    params: Members,
}

impl CheckedSpec {
    fn values(&self, run_id: RunId, spec: &RunSpec) -> RunValues {
        RunValues {
            scope: spec.scope.clone(),
            params: self.params.clone(),
            run_id,
            // For a session that does not exist yet, any id will do.
            session_id: self.resumed.unwrap_or_else(ConversationId::new),
        }
    }
}

async fn check_spec(
    app: &Arc<App>,
    initiator: RunInitiator<'_>,
    spec: &RunSpec,
) -> Result<CheckedSpec> {
    let principal = initiator.principal();
    let (agent, resumed) = match &spec.target {
        RunTarget::Start { agent } => (agent.clone(), None),
        RunTarget::Resume { session } => {
            let session = get_resumable_session(app, initiator, *session).await?;
            (session.agent.to_string(), Some(session.id))
        }
    };
    if let Some(parent) = spec.parent_session {
        get_session(app, principal, parent).await?;
    }
    let pack = agents::pack(app, principal, &agent).await?;
    let message = check_message(&pack, spec)?;
    let params = match resumed {
        Some(session) if spec.params.is_empty() => load_params(app, principal, session).await?,
        _ => spec.params.clone(),
    };
    Ok(CheckedSpec {
        pack,
        resumed,
        message,
        params,
    })
}

/// Checks prompt and parameters. Returns the message that the run answers.
fn check_message(pack: &Pack, spec: &RunSpec) -> Result<String> {
    let agent = pack.id();
    if pack.llm.provider == Provider::None {
        return Err(Error::conflict(
            ErrorCode::AgentHasNoModel,
            format!("agent {agent} has no model, so it can neither be started nor resumed"),
        ));
    }
    let prompt = spec.prompt.replace('\0', "");
    let text = params::message(&prompt, &spec.params);
    if text.trim().is_empty() {
        return Err(Error::invalid(
            "prompt",
            "is empty; say what the agent is to do",
        ));
    }
    check_size(&prompt, &spec.params)?;
    // A session received its parameters when it was started, so a resumed one needs none.
    if matches!(spec.target, RunTarget::Start { .. }) || !spec.params.is_empty() {
        params::check(pack.params.as_ref(), &spec.params).map_err(|unfit| {
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

/// Reads the parameters of a session, for a run that names none: its servers may need them again.
async fn load_params(app: &App, principal: &Principal, session: ConversationId) -> Result<Members> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::trees::find_params(&mut tx, session).await
}

/// Fills the values of a run into the pack's servers. Returns the pack, and the sealed scope if a program gave one.
async fn fill_in(
    app: &App,
    initiator: RunInitiator<'_>,
    pack: &Arc<Pack>,
    mut values: RunValues,
) -> Result<(Arc<Pack>, Option<Vec<u8>>)> {
    let tenant = initiator.principal().tenant;
    if let RunInitiator::Run { caller, .. } = initiator {
        values.scope = run_values::load_stored(app, tenant, caller.run).await?.0;
    }
    let filled = run_values::resolve_pack(app, tenant, pack, &values).await?;
    let scope = match initiator {
        RunInitiator::Program(_) => {
            run_values::seal_scope(app, tenant, values.run_id, &values.scope).await?
        }
        RunInitiator::Run { .. } => None,
    };
    Ok((filled, scope))
}

/// Reads a session that the initiator may resume: a program, any session of its user; a run, a session that its own
/// session has started.
async fn get_resumable_session(
    app: &App,
    initiator: RunInitiator<'_>,
    session: ConversationId,
) -> Result<Conversation> {
    let conversation = get_session(app, initiator.principal(), session).await?;
    if let RunInitiator::Run { caller, .. } = initiator {
        let mut tx = app.db.tenant(caller.principal.tenant).await?;
        let children =
            store::trees::list_children(&mut tx, &caller.principal.user, caller.session).await?;
        if children.iter().all(|child| child.session != session) {
            return Err(Error::SessionNotFound(session.to_string()));
        }
    }
    Ok(conversation)
}

/// Reads a session of the principal.
async fn get_session(
    app: &App,
    principal: &Principal,
    session: ConversationId,
) -> Result<Conversation> {
    let mut tx = app.db.tenant(principal.tenant).await?;
    store::conversations::get(&mut tx, &principal.user, session, false)
        .await
        .map_err(|error| match error {
            Error::NotFound(_) => Error::SessionNotFound(session.to_string()),
            error => error,
        })
}

/// Locks a session in which no turn waits. A run has values of its own, so it cannot join a turn that waits already.
async fn lock_session(
    tx: &mut Tx,
    principal: &Principal,
    id: ConversationId,
) -> Result<Conversation> {
    let found = store::conversations::get(tx, &principal.user, id, true).await;
    let conversation = found.map_err(|_| Error::SessionNotFound(id.to_string()))?;
    if store::runs::find_waiting(tx, id).await?.is_some() {
        return Err(Error::conflict(
            ErrorCode::SessionBusy,
            format!("Session not finished: {id} (status: pending)"),
        ));
    }
    Ok(conversation)
}

/// Takes the position of a new run in a tree. A run that another run starts is counted under the lock of their tree,
/// and refused when the tree has reached a limit.
async fn take_position(
    app: &App,
    tx: &mut Tx,
    initiator: RunInitiator<'_>,
    id: RunId,
) -> Result<TreePosition> {
    let RunInitiator::Run { caller, .. } = initiator else {
        return Ok(TreePosition {
            root: id,
            parent: None,
            depth: 0,
        });
    };
    let gone = || Error::NotFound(Missing::Run(caller.run));
    let parent = store::trees::ensure_position(tx, caller.run)
        .await?
        .ok_or_else(gone)?;
    let store::trees::TreeSize {
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
    Ok(TreePosition {
        root: parent.root,
        parent: Some(caller.run),
        depth,
    })
}
