//! How connections are made: one resolver whose vetted answer is the address dialled, and two clients
//! on top of it, each with its own pool. No proxy, no redirects, no decompression.

use std::{
    collections::HashMap,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tower::{BoxError, Layer, Service};

use super::{address::is_public, gate::Route};

tokio::task_local! {
    /// How long the request that is being made may take to connect.
    pub(super) static CONNECT: Duration;
}

/// For connections opened outside of a request of ours (a model client).
pub(super) const DEFAULT_CONNECT: Duration = Duration::from_secs(10);

/// What turns names into addresses: the machine, or a test's table.
#[derive(Clone, Debug, Default)]
pub enum Names {
    #[default]
    System,
    /// Lower-case names and their addresses.
    Table(Arc<Table>),
}

/// The names of a test, which notes every attempt to use them.
#[derive(Debug)]
pub struct Table {
    names: HashMap<String, Vec<IpAddr>>,
    asked: AtomicUsize,
    dialled: AtomicUsize,
}

impl Names {
    pub fn table(names: impl IntoIterator<Item = (&'static str, Vec<IpAddr>)>) -> Self {
        let names = names
            .into_iter()
            .map(|(name, addresses)| (name.to_owned(), addresses))
            .collect();
        Self::Table(Arc::new(Table {
            names,
            asked: AtomicUsize::new(0),
            dialled: AtomicUsize::new(0),
        }))
    }

    /// How often a table was asked.
    pub fn asked(&self) -> usize {
        match self {
            Self::System => 0,
            Self::Table(table) => table.asked.load(Ordering::SeqCst),
        }
    }

    /// How often a connection was begun with a table, its look-up included.
    pub fn dialled(&self) -> usize {
        match self {
            Self::System => 0,
            Self::Table(table) => table.dialled.load(Ordering::SeqCst),
        }
    }

    fn note_dial(&self) {
        if let Self::Table(table) = self {
            table.dialled.fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn look_up(&self, host: &str) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::System => Ok(tokio::net::lookup_host((host, 0)).await?.collect()),
            Self::Table(table) => {
                table.asked.fetch_add(1, Ordering::SeqCst);
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

/// A name has an address that is not public.
#[derive(Debug, thiserror::Error)]
#[error("resolves to a private address ({0})")]
pub(super) struct Private(pub(super) IpAddr);

/// A name has no address.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unresolved(pub(super) io::Error);

/// The connection was not there in time.
#[derive(Debug, thiserror::Error)]
#[error("connecting took longer than {} ms", .0.as_millis())]
pub(super) struct TooSlow(pub(super) Duration);

struct Resolver {
    names: Names,
    route: Route,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (names, route) = (self.names.clone(), self.route);
        Box::pin(async move {
            let found = names.look_up(name.as_str()).await.map_err(Unresolved)?;
            if route == Route::Public
                && let Some(private) = found.iter().find(|address| !is_public(address.ip()))
            {
                return Err(Private(private.ip()).into());
            }
            if found.is_empty() {
                return Err(Unresolved(io::Error::other("the name has no address")).into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Builds the client for one route.
pub(super) fn build(names: &Names, route: Route) -> Result<reqwest::Client, String> {
    install_crypto();
    reqwest::Client::builder()
        .dns_resolver(Resolver {
            names: names.clone(),
            route,
        })
        .connector_layer(ConnectLimit(names.clone()))
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

/// Makes ring the provider of TLS cryptography of this process. Whoever was first wins.
pub fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Ends an attempt to connect (look-up, TCP and TLS together) after the time its request allows.
#[derive(Clone)]
struct ConnectLimit(Names);

#[derive(Clone)]
struct Limited<S>(S, Names);

impl<S> Layer<S> for ConnectLimit {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited(inner, self.0.clone())
    }
}

impl<S, R> Service<R> for Limited<S>
where
    S: Service<R, Error = BoxError>,
    S::Future: Send + 'static,
    S::Response: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, target: R) -> Self::Future {
        let limit = CONNECT.try_with(|limit| *limit).unwrap_or(DEFAULT_CONNECT);
        self.1.note_dial();
        let connecting = self.0.call(target);
        Box::pin(async move {
            tokio::time::timeout(limit, connecting)
                .await
                .unwrap_or_else(|_| Err(TooSlow(limit).into()))
        })
    }
}
