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
    /// End when standard input closes, as it does when the process that started this one is gone
    #[arg(long, conflicts_with = "stdio")]
    with_parent: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let books = Arc::new(Books::open(options.ledger.as_deref())?);
    let bank = Bank::new(books.clone(), Duration::from_millis(options.delay_ms));
    if options.stdio {
        bank.serve((tokio::io::stdin(), tokio::io::stdout()))
            .await?
            .waiting()
            .await?;
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
        .with_graceful_shutdown(asked_to_stop(options.with_parent))
        .await?;
    Ok(())
}

/// Ctrl-C, or the end of standard input where that is the parent's sign of life.
async fn asked_to_stop(with_parent: bool) {
    let parent_gone = async {
        if with_parent {
            // Nobody writes there; an error says the same as the end.
            let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        // Without a signal to wait for, it ends when it is killed.
        Ok(()) = tokio::signal::ctrl_c() => {}
        () = parent_gone => {}
    }
}
