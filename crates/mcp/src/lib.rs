//! The client of MCP servers.
//!
//! [`Mcp`] keeps the connections; [`Mcp::discover`] lists a server's tools, [`Mcp::call`] makes one call. Over an open
//! connection, a call is exactly one request to the server, and its result is kept as raw JSON.
//!
//! Invariant: a call is sent at most once, with these exceptions: nothing of it left this machine, the server
//! refused its access token at once or asked for headers that its tool list defines, or its session was lost and
//! [`CallOptions::may_repeat`] says that a second execution does no harm. The refusal of a session shows what one
//! instance of a server knows, and not whether another one has read the call before. So that calls seldom meet a
//! lost session, an idle one is asked by a ping before a call. A lost answer is [`CallError::OutcomeUnknown`],
//! [`CallError::SessionLost`] or [`CallError::TimedOut`], and nothing in this crate sends the call again.

mod answer;
mod call;
mod connect;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handshake;
mod http;
mod known_server;
mod listing;
pub mod oauth;
mod outbox;
mod outcome;
mod param_headers;
mod peer;
mod pool;
mod prompts;
mod read_pace;
mod reading;
mod redaction;
mod request;
pub mod schemas;
mod session;
mod sse;
mod stdio;
pub mod tokens;
mod websocket;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::value::RawValue;
use tokio::{
    sync::{broadcast, mpsc},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use self::{
    call::Call,
    error::Failure,
    listing::ToolListing,
    peer::LiveQuestions,
    pool::{InUse, Pool},
    session::Session,
};
pub use self::{
    error::{CallError, McpError, McpErrorKind},
    outcome::text_outcome,
    param_headers::{ParamHeader, param_headers},
    peer::{LIVE_TIME_LIMIT, LiveQuestion},
    stdio::LAUNCH,
};
pub use domain::server::Lifecycle;
use domain::{
    clock,
    credential::CredentialRef,
    elicitation::Answer,
    ids::{TenantId, UserId},
    owner::SharedKey,
    prompt::ServerPrompt,
    server::{CredentialTest, ServerSpec},
    tool::{CacheHints, Tool, ToolOutcome},
    trace_context::TraceContext,
};
use egress::Egress;

/// Every MCP connection of this process. Cheap to clone.
#[derive(Clone)]
pub struct Mcp {
    pool: Arc<Pool>,
}

/// What identifies a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// To a shared server.
    Shared(SharedKey),
    /// With a credential of a user, in one generation.
    Personal(CredentialRef),
}

impl Key {
    /// The only tenant that uses the connection; `None`: every tenant may.
    pub fn tenant(&self) -> Option<TenantId> {
        match self {
            Self::Shared(key) => key.tenant,
            Self::Personal(credential) => Some(credential.tenant),
        }
    }
}

/// The user who makes a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    pub tenant: TenantId,
    pub user: UserId,
}

/// Settings for all connections of a process.
#[derive(Clone, Debug)]
pub struct Options {
    /// Commands that a stdio server may name without an absolute path.
    pub stdio_commands: Vec<String>,
    /// Names of environment variables that every child process gets. Our own settings are never passed on.
    pub stdio_env: Vec<String>,
    /// A program that starts the child with fewer rights than this process has. It gets [`LAUNCH`], `--`, the command and
    /// the arguments. `None`: the command is started directly.
    pub stdio_launcher: Option<PathBuf>,
    /// How long a child process may take from its start to the end of the handshake, unless its pack sets a time. `npx` and
    /// `uvx` download first.
    pub stdio_start: Duration,
    /// Unused connections of one tenant and of its users are closed after this time, unless the pack says another.
    pub idle_ttl: Duration,
    /// The same for those that serve all tenants.
    pub shared_idle_ttl: Duration,
    /// A session in which the server has not answered for this time is asked by a ping before a call.
    pub ping_after: Duration,
    /// The most connections. Above it, the least recently used ones are closed, if they are not in use.
    pub max_connections: usize,
    /// The most simultaneous calls of one tenant to one server. Further calls wait. A connection that serves all tenants
    /// takes four times as many.
    pub calls_per_server: usize,
    /// How long nothing is sent to a server after its first failure. The pause doubles with each further failure.
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// The source of access tokens. `None`: each process gets its own from the token endpoint.
    pub tokens: Option<tokens::TokenSource>,
}

/// A connection that serves all tenants may hold as much as those of this many tenants.
const TENANTS_AT_ONCE: usize = 4;

impl Default for Options {
    fn default() -> Self {
        Self {
            stdio_commands: Vec::new(),
            stdio_env: Vec::new(),
            stdio_launcher: None,
            stdio_start: Duration::from_secs(60),
            idle_ttl: Duration::from_secs(600),
            shared_idle_ttl: Duration::from_secs(3600),
            ping_after: Duration::from_secs(2),
            max_connections: 2048,
            calls_per_server: 64,
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(60),
            tokens: None,
        }
    }
}

/// The state of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Not connected; the next use connects.
    Idle,
    Connecting,
    Ready {
        lifecycle: Lifecycle,
        since: Instant,
    },
    /// Connecting failed. The first use after the pause tries again.
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
    /// The tools and prompts that were left out, one text with the reason for each.
    pub dropped: Vec<String>,
    /// The rules in input schemas that are not checked here, only by the server.
    pub unchecked: Vec<String>,
    pub lifecycle: Lifecycle,
    /// The revision of the protocol in use, such as `2026-07-28`.
    pub protocol: String,
    pub cache: CacheHints,
}

/// A report of the progress of a call, in units that the server chooses.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    pub progress: f64,
    pub total: Option<f64>,
    pub message: Option<String>,
}

/// The most progress reports that are kept for a slow reader. The oldest are dropped.
const KEPT_REPORTS: usize = 16;

/// The sending half of [`progress_channel`]. Sending never waits.
pub type ProgressSender = broadcast::Sender<Progress>;

/// The receiving half of [`progress_channel`]: the reports of one call, in the server's order. Reports that were not read
/// in time are missing.
pub struct ProgressReports(broadcast::Receiver<Progress>);

/// A channel for the progress reports of one call.
pub fn progress_channel() -> (ProgressSender, ProgressReports) {
    let (sender, receiver) = broadcast::channel(KEPT_REPORTS);
    (sender, ProgressReports(receiver))
}

impl ProgressReports {
    /// Waits for the next report; `None` when the call has ended.
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

/// A call of a tool.
#[derive(Clone, Copy, Debug)]
pub struct CallRequest<'a> {
    pub tool: &'a str,
    /// A JSON object.
    pub arguments: &'a RawValue,
}

/// Options of one call.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// Gets the progress reports.
    pub progress: Option<ProgressSender>,
    /// Cancelling it cancels the call, and the server is notified.
    pub cancel: CancellationToken,
    /// A key that goes into `_meta`. A call with a key is never sent again, not even when nothing of it left this machine.
    pub idempotency_key: Option<String>,
    /// The server is told that the user can be asked, and may answer with questions (revision 2026-07-28).
    pub can_ask_user: bool,
    /// Gets the questions that a server with [`Lifecycle::Handshake`] asks during the call. The time limit of the call is
    /// suspended while a question is open. `None`: questions are declined.
    pub live_questions: Option<mpsc::UnboundedSender<LiveQuestion>>,
    /// The user who makes the call. One user gets at most a quarter of [`Options::calls_per_server`].
    pub caller: Option<Caller>,
    /// The answer to the questions with which the server answered the same call before.
    pub answer: Option<Answer>,
    /// The call may be made again when its session was lost, although it may have been read: it changes nothing, or the second
    /// time nothing more.
    pub may_repeat: bool,
    /// The span of the call, which the server gets in its headers and in `_meta` of the call (SEP-414).
    pub trace: Option<TraceContext>,
}

impl Mcp {
    /// Creates the client. It connects when a server is used for the first time.
    pub fn new(egress: Egress, options: Options) -> Self {
        Self {
            pool: Arc::new(Pool::new(egress, options)),
        }
    }

    /// Lists the tools and prompts of a server, and connects first if needed. Connecting takes at most the server's connect
    /// timeout (for a child process [`Options::stdio_start`]), listing the tools at most its request timeout.
    pub async fn discover(&self, key: &Key, spec: &Arc<ServerSpec>) -> Result<Discovery, McpError> {
        let using = self.pool.claim(key, spec);
        let mut tries = 2;
        loop {
            tries -= 1;
            let session = self.pool.session(&using.slot).await?;
            if !spec.load_tools {
                return Ok(discovery(
                    ToolListing::default(),
                    prompts::list(&session, spec).await,
                    &session,
                ));
            }
            match list_tools(&using, &session).await {
                Ok(listed) => {
                    using.slot.mark_credential_good();
                    return Ok(discovery(
                        listed,
                        prompts::list(&session, spec).await,
                        &session,
                    ));
                }
                Err(failure) => {
                    Pool::renew(&using.slot, &session, failure, tries > 0)
                        .map_err(Failure::into_server_error)?;
                }
            }
        }
    }

    /// Connects, unless there is a connection, without listing tools: checks that the server answers and accepts the
    /// credential. Returns the revision of the protocol in use, such as `2026-07-28`.
    pub async fn connect(&self, key: &Key, spec: &Arc<ServerSpec>) -> Result<String, McpError> {
        let using = self.pool.claim(key, spec);
        Ok(self
            .pool
            .session(&using.slot)
            .await?
            .revision
            .as_str()
            .to_owned())
    }

    /// Calls a tool. The server's request timeout covers the time from the first byte of the call to the last byte of its
    /// answer, without the time in which the user answers [`CallOptions::live_questions`]. Waiting for a free slot and
    /// connecting may each take as long again, before anything is sent.
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
            idempotency_key: options.idempotency_key,
            can_ask_user: options.can_ask_user,
            live_questions: options
                .live_questions
                .map(|questions| Arc::new(LiveQuestions::new(questions))),
            answer: options.answer,
            caller: options.caller,
            may_repeat: options.may_repeat,
            trace: options.trace,
            in_flight: Mutex::default(),
            status: Mutex::default(),
        };
        let began = clock::instant();
        let answer = tokio::select! {
            biased;
            () = options.cancel.cancelled() => Err(call.cancellation_error()),
            sent = call.send(&self.pool, key, spec) => sent,
        };
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        log_failure(spec, &call, &answer, ms);
        answer
    }

    /// Calls the tool that an operator named as the test of a credential. Nobody is asked for consent, and the result is not
    /// kept. `false`: the tool returned an error or was refused.
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
        // It only reads. Where the server says 401 or 403 in a new session as well, it refuses the credential.
        let options = CallOptions {
            may_repeat: true,
            ..CallOptions::default()
        };
        match self.call(key, spec, request, options).await {
            Ok(outcome) => Ok(!outcome.is_error && outcome.input.is_none()),
            Err(
                CallError::Refused { .. }
                | CallError::SessionLost {
                    status: 401 | 403, ..
                },
            ) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The state of the connection of a key.
    pub fn state(&self, key: &Key) -> ConnectionState {
        self.pool.state(key)
    }

    /// A receiver of the keys whose server reports that its tools or prompts changed. A receiver that lags misses some.
    pub fn changes(&self) -> broadcast::Receiver<Key> {
        self.pool.changes.subscribe()
    }

    /// Closes the connections of a key at once, even if calls are using them.
    pub async fn close(&self, key: &Key) {
        self.pool.close(key).await;
    }

    /// Closes the connections of a key as soon as no call uses them.
    pub async fn retire(&self, key: &Key) {
        self.pool.close_when_unused(key).await;
    }

    /// The credentials of users for which there are connections.
    pub fn personal_connections(&self) -> Vec<CredentialRef> {
        self.pool.personal_connections()
    }

    /// Ends every session and every child process, within a few seconds. No connection can be made afterwards.
    pub async fn shutdown(&self) {
        self.pool.shutdown().await;
    }
}

/// Lists the tools over a session, and remembers which arguments later calls must send as headers.
async fn list_tools(using: &InUse, session: &Arc<Session>) -> Result<ToolListing, Failure> {
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

fn discovery(
    mut listed: ToolListing,
    prompts: prompts::PromptListing,
    session: &Session,
) -> Discovery {
    listed.dropped.extend(prompts.dropped);
    Discovery {
        tools: listed.tools,
        prompts: prompts.prompts,
        dropped: listed.dropped,
        unchecked: listed.unchecked,
        lifecycle: session.lifecycle(),
        protocol: session.revision.as_str().to_owned(),
        cache: [listed.cache, prompts.cache]
            .into_iter()
            .flatten()
            .reduce(CacheHints::and)
            .unwrap_or_default(),
    }
}

/// Locks a mutex, even if a thread panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says in the log that a call failed, where and after what time, without a word of the call or of its answer. The span of
/// the caller says for whom.
fn log_failure(
    spec: &ServerSpec,
    call: &Call<'_>,
    answer: &Result<ToolOutcome, CallError>,
    ms: u64,
) {
    // What a user entered may be part of the address.
    let host = spec.endpoint.host().filter(|_| !spec.has_user_values);
    let (server, tool) = (&spec.id, call.request.tool);
    match answer {
        Ok(outcome) if outcome.is_error => {
            tracing::info!(%server, host, tool, code = "tool_error", ms, "a tool says that it failed");
        }
        Ok(_) => {}
        Err(error) => {
            let (code, status) = (error.code(), *lock(&call.status));
            Span::current().record("http_status", status.map(i64::from));
            tracing::warn!(%server, host, tool, code, status, ms, "tool call failed");
        }
    }
}
