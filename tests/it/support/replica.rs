//! Another process of the product, as far as anybody outside can tell: a runtime of its own, which can be killed.

use std::{net::SocketAddr, sync::Arc};

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

use super::db::CONNECTIONS;

/// A replica at work. Dropped, it is killed.
pub struct Replica {
    /// `http://127.0.0.1:…`
    pub url: String,
    pub app: Arc<App>,
    runtime: Option<Runtime>,
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
            let db = Db::connect(&database, CONNECTIONS).await.unwrap();
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
