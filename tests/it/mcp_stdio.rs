//! Servers as children: published ones, and one that misbehaves as told.

mod ending; // nothing outlives us
mod text; // encodings and line ends

use std::{collections::BTreeMap, fs, process::Command, time::Duration};

use domain::{
    config::{Config, Environment},
    policy::{EffectiveAccess, is_offered},
    secret::Secret,
    server::{Endpoint, Timeouts},
};
use mcp::{CallError, ConnectionState, Lifecycle, Mcp, McpErrorKind, Options};
use serde_json::{Value, json};

use crate::support::{
    has::Has,
    servers::{
        args, desk_stdio, everything_stdio, key, mcp, mcp_with, options, probe_stdio, request,
        soon, spec, spec_with, steps_of_a_long_call, time_stdio,
    },
};

/// What the probe did, a line each, in a file of its own.
struct Ledger(tempfile::TempDir);

impl Ledger {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> String {
        self.0.path().join("ledger").to_str().unwrap().to_owned()
    }

    fn count(&self, what: &str) -> usize {
        fs::read_to_string(self.path())
            .unwrap_or_default()
            .lines()
            .filter(|line| *line == what)
            .count()
    }

    fn probe(&self, behaviour: &[&str]) -> Endpoint {
        probe_stdio(behaviour, &[("PROBE_LEDGER", &self.path())])
    }
}

/// Whether a process is there and not a zombie.
fn is_alive(pid: &str) -> bool {
    let state = Command::new("ps")
        .args(["-o", "stat=", "-p", pid])
        .output()
        .unwrap()
        .stdout;
    let state = String::from_utf8(state).unwrap();
    !state.trim().is_empty() && !state.starts_with('Z')
}

#[tokio::test]
async fn a_published_server_of_the_older_era_answers() {
    let (mcp, key, spec) = (mcp(), key(), spec(everything_stdio()));
    let found = mcp.discover(&key, &spec).await.unwrap();
    assert_eq!(found.lifecycle, Lifecycle::Handshake);
    assert_eq!(steps_of_a_long_call(&mcp, &key, &spec).await, [1.0, 2.0]);
}

#[tokio::test]
async fn a_published_python_server_answers() {
    let (mcp, key, spec) = (mcp(), key(), spec(time_stdio()));
    let found = mcp.discover(&key, &spec).await.unwrap();
    assert!(
        found
            .tools
            .iter()
            .any(|tool| tool.name == "get_current_time")
    );
    let arguments = args(&json!({"timezone": "Europe/Zurich"}));
    let outcome = mcp
        .call(
            &key,
            &spec,
            request("get_current_time", &arguments),
            options(),
        )
        .await
        .unwrap();
    assert!(outcome.text.contains("Europe/Zurich"), "{}", outcome.text);
}

#[tokio::test]
async fn a_server_of_the_newer_era_answers() {
    let (mcp, key, spec) = (mcp(), key(), spec(desk_stdio()));
    assert_eq!(
        mcp.discover(&key, &spec).await.unwrap().lifecycle,
        Lifecycle::Stateless
    );
    let sum = mcp
        .call(
            &key,
            &spec,
            request("add", &args(&json!({"a": 2, "b": 3}))),
            options(),
        )
        .await
        .unwrap();
    assert_eq!(sum.text, "5");
}

#[tokio::test]
async fn the_older_handshake_follows_on_the_same_child() {
    let ledger = Ledger::new();
    let (mcp, key, spec) = (mcp(), key(), spec(ledger.probe(&["chatty"])));
    mcp.discover(&key, &spec).await.unwrap();
    assert_eq!((ledger.count("start"), ledger.count("initialize")), (1, 1));
    mcp.close(&key).await;
    mcp.discover(&key, &spec).await.unwrap();
    assert_eq!((ledger.count("start"), ledger.count("initialize")), (2, 2));
}

#[tokio::test]
async fn a_child_that_dies_of_the_newer_handshake_is_started_again() {
    let ledger = Ledger::new();
    let (mcp, key, spec) = (mcp(), key(), spec(ledger.probe(&["mortal"])));
    assert_eq!(
        mcp.discover(&key, &spec).await.unwrap().lifecycle,
        Lifecycle::Handshake
    );
    assert_eq!(ledger.count("start"), 2);
}

#[tokio::test]
async fn a_child_that_is_silent_to_the_newer_handshake_is_started_again() {
    let ledger = Ledger::new();
    let mcp = mcp_with(Options {
        stdio_start: Duration::from_secs(12),
        ..Options::default()
    });
    let (key, spec) = (key(), spec(ledger.probe(&["silent"])));
    assert_eq!(
        soon(mcp.discover(&key, &spec)).await.unwrap().lifecycle,
        Lifecycle::Handshake
    );
    assert_eq!(ledger.count("start"), 2);
    mcp.close(&key).await;
    mcp.discover(&key, &spec).await.unwrap();
    assert_eq!(ledger.count("start"), 3);
}

/// The names of a child's variables.
async fn variables_of_child(mcp: &Mcp) -> Vec<String> {
    let key = key();
    let spec = spec(probe_stdio(&[], &[("DECLARED", "yes")]));
    let outcome = mcp
        .call(
            &key,
            &spec,
            request("environment", &args(&json!({}))),
            options(),
        )
        .await
        .unwrap();
    let environment: BTreeMap<String, Value> = serde_json::from_str(&outcome.text).unwrap();
    // LC_CTYPE is Python's own doing.
    let names = environment.into_keys().filter(|name| name != "LC_CTYPE");
    names.collect()
}

#[tokio::test]
async fn a_child_sees_what_is_declared_and_nothing_else_of_ours() {
    assert_eq!(
        variables_of_child(&mcp()).await,
        ["DECLARED", "HOME", "PATH"]
    );
}

#[tokio::test]
async fn a_child_gets_the_variables_that_the_operator_passes_on_and_no_setting_of_ours() {
    // Cargo sets the first for every test, and the second is a setting whether or not it is set here.
    let passed_on = ["CARGO_MANIFEST_DIR", "DATABASE_URL", "NOT_SET_HERE"];
    let mcp = mcp_with(Options {
        stdio_env: passed_on.map(str::to_owned).to_vec(),
        ..Options::default()
    });
    assert_eq!(
        variables_of_child(&mcp).await,
        ["CARGO_MANIFEST_DIR", "DECLARED", "HOME", "PATH"]
    );
}

#[tokio::test]
async fn a_child_may_less_than_the_service() {
    let mcp = mcp_with(Options {
        stdio_launcher: Some(env!("CARGO_BIN_EXE_chatelaine").into()),
        ..Options::default()
    });
    let (key, spec) = (
        key(),
        spec(probe_stdio(&["--help", "-x"], &[("DECLARED", "yes")])),
    );
    let call = async |tool| {
        let outcome = mcp
            .call(&key, &spec, request(tool, &args(&json!({}))), options())
            .await;
        serde_json::from_str::<Value>(&outcome.unwrap().text).unwrap()
    };
    let limits = call("limits").await;
    limits.has(json!({ "RLIMIT_CORE": 0, "NoNewPrivs": "1" }));
    for (name, most) in [("RLIMIT_NOFILE", 4096), ("RLIMIT_DATA", 4_294_967_296_i64)] {
        let limit = limits[name].as_i64().unwrap();
        assert!((1..=most).contains(&limit), "{name}: {limits}");
    }
    let environment = call("environment").await;
    assert_eq!(environment["DECLARED"], "yes");
    let missing = Endpoint::Stdio {
        command: "/nowhere/server".to_owned(),
        args: vec![],
        env: BTreeMap::new(),
        cwd: None,
        encoding: None,
    };
    let error = mcp.discover(&self::key(), &self::spec(missing)).await;
    let error = error.unwrap_err();
    let words = "command \"/nowhere/server\" cannot be started";
    assert!(error.message.contains(words), "{error}");
}

#[tokio::test]
async fn a_pack_says_how_long_a_child_may_take_to_start() {
    let ledger = Ledger::new();
    let timeouts = Timeouts {
        start: Some(Duration::from_secs(3)),
        ..Timeouts::default()
    };
    let (mcp, key) = (mcp(), key());
    let spec = spec_with(ledger.probe(&["stubborn"]), timeouts);
    let error = soon(mcp.discover(&key, &spec)).await.unwrap_err();
    assert!(
        error.message.contains("did not shake hands within 3 s"),
        "{error}"
    );
}

#[tokio::test]
async fn arguments_reach_a_child_without_a_shell() {
    let (mcp, key, spec) = (
        mcp(),
        key(),
        spec(probe_stdio(&["$HOME", "; exit 1", "`date`"], &[])),
    );
    mcp.discover(&key, &spec).await.unwrap();
}

#[tokio::test]
async fn a_command_must_be_absolute_or_listed() {
    for command in ["python3", "./python3", "bin/../python3", ""] {
        let endpoint = Endpoint::Stdio {
            command: command.to_owned(),
            args: vec![],
            env: BTreeMap::new(),
            cwd: None,
            encoding: None,
        };
        let error = mcp().discover(&key(), &spec(endpoint)).await.unwrap_err();
        assert_eq!(error.kind, McpErrorKind::Misconfigured);
        assert!(
            error.message.contains("CHATELAINE_STDIO_COMMANDS"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_command_that_is_not_there_is_named() {
    let command = "/nowhere/server".to_owned();
    let endpoint = Endpoint::Stdio {
        command,
        args: vec![],
        env: BTreeMap::new(),
        cwd: None,
        encoding: None,
    };
    let error = mcp().discover(&key(), &spec(endpoint)).await.unwrap_err();
    assert_eq!(error.kind, McpErrorKind::Unreachable);
    assert!(error.message.contains("/nowhere/server"), "{error}");
}

#[tokio::test]
async fn a_child_works_in_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let Endpoint::Stdio {
        command,
        args: arguments,
        env,
        ..
    } = probe_stdio(&[], &[("PROBE_LEDGER", "ledger")])
    else {
        unreachable!("a probe is a child")
    };
    let endpoint = Endpoint::Stdio {
        command,
        args: arguments,
        env,
        cwd: Some(folder.path().to_owned()),
        encoding: None,
    };
    mcp().discover(&key(), &spec(endpoint)).await.unwrap();
    assert!(folder.path().join("ledger").exists());
}

#[tokio::test]
async fn the_last_words_of_a_child_that_does_not_start_are_told_without_its_secrets() {
    let spec = spec(probe_stdio(
        &["doomed"],
        &[("PROBE_SECRET", "hunter2-hunter2")],
    ));
    let error = mcp().discover(&key(), &spec).await.unwrap_err();
    assert_eq!(error.kind, McpErrorKind::Unreachable, "{error}");
    let words = format!(
        "early 6 / early 7 / early 8 / error: cannot start with key [secret] / {}… / Run 'probe --help' for more",
        "x".repeat(300)
    );
    assert!(error.message.contains(&words), "{error}");
    assert!(!error.message.contains("early 5"), "{error}");
}

#[tokio::test]
async fn a_child_that_dies_of_a_call_is_not_asked_again_and_the_next_call_starts_a_new_one() {
    let ledger = Ledger::new();
    let (mcp, key, spec) = (mcp(), key(), spec(ledger.probe(&[])));
    let error = mcp
        .call(&key, &spec, request("die", &args(&json!({}))), options())
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::OutcomeUnknown(_)), "{error:?}");
    assert_eq!(ledger.count("die"), 1);
    mcp.call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap();
    assert_eq!((ledger.count("die"), ledger.count("start")), (1, 2));
}

#[tokio::test]
async fn an_endless_line_ends_the_connection() {
    let ledger = Ledger::new();
    let (mcp, key, spec) = (mcp(), key(), spec(ledger.probe(&[])));
    let error = soon(mcp.call(&key, &spec, request("flood", &args(&json!({}))), options()))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, CallError::OutcomeUnknown(why) if why.contains("a line over 8388608 bytes")),
        "{error:?}"
    );
    assert_eq!(ledger.count("flood"), 1);
    mcp.call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_child_that_hangs_costs_its_own_time_and_is_replaced() {
    let ledger = Ledger::new();
    let mcp = mcp_with(Options {
        first_pause: Duration::from_millis(1),
        ..Options::default()
    });
    let timeouts = Timeouts {
        connect: Duration::from_millis(300),
        request: Duration::from_secs(2),
        ..Timeouts::default()
    };
    let (key, spec) = (key(), spec_with(ledger.probe(&[]), timeouts));
    mcp.discover(&key, &spec).await.unwrap();
    let hung = mcp
        .call(&key, &spec, request("sleep", &args(&json!({}))), options())
        .await
        .unwrap_err();
    assert_eq!(hung, CallError::TimedOut(timeouts.request));
    let doubted = mcp
        .call(&key, &spec, request("echo", &args(&json!({}))), options())
        .await
        .unwrap_err();
    assert!(matches!(doubted, CallError::NotSent(_)), "{doubted:?}");
    assert!(matches!(mcp.state(&key), ConnectionState::Down { .. }));
    let back = async {
        while mcp
            .call(&key, &spec, request("echo", &args(&json!({}))), options())
            .await
            .is_err()
        {}
    };
    soon(back).await;
    assert_eq!((ledger.count("sleep"), ledger.count("start")), (1, 2));
}

#[tokio::test]
async fn secrets_of_a_server_do_not_show_in_its_debug_text() {
    let shown = format!("{:?}", probe_stdio(&[], &[("TOKEN", "hunter2")]));
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(format!("{:?}", Secret::new("hunter2")) == "[secret]");
}

#[tokio::test]
async fn a_child_that_dies_again_and_again_is_started_after_pauses_only() {
    let ledger = Ledger::new();
    let mcp = mcp_with(Options {
        first_pause: Duration::from_secs(30),
        ..Options::default()
    });
    let (key, spec) = (key(), spec(ledger.probe(&["frail"])));
    // Each discovery tries twice, since listing changes nothing.
    mcp.discover(&key, &spec).await.unwrap_err();
    let error = mcp.discover(&key, &spec).await.unwrap_err();
    assert_eq!(error.kind, McpErrorKind::Unreachable);
    assert!(error.message.starts_with("the server ended "), "{error}");
    assert!(
        error
            .retry_in
            .is_some_and(|wait| wait > Duration::from_secs(10)),
        "{error:?}"
    );
    let starts = ledger.count("start");
    mcp.discover(&key, &spec).await.unwrap_err();
    assert_eq!(ledger.count("start"), starts, "it is left alone");
}

#[tokio::test]
async fn a_server_whose_tools_are_not_to_be_loaded_is_connected_to_and_not_asked_for_them() {
    let (mcp, key) = (mcp(), key());
    let mut spec = (*spec(probe_stdio(&["frail"], &[]))).clone();
    spec.load_tools = false;
    let admin = EffectiveAccess {
        admin: true,
        ..EffectiveAccess::default()
    };
    assert!(
        !is_offered(&spec, &admin, "echo"),
        "not even one that was known before"
    );
    let found = mcp
        .discover(&key, &std::sync::Arc::new(spec))
        .await
        .unwrap();
    assert!(found.tools.is_empty() && found.dropped.is_empty());
    assert!(matches!(mcp.state(&key), ConnectionState::Ready { .. }));
}

#[tokio::test]
async fn npx_and_uvx_may_be_named_unless_the_operator_says_otherwise() {
    let config = Config::from_environment(&Environment::default()).unwrap();
    let allowed = |name: &str| config.stdio_commands.iter().any(|command| command == name);
    assert!(allowed("npx") && allowed("uvx") && allowed("docker"));
    assert!(!allowed("sh") && !allowed("bash"));
    let env = Environment::default().with("CHATELAINE_STDIO_COMMANDS", "uvx");
    assert_eq!(
        Config::from_environment(&env).unwrap().stdio_commands,
        ["uvx"]
    );
}

#[tokio::test]
async fn an_error_without_an_id_answers_the_one_request_that_waits() {
    let (mcp, key) = (mcp(), key());
    let timeouts = Timeouts {
        request: Duration::from_secs(2),
        ..Timeouts::default()
    };
    let spec = spec_with(probe_stdio(&[], &[]), timeouts);
    mcp.discover(&key, &spec).await.unwrap();
    let refuse = async |code: i64| {
        let arguments = args(&json!({"code": code}));
        mcp.call(&key, &spec, request("refuse", &arguments), options())
            .await
            .unwrap_err()
    };
    for code in [-32700, -32603] {
        let refused = CallError::Refused {
            code: Some(code),
            message: "not understood".to_owned(),
            retry_after: None,
        };
        assert_eq!(refuse(code).await, refused);
    }
    // So do servers answer notifications that they do not know.
    assert_eq!(refuse(-32601).await, CallError::TimedOut(timeouts.request));
    // The child may still be at work on that one, and the error may be about it.
    assert_eq!(refuse(-32700).await, CallError::TimedOut(timeouts.request));
}
