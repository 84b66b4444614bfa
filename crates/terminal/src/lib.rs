//! The terminal client: `chatelaine chat`, `login` and `logout`. It uses only the public API of a service, and what
//! it publishes for people who sign in.

mod answer;
pub mod chat;
mod chat_loop;
pub mod client;
pub mod completion;
pub mod event;
mod event_mux;
mod event_stream;
pub mod lines;
pub mod local_time;
pub mod login;
pub mod loopback;
pub mod markdown;
pub mod notices;
mod prompts;
pub mod renderer;
mod spinner;
pub mod style;

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use url::Url;

use domain::config::Config;

/// The file that `chatelaine demo` writes into the data folder for this client.
#[derive(Serialize, Deserialize)]
pub struct DemoFile {
    pub url: Url,
    pub agent: String,
    /// User → token. The folder is readable by its owner only.
    pub tokens: BTreeMap<String, String>,
}

impl DemoFile {
    pub const FILE: &str = "demo.json";

    pub fn read(config: &Config) -> anyhow::Result<Self> {
        let path = config.data.join(Self::FILE);
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!(
                "{} is not there; start the demo with `make demo` first",
                path.display()
            )
        })?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// The address of the API: the one of the command line, else the one of the demo, else this machine.
fn service_address(given: Option<&Url>, config: &Config) -> anyhow::Result<Url> {
    match (given, DemoFile::read(config)) {
        (Some(url), _) => Ok(url.clone()),
        (None, Ok(file)) => Ok(file.url),
        (None, Err(_)) => Ok(format!("http://{}", config.listen).parse()?),
    }
}

/// Writes to standard output. A closed pipe is not an error.
pub fn print_line(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out
        .write_all(text.as_bytes())
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush());
}
