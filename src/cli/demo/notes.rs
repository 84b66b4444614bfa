//! The example notes: a personal server, with a token for each of two users. The tokens are made once and kept
//! in the data folder, where one can be taken out to see what a revoked token is like.

use std::{
    collections::BTreeMap,
    fs,
    io::{ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::example::{self, Example};

/// Running notes; they end with this value, and with the process.
pub struct Notes {
    pub server: Example,
    /// Where the tokens are.
    pub file: PathBuf,
    pub tokens: BTreeMap<String, TokenHolder>,
}

/// The user and the rights of a token, in the example's own format.
#[derive(Serialize, Deserialize)]
pub struct TokenHolder {
    pub name: String,
    pub scopes: Vec<String>,
}

/// Starts the notes; what is written lies in the data folder.
pub async fn start(program: Option<PathBuf>, data: &Path) -> anyhow::Result<Notes> {
    let file = data.join("notes-tokens.json");
    let tokens = tokens(&file)
        .with_context(|| format!("{}; remove it to get new tokens", file.display()))?;
    let server = example::start("notes", program, |command| {
        command
            .arg("--tokens")
            .arg(&file)
            .arg("--notes")
            .arg(data.join("notes.json"));
    });
    Ok(Notes {
        server: server.await?,
        file,
        tokens,
    })
}

fn tokens(file: &Path) -> anyhow::Result<BTreeMap<String, TokenHolder>> {
    match fs::read_to_string(file) {
        Ok(text) => return Ok(serde_json::from_str(&text)?),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        Err(_) => {}
    }
    let new = [("erin", &["read", "write"][..]), ("fred", &["read"])].map(|(name, scopes)| {
        let holder = TokenHolder {
            name: name.to_owned(),
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
        };
        (
            format!("notes-{name}-{}", hex::encode(rand::random::<[u8; 8]>())),
            holder,
        )
    });
    let tokens = BTreeMap::from(new);
    let mut made = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?;
    made.write_all(&serde_json::to_vec_pretty(&tokens)?)?;
    Ok(tokens)
}
