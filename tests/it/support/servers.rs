//! The published MCP servers, and small ones of ours, as processes of a test. They end with the test.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use domain::{
    credential::CredentialRef,
    ids::{AgentId, CredentialId, ServerId, TenantId, UserId},
    owner::SharedKey,
    pin::Pin,
    policy::OtherPolicies,
    secret::Secret,
    server::{AccessMode, CatalogScope, Endpoint, Remote, ServerSpec, Timeouts},
};
use egress::Egress;
use mcp::{CallOptions, CallRequest, Key, Mcp, Options, Progress};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    sync::mpsc,
    time::timeout,
};
use url::Url;

use super::forks::Fork;

/// A slow machine starts Node and Python in seconds.
const START: Duration = Duration::from_secs(60);

/// Connections that may reach this machine, with these options.
pub fn mcp_with(options: Options) -> Mcp {
    Mcp::new(Egress::new(&["127.0.0.1".to_owned()]).unwrap(), options)
}

pub fn mcp() -> Mcp {
    mcp_with(Options {
        stdio_commands: vec!["node".to_owned()],
        ..Options::default()
    })
}

/// A key that no other test has.
pub fn key() -> Key {
    Key::Personal(CredentialRef {
        tenant: TenantId::new(),
        user: UserId("user".into()),
        agent: AgentId::parse("agent").unwrap(),
        server: ServerId::parse("server").unwrap(),
        id: CredentialId::new(),
        generation: 1,
    })
}

/// The same with a credential that replaced the first.
pub fn replaced(key: &Key) -> Key {
    let Key::Personal(first) = key else {
        panic!("a personal connection");
    };
    Key::Personal(CredentialRef {
        generation: first.generation + 1,
        ..first.clone()
    })
}

/// The key of a shared server for a new tenant.
pub fn shared_key(spec: &ServerSpec) -> Key {
    Key::Shared(SharedKey::new(TenantId::new(), spec))
}

pub fn spec_with(endpoint: Endpoint, timeouts: Timeouts) -> Arc<ServerSpec> {
    Arc::new(ServerSpec {
        id: ServerId::parse("server").unwrap(),
        endpoint,
        access_mode: AccessMode::UserControlled,
        tool_access: None,
        tools: None,
        pin: Pin::default(),
        held: BTreeMap::new(),
        elsewhere: OtherPolicies::default(),
        summaries: BTreeMap::new(),
        required: false,
        per_tenant: false,
        at_start: false,
        timeouts,
        user_config: Vec::new(),
        catalog: CatalogScope::Shared,
        entered: Vec::new(),
        auth: None,
        oauth: None,
        credential_test: None,
        operator_headers: Vec::new(),
        from_variables: Vec::new(),
        has_user_values: false,
        asks_for_sign_in: false,
        run_config: None,
        of_tenant: false,
        load_tools: true,
        load_prompts: true,
        terminate_on_close: true,
    })
}

pub fn spec(endpoint: Endpoint) -> Arc<ServerSpec> {
    spec_with(endpoint, Timeouts::default())
}

pub fn args(value: &Value) -> Box<RawValue> {
    to_raw_value(value).unwrap()
}

pub fn request<'a>(tool: &'a str, arguments: &'a RawValue) -> CallRequest<'a> {
    CallRequest { tool, arguments }
}

pub fn options() -> CallOptions {
    CallOptions::default()
}

/// Waits for something that must happen soon.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), future)
        .await
        .expect("it did not happen within 20 s")
}

/// Polls until it holds.
pub async fn until(mut holds: impl FnMut() -> bool) {
    soon(async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// A server over HTTP.
pub struct Server {
    pub url: Url,
    pub port: u16,
    _process: Process,
}

/// What a server ends with.
enum Process {
    Child(Child),
    Fork(Fork),
}

impl Server {
    fn at(port: u16, process: Process) -> Self {
        Self {
            url: Url::parse(&format!("http://127.0.0.1:{port}/mcp")).unwrap(),
            port,
            _process: process,
        }
    }

    /// The endpoint with these headers.
    pub fn endpoint(&self, headers: &[(&str, &str)]) -> Endpoint {
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Secret::new(*value)))
            .collect();
        Endpoint::Remote {
            transport: Remote::StreamableHttp,
            url: self.url.clone(),
            headers,
        }
    }

    /// The endpoint over this transport, without headers.
    pub fn over(&self, transport: Remote) -> Endpoint {
        Endpoint::Remote {
            transport,
            url: self.url.clone(),
            headers: Vec::new(),
        }
    }
}

/// npm `@modelcontextprotocol/server-everything` on this port, or on a free one.
pub async fn everything(port: Option<u16>) -> Server {
    let port = port.unwrap_or_else(free_port);
    let mut command = Command::new("node");
    command
        .arg(everything_script())
        .arg("streamableHttp")
        .env("PORT", port.to_string());
    start(command).await
}

/// npm `@modelcontextprotocol/server-everything` over HTTP with SSE as in revision 2024-11-05.
pub async fn everything_sse() -> Server {
    let mut command = Command::new("node");
    command
        .arg(everything_script())
        .arg("sse")
        .env("PORT", free_port().to_string());
    let mut server = start(command).await;
    server.url.set_path("/sse");
    server
}

/// npm `supergateway` with a WebSocket, in front of server-everything over stdio.
pub async fn gateway() -> Server {
    let mut command = Command::new("node");
    command.arg(installed(
        folder().join("node_modules/supergateway/dist/index.js"),
    ));
    command.args([
        "--outputTransport",
        "ws",
        "--messagePath",
        "/message",
        "--port",
        &free_port().to_string(),
    ]);
    command
        .arg("--stdio")
        .arg(format!("node {} stdio", everything_script().display()));
    let mut server = start(command).await;
    server.url.set_path("/message");
    server.url.set_scheme("ws").unwrap();
    server
}

/// npm `mcp-proxy` on this port, or on a free one, in front of server-everything over stdio. It asks for the key in
/// `X-API-Key`.
pub async fn proxy(port: Option<u16>, key: &str) -> Server {
    let child = ["node", everything_script().to_str().unwrap(), "stdio"].map(str::to_owned);
    proxy_of(port, key, &child).await
}

/// The same in front of another server over stdio.
pub async fn proxy_of(port: Option<u16>, key: &str, child: &[String]) -> Server {
    let port = port.unwrap_or_else(free_port);
    let mut command = Command::new("node");
    command.arg(installed(
        folder().join("node_modules/mcp-proxy/dist/bin/mcp-proxy.mjs"),
    ));
    command.args([
        "--host",
        "127.0.0.1",
        "--server",
        "stream",
        "--apiKey",
        key,
        "--port",
        &port.to_string(),
    ]);
    command.arg("--").args(child);
    let server = start(command).await;
    // It says so a moment before it listens.
    until_it_listens(port).await;
    server
}

async fn until_it_listens(port: u16) {
    let listens = async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
    soon(async {
        while listens().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// npm `supergateway` with streamable HTTP and sessions on this port, in front of a server over stdio.
pub async fn gateway_of(port: u16, child: &[String]) -> Server {
    let mut command = Command::new("node");
    command.arg(installed(
        folder().join("node_modules/supergateway/dist/index.js"),
    ));
    command.args([
        "--outputTransport",
        "streamableHttp",
        "--stateful",
        "--port",
    ]);
    command.arg(port.to_string());
    command.arg("--stdio").arg(child.join(" "));
    let server = start(command).await;
    until_it_listens(port).await;
    server
}

/// The command line of the probe, which writes what it executes into this file.
pub fn probe_command(ledger: &Path) -> [String; 4] {
    [
        "env".to_owned(),
        format!("PROBE_LEDGER={}", ledger.display()),
        venv("python").display().to_string(),
        folder().join("probe.py").display().to_string(),
    ]
}

/// `tests/servers/desk.py`, a fastmcp server that knows `reader-token` and `writer-token`.
pub async fn desk() -> Server {
    fastmcp("desk.py", &[]).await
}

/// `tests/servers/asks.py`, a fastmcp server of the older revisions that asks its users.
pub async fn asks() -> Server {
    let mut server = fastmcp("asks.py", &[]).await;
    server.url.set_path("/sse");
    server
}

/// A script of `tests/servers` that serves with fastmcp over HTTP.
pub async fn fastmcp(script: &str, arguments: &[&str]) -> Server {
    let started = timeout(START, Fork::start(script, arguments));
    let (fork, port) = started
        .await
        .unwrap_or_else(|_| panic!("{script} is silent after {START:?}"));
    Server::at(port, Process::Fork(fork))
}

/// A script of `tests/servers` that serves with fastmcp 2 over HTTP.
pub async fn fastmcp_2(script: &str, arguments: &[&str]) -> Server {
    let python = installed(folder().join(".venv-fastmcp-2/bin/python"));
    let mut command = Command::new(python);
    command.arg(folder().join(script)).args(arguments);
    start(command).await
}

/// npm `n8n-mcp` over HTTP on this port, for the n8n at this address. It asks for the key as a bearer token.
pub async fn n8n(port: u16, key: &str, api: &str) -> Server {
    let mut command = Command::new("node");
    command
        .arg(installed(
            folder().join("node_modules/n8n-mcp/dist/mcp/index.js"),
        ))
        .envs([
            ("MCP_MODE", "http"),
            ("HOST", "127.0.0.1"),
            ("PORT", &port.to_string()),
            ("AUTH_TOKEN", key),
            ("AUTH_RATE_LIMIT_MAX", "10000"),
            ("N8N_API_URL", api),
            ("N8N_API_KEY", "api-key-0123456789"),
            // Its n8n may be on this machine.
            ("WEBHOOK_SECURITY_MODE", "moderate"),
            ("N8N_MCP_TELEMETRY_DISABLED", "true"),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let process = command.spawn().unwrap();
    until_it_listens(port).await;
    Server::at(port, Process::Child(process))
}

/// npm `@modelcontextprotocol/server-everything` as a child.
pub fn everything_stdio() -> Endpoint {
    stdio("node", [everything_script().to_str().unwrap(), "stdio"])
}

/// The published `mcp-server-time` as a child.
pub fn time_stdio() -> Endpoint {
    stdio(
        venv("mcp-server-time").to_str().unwrap(),
        ["--local-timezone", "UTC"],
    )
}

/// `tests/servers/desk.py` as a child.
pub fn desk_stdio() -> Endpoint {
    stdio(
        venv("python").to_str().unwrap(),
        [folder().join("desk.py").to_str().unwrap(), "--stdio"],
    )
}

/// `tests/servers/probe.py` as a child, behaving as the words say.
pub fn probe_stdio(behaviour: &[&str], env: &[(&str, &str)]) -> Endpoint {
    let script = folder().join("probe.py");
    let args = std::iter::once(script.to_str().unwrap()).chain(behaviour.iter().copied());
    let Endpoint::Stdio {
        command, args, cwd, ..
    } = stdio(venv("python").to_str().unwrap(), args)
    else {
        unreachable!("just made")
    };
    let env = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Secret::new(*value)))
        .collect();
    Endpoint::Stdio {
        command,
        args,
        env,
        cwd,
        encoding: None,
    }
}

fn stdio<'a>(command: &str, args: impl IntoIterator<Item = &'a str>) -> Endpoint {
    let args = args.into_iter().map(Secret::new).collect();
    Endpoint::Stdio {
        command: command.to_owned(),
        args,
        env: BTreeMap::new(),
        cwd: None,
        encoding: None,
    }
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers")
}

pub fn everything_script() -> PathBuf {
    installed(folder().join("node_modules/@modelcontextprotocol/server-everything/dist/index.js"))
}

pub fn venv(program: &str) -> PathBuf {
    installed(folder().join(".venv/bin").join(program))
}

fn installed(path: PathBuf) -> PathBuf {
    assert!(
        path.exists(),
        "{} is missing; run tests/servers/install.sh",
        path.display()
    );
    path
}

/// Starts a server and waits until it says on which port it listens.
pub async fn start(mut command: Command) -> Server {
    let mut process = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| {
            panic!("cannot start {command:?}: {error}; run tests/servers/install.sh")
        });
    let (found, mut ports) = mpsc::channel(2);
    tokio::spawn(drain(process.stdout.take().unwrap(), found.clone()));
    tokio::spawn(drain(process.stderr.take().unwrap(), found));
    let port = timeout(START, ports.recv())
        .await
        .unwrap_or_else(|_| panic!("{command:?} is silent after {START:?}"));
    let port = port.unwrap_or_else(|| {
        panic!("{command:?} ended before it listened; run tests/servers/install.sh")
    });
    Server::at(port, Process::Child(process))
}

/// The port that a line of a server names.
pub fn port_in(line: &str) -> Option<u16> {
    let (_, port) = line.split_once(" on port ")?;
    port.trim().parse().ok()
}

/// Reads all output, so that the server never waits for a reader, and tells the port when a line names it.
async fn drain(output: impl AsyncRead + Send + Unpin, found: mpsc::Sender<u16>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(port) = port_in(&line) {
            // Only the first one is waited for.
            let _ = found.try_send(port);
        }
    }
}

/// Calls a tool of the published server that takes a second, and returns how far it says that it is, of two steps.
pub async fn steps_of_a_long_call(mcp: &Mcp, key: &Key, spec: &Arc<ServerSpec>) -> Vec<f64> {
    let (progress, mut heard) = mcp::progress_channel();
    let options = CallOptions {
        progress: Some(progress),
        ..CallOptions::default()
    };
    let arguments = args(&json!({"duration": 1, "steps": 2}));
    let asked = request("trigger-long-running-operation", &arguments);
    let outcome = mcp.call(key, spec, asked, options).await.unwrap();
    assert!(!outcome.is_error, "{}", outcome.text);
    let mut steps = Vec::new();
    while let Some(Progress {
        progress, total, ..
    }) = heard.next().await
    {
        assert_eq!(total, Some(2.0));
        steps.push(progress);
    }
    steps
}
