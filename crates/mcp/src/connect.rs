//! Opening a session: which handshake, in what time, and what a failure of it means.
//!
//! A server's era is asked once and remembered. A remembered era that no longer works is forgotten and
//! asked again.

use std::{sync::Arc, time::Duration};

use ::http::HeaderMap;
use rmcp::{
    service::{ClientLifecycleMode, ClientServiceExt},
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
    Era, Key, Options,
    error::Failure,
    handshake::{failure_of, mode},
    http::{self, Client, LegacySse},
    interceptor::{Interceptor, locked},
    known::{Known, TransportKind},
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

/// POSTs of one connection beside its calls: lists, probes, the stream of changes.
const BESIDE_CALLS: usize = 16;
/// The pause before a stream that ended is taken up again, and the longest one.
const RESUME: Duration = Duration::from_secs(2);
const RESUME_LONGEST: Duration = Duration::from_secs(60);

/// How long a token may take to come: somewhat longer than its endpoint may.
const FOR_TOKEN: Duration = oauth::TIME_LIMIT.saturating_add(Duration::from_secs(2));

/// What is to be connected to, and with what.
pub(super) struct Target {
    pub(super) egress: Egress,
    pub(super) tokens: Arc<Tokens>,
    pub(super) options: Arc<Options>,
    pub(super) key: Key,
    pub(super) spec: Arc<ServerSpec>,
    pub(super) known: Arc<Known>,
    pub(super) changes: broadcast::Sender<Key>,
    pub(super) watchdog: Arc<Watchdog>,
    /// Takes the credentials of the connection out of what the server says.
    pub(super) scrubber: Scrubber,
}

impl Target {
    pub(super) async fn connect(&self) -> Result<Session, Failure> {
        let connected = self
            .open()
            .await
            .map_err(|failure| failure.scrubbed(&self.scrubber));
        self.known.learn(
            connected
                .as_ref()
                .ok()
                .map(|session| session.era)
                .or_else(|| self.known.era()),
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
                let headers = http::headers(headers)?;
                match transport {
                    Remote::WebSocket => {
                        self.over_remote(TransportKind::WebSocket, url, &headers)
                            .await
                    }
                    Remote::Sse => self.over_http(url, &headers).await,
                    Remote::StreamableHttp if url.path().ends_with("/sse") => {
                        self.over_http(url, &headers).await
                    }
                    Remote::StreamableHttp => {
                        self.over_remote(TransportKind::StreamableHttp, url, &headers)
                            .await
                    }
                }
            }
            endpoint @ Endpoint::Stdio { .. } => {
                self.over_stdio(Launch::of(&self.spec.id, endpoint, &self.options)?)
                    .await
            }
        }
    }

    /// Streamable HTTP, and what came before it where the server does not know it. Which of the two it was is
    /// remembered.
    async fn over_http(&self, url: &Url, headers: &HeaderMap) -> Result<Session, Failure> {
        let remembered = *locked(&self.known.transport_kind);
        let first = remembered.unwrap_or(TransportKind::StreamableHttp);
        let learn = |kind| *locked(&self.known.transport_kind) = kind;
        let failure = match self.over_remote(first, url, headers).await {
            Ok(session) => {
                learn(Some(first));
                return Ok(session);
            }
            Err(failure) => failure,
        };
        match failure {
            // No time is left for the other way; it comes first next time.
            Failure::Silent(_) => {
                learn(Some(first.other_http()));
                Err(failure)
            }
            Failure::Refused { .. }
            | Failure::Status { status: ..500, .. }
            | Failure::Lost(_)
            | Failure::WebPage(_) => {
                let other = self.over_remote(first.other_http(), url, headers).await;
                learn(other.is_ok().then_some(first.other_http()));
                other
            }
            // A server with troubles of its own; one that is known speaks as before when they are over.
            Failure::Status { .. } if remembered.is_none() => {
                let other = self.over_remote(first.other_http(), url, headers).await;
                learn(other.is_ok().then_some(first.other_http()));
                other.map_err(|_| failure)
            }
            failure => Err(failure),
        }
    }

    async fn over_remote(
        &self,
        transport_kind: TransportKind,
        url: &Url,
        headers: &HeaderMap,
    ) -> Result<Session, Failure> {
        let era = match transport_kind {
            TransportKind::LegacySse => {
                return self
                    .try_remote(transport_kind, url, headers, mode(Some(Era::Legacy)))
                    .await;
            }
            TransportKind::StreamableHttp | TransportKind::WebSocket => {
                self.known
                    .era()
                    .or((self.known.first_handshake() == Era::Legacy).then_some(Era::Legacy))
            }
        };
        let connected = self
            .try_remote(transport_kind, url, headers, mode(era))
            .await;
        match connected {
            Err(
                Failure::Refused { .. }
                | Failure::Status { .. }
                | Failure::WebPage(_)
                | Failure::Lost(_),
            ) if era.is_some() => {
                self.known.learn(None);
                self.try_remote(transport_kind, url, headers, mode(None))
                    .await
            }
            // An older server may answer anything to what it does not know, and a program behind a socket may end.
            Err(Failure::Lost(_) | Failure::WebPage(_)) => {
                self.try_remote(transport_kind, url, headers, mode(Some(Era::Legacy)))
                    .await
            }
            // The older handshake would not fit into what is left of the time.
            Err(Failure::Silent(reason)) if self.known.era().is_none() => {
                self.known.swap_handshakes();
                Err(Failure::Silent(reason))
            }
            connected => connected,
        }
    }

    async fn try_remote(
        &self,
        transport_kind: TransportKind,
        url: &Url,
        headers: &HeaderMap,
        mode: ClientLifecycleMode,
    ) -> Result<Session, Failure> {
        let interceptor = Arc::new(Interceptor::new(&self.spec.id, self.scrubber.clone()));
        // Before the clock starts: a token endpoint that is slow says nothing of the server.
        let bearer = self.bearer().await?;
        let client = Client::new(
            self.egress.clone(),
            (url.clone(), headers.clone()),
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
            .map_err(|error| client.take_failure().unwrap_or_else(|| failure_of(error)))
        };
        match timeout(time_limit, handshake).await {
            Ok(service) => Session::of(service?, interceptor),
            Err(_) => Err(Failure::Silent(format!(
                "the server did not shake hands within {} ms",
                time_limit.as_millis()
            ))),
        }
    }

    /// What fetches the token of each request, when the first one is there.
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
        timeout(FOR_TOKEN, bearer.token(None))
            .await
            .map_err(|_| NoToken::new(NoTokenKind::Later, late))??;
        Ok(Some(bearer))
    }

    fn streamable(&self, client: Client) -> StreamableHttpClientTransport<Client> {
        // rmcp knows neither the address nor the headers: both may carry secrets, and it logs.
        let mut config = StreamableHttpClientTransportConfig::with_uri("mcp")
            .reinit_on_expired_session(false)
            .max_concurrent_requests(self.options.calls_per_server + BESIDE_CALLS)
            .max_sse_event_size(sse::MAX_EVENT);
        let mut resume = ExponentialBackoff::default();
        (resume.base_duration, resume.max_delay) = (RESUME, Some(RESUME_LONGEST));
        config.retry_config = Arc::new(resume);
        StreamableHttpClientTransport::with_client(client, config)
    }

    /// A child may need long to start and may never have heard of the newer handshake. It is asked under
    /// our own budget; if it answers no, the older handshake follows on the same child, if it is silent or
    /// dies of the question, on a new one.
    async fn over_stdio(&self, launch: Launch) -> Result<Session, Failure> {
        let budget = self.spec.timeouts.start.unwrap_or(self.options.stdio_start);
        if let Some(era) = self.known.era() {
            let child = self.start(&launch)?;
            let connected = self.try_stdio(&child, mode(Some(era)), budget).await;
            if connected.is_err() {
                self.known.learn(None);
            }
            return connected;
        }
        let first = self.known.first_handshake();
        let (first, second) = (mode(Some(first)), mode(Some(first.other())));
        let child = self.start(&launch)?;
        let failure = match self.try_stdio(&child, first, budget * 2 / 3).await {
            Ok(session) => return Ok(session),
            Err(failure) => failure,
        };
        if matches!(failure, Failure::Silent(_)) {
            self.known.swap_handshakes();
        }
        if matches!(failure, Failure::Refused { .. })
            && let Ok(session) = self.try_stdio(&child, second.clone(), budget / 3).await
        {
            return Ok(session);
        }
        child.0.stop().await;
        self.try_stdio(&self.start(&launch)?, second, budget / 3)
            .await
    }

    async fn try_stdio(
        &self,
        child: &Started,
        mode: ClientLifecycleMode,
        budget: Duration,
    ) -> Result<Session, Failure> {
        let Started(child, interceptor) = child;
        let failure = match timeout(
            budget,
            self.handler(interceptor)
                .serve_with_lifecycle(child.clone(), mode),
        )
        .await
        {
            Ok(Ok(service)) => return Session::of(service, interceptor.clone()),
            Ok(Err(error)) => failure_of(error),
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
            .last_stderr_line()
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

    fn start(&self, launch: &Launch) -> Result<Started, Failure> {
        let interceptor = Arc::new(Interceptor::new(&self.spec.id, self.scrubber.clone()));
        Ok(Started(
            Child::start(
                launch,
                interceptor.clone(),
                &self.watchdog,
                self.known.stderr_lines.clone(),
            )?,
            interceptor,
        ))
    }

    fn handler(&self, interceptor: &Arc<Interceptor>) -> Handler {
        Handler {
            interceptor: interceptor.clone(),
            key: self.key.clone(),
            changes: self.changes.clone(),
        }
    }
}

/// A child and the interceptor of its connection.
struct Started(Child, Arc<Interceptor>);
