//! Starting a child and ending all of its group.

use std::{collections::BTreeMap, path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use encoding_rs::{Encoding, UTF_8};
use process_wrap::tokio::{ChildWrapper, CommandWrap, KillOnDrop, ProcessGroup};
use tokio::{
    process::{ChildStderr, ChildStdin, ChildStdout, Command},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::Watchdog;
use crate::{Options, error::Failure};
use domain::{
    config::{Environment, is_own},
    encoding,
    ids::ServerId,
    secret::Secret,
    server::Endpoint,
};

/// How long a child may take to end by itself, once without input and once after `SIGTERM`.
const GRACE: Duration = Duration::from_millis(500);
const SIGTERM: i32 = 15;
/// What a child always has of our environment: enough to find programs and a cache.
const INHERITED: [&str; 2] = ["PATH", "HOME"];

/// The first argument of a launcher.
pub const LAUNCH: &str = "launch-child";

/// What to start, judged.
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

pub(super) struct Streams {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

impl Launch {
    /// The command of a stdio endpoint, if it may be run: an absolute path, or a name the operator lists.
    pub(crate) fn of(
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
        let ours = Environment::from_process();
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

/// What of the arguments may be a secret. Options, packages and paths are not, nor is the first word, which names
/// what is run (`-m NAME`, `npx -y NAME`): an error message that hides them helps nobody.
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

/// A process group of ours. Dropped, it is killed.
pub(super) struct Group {
    child: Box<dyn ChildWrapper>,
    /// The leader's id, which is the group's.
    id: Option<u32>,
    watchdog: Arc<Watchdog>,
}

impl Group {
    /// Gives the child, whose input is closed, a moment to end; then kills the group, which may hold
    /// processes that outlived the child. The child is not reaped before: its id is the group's.
    pub(super) async fn stop(mut self, ended: &CancellationToken) {
        if timeout(GRACE, ended.cancelled()).await.is_err() {
            let _ = self.child.signal(SIGTERM);
            let _ = timeout(GRACE, ended.cancelled()).await;
        }
        self.kill();
        let _ = timeout(GRACE, self.child.wait()).await;
    }

    fn kill(&mut self) {
        // Fails when everything is gone already.
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
