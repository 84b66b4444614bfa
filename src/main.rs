//! The program; everything it can do is in [`chatelaine::cli`].

use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    chatelaine::cli::run(chatelaine::cli::Cli::parse()).await
}
