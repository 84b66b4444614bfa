//! The real program in a process of its own, as talkative as it is asked to be.

use std::{
    ffi::OsString,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use domain::config::{Config, Environment};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    sync::watch,
};

use super::{
    db::TestDb,
    world::{Stopped, TIME_LIMIT},
};

/// `chatelaine serve`. Killed with this value.
pub struct Program {
    /// `http://127.0.0.1:…`
    pub url: String,
    process: Child,
    said: Arc<Mutex<String>>,
}

/// The program that tests start: `CHATELAINE_TEST_PROGRAM` names another build of it, such as the release.
pub fn path() -> OsString {
    let env = Environment::from_process();
    let other = env.get("CHATELAINE_TEST_PROGRAM");
    other.unwrap_or(env!("CARGO_BIN_EXE_chatelaine")).into()
}

/// A command line of the product. Nothing of our environment but what a process cannot do without.
pub fn chatelaine(arguments: &[&str]) -> Command {
    let env = Environment::from_process();
    let mut command = Command::new(path());
    command.args(arguments).env_clear().kill_on_drop(true);
    command.envs(
        ["PATH", "HOME"]
            .iter()
            .filter_map(|name| Some((name, env.get(name)?))),
    );
    command
}

/// The command that serves a world's packs and users with its database.
pub fn serve(config: &Config, db: &TestDb, key: &str) -> Command {
    let mut command = chatelaine(&["serve"]);
    command
        .env("CHATELAINE_LISTEN", "127.0.0.1:0")
        .env("CHATELAINE_DATA", &config.data)
        .env("CHATELAINE_PACKS", &config.packs)
        .env("CHATELAINE_EGRESS_ALLOW", config.egress_allow.join(","))
        .env(
            "CHATELAINE_TENANT_EGRESS_ALLOW",
            config.tenant_egress_allow.join(","),
        )
        .env("CHATELAINE_STDIO_COMMANDS", config.stdio_commands.join(","))
        .env("CHATELAINE_MODEL_TITLES", "off")
        .env("CHATELAINE_DRAIN_SECONDS", "1")
        .env("DATABASE_URL", db.url.expose())
        .env("MCP_CONFIG_ENCRYPTION_KEY", key);
    command
}

impl Program {
    /// Serves what a world has left: its database, its packs and its users. `variables` are those its packs name.
    pub async fn serve(world: &Stopped, key: &str, variables: &[&str]) -> Self {
        let mut command = serve(&world.config, &world.db, key);
        command.env("CHATELAINE_LOG", "trace").envs(
            variables
                .iter()
                .filter_map(|name| Some((name, world.env.get(name)?))),
        );
        Self::start(command).await
    }

    /// Starts a command that serves.
    pub async fn start(mut command: Command) -> Self {
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::<Mutex<String>>::default();
        let (found, mut address) = watch::channel(None);
        let found = Arc::new(found);
        tokio::spawn(listen(
            process.stdout.take().unwrap(),
            said.clone(),
            found.clone(),
        ));
        tokio::spawn(listen(process.stderr.take().unwrap(), said.clone(), found));
        let address = tokio::time::timeout(TIME_LIMIT, address.wait_for(Option::is_some)).await;
        let address =
            address.unwrap_or_else(|_| panic!("it does not serve: {}", said.lock().unwrap()));
        let url = format!("http://{}", address.unwrap().as_deref().unwrap());
        Self { url, process, said }
    }

    /// Everything it has said so far, to anybody.
    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Mebibytes of memory that it has.
    pub fn memory(&self) -> u64 {
        let pid = self.process.id().expect("it runs").to_string();
        let listed = std::process::Command::new("ps")
            .args(["-o", "rss=", "-p", &pid])
            .output();
        let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
        listed.trim().parse::<u64>().unwrap() / 1024
    }

    /// The command lines of its descendants, one a line.
    pub async fn children(&self) -> String {
        let listed = Command::new("ps")
            .args(["-axww", "-o", "pid=,ppid=,command="])
            .output()
            .await
            .unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let rows: Vec<(u32, u32, &str)> = listed.lines().filter_map(row).collect();
        let mut family = vec![self.process.id().expect("it runs")];
        let mut lines = String::new();
        while let Some(parent) = family.pop() {
            for (pid, _, command) in rows.iter().filter(|(_, of, _)| *of == parent) {
                family.push(*pid);
                lines.push_str(command);
                lines.push('\n');
            }
        }
        lines
    }

    /// Asks it to stop.
    pub fn terminate(&self) {
        let pid = self.process.id().expect("it runs").cast_signed();
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGTERM,
        )
        .unwrap();
    }

    /// Asks it to stop, and gives everything it has said until its end.
    pub async fn stop(self) -> String {
        self.terminate();
        self.end().await
    }

    /// Waits for its end, and gives everything it has said.
    pub async fn end(mut self) -> String {
        tokio::time::timeout(TIME_LIMIT, self.process.wait())
            .await
            .expect("it does not stop")
            .unwrap();
        // The readers are at most a moment behind.
        tokio::time::timeout(TIME_LIMIT, async {
            while Arc::strong_count(&self.said) > 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("its output ends with it");
        self.said()
    }
}

/// `pid ppid command…`
fn row(line: &str) -> Option<(u32, u32, &str)> {
    let (pid, rest) = line.trim_start().split_once(' ')?;
    let (parent, command) = rest.trim_start().split_once(' ')?;
    Some((pid.parse().ok()?, parent.parse().ok()?, command))
}

/// Keeps what is said, and looks for the address.
async fn listen(
    output: impl AsyncRead + Unpin,
    said: Arc<Mutex<String>>,
    found: Arc<watch::Sender<Option<String>>>,
) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some((_, address)) = line.split_once("listening address=") {
            found.send_replace(Some(address.trim().to_owned()));
        }
        let mut said = said.lock().unwrap();
        said.push_str(&line);
        said.push('\n');
    }
}
