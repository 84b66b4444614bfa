//! The program. Its commands are in [`chatelaine::cli`].

use std::process::ExitCode;

use clap::Parser;

/// Returns memory to the system soon after a burst of requests, which the default allocator does not.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    chatelaine::cli::run(chatelaine::cli::Cli::parse()).await
}
