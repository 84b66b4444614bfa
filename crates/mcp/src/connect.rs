//! Opens a session with a server, over its transport and with the lifecycle that it knows.
//!
//! The lifecycle of a server is found out once and remembered. When the remembered one fails, it is forgotten and found out
//! again.

use std::{sync::Arc, time::Duration};

use ::http::HeaderMap;
use tokio::{sync::broadcast, time::timeout};
use url::Url;

use super::{
    Key, Lifecycle, Options,
    error::Failure,
    handshake,
    http::{self, Client, Http, LegacySse},
    known_server::{KnownServer, TransportKind},
    lock, oauth,
    peer::{Connection, Peer, Transport},
    redaction::Redactor,
    session::Session,
    stdio::{Child, ChildStatus, Launch, Watchdog},
    tokens::{Bearer, NoToken, NoTokenKind, Tokens},
    websocket::WebSocket,
};
use domain::{
    scrub::Scrubber,
    server::{Endpoint, Remote, ServerSpec},
};
use egress::Egress;

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
                .map(Session::lifecycle)
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
                let older = Some(Lifecycle::Handshake);
                return self.try_remote(transport_kind, url, headers, older).await;
            }
            TransportKind::StreamableHttp | TransportKind::WebSocket => {
                let first = self.known.first_lifecycle();
                self.known
                    .lifecycle()
                    .or((first == Lifecycle::Handshake).then_some(first))
            }
        };
        let connected = self
            .try_remote(transport_kind, url, headers, lifecycle)
            .await;
        match connected {
            Err(
                Failure::Refused { .. }
                | Failure::OtherRevision { .. }
                | Failure::Status { .. }
                | Failure::WebPage(_)
                | Failure::Lost(_),
            ) if lifecycle.is_some() => {
                self.known.learn_lifecycle(None);
                self.try_remote(transport_kind, url, headers, None).await
            }
            // An older server may answer an unknown request with anything, and a program behind a socket may end.
            Err(Failure::Lost(_) | Failure::WebPage(_)) => {
                let older = Some(Lifecycle::Handshake);
                self.try_remote(transport_kind, url, headers, older).await
            }
            // There is no time left for the older handshake.
            Err(Failure::Silent(reason)) if self.known.lifecycle().is_none() => {
                self.known.swap_lifecycles();
                Err(Failure::Silent(reason))
            }
            connected => connected,
        }
    }

    /// Makes one handshake, within the connect timeout. `lifecycle` is `None` when it is to be found out.
    async fn try_remote(
        &self,
        transport_kind: TransportKind,
        url: &Url,
        headers: &HeaderMap,
        lifecycle: Option<Lifecycle>,
    ) -> Result<Session, Failure> {
        let redactor = Arc::new(Redactor::new(self.scrubber.clone()));
        // Before the timeout starts, since a slow token endpoint is no fault of the server.
        let bearer = self.bearer().await?;
        let client = Client::new(
            self.egress.clone(),
            url.clone(),
            headers.clone(),
            &self.spec,
            redactor.clone(),
            bearer,
        );
        let time_limit = self.spec.timeouts.connect;
        let handshake = async {
            let connection = match transport_kind {
                TransportKind::StreamableHttp => {
                    self.connection(Transport::Http(Http::new(client)), redactor.clone())
                }
                TransportKind::LegacySse => {
                    let (pair, events) = LegacySse::open(client).await?;
                    let connection = self.connection(Transport::LegacySse(pair), redactor.clone());
                    tokio::spawn(events.read(connection.0.clone()));
                    connection
                }
                TransportKind::WebSocket => {
                    let (socket, outbox) = WebSocket::open(&client).await?;
                    let connection = self.connection(Transport::Outbox(outbox), redactor.clone());
                    socket.start(&connection.0);
                    connection
                }
            };
            let server = handshake::begin(&connection.0, lifecycle).await?;
            Ok(Session::new(connection, &server))
        };
        match timeout(time_limit, handshake).await {
            Ok(connected) => connected.map_err(|failure| redactor.failure(failure)),
            Err(_) => Err(Failure::Silent(format!(
                "the server did not shake hands within {} ms",
                time_limit.as_millis()
            ))),
        }
    }

    fn connection(&self, transport: Transport, redactor: Arc<Redactor>) -> Connection {
        let (key, server) = (self.key.clone(), self.spec.id.clone());
        let changes = self.changes.clone();
        let peer = Peer::new(transport, redactor, key, server, changes);
        Connection(Arc::new(peer))
    }

    /// The source of the access tokens for the requests, if the server needs them. Fails when the first token is not to be
    /// had.
    async fn bearer(&self) -> Result<Option<Bearer>, Failure> {
        let Some(auth) = self.spec.auth.clone() else {
            return Ok(None);
        };
        let bearer = Bearer {
            tokens: self.tokens.clone(),
            tenant: self.key.tenant(),
            auth,
        };
        let late = "the token endpoint has not answered in time";
        timeout(TOKEN_TIMEOUT, bearer.token(None))
            .await
            .map_err(|_| NoToken::new(NoTokenKind::Later, late))??;
        Ok(Some(bearer))
    }

    /// Starts a child process and finds out its lifecycle. The first attempt gets two thirds of the time. If the child
    /// refuses it, the other lifecycle is tried with the same child; if the child is silent or ends, with a new one.
    async fn connect_stdio(&self, launch: Launch) -> Result<Session, Failure> {
        let budget = self.spec.timeouts.start.unwrap_or(self.options.stdio_start);
        if let Some(lifecycle) = self.known.lifecycle() {
            let connected = self.start(&launch)?.begin(lifecycle, budget).await;
            if connected.is_err() {
                self.known.learn_lifecycle(None);
            }
            return connected.map_err(|failed| failed.failure);
        }
        let first = self.known.first_lifecycle();
        let second = first.other();
        let failed = match self.start(&launch)?.begin(first, budget * 2 / 3).await {
            Ok(session) => return Ok(session),
            Err(failed) => failed,
        };
        if matches!(failed.failure, Failure::Silent(_)) {
            self.known.swap_lifecycles();
        }
        let mut child = failed.child;
        if matches!(
            failed.failure,
            Failure::Refused { .. } | Failure::OtherRevision { .. }
        ) {
            match child.begin(second, budget / 3).await {
                Ok(session) => return Ok(session),
                Err(failed) => child = failed.child,
            }
        }
        child.connection.0.close().await;
        let last = self.start(&launch)?.begin(second, budget / 3).await;
        last.map_err(|failed| failed.failure)
    }

    fn start(&self, launch: &Launch) -> Result<StartedChild, Failure> {
        let quota = self.known.stderr_lines.clone();
        let (child, outbox) = Child::start(launch, &self.watchdog, quota)?;
        let redactor = Arc::new(Redactor::new(self.scrubber.clone()));
        let connection = self.connection(Transport::Outbox(outbox), redactor);
        Ok(StartedChild {
            status: child.run(&connection.0),
            connection,
            start_timeout: self.spec.timeouts.start.unwrap_or(self.options.stdio_start),
        })
    }
}

/// A child process whose handshake is not done.
struct StartedChild {
    connection: Connection,
    status: ChildStatus,
    /// The time for all attempts together.
    start_timeout: Duration,
}

/// A handshake that failed, and the child, with which another one may be tried.
struct FailedHandshake {
    child: StartedChild,
    failure: Failure,
}

impl StartedChild {
    /// Makes one handshake with a child, within `budget`. A failure quotes the last lines of its standard error.
    async fn begin(
        self,
        lifecycle: Lifecycle,
        budget: Duration,
    ) -> Result<Session, FailedHandshake> {
        let handshake = handshake::begin(&self.connection.0, Some(lifecycle));
        let failure = match timeout(budget, handshake).await {
            Ok(Ok(server)) => return Ok(Session::new(self.connection, &server)),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Silent(format!(
                "the server did not shake hands within {} s",
                self.start_timeout.as_secs_f32()
            )),
        };
        let has_ended = matches!(failure, Failure::Lost(_) | Failure::NotSent(_))
            && self.status.is_ending().await;
        let words = self.status.last_stderr_lines();
        let words = words.map_or_else(String::new, |words| format!("; its last words: {words}"));
        let failure = match failure {
            _ if has_ended => Failure::NotSent(format!("the server ended at its start{words}")),
            Failure::Silent(reason) => Failure::Silent(format!("{reason}{words}")),
            failure => failure,
        };
        Err(FailedHandshake {
            child: self,
            failure,
        })
    }
}
