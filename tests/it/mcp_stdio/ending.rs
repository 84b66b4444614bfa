//! Nothing that was started for us outlives us, however we end.

use std::{fs, path::Path, process::Stdio};

use domain::{secret::Secret, server::Endpoint};
use mcp::{Key, Mcp, Options};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use tokio::process::Child;

use super::{Ledger, is_alive};
use crate::support::{
    program::chatelaine,
    servers::{
        args, folder, key, mcp, mcp_with, options, probe_stdio, request, soon, spec, until, venv,
    },
};

/// The process id of a grandchild that outlives everybody.
async fn grandchild(mcp: &Mcp, key: &Key) -> String {
    let spec = spec(probe_stdio(&[], &[]));
    let pid = mcp
        .call(key, &spec, request("spawn", &args(&json!({}))), options())
        .await
        .unwrap()
        .text;
    assert!(is_alive(&pid));
    pid
}

#[tokio::test]
async fn closing_ends_a_child_and_what_it_started() {
    let (mcp, key) = (mcp(), key());
    let pid = grandchild(&mcp, &key).await;
    mcp.close(&key).await;
    until(|| !is_alive(&pid)).await;
}

#[tokio::test]
async fn shutdown_ends_a_child_and_what_it_started() {
    let (mcp, key) = (mcp(), key());
    let pid = grandchild(&mcp, &key).await;
    soon(mcp.shutdown()).await;
    until(|| !is_alive(&pid)).await;
}

#[tokio::test]
async fn dropping_everything_ends_a_child_and_what_it_started() {
    let (mcp, key) = (mcp(), key());
    let pid = grandchild(&mcp, &key).await;
    drop(mcp);
    until(|| !is_alive(&pid)).await;
}

#[test]
fn the_end_of_the_runtime_ends_a_child_and_what_it_started() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mcp = mcp();
    let pid = runtime.block_on(grandchild(&mcp, &key()));
    drop(runtime);
    let ended = tokio::runtime::Runtime::new().unwrap();
    ended.block_on(until(|| !is_alive(&pid)));
    drop(mcp);
}

/// A program of ours that has started a child of the stubborn kind, with the ids of that child and of its child.
async fn waiting_for_a_stubborn_child(ledger: &Ledger) -> (Child, Vec<String>) {
    let pack = tempfile::tempdir().unwrap();
    write_pack(pack.path(), ledger);
    let mut command = chatelaine(&["smoke", pack.path().to_str().unwrap()]);
    let process = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until(|| pids(ledger).len() == 2).await;
    let pids = pids(ledger);
    assert!(pids.iter().all(|pid| is_alive(pid)));
    (process, pids)
}

/// The ids that a stubborn child has written down: its own, and that of its child.
fn pids(ledger: &Ledger) -> Vec<String> {
    let said = fs::read_to_string(ledger.path()).unwrap_or_default();
    let line = said.lines().find_map(|line| line.strip_prefix("pids "));
    line.map(|pids| pids.split(' ').map(str::to_owned).collect())
        .unwrap_or_default()
}

fn write_pack(folder: &Path, ledger: &Ledger) {
    let python = venv("python");
    let script = crate::support::servers::folder().join("probe.py");
    let yaml = format!(
        "metadata: {{ id: stubborn, displayName: S, description: S, defaultLanguage: en }}\n\
         languages: {{ en: {{ greetingMessage: Hi, systemPrompt: Hi }} }}\n\
         llm: {{ provider: none }}\n\
         flows: {{ authentication: {{ required: false }} }}\n\
         mcp:\n  servers:\n    - name: probe\n      transport: stdio\n      instances: shared\n      connect: start\n      command: {}\n      args: [{}, stubborn]\n      \
         env: {{ PROBE_LEDGER: {} }}\n      toolAccess: {{ default: public }}\n",
        python.display(),
        script.display(),
        ledger.path()
    );
    fs::write(folder.join("agent-pack.yaml"), yaml).unwrap();
}

fn send(signal: Signal, process: &Child) {
    kill(
        Pid::from_raw(process.id().expect("it runs").cast_signed()),
        signal,
    )
    .unwrap();
}

#[tokio::test]
async fn a_program_that_is_killed_takes_stubborn_children_and_theirs_along() {
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let ledger = Ledger::new();
        let (mut process, pids) = waiting_for_a_stubborn_child(&ledger).await;
        send(signal, &process);
        soon(process.wait()).await.unwrap();
        until(|| !pids.iter().any(|pid| is_alive(pid))).await;
    }
}

#[tokio::test]
async fn shutdown_ends_a_child_that_ignores_being_asked() {
    let ledger = Ledger::new();
    let mcp = mcp();
    let (key, spec) = (key(), spec(ledger.probe(&["stubborn"])));
    tokio::select! {
        found = mcp.discover(&key, &spec) => panic!("it does not speak, and yet: {found:?}"),
        () = until(|| pids(&ledger).len() == 2) => {}
    }
    soon(mcp.shutdown()).await;
    let pids = pids(&ledger);
    until(|| !pids.iter().any(|pid| is_alive(pid))).await;
}

/// What `npx` runs is its grandchild: a shell, and Node below it.
#[tokio::test]
async fn closing_ends_what_npx_has_started() {
    let endpoint = Endpoint::Stdio {
        command: "npx".to_owned(),
        args: ["--no-install", "mcp-server-everything", "stdio"]
            .map(Secret::new)
            .into(),
        env: std::iter::once((
            "npm_config_update_notifier".to_owned(),
            Secret::new("false"),
        ))
        .collect(),
        cwd: Some(folder()),
        encoding: None,
    };
    let mcp = mcp_with(Options {
        stdio_commands: vec!["npx".to_owned()],
        ..Options::default()
    });
    let (key, spec) = (key(), spec(endpoint));
    let outcome = mcp
        .call(
            &key,
            &spec,
            request("echo", &args(&json!({"message": "hello"}))),
            options(),
        )
        .await
        .unwrap();
    assert_eq!(outcome.text, "Echo: hello");
    let ours = || {
        let listed = std::process::Command::new("ps")
            .args(["-axww", "-o", "ppid=,pid=,command="])
            .output()
            .unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let me = std::process::id().to_string();
        let npx = listed
            .lines()
            .find(|line| line.split_whitespace().next() == Some(&me) && line.contains("npm exec"));
        npx.and_then(|line| line.split_whitespace().nth(1).map(str::to_owned))
    };
    let npx = ours().expect("npx runs");
    let family = family(&npx);
    assert!(family.len() > 1, "npx has children: {family:?}");
    mcp.close(&key).await;
    until(|| !family.iter().any(|pid| is_alive(pid))).await;
}

/// A process and its descendants.
fn family(of: &str) -> Vec<String> {
    let listed = std::process::Command::new("ps")
        .args(["-ax", "-o", "ppid=,pid="])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut found = vec![of.to_owned()];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next].clone();
        let children = listed
            .lines()
            .filter_map(|line| line.split_whitespace().collect::<Vec<_>>().try_into().ok());
        found.extend(
            children
                .filter(|[ppid, _]: &[&str; 2]| *ppid == parent)
                .map(|[_, pid]| pid.to_owned()),
        );
        next += 1;
    }
    found
}
