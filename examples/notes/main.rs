//! The notes of the demo: an MCP server to which everybody brings a token of their own.
//!
//! ```text
//! cargo run --example notes -- --tokens tokens.json --notes notes.json
//! ```
//!
//! It serves `/mcp` to clients of both protocol eras. Whoever holds a token finds their own notes and nobody
//! else's; what a token may do is in the file of tokens: `{"<token>": {"name": "erin", "scopes": ["read", "write"]}}`.
//! That file is read whenever somebody comes, so a token that is taken out of it is refused from then on.

mod book;
mod http;
mod tools;

use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use clap::Parser;

use book::Book;

#[derive(Parser)]
struct Options {
    /// Address and port to listen on; port 0 takes a free one, and the real address is printed
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// File of tokens: who holds each, and what it is good for
    #[arg(long)]
    tokens: PathBuf,
    /// File of notes; without it they are gone at the end
    #[arg(long)]
    notes: Option<PathBuf>,
    /// Host names that requests may come for, beside the loopback and the address listened on
    #[arg(long)]
    allow_host: Vec<String>,
    /// End when standard input closes, as it does when the process that started this one is gone
    #[arg(long)]
    with_parent: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    http::holders(&options.tokens)?;
    let book = Arc::new(Book::open(options.notes)?);
    let listener = tokio::net::TcpListener::bind(options.listen).await?;
    let address = listener.local_addr()?;
    let mut hosts = options.allow_host;
    hosts.push(match address.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    });
    writeln!(std::io::stdout(), "listening on http://{address}/mcp")?;
    axum::serve(listener, http::router(book, options.tokens, &hosts))
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
