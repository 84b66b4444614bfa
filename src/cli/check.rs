//! `chatelaine check [path]`: what is wrong with packs, and what was understood of them. The same code as at
//! start-up.

use std::{path::PathBuf, process::ExitCode};

use crate::{
    domain::config::{Config, Environment},
    packs,
};

#[derive(clap::Args)]
pub struct Args {
    /// A folder of packs, one pack's folder, or its file; `CHATELAINE_PACKS` unless given.
    path: Option<PathBuf>,
    /// Leave variables open that are not set here, for a machine without the operator's environment.
    #[arg(long)]
    allow_unset: bool,
    /// Print the problems as JSON.
    #[arg(long)]
    json: bool,
}

/// Fails when a pack would not load; warnings do not count.
pub fn run(args: &Args, config: &Config, env: &Environment) -> anyhow::Result<ExitCode> {
    let path = args.path.as_ref().unwrap_or(&config.packs);
    let check = if args.allow_unset {
        packs::check_allowing_unset
    } else {
        packs::check
    };
    let report = check(path, env, config.mcp_servers.as_ref());
    if args.json {
        super::print_line(&serde_json::to_string_pretty(&report)?);
    } else {
        for pack in &report.understood {
            super::print_line(&pack.to_string());
        }
        super::print_line(report.to_string().trim_end());
    }
    Ok(if report.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
