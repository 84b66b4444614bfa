//! The only place that reads the environment. Everything else is handed a [`Config`] or an
//! [`Environment`], so that a test can pass its own.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use super::{ring::KeyRing, secret::Secret};

/// A snapshot of the process environment, for `${NAME}` in packs. Values may be secret: no `Debug`.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// What this process was started with. Variables that are not UTF-8 are left out.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the reader of the environment"
    )]
    pub fn from_process() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
                .collect(),
        )
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The same without the secrets of the program itself: nothing that reads `${NAME}` may find them.
    #[must_use]
    pub fn without_keys(mut self) -> Self {
        self.0
            .retain(|name, _| !OWN_SECRETS.contains(&name.as_str()));
        self
    }

    /// The same, with one variable set.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }
}

/// How this process runs. [`SETTINGS`] names every variable; the table in `docs/settings.md` is checked against it.
#[derive(Clone)]
pub struct Config {
    pub listen: SocketAddr,
    /// Where browsers reach this service; absent: at `listen`.
    pub public_url: String,
    /// Where people look at an approval, with `{id}`; empty: in the API.
    pub approval_url: String,
    /// Absent: a private Postgres below `data`.
    pub database_url: Option<Secret>,
    pub database_connections: u32,
    pub data: PathBuf,
    pub packs: PathBuf,
    /// `MCP_SERVERS_CONFIG`: JSON that replaces the servers of the packs.
    pub mcp_servers: Option<Secret>,
    /// What credentials are sealed with; absent: nothing can be.
    pub ring: Option<KeyRing>,
    /// Who sends it may manage tenants; absent: nobody over the API.
    pub operator_token: Option<Secret>,
    /// `host[:port]` that may be reached although private or without TLS.
    pub egress_allow: Vec<String>,
    /// Variables that tenants' registry entries may refer to; names may hold `*`.
    pub registry_env: Vec<String>,
    /// Commands that a stdio server may name without an absolute path.
    pub stdio_commands: Vec<String>,
    /// Origins of browsers that may call the API.
    pub cors_origins: Vec<String>,
    pub max_body_bytes: usize,
    pub max_requests: usize,
    pub requests_per_minute: u32,
    pub sse_per_user: usize,
    pub runs_at_once: usize,
    pub run_lease: Duration,
    /// How long somebody who asked for a run in mode `sync` waits for its end.
    pub run_wait: Duration,
    /// Generations of runs below the first one.
    pub run_depth: u32,
    /// Runs that one run may start.
    pub run_children: u32,
    /// Runs of one tree.
    pub run_tree: u32,
    /// What a user and a tenant may use in a day (UTC); absent: as much as they like.
    pub daily: Daily,
    /// Open requests for approval of one user.
    pub approvals_per_user: u32,
    pub approvals_per_tenant: u32,
    /// How long an approved call may wait for its server.
    pub approval_window: Duration,
    pub log: String,
    pub log_json: bool,
}

/// Limits of a day.
#[derive(Clone, Copy, Debug, Default)]
pub struct Daily {
    pub user_runs: Option<i64>,
    pub user_tokens: Option<i64>,
    pub tenant_runs: Option<i64>,
    pub tenant_tokens: Option<i64>,
}

const ONE_KEY: &str = "MCP_CONFIG_ENCRYPTION_KEY";
const KEYS: &str = "MCP_CONFIG_ENCRYPTION_KEYS";
const OPERATOR: &str = "CHATELAINE_OPERATOR_TOKEN";
/// The fewest characters of the operator's token.
const OPERATOR_LEAST: usize = 32;
/// The variables with secrets of the program itself. No pack, tenant or child of ours has any use for them.
pub const OWN_SECRETS: [&str; 3] = [ONE_KEY, KEYS, OPERATOR];

/// Every setting: variable, default as written, what it does.
pub const SETTINGS: &[(&str, &str, &str)] = &[
    (
        "CHATELAINE_LISTEN",
        "127.0.0.1:8080",
        "address and port of the API",
    ),
    (
        "CHATELAINE_PUBLIC_URL",
        "",
        "where browsers reach the service, for links; unset: `http://` and the listen address",
    ),
    (
        "CHATELAINE_APPROVAL_URL",
        "",
        "where your frontend shows an approval, with `{id}`, for links; unset: the API",
    ),
    (
        "DATABASE_URL",
        "",
        "Postgres to use; unset: a private one below the data folder",
    ),
    (
        "CHATELAINE_DATABASE_CONNECTIONS",
        "16",
        "Postgres connections of this process",
    ),
    (
        "CHATELAINE_DATA",
        ".chatelaine",
        "folder of the private Postgres and the demo's keys",
    ),
    ("CHATELAINE_PACKS", "packs", "folder of the agent packs"),
    (
        "MCP_SERVERS_CONFIG",
        "",
        "JSON that replaces `mcp.servers` of every pack, or of one: `{\"<pack id>\": [...]}`",
    ),
    (
        ONE_KEY,
        "",
        "64 hex digits: the key `k1`, which protects what users enter (`openssl rand -hex 32` makes one)",
    ),
    (
        KEYS,
        "",
        "`k2:hex,k1:hex`: more than one key; the first seals, the others open what they sealed",
    ),
    (
        OPERATOR,
        "",
        "at least 32 characters: who sends them as a bearer token manages tenants over `/v1/admin/tenants`; unset: nobody does",
    ),
    (
        "CHATELAINE_EGRESS_ALLOW",
        "",
        "`host[:port],…` that may be reached although private or without TLS",
    ),
    (
        "CHATELAINE_REGISTRY_ENV",
        "",
        "`NAME,PREFIX_*,…`: variables that tenants may use in the server registry as `${env.NAME}`",
    ),
    (
        "CHATELAINE_STDIO_COMMANDS",
        "npx,uvx,docker,node,python3,python,uv,deno,bun",
        "commands that a stdio server may name without an absolute path",
    ),
    (
        "CHATELAINE_CORS_ORIGINS",
        "",
        "`https://…,…`: origins of browsers that may call the API",
    ),
    (
        "CHATELAINE_MAX_BODY_BYTES",
        "1048576",
        "largest request body",
    ),
    (
        "CHATELAINE_MAX_REQUESTS",
        "512",
        "requests answered at once; one more gets 503 with Retry-After",
    ),
    (
        "CHATELAINE_REQUESTS_PER_MINUTE",
        "600",
        "requests of one principal per minute; one more gets 429 with Retry-After",
    ),
    (
        "CHATELAINE_SSE_PER_USER",
        "16",
        "event streams one user may hold open",
    ),
    (
        "CHATELAINE_RUNS_AT_ONCE",
        "64",
        "runs this process works on at once; more wait in the queue",
    ),
    (
        "CHATELAINE_RUN_LEASE_SECONDS",
        "15",
        "after this time without a sign of life another replica takes a run over",
    ),
    (
        "CHATELAINE_RUN_WAIT_SECONDS",
        "600",
        "whoever starts a run in mode `sync` waits for its end this long at most",
    ),
    (
        "CHATELAINE_RUN_DEPTH",
        "5",
        "generations of runs that agents may start below a first one",
    ),
    (
        "CHATELAINE_RUN_CHILDREN",
        "20",
        "runs that one run may start",
    ),
    (
        "CHATELAINE_RUN_TREE",
        "100",
        "runs of one tree, the first one included",
    ),
    (
        "CHATELAINE_RUNS_PER_USER_PER_DAY",
        "",
        "turns of one user from 00:00 UTC on; one more gets 429; unset: no limit",
    ),
    (
        "CHATELAINE_TOKENS_PER_USER_PER_DAY",
        "",
        "tokens of one user, likewise; counted when a turn begins",
    ),
    (
        "CHATELAINE_RUNS_PER_TENANT_PER_DAY",
        "",
        "turns of one tenant, likewise",
    ),
    (
        "CHATELAINE_TOKENS_PER_TENANT_PER_DAY",
        "",
        "tokens of one tenant, likewise",
    ),
    (
        "CHATELAINE_APPROVALS_PER_USER",
        "20",
        "calls of one user that may wait for approval at once",
    ),
    (
        "CHATELAINE_APPROVALS_PER_TENANT",
        "1000",
        "calls of one tenant that may wait for approval at once",
    ),
    (
        "CHATELAINE_APPROVAL_WINDOW_SECONDS",
        "300",
        "an approved call whose server cannot be reached for this time lapses",
    ),
    (
        "CHATELAINE_LOG",
        "info,sqlx=warn",
        "log filter, as in `info,chatelaine=debug`",
    ),
    ("CHATELAINE_LOG_FORMAT", "text", "`text` or `json`"),
];

impl Config {
    /// Reads the settings; the error names the variable and says what to write.
    pub fn from_environment(env: &Environment) -> Result<Self, String> {
        let database_url = env
            .get("DATABASE_URL")
            .filter(|url| !url.is_empty())
            .map(Secret::new);
        let log_json = match text(env, "CHATELAINE_LOG_FORMAT").as_str() {
            "text" => false,
            "json" => true,
            other => {
                return Err(format!(
                    "CHATELAINE_LOG_FORMAT: {other:?} is neither `text` nor `json`"
                ));
            }
        };
        Ok(Self {
            listen: parsed(
                env,
                "CHATELAINE_LISTEN",
                "an address and port such as 127.0.0.1:8080",
            )?,
            public_url: public_url(env)?,
            approval_url: approval_url(env)?,
            database_url,
            database_connections: number(env, "CHATELAINE_DATABASE_CONNECTIONS")?,
            data: text(env, "CHATELAINE_DATA").into(),
            packs: text(env, "CHATELAINE_PACKS").into(),
            mcp_servers: env
                .get("MCP_SERVERS_CONFIG")
                .filter(|text| !text.trim().is_empty())
                .map(Secret::new),
            ring: ring(env)?,
            operator_token: operator_token(env)?,
            egress_allow: list(env, "CHATELAINE_EGRESS_ALLOW"),
            registry_env: list(env, "CHATELAINE_REGISTRY_ENV"),
            stdio_commands: list(env, "CHATELAINE_STDIO_COMMANDS"),
            cors_origins: list(env, "CHATELAINE_CORS_ORIGINS"),
            max_body_bytes: number(env, "CHATELAINE_MAX_BODY_BYTES")?,
            max_requests: number(env, "CHATELAINE_MAX_REQUESTS")?,
            requests_per_minute: number(env, "CHATELAINE_REQUESTS_PER_MINUTE")?,
            sse_per_user: number(env, "CHATELAINE_SSE_PER_USER")?,
            runs_at_once: number(env, "CHATELAINE_RUNS_AT_ONCE")?,
            run_lease: Duration::from_secs(number(env, "CHATELAINE_RUN_LEASE_SECONDS")?),
            run_wait: Duration::from_secs(number(env, "CHATELAINE_RUN_WAIT_SECONDS")?),
            run_depth: number(env, "CHATELAINE_RUN_DEPTH")?,
            run_children: number(env, "CHATELAINE_RUN_CHILDREN")?,
            run_tree: number(env, "CHATELAINE_RUN_TREE")?,
            daily: Daily {
                user_runs: limit(env, "CHATELAINE_RUNS_PER_USER_PER_DAY")?,
                user_tokens: limit(env, "CHATELAINE_TOKENS_PER_USER_PER_DAY")?,
                tenant_runs: limit(env, "CHATELAINE_RUNS_PER_TENANT_PER_DAY")?,
                tenant_tokens: limit(env, "CHATELAINE_TOKENS_PER_TENANT_PER_DAY")?,
            },
            approvals_per_user: number(env, "CHATELAINE_APPROVALS_PER_USER")?,
            approvals_per_tenant: number(env, "CHATELAINE_APPROVALS_PER_TENANT")?,
            approval_window: Duration::from_secs(number(
                env,
                "CHATELAINE_APPROVAL_WINDOW_SECONDS",
            )?),
            log: text(env, "CHATELAINE_LOG"),
            log_json,
        })
    }
}

/// The keys that the settings give. The error names the variable and never what is in it.
fn ring(env: &Environment) -> Result<Option<KeyRing>, String> {
    let set = |name| {
        env.get(name)
            .map(str::trim)
            .filter(|value| !value.is_empty())
    };
    let one = set(ONE_KEY)
        .map(KeyRing::parse_one)
        .transpose()
        .map_err(|why| format!("{ONE_KEY}: {why}"))?;
    let many = set(KEYS)
        .map(KeyRing::parse)
        .transpose()
        .map_err(|why| format!("{KEYS}: {why}"))?;
    match (many, one) {
        (Some(many), Some(one)) => many
            .and(&one)
            .map(Some)
            .map_err(|why| format!("{ONE_KEY} and {KEYS}: {why}; leave one of the two out")),
        (many, one) => Ok(many.or(one)),
    }
}

/// What the operator is known by. The error never repeats it.
fn operator_token(env: &Environment) -> Result<Option<Secret>, String> {
    let Some(token) = env.get(OPERATOR).filter(|token| !token.is_empty()) else {
        return Ok(None);
    };
    if token.len() < OPERATOR_LEAST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "{OPERATOR}: must be at least {OPERATOR_LEAST} visible ASCII characters (`openssl rand -hex 32` makes them)"
        ));
    }
    Ok(Some(Secret::new(token)))
}

/// An address without a path of its own, or nothing.
fn public_url(env: &Environment) -> Result<String, String> {
    let text = text(env, "CHATELAINE_PUBLIC_URL");
    let usable = |url: url::Url| matches!(url.scheme(), "http" | "https") && url.query().is_none();
    if text.is_empty() || url::Url::parse(&text).is_ok_and(usable) {
        return Ok(text);
    }
    Err("CHATELAINE_PUBLIC_URL: write an address such as https://chat.example.org".to_owned())
}

/// An address with a place for the id, or nothing.
fn approval_url(env: &Environment) -> Result<String, String> {
    let text = text(env, "CHATELAINE_APPROVAL_URL");
    let usable = |url: url::Url| matches!(url.scheme(), "http" | "https");
    if text.is_empty()
        || (text.contains("{id}") && url::Url::parse(&text.replace("{id}", "id")).is_ok_and(usable))
    {
        return Ok(text);
    }
    Err(
        "CHATELAINE_APPROVAL_URL: write an address such as https://chat.example.org/approvals/{id}"
            .to_owned(),
    )
}

/// The value of a setting, or its default. An empty value is an unset one.
fn text(env: &Environment, name: &str) -> String {
    let default = SETTINGS
        .iter()
        .find(|(setting, ..)| *setting == name)
        .map_or("", |(_, default, _)| default);
    env.get(name)
        .filter(|value| !value.is_empty())
        .unwrap_or(default)
        .to_owned()
}

fn parsed<T: std::str::FromStr>(env: &Environment, name: &str, wanted: &str) -> Result<T, String> {
    let value = text(env, name);
    value
        .parse()
        .map_err(|_| format!("{name}: {value:?} is not {wanted}"))
}

/// A whole number above zero.
fn number<T: std::str::FromStr + PartialOrd + From<u8>>(
    env: &Environment,
    name: &str,
) -> Result<T, String> {
    let wanted = "a whole number above 0";
    let value = parsed(env, name, wanted)?;
    if value < T::from(1) {
        Err(format!("{name}: must be {wanted}"))
    } else {
        Ok(value)
    }
}

/// A whole number above zero, or none.
fn limit(env: &Environment, name: &str) -> Result<Option<i64>, String> {
    if text(env, name).is_empty() {
        Ok(None)
    } else {
        number(env, name).map(Some)
    }
}

fn list(env: &Environment, name: &str) -> Vec<String> {
    text(env, name)
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}
