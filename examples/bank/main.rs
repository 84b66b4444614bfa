//! The bank of the demo: an MCP server with something to lose.
//!
//! ```text
//! cargo run --example bank -- --listen 127.0.0.1:9000 --token secret --ledger bank.jsonl
//! cargo run --example bank -- --stdio
//! ```
//!
//! Over HTTP it serves `/mcp` to clients of both protocol eras, and `GET /ledger`: what was executed, and how
//! often. Every execution is in the ledger before its answer leaves, so that a test can tell a call that was
//! made twice from one whose answer was lost. With `--ledger` the money is still gone after a restart.

mod books;
mod http;
mod money;
mod tools;

use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use clap::Parser;
use rmcp::ServiceExt;

use books::Books;
use tools::Bank;

#[derive(Parser)]
struct Options {
    /// Address and port to listen on; port 0 takes a free one, and the real address is printed
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Speak over standard input and output instead
    #[arg(long, conflicts_with = "listen")]
    stdio: bool,
    /// Bearer token to ask for; without it everybody may call
    #[arg(long, env = "BANK_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// File of executions, one JSON object a line; read at start
    #[arg(long)]
    ledger: Option<PathBuf>,
    /// Host names that requests may come for, beside the loopback and the address listened on
    #[arg(long)]
    allow_host: Vec<String>,
    /// Milliseconds between an execution and its answer
    #[arg(long, default_value_t = 0)]
    delay_ms: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let books = Arc::new(Books::open(options.ledger.as_deref())?);
    let bank = Bank::new(books.clone(), Duration::from_millis(options.delay_ms));
    if options.stdio {
        bank.serve((tokio::io::stdin(), tokio::io::stdout())).await?.waiting().await?;
        return Ok(());
    }
    let listener = tokio::net::TcpListener::bind(options.listen).await?;
    let address = listener.local_addr()?;
    let mut hosts = options.allow_host;
    hosts.push(match address.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    });
    writeln!(std::io::stdout(), "listening on http://{address}/mcp")?;
    axum::serve(listener, http::router(bank, books, options.token, &hosts))
        .with_graceful_shutdown(async {
            // Without a signal to wait for, it ends when it is killed.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        })
        .await?;
    Ok(())
}
