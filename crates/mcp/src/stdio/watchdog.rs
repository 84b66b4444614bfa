//! No child outlives this process, not even after `kill -9`: then nothing of ours runs any more, so a shell script
//! of a few lines (`watchdog.sh`) does it. It holds the other end of a pipe and knows the process groups of all
//! children; the kernel closes the pipe.
//!
//! A process that leaves its group of its own will is not found, nor is what a container runtime started.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Write},
    process::Stdio,
    sync::Mutex,
};

use tokio::process::Command;

use crate::interceptor::locked;

const SCRIPT: &str = include_str!("watchdog.sh");

/// One for all children of a pool. Started with the first of them; dropped, it ends those that are left.
#[derive(Default)]
pub(crate) struct Watchdog(Mutex<Watch>);

#[derive(Default)]
struct Watch {
    groups: BTreeSet<u32>,
    script: Option<File>,
}

impl Watchdog {
    /// A group that was just started.
    pub(super) fn watch(&self, group: u32) {
        let mut watch = locked(&self.0);
        watch.groups.insert(group);
        if watch.tell(&format!("+ {group}\n")).is_ok() {
            return;
        }
        // There is none yet, or somebody ended it. A new one has to know all.
        let all = watch
            .groups
            .iter()
            .fold(String::new(), |all, group| all + &format!("+ {group}\n"));
        watch.script = start()
            .inspect_err(|error| tracing::warn!(%error, "nothing ends stdio servers after a crash"))
            .ok();
        let _ = watch.tell(&all);
    }

    /// A group that was ended. Before its leader is reaped: then nobody else has its id yet.
    pub(super) fn forget(&self, group: u32) {
        let mut watch = locked(&self.0);
        if watch.groups.remove(&group) {
            let _ = watch.tell(&format!("- {group}\n"));
        }
    }
}

impl Watch {
    fn tell(&mut self, lines: &str) -> io::Result<()> {
        self.script
            .as_mut()
            .ok_or(io::ErrorKind::NotConnected)?
            .write_all(lines.as_bytes())
    }
}

/// The pipe to a new script. It has a group of its own, so that what ends ours at the terminal does not end it.
fn start() -> io::Result<File> {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", SCRIPT, "chatelaine-watchdog"])
        .env_clear()
        .current_dir("/")
        .process_group(0);
    let mut script = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let stdin = script.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    // The script itself is reaped by the runtime when it ends.
    Ok(stdin.into_owned_fd()?.into())
}
