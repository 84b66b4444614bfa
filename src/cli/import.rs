//! `chatelaine import <path>`: writes a pack of another format as a native one.

use std::path::PathBuf;

use super::explain::find_pack;
use domain::config::{Config, Environment};
use terminal::print_line;

#[derive(clap::Args)]
pub struct Args {
    /// A folder with `workspace.yaml`, `agent.yaml` or `core/mcp`, or one of these files.
    path: PathBuf,
    /// The folder to write `agent-pack.yaml` into; `<CHATELAINE_PACKS>/<id>` unless given.
    #[arg(long)]
    to: Option<PathBuf>,
}

/// Writes the pack, but never over an existing one. The names of variables are written, never their values.
pub fn run(args: &Args, config: &Config, env: &Environment) -> anyhow::Result<()> {
    let imported = packs::import(&find_pack(&args.path, config), env)?;
    let folder = args
        .to
        .clone()
        .unwrap_or_else(|| config.packs.join(&imported.id));
    let file = imported.write_to(&folder)?;
    for problem in &imported.report.problems {
        print_line(&problem.to_string());
    }
    print_line(&format!("written: {}", file.display()));
    let is_moved = folder.canonicalize().ok() != imported.folder.canonicalize().ok();
    for name in imported.needs.iter().filter(|_| is_moved) {
        let from = imported.folder.display();
        print_line(&format!("it needs {name} beside it: copy it from {from}"));
    }
    if is_moved && imported.names_folder {
        print_line(
            "a server is given `.`, its pack's folder, which is another one now; write the path that is meant",
        );
    }
    if !imported.compared {
        print_line(
            "not compared with the original, since some variables are not set here; `check` names them",
        );
    }
    Ok(())
}
