//! Opens a session with a server, over its transport and with the lifecycle that it knows.
//!
//! The lifecycle of a server is found out once and remembered. When the remembered one fails, it is forgotten and found out
//! again.

use std::{sync::Arc, time::Duration};

use ::http::HeaderMap;
use rmcp::{
    model::ProtocolVersion,
    service::{ClientInitializeError, ClientLifecycleMode, ClientServiceExt},
    transport::{
        common::client_side_sse::ExponentialBackoff,
        streamable_http_client::{
            StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
        },
    },
};
use tokio::{sync::broadcast, time::timeout};
use url::Url;

use super::{
    Key, Lifecycle, Options,
    error::Failure,
    http::{self, Client, LegacySse},
    interceptor::{Interceptor, clip, lock},
    known_server::{KnownServer, TransportKind},
    oauth,
    session::{Handler, Session},
    sse,
    stdio::{Child, Launch, Watchdog},
    tokens::{Bearer, NoToken, NoTokenKind, Tokens},
    websocket::WebSocket,
};
use domain::{
    scrub::Scrubber,
    server::{Endpoint, Remote, ServerSpec},
};
use egress::Egress;

/// The most simultaneous POSTs of one connection that are not calls: lists, pings, subscriptions.
const MAX_OTHER_POSTS: usize = 16;
/// The pause before a stream that ended is resumed, and the longest one.
const RESUME: Duration = Duration::from_secs(2);
const RESUME_LONGEST: Duration = Duration::from_secs(60);

/// How long getting a token may take: a little longer than a request to the token endpoint.
const TOKEN_TIMEOUT: Duration = oauth::TIME_LIMIT.saturating_add(Duration::from_secs(2));

/// A server, with all that connecting to it needs.
pub(super) struct Target {
    pub(super) egress: Egress,
    pub(super) tokens: Arc<Tokens>,
    pub(super) options: Arc<Options>,
    pub(super) key: Key,
    pub(super) spec: Arc<ServerSpec>,
    pub(super) known: Arc<KnownServer>,
    pub(super) changes: broadcast::Sender<Key>,
    pub(super) watchdog: Arc<Watchdog>,
    /// Removes the credentials of the connection from texts of the server.
    pub(super) scrubber: Scrubber,
}

impl Target {
    /// Opens a session. A child process may take [`Options::stdio_start`], other servers their connect timeout for each
    /// handshake.
    pub(super) async fn connect(&self) -> Result<Session, Failure> {
        let connected = self
            .open()
            .await
            .map_err(|failure| failure.scrub(&self.scrubber));
        self.known.learn_lifecycle(
            connected
                .as_ref()
                .ok()
                .map(|session| session.lifecycle)
                .or_else(|| self.known.lifecycle()),
        );
        connected
    }

    async fn open(&self) -> Result<Session, Failure> {
        match &self.spec.endpoint {
            Endpoint::Remote {
                transport,
                url,
                headers,
            } => {
                let headers = http::read_headers(headers)?;
                match transport {
                    Remote::WebSocket => {
                        self.connect_remote(TransportKind::WebSocket, url, &headers)
                            .await
                    }
                    Remote::Sse => self.connect_http(url, &headers).await,
                    Remote::StreamableHttp if url.path().ends_with("/sse") => {
                        self.connect_http(url, &headers).await
                    }
                    Remote::StreamableHttp => {
                        self.connect_remote(TransportKind::StreamableHttp, url, &headers)
                            .await
                    }
                }
            }
            endpoint @ Endpoint::Stdio { .. } => {
                self.connect_stdio(Launch::new(&self.spec.id, endpoint, &self.options)?)
                    .await
            }
        }
    }

    /// Connects over streamable HTTP or, for older servers, over HTTP with SSE. The transport that worked is remembered and
    /// comes first next time.
    async fn connect_http(&self, url: &Url, headers: &HeaderMap) -> Result<Session, Failure> {
        let remembered = *lock(&self.known.transport_kind);
        let first = remembered.unwrap_or(TransportKind::StreamableHttp);
        let learn = |kind| *lock(&self.known.transport_kind) = kind;
        let failure = match self.connect_remote(first, url, headers).await {
            Ok(session) => {
                learn(Some(first));
                return Ok(session);
            }
            Err(failure) => failure,
        };
        match failure {
            // There is no time left for the other transport, so it comes first next time.
            Failure::Silent(_) => {
                learn(Some(first.other_http()));
                Err(failure)
            }
            Failure::Refused { .. }
            | Failure::Status { status: ..500, .. }
            | Failure::Lost(_)
            | Failure::WebPage(_) => {
                let other = self.connect_remote(first.other_http(), url, headers).await;
                learn(other.is_ok().then_some(first.other_http()));
                other
            }
            // The server has an internal error. If its transport is known, the other one is not tried.
            Failure::Status { .. } if remembered.is_none() => {
                let other = self.connect_remote(first.other_http(), url, headers).await;
                learn(other.is_ok().then_some(first.other_http()));
                other.map_err(|_| failure)
            }
            failure => Err(failure),
        }
    }

    /// Connects over one transport, with the lifecycle that the server knows.
    async fn connect_remote(
        &self,
        transport_kind: TransportKind,
        url: &Url,
        headers: &HeaderMap,
    ) -> Result<Session, Failure> {
        let lifecycle = match transport_kind {
            TransportKind::LegacySse => {
                let mode = lifecycle_mode(Some(Lifecycle::Handshake));
                return self.try_remote(transport_kind, url, headers, mode).await;
            }
            TransportKind::StreamableHttp | TransportKind::WebSocket => {
                let first = self.known.first_lifecycle();
                self.known
                    .lifecycle()
                    .or((first == Lifecycle::Handshake).then_some(first))
            }
        };
        let connected = self
            .try_remote(transport_kind, url, headers, lifecycle_mode(lifecycle))
            .await;
        match connected {
            Err(
                Failure::Refused { .. }
                | Failure::Status { .. }
                | Failure::WebPage(_)
                | Failure::Lost(_),
            ) if lifecycle.is_some() => {
                self.known.learn_lifecycle(None);
                self.try_remote(transport_kind, url, headers, lifecycle_mode(None))
                    .await
            }
            // An older server may answer an unknown request with anything, and a program behind a socket may end.
            Err(Failure::Lost(_) | Failure::WebPage(_)) => {
                let mode = lifecycle_mode(Some(Lifecycle::Handshake));
                self.try_remote(transport_kind, url, headers, mode).await
            }
            // There is no time left for the older handshake.
            Err(Failure::Silent(reason)) if self.known.lifecycle().is_none() => {
                self.known.swap_lifecycles();
                Err(Failure::Silent(reason))
            }
            connected => connected,
        }
    }

    /// Makes one handshake, within the connect timeout.
    async fn try_remote(
        &self,
        transport_kind: TransportKind,
        url: &Url,
        headers: &HeaderMap,
        mode: ClientLifecycleMode,
    ) -> Result<Session, Failure> {
        let interceptor = Arc::new(Interceptor::new(&self.spec.id, self.scrubber.clone()));
        // Before the timeout starts, since a slow token endpoint is no fault of the server.
        let bearer = self.bearer().await?;
        let client = Client::new(
            self.egress.clone(),
            url.clone(),
            headers.clone(),
            &self.spec,
            interceptor.clone(),
            bearer,
        );
        let time_limit = self.spec.timeouts.connect;
        let handshake = async {
            let handler = self.handler(&interceptor);
            match transport_kind {
                TransportKind::StreamableHttp => {
                    handler
                        .serve_with_lifecycle(self.streamable(client.clone()), mode)
                        .await
                }
                TransportKind::LegacySse => {
                    handler
                        .serve_with_lifecycle(LegacySse::open(client.clone()).await?, mode)
                        .await
                }
                TransportKind::WebSocket => {
                    handler
                        .serve_with_lifecycle(WebSocket::open(&client).await?, mode)
                        .await
                }
            }
            .map_err(|error| {
                client
                    .take_failure()
                    .unwrap_or_else(|| handshake_failure(error))
            })
        };
        match timeout(time_limit, handshake).await {
            Ok(service) => Session::new(service?, interceptor),
            Err(_) => Err(Failure::Silent(format!(
                "the server did not shake hands within {} ms",
                time_limit.as_millis()
            ))),
        }
    }

    /// The source of the access tokens for the requests, if the server needs them. Fails when the first token is not to be
    /// had.
    async fn bearer(&self) -> Result<Option<Bearer>, Failure> {
        let Some(auth) = self.spec.auth.clone() else {
            return Ok(None);
        };
        let bearer = Bearer {
            tokens: self.tokens.clone(),
            tenant: self.key.tenant,
            auth,
        };
        let late = "the token endpoint has not answered in time";
        timeout(TOKEN_TIMEOUT, bearer.token(None))
            .await
            .map_err(|_| NoToken::new(NoTokenKind::Later, late))??;
        Ok(Some(bearer))
    }

    fn streamable(&self, client: Client) -> StreamableHttpClientTransport<Client> {
        // rmcp gets neither the URL nor the headers: both may carry secrets, and rmcp logs.
        let mut config = StreamableHttpClientTransportConfig::with_uri("mcp")
            .reinit_on_expired_session(false)
            .max_concurrent_requests(self.options.calls_per_server + MAX_OTHER_POSTS)
            .max_sse_event_size(sse::MAX_EVENT);
        let mut resume = ExponentialBackoff::default();
        (resume.base_duration, resume.max_delay) = (RESUME, Some(RESUME_LONGEST));
        config.retry_config = Arc::new(resume);
        StreamableHttpClientTransport::with_client(client, config)
    }

    /// Starts a child process and finds out its lifecycle. The first attempt gets two thirds of the time. If the child
    /// refuses it, the other lifecycle is tried with the same child; if the child is silent or ends, with a new one.
    async fn connect_stdio(&self, launch: Launch) -> Result<Session, Failure> {
        let budget = self.spec.timeouts.start.unwrap_or(self.options.stdio_start);
        if let Some(lifecycle) = self.known.lifecycle() {
            let child = self.start(&launch)?;
            let mode = lifecycle_mode(Some(lifecycle));
            let connected = self.try_stdio(&child, mode, budget).await;
            if connected.is_err() {
                self.known.learn_lifecycle(None);
            }
            return connected;
        }
        let first = self.known.first_lifecycle();
        let second = lifecycle_mode(Some(first.other()));
        let first = lifecycle_mode(Some(first));
        let child = self.start(&launch)?;
        let failure = match self.try_stdio(&child, first, budget * 2 / 3).await {
            Ok(session) => return Ok(session),
            Err(failure) => failure,
        };
        if matches!(failure, Failure::Silent(_)) {
            self.known.swap_lifecycles();
        }
        if matches!(failure, Failure::Refused { .. })
            && let Ok(session) = self.try_stdio(&child, second.clone(), budget / 3).await
        {
            return Ok(session);
        }
        child.child.stop().await;
        self.try_stdio(&self.start(&launch)?, second, budget / 3)
            .await
    }

    /// Makes one handshake with a child, within `budget`. A failure quotes the last lines of its standard error.
    async fn try_stdio(
        &self,
        started: &StartedChild,
        mode: ClientLifecycleMode,
        budget: Duration,
    ) -> Result<Session, Failure> {
        let StartedChild { child, interceptor } = started;
        let failure = match timeout(
            budget,
            self.handler(interceptor)
                .serve_with_lifecycle(child.clone(), mode),
        )
        .await
        {
            Ok(Ok(service)) => return Session::new(service, interceptor.clone()),
            Ok(Err(error)) => handshake_failure(error),
            Err(_) => Failure::Silent(format!(
                "the server did not shake hands within {} s",
                self.spec
                    .timeouts
                    .start
                    .unwrap_or(self.options.stdio_start)
                    .as_secs_f32()
            )),
        };
        let words = child
            .last_stderr_lines()
            .map(|words| format!("; its last words: {words}"))
            .unwrap_or_default();
        Err(match failure {
            Failure::Lost(_) if child.has_ended() => {
                Failure::NotSent(format!("the server ended at its start{words}"))
            }
            Failure::Silent(reason) => Failure::Silent(format!("{reason}{words}")),
            failure => failure,
        })
    }

    fn start(&self, launch: &Launch) -> Result<StartedChild, Failure> {
        let interceptor = Arc::new(Interceptor::new(&self.spec.id, self.scrubber.clone()));
        let quota = self.known.stderr_lines.clone();
        let child = Child::start(launch, interceptor.clone(), &self.watchdog, quota)?;
        Ok(StartedChild { child, interceptor })
    }

    fn handler(&self, interceptor: &Arc<Interceptor>) -> Handler {
        Handler {
            interceptor: interceptor.clone(),
            key: self.key.clone(),
            changes: self.changes.clone(),
        }
    }
}

/// A child process and the interceptor of its connection.
struct StartedChild {
    child: Child,
    interceptor: Arc<Interceptor>,
}

/// How rmcp begins a connection with this lifecycle. `None`: it asks with `server/discover`, and falls back to the older
/// handshake.
fn lifecycle_mode(lifecycle: Option<Lifecycle>) -> ClientLifecycleMode {
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    match lifecycle {
        Some(Lifecycle::Handshake) => ClientLifecycleMode::Initialize,
        Some(Lifecycle::Stateless) => ClientLifecycleMode::Discover { preferred_versions },
        None => ClientLifecycleMode::Auto {
            preferred_versions,
            legacy_version: None,
        },
    }
}

/// The meaning of a failed handshake.
fn handshake_failure(error: ClientInitializeError) -> Failure {
    match error {
        ClientInitializeError::JsonRpcError(error) => Failure::Refused {
            code: Some(error.code.0.into()),
            message: clip(&error.message),
        },
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => handshake_failure(*fallback),
        ClientInitializeError::NoCompatibleProtocolVersion {
            server_supported, ..
        } => {
            let theirs: Vec<_> = server_supported
                .iter()
                .take(8)
                .map(|version| clip(version.as_str()))
                .collect();
            Failure::Lost(format!(
                "the server speaks no revision that we speak, only {}",
                theirs.join(", ")
            ))
        }
        ClientInitializeError::ConnectionClosed(_)
        | ClientInitializeError::TransportError { .. } => {
            Failure::Lost("the connection was closed during the handshake".to_owned())
        }
        ClientInitializeError::ExpectedInitResult(_) => Failure::Lost(
            "the server's answer to the handshake lacks one of protocolVersion, capabilities and serverInfo".to_owned(),
        ),
        other => Failure::Lost(format!(
            "the server's answer to the handshake cannot be used: {}",
            clip(&other.to_string())
        )),
    }
}
