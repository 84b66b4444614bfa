//! A process of this program among those that share a database, and whether it can do its work.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::{
    ids::{AgentId, ReplicaId},
    policy::PolicyDigest,
};

/// What a process does before it serves.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// It waits for the database.
    Connecting,
    /// It brings the schema up to date, or waits for another process that does.
    Migrating,
}

/// What a replica says of itself. A release that does not know a field says `false` or 0.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one answer to an operator"
)]
#[serde(default)]
pub struct Readiness {
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub ready: bool,
    /// It answers and can be written.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub database: bool,
    /// The ring of this replica has the keys that the database needs.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub keys: bool,
    /// Each shared server was asked for its tools once since the start, and those that are required have answered.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub started: bool,
    /// `false` once a stop was asked for, and while no request finds a place for some seconds.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub accepting: bool,
    /// Shared servers by state; one that is down does not make the replica unready.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub servers_ready: usize,
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub servers_down: usize,
    /// Connections of users to personal servers that this replica has open.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub personal_connections: usize,
    /// Tenants whose key this replica could not read. Their requests that need it fail until the key is back, and others are
    /// served: it does not make the replica unready. `chatelaine doctor` names them.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub unreadable_tenants: usize,
    /// What it does before it serves; absent once it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
}

/// A process of this program.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Replica {
    /// New at every start.
    pub id: ReplicaId,
    pub version: String,
    #[serde(with = "time::serde::rfc3339")]
    pub started_at: OffsetDateTime,
    /// When it said last how it is; it does so every few seconds.
    #[serde(with = "time::serde::rfc3339")]
    pub seen_at: OffsetDateTime,
    /// It has said nothing for a minute: it was killed, or cannot reach the database.
    pub silent: bool,
    pub readiness: Readiness,
    /// Agent → the SHA-256 of its policy there: who may call and approve what, with which limits and pins. Where two
    /// replicas differ, the stricter policy decides at both.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, String>))]
    pub policies: BTreeMap<AgentId, PolicyDigest>,
    /// A digest of each group of settings that must be the same at all replicas.
    pub settings: BTreeMap<String, String>,
}
