//! Another process of the product, as far as anybody outside can tell: a runtime of its own, which can be killed.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use chatelaine::{app::App, cli::serve::Service};
use domain::{
    config::{Config, Environment},
    secret::Secret,
};
use store::Db;
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
};

use super::db::{CONNECTIONS, start};

/// A replica at work. Dropped, it is killed.
pub struct Replica {
    /// `http://127.0.0.1:…`
    pub url: String,
    pub app: Arc<App>,
    runtime: Option<Runtime>,
}

/// The database as the settings say it is reached, or at this address if they name none.
pub async fn open(config: &Config, database: &Secret) -> Db {
    let url = config.database_url.as_ref().unwrap_or(database);
    let direct = &config.direct_database;
    let opened = Db::connect_within(Duration::ZERO, url, direct, CONNECTIONS, &start()).await;
    opened.unwrap()
}

impl Replica {
    pub async fn start(config: &Config, env: &Environment, database: &Secret) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (tell, told) = oneshot::channel::<(SocketAddr, Arc<App>)>();
        let (config, env, database) = (config.clone(), env.clone(), database.clone());
        runtime.spawn(async move {
            let db = open(&config, &database).await;
            let service = Service::start(config, &env, db).await.unwrap();
            let _ = tell.send((service.address, service.app.clone()));
            std::future::pending::<()>().await;
        });
        let (address, app) = told.await.expect("the replica does not start");
        Self {
            url: format!("http://{address}"),
            app,
            runtime: Some(runtime),
        }
    }

    /// Ends it as a SIGKILL would: every task stops where it is, nothing is written or told to anybody.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
