//! The demo's bank: in this process for most tests, as a process of its own for those that kill it.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use axum::{Router, extract::Request};
use domain::config::Environment;
use serde_json::{Value, json};
use tower::ServiceExt;

#[path = "../../../examples/bank/books.rs"]
pub mod books;
#[path = "../../../examples/bank/http.rs"]
pub mod http;
#[path = "../../../examples/bank/money.rs"]
pub mod money;
#[path = "../../../examples/bank/tools.rs"]
pub mod tools;

use books::Books;

/// A bank that listens on a port of this machine for as long as the test runs.
#[derive(Clone)]
pub struct Bank {
    /// `http://127.0.0.1:…/mcp`
    pub url: String,
    pub books: Arc<Books>,
    /// What answers there.
    current: Arc<Mutex<Router>>,
}

/// A pack with this id whose users may do with the bank what `access` (`toolAccess`) says.
pub fn pack(id: &str, access: &str) -> (String, String) {
    let text = format!(
        r#"
metadata: {{ id: {id}, displayName: Bank, description: Money, defaultLanguage: en }}
languages: {{ en: {{ systemPrompt: "You are a bank." }} }}
llm: {{ provider: openai, model: scripted, baseUrl: "${{MODEL_URL}}", apiKey: model-key-0123456789 }}
flows: {{ authentication: {{ required: false, rolesAttribute: roles }} }}
mcp:
  servers:
    - name: bank
      transport: streamable-http
      url: "${{BANK_URL}}"
      toolAccess: {access}
"#
    );
    (id.to_owned(), text)
}

/// The arguments of a rate that every bank knows.
pub fn pair() -> Value {
    json!({ "from": "EUR", "to": "USD" })
}

pub fn payment(amount: &str) -> Value {
    json!({ "from_account": "current", "to": "acme", "amount": amount, "currency": "EUR" })
}

/// A change of the bank's entry: transfers wait for somebody with this role.
pub fn approval_by(role: &str) -> Value {
    json!({ "toolAccess": { "approval": [{ "tools": ["send_money"], "approvers": [role] }] } })
}

/// A change of the bank's entry: transfers of an employee wait for the cfo.
pub fn cfo_approves() -> Value {
    json!({ "toolAccess": {
        "roles": {
            "guest": null,
            "employee": ["get_exchange_rate", "send_money"],
            "finance": null,
            "cfo": ["get_exchange_rate", "send_money"],
        },
        "approval": [{ "tools": ["send_money"], "approvers": ["cfo"] }],
    } })
}

/// A bank in this process; with a token, callers must bear it.
pub async fn start_bank(token: Option<&str>) -> Bank {
    start_slow_bank(token, Duration::ZERO).await
}

/// The same, with a while between an execution and its answer.
pub async fn start_slow_bank(token: Option<&str>, delay: Duration) -> Bank {
    let (books, router) = open(token, delay);
    let current = Arc::new(Mutex::new(router));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let answering = current.clone();
    let server = Router::new().fallback(move |request: Request| {
        let router = answering.lock().unwrap().clone();
        router.oneshot(request)
    });
    tokio::spawn(async move { axum::serve(listener, server).await });
    Bank {
        url,
        books,
        current,
    }
}

/// New books, and what answers from them.
fn open(token: Option<&str>, delay: Duration) -> (Arc<Books>, Router) {
    let books = Arc::new(Books::open(None).unwrap());
    let bank = tools::Bank::new(books.clone(), delay);
    let router = http::router(bank, books.clone(), token.map(str::to_owned), &[]);
    (books, router)
}

impl Bank {
    /// The same server for another test, with new books. It asks for no token.
    pub fn renewed(&self) -> Self {
        let (books, router) = open(None, Duration::ZERO);
        *self.current.lock().unwrap() = router;
        Self {
            books,
            ..self.clone()
        }
    }

    /// How often a tool was executed.
    pub fn executions(&self, tool: &str) -> usize {
        self.books
            .entries()
            .iter()
            .filter(|entry| entry.tool == tool)
            .count()
    }
}

/// A bank in a process of its own, killed with this value.
pub struct BankProcess {
    pub url: String,
    pub child: Child,
}

impl BankProcess {
    /// `arguments` as `examples/bank` takes them: `--token`, `--ledger`, `--delay-ms`, `--listen`.
    pub fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(bank_program())
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let url = line
            .trim()
            .strip_prefix("listening on ")
            .expect("the bank says where it listens")
            .to_owned();
        Self { url, child }
    }
}

impl Drop for BankProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a build needs of the environment, and what would make it another build than that of the tests.
const KEPT: [&str; 12] = [
    "PATH",
    "HOME",
    "CARGO_HOME",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_INCREMENTAL",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "RUSTUP_AUTO_INSTALL",
    "RUSTFLAGS",
    "DATABASE_URL",
    "SQLX_OFFLINE",
];

/// Where the example's program lies, built if need be: cargo builds examples for `cargo test`, though not for
/// `cargo test --test it`.
pub fn bank_program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let env = Environment::from_process();
        let mut build = Command::new(env!("CARGO"));
        build
            .args(["build", "--quiet", "--example", "bank"])
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        // What cargo adds for a test would make build scripts that look at it (ring's) run again, for a minute.
        build
            .env_clear()
            .envs(KEPT.iter().filter_map(|name| Some((name, env.get(name)?))));
        let built = build.status();
        assert!(built.unwrap().success(), "the bank does not compile");
        // target/debug/deps/it-… → target/debug/examples/bank
        let tests = std::env::current_exe().unwrap();
        tests
            .parent()
            .and_then(Path::parent)
            .unwrap()
            .join("examples/bank")
    });
    &PROGRAM
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmcp::{
        ClientLifecycleMode, ClientServiceExt, ServiceExt,
        model::{CallToolRequestParams, ProtocolVersion},
        transport::{StreamableHttpClientTransport, TokioChildProcess},
    };

    fn params(tool: &'static str, arguments: Value) -> CallToolRequestParams {
        let Value::Object(arguments) = arguments else {
            panic!("arguments are an object")
        };
        CallToolRequestParams::new(tool).with_arguments(arguments)
    }

    fn crypto() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }

    #[tokio::test]
    async fn the_bank_serves_both_protocol_eras() {
        crypto();
        let bank = start_bank(None).await;
        let modern = ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        };
        for mode in [ClientLifecycleMode::Initialize, modern] {
            let transport = StreamableHttpClientTransport::from_uri(bank.url.clone());
            let client = ().serve_with_lifecycle(transport, mode).await.unwrap();
            let tools = client.list_all_tools().await.unwrap();
            assert_eq!(tools.len(), 8);
            let call = params("get_exchange_rate", json!({ "from": "EUR", "to": "USD" }));
            let result = client.call_tool(call).await.unwrap();
            assert_eq!(
                result.structured_content,
                Some(json!({ "from": "EUR", "to": "USD", "rate": "1.085000" }))
            );
            client.cancel().await.unwrap();
        }
        assert_eq!(bank.executions("get_exchange_rate"), 2);
    }

    #[tokio::test]
    async fn the_bank_lets_nobody_in_without_its_token() {
        crypto();
        let bank = start_bank(Some("secret")).await;
        let transport = StreamableHttpClientTransport::from_uri(bank.url.clone());
        let error = ().serve(transport).await.err().unwrap();
        assert!(
            format!("{error:?}").contains("401") || format!("{error:?}").contains("AuthRequired"),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn the_banks_program_serves_over_standard_streams() {
        let mut command = tokio::process::Command::new(bank_program());
        command.arg("--stdio");
        let client = ().serve(TokioChildProcess::new(command).unwrap()).await.unwrap();
        let call = params(
            "send_money",
            json!({ "from_account": "current", "to": "nobody", "amount": "1", "currency": "EUR" }),
        );
        let result = client.call_tool(call).await.unwrap();
        assert_eq!(result.is_error, Some(true));
        client.cancel().await.unwrap();
    }

    #[tokio::test]
    async fn the_banks_program_says_where_it_listens() {
        crypto();
        let bank = BankProcess::start(&["--listen", "127.0.0.1:0"]);
        let client =
            ().serve(StreamableHttpClientTransport::from_uri(bank.url.clone()))
                .await
                .unwrap();
        assert_eq!(
            client
                .peer_info()
                .unwrap()
                .server_info
                .clone()
                .unwrap()
                .name,
            "bank"
        );
        client.cancel().await.unwrap();
    }
}
