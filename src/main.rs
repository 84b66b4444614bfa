//! The program; everything it can do is in [`chatelaine::cli`].

use std::process::ExitCode;

use clap::Parser;

/// What a flood needed is given back soon after it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    chatelaine::cli::run(chatelaine::cli::Cli::parse()).await
}
