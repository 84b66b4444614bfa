//! The example bank, behind a token that only this process knows.

use std::path::{Path, PathBuf};

use super::example::{self, Example};

/// A running bank; it ends with this value, and with the process.
pub struct Bank {
    pub server: Example,
    pub token: String,
}

/// Starts the bank; its ledger lies in the data folder.
pub async fn start(program: Option<PathBuf>, data: &Path) -> anyhow::Result<Bank> {
    let token = hex::encode(rand::random::<[u8; 16]>());
    let server = example::start("bank", program, |command| {
        command
            .arg("--ledger")
            .arg(data.join("bank-ledger.jsonl"))
            .env("BANK_TOKEN", &token);
    });
    Ok(Bank {
        server: server.await?,
        token,
    })
}
