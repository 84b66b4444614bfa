//! The built-in server, which packs name like any other: its catalog, and its calls, which are made in process.
//!
//! Its tools start runs, and this group may not use the group of runs. So the process passes in the [`Handler`] of its
//! tools when it is put together.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use serde_json::{Value, value::RawValue};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::app::App;
use domain::{
    error::{Error, Missing, Result},
    ids::{ConversationId, RunId, ServerId, TenantId},
    json::Members,
    orchestrator,
    principal::Principal,
    server::ServerSpec,
    tool::{CacheHints, Catalog, Tool, ToolOutcome},
};
use mcp::CallError;

/// The time that a call has beyond the time that it waits for a run.
const MARGIN: Duration = Duration::from_secs(30);

/// A function that calls one tool for a run. The error is a sentence for the run's model.
pub type Handler = fn(
    Arc<App>,
    RunCaller,
    String,
    Members,
) -> BoxFuture<'static, std::result::Result<Value, String>>;

pub struct Orchestrator {
    tools: Vec<Arc<Tool>>,
    handler: Handler,
}

/// A run that calls a tool of the orchestrator.
#[derive(Clone)]
pub struct RunCaller {
    pub run: RunId,
    pub session: ConversationId,
    pub principal: Principal,
}

impl Orchestrator {
    pub fn new(handler: Handler) -> Self {
        Self {
            tools: orchestrator::tools(),
            handler,
        }
    }

    /// Whether a pack's server is the built-in one.
    pub fn is(&self, spec: &ServerSpec) -> bool {
        orchestrator::is_built_in(spec)
    }

    /// The catalog of the built-in server, which is the same for everybody.
    pub fn catalog(&self, server: &ServerId) -> Arc<Catalog> {
        Arc::new(Catalog {
            server: server.clone(),
            tools: self.tools.clone(),
            prompts: Vec::new(),
            dropped: Vec::new(),
            fetched_at: OffsetDateTime::UNIX_EPOCH,
            cache: CacheHints::default(),
            version: "built in".to_owned(),
        })
    }

    pub fn tools(&self) -> &[Arc<Tool>] {
        &self.tools
    }
}

/// Reads a run as the caller of a tool; `NotFound` when the run is gone.
pub async fn caller(app: &App, tenant: TenantId, run: RunId) -> Result<RunCaller> {
    let mut tx = app.db.tenant(tenant).await?;
    let found = store::trees::get_caller(&mut tx, run).await?;
    let (session, principal) = found.ok_or(Error::NotFound(Missing::Run(run)))?;
    Ok(RunCaller {
        run,
        session,
        principal,
    })
}

/// Makes a call. `arguments` is a JSON object.
pub async fn call(
    app: &Arc<App>,
    caller: &RunCaller,
    tool: &str,
    arguments: &RawValue,
    cancel: &CancellationToken,
) -> std::result::Result<ToolOutcome, CallError> {
    let arguments = serde_json::from_str(arguments.get())
        .map_err(|_| CallError::NotSent("the arguments of a tool are a JSON object".to_owned()))?;
    let time_limit = app.config.run_wait + MARGIN;
    // The call runs in a task of its own, so that it is completed even when its caller has left.
    let made = async {
        let handler = app.orchestrator.handler;
        let work = handler(app.clone(), caller.clone(), tool.to_owned(), arguments);
        app.tasks.spawn(work.in_current_span()).await
    };
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(CallError::Cancelled { sent: true }),
        made = made => match made {
            Ok(Ok(value)) => Ok(mcp::text_outcome(&value.to_string(), false)),
            Ok(Err(text)) => Ok(mcp::text_outcome(&text, true)),
            Err(_) => Err(CallError::OutcomeUnknown("the orchestrator broke off".to_owned())),
        },
        () = tokio::time::sleep(time_limit) => Err(CallError::TimedOut(time_limit)),
    }
}
