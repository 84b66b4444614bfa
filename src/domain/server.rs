//! An MCP server as a pack defines it. Everything here is resolved: no `${NAME}` is left, and what
//! came from the environment is a [`Secret`].

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::Deserialize;
use url::Url;

use super::{
    ids::ServerId,
    policy::{ToolAccess, ToolPattern},
    secret::Secret,
};

/// One server of one agent.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSpec {
    pub id: ServerId,
    pub endpoint: Endpoint,
    pub access_mode: AccessMode,
    /// Who may call which tool. Absent: nobody may (DESIGN section 3, rule 3).
    pub tool_access: Option<ToolAccess>,
    /// The allowlist `tools`. Absent: every discovered tool; empty: none.
    pub tools: Option<Vec<ToolPattern>>,
    /// Start fails when the server is down.
    pub required: bool,
    pub timeouts: Timeouts,
    /// The fields a user fills in to configure a personal server.
    pub user_config: Vec<UserField>,
}

/// Where a server is and what is sent to reach it.
#[derive(Clone, Debug, PartialEq)]
pub enum Endpoint {
    /// MCP's streamable HTTP transport. Headers are sent with every request to this origin only.
    StreamableHttp { url: Url, headers: Vec<(String, Secret)> },
    /// A child process that speaks over its standard streams.
    Stdio { command: String, args: Vec<Secret>, env: BTreeMap<String, Secret>, cwd: Option<PathBuf> },
}

/// Whose credentials the server sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessMode {
    /// Shared: the operator's token, one connection for all users of a tenant.
    #[default]
    AdminControlled,
    /// Personal: each user's own credential.
    UserControlled,
}

/// How long to wait for a server. A deadline covers the whole answer, body included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Duration,
    pub request: Duration,
}

impl Default for Timeouts {
    /// 5 s to connect and 60 s for a request, as in DESIGN section 3.
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), request: Duration::from_secs(60) }
    }
}

/// One field of the configuration flow of a personal server.
#[derive(Clone, Debug, PartialEq)]
pub struct UserField {
    pub name: String,
    pub kind: FieldKind,
    /// Language tag → what the user is asked.
    pub label: BTreeMap<String, String>,
    pub required: bool,
    /// The header that carries the value; `Authorization` unless the pack says otherwise.
    pub header_name: Option<String>,
    /// `{value}` or `{fieldName}` in literal text; see DESIGN section 4.
    pub header_template: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FieldKind {
    #[default]
    Text,
    Secret,
    Url,
    Boolean,
    Select,
}
