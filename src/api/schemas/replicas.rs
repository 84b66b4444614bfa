//! Schemas of replicas and their readiness.

use time::OffsetDateTime;

use super::schemas;
use domain::{ids::ReplicaId, replica};

schemas! {
    struct Readiness for replica::Readiness {
        ready: bool,
        /// It answers and can be written.
        database: bool,
        /// The ring of this replica has the keys that the database needs.
        keys: bool,
        /// Each shared server was asked for its tools once since the start, and those that are required have answered.
        started: bool,
        /// `false` once a stop was asked for.
        accepting: bool,
        /// Shared servers by state; one that is down does not make the replica unready.
        servers_ready: usize,
        servers_down: usize,
        /// Connections of users to personal servers that this replica has open.
        personal_connections: usize,
    }

    /// A process of this program.
    struct Replica for replica::Replica {
        /// New at every start.
        id: ReplicaId,
        version: String,
        started_at: OffsetDateTime,
        /// When it said last how it is; it does so every few seconds.
        seen_at: OffsetDateTime,
        /// It has said nothing for a minute: it was killed, or cannot reach the database.
        silent: bool,
        readiness: replica::Readiness,
    }
}
