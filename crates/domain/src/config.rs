//! The only place that reads the environment. Everything else is handed a [`Config`] or an
//! [`Environment`], so that a test can pass its own.

mod faults;
mod own_secrets;
mod parsing;
mod traces;

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use ipnet::IpNet;

pub use self::{
    own_secrets::OWN_SECRETS,
    traces::{RootSampler, Sampler, Traces},
};
use self::{
    own_secrets::OwnSecret,
    parsing::{
        address, approval_url, days, direct_address, grants, id_claims, is_json, is_on, key_ring,
        limit, list, mebibytes, networks, number, one_key, operator_token, optional_address,
        optional_path, path, public_url, seconds, secret, sign_in, switch, text, token_bytes,
    },
    traces::{
        attributes, exports_traces, headers, http_address, is_disabled, milliseconds, protocol,
        ratio, sampler,
    },
};
use super::{
    clock::Clock, retention::Days, ring::KeyRing, secret::Secret, sign_in::SignInProvider,
    usage::Storage,
};

/// A snapshot of the process environment, for `${NAME}` in packs. Values may be secret: no `Debug`.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    /// The secrets of the service itself, once they were left out.
    own_secrets: Arc<[OwnSecret]>,
    /// The variables that were left out with them, each with the setting whose secret it has.
    withheld: BTreeMap<String, &'static str>,
}

impl Environment {
    /// What this process was started with. Variables that are not UTF-8 are left out.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the reader of the environment"
    )]
    pub fn from_process() -> Self {
        let variables = std::env::vars_os()
            .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
        Self {
            variables: variables.collect(),
            ..Self::default()
        }
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// The issuers that the operator trusts with a claim that people choose elsewhere (`Config::id_claims`).
    pub fn trusted_issuers(&self, claim: &str) -> Vec<String> {
        let marked = id_claims(self.setting(ID_CLAIMS, "")).unwrap_or_default();
        let of_claim = marked.into_iter().filter(|mark| mark.claim == claim);
        of_claim.map(|mark| mark.issuer).collect()
    }

    /// The same without these variables.
    #[must_use]
    pub fn without(mut self, names: &[&str]) -> Self {
        self.variables
            .retain(|name, _| !names.contains(&name.as_str()));
        self
    }

    /// The same, with one variable set.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }
}

/// A claim that names users where it comes from this issuer.
#[derive(Clone, Debug)]
pub struct IdClaim {
    pub claim: String,
    pub issuer: String,
}

/// Where a connection is one session of Postgres from its beginning to its end. A pooler in transaction mode, which may
/// stand before the address of transactions, lends a session for each transaction.
#[derive(Clone, Default)]
pub enum DirectAddress {
    /// The address of transactions.
    #[default]
    Same,
    At(Secret),
    /// There is none, so nothing may need a session.
    Off,
}

/// Limits of a day; absent: as much as they like.
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
const OTLP_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const OTLP_TRACES_HEADERS: &str = "OTEL_EXPORTER_OTLP_TRACES_HEADERS";
/// The service's database, under a name that no tool uses for its own.
const DATABASE: &str = "CHATELAINE_DATABASE_URL";
/// The service's database, or a pack's where the service's has the other name.
const PACKS_OR_OWN_DATABASE: &str = "DATABASE_URL";
const DIRECT_DATABASE: &str = "CHATELAINE_LISTEN_DATABASE_URL";
/// The largest setting of the size of tokens.
const MAX_TOKEN_BYTES: usize = 48 * 1024;
const ID_CLAIMS: &str = "CHATELAINE_ID_CLAIMS";
/// The fewest characters of the operator's token.
const OPERATOR_LEAST: usize = 32;
/// Whether the program itself reads a variable. No tenant has any use for it.
pub fn is_own(variable: &str) -> bool {
    SETTINGS.iter().any(|(name, ..)| *name == variable)
}

/// Declares every setting once: `field: Type = read(VARIABLE, default), description;`, where `read` makes the
/// value of its text or says what is wrong with it.
macro_rules! settings {
    ($($field:ident: $type:ty = $read:ident($name:expr, $default:literal), $what:literal;)*) => {
        /// How this process runs.
        #[derive(Clone)]
        pub struct Config {
            $(#[doc = $what] pub $field: $type,)*
            /// The program itself, which starts the children. No setting; absent in a process that is not the program.
            pub launcher: Option<PathBuf>,
            /// Whether rules stand in for a model, which agents then say. No setting; `chatelaine demo` sets it.
            pub demo_model: bool,
            /// What tells this process the time. No setting; a test has its own.
            pub clock: Clock,
        }

        /// Every setting: variable, default as written, what it does. The table in
        /// `docs/settings.md` is checked against it.
        pub const SETTINGS: &[(&str, &str, &str)] = &[$(($name, $default, $what),)*];

        impl Config {
            fn read(env: &Environment) -> Result<Self, String> {
                Ok(Self {
                    $($field: $read(env.setting($name, $default))
                        .map_err(|why| format!("{}: {why}", $name))?,)*
                    launcher: None,
                    demo_model: false,
                    clock: Clock::System,
                })
            }

            fn read_faults(env: &Environment) -> Vec<(&'static str, String)> {
                let mut faults = Vec::new();
                $(
                    let read: Result<$type, String> = $read(env.setting($name, $default));
                    faults.extend(read.err().map(|why| ($name, why)));
                )*
                faults
            }
        }
    };
}

settings! {
    listen: SocketAddr = address("CHATELAINE_LISTEN", "127.0.0.1:8080"),
        "address and port of the API";
    metrics_listen: Option<SocketAddr> = optional_address("CHATELAINE_METRICS_LISTEN", ""),
        "address and port of `/metrics`, which then is not at the API's address, and of `/healthz` and `/readyz`, which are at both; unset: with the API";
    public_url: String = public_url("CHATELAINE_PUBLIC_URL", ""),
        "where browsers reach the service, for links; unset: `http://` and the listen address";
    approval_url: String = approval_url("CHATELAINE_APPROVAL_URL", ""),
        "where your frontend shows an approval, with `{id}`, for links; unset: the web client";
    database_url: Option<Secret> = secret(PACKS_OR_OWN_DATABASE, ""),
        "Postgres to use; unset: a private one below the data folder; empty: refused";
    own_database_url: Option<Secret> = secret(DATABASE, ""),
        "the same by a name of the service's own: with it, `DATABASE_URL` is a variable of packs";
    direct_database: DirectAddress = direct_address(DIRECT_DATABASE, ""),
        "the same database without a pooler in between, for `LISTEN` and migrations; `off`: there is no such address, and replicas hear of each other within a second; unset: `DATABASE_URL`";
    database_connections: u32 = number("CHATELAINE_DATABASE_CONNECTIONS", "16"),
        "Postgres connections of this process";
    database_wait: Duration = seconds("CHATELAINE_DATABASE_WAIT_SECONDS", "60"),
        "`serve` waits this long at the start for a Postgres that is not there yet, and for locks that a migration needs";
    drain: Duration = seconds("CHATELAINE_DRAIN_SECONDS", "5"),
        "after SIGTERM requests are still answered for this time, while `/readyz` says 503";
    data: PathBuf = path("CHATELAINE_DATA", ".chatelaine"),
        "folder of the private Postgres, the demo's keys, and the [file by which a restored volume is known](operators.md#backup-and-restore); keep it over restarts, and apart from the volume of the database";
    packs: PathBuf = path("CHATELAINE_PACKS", "packs"),
        "folder of the agent packs";
    mcp_servers: Option<Secret> = secret("MCP_SERVERS_CONFIG", ""),
        "JSON that replaces `mcp.servers` of every pack, or of one: `{\"<pack id>\": [...]}`";
    first_key: Option<KeyRing> = one_key(ONE_KEY, ""),
        "64 hex digits: the key `k1`, which protects what users enter (`openssl rand -hex 32` makes one)";
    ring: Option<KeyRing> = key_ring(KEYS, ""),
        "`k2:hex,k1:hex`: more than one key; the first seals, the others open what they sealed";
    operator_token: Option<Secret> = operator_token(OPERATOR, ""),
        "at least 32 characters: who sends them as a bearer token manages tenants over `/v1/admin/tenants`; unset: nobody does";
    egress_allow: Vec<String> = list("CHATELAINE_EGRESS_ALLOW", ""),
        "`host[:port],…` that may be reached although private or without TLS, by the servers of packs";
    tenant_egress_allow: Vec<String> = list("CHATELAINE_TENANT_EGRESS_ALLOW", ""),
        "the same for addresses that tenants write: registry entries, webhooks and key sets";
    registry_env: Vec<String> = grants("CHATELAINE_REGISTRY_ENV", ""),
        "`NAME@host,PREFIX_*@host,…`: variables that tenants may use in the server registry as `${env.NAME}`, sent to that host only; `NAME@*`: to any";
    stdio_commands: Vec<String> = list("CHATELAINE_STDIO_COMMANDS", "npx,uvx,docker,node,python3,python,uv,deno,bun,bunx"),
        "commands that a stdio server may name without an absolute path";
    stdio_env: Vec<String> = list("CHATELAINE_STDIO_ENV", ""),
        "variables that every stdio server gets from the service's environment, besides `PATH` and `HOME`; behind a TLS proxy `SSL_CERT_FILE,NODE_EXTRA_CA_CERTS`";
    id_claims: Vec<IdClaim> = id_claims(ID_CLAIMS, ""),
        "`CLAIM@ISSUER,…`: claims that name users to `userIdAttribute` although people choose them elsewhere, such as `preferred_username@https://login.example.org`";
    cors_origins: Vec<String> = list("CHATELAINE_CORS_ORIGINS", ""),
        "`https://…,…`: origins of browsers that may call the API";
    sign_in: Vec<SignInProvider> = sign_in("CHATELAINE_SIGN_IN", ""),
        "JSON list of the OpenID Connect providers at which people sign in to the web client and with `chatelaine login`: `[{\"name\":…,\"issuer\":…,\"client_id\":…}]`";
    max_body_bytes: usize = number("CHATELAINE_MAX_BODY_BYTES", "1048576"),
        "largest request body. An attachment may have 10 MiB, and a chat request of a client's protocol 32 MiB, because it holds all images of its chat";
    max_token_bytes: usize = token_bytes("CHATELAINE_MAX_TOKEN_BYTES", "32768"),
        "largest bearer token, at most 49152 because the head of a request has at most 65536 bytes; a user in many groups has a large one";
    max_connections: usize = number("CHATELAINE_MAX_CONNECTIONS", "10000"),
        "connections of clients at once, and no more than half of the files that the process may open; for one more, the one that has waited longest for its client is closed";
    trusted_proxies: Vec<IpNet> = networks("CHATELAINE_TRUSTED_PROXIES", ""),
        "`10.0.0.0/8,…`: proxies whose `X-Forwarded-For` says where a request comes from";
    max_requests: usize = number("CHATELAINE_MAX_REQUESTS", "512"),
        "requests answered at once; one more gets 503 with Retry-After";
    requests_per_minute: u32 = number("CHATELAINE_REQUESTS_PER_MINUTE", "600"),
        "requests of one principal per minute; one more gets 429 with Retry-After";
    sse_per_user: usize = number("CHATELAINE_SSE_PER_USER", "16"),
        "event streams one user may hold open";
    runs_at_once: usize = number("CHATELAINE_RUNS_AT_ONCE", "64"),
        "runs this process works on at once; more wait in the queue, which serves tenants and users in turn";
    runs_per_user_at_once: usize = number("CHATELAINE_RUNS_PER_USER_AT_ONCE", "8"),
        "of these, runs of one user; the guests of a tenant count as one user";
    runs_per_tenant_at_once: usize = number("CHATELAINE_RUNS_PER_TENANT_AT_ONCE", "48"),
        "of these, runs of one tenant";
    open_runs_per_user: u32 = number("CHATELAINE_OPEN_RUNS_PER_USER", "50"),
        "runs of one user that may wait or be under way; one more gets 429 with Retry-After";
    open_runs_per_guest: u32 = number("CHATELAINE_OPEN_RUNS_PER_GUEST", "4"),
        "likewise of one guest; the guests of a tenant together may have a quarter of what the tenant may have";
    open_runs_per_tenant: u32 = number("CHATELAINE_OPEN_RUNS_PER_TENANT", "2000"),
        "likewise of one tenant";
    tools_per_request: usize = number("CHATELAINE_TOOLS_PER_REQUEST", "128"),
        "tools that a model is offered at once; where a user has more, it is offered a tool that searches them";
    run_lease: Duration = seconds("CHATELAINE_RUN_LEASE_SECONDS", "15"),
        "after this time without a sign of life another replica takes a run over";
    run_wait: Duration = seconds("CHATELAINE_RUN_WAIT_SECONDS", "600"),
        "whoever starts a run in mode `sync` waits for its end this long at most";
    retry_grace: Duration = seconds("CHATELAINE_RETRY_GRACE_SECONDS", "10"),
        "a client that loses its connection may come back for this long before its run is stopped: one that waits for a whole answer, or that speaks the AI SDK's protocol or AG-UI";
    run_depth: u32 = number("CHATELAINE_RUN_DEPTH", "5"),
        "generations of runs that agents may start below a first one";
    run_children: u32 = number("CHATELAINE_RUN_CHILDREN", "20"),
        "runs that one run may start";
    run_tree: u32 = number("CHATELAINE_RUN_TREE", "100"),
        "runs of one tree, the first one included";
    model_titles: bool = is_on("CHATELAINE_MODEL_TITLES", "on"),
        "`on`: after the first answer the agent's model makes a title of the conversation, once, with tokens of its user; `off`: the first message stays the title";
    runs_per_user_per_day: Option<i64> = limit("CHATELAINE_RUNS_PER_USER_PER_DAY", ""),
        "turns of one user from 00:00 UTC on; one more gets 429; unset: no limit";
    tokens_per_user_per_day: Option<i64> = limit("CHATELAINE_TOKENS_PER_USER_PER_DAY", ""),
        "tokens of one user, likewise; counted when a turn begins";
    runs_per_tenant_per_day: Option<i64> = limit("CHATELAINE_RUNS_PER_TENANT_PER_DAY", ""),
        "turns of one tenant, likewise";
    tokens_per_tenant_per_day: Option<i64> = limit("CHATELAINE_TOKENS_PER_TENANT_PER_DAY", ""),
        "tokens of one tenant, likewise";
    stored_per_user_per_day: Option<i64> = mebibytes("CHATELAINE_STORED_MIB_PER_USER_PER_DAY", "1024"),
        "MiB that one user may store from 00:00 UTC on: messages, results of tools, attachments; more gets 429; `unlimited`: no limit";
    stored_per_guest_per_day: Option<i64> = mebibytes("CHATELAINE_STORED_MIB_PER_GUEST_PER_DAY", "32"),
        "likewise one guest";
    stored_by_guests_per_day: Option<i64> = mebibytes("CHATELAINE_STORED_MIB_BY_GUESTS_PER_DAY", "1024"),
        "likewise all guests of a tenant together";
    stored_per_tenant_per_day: Option<i64> = mebibytes("CHATELAINE_STORED_MIB_PER_TENANT_PER_DAY", "unlimited"),
        "likewise one tenant";
    approvals_per_user: u32 = number("CHATELAINE_APPROVALS_PER_USER", "20"),
        "calls of one user that may wait for approval at once";
    approvals_per_tenant: u32 = number("CHATELAINE_APPROVALS_PER_TENANT", "1000"),
        "calls of one tenant that may wait for approval at once";
    approval_window: Duration = seconds("CHATELAINE_APPROVAL_WINDOW_SECONDS", "300"),
        "an approved call whose server cannot be reached for this time lapses";
    audit_wait: bool = switch("CHATELAINE_AUDIT_WAIT", "false"),
        "`true`: a call of an MCP client waits until its line of the audit trail is written; `false`: the line is written within 100 ms";
    mcp_own_names: Vec<String> = list("CHATELAINE_MCP_OWN_NAMES", ""),
        "agents whose tools and prompts have their servers' own names at `/mcp/{agent}`, where no other server of the agent has the same";
    keep_conversations: Option<i32> = days("CHATELAINE_KEEP_CONVERSATIONS_DAYS", ""),
        "conversations that were not used for so many days are deleted, with all that is in them; unset: they are kept";
    keep_guest_conversations: Option<i32> = days("CHATELAINE_KEEP_GUEST_CONVERSATIONS_DAYS", "7"),
        "the same of guests, whose tokens end after a day; `unlimited`: they are kept";
    keep_runs: Option<i32> = days("CHATELAINE_KEEP_RUNS_DAYS", ""),
        "runs are deleted so many days after their end; their messages stay with the conversation; unset: they are kept";
    keep_approval_arguments: Option<i32> = days("CHATELAINE_KEEP_APPROVAL_ARGUMENTS_DAYS", "90"),
        "the arguments of a closed approval are erased after so many days, with the claims of its requester; `unlimited`: they are kept";
    keep_audit: Option<i32> = days("CHATELAINE_KEEP_AUDIT_DAYS", ""),
        "lines of the audit trail are deleted after so many days; unset: they are kept";
    deletions_file: Option<PathBuf> = optional_path("CHATELAINE_DELETIONS_FILE", ""),
        "file that gets a line for each user whose data is deleted, for `chatelaine restored`; keep it apart from the database; unset: there is no such list";
    log: String = text("CHATELAINE_LOG", "info,sqlx=warn"),
        "log filter, as in `info,chatelaine=debug`";
    log_json: bool = is_json("CHATELAINE_LOG_FORMAT", "text"),
        "`text` or `json`";
    otlp_endpoint: Option<Secret> = http_address("OTEL_EXPORTER_OTLP_ENDPOINT", ""),
        "a collector of OpenTelemetry, such as `http://collector:4318`, which then gets traces at `/v1/traces`; unset: there are no traces";
    otlp_traces_endpoint: Option<Secret> = http_address("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""),
        "the whole address for traces, such as `http://collector:4318/v1/traces`, instead of `OTEL_EXPORTER_OTLP_ENDPOINT`";
    otlp_headers: Vec<(String, Secret)> = headers(OTLP_HEADERS, ""),
        "`NAME=VALUE,…`: headers of what is sent there, percent-encoded where need be";
    otlp_traces_headers: Vec<(String, Secret)> = headers(OTLP_TRACES_HEADERS, ""),
        "the same, for traces, instead of `OTEL_EXPORTER_OTLP_HEADERS`";
    otlp_protocol: () = protocol("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        "`http/protobuf`; no other is spoken";
    otlp_traces_protocol: () = protocol("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
        "likewise";
    otlp_timeout: Duration = milliseconds("OTEL_EXPORTER_OTLP_TIMEOUT", "10000"),
        "the collector answers within so many milliseconds, or the spans are lost";
    service_name: String = text("OTEL_SERVICE_NAME", ""),
        "`service.name` of traces; unset: that of `OTEL_RESOURCE_ATTRIBUTES`, or `chatelaine`";
    resource_attributes: Vec<(String, String)> = attributes("OTEL_RESOURCE_ATTRIBUTES", ""),
        "`NAME=VALUE,…`: what each trace says of this process, such as `deployment.environment.name=production`";
    traces_sampler: Sampler = sampler("OTEL_TRACES_SAMPLER", "parentbased_always_on"),
        "which traces are kept: `always_on`, `always_off`, `traceidratio`, or one of these after `parentbased_`, which does as the client does that sends a `traceparent`";
    traces_sampler_arg: f64 = ratio("OTEL_TRACES_SAMPLER_ARG", "1"),
        "the part of traces that `traceidratio` keeps, from 0 to 1";
    traces_exporter: bool = exports_traces("OTEL_TRACES_EXPORTER", "otlp"),
        "`otlp` or `none`";
    is_otel_disabled: bool = is_disabled("OTEL_SDK_DISABLED", "false"),
        "`true`: there are no traces, whatever else is set";
}

impl Config {
    /// Reads the settings; the error names the variable and says what to write, and repeats no secret.
    pub fn from_environment(env: &Environment) -> Result<Self, String> {
        let mut config = Self::read(env)?;
        if env.get(DATABASE).is_some() {
            config.database_url.clone_from(&config.own_database_url);
        }
        config.ring =
            match (config.ring, &config.first_key) {
                (Some(many), Some(one)) => Some(many.and(one).map_err(|why| {
                    format!("{ONE_KEY} and {KEYS}: {why}; leave one of the two out")
                })?),
                (many, one) => many.or_else(|| one.clone()),
            };
        Ok(config)
    }

    /// How long things are kept.
    pub fn retention(&self) -> Days {
        Days {
            call_arguments: None,
            conversations: self.keep_conversations,
            guest_conversations: self.keep_guest_conversations,
            runs: self.keep_runs,
            approval_arguments: self.keep_approval_arguments,
            audit: self.keep_audit,
        }
    }

    /// What may be stored in a day (UTC).
    pub fn storage(&self) -> Storage {
        Storage {
            user: self.stored_per_user_per_day,
            guest: self.stored_per_guest_per_day,
            guests: self.stored_by_guests_per_day,
            tenant: self.stored_per_tenant_per_day,
        }
    }

    /// What users and tenants may use in a day (UTC).
    pub fn daily(&self) -> Daily {
        Daily {
            user_runs: self.runs_per_user_per_day,
            user_tokens: self.tokens_per_user_per_day,
            tenant_runs: self.runs_per_tenant_per_day,
            tenant_tokens: self.tokens_per_tenant_per_day,
        }
    }
}

impl Environment {
    /// The variable that names the service's database.
    pub fn database_variable(&self) -> &'static str {
        if self.get(DATABASE).is_some() || self.withheld.contains_key(DATABASE) {
            DATABASE
        } else {
            PACKS_OR_OWN_DATABASE
        }
    }

    /// The value of a setting, or its default. An empty value is an unset one.
    fn setting<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.get(name)
            .filter(|value| !value.is_empty())
            .unwrap_or(default)
    }
}
