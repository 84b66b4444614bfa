//! The HTTP/1.1 server: a bounded number of connections, a time limit for the head of each request, and a shutdown that
//! lets requests finish.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use http::{HeaderValue, Response, StatusCode, header::CONNECTION};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use ipnet::IpNet;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use super::{
    demo::Demo,
    extract::Peer,
    metrics,
    sockets::{Socket, Sockets},
    starting,
};
use crate::app::App;
use domain::{config::Config, replica::Start};

/// A connection is closed when it has not sent the whole head of a request for this time, also when it is idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest head of a request. hyper accepts a larger one if it arrived in one read, so the head is measured again.
const HEAD_BYTES: usize = 64 * 1024;
/// How long requests may take to finish when the program stops.
const DRAIN: Duration = Duration::from_secs(10);

/// The sockets that clients connect to.
pub struct Listeners {
    pub api: TcpListener,
    /// For health and metrics. Absent: the API serves them.
    pub monitoring: Option<TcpListener>,
}

/// Serves the API until `app.shutdown`.
pub async fn serve(
    app: Arc<App>,
    listeners: Listeners,
    demo: Option<Arc<Demo>>,
) -> anyhow::Result<()> {
    let routers = super::build_routers(app.clone(), demo);
    let server = |router| Server {
        trusted_proxies: app.config.trusted_proxies.clone().into(),
        sockets: Sockets::new(app.config.max_connections),
        router,
    };
    let (api, monitoring) = (server(routers.api), server(routers.monitoring));
    let upkeep = tokio::spawn(metrics::run_upkeep());
    let monitoring_server = async {
        if let Some(listener) = listeners.monitoring {
            monitoring.run(listener, &app.shutdown).await;
        }
    };
    tokio::join!(api.run(listeners.api, &app.shutdown), monitoring_server);
    upkeep.abort();
    Ok(())
}

/// Answers health checks, and refuses anything else for a moment, until the future is dropped. The listeners stay open.
pub async fn answer_while_starting(
    listeners: &Listeners,
    config: &Config,
    start: &watch::Receiver<Start>,
) {
    let server = || Server {
        trusted_proxies: config.trusted_proxies.clone().into(),
        sockets: Sockets::new(config.max_connections),
        router: starting::build_router(config, start.clone()),
    };
    let (api, monitoring) = (server(), server());
    let never = CancellationToken::new();
    let monitoring = async {
        if let Some(listener) = &listeners.monitoring {
            monitoring.accept_until(listener, &never).await;
        }
    };
    tokio::join!(api.accept_until(&listeners.api, &never), monitoring);
}

/// Waits after an error of `accept`, so that the loop does not spin while the process is out of file descriptors. After
/// a connection that its client aborted there is no wait.
async fn wait_after(error: &std::io::Error) {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    ) {
        tracing::error!(
            error = error.to_string(),
            "cannot accept connections for now"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The approximate size of a request before its body, in bytes.
fn measure_head(request: &hyper::Request<Incoming>) -> usize {
    let (method, target) = (request.method().as_str(), request.uri());
    let target = target
        .path_and_query()
        .map_or(1, |target| target.as_str().len());
    let headers = request.headers().iter();
    let headers = headers.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    method.len() + target + " HTTP/1.1\r\n".len() + headers.sum::<usize>()
}

/// The connections of a listener.
struct Connections {
    graceful: GracefulShutdown,
    tracker: TaskTracker,
    cut: CancellationToken,
}

impl Connections {
    /// Closes idle connections, waits for requests to finish, and cuts the rest.
    async fn finish(self) {
        self.tracker.close();
        if tokio::time::timeout(DRAIN, self.graceful.shutdown())
            .await
            .is_err()
        {
            tracing::warn!(
                left = self.tracker.len(),
                "stopping without the connections that did not finish in time"
            );
        }
        self.cut.cancel();
        self.tracker.wait().await;
    }
}

/// The state that all connections of one listener share.
struct Server {
    router: Router,
    sockets: Arc<Sockets>,
    trusted_proxies: Arc<[IpNet]>,
}

impl Server {
    /// Accepts connections until `shutdown`. Then it accepts no more, closes idle ones, waits for requests to finish
    /// (event streams end by themselves) and cuts the rest.
    async fn run(self, listener: TcpListener, shutdown: &CancellationToken) {
        let open = self.accept_until(&listener, shutdown).await;
        drop(listener);
        open.finish().await;
    }

    /// Accepts connections until `shutdown`, and serves them. They end when what is returned is dropped, or when this
    /// future is.
    async fn accept_until(
        &self,
        listener: &TcpListener,
        shutdown: &CancellationToken,
    ) -> Connections {
        let open = Connections {
            graceful: GracefulShutdown::new(),
            tracker: TaskTracker::new(),
            cut: CancellationToken::new(),
        };
        loop {
            let (stream, peer) = tokio::select! {
                () = shutdown.cancelled() => return open,
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        wait_after(&error).await;
                        continue;
                    }
                },
            };
            let Some(socket) = self.sockets.add() else {
                tracing::warn!("a connection was refused, since too many are at work");
                continue;
            };
            let connection = self.serve_connection(stream, peer, Arc::clone(&socket));
            let connection = open.graceful.watch(connection);
            let cut = open.cut.clone();
            open.tracker.spawn(async move {
                tokio::select! {
                    () = cut.cancelled() => {}
                    () = socket.closed.cancelled() => {}
                    // A client that goes away or speaks another protocol is normal.
                    ended = connection => if let Err(error) = ended { tracing::trace!(error = error.to_string(), "connection ended") },
                }
            });
        }
    }

    fn serve_connection(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        socket: Arc<Socket>,
    ) -> impl hyper_util::server::graceful::GracefulConnection<Error = hyper::Error> + use<> {
        // Deltas are small and must be sent at once.
        let _ = stream.set_nodelay(true);
        let (router, trusted_proxies) = (self.router.clone(), Arc::clone(&self.trusted_proxies));
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            let work = socket.begin_work();
            let is_too_large = measure_head(&request) > HEAD_BYTES;
            let peer = Peer::new(peer.ip(), request.headers(), &trusted_proxies);
            request.extensions_mut().insert(peer);
            request.extensions_mut().insert(Arc::clone(&socket));
            let answer = router.clone().oneshot(request.map(Body::new));
            async move {
                if is_too_large {
                    let mut refusal = Response::new(Body::empty());
                    *refusal.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                    let close = HeaderValue::from_static("close");
                    refusal.headers_mut().insert(CONNECTION, close);
                    return Ok(refusal.map(|body| work.until_sent(body)));
                }
                answer
                    .await
                    .map(|answer| answer.map(|body| work.until_sent(body)))
            }
        });
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service)
    }
}
