//! Builds the HTTP clients: two for [`crate::Egress`], one for public addresses and one for any address, and one for the
//! addresses that the operator named. The first two resolve names with [`Resolver`], which checks the very addresses that
//! are then connected to. None uses a proxy, follows redirects or decompresses.

use std::{
    collections::HashMap,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
    vec,
};

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{HttpConnector, dns::Name},
    },
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{ClientConfig, client::Resumption};
use rustls_platform_verifier::ConfigVerifierExt as _;
use tower::{BoxError, Service};

use super::{address::is_public, url_policy::Route};

/// The name of this program in requests.
pub(super) const USER_AGENT: &str = concat!("chatelaine/", env!("CARGO_PKG_VERSION"));
/// How long a connection that nobody uses stays open, and how many of them there may be for a host.
const POOL_IDLE: Duration = Duration::from_secs(60);
const MAX_IDLE_PER_HOST: usize = 64;
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The TLS settings of all clients. Reading the certificates of the system is slow and is done once.
static TLS: LazyLock<Result<ClientConfig, String>> = LazyLock::new(|| {
    install_crypto();
    let mut config = ClientConfig::with_platform_verifier()
        .map_err(|error| format!("the certificates of the system cannot be used: {error}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
});

tokio::task_local! {
    /// The connect timeout of the request that this task is sending.
    pub(super) static CONNECT_TIMEOUT: Duration;
}

/// The connect timeout of [`operator_client`].
const OPERATOR_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The source of the addresses of host names: the system's resolver, or a table in tests.
#[derive(Clone, Debug, Default)]
pub enum NameSource {
    #[default]
    System,
    /// Lower-case names and their addresses.
    NameTable(Arc<NameTable>),
}

/// A table of host names for tests. It counts look-ups and connection attempts.
#[derive(Debug)]
pub struct NameTable {
    names: HashMap<String, Vec<IpAddr>>,
    lookups: AtomicUsize,
    dials: AtomicUsize,
}

impl NameSource {
    /// A source that knows only these names and their addresses.
    pub fn table(names: impl IntoIterator<Item = (&'static str, Vec<IpAddr>)>) -> Self {
        let names = names
            .into_iter()
            .map(|(name, addresses)| (name.to_owned(), addresses))
            .collect();
        Self::NameTable(Arc::new(NameTable {
            names,
            lookups: AtomicUsize::new(0),
            dials: AtomicUsize::new(0),
        }))
    }

    /// The number of look-ups in the table.
    pub fn lookups(&self) -> usize {
        match self {
            Self::System => 0,
            Self::NameTable(table) => table.lookups.load(Ordering::SeqCst),
        }
    }

    /// The number of connection attempts with the table, including those whose name was not found.
    pub fn dials(&self) -> usize {
        match self {
            Self::System => 0,
            Self::NameTable(table) => table.dials.load(Ordering::SeqCst),
        }
    }

    fn count_dial(&self) {
        if let Self::NameTable(table) = self {
            table.dials.fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn look_up(&self, host: &str) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::System => Ok(tokio::net::lookup_host((host, 0)).await?.collect()),
            Self::NameTable(table) => {
                table.lookups.fetch_add(1, Ordering::SeqCst);
                let addresses = table
                    .names
                    .get(host)
                    .ok_or_else(|| io::Error::other("no such name"))?;
                Ok(addresses
                    .iter()
                    .map(|address| SocketAddr::new(*address, 0))
                    .collect())
            }
        }
    }
}

/// The error for a name that has an address which is not public.
#[derive(Debug, thiserror::Error)]
#[error("resolves to a private address ({0})")]
pub(super) struct PrivateAddressError(pub(super) IpAddr);

/// The error for a name that has no address.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UnresolvedError(pub(super) io::Error);

/// The error for a connection that took too long to open.
#[derive(Debug, thiserror::Error)]
#[error("connecting took longer than {} ms", .0.as_millis())]
pub(super) struct ConnectTimeoutError(pub(super) Duration);

/// An attempt to connect that failed: no byte of a request has left.
#[derive(Debug, thiserror::Error)]
#[error("connecting failed")]
pub(super) struct ConnectError(#[source] BoxError);

/// A pooled client of HTTP/1.1. It sends a request at most once: one for which its connection has closed in the pool is
/// given back as an error.
pub(super) type HttpClient = Client<Connector, Full<Bytes>>;

/// Builds the client for one route.
pub(super) fn build(names: &NameSource, route: Route) -> Result<HttpClient, String> {
    let names = names.clone();
    let mut tcp = HttpConnector::new_with_resolver(Resolver {
        names: names.clone(),
        route,
    });
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    let mut tls = TLS.clone()?;
    // Each client gets a store of its own for TLS sessions.
    tls.resumption = Resumption::default();
    let inner = HttpsConnector::from((tcp, tls));
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE)
        .pool_max_idle_per_host(MAX_IDLE_PER_HOST)
        .retry_canceled_requests(false)
        .build(Connector { inner, names }))
}

/// A bare client for endpoints that the operator named, such as models. Like the others, it uses no proxy, follows no
/// redirect and decompresses nothing, but it connects to private addresses too. It must never get a URL that a user or a
/// server chose. The caller sets the limits of time and size. The error is why the system's certificates cannot be used.
pub fn operator_client() -> Result<reqwest::Client, String> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(TLS.clone()?)
        .connect_timeout(OPERATOR_CONNECT_TIMEOUT)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .no_gzip()
        .no_brotli()
        .no_deflate()
        .no_zstd()
        .http1_only()
        .tcp_keepalive(KEEPALIVE)
        .pool_idle_timeout(POOL_IDLE)
        .pool_max_idle_per_host(MAX_IDLE_PER_HOST)
        .user_agent(USER_AGENT)
        .build()
        .map_err(|error| format!("the HTTP client cannot be built: {error}"))
}

/// Resolves names, and refuses private addresses on the public route.
#[derive(Clone)]
pub(super) struct Resolver {
    names: NameSource,
    route: Route,
}

impl Service<Name> for Resolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (names, route) = (self.names.clone(), self.route);
        Box::pin(async move {
            let found = names
                .look_up(name.as_str())
                .await
                .map_err(UnresolvedError)?;
            if route == Route::Public
                && let Some(private) = found.iter().find(|address| !is_public(address.ip()))
            {
                return Err(PrivateAddressError(private.ip()).into());
            }
            if found.is_empty() {
                return Err(UnresolvedError(io::Error::other("the name has no address")).into());
            }
            Ok(found.into_iter())
        })
    }
}

/// Installs ring as the TLS cryptography provider of this process, unless a provider is installed already.
pub fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Opens connections. An attempt (DNS, TCP and TLS together) ends after [`CONNECT_TIMEOUT`].
#[derive(Clone)]
pub(super) struct Connector {
    inner: HttpsConnector<HttpConnector<Resolver>>,
    names: NameSource,
}

impl Service<Uri> for Connector {
    type Response = <HttpsConnector<HttpConnector<Resolver>> as Service<Uri>>::Response;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.inner.poll_ready(cx).map_err(ConnectError)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let limit = CONNECT_TIMEOUT.get();
        self.names.count_dial();
        let connecting = self.inner.call(target);
        Box::pin(async move {
            tokio::time::timeout(limit, connecting)
                .await
                .unwrap_or_else(|_| Err(ConnectTimeoutError(limit).into()))
                .map_err(ConnectError)
        })
    }
}
