//! An example server as a process of the demo's own.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use crate::domain::config;

const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A running example; it ends with this value, and with the process.
pub struct Example {
    /// Where it speaks MCP.
    pub url: String,
    _process: Child,
}

/// Starts an example on a free port. `program` is where cargo puts it unless given.
pub async fn start(
    name: &'static str,
    program: Option<PathBuf>,
    prepare: impl FnOnce(&mut Command),
) -> anyhow::Result<Example> {
    let program = match program {
        Some(program) => program,
        None => sibling_program(name)?,
    };
    let mut process = Command::new(&program);
    for name in config::OWN_SECRETS {
        process.env_remove(name);
    }
    process.args(["--listen", "127.0.0.1:0", "--with-parent"]);
    prepare(&mut process);
    let mut process = process
        // Closed by the kernel when we are gone, however we go; the example watches it.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Ctrl-C is for us; the example goes on until the last call is answered.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start the example {}", program.display()))?;
    let mut lines =
        BufReader::new(process.stdout.take().context("the example has no output")?).lines();
    let line = tokio::time::timeout(START_TIMEOUT, lines.next_line())
        .await
        .with_context(|| format!("the example {name} does not start"))??;
    let Some(url) = line.as_deref().and_then(|line| {
        line.split_whitespace()
            .find(|word| word.starts_with("http://"))
    }) else {
        bail!("the example {name} ended at once; see its message above");
    };
    let url = url.to_owned();
    // Whatever it says later is for its log, not for a full pipe.
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            let _ = writeln!(std::io::stderr(), "{name}: {line}");
        }
    });
    Ok(Example {
        url,
        _process: process,
    })
}

fn sibling_program(name: &str) -> anyhow::Result<PathBuf> {
    let us = std::env::current_exe()?;
    let example = us
        .parent()
        .context("this program is in no folder")?
        .join(Path::new("examples").join(name));
    if example.exists() {
        Ok(example)
    } else {
        bail!(
            "{} is not there; build it with `cargo build --example {name}`, or use `make demo`",
            example.display()
        )
    }
}
