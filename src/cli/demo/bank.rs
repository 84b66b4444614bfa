//! The example bank as a process of the demo's own.

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

const PATIENCE: Duration = Duration::from_secs(10);

/// A running bank; it ends with this value, and with the process.
pub struct Bank {
    pub url: String,
    pub token: String,
    _process: Child,
}

/// Starts the bank on a free port; its ledger lies in the data folder.
pub async fn start(program: Option<PathBuf>, data: &Path) -> anyhow::Result<Bank> {
    let program = match program {
        Some(program) => program,
        None => beside_us()?,
    };
    let token = hex::encode(rand::random::<[u8; 16]>());
    let mut process = Command::new(&program);
    for name in config::RING {
        process.env_remove(name);
    }
    let mut process = process
        .args(["--listen", "127.0.0.1:0", "--with-parent", "--ledger"])
        .arg(data.join("bank-ledger.jsonl"))
        .env("BANK_TOKEN", &token)
        // Closed by the kernel when we are gone, however we go; the bank watches it.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Ctrl-C is for us; the bank goes on until the last call is answered.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start the example bank {}", program.display()))?;
    let mut lines = BufReader::new(process.stdout.take().context("the bank has no output")?).lines();
    let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.context("the example bank does not start")??;
    let Some(url) = line.as_deref().and_then(|line| line.split_whitespace().find(|word| word.starts_with("http://")))
    else {
        bail!("the example bank ended at once; see its message above");
    };
    let url = format!("{}/mcp", url.trim_end_matches('/').trim_end_matches("/mcp"));
    // Whatever it says later is for its log, not for a full pipe.
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            let _ = writeln!(std::io::stderr(), "bank: {line}");
        }
    });
    Ok(Bank { url, token, _process: process })
}

/// Where cargo puts it.
fn beside_us() -> anyhow::Result<PathBuf> {
    let us = std::env::current_exe()?;
    let bank = us.parent().context("this program is in no folder")?.join("examples/bank");
    if bank.exists() {
        Ok(bank)
    } else {
        bail!("{} is not there; build it with `cargo build --example bank`, or use `make demo`", bank.display())
    }
}
