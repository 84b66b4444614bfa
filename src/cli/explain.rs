//! `chatelaine explain <pack>`: the pack as it is understood, in the native format, with where each value comes
//! from.

use std::path::{Path, PathBuf};

use crate::{
    domain::config::{Config, Environment},
    packs,
};

#[derive(clap::Args)]
pub struct Args {
    /// The id of a pack in `CHATELAINE_PACKS`, a pack's folder, or its file.
    pack: PathBuf,
}

pub fn run(args: &Args, config: &Config, env: &Environment) -> anyhow::Result<()> {
    let text = packs::explain(&found(&args.pack, config), env, config.mcp_servers.as_ref())?;
    super::print_line(text.trim_end());
    Ok(())
}

/// A path, or the folder of a pack by its id.
pub(super) fn found(pack: &Path, config: &Config) -> PathBuf {
    if pack.exists() {
        pack.to_owned()
    } else {
        config.packs.join(pack)
    }
}
