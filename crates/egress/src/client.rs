//! Builds the two `reqwest` clients, one for public addresses and one for any address. Each resolves names with
//! [`Resolver`], which checks the very addresses that are then connected to. Neither uses a proxy, follows redirects or
//! decompresses.

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
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rustls::{ClientConfig, client::Resumption};
use rustls_platform_verifier::ConfigVerifierExt as _;
use tower::{BoxError, Layer, Service};

use super::{address::is_public, url_policy::Route};

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

/// The connect timeout of requests that [`crate::Egress::send`] does not send: those of model clients.
pub(super) const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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

/// Resolves names, and refuses private addresses on the public route.
struct Resolver {
    names: NameSource,
    route: Route,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
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
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Builds the client for one route.
pub(super) fn build(names: &NameSource, route: Route) -> Result<reqwest::Client, String> {
    let mut tls = TLS.clone()?;
    // Each client gets a store of its own for TLS sessions.
    tls.resumption = Resumption::default();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .dns_resolver(Resolver {
            names: names.clone(),
            route,
        })
        .connector_layer(ConnectTimeoutLayer(names.clone()))
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .no_gzip()
        .no_brotli()
        .no_deflate()
        .no_zstd()
        .http1_only()
        .tcp_keepalive(Duration::from_secs(30))
        .pool_idle_timeout(Duration::from_secs(60))
        .pool_max_idle_per_host(64)
        .user_agent(concat!("chatelaine/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| format!("the HTTP client cannot be built: {error}"))
}

/// Installs ring as the TLS cryptography provider of this process, unless a provider is installed already.
pub fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A tower layer that ends an attempt to connect (DNS, TCP and TLS together) after [`CONNECT_TIMEOUT`].
#[derive(Clone)]
struct ConnectTimeoutLayer(NameSource);

#[derive(Clone)]
struct ConnectTimeout<S> {
    connector: S,
    names: NameSource,
}

impl<S> Layer<S> for ConnectTimeoutLayer {
    type Service = ConnectTimeout<S>;

    fn layer(&self, connector: S) -> ConnectTimeout<S> {
        ConnectTimeout {
            connector,
            names: self.0.clone(),
        }
    }
}

impl<S, R> Service<R> for ConnectTimeout<S>
where
    S: Service<R, Error = BoxError>,
    S::Future: Send + 'static,
    S::Response: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, target: R) -> Self::Future {
        let limit = CONNECT_TIMEOUT
            .try_with(|limit| *limit)
            .unwrap_or(DEFAULT_CONNECT_TIMEOUT);
        self.names.count_dial();
        let connecting = self.connector.call(target);
        Box::pin(async move {
            tokio::time::timeout(limit, connecting)
                .await
                .unwrap_or_else(|_| Err(ConnectTimeoutError(limit).into()))
        })
    }
}
