//! Whether this replica can do its work.

use serde::Serialize;

use crate::app::App;

#[derive(Clone, Debug, Serialize)]
pub struct Readiness {
    pub ready: bool,
    pub database: bool,
    /// `false` once a stop was asked for, and while no request finds a place for some seconds.
    pub accepting: bool,
    /// Shared servers by state; one that is down does not make the replica unready.
    pub servers_ready: usize,
    pub servers_down: usize,
    /// Connections of users to personal servers that this replica has open.
    pub personal_connections: usize,
}

/// Asks the database and counts the servers.
pub async fn readiness(app: &App) -> Readiness {
    let database = app.db.ping().await.is_ok();
    let accepting = !app.shutdown.is_cancelled();
    let (servers_ready, servers_down) = app.connections.count();
    let personal_connections = app.mcp.personal_keys().len();
    Readiness {
        ready: database && accepting,
        database,
        accepting,
        servers_ready,
        servers_down,
        personal_connections,
    }
}
