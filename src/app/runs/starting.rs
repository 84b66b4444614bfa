//! Runs that a program or an agent (by the orchestrator) starts. A session that a run starts in another
//! session belongs to that run; its scope is that of the tree.

mod input;
mod placement;

use std::sync::Arc;

use serde::Serialize;

use self::{
    input::{checked, message, params_of_session},
    placement::{branch, conversation, own, session_of},
};
use super::{
    opening::{self, RunPlacement, RunRequest},
    repeats,
};
use crate::{
    app::{
        App,
        accounts::usage,
        servers::{agents, credentials, orchestrator::RunCaller},
    },
    domain::{
        error::{Error, Result, Thing},
        ids::{AgentId, ConversationId, RunId},
        json::Members,
        message::{Part, Role},
        pack::Pack,
        principal::Principal,
        request_key::{self, RequestKey},
        run::{RunKind, RunValues},
        server::{AccessMode, ServerSpec},
    },
    store::{self, trees::TreeValues},
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
    let opened = opening::open(app, &mut tx, &request).await?;
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
