//! What the performance figures come from: `cargo bench`, or `cargo bench -- turns` for one group of them.
//!
//! Each group runs in a process of its own, one after the other, so that none inherits another's memory or
//! tasks. What is slow is printed, never failed: whether a figure is good is for people to say, who know the
//! machine. Two things that are compared take turns within one run.

#![expect(
    clippy::unwrap_used,
    reason = "a measurement stops at the first surprise"
)]

mod approvals; // calls that wait for somebody's consent
mod calls; // a tool call through the gate and without it
mod keys; // sealing, opening, rotating
mod listeners; // people who wait for an answer
mod mcp_endpoint; // a tool call by a client of the protocol
mod personal; // users with credentials of their own
mod product; // the program as it is shipped, in a process of its own
mod protocols; // a turn without tools, through each protocol of frontends
mod rates; // a server with one tool
mod round; // many calls at once
mod start; // from nothing to ready
mod table; // what is printed
mod toolset; // deciding who sees which tool
mod turns; // a message answered

#[path = "../tests/it/support"]
#[expect(dead_code, unused_imports, reason = "the tests use the rest")]
mod support {
    pub mod bank;
    pub mod client;
    pub mod db;
    pub mod model;
    pub mod pooler;
    pub mod replica;
    pub mod shared;
    pub mod world;
}

use std::process::Command;

/// The groups, in the order of the table.
const GROUPS: [&str; 10] = [
    "toolset",
    "personal",
    "keys",
    "start",
    "calls",
    "mcp_endpoint",
    "turns",
    "protocols",
    "listeners",
    "approvals",
];
/// Says that the process is one of ours and measures one group.
const ALONE: &str = "--alone";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Cargo adds `--bench`.
    let named: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .filter(|word| !word.starts_with("--"))
        .collect();
    if arguments.iter().any(|word| word == ALONE) {
        return measure(named[0]);
    }
    if let Some(unknown) = named.iter().find(|name| !GROUPS.contains(name)) {
        panic!("there is no group {unknown:?}, only {GROUPS:?}");
    }
    table::head();
    for group in GROUPS
        .iter()
        .filter(|group| named.is_empty() || named.contains(group))
    {
        let status = Command::new(std::env::current_exe().unwrap())
            .args([ALONE, group])
            .status()
            .unwrap();
        assert!(status.success(), "{group} could not be measured");
    }
}

fn measure(group: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        match group {
            "toolset" => toolset::measure(),
            "personal" => personal::measure().await,
            "keys" => keys::measure().await,
            "start" => start::measure().await,
            "calls" => calls::measure().await,
            "mcp_endpoint" => mcp_endpoint::measure().await,
            "turns" => turns::measure().await,
            "protocols" => protocols::measure().await,
            "listeners" => listeners::measure().await,
            "approvals" => approvals::measure().await,
            other => unreachable!("{other} is not among the groups"),
        }
    });
}
