//! Starts a stdio server with fewer rights than the service. The service runs itself with this command; the process
//! lowers its limits of open files and memory, gives up every way to gain rights (such as a setuid program), and then
//! becomes the server, under the same process id.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitCode},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The most files that a child may have open.
const OPEN_FILES: u64 = 4096;
/// The most bytes of memory that a child may fill.
const MEMORY: u64 = 4 * 1024 * 1024 * 1024;

#[derive(clap::Args)]
pub struct Args {
    command: OsString,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// The program with which the service starts a child: itself. Its file may have been replaced since the start, so on
/// Linux the running program is named instead of its path.
pub fn launcher() -> Option<PathBuf> {
    if cfg!(target_os = "linux") {
        Some(PathBuf::from("/proc/self/exe"))
    } else {
        std::env::current_exe().ok()
    }
}

/// Becomes the command; returns only when that fails.
pub fn run(args: &Args) -> ExitCode {
    let error = match lower_rights() {
        Ok(()) => Command::new(&args.command).args(&args.arguments).exec(),
        Err(error) => error.into(),
    };
    let _ = writeln!(
        io::stderr(),
        "chatelaine: command \"{}\" cannot be started: {error}",
        args.command.display()
    );
    ExitCode::from(127)
}

fn lower_rights() -> nix::Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    lower(Resource::RLIMIT_NOFILE, OPEN_FILES)?;
    lower(Resource::RLIMIT_DATA, MEMORY)?;
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_no_new_privs()?;
    Ok(())
}

/// Lowers a limit. A limit that is lower already stays.
fn lower(resource: Resource, most: u64) -> nix::Result<()> {
    let (soft, hard) = getrlimit(resource)?;
    setrlimit(resource, soft.min(most), hard.min(most))
}
