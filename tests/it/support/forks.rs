//! The small fastmcp servers of `tests/servers`. Each is a process of its own, forked from one that has imported fastmcp:
//! importing it takes longer than most tests.

use std::{
    io::{BufRead, BufReader, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::JoinHandle,
};

use tokio::sync::{OnceCell, oneshot};

use super::servers::{folder, port_in, venv};

static FORKS: OnceCell<Forks> = OnceCell::const_new();

/// `forks.py`, which ends with its standard input, and so with this process.
struct Forks {
    socket: PathBuf,
    _process: Child,
}

impl Forks {
    fn start() -> Self {
        let mut child = Command::new(venv("python"))
            .arg(folder().join("forks.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert!(
            line.starts_with('/'),
            "forks.py does not start; run tests/servers/install.sh"
        );
        Self {
            socket: line.trim_end().into(),
            _process: child,
        }
    }
}

/// A server at work. Dropped, it has ended.
pub struct Fork {
    connection: UnixStream,
    reader: Option<JoinHandle<()>>,
}

impl Fork {
    /// Starts a script with these arguments; its process, and the port that it listens on.
    pub async fn start(script: &str, arguments: &[&str]) -> (Self, u16) {
        let forks = FORKS.get_or_init(async || {
            let started = tokio::task::spawn_blocking(Forks::start);
            started.await.unwrap()
        });
        let mut connection = UnixStream::connect(&forks.await.socket).unwrap();
        let order = [&[script], arguments].concat();
        writeln!(connection, "{}", serde_json::json!(order)).unwrap();
        let output = BufReader::new(connection.try_clone().unwrap());
        let (found, port) = oneshot::channel();
        let mut found = Some(found);
        // All output is read, so that the server never waits for a reader.
        let reader = std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(port) = port_in(&line)
                    && let Some(found) = found.take()
                {
                    let _ = found.send(port);
                }
            }
        });
        let fork = Self {
            connection,
            reader: Some(reader),
        };
        let port = port.await;
        let port = port.unwrap_or_else(|_| panic!("{script} ended before it listened"));
        (fork, port)
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        let _ = self.connection.shutdown(Shutdown::Write);
        // The output ends with the process.
        let _ = self.reader.take().map(JoinHandle::join);
    }
}
