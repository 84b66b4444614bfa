//! A Postgres server that this program starts itself, so that the demo and the tests need only its binaries.
//!
//! The server listens on a Unix socket only, in a folder that only its owner may enter, and accepts only the user of
//! the system that started it (`peer`). It lives exactly as long as the process that started it: a shell script of a
//! few lines (`watchdog.sh`) holds the other end of a pipe, and stops the server when the kernel closes that pipe, even
//! after `kill -9`.
//!
//! A folder has one server. A second process that asks for the same folder joins the running server, which still ends
//! with the first process. A server that a crash left running is stopped and started anew. The role of this program
//! owns the database and is no superuser, so that row-level security applies to it.

pub mod binaries;
pub mod server_folder;

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use sqlx::{Connection, PgConnection};

use self::{
    binaries::Binaries,
    server_folder::{ServerFolder, version_of},
};
use domain::{clock, config::Environment, secret::Secret};

/// How long a start may take; longer than the recovery of a big database after a crash of the machine.
const START_TIMEOUT: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(25);
const ROLE: &str = "chatelaine";
const SUPERUSER: &str = "postgres";

/// A running server. Dropping it stops the server too, without waiting for that.
#[derive(Debug)]
pub struct PrivatePostgres {
    url: Secret,
    /// Absent when another process owns the server.
    own: Option<OwnedServer>,
}

#[derive(Debug)]
struct OwnedServer {
    /// The script; its standard input is the pipe that keeps the server alive.
    watchdog: Child,
    /// Tells other processes that a running process owns this folder's server.
    _lock: File,
}

impl PrivatePostgres {
    /// Starts the server whose data lies in `folder` (made if it is not there), or joins the one that another
    /// process runs there. The error says what is missing and how to get it.
    pub async fn start(folder: &Path, env: &Environment) -> anyhow::Result<Self> {
        let server_folder = ServerFolder::at(folder)?;
        let deadline = clock::instant() + START_TIMEOUT;
        let lock = server_folder.lock_file()?;
        while let Err(error) = lock.try_lock() {
            if let fs::TryLockError::Error(error) = error {
                return Err(error).context("cannot lock the folder of the private Postgres");
            }
            if let Some(joined) = Self::join(&server_folder).await {
                return Ok(joined);
            }
            if clock::instant() > deadline {
                bail!(
                    "another process starts the Postgres in {} and does not get ready",
                    server_folder.folder.display()
                );
            }
            tokio::time::sleep(POLL).await;
        }
        Self::run(&server_folder, env, lock).await
    }

    /// Whether [`PrivatePostgres::start`] would find the programs of Postgres. Starts and makes nothing.
    pub fn check_programs(folder: &Path, env: &Environment) -> anyhow::Result<()> {
        binaries::find(env.get("PATH"), version_of(folder)?).map(drop)
    }

    /// A new, empty server for tests: fast rather than safe, and removed when it stops.
    pub async fn throwaway(env: &Environment) -> anyhow::Result<Self> {
        let server_folder = ServerFolder::throwaway()?;
        let lock = server_folder.lock_file()?;
        Self::run(&server_folder, env, lock).await
    }

    /// The address of the database: `postgres://…`.
    pub fn url(&self) -> &Secret {
        &self.url
    }

    /// Whether another process owns the server, which then ends with that process.
    pub fn is_joined(&self) -> bool {
        self.own.is_none()
    }

    /// Stops the server, if this process owns it, and waits until it has stopped.
    pub async fn stop(self) -> anyhow::Result<()> {
        let Some(mut own) = self.own else {
            return Ok(());
        };
        drop(own.watchdog.stdin.take());
        tokio::task::spawn_blocking(move || own.watchdog.wait()).await??;
        Ok(())
    }

    /// Joins the server that another process runs in this folder; `None` while it does not answer.
    async fn join(server_folder: &ServerFolder) -> Option<Self> {
        let socket = read_pid_file(server_folder)?.socket;
        let url = url(ROLE, ROLE, &socket);
        PgConnection::connect(url.expose())
            .await
            .ok()?
            .close()
            .await
            .ok()?;
        tracing::info!(folder = %server_folder.folder.display(), "joined the Postgres of another process; it ends with that one");
        Some(Self { url, own: None })
    }

    async fn run(
        server_folder: &ServerFolder,
        env: &Environment,
        lock: File,
    ) -> anyhow::Result<Self> {
        let binaries = binaries::find(env.get("PATH"), server_folder.version()?)?;
        stop_leftover(server_folder, &binaries)?;
        if server_folder.version()?.is_none() {
            create_data_folder(server_folder, &binaries)?;
        }
        let socket = server_folder.make_socket_folder()?;
        let log = server_folder.log_file()?;
        let log_start = log.metadata()?.len();
        let mut watchdog = start_watchdog(
            server_folder,
            &command_line(server_folder, &binaries, &socket)?,
            &socket,
            log,
        )?;
        match prepare(&mut watchdog, &socket).await {
            Ok(()) => Ok(Self {
                url: url(ROLE, ROLE, &socket),
                own: Some(OwnedServer {
                    watchdog,
                    _lock: lock,
                }),
            }),
            Err(error) => {
                let last_lines = tail(&server_folder.folder.join("log"), log_start);
                Err(error.context(format!(
                    "the private Postgres in {} did not start: {last_lines}",
                    server_folder.folder.display()
                )))
            }
        }
    }
}

/// The content of `postmaster.pid`, which a running server writes.
struct PidFile {
    pid: u32,
    socket: PathBuf,
}

fn read_pid_file(server_folder: &ServerFolder) -> Option<PidFile> {
    let text = fs::read_to_string(server_folder.data().join("postmaster.pid")).ok()?;
    let mut lines = text.lines();
    Some(PidFile {
        pid: lines.next()?.parse().ok()?,
        socket: lines.nth(3)?.into(),
    })
}

/// Cleans up after a crash. A server whose owner is gone is stopped. A pid file that names no server of this
/// folder is removed, because its number may now belong to another program. The caller holds the lock.
fn stop_leftover(server_folder: &ServerFolder, binaries: &Binaries) -> anyhow::Result<()> {
    let file = server_folder.data().join("postmaster.pid");
    let is_alive = match read_pid_file(server_folder) {
        Some(server) => serves(server.pid, &server_folder.data()),
        None if file.exists() => false,
        None => return Ok(()),
    };
    if !is_alive {
        tracing::info!("removing what a crash left of the private Postgres");
        return fs::remove_file(&file).or_else(|error| {
            // The server was just stopping and has removed it.
            if error.kind() == std::io::ErrorKind::NotFound {
                Ok(())
            } else {
                Err(error.into())
            }
        });
    }
    tracing::info!("stopping a private Postgres whose starter has ended");
    let mut command = server_folder.command(binaries.program("pg_ctl"));
    command
        .args(["stop", "--wait", "--mode=fast", "--silent", "-D"])
        .arg(server_folder.data());
    match run_to_end(command) {
        // The server may have stopped by itself in the meantime.
        Err(error) if read_pid_file(server_folder).is_some() => {
            Err(error.context("cannot stop the Postgres that a crash left"))
        }
        _ => Ok(()),
    }
}

/// Whether process `pid` is a server of this data folder, judging by its command line.
fn serves(pid: u32, data: &Path) -> bool {
    let line = match fs::read(format!("/proc/{pid}/cmdline")) {
        Ok(line) => line,
        Err(_) if Path::new("/proc/self").exists() => return false,
        Err(_) => {
            let ps = Command::new("ps")
                .args(["-o", "command=", "-p", &pid.to_string()])
                .output();
            ps.map(|output| output.stdout).unwrap_or_default()
        }
    };
    String::from_utf8_lossy(&line).contains(&*data.to_string_lossy())
}

/// Makes the data folder: all of it, or nothing.
fn create_data_folder(server_folder: &ServerFolder, binaries: &Binaries) -> anyhow::Result<()> {
    let new = server_folder.folder.join("data.new");
    server_folder.make_for_server(&new)?;
    let mut command = server_folder.command(binaries.program("initdb"));
    command
        .args([
            "--username",
            SUPERUSER,
            "--auth=peer",
            "--encoding=UTF8",
            "--no-locale",
            "-D",
        ])
        .arg(&new);
    if server_folder.is_throwaway() {
        command.arg("--no-sync");
    }
    run_to_end(command).context("cannot make the private Postgres")?;
    Ok(fs::rename(&new, server_folder.data())?)
}

/// The command line of the server. Also writes the files that say who may log in, anew at each start.
fn command_line(
    server_folder: &ServerFolder,
    binaries: &Binaries,
    socket: &Path,
) -> anyhow::Result<Vec<String>> {
    let users = server_folder.users()?;
    let map: String = users
        .iter()
        .flat_map(|user| [ROLE, SUPERUSER].map(|role| format!("owner \"{user}\" {role}\n")))
        .collect();
    let ident = server_folder.write("pg_ident.conf", &map)?;
    let hba = server_folder.write("pg_hba.conf", "local all all peer map=owner\n")?;
    let socket = socket.display().to_string().replace('"', "\"\"");
    let mut settings = vec![
        "listen_addresses=".to_owned(),
        "port=5432".to_owned(),
        format!("unix_socket_directories=\"{socket}\""),
        "unix_socket_permissions=0700".to_owned(),
        format!("hba_file={}", hba.display()),
        format!("ident_file={}", ident.display()),
        "timezone=UTC".to_owned(),
        "log_timezone=UTC".to_owned(),
    ];
    let rest: &[&str] = if server_folder.is_throwaway() {
        &[
            "fsync=off",
            "synchronous_commit=off",
            "full_page_writes=off",
            "max_connections=400",
            "shared_buffers=64MB",
        ]
    } else {
        &["max_connections=100"]
    };
    settings.extend(rest.iter().map(|&setting| setting.to_owned()));
    let mut line = vec![
        binaries.program("postgres").display().to_string(),
        "-D".to_owned(),
    ];
    line.push(server_folder.data().display().to_string());
    line.extend(
        settings
            .into_iter()
            .flat_map(|setting| ["-c".to_owned(), setting]),
    );
    Ok(line)
}

/// Starts the server below its watchdog, in a process group of its own: Ctrl-C must not reach the server,
/// which has to outlive the last write of this process.
fn start_watchdog(
    server_folder: &ServerFolder,
    server: &[String],
    socket: &Path,
    log: File,
) -> anyhow::Result<Child> {
    let (signal, remove) = if server_folder.is_throwaway() {
        ("QUIT", server_folder.folder.as_path())
    } else {
        ("INT", Path::new(""))
    };
    let mut command = server_folder.command("/bin/sh");
    command
        .args([
            "-c",
            include_str!("private_postgres/watchdog.sh"),
            "watchdog",
            signal,
        ])
        .arg(socket)
        .arg(remove)
        .args(server);
    command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log);
    command.spawn().context("cannot start /bin/sh")
}

/// Waits until the server answers, and makes the role and the database if they do not exist.
async fn prepare(watchdog: &mut Child, socket: &Path) -> anyhow::Result<()> {
    let admin = url(SUPERUSER, "postgres", socket);
    let deadline = clock::instant() + START_TIMEOUT;
    let mut connection = loop {
        match PgConnection::connect(admin.expose()).await {
            Ok(connection) => break connection,
            Err(error) if clock::instant() > deadline => {
                return Err(error).context("it does not answer");
            }
            Err(_) => {}
        }
        if let Some(status) = watchdog.try_wait()? {
            bail!("it ended ({status})");
        }
        tokio::time::sleep(POLL).await;
    };
    let database: bool =
        sqlx::query_scalar("select exists (select from pg_database where datname = $1)")
            .bind(ROLE)
            .fetch_one(&mut connection)
            .await?;
    if !database {
        sqlx::raw_sql(
            "drop role if exists chatelaine; create role chatelaine login createdb createrole",
        )
        .execute(&mut connection)
        .await?;
        sqlx::raw_sql("create database chatelaine owner chatelaine")
            .execute(&mut connection)
            .await?;
    }
    Ok(connection.close().await?)
}

/// Runs a command to its end. If it fails, its error output is the error.
fn run_to_end(mut command: Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn url(role: &str, database: &str, socket: &Path) -> Secret {
    let mut url = url::Url::parse(&format!("postgres://{role}@localhost:5432/{database}"))
        .expect("a literal");
    url.query_pairs_mut()
        .append_pair("host", &socket.to_string_lossy())
        .append_pair("sslmode", "disable");
    // Forms write `+` for a blank; libpq does not know that.
    Secret::new(url.as_str().replace('+', "%20"))
}

/// The last lines that the server wrote since `start`.
fn tail(log: &Path, start: u64) -> String {
    let mut text = String::new();
    let read = File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(start))?;
        file.read_to_string(&mut text)
    });
    match read {
        Ok(_) => {
            let lines: Vec<&str> = text.lines().rev().take(5).collect();
            lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
        }
        Err(_) => format!("see {}", log.display()),
    }
}
