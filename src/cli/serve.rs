//! `chatelaine serve`: starts one replica, serves until a signal comes, and stops in order.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::{net::TcpListener, sync::watch, time::Instant};

use super::{private_postgres::PrivatePostgres, process_limits};
use crate::{
    api,
    app::{
        App, Background,
        platform::{keys, replicas},
        runs::deletions,
    },
};
use domain::{
    config::{Config, Environment},
    error::{Error, Result},
    replica::Start,
    secret::Secret,
};
use store::Db;

/// What is wrong with the variable of the database if it is set and empty: a secret that is missing must not start a
/// private Postgres.
pub(super) fn find_empty_database(config: &Config, env: &Environment) -> Option<String> {
    let variable = env.database_variable();
    let is_empty = config.database_url.is_none() && env.get(variable).is_some();
    is_empty.then(|| {
        format!("{variable} is empty; name the database, or unset the variable to have a private Postgres")
    })
}

/// Serves until SIGINT or SIGTERM. Health checks are answered before the database is there and its schema up to date.
pub async fn run(config: Config, env: Environment) -> anyhow::Result<()> {
    with_address(&config, &env, async |url| {
        let listeners = bind(&config).await?;
        let start = watch::Sender::new(Start::Connecting);
        let (direct, connections) = (&config.direct_database, config.database_connections);
        let preparing = async {
            let opening =
                Db::connect_within(config.database_wait, url, direct, connections, &start);
            let db = opening.await.with_context(|| cannot_open(&env))?;
            // It may go away again.
            start.send_replace(Start::Connecting);
            prepare(&listeners, config.clone(), &env, db).await
        };
        let doing = start.subscribe();
        let answering = api::answer_while_starting(&listeners, &config, &doing);
        let (app, background) = tokio::select! {
            prepared = preparing => prepared?,
            stopped = wait_for_stop_signal() => return stopped.map(drop),
            () = answering => anyhow::bail!("the listeners were closed"),
        };
        let service = Service::start_prepared(listeners, app, background, None).await?;
        tracing::info!(address = %service.address, "listening");
        service.run_until_stopped().await
    })
    .await
}

fn cannot_open(env: &Environment) -> String {
    let variable = env.database_variable();
    format!("cannot open the database that {variable} names")
}

/// Does `work` with the database that the settings name, or with a private one below the data folder, which ends
/// afterwards.
pub async fn with_database<T>(
    config: &Config,
    env: &Environment,
    work: impl AsyncFnOnce(Db) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    with_address(config, env, async |url| {
        let start = watch::Sender::new(Start::Connecting);
        let (direct, connections) = (&config.direct_database, config.database_connections);
        let opened = Db::connect_within(Duration::ZERO, url, direct, connections, &start).await;
        work(opened.with_context(|| cannot_open(env))?).await
    })
    .await
}

/// Does `work` with the address of that database.
pub async fn with_address<T>(
    config: &Config,
    env: &Environment,
    work: impl AsyncFnOnce(&Secret) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if let Some(fault) = find_empty_database(config, env) {
        anyhow::bail!(fault);
    }
    let private = match &config.database_url {
        Some(_) => None,
        None => Some(PrivatePostgres::start(&config.data.join("postgres"), env).await?),
    };
    let url = config
        .database_url
        .as_ref()
        .or(private.as_ref().map(PrivatePostgres::url));
    let url = url.expect("either the settings name a database or a private one was started");
    let outcome = work(url).await;
    if let Some(private) = private {
        private.stop().await?;
    }
    outcome
}

/// A replica that listens.
pub struct Service {
    pub app: Arc<App>,
    pub address: SocketAddr,
    /// The address of `/metrics` and the health routes, if they have an address of their own.
    pub metrics_address: Option<SocketAddr>,
    server: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Service {
    pub async fn start(config: Config, env: &Environment, db: Db) -> anyhow::Result<Self> {
        Self::start_for(config, env, db, None).await
    }

    /// Like [`Service::start`], and also serves the users of a demo.
    pub async fn start_for(
        config: Config,
        env: &Environment,
        db: Db,
        demo: Option<Arc<api::Demo>>,
    ) -> anyhow::Result<Self> {
        let listeners = bind(&config).await?;
        let (app, background) = prepare(&listeners, config, env, db).await?;
        Self::start_prepared(listeners, app, background, demo).await
    }

    async fn start_prepared(
        listeners: api::Listeners,
        app: Arc<App>,
        background: Background,
        demo: Option<Arc<api::Demo>>,
    ) -> anyhow::Result<Self> {
        let address = listeners.api.local_addr()?;
        let metrics_address = listeners.monitoring.as_ref().map(TcpListener::local_addr);
        let metrics_address = metrics_address.transpose()?;
        let server = tokio::spawn(api::serve(app.clone(), listeners, demo));
        if let Err(error) = app.run_background(background).await {
            app.stop().await;
            return Err(error);
        }
        Ok(Self {
            app,
            address,
            metrics_address,
            server,
        })
    }

    /// Waits for a signal, then stops in order. An error if it had to stop by itself.
    pub async fn run_until_stopped(self) -> anyhow::Result<()> {
        let stop = tokio::select! {
            stop = wait_for_stop_signal() => stop?,
            () = self.app.shutdown.cancelled() => {
                self.stop().await?;
                anyhow::bail!("this replica cannot go on with the database");
            }
        };
        if stop == Stop::Drain {
            let seconds = self.app.config.drain.as_secs();
            tracing::info!(
                seconds,
                "draining: requests are answered, and `/readyz` says 503"
            );
            self.app.draining.cancel();
            tokio::select! {
                () = tokio::time::sleep(self.app.config.drain) => {}
                again = wait_for_stop_signal() => { again?; }
            }
        }
        tracing::info!("stopping; running work may end first");
        self.stop().await
    }

    pub async fn stop(self) -> anyhow::Result<()> {
        self.app.shutdown.cancel();
        let served = self.server.await;
        self.app.stop().await;
        served.context("the server task broke off")?
    }
}

/// Opens the sockets that the settings name.
async fn bind(config: &Config) -> anyhow::Result<api::Listeners> {
    let api = listen(config.listen, "CHATELAINE_LISTEN").await?;
    let monitoring = match config.metrics_listen {
        Some(address) => Some(listen(address, "CHATELAINE_METRICS_LISTEN").await?),
        None => None,
    };
    Ok(api::Listeners { api, monitoring })
}

pub(super) async fn listen(address: SocketAddr, variable: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener
        .with_context(|| format!("cannot listen on {address}; set {variable} to a free address"))
}

/// Builds a replica that may work: its keys are those of the database, and the other replicas know of it. Waits for a
/// database that is away.
async fn prepare(
    listeners: &api::Listeners,
    mut config: Config,
    env: &Environment,
    db: Db,
) -> anyhow::Result<(Arc<App>, Background)> {
    // With port 0 the system has chosen the port.
    if config.public_url.is_empty() {
        config.public_url = format!("http://{}", listeners.api.local_addr()?);
    }
    if let Some(list) = &config.deletions_file {
        deletions::probe(list)?;
    }
    config.max_connections = process_limits::raise_file_limit(config.max_connections);
    api::collect_metrics();
    let (app, background) = App::build(config, env, db)?;
    register_keys(&app).await.map_err(|error| {
        let about = match error {
            Error::Conflict(..) => "cannot start with these keys",
            _ => "cannot ask the database which keys it needs",
        };
        anyhow::Error::from(error).context(about)
    })?;
    join_replicas(&app).await.map_err(|error| {
        let about = match error {
            Error::Conflict(..) => "cannot start with this database",
            _ => {
                "cannot join the other replicas; `chatelaine restored` may be at work, and must end before"
            }
        };
        anyhow::Error::from(error).context(about)
    })?;
    Ok((app, background))
}

/// Checks the keys of this replica and registers it with them.
async fn register_keys(app: &App) -> Result<()> {
    let register = || keys::replica_keys::register(&app.keys, app.replica);
    while_busy(app.config.database_wait, register).await
}

/// Puts this replica onto the list before it does anything: whoever needs all of them to be stopped then sees it.
async fn join_replicas(app: &Arc<App>) -> Result<()> {
    let started_at = app.clock.now();
    let announce = || replicas::announce(app, started_at);
    while_busy(app.config.database_wait, announce).await?;
    // And they learn each other's rules before it serves.
    let agree = || replicas::await_agreement(app, started_at);
    while_busy(app.config.database_wait, agree).await
}

/// Does `work` again, for so long, while the database is busy.
async fn while_busy<F: Future<Output = Result<()>>>(
    wait: Duration,
    work: impl Fn() -> F,
) -> Result<()> {
    let end = Instant::now() + wait;
    loop {
        match work().await {
            Err(Error::Busy { retry_after, .. }) if Instant::now() < end => {
                tokio::time::sleep(retry_after).await;
            }
            done => return done,
        }
    }
}

/// How the service stops.
#[derive(PartialEq)]
enum Stop {
    /// After SIGINT: a person at a terminal waits for the end.
    AtOnce,
    /// After SIGTERM: a load balancer may still send requests.
    Drain,
}

/// Waits for SIGINT or SIGTERM.
async fn wait_for_stop_signal() -> anyhow::Result<Stop> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.map(|()| Stop::AtOnce).map_err(Into::into),
        _ = terminate.recv() => Ok(Stop::Drain),
    }
}
