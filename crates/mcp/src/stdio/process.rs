//! Starts a child process, and ends its whole process group: when the child is stopped, when its handle is dropped, and by
//! a watchdog when this process is killed.
//!
//! A process that leaves its group, and a container that a runtime started, are not found.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Write},
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use encoding_rs::{Encoding, UTF_8};
use process_wrap::tokio::{ChildWrapper, CommandWrap, KillOnDrop, ProcessGroup};
use tokio::{
    process::{ChildStderr, ChildStdin, ChildStdout, Command},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{Options, error::Failure, lock};
use domain::{
    config::{Environment, is_own},
    encoding,
    ids::ServerId,
    secret::Secret,
    server::Endpoint,
};

/// How long a child may take to end after its input was closed, and again after `SIGTERM`.
const GRACE: Duration = Duration::from_millis(500);
const SIGTERM: i32 = 15;
/// The shell script that ends process groups after a crash.
const WATCHDOG_SCRIPT: &str = include_str!("watchdog.sh");
/// The variables of our environment that every child gets, to find programs and a cache.
const INHERITED: [&str; 2] = ["PATH", "HOME"];

/// The first argument of the launcher ([`Options::stdio_launcher`]).
pub const LAUNCH: &str = "launch-child";

/// A command that may be started, with its arguments and environment.
pub(crate) struct Launch {
    pub(super) server: ServerId,
    pub(super) secrets: Vec<Secret>,
    pub(super) encoding: &'static Encoding,
    command: String,
    args: Vec<Secret>,
    env: BTreeMap<String, Secret>,
    cwd: Option<PathBuf>,
    launcher: Option<PathBuf>,
}

/// The standard streams of a child.
pub(super) struct Streams {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

impl Launch {
    /// The command of a stdio endpoint. It must be an absolute path or a name that the operator allows.
    pub(crate) fn new(
        server: &ServerId,
        endpoint: &Endpoint,
        options: &Options,
    ) -> Result<Self, Failure> {
        let allowed = &options.stdio_commands;
        let Endpoint::Stdio {
            command,
            args,
            env,
            cwd,
            encoding,
        } = endpoint
        else {
            return Err(Failure::Misconfigured(
                "the server is not a command".to_owned(),
            ));
        };
        if !command.starts_with('/') && (command.contains('/') || !allowed.contains(command)) {
            return Err(Failure::Misconfigured(format!(
                "command {command:?} is neither an absolute path nor in CHATELAINE_STDIO_COMMANDS ({})",
                allowed.join(", ")
            )));
        }
        let encoding = encoding
            .as_deref()
            .map_or(Ok(UTF_8), encoding::parse_label)
            .map_err(Failure::Misconfigured)?;
        let ours = Environment::from_process().without_keys();
        let passed_on = options.stdio_env.iter().map(String::as_str);
        let inherited = INHERITED
            .into_iter()
            .chain(passed_on.filter(|name| !is_own(name)))
            .filter_map(|name| Some((name.to_owned(), Secret::new(ours.get(name)?))));
        let mut all: BTreeMap<String, Secret> = inherited.collect();
        all.extend(
            env.iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        Ok(Self {
            server: server.clone(),
            secrets: secret_parts(args).chain(env.values().cloned()).collect(),
            encoding,
            command: command.clone(),
            args: args.clone(),
            env: all,
            cwd: cwd.clone(),
            launcher: options.stdio_launcher.clone(),
        })
    }

    /// Starts the process as the leader of a new group.
    pub(super) fn spawn(&self, watchdog: &Arc<Watchdog>) -> Result<(Group, Streams), Failure> {
        let mut command = match &self.launcher {
            Some(launcher) => {
                let mut command = Command::new(launcher);
                command.args([LAUNCH, "--", &self.command]);
                command
            }
            None => Command::new(&self.command),
        };
        command
            .args(self.args.iter().map(Secret::expose))
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value.expose())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        let mut command = CommandWrap::from(command);
        command.wrap(ProcessGroup::leader()).wrap(KillOnDrop);
        let mut child = command.spawn().map_err(|error| {
            Failure::NotSent(format!(
                "command {:?} cannot be started: {error}",
                self.command
            ))
        })?;
        let streams = (
            child.stdin().take(),
            child.stdout().take(),
            child.stderr().take(),
        );
        let (Some(stdin), Some(stdout), Some(stderr)) = streams else {
            return Err(Failure::NotSent(
                "the child has no standard streams".to_owned(),
            ));
        };
        let id = child.id();
        if let Some(id) = id {
            watchdog.watch(id);
        }
        Ok((
            Group {
                child,
                id,
                watchdog: watchdog.clone(),
            },
            Streams {
                stdin,
                stdout,
                stderr,
            },
        ))
    }
}

/// The arguments that may be secrets, and so are hidden in logs. Options, packages and paths are not, nor is the first
/// argument that is no option, which names the program (`-m NAME`, `npx -y NAME`).
fn secret_parts(args: &[Secret]) -> impl Iterator<Item = Secret> {
    let first = args.iter().position(|arg| !arg.expose().starts_with('-'));
    args.iter().enumerate().filter_map(move |(at, arg)| {
        let text = arg.expose();
        match text.split_once('=') {
            Some((_, value)) => Some(Secret::new(value)),
            None if Some(at) == first || text.starts_with(['-', '@', '/', '.']) => None,
            None => Some(arg.clone()),
        }
    })
}

/// The process group of a child. Dropping it kills the group.
pub(super) struct Group {
    child: Box<dyn ChildWrapper>,
    /// The process id of the leader, which is also the id of the group.
    id: Option<u32>,
    watchdog: Arc<Watchdog>,
}

impl Group {
    /// Waits a moment for the child to end, then kills the group, since it may have processes that outlived the child. The
    /// child is reaped last: until then, no other process can get the id of the group.
    pub(super) async fn stop(mut self, ended: &CancellationToken) {
        if timeout(GRACE, ended.cancelled()).await.is_err() {
            let _ = self.child.signal(SIGTERM);
            let _ = timeout(GRACE, ended.cancelled()).await;
        }
        self.kill();
        let _ = timeout(GRACE, self.child.wait()).await;
    }

    fn kill(&mut self) {
        // Fails when the group has ended already.
        let _ = self.child.start_kill();
        if let Some(id) = self.id.take() {
            self.watchdog.forget(id);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Ends the process groups of all children of a pool when this process is gone, even after `kill -9`. It is a shell script
/// that reads from a pipe; the kernel closes the pipe when this process ends. It starts with the first child.
#[derive(Default)]
pub(crate) struct Watchdog(Mutex<WatchdogState>);

#[derive(Default)]
struct WatchdogState {
    groups: BTreeSet<u32>,
    script: Option<File>,
}

impl Watchdog {
    /// Adds a group that was just started.
    fn watch(&self, group: u32) {
        let mut watch = lock(&self.0);
        watch.groups.insert(group);
        if watch.send(&format!("+ {group}\n")).is_ok() {
            return;
        }
        // The script does not run yet, or it was killed. A new one needs all groups.
        let all = watch
            .groups
            .iter()
            .fold(String::new(), |all, group| all + &format!("+ {group}\n"));
        watch.script = start_script()
            .inspect_err(|error| tracing::warn!(%error, "nothing ends stdio servers after a crash"))
            .ok();
        let _ = watch.send(&all);
    }

    /// Removes a group that was ended. Call this before the leader is reaped, while no other process can have its id.
    fn forget(&self, group: u32) {
        let mut watch = lock(&self.0);
        if watch.groups.remove(&group) {
            let _ = watch.send(&format!("- {group}\n"));
        }
    }
}

impl WatchdogState {
    /// Writes lines to the script.
    fn send(&mut self, lines: &str) -> io::Result<()> {
        self.script
            .as_mut()
            .ok_or(io::ErrorKind::NotConnected)?
            .write_all(lines.as_bytes())
    }
}

/// Starts the script and returns the pipe to it. The script has its own process group, so that a signal from the terminal
/// does not end it.
fn start_script() -> io::Result<File> {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", WATCHDOG_SCRIPT, "chatelaine-watchdog"])
        .env_clear()
        .current_dir("/")
        .process_group(0);
    let mut script = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let stdin = script.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    // The runtime reaps the script when it ends.
    Ok(stdin.into_owned_fd()?.into())
}
