//! Talks to MCP servers.
//!
//! [`Mcp`] keeps the connections; [`Mcp::discover`] lists a server's tools, [`Mcp::call`] makes one call.
//! A warm call is exactly one request to the server, and its result travels as raw JSON.
//!
//! Invariant: a call is sent at most once, unless nothing of it left this machine or its session was lost: the server
//! refuses a ping in that session in the very same way, so that it refuses whatever comes in it unread. A lost answer
//! is [`CallError::OutcomeUnknown`] or [`CallError::TimedOut`], and nobody below repeats it.

mod call;
mod call_slots;
mod changes;
mod connect;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handshake;
mod http;
mod interceptor;
mod known;
mod listing;
mod live_questions;
pub mod oauth;
mod outcome;
mod params;
mod pool;
mod prompts;
mod read_pace;
mod reading;
mod resources;
pub mod schemas;
mod session;
mod sse;
mod stdio;
pub mod tokens;
mod websocket;

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use serde_json::value::RawValue;
use tokio::{
    sync::{broadcast, mpsc},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use self::{
    call::Call,
    error::Failure,
    listing::Listed,
    live_questions::LiveQuestions,
    pool::{InUse, Pool},
    session::Session,
};
pub use self::{
    error::{CallError, McpError, McpErrorKind},
    live_questions::{LiveQuestion, TIME_LIMIT as LIVE_TIME_LIMIT},
    outcome::text_outcome,
    params::{ParamHeader, param_headers},
    stdio::LAUNCH,
};
use domain::{
    elicitation::Answer,
    ids::{AgentId, ServerId, TenantId, UserId},
    owner::ConnectionOwner,
    prompt::ServerPrompt,
    server::{CredentialTest, ServerSpec},
    tool::{CacheHints, Tool, ToolOutcome},
};
use egress::Egress;

/// Every MCP connection of this process. Cheap to clone.
#[derive(Clone)]
pub struct Mcp {
    pool: Arc<Pool>,
}

/// Whose connection to which server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub tenant: TenantId,
    pub agent: AgentId,
    pub server: ServerId,
    pub owner: ConnectionOwner,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Commands that a stdio server may name without an absolute path.
    pub stdio_commands: Vec<String>,
    /// Variables of our environment that every child gets. Our own settings are never among them.
    pub stdio_env: Vec<String>,
    /// A program that starts a child with less than we may: it takes the command and its arguments as its own. Absent:
    /// the child is started as it is.
    pub stdio_launcher: Option<PathBuf>,
    /// How long a child may take until the handshake is done, where its pack does not say; `npx` and `uvx` download
    /// first.
    pub stdio_start: Duration,
    /// A connection of a user or of runs that nobody used for this long is closed.
    pub idle_ttl: Duration,
    /// The same for shared ones.
    pub shared_idle_ttl: Duration,
    /// Above this, the least recently used connections that are not in use are closed.
    pub max_connections: usize,
    /// Calls under way to one server of one agent and tenant; one more waits.
    pub calls_per_server: usize,
    /// How long a server is left alone after its first failure; doubled with each one that follows.
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// Where access tokens are from; absent: each process asks for its own.
    pub tokens: Option<tokens::TokenSource>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            stdio_commands: Vec::new(),
            stdio_env: Vec::new(),
            stdio_launcher: None,
            stdio_start: Duration::from_secs(60),
            idle_ttl: Duration::from_secs(600),
            shared_idle_ttl: Duration::from_secs(3600),
            max_connections: 2048,
            calls_per_server: 64,
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(60),
            tokens: None,
        }
    }
}

/// Which protocol a server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Era {
    /// Up to 2025-11-25: a handshake and sessions.
    #[default]
    Legacy,
    /// From 2026-07-28: every request stands alone.
    Modern,
}

impl Era {
    fn other(self) -> Self {
        match self {
            Self::Legacy => Self::Modern,
            Self::Modern => Self::Legacy,
        }
    }
}

/// What a key's connection is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Not connected; the next use connects.
    Idle,
    Connecting,
    Ready {
        era: Era,
        since: Instant,
    },
    /// It failed, and is tried again at the first use after the pause.
    Down {
        error: McpError,
        retry_in: Duration,
    },
}

/// The tools and prompts of a server, as seen with one credential.
#[derive(Clone, Debug)]
pub struct Discovery {
    pub tools: Vec<Arc<Tool>>,
    pub prompts: Vec<Arc<ServerPrompt>>,
    /// What was left out and why, in the server's order.
    pub dropped: Vec<String>,
    /// Checks of arguments that are not made here but left to the server.
    pub unchecked: Vec<String>,
    pub era: Era,
    /// The revision in use, such as `2026-07-28`.
    pub protocol: String,
    pub cache: CacheHints,
}

/// How far a call has come, in the server's own measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    pub progress: f64,
    pub total: Option<f64>,
    pub message: Option<String>,
}

/// Reports of progress that are kept for a listener that reads too slowly: the newest ones.
const KEPT_REPORTS: usize = 16;

/// Where the progress of a call is reported. It never waits.
pub type ProgressSender = broadcast::Sender<Progress>;

/// The progress of one call, in the server's order. Reports that were not read in time are left out.
pub struct ProgressReports(broadcast::Receiver<Progress>);

pub fn progress_channel() -> (ProgressSender, ProgressReports) {
    let (sender, receiver) = broadcast::channel(KEPT_REPORTS);
    (sender, ProgressReports(receiver))
}

impl ProgressReports {
    /// The next report; `None` when there will be none.
    pub async fn next(&mut self) -> Option<Progress> {
        loop {
            match self.0.recv().await {
                Ok(report) => return Some(report),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

/// Which tool to call, and with what.
#[derive(Clone, Copy, Debug)]
pub struct CallRequest<'a> {
    pub tool: &'a str,
    /// A JSON object.
    pub arguments: &'a RawValue,
}

/// What goes with one call.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// Hears of progress, in the server's order.
    pub progress: Option<ProgressSender>,
    /// Gives the call up and tells the server so.
    pub cancel: CancellationToken,
    /// For a call that may reach the server once at most: it is not even sent again when nothing of it left this
    /// machine, only when its session was lost, and it carries this key in `_meta`.
    pub once: Option<String>,
    /// Somebody can be asked something: the server is told so, and may answer with questions (2026-07-28).
    pub asks: bool,
    /// Takes what a server of an older revision asks while the call is open; the call's time stands still until it is
    /// answered. Absent: it is declined.
    pub live: Option<mpsc::UnboundedSender<LiveQuestion>>,
    /// Who makes the call: no user takes more than a share of a server's places.
    pub user: Option<UserId>,
    /// What the server's questions were answered with; this repeats the call that it answered with them.
    pub answer: Option<Answer>,
    /// Asked before a call whose session was lost is made again in a new one.
    pub repeat_check: Option<RepeatCheck>,
}

/// Whether a call may still be made, some time after it was allowed.
#[derive(Clone)]
pub struct RepeatCheck(Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>);

impl RepeatCheck {
    pub fn new(check: impl Fn() -> BoxFuture<'static, bool> + Send + Sync + 'static) -> Self {
        Self(Arc::new(check))
    }

    async fn passes(&self) -> bool {
        (self.0)().await
    }
}

impl fmt::Debug for RepeatCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RepeatCheck")
    }
}

impl Mcp {
    /// Connects to nothing yet.
    pub fn new(egress: Egress, options: Options) -> Self {
        Self {
            pool: Arc::new(Pool::new(egress, options)),
        }
    }

    /// Lists the tools and prompts of a server, connecting if needed. Connecting takes at most the server's connect
    /// timeout (a child: [`Options::stdio_start`]), listing at most its request timeout.
    pub async fn discover(&self, key: &Key, spec: &Arc<ServerSpec>) -> Result<Discovery, McpError> {
        let using = self.pool.claim(key, spec);
        let mut tries = 2;
        loop {
            tries -= 1;
            let session = self.pool.session(&using.slot).await?;
            if !spec.load_tools {
                return Ok(discovery(
                    Listed::default(),
                    prompts::of(&session, spec).await,
                    &session,
                ));
            }
            match list(&using, &session).await {
                Ok(listed) => {
                    using.slot.prove();
                    return Ok(discovery(
                        listed,
                        prompts::of(&session, spec).await,
                        &session,
                    ));
                }
                Err(failure) => {
                    let renewed = self.pool.renew(&using.slot, &session, failure, tries > 0);
                    renewed.await.map_err(Failure::of_server)?;
                }
            }
        }
    }

    /// Connects unless it is connected: whether the server is there and lets this credential in, without a
    /// list of its tools. The revision in use, such as `2026-07-28`.
    pub async fn connect(&self, key: &Key, spec: &Arc<ServerSpec>) -> Result<String, McpError> {
        let using = self.pool.claim(key, spec);
        Ok(self.pool.session(&using.slot).await?.protocol.clone())
    }

    /// Calls a tool once. The server's request timeout covers the call from its first byte to the last one of its answer;
    /// not what [`CallOptions::live`] takes to answer. Waiting for a free place and connecting have as much time each,
    /// and nothing is sent when it runs out.
    pub async fn call(
        &self,
        key: &Key,
        spec: &Arc<ServerSpec>,
        request: CallRequest<'_>,
        options: CallOptions,
    ) -> Result<ToolOutcome, CallError> {
        if !request.arguments.get().starts_with('{') {
            return Err(CallError::NotSent(
                "the arguments of a tool are a JSON object".to_owned(),
            ));
        }
        let call = Call {
            request,
            progress: options.progress,
            once: options.once,
            asks: options.asks,
            asking: options
                .live
                .map(|questions| Arc::new(LiveQuestions::new(questions))),
            answer: options.answer,
            user: options.user,
            repeat_check: options.repeat_check,
            in_flight: Mutex::default(),
        };
        tokio::select! {
            biased;
            () = options.cancel.cancelled() => Err(call.cancelled()),
            sent = call.send(&self.pool, key, spec) => sent,
        }
    }

    /// Calls a tool that an operator named as the test of a credential: nothing is asked on its way, and what it answers
    /// is not kept. Whether it succeeds; `false`: the tool says no.
    pub async fn try_tool(
        &self,
        key: &Key,
        spec: &Arc<ServerSpec>,
        test: &CredentialTest,
    ) -> Result<bool, CallError> {
        let arguments = serde_json::value::to_raw_value(&test.arguments)
            .map_err(|error| CallError::NotSent(error.to_string()))?;
        let request = CallRequest {
            tool: &test.tool,
            arguments: &arguments,
        };
        match self.call(key, spec, request, CallOptions::default()).await {
            Ok(outcome) => Ok(!outcome.is_error && outcome.input.is_none()),
            Err(CallError::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What the connection of a key is doing.
    pub fn state(&self, key: &Key) -> ConnectionState {
        self.pool.state(key)
    }

    /// The keys whose server says that its tools changed. A receiver that lags has missed some.
    pub fn changes(&self) -> broadcast::Receiver<Key> {
        self.pool.changes.subscribe()
    }

    /// Closes the connections of a key, whatever they are doing.
    pub async fn close(&self, key: &Key) {
        self.pool.close(key).await;
    }

    /// Closes the connection that was made for this version of a server, once nobody uses it any more.
    pub async fn retire(&self, key: &Key, spec: &Arc<ServerSpec>) {
        self.pool.close_when_unused(key, spec).await;
    }

    /// The connections that were made with a user's credential.
    pub fn personal_keys(&self) -> Vec<Key> {
        self.pool.personal_keys()
    }

    /// Ends every session and every child, within a few seconds. Nothing can be connected afterwards.
    pub async fn shutdown(&self) {
        self.pool.shutdown().await;
    }
}

/// Lists the tools over a session and remembers what later calls need of it.
async fn list(using: &InUse, session: &Arc<Session>) -> Result<Listed, Failure> {
    let time_limit = using.slot.target.spec.timeouts.request;
    let listed = timeout(time_limit, listing::list(session)).await;
    let mut listed = listed.unwrap_or_else(|_| {
        session.mark_unresponsive();
        Err(Failure::Silent(format!(
            "the server did not list its tools within {} s",
            time_limit.as_secs_f32()
        )))
    })?;
    using
        .slot
        .target
        .known
        .learn_headers(std::mem::take(&mut listed.headers));
    Ok(listed)
}

fn discovery(mut listed: Listed, prompts: prompts::Listed, session: &Session) -> Discovery {
    listed.dropped.extend(prompts.dropped);
    Discovery {
        tools: listed.tools,
        prompts: prompts.prompts,
        dropped: listed.dropped,
        unchecked: listed.unchecked,
        era: session.era,
        protocol: session.protocol.clone(),
        cache: [listed.cache, prompts.cache]
            .into_iter()
            .flatten()
            .reduce(CacheHints::and)
            .unwrap_or_default(),
    }
}
